"""What BERT's heads answer: words for the gaps of a text, and whether one text follows another."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
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
from weft.tasks.forward import check_finite, framing_for, pieces_in, stripped, tokenizer_of
from weft.tasks.perplexity import LikelihoodTask, Reading
from weft.tasks.targets import LogitTarget, Term, read_texts, target_of, whole_window
from weft.text.tokenizers.tokenizer import Encoded, Tokenizer
from weft.text.windows import Framing, frame, pair_frame

LONGEST = 32  # tokens that a T5 writes for one gap at most
BLANK = "▁"  # what a vocabulary of pieces has for a space alone
HIDDEN = 0.15  # of the tokens of a text, where models are compared


@torch.inference_mode()
def fill(model: LoadedModel, texts: Sequence[str], *, top: int = 5) -> list[Words]:
    """The likeliest words for each mask, a long text being seen around it; a T5 gives one filling, of any length."""
    if model.family.sentinels and "words" in model.heads:
        return fill_gaps(model, texts)
    tokenizer, mask = filler(model)
    if not 1 <= top <= model.config.vocabulary:
        raise UserError(f"top must be between 1 and {model.config.vocabulary}, not {top}")
    before, after = frame(tokenizer)
    size = model.config.context - len(before) - len(after)
    if size < 1:
        raise UserError(f"a context of {model.config.context} tokens has no room beside the special tokens")
    encoded = tokenizer.encode_batch(list(texts), specials=False)
    views: list[list[Reading]] = []
    for number, (text, encoding) in enumerate(zip(texts, encoded, strict=True)):
        marks = [place for place, token in enumerate(encoding.ids) if token == mask]
        if not marks:
            raise UserError(f"no {tokenizer.roles.mask} in {shown(text)!r}: mark the gaps with it")
        views.append([])
        for start, end, _, asked in _parts(marks, len(encoding), size, len(marks) + 1):
            places = [len(before) + marks[gap] - start for gap in asked]
            views[-1].append(Reading([*before, *encoding.ids[start:end], *after], [], number, places))
    gaps: list[list[tuple[Candidate, ...]]] = [[] for _ in texts]
    for batch in by_budget((view for some in views for view in some), lambda view: len(view.tokens)):
        ragged = Ragged.of([view.tokens for view in batch], model.device)
        starts = ragged.rows.firsts().tolist()
        places = [start + gap for start, view in zip(starts, batch, strict=True) for gap in view.places or ()]
        hidden = model.network(ragged.tokens, ragged.rows)[torch.tensor(places, device=ragged.tokens.device)]
        best = check_finite(model, model.network.words(hidden).float()).softmax(-1).topk(top)
        owners = [view.document for view in batch for _ in view.places or ()]
        for owner, *likely in zip(owners, best.indices.tolist(), best.values.tolist(), strict=True):
            pairs = zip(*likely, strict=True)
            gaps[owner].append(tuple(Candidate(word=tokenizer.decode([t]).strip(), probability=p) for t, p in pairs))
    extra = len(before) + len(after)
    rows = zip(texts, encoded, gaps, views, strict=True)
    return [_words(text, tokens, {mask}, words, len(tokens) + extra, len(some)) for text, tokens, words, some in rows]


def filler(model: LoadedModel) -> tuple[Tokenizer, int]:
    """The tokenizer of a model that predicts words behind masks, and its mask; an error for any other model."""
    if model.family.generates or "words" not in model.heads:
        lacks = f"this {model.family.name} model fills no gaps: it has no head for masked words"
        raise UserError(f"{lacks}; a masked language model does (weft pretrain --objective mlm)")
    tokenizer = tokenizer_of(model)
    mask = tokenizer.id_of("mask")
    if mask is None:
        raise UserError("this model's tokenizer has no mask token")
    return tokenizer, mask


def tokens_read(model: LoadedModel, text: str, top: int = 5) -> int:
    """Tokens that are read for the gaps of a text, each gap of a long one by itself, and candidates that they have."""
    tokenizer, context = tokenizer_of(model), model.config.context
    (ids,) = tokenizer.ids([text], specials=False)
    marks = {tokenizer.id_of("mask"), *sentinels_of(tokenizer)}
    gaps = sum(token in marks for token in ids)
    return (len(ids) if len(ids) <= context else gaps * context) + gaps * top


def _words(
    text: str, encoding: Encoded, marks: Container[int], gaps: Sequence[tuple[Candidate, ...]], tokens: int, views: int
) -> Words:
    """The answer: the user's own text with the best word in each gap, which these tokens mark."""
    spans = [span for token, span in zip(encoding.ids, encoding.offsets, strict=True) if token in marks]
    for (start, end), gap in reversed(list(zip(spans, gaps, strict=True))):  # from the end, so that offsets stay right
        start = end - len(text[start:end].lstrip())  # some masks take the space before them with them
        text = text[:start] + gap[0].word + text[end:]
    return Words(text=text, gaps=tuple(gaps), n_tokens=tokens, n_windows=views)


