"""What BERT's heads answer: words for the gaps of a text, and whether one text follows another."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from weft.budget import by_budget
from weft.checkpoint.folder import LoadedModel
from weft.data.chance import key_of, uniform
from weft.data.masking import sentinel, sentinels_of
from weft.errors import UserError, shown
from weft.nn.rows import Ragged
from weft.tasks.answers import Candidate, Follows, Words
from weft.tasks.base import Example, Prediction, UnsupervisedTask
from weft.tasks.forward import check_finite, framing_for, pieces_in, tokenizer_of
from weft.tasks.perplexity import LikelihoodTask, Reading
from weft.text.tokenizers.tokenizer import Encoded, Tokenizer
from weft.text.windows import TextWindow, frame, pair_frame

LONGEST = 32  # tokens that a T5 writes for one gap at most
BLANK = "▁"  # what a vocabulary of pieces has for a space alone
HIDDEN = 0.15  # of the tokens of a text, where models are compared


@torch.inference_mode()
def fill(opened: LoadedModel, texts: Sequence[str], *, top: int = 5) -> list[Words]:
    """The likeliest words for each mask, a long text being seen around it; a T5 says one filling, of any length."""
    tokenizer = opened.tokenizer
    if opened.family.sentinels and "words" in opened.heads and tokenizer is not None:
        return fill_gaps(opened, texts)
    tokenizer, mask = filler(opened)
    if not 1 <= top <= opened.config.vocabulary:
        raise UserError(f"top must be between 1 and {opened.config.vocabulary}, not {top}")
    around = frame(tokenizer)
    encoded = tokenizer.encode_batch(list(texts), specials=False)
    views: list[list[Reading]] = []
    for number, (text, encoding) in enumerate(zip(texts, encoded, strict=True)):
        if mask not in encoding.ids:
            raise UserError(f"no {tokenizer.roles.mask} in {shown(text)!r}: mark the gaps with it")
        views.append(_views(number, encoding.ids, mask, around, opened.config.context))
    gaps: list[list[tuple[Candidate, ...]]] = [[] for _ in texts]
    for batch in by_budget((view for some in views for view in some), lambda view: len(view.tokens)):
        ragged = Ragged.of([view.tokens for view in batch], opened.device)
        starts = ragged.rows.firsts().tolist()
        places = [start + gap for start, view in zip(starts, batch, strict=True) for gap in view.places or ()]
        hidden = opened.network(ragged.tokens, ragged.rows)[torch.tensor(places, device=ragged.tokens.device)]
        logits = check_finite(opened, opened.network.words(hidden).float())
        best = logits.softmax(-1).topk(top)
        owners = [view.document for view in batch for _ in view.places or ()]
        for owner, tokens, chances in zip(owners, best.indices.tolist(), best.values.tolist(), strict=True):
            pairs = zip(tokens, chances, strict=True)
            gaps[owner].append(tuple(Candidate(word=tokenizer.decode([t]).strip(), probability=p) for t, p in pairs))
    extra = sum(map(len, around))
    return [
        Words(
            text=_filled(text, encoding, mask, words),
            gaps=tuple(words),
            n_tokens=len(encoding) + extra,
            n_windows=len(some),
        )
        for text, encoding, words, some in zip(texts, encoded, gaps, views, strict=True)
    ]


def filler(opened: LoadedModel) -> tuple[Tokenizer, int]:
    """The tokenizer of a model that says words behind masks, and its mask; an error for any other model."""
    if opened.family.generates or "words" not in opened.heads:
        raise UserError(f"this {opened.family.name} model fills no gaps: it has no head for masked words")
    if opened.tokenizer is None:
        raise UserError("this model folder has no tokenizer, so it reads and writes no text")
    mask = opened.tokenizer.id_of("mask")
    if mask is None:
        raise UserError("this model's tokenizer has no mask token")
    return opened.tokenizer, mask


def _views(number: int, ids: list[int], mask: int, around: tuple[list[int], list[int]], context: int) -> list[Reading]:
    """One view of a text that fits, else one around each gap."""
    before, after = around
    gaps = [place for place, token in enumerate(ids) if token == mask]
    size = context - len(before) - len(after)
    if size < 1:
        raise UserError(f"a context of {context} tokens has no room beside the special tokens")
    if len(ids) <= size:
        return [Reading([*before, *ids, *after], [], number, [len(before) + gap for gap in gaps])]
    views = []
    for gap in gaps:
        start = max(0, min(gap - size // 2, len(ids) - size))
        tokens = [*before, *ids[start : start + size], *after]
        views.append(Reading(tokens, [], number, [len(before) + gap - start]))
    return views


def _filled(text: str, encoding: Encoded, mask: int, words: list[tuple[Candidate, ...]]) -> str:
    """The user's own text with the best word in each gap."""
    spans = [span for token, span in zip(encoding.ids, encoding.offsets, strict=True) if token == mask]
    for (start, end), gap in reversed(list(zip(spans, words, strict=True))):  # from the end, so that offsets stay right
        start = end - len(text[start:end].lstrip())  # some masks take the space before them with them
        text = text[:start] + gap[0].word + text[end:]
    return text


