"""Attention over ragged rows: one function with fused and written-out paths, the caches of decoding, and the modules.

N: query tokens; M: key tokens; B: rows; H: heads; D: width of a head; b, t, s: rows, queries and keys of one square;
S: places that a cache has room for, or tokens of a source.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.nn.linear import Linear
from weft.nn.pieces import mixed_square
from weft.nn.rows import DecoderState, Rows, filled, spread


@dataclass(frozen=True)
class Side:
    """Some rows of a flat run laid out as a rectangle, for the queries or for the keys."""

    tokens: Tensor | None  # n: their places in the flat run; None: the whole run
    slots: Tensor | None  # n: where each goes in the rectangle; None: rows are equally long, so a reshape does it
    count: int  # b
    longest: int  # t or s

    def lay(self, x: Tensor) -> Tensor:
        """N H D -> b H t D"""
        if self.tokens is not None:
            x = x.index_select(0, self.tokens)
        if self.slots is not None:
            square = x.new_zeros(self.count * self.longest, *x.shape[1:])
            x = square.index_copy(0, self.slots, x)
        return x.view(self.count, self.longest, *x.shape[1:]).transpose(1, 2)

    def gather(self, x: Tensor) -> Tensor:
        """b H t D -> n H D"""
        x = x.transpose(1, 2).flatten(0, 1)
        return x if self.slots is None else x.index_select(0, self.slots)


@dataclass(frozen=True)
class Square:
    """Rows of similar length that are attended to together."""

    rows: Tensor | None  # b: which rows; None: all, in order
    query: Side
    key: Side
    real: Tensor | None  # b 1 1 s, True where a key is a token and not padding; None: all are


@dataclass(frozen=True)
class SquareWeights:
    """Attention weights as they were worked out, so that each stays a part of the graph of gradients."""

    squares: Sequence[Square]
    parts: Sequence[Tensor]  # b H t s each
    rows: Rows
    key_rows: Rows

    def padded(self) -> Tensor:
        """B H longest longest; where there is no token they are 0."""
        return _padded(self.squares, self.parts, self.rows, self.key_rows)

    def place(self, row: int) -> tuple[int, int]:
        """Which part holds a row, and where in it."""
        for number, square in enumerate(self.squares):
            if square.rows is None:
                return number, row
            inside = (square.rows == row).nonzero()
            if len(inside):
                return number, int(inside[0])
        return -1, row


# A bias that depends on what stands at two places: (square, q, k) -> b H t s, with q and k laid out (b H t D, b H s D).
ScoreBias = Callable[[Square, Tensor, Tensor], Tensor]


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rows: Rows,
    key_rows: Rows | None = None,
    mask: Tensor | None = None,
    bias: Tensor | ScoreBias | None = None,
    causal: bool = False,
    scale: float | None = None,
    dropout: float = 0.0,
    want_weights: bool = False,
) -> tuple[Tensor, SquareWeights | None]:
    """Mix the values of each row by how well its queries fit its keys: N H D (and the weights, square by square).

    `key_rows` says where the rows of keys begin when they are not the queries' own (cross attention). `mask` (True =
    may look) and `bias` (added to the scores) are indexed by places in the rows and broadcast to B H longest longest;
    a bias that depends on the queries and keys is a function of each square.
    """
    assert key_rows is None or not causal, "a causal mask between two texts means nothing"
    if not want_weights and mask is None and bias is None and _has_ragged_kernel(query):
        even = key_rows is None and query.shape[0] == rows.count * rows.longest
        if even and rows.longest > 1 and _has_even_kernel(query):  # which refuses keys of one place
            return _even(query, key, value, rows, causal, scale, dropout), None
        return _ragged(query, key, value, rows, key_rows or rows, causal, scale, dropout), None
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    squares = squares_of(rows, key_rows, query.shape[0], key.shape[0])
    mixed, weights = [], []
    for square in squares:
        q, k, v = square.query.lay(query), square.key.lay(key), square.key.lay(value)
        if want_weights:
            out, seen = _written_out(q, k, v, _addition(square, mask, bias, causal, q, k), scale, dropout)
            weights.append(seen)
        else:
            # Padding stands after the tokens of its row, so a causal query never sees it.
            past = causal and mask is None and bias is None
            addition = None if past else _addition(square, mask, bias, causal, q, k)
            out = mixed_square(q, k, v, addition, past, scale, dropout)
        mixed.append(square.query.gather(out))
    return _together(squares, mixed), SquareWeights(squares, weights, rows, key_rows or rows) if want_weights else None


def _addition(
    square: Square, mask: Tensor | None, bias: Tensor | ScoreBias | None, causal: bool, q: Tensor, k: Tensor
) -> Tensor | None:
    """What is added to a square's scores: the bias, and minus infinity where a query may not look; None: nothing."""
    t, s = square.query.longest, square.key.longest
    may = square.real
    if causal:
        past = torch.ones(t, s, dtype=torch.bool, device=q.device).tril()
        may = past if may is None else may & past
    if mask is not None:
        mask = _of_square(square, mask)
        # Where a mask leaves a query nothing, it sees its whole row, and no padding: not another number in a batch.
        may = mask if may is None else may & (mask | ~(may & mask).any(-1, keepdim=True))
    if may is not None:
        # A query that may look nowhere (padding, an empty source) would turn into NaN, in its gradient at least.
        may = may | ~may.any(-1, keepdim=True)
    if bias is None:
        return None if may is None else torch.zeros((), dtype=q.dtype, device=q.device).where(may, -math.inf)
    bias = (_of_square(square, bias) if isinstance(bias, Tensor) else bias(square, q, k)).to(q.dtype)
    return bias if may is None else bias.masked_fill(~may, -math.inf)


