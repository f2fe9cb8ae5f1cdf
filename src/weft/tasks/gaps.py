"""Words for the gaps that sentinels stand for: a T5 reads the text and writes what belongs into each gap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from weft.budget import by_budget
from weft.checkpoint.folder import LoadedModel
from weft.data.masking import sentinel, sentinels_of
from weft.errors import UserError, shown
from weft.nn.rows import Ragged
from weft.tasks.answers import Candidate, Words
from weft.tasks.forward import tokenizer_of
from weft.tasks.output_checks import check_finite
from weft.text.tokenizers.tokenizer import Encoded, Tokenizer

LONGEST = 32  # tokens for one gap at most
BLANK = "▁"  # what a vocabulary of pieces has for a space alone


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
        views.append(_views(number, _read(encoding, tokenizer, sentinels), sentinels, end, opened.config.context))
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


def _views(number: int, ids: list[int], sentinels: list[int], end: int, context: int) -> list[GapView]:
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