class FillTask(LikelihoodTask):
    """Words for the gaps of a text; to compare models, the same tokens of every text are hidden from all of them."""

    name = "fill"
    metric_names = ("filled", "bits_per_gap")
    default_metric = "filled"

    def answers(self, model: LoadedModel, inputs: Sequence[Any], **options: Any) -> list[Any]:
        return fill(model, inputs, **options)

    def readings(self, model: LoadedModel, texts: Sequence[str]) -> Iterator[Reading]:
        tokenizer, mask = filler(model)
        encoded = pieces_in(framing_for(model), tokenizer, [(text,) for text in texts])
        for number, (windows, lengths) in enumerate(encoded):
            hidden = set(hidden_of(texts[number], lengths[0]).tolist())
            yield from (_with_gaps(number, piece, hidden, mask) for piece in windows)

    def describe(self, prediction: Prediction, other: Prediction, example: Example) -> str:
        return f"{prediction.output.hits:.0f} of {len(prediction.output.tokens)} right"

    def add(self, metrics: Any, predictions: Sequence[Prediction], examples: Sequence[Example]) -> None:
        for text in (prediction.output for prediction in predictions):
            gaps = float(len(text.tokens))
            metrics.add({"filled": (text.hits, gaps), "bits_per_gap": (text.nats / math.log(2), gaps)})

    def logits_of(self, model: LoadedModel, inputs: Sequence[Any]) -> list[NDArray[Any]]:
        return [np.log(numbers) for numbers in self.numbers_of(model, inputs)]

    def made_up_input(self, text: Callable[[int], str], length: int, tokenizer: Tokenizer) -> str:
        return f"{text(max(1, length // 2))} {tokenizer.roles.mask} {text(length)}"

    def timing_input(self, texts: Sequence[str], tokenizer: Tokenizer | None) -> str:
        """A text whose last word is a gap."""
        mask = tokenizer.roles.mask if tokenizer is not None else None
        return f"{texts[0].rpartition(' ')[0]} {mask}"


def hidden_of(text: str, count: int) -> NDArray[np.int64]:
    """Which of the tokens of a text are hidden: the text alone decides, and at least one."""
    chance = uniform(key_of("gaps", text), np.arange(count))
    return np.flatnonzero(chance <= max(HIDDEN, float(chance.min(initial=1.0))))


def _with_gaps(text: int, piece: TextWindow, hidden: set[int], mask: int) -> Reading:
    tokens, targets, places = list(piece.tokens), list[int](), list[int]()
    for token in range(piece.cut.start, piece.cut.end):
        if token in hidden:  # also those that another window is asked about: no window may see them
            place = piece.lead + token - piece.cut.start
            if piece.cut.first <= token < piece.cut.last:
                places.append(place)
                targets.append(tokens[place])
            tokens[place] = mask
    return Reading(tokens, targets, text, places)


# --------------------------------------------------------------------------------------- gaps that sentinels stand for


@dataclass
class GapView:
    """What the network reads of one text, and what it has written so far."""

    text: int
    tokens: list[int]
    gaps: list[int]  # numbers, in the text, of the gaps that this view has
    asked: list[int]  # those that it is asked about
    spans: list[list[int]] = field(default_factory=lambda: [[]])
    chances: list[float] = field(default_factory=lambda: [0.0])  # logarithms

    @property
    def done(self) -> bool:
        return len(self.spans) > len(self.gaps)