def _of_square(square: Square, x: Tensor) -> Tensor:
    """The part of a mask or bias over all rows (B H longest longest, or fewer dimensions) that this square needs."""
    x = x[..., : square.query.longest, : square.key.longest]
    return x[square.rows] if square.rows is not None and x.dim() == 4 and x.shape[0] > 1 else x


def _written_out(
    q: Tensor, k: Tensor, v: Tensor, addition: Tensor | None, scale: float, dropout: float
) -> tuple[Tensor, Tensor]:
    """Attention as the paper has it, for those who want to see the weights."""
    scores = q @ k.transpose(-2, -1) * scale  # b H t s
    if addition is not None:
        scores = scores + addition
    weights = scores.softmax(-1)
    return F.dropout(weights, dropout) @ v, weights


def attend_laid_out(
    q: Tensor, k: Tensor, v: Tensor, addition: Tensor | None, scale: float | None, want_weights: bool
) -> tuple[Tensor, Tensor | None]:
    """A decoding step over keys and values that are laid out already: b H t D (and the weights, b H t s)."""
    if not want_weights:
        return F.scaled_dot_product_attention(q, k, v, addition, scale=scale), None
    return _written_out(q, k, v, addition, 1 / math.sqrt(q.shape[-1]) if scale is None else scale, 0.0)


def _together(squares: Sequence[Square], mixed: list[Tensor]) -> Tensor:
    """The squares' results put back into the flat run."""
    if len(squares) == 1 and squares[0].query.tokens is None:
        return mixed[0]
    order = torch.cat([square.query.tokens for square in squares if square.query.tokens is not None])
    joined = torch.cat(mixed)
    return torch.empty_like(joined).index_copy(0, order, joined)


def _padded(squares: Sequence[Square], weights: Sequence[Tensor], rows: Rows, key_rows: Rows) -> Tensor:
    """All squares' weights in one B H longest longest tensor; where there is no token they are 0."""
    heads = weights[0].shape[1]
    whole = weights[0].new_zeros(rows.count, heads, rows.longest, key_rows.longest)
    for square, seen in zip(squares, weights, strict=True):
        t, s = seen.shape[-2:]
        numbers = torch.arange(rows.count, device=whole.device) if square.rows is None else square.rows
        real = torch.arange(t, device=whole.device) < rows.lengths()[numbers][:, None]  # b t
        whole[numbers, :, :t, :s] = seen * real[:, None, :, None]
    return whole


def squares_of(rows: Rows, key_rows: Rows | None, total: int, key_total: int) -> list[Square]:
    """How these rows are laid out for a kernel that knows only squares; worked out once for all layers."""
    # The memo keeps key_rows too, so that its id cannot come to mean another object.
    name = ("squares", None if key_rows is None else id(key_rows))
    return rows.once(name, lambda: (_lay_out(rows, key_rows, total, key_total), key_rows))[0]


def slots_of(rows: Rows, total: int) -> int:
    """How many places the squares of these rows have, padding included."""
    return sum(square.query.count * square.query.longest for square in squares_of(rows, None, total, total))


