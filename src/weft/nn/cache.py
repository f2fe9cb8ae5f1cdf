"""What a decoder already knows: keys and values of every layer, dense, with a length per row.

B: rows; H: heads; S: places there is room for; D: width of a head.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.nn.rows import Rows


class Cache:
    """Keys and values of all layers; the state between two decoding steps."""

    def __init__(self, layers: int, rows: Rows, room: int) -> None:
        self.lengths = rows.lengths().long()  # B: tokens that are in
        self.longest = rows.longest
        self.room = max(room, rows.longest)
        self.layers = [LayerCache(self) for _ in range(layers)]

    def advance(self) -> None:
        """Count in the token that the last step added to every row."""
        self.lengths = self.lengths + 1
        self.longest += 1

    def pick(self, rows: Tensor) -> None:
        """Keep these rows, in this order; a row may be asked for more than once."""
        self.lengths = self.lengths.index_select(0, rows)
        self.longest = int(self.lengths.max()) if len(rows) else 0  # the longest row may be among those that left
        for layer in self.layers:
            layer.keys, layer.values = layer.keys.index_select(0, rows), layer.values.index_select(0, rows)


class LayerCache:
    """Keys and values of one layer, B H S D each."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.filled = False
        self.keys: Tensor
        self.values: Tensor

    def fill(self, key: Tensor, value: Tensor, rows: Rows) -> None:
        """Take in the prompt: N H D each."""
        total, heads, head_width = key.shape
        shape = (rows.count, self.cache.room, heads, head_width)
        where = (rows.numbers(total), rows.places(total))
        # Unwritten places are masked, but 0 x NaN is NaN: so they must hold numbers.
        self.keys = key.new_zeros(shape).index_put(where, key).transpose(1, 2).contiguous()
        self.values = value.new_zeros(shape).index_put(where, value).transpose(1, 2).contiguous()
        self.filled = True

    def attend(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
        """Take in one new token per row and mix what it sees: B H D each; bias B H 1 S."""
        lengths = self.cache.lengths
        if self.cache.longest >= self.keys.shape[2]:
            self._grow()
        rows = torch.arange(lengths.shape[0], device=lengths.device)
        self.keys[rows, :, lengths] = key
        self.values[rows, :, lengths] = value
        seen = self.cache.longest + 1
        may = (torch.arange(seen, device=lengths.device) <= lengths[:, None])[:, None, None]  # B 1 1 S
        if bias is not None:
            addition = bias[..., :seen].to(query.dtype).masked_fill(~may, -torch.inf)
        else:
            addition = torch.zeros((), dtype=query.dtype, device=query.device).where(may, -torch.inf)
        keys, values = self.keys[:, :, :seen], self.values[:, :, :seen]
        return F.scaled_dot_product_attention(query.unsqueeze(2), keys, values, addition).squeeze(2)

    def _grow(self) -> None:
        more = (0, 0, 0, self.keys.shape[2])  # double the places
        self.keys, self.values = F.pad(self.keys, more), F.pad(self.values, more)
