"""Multi-head attention as modules: a text that looks at itself, and one that looks at another.

N: query tokens; M: key tokens; B: rows; H: heads; D: width of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from weft.nn.attention import attend
from weft.nn.cache import LayerCache, LayerMemory
from weft.nn.positions import turn
from weft.nn.rows import Rows


@dataclass(frozen=True)
class Sighting:
    """What a watcher is handed for one layer and one batch; decoding steps from a cache are not shown."""

    query: Tensor  # N H D
    key: Tensor  # N H D, in cross attention M H D
    value: Tensor  # as the key
    weights: Tensor  # B H longest longest
    rows: Rows


class Attention(nn.Module):
    """Multi-head self-attention over ragged rows."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        head_width: int | None = None,
        dropout: float = 0.0,
        causal: bool = False,
        bias: bool = True,
        scale: float | None = None,
    ) -> None:
        """`scale` multiplies the scores: by default one over the root of a head's width (T5: 1)."""
        super().__init__()
        self.heads = heads
        self.head_width = head_width or width // heads
        self.dropout = dropout
        self.causal = causal
        self.scale = scale
        self.qkv = nn.Linear(width, 3 * heads * self.head_width, bias=bias)
        self.output = nn.Linear(heads * self.head_width, width, bias=bias)
        self.watcher: Callable[[Sighting], None] | None = None  # set for as long as somebody watches
        # Hears query, key and value (N H D) alone, so that the weights need not be written out.
        self.listener: Callable[[Tensor, Tensor, Tensor], None] | None = None

    def forward(
        self,
        x: Tensor,
        rows: Rows,
        bias: Tensor | None = None,
        turns: Tensor | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(1)  # N H D each
        if turns is not None:
            query, key = turn(query, turns), turn(key, turns)
        if self.listener is not None:
            self.listener(query, key, value)
        if cache is not None and cache.filled:  # a decoding step: one new token per row
            return self.output(cache.attend(query, key, value, bias, self.scale).flatten(1))
        if cache is not None:
            cache.fill(key, value, rows)
        mixed, weights = attend(
            query,
            key,
            value,
            rows,
            bias=bias,
            causal=self.causal,
            scale=self.scale,
            dropout=self.dropout if self.training else 0.0,
            want_weights=self.watcher is not None,
        )
        if self.watcher is not None and weights is not None:
            self.watcher(Sighting(query, key, value, weights, rows))
        return self.output(mixed.flatten(1))


class CrossAttention(nn.Module):
    """Queries from one text, keys and values from another: how a decoder reads what an encoder has read."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        head_width: int | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.head_width = head_width or width // heads
        self.dropout = dropout
        self.scale = scale
        inner = heads * self.head_width
        self.query = nn.Linear(width, inner, bias=bias)
        self.key_value = nn.Linear(width, 2 * inner, bias=bias)
        self.output = nn.Linear(inner, width, bias=bias)
        self.watcher: Callable[[Sighting], None] | None = None

    def keys_and_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """M width -> M H D each"""
        key, value = self.key_value(memory).unflatten(-1, (2, self.heads, -1)).unbind(1)
        return key, value

    def forward(self, x: Tensor, rows: Rows, memory: Tensor, memory_rows: Rows) -> Tensor:
        """N width, M width -> N width; row b of x reads row b of the memory."""
        query = self.query(x).unflatten(-1, (self.heads, -1))  # N H D
        key, value = self.keys_and_values(memory)
        mixed, weights = attend(
            query,
            key,
            value,
            rows,
            key_rows=memory_rows,
            scale=self.scale,
            dropout=self.dropout if self.training else 0.0,
            want_weights=self.watcher is not None,
        )
        if self.watcher is not None and weights is not None:
            self.watcher(Sighting(query, key, value, weights, rows))
        return self.output(mixed.flatten(1))

    def recalled(self, x: Tensor, rows: Rows, memory: LayerMemory) -> Tensor:
        """As forward, from keys and values that were laid out before."""
        query = self.query(x).unflatten(-1, (self.heads, -1))  # N H D
        return self.output(memory.attend(query, rows, self.scale).flatten(1))
