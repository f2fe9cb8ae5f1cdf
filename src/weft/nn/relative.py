"""Relative attention with global biases and a memory (Dai et al., 2019): a key counts by content and by its distance.

The score of query i and key j is (q_i + u) k_j + (q_i + v) W_r R_{i-j}, times the scale: u and v are the same for all
queries, R_{i-j} is the vector of a distance. Memory is a fixed number of places before every row, the newest last.

N: query tokens; B: rows; H: heads; D: width of a head; M: places of memory; T: longest row; S: keys of a row, M + T at
most; P: distances; b, t, s: rows, queries and keys of one square.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.nn.attention import MultiHead, ScoreBias, Square, attend_laid_out
from weft.nn.rows import DecoderState, Rows

WIDE = torch.float64


def waves(distances: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """P width: sines, then cosines of distances, which may be negative, in `dtype`, float32 at least."""
    dtype = dtype if dtype == torch.float64 else torch.float32
    # The frequencies are of single precision in the published models, also where all else is double.
    frequencies = 1 / 10000 ** (torch.arange(0.0, width, 2.0, device=distances.device, dtype=torch.float32) / width)
    angles = distances.to(dtype)[:, None] * frequencies.to(dtype)
    return torch.cat([angles.sin(), angles.cos()], -1)


def distances_of(longest: int, memory: int, causal: bool, device: torch.device) -> Tensor:
    """P: the distances from a query back to a key, falling; below 0 the key comes later."""
    # One more than a causal row needs, so that the scores can be shifted by a change of shape.
    return torch.arange(memory + longest - 1, -2 if causal else -longest - 1, -1, device=device)


def shifted(scores: Tensor, keys: int) -> Tensor:
    """b H t P -> b H t s: column p of query i is distance t - 1 + M - p; column j becomes key j, distance i + M - j."""
    *shape, t, p = scores.shape
    # Key j of query i stands at i P + (t - 1 - i) + j = (t - 1) + i (P - 1) + j of all scores: rows one shorter.
    flat = scores.reshape(*shape, t * p)[..., t - 1 : t - 1 + t * (p - 1)]
    return flat.view(*shape, t, p - 1)[..., :keys]


def looked_up(scores: Tensor, places: Tensor, longest: int, keys: int) -> Tensor:
    """b H t P -> b H t s: the same of queries that stand at any places (b 1 t 1) of rows of `longest` places."""
    columns = longest - 1 - places + torch.arange(keys, device=scores.device)  # b 1 t s
    return scores.gather(-1, columns.expand(-1, scores.shape[1], -1, -1))


@dataclass(frozen=True)
class Relative:
    """What all layers of one pass share: the vectors of distances, who sees whom, and the biases where layers share."""

    vectors: Tensor  # P width: of `distances_of`
    longest: int  # T
    memory: int = 0  # M
    mask: Tensor | None = None  # as that of `attend`, over the memory and the row (S); a causal one is added without it
    biases: tuple[Tensor, Tensor] | None = None  # u and v, H D each; None: every layer has its own
    # Of a query stream, whose queries stand at some places of the rows only:
    asked: Rows | None = None  # the rows of queries; None: those of the keys
    places: Tensor | None = None  # n: in the row of each, from 0 up to T, the place after its last


def memory_mask(
    longest: int, memory: int, filled: Tensor | None, reach: int | None = None, *, device: torch.device
) -> Tensor:
    """T S, or B 1 T S: what comes before a query, at most `reach` tokens back, but no memory that nothing is in yet.

    `filled` (B) counts the places of memory that hold something; None: all do.
    """
    keys = torch.arange(memory + longest, device=device)
    distances = (torch.arange(longest, device=device) + memory)[:, None] - keys  # T S
    may = distances >= 0
    if reach is not None:
        may = may & (distances <= reach)
    return may if filled is None else may & (keys >= memory - filled[:, None])[:, None, None]


def key_layout(rows: Rows, memory: int, total: int) -> tuple[Rows, Tensor]:
    """The rows of keys, each M places of memory and then its own tokens; where each comes from in both, laid flat."""

    def work_out() -> tuple[Rows, Tensor]:
        device, count = rows.starts.device, rows.count
        starts = rows.starts + memory * torch.arange(count + 1, dtype=torch.int32, device=device)
        keys = Rows(starts, rows.longest + memory)
        size = count * memory + total
        numbers, places = keys.numbers(size), keys.places(size)
        own = count * memory + rows.firsts()[numbers] + places - memory
        return keys, torch.where(places < memory, numbers * memory + places, own)

    return rows.once(("keys", memory), work_out)


def after(memory: Tensor, x: Tensor, rows: Rows, most: int | None = None) -> Tensor:
    """What is in memory (B M W) when these rows (N W) have been read, without gradients; up to `most` places, or M."""
    old, device = memory.shape[1], x.device
    size = old if most is None else min(most, old + rows.longest)
    places = (old - size) + rows.lengths().long()[:, None] + torch.arange(size, device=device)  # B M, from the old on
    own = rows.count * old + rows.firsts()[:, None] + places - old
    kept = torch.arange(rows.count, device=device)[:, None] * old + places.clamp(min=0)  # below 0: nothing is there
    both = torch.cat([memory.flatten(0, 1).to(x.dtype), x])
    return both.detach()[torch.where(places < old, kept, own)]


class RelativeAttention(MultiHead):
    """Multi-head attention over ragged rows and a memory before each; a subclass may add a term to the scores."""

    def __init__(
        self, width: int, heads: int, *, causal: bool = False, bias: bool = False, shared: bool = False, **settings: Any
    ) -> None:
        """`shared`: u and v are those of the network."""
        super().__init__(width, heads, **settings)
        self.causal = causal
        inner = heads * self.head_width
        self.qkv = nn.Linear(width, 3 * inner, bias=bias)
        self.distance = nn.Linear(width, inner, bias=False)
        self.output = nn.Linear(inner, width, bias=bias)
        self.content_bias, self.distance_bias = (
            None if shared else nn.Parameter(torch.zeros(heads, self.head_width)) for _ in range(2)
        )

    def biases(self, relative: Relative | RelativeCache) -> tuple[Tensor, Tensor]:
        """u and v, H D each."""
        if self.content_bias is None or self.distance_bias is None:
            assert relative.biases is not None
            return relative.biases
        return self.content_bias, self.distance_bias

    def queries(self, x: Tensor) -> Tensor:
        """... width -> ... H D"""
        return self._maps(x, 0, 1)[0]

    def keys_and_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """... width -> ... H D each"""
        key, value = self._maps(x, 1, 3)
        return key, value

    def _maps(self, x: Tensor, begin: int, end: int) -> tuple[Tensor, ...]:
        """Some of the three maps: a memory is never asked from, and a query stream is never looked at."""
        part = slice(begin * self.heads * self.head_width, end * self.heads * self.head_width)
        mapped = F.linear(x, self.qkv.weight[part], None if self.qkv.bias is None else self.qkv.bias[part])
        return mapped.view(*mapped.shape[:-1], end - begin, self.heads, self.head_width).unbind(-3)

    def forward(
        self,
        x: Tensor,
        rows: Rows,
        relative: Any,
        turns: None = None,
        memory: Tensor | LayerWindow | None = None,
        hidden: Tensor | None = None,
    ) -> Tensor:
        """N width -> N width; `memory`: B M width, what keys and values are also made of.

        `relative`: of this pass; in a decoding step the cache, and `memory` what it has of this layer. `hidden` (N
        width): what keys and values are made of in place of x, which asks (the query stream of XLNet).
        """
        if isinstance(memory, LayerWindow):
            return self.step(x, rows, relative, memory)
        assert isinstance(relative, Relative)
        hidden = x if hidden is None else hidden
        alone = hidden is x and not relative.memory
        key_rows, causal = None if relative.asked is None else rows, self.causal and relative.mask is None
        if relative.memory:
            assert memory is not None and not causal, "a mask says what a query sees of its memory"
            key_rows, order = key_layout(rows, relative.memory, hidden.shape[0])
            hidden = torch.cat([memory.flatten(0, 1).to(hidden.dtype), hidden]).index_select(0, order)
        maps = self._maps(x, 0, 3) if alone else (self.queries(x), *self.keys_and_values(hidden))
        query, key, value = maps  # N H D each; of keys and values as many as there are
        u, v = (bias.to(query.dtype) for bias in self.biases(relative))
        settings: dict[str, Any] = {"mask": relative.mask, "causal": causal, "bias": self.by_distance(relative, u, v)}
        stream = "" if relative.asked is None else "query"
        settings |= {"key_rows": key_rows, "seen": {"memory": relative.memory, "stream": stream}}
        return self.mixed(query + u, key, value, relative.asked or rows, **settings)

    def by_distance(self, relative: Relative, u: Tensor, v: Tensor) -> ScoreBias:
        """What is added to the scores of content: (q + v) W_r R, and what `further` gives."""
        vectors = (
            self.distance(relative.vectors.to(self.distance.weight.dtype))
            .unflatten(-1, (self.heads, -1))
            .permute(1, 2, 0)
        )  # H D P
        scale = 1 / math.sqrt(self.head_width) if self.scale is None else self.scale

        def bias(square: Square, q: Tensor, k: Tensor) -> Tensor:
            t, s = square.query.longest, square.key.longest
            query = q - u[:, None]  # b H t D: the biases of the content are in it already
            if relative.places is None:
                begin = relative.longest - t  # a shorter square begins at a nearer distance
                end = begin + relative.memory + (t + 1 if self.causal else 2 * t)
                scores = shifted((query + v[:, None]) @ vectors[..., begin:end].to(q.dtype), s)
            else:
                scores = (query + v[:, None]) @ vectors.to(q.dtype)
                places = square.query.lay(relative.places[:, None, None])  # b 1 t 1
                scores = looked_up(scores, places, relative.longest, s)
            more = self.further(square, query, relative)
            return (scores if more is None else scores + more) * scale

        return bias

    def further(self, square: Square, query: Tensor, relative: Relative) -> Tensor | None:
        """b H t s: one more term of the scores, before the scale (XLNet: segments), of the queries b H t D."""
        return None

    def step(self, x: Tensor, rows: Rows, cache: RelativeCache, layer: LayerWindow) -> Tensor:
        """One new token per row, after what is in the cache: B width -> B width."""
        query, key, value = self._maps(x, 0, 3)  # B H D each
        u, v = (bias.to(query.dtype) for bias in self.biases(cache))
        keys, values = layer.add(key, value)  # B S H D each
        scale = 1 / math.sqrt(self.head_width) if self.scale is None else self.scale
        scores = torch.einsum("bhd,shd->bhs", query + v, layer.distances[-keys.shape[1] :].to(query.dtype)) * scale
        scores = scores.masked_fill(~cache.seen(keys.shape[1])[:, None], -math.inf)[:, :, None]  # B H 1 S
        q, k, v = (query + u)[:, :, None], keys.transpose(1, 2), values.transpose(1, 2)
        mixed, weights = attend_laid_out(q, k, v, scores, scale, self.watcher is not None)
        seen: dict[str, Any] = {"step": weights, "memory": keys.shape[1] - 1}
        return self.finish(mixed.squeeze(2), query + u, key, value, rows, **seen)


class LayerWindow:
    """The latest keys and values of one layer, B S H D each, the newest last, and what a distance adds to a key."""

    def __init__(self, keys: Tensor, values: Tensor, distances: Tensor) -> None:
        self.keys, self.values = keys, values
        self.distances = distances  # P H D: W_r R of the distances that a window has, and at the end of 0

    def add(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Those of one more token per row (B H D each): all that it sees, itself the last."""
        most = len(self.distances)
        self.keys, self.values = (
            torch.cat([old, new[:, None]], 1)[:, -most:] for old, new in ((self.keys, key), (self.values, value))
        )
        return self.keys, self.values