def _lay_out(rows: Rows, key_rows: Rows | None, total: int, key_total: int) -> list[Square]:
    keys = key_rows or rows
    if total == rows.count * rows.longest and key_total == keys.count * keys.longest:
        return [
            Square(None, Side(None, None, rows.count, rows.longest), Side(None, None, keys.count, keys.longest), None)
        ]
    if rows.starts.device.type != "cpu":  # one square: a launch costs more there than the padding
        query, key = (
            Side(None, side.numbers(count) * side.longest + side.places(count), side.count, side.longest)
            for side, count in ((rows, total), (keys, key_total))
        )
        return [Square(None, query, key, _real(keys.lengths(), keys.longest))]
    lengths, key_lengths = rows.lengths(), keys.lengths()
    squares = []
    sizes = lengths.tolist()
    if key_rows is not None:  # by the keys, since they are what is masked; a row without queries has nothing to do
        sizes = [max(1, size) if queries else 0 for size, queries in zip(key_lengths.tolist(), sizes, strict=True)]
    for group in similar(sizes):
        chosen = torch.tensor(group)
        query = _side(rows.starts[:-1], lengths, chosen)
        key = query if key_rows is None else _side(keys.starts[:-1], key_lengths, chosen)
        real = None if key.slots is None else _real(key_lengths[chosen], key.longest)
        squares.append(Square(chosen, query, key, real))
    return squares


def _real(lengths: Tensor, longest: int) -> Tensor:
    """b 1 1 s: True where a place holds a token."""
    return (torch.arange(longest, device=lengths.device) < lengths[:, None])[:, None, None]


def _side(starts: Tensor, lengths: Tensor, chosen: Tensor) -> Side:
    """The chosen rows as a rectangle."""
    lengths = lengths[chosen].long()
    longest = max(1, int(lengths.max()))
    every = torch.arange(longest)
    real = every < lengths[:, None]  # b t
    tokens = (starts[chosen].long()[:, None] + every)[real]
    slots = None if bool(real.all()) else real.flatten().nonzero().squeeze(1)
    return Side(tokens, slots, len(chosen), longest)


def similar(lengths: Sequence[int], overhead: int = 16384) -> list[list[int]]:
    """Row numbers in groups of similar length: the cheapest cut in cells, where a further square costs `overhead`."""
    # Dynamic programming over the sorted rows.
    order = sorted((number for number in range(len(lengths)) if lengths[number]), key=lambda number: lengths[number])
    sizes = [lengths[number] for number in order]
    best = torch.zeros(len(sizes) + 1, dtype=torch.float64)  # cost of the first n rows
    begins = [0] * (len(sizes) + 1)  # where the last group of the first n rows begins
    counts = torch.arange(len(sizes), -1, -1, dtype=torch.float64)
    for end in range(1, len(sizes) + 1):
        cell = sizes[end - 1] ** 2 + 32 * sizes[end - 1]  # the scores, and the copies that grow with the length alone
        costs = best[:end] + cell * counts[-end - 1 : -1] + overhead
        begins[end] = int(costs.argmin())
        best[end] = costs[begins[end]]
    groups: list[list[int]] = []
    end = len(sizes)
    while end:
        begin = begins[end]
        groups.append(order[begin:end])
        end = begin
    return groups[::-1]


def _has_ragged_kernel(query: Tensor) -> bool:
    fits = query.dtype in (torch.bfloat16, torch.float16) and query.shape[-1] % 8 == 0 and query.shape[-1] <= 256
    return fits and query.is_cuda and torch.cuda.get_device_capability(query.device) >= (8, 0)


def _ragged(
    query: Tensor, key: Tensor, value: Tensor, rows: Rows, keys: Rows, causal: bool, scale: float | None, dropout: float
) -> Tensor:
    """N H D through the flash kernels, which read the row starts themselves."""
    if dropout == 0.0:
        # Imported here: it brings the compiler with it, which doubles the start-up of whoever has no GPU.
        from torch.nn.attention.varlen import varlen_attn

        window = (-1, 0) if causal else (-1, -1)
        mixed = varlen_attn(
            query, key, value, rows.starts, keys.starts, rows.longest, keys.longest, scale=scale, window_size=window
        )
        assert isinstance(mixed, Tensor)
        return mixed
    # The public function has no dropout in torch 2.11 to 2.13; the operator below it has.
    return torch.ops.aten._flash_attention_forward(
        query, key, value, rows.starts, keys.starts, rows.longest, keys.longest, dropout, causal, False, scale=scale
    )[0]


