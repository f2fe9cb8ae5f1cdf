"""What a decoder already knows: keys and values of every layer, dense, with a length per row; and what it reads from.

B: rows; H: heads; S: places there is room for, or tokens of a source; D: width of a head; N: queries.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.nn.rows import DecoderState, Rows


class Cache(DecoderState):
    """Keys and values of all layers; the state between two decoding steps."""

    def __init__(self, layers: int, rows: Rows, room: int, memory: Memory | None = None) -> None:
        self.lengths = rows.lengths().long()  # B: tokens that are in
        self.longest = rows.longest
        self.room = max(room, rows.longest)
        self.even = False  # all rows are equally long, so that nothing need be masked
        self.layers = [LayerCache(self) for _ in range(layers)]
        self.memory = memory
        self.spare: Tensor | None = None  # what one layer moved out of, the next one moves into

    @property
    def attention(self) -> Tensor | None:
        """B S: how much each token of its source was looked at for the latest scores, where that is watched."""
        return None if self.memory is None else self.memory.attention

    def advance(self) -> None:
        """Count in the token that the last step added to every row."""
        self.lengths = self.lengths + 1
        self.longest += 1

    def pick(self, rows: Tensor) -> None:
        self.lengths = self.lengths.index_select(0, rows)
        if not self.even:  # the longest row may be among those that left
            self.longest = int(self.lengths.max()) if len(rows) else 0
        with torch.no_grad():
            for layer in self.layers:
                layer.keys, layer.values = self._moved(layer.keys, rows), self._moved(layer.values, rows)
        if self.memory is not None:
            self.memory.pick(rows)

    def _moved(self, old: Tensor, rows: Tensor) -> Tensor:
        """S B H D with other rows; the places that nothing is in yet stay behind."""
        new, self.spare = self.spare, None
        if new is None or new.shape[1] != len(rows) or new.shape[0] != old.shape[0]:
            new = old.new_zeros(old.shape[0], len(rows), *old.shape[2:])
        torch.index_select(old[: self.longest], 1, rows, out=new[: self.longest])
        self.spare = old
        return new


class LayerCache:
    """Keys and values of one layer, S B H D each: what is filled lies together, and moves together."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.filled = False
        self.keys: Tensor
        self.values: Tensor

    def fill(self, key: Tensor, value: Tensor, rows: Rows) -> None:
        """Take in the prompt: N H D each."""
        self.cache.even = key.shape[0] == rows.count * rows.longest
        self.keys, self.values = (_square(x, rows, self.cache.room).transpose(0, 1).contiguous() for x in (key, value))
        self.filled = True

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scale: float | None = None
    ) -> Tensor:
        """Take in one new token per row and mix what it sees: B H D each; bias B H 1 S."""
        lengths, seen = self.cache.lengths, self.cache.longest + 1
        if self.cache.longest >= self.keys.shape[0]:
            self._grow()
        addition = None if bias is None else bias[..., :seen].to(query.dtype)
        if self.cache.even:
            self.keys[seen - 1] = key
            self.values[seen - 1] = value
        else:
            rows = torch.arange(lengths.shape[0], device=lengths.device)
            self.keys[lengths, rows] = key
            self.values[lengths, rows] = value
            may = (torch.arange(seen, device=lengths.device) <= lengths[:, None])[:, None, None]  # B 1 1 S
            zero = torch.zeros((), dtype=query.dtype, device=query.device) if addition is None else addition
            addition = zero.where(may, -torch.inf)
        keys, values = (x[:seen].permute(1, 2, 0, 3) for x in (self.keys, self.values))  # B H S D
        return F.scaled_dot_product_attention(query.unsqueeze(2), keys, values, addition, scale=scale).squeeze(2)

    def _grow(self) -> None:
        self.keys, self.values = (torch.cat([x, torch.zeros_like(x)]) for x in (self.keys, self.values))
        self.cache.spare = None


def _square(x: Tensor, rows: Rows, room: int) -> Tensor:
    """N H D -> B room H D"""
    total, heads, head_width = x.shape
    # Unwritten places are masked, but 0 x NaN is NaN: so they must hold numbers.
    square = x.new_zeros(rows.count, room, heads, head_width)
    if total == rows.count * rows.longest:
        square[:, : rows.longest] = x.view(rows.count, rows.longest, heads, head_width)
    else:
        square[rows.numbers(total), rows.places(total)] = x
    return square


