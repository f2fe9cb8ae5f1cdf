"""Texts as vectors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from weft.budget import by_budget
from weft.checkpoint.card import Window
from weft.checkpoint.folder import Opened
from weft.errors import UserError, one_of
from weft.nn.rows import Ragged
from weft.tasks.answers import Vector
from weft.text.windows import Cut, cut, frame


@torch.inference_mode()
def embed(
    opened: Opened, texts: Sequence[str], *, pooling: str | None = None, normalise: bool | None = None
) -> list[Vector]:
    """One vector per text: the mean of its tokens, or its first; long texts go through in windows, none is cut."""
    if opened.tokenizer is None:
        raise UserError("this model folder has no tokenizer, so it reads no text")
    card = opened.card
    pooling = one_of(pooling or card.pooling or "mean", ("mean", "first"), "pooling")
    if pooling == "first" and opened.family.speaks:
        raise UserError(f"the first token of a {opened.family.name} has seen nothing of the text; use mean pooling")
    normalise = bool(card.normalise) if normalise is None else normalise
    before, after = frame(opened.tokenizer)
    context = opened.config.context
    window = card.window or Window(length=context, stride=max(1, 3 * context // 4))
    size = min(window.length, context) - len(before) - len(after)
    if size < 1:
        raise UserError(f"a window of {window.length} tokens has no room beside the special tokens")
    stride = min(window.stride, size)
    ids = opened.tokenizer.ids(list(texts), specials=False)
    pieces: list[tuple[int, list[int], Cut]] = []  # which text, tokens with their frame, what of them is its own
    for number, found in enumerate(ids):
        if not found and not before and not after:
            raise UserError(f"text {number + 1} is empty, and this model puts no tokens around a text")
        pieces += [(number, [*before, *found[c.start : c.end], *after], c) for c in cut(len(found), size, stride)]
    width = opened.config.width
    device = next(opened.network.parameters()).device
    sums = torch.zeros(len(texts), width, dtype=torch.float64)
    counts = torch.zeros(len(texts), 1, dtype=torch.float64)
    for batch in by_budget(pieces, lambda piece: len(piece[1])):
        ragged = Ragged.of([tokens for _, tokens, _ in batch], device)
        hidden = opened.network(ragged.tokens, ragged.rows)
        numbers = torch.tensor([number for number, _, _ in batch])
        if pooling == "first":
            sums.index_add_(0, numbers, hidden[ragged.rows.firsts()].double().cpu())
            counts.index_add_(0, numbers, torch.ones(len(batch), 1, dtype=torch.float64))
            continue
        own = torch.cat([_own(tokens, c, len(before), len(after)) for _, tokens, c in batch]).to(device)
        rows = ragged.rows.numbers(len(ragged.tokens))
        total = torch.zeros(len(batch), width, dtype=torch.float64, device=device)
        total.index_add_(0, rows, hidden.double() * own[:, None])
        sums.index_add_(0, numbers, total.cpu())
        counts.index_add_(
            0, numbers, torch.zeros(len(batch), device=device).index_add_(0, rows, own)[:, None].double().cpu()
        )
    vectors = sums / counts
    if normalise:
        vectors = torch.nn.functional.normalize(vectors)
    windows = torch.bincount(torch.tensor([number for number, _, _ in pieces]), minlength=len(texts)).tolist()
    extra = len(before) + len(after)
    return [
        Vector(values=tuple(vector), n_tokens=len(found) + extra, n_windows=count)
        for vector, found, count in zip(vectors.float().tolist(), ids, windows, strict=True)
    ]


def _own(tokens: list[int], c: Cut, before: int, after: int) -> Tensor:
    """Which tokens of a window count: its own and its frame, not those that another window answers for."""
    own = torch.zeros(len(tokens))
    own[:before] = 1
    own[len(tokens) - after :] = 1
    own[before + c.first - c.start : before + c.last - c.start] = 1
    return own