class RelativeCache(DecoderState):
    """The state between two decoding steps: a window of keys and values that moves with the text."""

    def __init__(
        self, filled: Tensor, layers: Sequence[LayerWindow], biases: tuple[Tensor, Tensor] | None = None
    ) -> None:
        self.filled = filled  # B: tokens of each row before the new one; more than the window holds is no matter
        self.layers, self.biases = layers, biases

    def seen(self, size: int) -> Tensor:
        """B S: the places that hold a token of the row, the new one included."""
        return torch.arange(size, device=self.filled.device) >= size - 1 - self.filled[:, None]

    def advance(self) -> None:
        """Count in the token that the last step added to every row."""
        self.filled = self.filled + 1

    def pick(self, rows: Tensor) -> None:
        self.filled = self.filled.index_select(0, rows)
        for layer in self.layers:
            layer.keys, layer.values = (x.index_select(0, rows) for x in (layer.keys, layer.values))


class SegmentMemory:
    """What the layers have seen of the text before the rows, in place of the cache of `through_layers`."""

    def __init__(self, layers: Sequence[Tensor], filled: Tensor) -> None:
        self.layers = layers  # of each its input, B M width, the newest last
        self.filled = filled  # B: places that hold something, the last ones

    @property
    def size(self) -> int:
        """M"""
        return self.layers[0].shape[1]

    def last(self, most: int) -> SegmentMemory | None:
        """The newest of it; None: nothing."""
        if not self.size or not most:
            return None
        return SegmentMemory([layer[:, -most:] for layer in self.layers], self.filled.clamp(max=most))

    def after(self, states: Sequence[Tensor], rows: Rows, most: int) -> SegmentMemory:
        """When these rows have been read; `states`: the inputs of the layers, N width each."""
        layers = [after(old, new, rows, most) for old, new in zip(self.layers, states, strict=True)]
        return SegmentMemory(layers, (self.filled + rows.lengths()).clamp(max=most))


