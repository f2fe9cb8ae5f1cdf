"""DeBERTa's blocks (He et al., 2021): attention to content and to distances apart, and the convolution of its v2.

N: tokens; H: heads; D: width of a head; b, t, s: rows, queries and keys of one square; R: distances that have a vector.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.nn.attention import Attention, Cache, LayerCache, LayerMemory, ScoreBias, Sources, Square, attend, turn
from weft.nn.layers import Activation, Drop, Layer, activate, neighbors, norm
from weft.nn.positions import Positions
from weft.nn.rows import Rows

Term = Literal["c2p", "p2c"]  # content to position: the query reads the distance; position to content: the key does


class RelativePositions(Positions):
    """Vectors of relative distances, one table for all layers; absolute positions may be added to tokens besides."""

    def __init__(self, *args: Any, distances: int, normed: bool, epsilon: float, **sizes: Any) -> None:
        super().__init__(*args, **sizes)
        self.distances = nn.Embedding(distances, self.width)
        self.norm = norm("layer", self.width, epsilon) if normed else nn.Identity()

    def bias(self, rows: Rows, cache: Cache | None) -> Tensor | None:
        """R width: the table, which each layer turns into a bias by its own maps."""
        return self.norm(self.distances.weight)


def distance_buckets(distances: Tensor, buckets: int | None, farthest: int) -> Tensor:
    """Near distances as they are; from half of the buckets on, ever more of them share one, up to `farthest`."""
    if buckets is None:
        return distances
    middle = buckets // 2
    # In float32, as published: more digits would put some distances into the next bucket.
    beyond = distances.abs().clamp(min=middle).float() / middle
    most = torch.full((), (farthest - 1) / middle, device=beyond.device).log()  # filled in: a graph captures no copy
    steps = torch.ceil(beyond.log() / most * (middle - 1))
    return torch.where(distances.abs() <= middle, distances, (steps + middle).long() * distances.sign())


class DisentangledAttention(Attention):
    """Self-attention whose scores have terms for the distance of two tokens, by what stands at either of them."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        terms: tuple[Term, ...],
        shared: bool,
        buckets: int | None,
        farthest: int,
        distance_dropout: float,
        **settings: Any,
    ) -> None:
        """`shared`: distances go through the maps of queries and keys, else through their own."""
        super().__init__(width, heads, **settings)
        self.terms, self.buckets, self.farthest = terms, buckets, farthest
        inner = heads * self.head_width
        # As published, the square root is taken in float32 even of a network in float64.
        root = torch.tensor(float(self.head_width * (1 + len(terms))), dtype=torch.float32, device="cpu").sqrt()
        self.scale = 1 / float(root)
        self.distance_drop = Drop(distance_dropout)
        self.distance_key = nn.Linear(width, inner) if "c2p" in terms and not shared else None
        self.distance_query = nn.Linear(width, inner) if "p2c" in terms and not shared else None
        self.shared = shared

    def forward(
        self,
        x: Tensor,
        rows: Rows,
        bias: Tensor | None = None,
        turns: Tensor | None = None,
        cache: LayerCache | None = None,
        asking: Tensor | None = None,
    ) -> Tensor:
        """`bias`: the table of distances, R width; `asking`: N width that the queries are made of, where not of x."""
        query, key, value = self._split(self.qkv(x)).unbind(1)  # N H D each
        if asking is not None:
            query = self._split(self.qkv(asking))[:, 0]
        if turns is not None:
            query, key = turn(query, turns), turn(key, turns)
        if self.listener is not None and asking is None:
            self.listener(query, key, value)
        scores = None if bias is None else self._scores(rows, bias)
        if asking is None:
            return self.mixed(query, key, value, rows, bias=scores)
        dropout = self.dropout if self.training else 0.0
        mixed = attend(query, key, value, rows, bias=scores, scale=self.scale, dropout=dropout)[0]
        return self.output((mixed if self.editor is None else self.editor(mixed)).flatten(1))

    def _split(self, maps: Tensor) -> Tensor:
        """N 3HD -> N 3 H D"""
        return maps.unflatten(-1, (3, self.heads, self.head_width))  # type: ignore[no-untyped-call]

    def _scores(self, rows: Rows, table: Tensor) -> ScoreBias:
        """What distances add to the scores of a square."""
        span, longest = table.shape[0] // 2, rows.longest
        # Of short rows only the vectors of near distances are needed, each of which has its own. An exported graph is
        # for rows of any length.
        near = not torch.compiler.is_exporting() and (self.buckets is None or longest - 1 <= self.buckets // 2)
        first = max(0, span - longest + 1) if near else 0
        table = self.distance_drop(table)[first : span + longest if near else 2 * span]  # r width

        def work_out() -> Tensor:
            places = torch.arange(longest, device=table.device)
            numbers = distance_buckets(places[:, None] - places, self.buckets, self.farthest)
            return (numbers + span).clamp(0, 2 * span - 1) - first

        index = rows.once(("distances", self.buckets, self.farthest), work_out)  # longest longest
        queries, keys = self._distances(table)

        def scores(square: Square, q: Tensor, k: Tensor) -> Tensor:
            t, s = square.query.longest, square.key.longest
            total = q.new_zeros(())
            if keys is not None:
                by_query = q @ keys.permute(1, 2, 0)  # b H t r
                total = total + by_query.gather(-1, index[:t, :s].expand(*q.shape[:3], s))
            if queries is not None:
                by_key = k @ queries.permute(1, 2, 0)  # b H s r
                total = total + by_key.gather(-1, index[:t, :s].t().expand(*k.shape[:3], t)).transpose(-1, -2)
            return total * (self.scale or 1.0)

        return scores

    def _distances(self, table: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """r width -> r H D each: what distances ask of keys, and what queries ask of distances."""
        if self.shared:
            queries, keys, _ = self._split(self.qkv(table)).unbind(1)
            return queries if "p2c" in self.terms else None, keys if "c2p" in self.terms else None
        shape = (-1, self.heads, self.head_width)
        own = [None if maps is None else maps(table).view(shape) for maps in (self.distance_query, self.distance_key)]
        return own[0], own[1]


class Convolution(nn.Module):
    """What DeBERTa v2 adds to the output of its first layer: a convolution of the layer's input, and a norm."""

    def __init__(self, width: int, kernel: int, activation: Activation, epsilon: float, dropout: float) -> None:
        super().__init__()
        self.offsets = range(-(kernel // 2), kernel // 2 + 1)
        self.maps = nn.Conv1d(width, width, kernel)  # for its weights alone: rows are ragged
        self.drop = Drop(dropout)
        self.norm = norm("layer", width, epsilon)
        self.activation = activation

    def forward(self, x: Tensor, output: Tensor, rows: Rows) -> Tensor:
        weight = self.maps.weight.transpose(1, 2).flatten(1)  # width KW
        convolved = F.linear(neighbors(x, rows, self.offsets), weight, self.maps.bias)
        return self.norm(output + activate(self.drop(convolved), self.activation))


class DisentangledLayer(Layer):
    """A Transformer layer with disentangled attention; the first of a stack may have a convolution."""

    attention: DisentangledAttention

    def __init__(self, *, attention: dict[str, Any], **sizes: Any) -> None:
        super().__init__(**sizes)
        same = {"head_width": sizes["head_width"], "dropout": sizes["attention_dropout"]}
        self.attention = DisentangledAttention(sizes["width"], sizes["heads"], **same, **attention)
        self.convolution: Convolution | None = None

    def forward(
        self,
        x: Tensor,
        rows: Rows,
        bias: Tensor | None = None,
        turns: Tensor | None = None,
        cache: LayerCache | None = None,
        sources: Sources | LayerMemory | None = None,
    ) -> Tensor:
        output = super().forward(x, rows, bias, turns, cache, sources)
        return output if self.convolution is None else self.convolution(x, output, rows)

    def asked(self, asking: Tensor, x: Tensor, rows: Rows, bias: Tensor | None, turns: Tensor | None) -> Tensor:
        """The layer with queries, and what its output is added to, from elsewhere; keys and values are those of x."""
        if self.norm_before:
            ask, read = self.attention_norm(asking), self.attention_norm(x)
            y = asking + self.attention_drop(self.attention(read, rows, bias, turns, asking=ask))
            return y + self.feedforward_drop(self.feedforward(self.feedforward_norm(y)))
        y = self.attention_norm(asking + self.attention_drop(self.attention(x, rows, bias, turns, asking=asking)))
        return self.feedforward_norm(y + self.feedforward_drop(self.feedforward(y)))
