"""Attention with dropout on the CPU, a piece at a time: memory grows with the length of a text, not with its square.

torch's fused kernel there has no dropout; without it all weights of all pairs of tokens are kept for the way back.
b, t, s: rows, queries and keys of a square; H: heads; D: width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

CELLS = 1 << 22  # attention weights that are worked out together


def mixed_square(
    q: Tensor, k: Tensor, v: Tensor, addition: Tensor | None, causal: bool, scale: float, dropout: float
) -> Tensor:
    """Attention without its weights, by torch's kernel or in pieces: b H t D and b H s D -> b H t D"""
    large = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] > CELLS
    if dropout and large and q.device.type == "cpu" and not torch.compiler.is_compiling():
        return _in_pieces(q, k, v, addition, causal, scale, dropout)
    return F.scaled_dot_product_attention(q, k, v, addition, dropout, is_causal=causal, scale=scale)


def _in_pieces(
    q: Tensor, k: Tensor, v: Tensor, addition: Tensor | None, causal: bool, scale: float, dropout: float
) -> Tensor:
    """Each piece is some rows or some queries, and worked out again on the way back."""
    (count, heads, queries, _), keys = q.shape, k.shape[2]
    if addition is not None:  # the same for all rows, where it has no dimension of them
        addition = addition[(None,) * (4 - addition.dim())]
    rows = max(1, CELLS // (heads * queries * keys))
    size = max(1, CELLS // (min(rows, count) * heads * keys))
    mixed = []
    for parts in zip(*(torch.split(x, rows) for x in (q, k, v)), _parts(addition, 0, rows, count), strict=True):
        few, more = parts[0], _parts(parts[3], -2, size, queries)
        pieces = []
        for first, some, added in zip(range(0, queries, size), torch.split(few, size, 2), more, strict=True):
            # Of keys that come later none of these queries sees any.
            seen = (x[:, :, : first + some.shape[2]] if causal else x for x in parts[1:3])
            given = (some, *seen, added, first if causal else None, scale, dropout)
            pieces.append(checkpoint(_piece, *given, use_reentrant=False))
        mixed.append(torch.cat(pieces, 2))
    return torch.cat(mixed)


def _parts(addition: Tensor | None, dimension: int, size: int, whole: int) -> Sequence[Tensor | None]:
    """What is added to each piece of `size` along a dimension, which may be the same for all."""
    if addition is None or addition.shape[dimension] == 1:
        return [addition] * -(-whole // size)
    return torch.split(addition, size, dimension)


def _piece(
    q: Tensor, k: Tensor, v: Tensor, addition: Tensor | None, first: int | None, scale: float, dropout: float
) -> Tensor:
    """Some queries; `first`: the place of the first one, where none looks at what comes after it."""
    scores = q * scale @ k.transpose(-2, -1)  # b H t s
    if addition is not None:
        scores = scores + addition
    if first is not None:
        places = torch.arange(k.shape[2])
        scores = scores.masked_fill(places > places[first:, None], -math.inf)
    return F.dropout(scores.softmax(-1), dropout) @ v