def _has_even_kernel(query: Tensor) -> bool:
    """Whether cuDNN's attention is here: on a Hopper GPU it is faster than the flash kernels, but wants equal rows."""
    return query.shape[-1] <= 128 and torch.cuda.get_device_capability(query.device) >= (9, 0)


def _even(
    query: Tensor, key: Tensor, value: Tensor, rows: Rows, causal: bool, scale: float | None, dropout: float
) -> Tensor:
    """N H D through cuDNN, for rows that are equally long."""
    shape = (rows.count, rows.longest)
    q, k, v = (x.view(*shape, *x.shape[1:]).transpose(1, 2) for x in (query, key, value))  # B H T D
    mixed = torch.ops.aten._scaled_dot_product_cudnn_attention(
        q, k, v, None, torch.is_grad_enabled(), dropout, causal, False, scale=scale
    )[0]
    return mixed.transpose(1, 2).flatten(0, 1)


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
        # Places that nothing is in yet are masked, but 0 x NaN is NaN: so they must hold numbers.
        room = (0, 0, 0, 0, 0, 0, 0, self.cache.room - rows.longest)
        self.keys, self.values = (F.pad(spread(x, rows), room) for x in (key, value))
        self.filled = True

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        scale: float | None = None,
        want_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Take in one new token per row and mix what it sees: B H D each; bias B H 1 S, as the weights."""
        lengths, seen = self.cache.lengths, self.cache.longest + 1
        if self.cache.longest >= self.keys.shape[0]:
            self.keys, self.values = (torch.cat([x, torch.zeros_like(x)]) for x in (self.keys, self.values))
            self.cache.spare = None
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
        mixed, weights = attend_laid_out(query.unsqueeze(2), keys, values, addition, scale, want_weights)
        return mixed.squeeze(2), weights


class Memory:
    """What an encoder has read: keys and values of every layer, once for each source however many rows read it."""

    def __init__(self, rows: Rows, total: int, dtype: torch.dtype, watched: bool = False) -> None:
        device = rows.starts.device
        self.rows = rows  # as they were read
        self.owners = torch.arange(rows.count, device=device)  # B: the source of each row
        self.each: int | None = 1  # rows of a source, side by side; None: in no such order
        self.addition: Tensor | None = None  # sources 1 1 S: minus infinity behind the end of a source
        if total < rows.count * rows.longest:
            self.addition = torch.zeros((), dtype=dtype, device=device).where(filled(rows), -torch.inf)[:, None, None]
        self.layers: list[LayerMemory] = []
        self.watched = watched
        self.weights: list[Tensor] = []  # of this pass, a layer each: N S
        self.attention: Tensor | None = None

    def add(self, key: Tensor, value: Tensor) -> None:
        """Keys and values of one more layer: M H D each."""
        keys, values = (spread(x, self.rows).permute(1, 2, 0, 3).contiguous() for x in (key, value))
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

    def attend(
        self, query: Tensor, rows: Rows, scale: float | None = None, want_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """N H D -> N H D, each query mixes what it sees of its row's source; and the weights, N H 1 S."""
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
        mixed, weights = attend_laid_out(query, keys, values, addition, scale, want_weights or memory.watched)
        if weights is not None:  # sources H together S
            if memory.watched:
                memory.weights.append(weights.mean(1).flatten(0, 1))
            weights = weights.transpose(1, 2).flatten(0, 1).unsqueeze(2)
        return mixed.transpose(1, 2).flatten(0, 1), weights


def turn(x: Tensor, turns: Tensor) -> Tensor:
    """N H D, each half-and-half pair of numbers turned by its angle."""
    turns = turns.to(x.dtype)  # under autocast x is narrower than the embeddings were
    first, second = x.chunk(2, -1)
    return x * turns[0] + torch.cat([-second, first], -1) * turns[1]


