"""Words for the gaps of a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from weft.budget import by_budget
from weft.checkpoint.folder import LoadedModel
from weft.errors import UserError, shown
from weft.nn.rows import Ragged
from weft.tasks.answers import Candidate, Words
from weft.tasks.gaps import fill_gaps
from weft.tasks.likelihood import HiddenWordTask
from weft.tasks.output_checks import check_finite
from weft.text.tokenizers.tokenizer import Encoded, Tokenizer
from weft.text.windows import frame


@dataclass(frozen=True)
class MaskedView:
    """What the network reads of one text: all of it, or as much as fits around one gap."""

    text: int
    tokens: list[int]
    gaps: list[int]  # places of the masks that this view is asked about


@torch.inference_mode()
def fill(opened: LoadedModel, texts: Sequence[str], *, top: int = 5) -> list[Words]:
    """The likeliest words for each mask of each text; in a long text each gap is seen with what surrounds it.

    A T5 fills each gap with as many words as it likes, and says one filling whatever `top` is.
    """
    tokenizer = opened.tokenizer
    if opened.family.sentinels and "words" in opened.heads and tokenizer is not None:
        return fill_gaps(opened, texts)
    tokenizer, mask = filler(opened)
    if not 1 <= top <= opened.config.vocabulary:
        raise UserError(f"top must be between 1 and {opened.config.vocabulary}, not {top}")
    around = frame(tokenizer)
    encoded = tokenizer.encode_batch(list(texts), specials=False)
    views: list[list[MaskedView]] = []
    for number, (text, encoding) in enumerate(zip(texts, encoded, strict=True)):
        if mask not in encoding.ids:
            raise UserError(f"no {tokenizer.roles.mask} in {shown(text)!r}: mark the gaps with it")
        views.append(_views(number, encoding.ids, mask, around, opened.config.context))
    gaps: list[list[tuple[Candidate, ...]]] = [[] for _ in texts]
    for batch in by_budget((view for some in views for view in some), lambda view: len(view.tokens)):
        ragged = Ragged.of([view.tokens for view in batch], opened.device)
        starts = ragged.rows.firsts().tolist()
        places = [start + gap for start, view in zip(starts, batch, strict=True) for gap in view.gaps]
        hidden = opened.network(ragged.tokens, ragged.rows)[torch.tensor(places, device=ragged.tokens.device)]
        logits = check_finite(opened, opened.network.words(hidden).float())
        best = logits.softmax(-1).topk(top)
        owners = [view.text for view in batch for _ in view.gaps]
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
    if opened.family.speaks or "words" not in opened.heads:
        raise UserError(f"this {opened.family.name} model fills no gaps: it has no head for masked words")
    if opened.tokenizer is None:
        raise UserError("this model folder has no tokenizer, so it reads and writes no text")
    mask = opened.tokenizer.id_of("mask")
    if mask is None:
        raise UserError("this model's tokenizer has no mask token")
    return opened.tokenizer, mask


def _views(
    number: int, ids: list[int], mask: int, around: tuple[list[int], list[int]], context: int
) -> list[MaskedView]:
    """One view of a text that fits, else one around each gap."""
    before, after = around
    gaps = [place for place, token in enumerate(ids) if token == mask]
    size = context - len(before) - len(after)
    if size < 1:
        raise UserError(f"a context of {context} tokens has no room beside the special tokens")
    if len(ids) <= size:
        return [MaskedView(number, [*before, *ids, *after], [len(before) + gap for gap in gaps])]
    views = []
    for gap in gaps:
        start = max(0, min(gap - size // 2, len(ids) - size))
        tokens = [*before, *ids[start : start + size], *after]
        views.append(MaskedView(number, tokens, [len(before) + gap - start]))
    return views


def _filled(text: str, encoding: Encoded, mask: int, words: list[tuple[Candidate, ...]]) -> str:
    """The user's own text with the best word in each gap."""
    spans = [span for token, span in zip(encoding.ids, encoding.offsets, strict=True) if token == mask]
    for (start, end), gap in reversed(list(zip(spans, words, strict=True))):  # from the end, so that offsets stay right
        start = end - len(text[start:end].lstrip())  # some masks take the space before them with them
        text = text[:start] + gap[0].word + text[end:]
    return text


class FillTask(HiddenWordTask):
    """Words for the gaps of a text."""

    name = "fill"

    def answers(self, model: LoadedModel, inputs: Sequence[Any], **options: Any) -> list[Any]:
        return fill(model, inputs, **options)

    def mask(self, model: LoadedModel) -> int:
        return filler(model)[1]

    def logits_of(self, model: LoadedModel, inputs: Sequence[Any]) -> list[NDArray[Any]]:
        return [np.log(numbers) for numbers in self.numbers_of(model, inputs)]

    def made_up_input(self, text: Callable[[int], str], length: int, tokenizer: Tokenizer) -> str:
        return f"{text(max(1, length // 2))} {tokenizer.roles.mask} {text(length)}"

    def timing_input(self, texts: Sequence[str], tokenizer: Tokenizer | None) -> str:
        """A text whose last word is a gap."""
        mask = tokenizer.roles.mask if tokenizer is not None else None
        return f"{texts[0].rpartition(' ')[0]} {mask}"
