"""XLNet's blocks (Yang et al., 2019): relative attention with segments, and the two streams of a layer.

N: tokens; n: places asked for; B: rows; T: longest row; M: places of memory; H: heads; D: width of a head; W: width;
b, t, s: rows, queries and keys of one square.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from weft.nn.attention import Square, attend_laid_out
from weft.nn.layers import Activation, Drop, FeedForward
from weft.nn.relative import LayerWindow, Relative, RelativeAttention, RelativeCache, SegmentMemory, key_layout
from weft.nn.rows import Rows


@dataclass(frozen=True)
class TokenStream:
    """The content stream, or the query stream: where it looks from, and which tokens may be seen from there."""

    rows: Rows
    mask: Tensor | None = None  # B 1 t T, or fewer dimensions; None: all tokens are seen
    segments: Tensor | None = None  # N or n
    places: Tensor | None = None  # n: of a query stream, in their rows; the place after the last token is one too


@dataclass(frozen=True)
class SegmentedRelative(Relative):
    """What all layers of one pass share, with the segments of queries and of keys, memory included."""

    segments: tuple[Tensor, Tensor] | None = None  # None: all are of one segment


def segments_after(memory: int, segments: Tensor, rows: Rows) -> Tensor:
    """The segments of keys: memory is of segment 0, then N as they are."""
    if not memory:
        return segments
    before = segments.new_zeros(rows.count * memory)
    return torch.cat([before, segments])[key_layout(rows, memory, len(segments))[1]]


def mask_after(past: SegmentMemory | None, mask: Tensor | None, longest: int) -> Tensor | None:
    """B 1 t M+T: a mask of rows (t T; None: all is seen) with that of the memory before them, where it is filled."""
    if past is None or not past.size:
        return mask
    memory, filled = past.size, past.filled
    known = (torch.arange(memory, device=filled.device) >= memory - filled[:, None])[:, None, None]  # B 1 1 M
    mask = known.new_ones(1, longest) if mask is None else mask
    shape = (len(filled), 1, mask.shape[-2])
    return torch.cat([known.expand(*shape, memory), mask.expand(*shape, longest)], -1)


class SegmentedAttention(RelativeAttention):
    """Relative attention with a term for whether two tokens are of one segment."""

    def __init__(self, width: int, heads: int, **settings: Any) -> None:
        super().__init__(width, heads, **settings)
        self.segment_bias = nn.Parameter(torch.zeros(heads, self.head_width))
        self.segments = nn.Parameter(torch.zeros(2, heads, self.head_width))  # for the same segment, and another one

    def further(self, square: Square, query: Tensor, relative: Relative) -> Tensor | None:
        assert isinstance(relative, SegmentedRelative)
        if relative.segments is None:  # it would add the same to all keys
            return None
        sides = zip((square.query, square.key), relative.segments, strict=True)
        asking, asked = (side.lay(marks[:, None, None]) for side, marks in sides)  # b 1 t 1, b 1 s 1
        segments, bias = self.segments.to(query.dtype), self.segment_bias.to(query.dtype)
        scores = (query + bias[:, None]) @ segments.permute(1, 2, 0)  # b H t 2
        return torch.where(asking == asked.transpose(2, 3), scores[..., :1], scores[..., 1:])

    def two_steps(self, x: Tensor, rows: Rows, cache: RelativeCache, window: LayerWindow) -> Tensor:
        """One new token per row, and the query stream at the place after it: B 2 W -> B 2 W."""
        query = self.queries(x).transpose(1, 2)  # B H 2 D
        keys, values = window.add(*self.keys_and_values(x[:, 0]))  # B s H D each
        size, scale = keys.shape[1], 1 / math.sqrt(self.head_width)
        u, v = (bias.to(query.dtype)[:, None] for bias in self.biases(cache))
        far = window.distances[-size - 1 :].to(query.dtype)  # the query stream stands one place further on
        both = [torch.einsum("bhd,shd->bhs", (query + v)[:, :, way], far[1 - way :][:size]) for way in (0, 1)]
        scores = (torch.stack(both, 2) * scale).masked_fill(~cache.seen(size)[:, None, None], -math.inf)  # B H 2 s
        k, v = keys.transpose(1, 2), values.transpose(1, 2)
        mixed, weights = attend_laid_out(query + u, k, v, scores, None, self.watcher is not None)  # B H 2 D, B H 2 s
        if self.watcher is None and self.editor is None:
            return self.output(mixed.transpose(1, 2).flatten(2))
        outputs = []
        for way, stream in enumerate(("", "query")):
            step = None if weights is None else weights[:, :, way : way + 1]
            seen: dict[str, Any] = {"step": step, "memory": size - 1, "stream": stream}
            asked = (query + u)[:, :, way]
            outputs.append(self.finish(mixed[:, :, way], asked, keys[:, -1], values[:, -1], rows, **seen))
        return torch.stack(outputs, 1)


class SegmentedLayer(nn.Module):
    """Attention and a feed-forward network, each with a residual and a norm after it."""

    def __init__(
        self, width: int, heads: int, inner: int, activation: Activation, norm_epsilon: float, dropout: float
    ) -> None:
        super().__init__()
        self.attention = SegmentedAttention(width, heads, dropout=dropout)
        self.attention_norm, self.feedforward_norm = (nn.LayerNorm(width, norm_epsilon) for _ in range(2))
        self.feedforward = FeedForward(width, inner, activation, dropout)
        self.dropout = Drop(dropout)

    def forward(
        self,
        x: Tensor,
        rows: Rows,
        relative: Relative | RelativeCache,
        memory: Tensor | LayerWindow | None = None,
        hidden: Tensor | None = None,
    ) -> Tensor:
        """N W -> N W; with the content stream as `hidden`, x is the query stream: n W -> n W.

        With a cache, both streams of a decoding step: B 2 W -> B 2 W.
        """
        if isinstance(memory, LayerWindow):
            assert isinstance(relative, RelativeCache)
            return self.beyond_attention(x, self.attention.two_steps(x, rows, relative, memory))
        return self.beyond_attention(x, self.attention(x, rows, relative, memory=memory, hidden=hidden))

    def beyond_attention(self, x: Tensor, mixed: Tensor) -> Tensor:
        x = self.attention_norm(x + self.dropout(mixed))
        return self.feedforward_norm(x + self.dropout(self.feedforward(x)))
