"""Attention with dropout on the CPU in pieces: memory grows linearly with the length of a text, not quadratically.

torch's fused CPU kernel has no dropout; its fallback keeps the attention weights of all pairs for the backward pass.
b, t, s: rows, queries and keys of a square; H: heads; D: width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

CELLS = 1 << 22  # attention weights that are computed together


def mixed_square(
    q: Tensor, k: Tensor, v: Tensor, addition: Tensor | None, causal: bool, scale: float, dropout: float
) -> Tensor:
    """Attention by torch's kernel or in pieces, without returning its weights: b H t D and b H s D -> b H t D"""
    large = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] > CELLS
    if dropout and large and q.device.type == "cpu" and not torch.compiler.is_compiling():
        return _in_pieces(q, k, v, addition, causal, scale, dropout)
    return F.scaled_dot_product_attention(q, k, v, addition, dropout, is_causal=causal, scale=scale)


def _in_pieces(
    q: Tensor, k: Tensor, v: Tensor, addition: Tensor | None, causal: bool, scale: float, dropout: float
) -> Tensor:
    """A piece is some rows or some queries, and is computed again in the backward pass."""
    (count, heads, queries, _), keys = q.shape, k.shape[2]
    if addition is not None:  # without leading dimensions it is the same for all rows
        addition = addition[(None,) * (4 - addition.dim())]
    rows = max(1, CELLS // (heads * queries * keys))
    size = max(1, CELLS // (min(rows, count) * heads * keys))
    mixed = []
    for parts in zip(*(torch.split(x, rows) for x in (q, k, v)), _parts(addition, 0, rows, count), strict=True):
        additions = _parts(parts[3], -2, size, queries)
        pieces = []
        places = range(0, queries, size)
        for first, piece, added in zip(places, torch.split(parts[0], size, 2), additions, strict=True):
            # Causal queries do not see later keys.
            seen = (x[:, :, : first + piece.shape[2]] if causal else x for x in parts[1:3])
            given = (piece, *seen, added, first if causal else None, scale, dropout)
            pieces.append(checkpoint(_piece, *given, use_reentrant=False))
        mixed.append(torch.cat(pieces, 2))
    return torch.cat(mixed)


def _parts(addition: Tensor | None, dimension: int, size: int, whole: int) -> Sequence[Tensor | None]:
    """The addition for each piece of `size` along a dimension; it may be broadcast along it."""
    if addition is None or addition.shape[dimension] == 1:
        return [addition] * -(-whole // size)
    return torch.split(addition, size, dimension)


def _piece(
    q: Tensor, k: Tensor, v: Tensor, addition: Tensor | None, first: int | None, scale: float, dropout: float
) -> Tensor:
    """Attention of some queries; `first`: the place of the first one if attention is causal, else None."""
    scores = q * scale @ k.transpose(-2, -1)  # b H t s
    if addition is not None:
        scores = scores + addition
    if first is not None:
        places = torch.arange(k.shape[2])
        scores = scores.masked_fill(places > places[first:, None], -math.inf)
    return F.dropout(scores.softmax(-1), dropout) @ v