def _parts(places: list[int], length: int, size: int, limit: int) -> Iterator[tuple[int, int, list[int], list[int]]]:
    """Which parts of a text are read: all of it where it fits, else one around each gap, with fewer gaps than `limit`.

    Of each part the first token and the one after its last, the gaps in it, and those that it is asked about.
    """
    if length <= size and len(places) < limit:
        every = list(range(len(places)))
        yield 0, length, every, every
        return
    for gap, place in enumerate(places):
        start = max(0, min(place - size // 2, length - size))
        end = start + size
        inside = [other for other, at in enumerate(places) if start <= at < end]
        while len(inside) >= limit:
            inside = inside[1:] if gap - inside[0] > inside[-1] - gap else inside[:-1]
            start, end = places[inside[0]], places[inside[-1]] + 1
        yield start, end, inside, [gap]


class FillTask(LikelihoodTask):
    """Words for the gaps of a text; to compare models, the same tokens of every text are hidden from all of them."""

    name = "fill"
    run = staticmethod(fill)
    metric_names = ("filled", "bits_per_gap")
    gives_vectors = True

    def readings(self, model: LoadedModel, texts: Sequence[str]) -> Iterator[Reading]:
        tokenizer, mask = filler(model)
        encoded = pieces_in(framing_for(model), tokenizer, [(text,) for text in texts])
        for number, (windows, lengths) in enumerate(encoded):
            hidden = hidden_of(texts[number], lengths[0]).tolist()
            for piece in windows:  # also a gap that another window is asked about: no window may see its token
                cut, shift, tokens = piece.cut, piece.lead - piece.cut.start, list(piece.tokens)
                places = [shift + token for token in hidden if cut.first <= token < cut.last]
                targets = [tokens[place] for place in places]
                for token in hidden:
                    if cut.start <= token < cut.end:
                        tokens[shift + token] = mask
                yield Reading(tokens, targets, number, places)

    @torch.inference_mode()
    def logit_target(self, model: LoadedModel, windows: Framing, input: str, target: Any) -> LogitTarget:
        """The logit of a word for the first gap: the likeliest one, or `target`."""
        tokenizer, mask = filler(model)
        read = read_texts(tokenizer, [input])[0]
        if mask not in read.ids:
            raise UserError(f"no {tokenizer.roles.mask} in {shown(input)!r}: mark the gaps with it")
        gaps = [stripped(input, *span) for token, span in zip(read.ids, read.offsets, strict=True) if token == mask]
        words = [span for span in read.words if all(span[1] <= start or span[0] >= end for start, end in gaps)]
        read = replace(read, words=tuple(sorted([*words, *gaps])))
        window = whole_window(read, *frame(tokenizer), model.config.context)
        place, network = window.lead + read.ids.index(mask), model.network
        if target is None:
            ragged = Ragged.of([window.tokens], model.device)
            token = int(network.words(network(ragged.tokens, ragged.rows)[place : place + 1]).argmax())
        else:
            own = tokenizer.ids([str(target)], specials=False)[0]
            if len(own) != 1:
                raise UserError(f"target {shown(str(target))!r} has {len(own)} tokens; a gap is filled with one")
            token = own[0]
        plain, name = replace(windows, segments=0), tokenizer.decode([token]).strip()
        return target_of(repr(name), "words", [Term(0, place, token)], plain, [window], [read])

    def describe(self, prediction: Prediction, other: Prediction, example: Example) -> str:
        return f"{prediction.output.hits:.0f} of {len(prediction.output.tokens)} right"

    def add(self, metrics: Any, predictions: Sequence[Prediction], examples: Sequence[Example]) -> None:
        for text in (prediction.output for prediction in predictions):
            gaps = float(len(text.tokens))
            metrics.add({"filled": (text.hits, gaps), "bits_per_gap": (text.nats / math.log(2), gaps)})

    def logits_of(self, model: LoadedModel, inputs: Sequence[Any]) -> list[NDArray[Any]]:
        return [np.log(numbers) for numbers in self.numbers_of(model, inputs)]

    def sample_input(self, texts: Sequence[str], tokenizer: Any) -> str:
        """A text whose last word is a gap."""
        return f"{texts[0].rpartition(' ')[0]} {tokenizer.roles.mask}"


def hidden_of(text: str, count: int) -> NDArray[np.int64]:
    """Which of the tokens of a text are hidden: the text alone decides, and at least one."""
    chance = uniform(key_of("gaps", text), np.arange(count))
    return np.flatnonzero(chance <= max(HIDDEN, float(chance.min(initial=1.0))))


@dataclass
class GapView:
    """What the network reads of one text, and what it has written so far."""

    tokens: list[int]
    gaps: list[int]  # numbers, in the text, of the gaps that this view has
    asked: list[int]  # those that it is asked about
    spans: list[list[int]] = field(default_factory=lambda: [[]])
    logprobs: list[float] = field(default_factory=lambda: [0.0])

    @property
    def done(self) -> bool:
        return len(self.spans) > len(self.gaps)


def fill_gaps(model: LoadedModel, texts: Sequence[str]) -> list[Words]:
    """The likeliest words for each gap, token by token; in a long text each gap is seen with what surrounds it."""
    tokenizer = tokenizer_of(model)
    sentinels, end = sentinels_of(tokenizer), tokenizer.id_of("end")
    if not sentinels or end is None:
        raise UserError(f"this model's tokenizer has no {sentinel(0)}, so its texts have no gaps")
    encoded = tokenizer.encode_batch(list(texts), specials=False)
    blank, context = tokenizer.id(BLANK), model.config.context
    views: list[list[GapView]] = []
    for text, encoding in zip(texts, encoded, strict=True):
        ids = encoding.ids
        marks = [token for token in ids if token in sentinels]
        if not marks or marks != sentinels[: len(marks)]:
            raise UserError(f"{shown(text)!r}: mark the gaps with {sentinel(0)}, {sentinel(1)} and so on, in order")
        # Without the space that a vocabulary of pieces puts before whatever follows a gap: none was learned.
        read = [ids[at] for at in range(len(ids)) if ids[at] != blank or not at or ids[at - 1] not in sentinels]
        places = [place for place, token in enumerate(read) if token in sentinels]
        views.append([])
        for start, stop, inside, asked in _parts(places, len(read), context - 1, (context + 1) // 2):
            tokens = read[start:stop]
            for counted, gap in enumerate(inside):  # the gaps of a view are counted from 0
                tokens[places[gap] - start] = sentinels[counted]
            views[-1].append(GapView([*tokens, end], inside, asked))
    for batch in by_budget((view for some in views for view in some), lambda view: len(view.tokens)):
        _write(model, batch, sentinels, end)
    answers = []
    for text, encoding, some in zip(texts, encoded, views, strict=True):
        written = [(view, view.gaps.index(gap)) for view in some for gap in view.asked]  # in the order of the text
        fillings = [(tokenizer.decode(view.spans[place]).strip(), view.logprobs[place]) for view, place in written]
        words = [(Candidate(word=word, probability=math.exp(logprob)),) for word, logprob in fillings]
        answers.append(_words(text, encoding, sentinels, words, len(encoding) + 1, len(some)))
    return answers


def _write(model: LoadedModel, views: list[GapView], sentinels: list[int], end: int) -> None:
    """Fill all gaps of these views: the likeliest token each time, and the next sentinel where a span has ended."""
    network, config, device = model.network, model.config, model.device
    stops = torch.tensor([*sentinels, end, config.begin], device=device)
    most = [max(1, min(LONGEST, (config.context - 2) // len(view.gaps) - 1)) for view in views]
    prompt = Ragged.of([[config.begin, sentinels[0]]] * len(views), device)
    logits, state = network.start(prompt, Ragged.of([view.tokens for view in views], device))
    while True:
        logprobs = check_finite(model, logits.float()).log_softmax(-1)
        best = logprobs.clone()
        fresh = torch.tensor([not view.done and not view.spans[-1] for view in views], device=device)
        best[:, stops] = best[:, stops].masked_fill(fresh[:, None], -math.inf)  # no gap is empty
        chosen = best.argmax(-1)
        likely = logprobs.gather(1, chosen[:, None])[:, 0].tolist()
        written = []
        for view, token, logprob, limit in zip(views, chosen.tolist(), likely, most, strict=True):
            if not view.done and (token in sentinels or token in (end, config.begin) or len(view.spans[-1]) == limit):
                view.spans.append([])
                view.logprobs.append(0.0)
                token = end if view.done else sentinels[len(view.spans) - 1]
            elif not view.done:
                view.spans[-1].append(token)
                view.logprobs[-1] += logprob
            written.append(token)
        if all(view.done for view in views):
            return
        keep = [row for row, view in enumerate(views) if not view.done]
        if len(keep) < len(views):
            state.pick(torch.tensor(keep, device=device))
            views, written, most = ([some[row] for row in keep] for some in (views, written, most))
        logits = network.step(torch.tensor(written, device=device), state)


@torch.inference_mode()
def follows(model: LoadedModel, pairs: Sequence[tuple[str, str]]) -> list[Follows]:
    """Whether the second text of each pair follows the first.

    Of a pair that is too long for the context the first text keeps its end and the second its beginning.
    """
    config, device = model.config, model.device
    if model.heads.get("next") != 2:
        raise UserError(f"this {model.family.name} model has no head that says whether one sentence follows another")
    tokenizer = tokenizer_of(model)
    around = pair_frame(tokenizer)
    if around is None:
        raise UserError("this model's tokenizer puts nothing between two texts, so a model cannot tell them apart")
    before, between, after = around
    extra = len(before) + len(between) + len(after)
    room = config.context - extra
    if room < 2:
        raise UserError(f"a context of {config.context} tokens has no room beside the special tokens")
    firsts, seconds = (tokenizer.ids([pair[side] for pair in pairs], specials=False) for side in (0, 1))
    answers: list[Follows] = []
    for batch in by_budget(zip(firsts, seconds, strict=True), lambda pair: min(sum(map(len, pair)), room) + extra):
        rows, segments = list[list[int]](), list[int]()
        for first, second in batch:  # half of the room each, or what the other leaves
            kept = min(max(room - len(second), room // 2), len(first))
            rows.append([*before, *first[len(first) - kept :], *between, *second[: room - kept], *after])
            border = len(before) + kept + len(between)
            segments += [0] * border + [1] * (len(rows[-1]) - border)
        ragged = Ragged.of(rows, device)
        marks = torch.tensor(segments, device=device) if config.segments > 1 else None
        hidden = model.network(ragged.tokens, ragged.rows, marks)
        logits = check_finite(model, model.network.logits("next", hidden, ragged.rows).float())
        for tokens, likely in zip(batch, logits.softmax(-1)[:, 0].tolist(), strict=True):
            count = sum(map(len, tokens))
            read: Any = {"n_tokens": count + extra, "truncated": count > room}
            answers.append(Follows(follows=likely >= 0.5, probability=likely, **read))
    return answers


class NextTask(UnsupervisedTask):
    """Whether one text follows another."""

    name = "next"
    head = "next"
    pair = True
    run = staticmethod(follows)