class Memory:
    """What an encoder has read: keys and values of every layer, once for each source however many rows read it.

    A beam's rows stand side by side and read one source, so nothing is copied when they change places.
    """

    def __init__(self, rows: Rows, total: int, dtype: torch.dtype, watched: bool = False) -> None:
        device = rows.starts.device
        self.rows = rows  # as they were read
        self.owners = torch.arange(rows.count, device=device)  # B: the source of each row
        self.each: int | None = 1  # rows of a source, side by side; None: in no such order
        self.addition: Tensor | None = None  # sources 1 1 S: minus infinity behind the end of a source
        if total < rows.count * rows.longest:
            real = torch.arange(rows.longest, device=device) < rows.lengths()[:, None]
            self.addition = torch.zeros((), dtype=dtype, device=device).where(real, -torch.inf)[:, None, None]
        self.layers: list[LayerMemory] = []
        self.watched = watched
        self.weights: list[Tensor] = []  # of this pass, a layer each: N S
        self.attention: Tensor | None = None

    def add(self, key: Tensor, value: Tensor) -> None:
        """Keys and values of one more layer: M H D each."""
        keys, values = (_square(x, self.rows, self.rows.longest).transpose(1, 2).contiguous() for x in (key, value))
        self.layers.append(LayerMemory(self, keys, values))

    def settle(self, lasts: Tensor | None = None) -> None:
        """After a pass: what was looked at for each row's last token, the mean of all heads and layers."""
        if self.watched:
            attention = torch.stack(self.weights).mean(0).float()
            self.attention = attention if lasts is None else attention[lasts]
            self.weights = []

    def pick(self, rows: Tensor) -> None:
        owners = self.owners.index_select(0, rows)
        if self.attention is not None:
            self.attention = self.attention.index_select(0, rows)
        if owners.shape == self.owners.shape and torch.equal(owners, self.owners):
            return
        numbers = owners.tolist()
        kept = list(dict.fromkeys(numbers))
        each = len(numbers) // max(1, len(kept))
        self.each = each if numbers == [source for source in kept for _ in range(each)] else None
        if kept != list(range(self.rows.count if not self.layers else self.layers[0].keys.shape[0])):
            chosen = torch.tensor(kept, dtype=torch.int64, device=rows.device)
            for layer in self.layers:
                layer.keys, layer.values = layer.keys.index_select(0, chosen), layer.values.index_select(0, chosen)
            if self.addition is not None:
                self.addition = self.addition.index_select(0, chosen)
            places = {source: place for place, source in enumerate(kept)}
            owners = torch.tensor([places[source] for source in numbers], dtype=torch.int64, device=rows.device)
        self.owners = owners


class LayerMemory:
    """Keys and values of one layer, sources H S D each."""

    def __init__(self, memory: Memory, keys: Tensor, values: Tensor) -> None:
        self.memory, self.keys, self.values = memory, keys, values

    def attend(self, query: Tensor, rows: Rows, scale: float | None = None) -> Tensor:
        """N H D -> N H D: each query mixes what it sees of its row's source."""
        memory = self.memory
        total = query.shape[0]
        keys, values, addition = self.keys, self.values, memory.addition
        if total == len(memory.owners):  # a token per row
            together, owners = memory.each, memory.owners
        else:  # prompts: row n reads source n
            even = total == rows.count * rows.longest
            together, owners = (rows.longest, memory.owners) if even else (None, rows.numbers(total))
        if together is None:
            keys, values = keys.index_select(0, owners), values.index_select(0, owners)
            addition = None if addition is None else addition.index_select(0, owners)
            together = 1
        query = query.view(-1, together, *query.shape[1:]).transpose(1, 2)  # sources H together D
        if memory.watched:
            scores = query @ keys.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
            weights = (scores if addition is None else scores + addition).softmax(-1)  # sources H together S
            memory.weights.append(weights.mean(1).flatten(0, 1))
            mixed = weights @ values
        else:
            mixed = F.scaled_dot_product_attention(query, keys, values, addition, scale=scale)
        return mixed.transpose(1, 2).flatten(0, 1)