def fill_gaps(opened: LoadedModel, texts: Sequence[str]) -> list[Words]:
    """The likeliest words for each gap, token by token; in a long text each gap is seen with what surrounds it."""
    tokenizer = tokenizer_of(opened)
    sentinels, end = sentinels_of(tokenizer), tokenizer.id_of("end")
    if not sentinels or end is None:
        raise UserError(f"this model's tokenizer has no {sentinel(0)}, so its texts have no gaps")
    encoded = tokenizer.encode_batch(list(texts), specials=False)
    views: list[list[GapView]] = []
    for number, (text, encoding) in enumerate(zip(texts, encoded, strict=True)):
        places = [token for token in encoding.ids if token in sentinels]
        if not places or places != sentinels[: len(places)]:
            raise UserError(
                f"{shown(text)!r}: mark the gaps with {sentinel(0)}, {sentinel(1)} and so on, in this order"
            )
        views.append(_gap_views(number, _read(encoding, tokenizer, sentinels), sentinels, end, opened.config.context))
    for batch in by_budget((view for some in views for view in some), lambda view: len(view.tokens)):
        _write(opened, batch, sentinels, end)
    answers = []
    for text, encoding, some in zip(texts, encoded, views, strict=True):
        gaps: dict[int, Candidate] = {}
        for view in some:
            for gap in view.asked:
                place = view.gaps.index(gap)
                word = tokenizer.decode(view.spans[place]).strip()
                gaps[gap] = Candidate(word=word, probability=math.exp(view.chances[place]))
        marks = [span for token, span in zip(encoding.ids, encoding.offsets, strict=True) if token in sentinels]
        for gap in reversed(range(len(marks))):  # from the end, so that offsets stay right
            text = text[: marks[gap][0]] + gaps[gap].word + text[marks[gap][1] :]
        words = tuple((gaps[gap],) for gap in range(len(marks)))
        answers.append(Words(text=text, gaps=words, n_tokens=len(encoding) + 1, n_windows=len(some)))
    return answers


def _read(encoding: Encoded, tokenizer: Tokenizer, sentinels: list[int]) -> list[int]:
    """The tokens less the space that a vocabulary of pieces puts before whatever follows a gap: none was learned."""
    blank, ids = tokenizer.id(BLANK), encoding.ids
    return [token for place, token in enumerate(ids) if token != blank or not place or ids[place - 1] not in sentinels]


