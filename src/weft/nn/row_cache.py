"""The key-value cache of continuous batching, whose rows have different lengths and enter and leave between steps.

Rows of similar length are stored in a band, a rectangle with the same room for each of them. A row that outgrows its
band moves into the next one, with twice the room. So a row is copied only a few times, and in a long row less than half
of its room is padding. N: tokens of a pass; R: rows of a band; S: places; T: tokens of one row; H: heads; D: width of a
head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from weft.nn.attention import LayerCache, LayerMemory, Memory, attend_laid_out
from weft.nn.rows import Rows

ROOM = 64  # places of the smallest band


def room_for(places: int) -> int:
    """The room of the band for a row of this length."""
    return max(ROOM, 1 << max(0, places - 1).bit_length())


class Band:
    """Rows with the same room: of each layer the keys and the values, R S H D each, made when the first are written."""

    def __init__(self, room: int) -> None:
        self.room, self.capacity = room, 0
        self.rows: list[int] = []  # the row in each place of the rectangle, without gaps
        self.parts: dict[tuple[int, bool], Tensor] = {}  # by layer, keys and values

    def part(self, layer: int, values: bool, like: Tensor) -> Tensor:
        """The keys or values of a layer, of the same kind as these, ... H D."""
        kept = self.parts.get((layer, values))
        if kept is None:
            kept = self.parts[layer, values] = like.new_zeros(self.capacity, self.room, *like.shape[-2:])
        return kept

    def add(self, row: int) -> int:
        """A place for one more row, filled with zeros: masked places must not be NaN, since 0 x NaN is NaN."""
        if len(self.rows) == self.capacity:
            self._resize(max(1, 2 * self.capacity))
        for part in self.parts.values():
            part[len(self.rows)].zero_()
        self.rows.append(row)
        return len(self.rows) - 1

    def remove(self, place: int) -> int | None:
        """Free a place; the last row moves there, and is returned if it is not the removed one."""
        moved = self.rows.pop()
        moved_in = None if place == len(self.rows) else moved
        if moved_in is not None:
            for part in self.parts.values():
                part[place].copy_(part[len(self.rows)])
            self.rows[place] = moved
        if len(self.rows) <= self.capacity // 4:
            self._resize(self.capacity // 2)
        return moved_in

    def _resize(self, capacity: int) -> None:
        self.capacity, count = capacity, len(self.rows)
        if not capacity:
            self.parts.clear()
        for name, old in self.parts.items():
            self.parts[name] = new = old.new_zeros(capacity, *old.shape[1:])
            new[:count] = old[:count]


class RowStore:
    """Which band each row is in, and how many of its places are filled."""

    def __init__(self) -> None:
        self.bands: dict[int, Band] = {}  # by room
        self.at: dict[int, tuple[Band, int]] = {}  # of each row
        self.sizes: dict[int, int] = {}

    @property
    def places(self) -> int:
        """Places that memory is held for, in each layer."""
        return sum(band.capacity * band.room for band in self.bands.values())

    def add(self, row: int, places: int) -> tuple[Band, int]:
        """Room for so many places of a new row, of which none is filled yet."""
        room = room_for(places)
        band = self.bands.setdefault(room, Band(room))
        self.at[row], self.sizes[row] = (band, band.add(row)), 0
        return self.at[row]

    def remove(self, row: int) -> None:
        """Forget a row."""
        del self.sizes[row]
        self._vacate(*self.at.pop(row))

    def make_room(self, row: int, places: int) -> None:
        """Move a row that outgrows its band."""
        (band, place), size = self.at[row], self.sizes[row]
        if places > band.room:
            self._copy(band, place, *self.add(row, places), size)
            self.sizes[row] = size
            self._vacate(band, place)

    def copy(self, row: int, twin: int) -> None:
        """A new row that holds the same."""
        (band, _), size = self.at[row], self.sizes[row]
        there = self.add(twin, band.room)
        self._copy(*self.at[row], *there, size)
        self.sizes[twin] = size

    @staticmethod
    def _copy(band: Band, place: int, other: Band, there: int, size: int) -> None:
        for (layer, values), part in band.parts.items():
            other.part(layer, values, part)[there, :size] = part[place, :size]

    def _vacate(self, band: Band, place: int) -> None:
        moved = band.remove(place)
        if moved is not None:
            self.at[moved] = band, place
        if not band.rows:
            self.bands.pop(band.room, None)

    def pieces(self, reading: Sequence[tuple[int, int]], device: torch.device, writes: bool) -> list[CachePiece]:
        """How the tokens of a pass (rows, and how many of each) are attended to; `writes`: they are added first."""
        steps: dict[int, list[tuple[int, int, int]]] = {}  # by room: place, size and token of rows with one token
        pieces: list[CachePiece] = []
        first = 0
        for row, count in reading:
            (band, place), size = self.at[row], self.sizes[row]
            if count == 1:
                steps.setdefault(band.room, []).append((place, size, first))
            else:
                pieces.append(TextPiece(band, place, size, first, count, writes))
            first += count
        return [StepPiece(self.bands[room], sorted(some), device, writes) for room, some in steps.items()] + pieces


class CachePiece:
    """Some of the tokens of a pass, and the keys and values that they look at."""

    band: Band
    tokens: slice | Tensor  # of the pass

    def attend(self, layer: int, query: Tensor, new: tuple[Tensor, Tensor] | None, bias: Any, scale: Any) -> Tensor:
        """n H D of this piece -> n H D; `new`: its keys and values; bias n H 1 S."""
        raise NotImplementedError


class StepPiece(CachePiece):
    """Rows of one band that read one token each."""

    def __init__(self, band: Band, rows: Sequence[tuple[int, int, int]], device: torch.device, writes: bool) -> None:
        self.band, count = band, len(band.rows)
        places, sizes, tokens = ([*column] for column in zip(*rows, strict=True))
        first, inside = tokens[0], range(count)
        self.tokens = (
            slice(first, first + len(tokens))
            if tokens == list(range(first, first + len(tokens)))
            else torch.tensor(tokens, device=device)
        )
        # Where some rows of the band read nothing, the others are laid out around gaps.
        self.places = None if places == list(inside) else torch.tensor(places, device=device)
        filled = [size + writes for size in sizes]
        self.seen = max(filled)
        self.written = torch.tensor([p * band.room + s for p, s, _ in rows], device=device) if writes else None
        self.may: Tensor | None = None  # R 1 1 S: places that a row looks at; None: all
        if min(filled) < self.seen or self.places is not None:
            of_place = dict(zip(places, filled, strict=True))
            lengths = torch.tensor([of_place.get(place, 1) for place in inside], device=device)
            self.may = (torch.arange(self.seen, device=device) < lengths[:, None])[:, None, None]
        self.addition: Tensor | None = None

    def attend(self, layer: int, query: Tensor, new: tuple[Tensor, Tensor] | None, bias: Any, scale: Any) -> Tensor:
        band, count = self.band, len(self.band.rows)
        if new is not None:
            assert self.written is not None
            for which, x in zip((False, True), new, strict=True):
                part = band.part(layer, which, x)
                part.view(-1, *part.shape[2:]).index_copy_(0, self.written, x)
        keys, values = (band.parts[layer, which][:count, : self.seen].transpose(1, 2) for which in (False, True))
        if self.places is not None:
            query = query.new_zeros(count, *query.shape[1:]).index_copy_(0, self.places, query)
        mixed, _ = attend_laid_out(query.unsqueeze(2), keys, values, self._added(query, bias), scale, False)
        mixed = mixed.squeeze(2)
        return mixed if self.places is None else mixed.index_select(0, self.places)

    def _added(self, query: Tensor, bias: Tensor | None) -> Tensor | None:
        """R H 1 S: what is added to the scores."""
        if bias is None:
            if self.may is not None and (self.addition is None or self.addition.dtype != query.dtype):
                self.addition = torch.zeros((), dtype=query.dtype, device=query.device).where(self.may, -torch.inf)
            return None if self.may is None else self.addition
        bias = bias[..., : self.seen].to(query.dtype)
        if self.places is not None:
            bias = bias.new_zeros(len(query), *bias.shape[1:]).index_copy_(0, self.places, bias)
        return bias if self.may is None else bias.masked_fill(~self.may, -torch.inf)


class TextPiece(CachePiece):
    """Several tokens of one row: a part of its prompt."""

    def __init__(self, band: Band, place: int, size: int, first: int, count: int, writes: bool) -> None:
        self.band, self.place, self.size, self.writes = band, place, size, writes
        self.tokens = slice(first, first + count)
        self.seen = size + count if writes else size

    def attend(self, layer: int, query: Tensor, new: tuple[Tensor, Tensor] | None, bias: Any, scale: Any) -> Tensor:
        if new is not None:
            for which, x in zip((False, True), new, strict=True):
                self.band.part(layer, which, x)[self.place, self.size : self.seen] = x
        keys, values = (
            self.band.parts[layer, which][self.place : self.place + 1, : self.seen].transpose(1, 2)
            for which in (False, True)
        )
        query, addition = query.transpose(0, 1)[None], None  # 1 H T D
        if bias is not None:
            addition = bias[..., : self.seen].squeeze(2).transpose(0, 1)[None].to(query.dtype)  # 1 H T S
        if self.writes:
            own = torch.arange(self.size, self.seen, device=query.device)
            later = torch.arange(self.seen, device=query.device) > own[:, None]  # T S
            zero = torch.zeros((), dtype=query.dtype, device=query.device) if addition is None else addition
            addition = zero.masked_fill(later, -torch.inf)
        return attend_laid_out(query, keys, values, addition, scale, False)[0][0].transpose(0, 1)


def mixed(
    pieces: Sequence[CachePiece], layer: int, query: Tensor, new: tuple[Tensor, Tensor] | None, bias: Any, scale: Any
) -> Tensor:
    """N H D -> N H D: the tokens of a pass, piece by piece."""
    if len(pieces) == 1 and isinstance(pieces[0].tokens, slice):
        return pieces[0].attend(layer, query, new, bias, scale)
    result = torch.empty_like(query, memory_format=torch.contiguous_format)
    for piece in pieces:
        at = piece.tokens
        own = None if new is None else (new[0][at], new[1][at])
        each_bias = bias if bias is None or len(bias) == 1 else bias[at]
        result[at] = piece.attend(layer, query[at], own, each_bias, scale)
    return result


class RowCache:
    """The state of a decoder of attention layers whose rows come and go, and read one token or several in a pass."""

    even = False  # rows have lengths of their own

    def __init__(self, layers: int, device: torch.device) -> None:
        self.device = device
        self.store = RowStore()
        self.sources: RowStore | None = None  # what an encoder has read for each row
        self.layers = [RowLayer(self, number) for number in range(layers)]
        self.memory: RowMemory | None = None
        self.lengths = torch.zeros(0, dtype=torch.int64, device=device)  # N: the place of each token of the pass
        self.longest = 0  # the last of these places
        self.reading: Sequence[tuple[int, int]] = ()
        self.pieces: list[CachePiece] = []
        self.source_pieces: list[CachePiece] = []

    def add(self, row: int, places: int = 1) -> None:
        """A new row, for which at first so many places are made room for."""
        self.store.add(row, places)

    def add_sources(self, rows: Sequence[int], memory: Memory) -> None:
        """What an encoder has read for new rows, in this order."""
        if self.sources is None:
            self.sources, self.memory = RowStore(), RowMemory(self)
        for number, (row, size) in enumerate(zip(rows, memory.rows.lengths().tolist(), strict=True)):
            band, place = self.sources.add(row, size)
            for layer, own in enumerate(memory.layers):
                for values, x in enumerate((own.keys, own.values)):  # sources H S D each
                    text = x[number].transpose(0, 1)[:size]
                    band.part(layer, bool(values), text)[place, :size] = text
            self.sources.sizes[row] = size

    def copy(self, row: int, twin: int) -> None:
        """A new row that goes on from what another holds."""
        for store in self._stores():
            store.copy(row, twin)

    def remove(self, row: int) -> None:
        """Forget a row."""
        for store in self._stores():
            if row in store.at:
                store.remove(row)

    def prepare(self, reading: Sequence[tuple[int, int]]) -> None:
        """A pass is about to read tokens of these rows: so many of each, one row after the other."""
        store, self.reading = self.store, reading
        for row, count in reading:
            store.make_room(row, store.sizes[row] + count)
        places = [store.sizes[row] + number for row, count in reading for number in range(count)]
        self.lengths, self.longest = torch.tensor(places, device=self.device), max(places)
        self.pieces = store.pieces(reading, self.device, writes=True)
        if self.sources is not None:
            self.source_pieces = self.sources.pieces(reading, self.device, writes=False)

    def advance(self) -> None:
        """Count in what the pass has read."""
        for row, count in self.reading:
            self.store.sizes[row] += count

    @property
    def places(self) -> int:
        """Places that memory is held for, in each layer."""
        return sum(store.places for store in self._stores())

    def _stores(self) -> list[RowStore]:
        return [self.store] if self.sources is None else [self.store, self.sources]


class RowLayer(LayerCache):
    """Keys and values of one layer."""

    def __init__(self, cache: RowCache, number: int) -> None:
        self.rows, self.number, self.filled = cache, number, True

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        scale: float | None = None,
        want_weights: bool = False,
    ) -> tuple[Tensor, None]:
        """Take in the tokens of the pass, N H D each, and mix what each sees; bias N H 1 S."""
        assert not want_weights, "a watched network decodes with a plain cache"
        return mixed(self.rows.pieces, self.number, query, (key, value), bias, scale), None


class RowMemory:
    """What an encoder has read, as the layers of a decoder ask for it."""

    attention = None

    def __init__(self, cache: RowCache) -> None:
        self.layers = [RowLayerMemory(cache, number) for number in range(len(cache.layers))]


class RowLayerMemory(LayerMemory):
    """Keys and values of one layer."""

    def __init__(self, cache: RowCache, number: int) -> None:
        self.cache, self.number = cache, number
        self.keys = self.values = torch.empty(0)  # only watchers read them, and this cache is never watched

    def attend(
        self, query: Tensor, rows: Rows, scale: float | None = None, want_weights: bool = False
    ) -> tuple[Tensor, None]:
        assert not want_weights, "a watched network decodes with a plain memory"
        return mixed(self.cache.source_pieces, self.number, query, None, None, scale), None