@dataclass(frozen=True)
class Sighting:
    """What a watcher is handed for one layer and one batch, or for one decoding step of all rows."""

    query: Tensor  # N H D
    key: Tensor  # N H D, in cross attention M H D; there, of a decoding step, sources H S D
    value: Tensor  # as the key
    mixed: Tensor  # N H D, before the output map
    output: Tensor  # N width
    rows: Rows
    squares: SquareWeights | None = None  # of a whole pass
    step: Tensor | None = None  # of a decoding step: B H 1 S
    memory: int | None = None  # keys of each row before its own tokens; None: keys are those of the row from its start
    stream: str = ""  # "query": the second stream of XLNet

    @property
    def weights(self) -> Tensor:
        """B H longest longest, or B H 1 S: where there is no token they are 0."""
        if self.step is not None:
            return self.step
        assert self.squares is not None
        return self.squares.padded()


class MultiHead(nn.Module):
    """What both kinds of multi-head attention have; `scale` multiplies the scores, by default 1 / sqrt(D) (T5: 1)."""

    output: nn.Linear

    def __init__(
        self, width: int, heads: int, head_width: int | None = None, dropout: float = 0.0, scale: float | None = None
    ) -> None:
        super().__init__()
        self.heads, self.head_width = heads, head_width or width // heads
        self.dropout, self.scale = dropout, scale
        self.watcher: Callable[[Sighting], None] | None = None  # set for as long as somebody watches
        self.editor: Callable[[Tensor], Tensor] | None = None  # replaces what heads give: N H D -> N H D

    def mixed(
        self, query: Tensor, key: Tensor, value: Tensor, rows: Rows, *, seen: Any = None, **settings: Any
    ) -> Tensor:
        """N H D, and keys and values -> N width; `settings` are those of `attend`, `seen` more of a `Sighting`."""
        dropout, watched = self.dropout if self.training else 0.0, self.watcher is not None
        mixed, weights = attend(
            query, key, value, rows, scale=self.scale, dropout=dropout, want_weights=watched, **settings
        )
        return self.finish(mixed, query, key, value, rows, weights, **(seen or {}))

    def finish(
        self,
        mixed: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        rows: Rows,
        squares: SquareWeights | None = None,
        **seen: Any,
    ) -> Tensor:
        """N H D -> N width: the output map, and whoever watches or edits the heads."""
        if self.editor is not None:
            mixed = self.editor(mixed)
        output = self.output(mixed.flatten(1))
        if self.watcher is not None:
            self.watcher(Sighting(query, key, value, mixed, output, rows, squares, **seen))
        return output


class Attention(MultiHead):
    """Multi-head self-attention over ragged rows."""

    def __init__(self, width: int, heads: int, *, causal: bool = False, bias: bool = True, **settings: Any) -> None:
        super().__init__(width, heads, **settings)
        self.causal = causal
        self.qkv = Linear(width, 3 * heads * self.head_width, bias=bias)
        self.output = Linear(heads * self.head_width, width, bias=bias)
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
            mixed, weights = cache.attend(query, key, value, bias, self.scale, self.watcher is not None)
            return self.finish(mixed, query, key, value, rows, step=weights)
        if cache is not None:
            cache.fill(key, value, rows)
        return self.mixed(query, key, value, rows, bias=bias, causal=self.causal)


@dataclass(frozen=True)
class Sources:
    """What the rows of a decoder read: all that an encoder made of each."""

    hidden: Tensor  # M width
    rows: Rows


class CrossAttention(MultiHead):
    """Queries from one text, keys and values from another: how a decoder reads what an encoder has read."""

    def __init__(self, width: int, heads: int, *, bias: bool = True, **settings: Any) -> None:
        super().__init__(width, heads, **settings)
        inner = heads * self.head_width
        self.query = Linear(width, inner, bias=bias)
        self.key_value = Linear(width, 2 * inner, bias=bias)
        self.output = Linear(inner, width, bias=bias)

    def keys_and_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """M width -> M H D each"""
        key, value = self.key_value(memory).unflatten(-1, (2, self.heads, -1)).unbind(1)
        return key, value

    def forward(self, x: Tensor, rows: Rows, sources: Sources | LayerMemory) -> Tensor:
        """N width -> N width; row b of x reads source b, or in decoding what was laid out of it."""
        query = self.query(x).unflatten(-1, (self.heads, -1))  # N H D
        if isinstance(sources, LayerMemory):
            mixed, weights = sources.attend(query, rows, self.scale, self.watcher is not None)
            return self.finish(mixed, query, sources.keys, sources.values, rows, step=weights)
        return self.mixed(query, *self.keys_and_values(sources.hidden), rows, key_rows=sources.rows)