class Distances(nn.Module):
    """Positions of a causal network by distance alone: what `through_layers` hands to relative attention."""

    def __init__(
        self, width: int, heads: int, head_width: int, *, clamp: int | None, shared: bool, dropout: float
    ) -> None:
        """`clamp`: farther than this is as far as this; `shared`: one u and one v for all layers."""
        super().__init__()
        self.width, self.clamp = width, clamp
        self.reach: int | None = None  # tokens back that a query sees at most; None: all that there are
        self.drop = nn.Dropout(dropout)
        self.content_bias, self.distance_bias = (
            nn.Parameter(torch.zeros(heads, head_width)) if shared else None for _ in range(2)
        )

    @property
    def biases(self) -> tuple[Tensor, Tensor] | None:
        if self.content_bias is None or self.distance_bias is None:
            return None
        return self.content_bias, self.distance_bias

    def turns(self, places: Tensor | None, dtype: torch.dtype) -> None:
        """Nothing is turned."""

    def bias(self, rows: Rows, cache: SegmentMemory | RelativeCache | None) -> Relative | RelativeCache:
        """What all layers share in a pass over these rows."""
        if isinstance(cache, RelativeCache):
            return cache
        device, memory = rows.starts.device, 0 if cache is None else cache.size
        mask = None
        if cache is not None or self.reach is not None:
            filled = None if cache is None else cache.filled
            mask = memory_mask(rows.longest, memory, filled, self.reach, device=device)
        vectors = self.drop(self.vectors(distances_of(rows.longest, memory, True, device)))
        return Relative(vectors, rows.longest, memory, mask, self.biases)

    def vectors(self, distances: Tensor) -> Tensor:
        """P width"""
        return waves(distances if self.clamp is None else distances.clamp(max=self.clamp), self.width, WIDE)

    def window(self, size: int, device: torch.device) -> Tensor:
        """P width: of the distances from `size` to 0, which a decoding step sees."""
        return self.vectors(torch.arange(size, -1, -1, device=device))


def segments_of(rows: Rows, total: int, segment: int) -> list[tuple[Tensor | None, Rows]]:
    """Rows cut into segments, those of all rows that begin at one place together, and where their tokens are."""
    if rows.longest <= segment:
        return [(None, rows)]

    def work_out() -> list[tuple[Tensor | None, Rows]]:
        pieces: list[tuple[Tensor | None, Rows]] = []
        lengths, places = rows.lengths(), rows.places(total)
        for begin in range(0, rows.longest, segment):
            parts = (lengths - begin).clamp(0, segment)
            starts = torch.cat([parts.new_zeros(1), parts.cumsum(0)]).to(torch.int32)
            index = ((places >= begin) & (places < begin + segment)).nonzero().squeeze(1)
            pieces.append((index, Rows(starts, min(segment, rows.longest - begin))))
        return pieces

    return rows.once(("segments", segment), work_out)


def joined(parts: tuple[Tensor, ...], index: list[Tensor | None]) -> Tensor:
    """What the segments gave, in the order of the tokens."""
    if len(parts) == 1:
        return parts[0]
    order = torch.cat([places for places in index if places is not None])
    joined = torch.cat(parts)
    return torch.empty_like(joined).index_copy(0, order, joined)