def _gap_views(number: int, ids: list[int], sentinels: list[int], end: int, context: int) -> list[GapView]:
    """One view of a text that fits, else one around each gap; the gaps of a view are counted from 0."""
    places = [place for place, token in enumerate(ids) if token in sentinels]
    if len(ids) < context and 2 * len(places) < context:
        every = list(range(len(places)))
        return [GapView(number, [*ids, end], every, every)]
    views = []
    for gap, place in enumerate(places):
        size = context - 1
        start = max(0, min(place - size // 2, len(ids) - size))
        inside = [other for other, at in enumerate(places) if start <= at < start + size]
        while 2 * len(inside) >= context:  # more gaps than what is written has room for
            inside = inside[1:] if gap - inside[0] > inside[-1] - gap else inside[:-1]
            start, size = places[inside[0]], places[inside[-1]] - places[inside[0]] + 1
        tokens = ids[start : start + size]
        for counted, other in enumerate(inside):
            tokens[places[other] - start] = sentinels[counted]
        views.append(GapView(number, [*tokens, end], inside, [gap]))
    return views


def _write(opened: LoadedModel, views: list[GapView], sentinels: list[int], end: int) -> None:
    """Fill all gaps of these views: the likeliest token each time, and the next sentinel where a span has ended."""
    network: Any = opened.network
    config, device = opened.config, opened.device
    stops = torch.tensor([*sentinels, end, config.begin], device=device)
    most = [max(1, min(LONGEST, (config.context - 2) // len(view.gaps) - 1)) for view in views]
    prompt = Ragged.of([[config.begin, sentinels[0]]] * len(views), device)
    scores, state = network.start(prompt, Ragged.of([view.tokens for view in views], device))
    while True:
        chances = check_finite(opened, scores.float()).log_softmax(-1)
        best = chances.clone()
        fresh = torch.tensor([not view.done and not view.spans[-1] for view in views], device=device)
        best[:, stops] = best[:, stops].masked_fill(fresh[:, None], -math.inf)  # no gap is empty
        chosen = best.argmax(-1)
        likely = chances.gather(1, chosen[:, None])[:, 0].tolist()
        written = []
        for view, token, chance, limit in zip(views, chosen.tolist(), likely, most, strict=True):
            if not view.done and (token in sentinels or token in (end, config.begin) or len(view.spans[-1]) == limit):
                view.spans.append([])
                view.chances.append(0.0)
                token = end if view.done else sentinels[len(view.spans) - 1]
            elif not view.done:
                view.spans[-1].append(token)
                view.chances[-1] += chance
            written.append(token)
        if all(view.done for view in views):
            return
        keep = [row for row, view in enumerate(views) if not view.done]
        if len(keep) < len(views):
            state.pick(torch.tensor(keep, device=device))
            views, written, most = ([some[row] for row in keep] for some in (views, written, most))
        scores = network.step(torch.tensor(written, device=device), state)


@torch.inference_mode()
def follows(opened: LoadedModel, pairs: Sequence[tuple[str, str]]) -> list[Follows]:
    """Whether the second text of each pair follows the first.

    The head sees both texts at once, so they must fit the context together, and windows would ask it about texts that
    do not touch. What lies nearest to the border between the two decides: of a pair that is too long the first text
    keeps its end and the second its beginning, and the answer says `truncated`.
    """
    config = opened.config
    if opened.heads.get("next") != 2:
        raise UserError(f"this {opened.family.name} model has no head that says whether one sentence follows another")
    tokenizer = tokenizer_of(opened)
    around = pair_frame(tokenizer)
    if around is None:
        raise UserError("this model's tokenizer puts nothing between two texts, so a model cannot tell them apart")
    before, between, after = around
    extra = len(before) + len(between) + len(after)
    room = config.context - extra
    if room < 2:
        raise UserError(f"a context of {config.context} tokens has no room beside the special tokens")
    for number, pair in enumerate(pairs, 1):
        if isinstance(pair, str) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
            raise UserError(f"pair {number}: two texts are expected, as in [(first, second), ...]")
    firsts = tokenizer.ids([first for first, _ in pairs], specials=False)
    seconds = tokenizer.ids([second for _, second in pairs], specials=False)
    device = opened.device
    answers: list[Follows] = []
    for batch in by_budget(zip(firsts, seconds, strict=True), lambda pair: min(sum(map(len, pair)), room) + extra):
        rows: list[list[int]] = []
        segments: list[int] = []
        for first, second in batch:
            kept, begun = _fitted(first, second, room)
            rows.append([*before, *kept, *between, *begun, *after])
            border = len(before) + len(kept) + len(between)
            segments += [0] * border + [1] * (len(rows[-1]) - border)
        ragged = Ragged.of(rows, device)
        segment_ids = torch.tensor(segments, device=device) if config.segments > 1 else None
        hidden = opened.network(ragged.tokens, ragged.rows, segment_ids)
        scores = check_finite(opened, opened.network.logits("next", hidden, ragged.rows).float())
        for (first, second), chance in zip(batch, scores.softmax(-1)[:, 0].tolist(), strict=True):
            count = len(first) + len(second)
            answers.append(
                Follows(follows=chance >= 0.5, probability=chance, n_tokens=count + extra, truncated=count > room)
            )
    return answers


def _fitted(first: list[int], second: list[int], room: int) -> tuple[list[int], list[int]]:
    """The end of the first and the beginning of the second: half of the room each, or what the other leaves."""
    kept = min(max(room - len(second), room // 2), len(first))
    return first[len(first) - kept :], second[: room - kept]


class NextTask(UnsupervisedTask):
    """Whether one text follows another."""

    name = "next"
    head = "next"
    pair = True

    def answers(self, model: LoadedModel, inputs: Sequence[Any], **options: Any) -> list[Any]:
        return follows(model, inputs, **options)
