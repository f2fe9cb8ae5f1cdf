"""Decoder states for continuous batching, whose rows enter and leave between two passes. N: tokens; V: vocabulary."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from weft.nn.heads import in_full
from weft.nn.row_cache import RowCache, room_for
from weft.nn.rows import Ragged, Source


class RowReading(NamedTuple):
    """The tokens that a row reads in a pass."""

    row: int
    tokens: Sequence[int]
    asks: int = 1  # logits are returned after so many of the last tokens


class OpenRows(ABC):
    """The rows of one decoder; each has a number of its own."""

    PARTS: ClassVar[bool] = False  # whether a prompt can be read in parts

    def __init__(self, network: Any, device: torch.device | str) -> None:
        self.network, self.device = network, torch.device(device)

    @abstractmethod
    def enter(self, rows: Sequence[int], sources: Sequence[Source] | None, places: Sequence[int]) -> None:
        """Add rows that will read prompts, with their sources and the lengths of the prompts."""

    @abstractmethod
    def read(self, reading: Sequence[RowReading]) -> Tensor:
        """Read tokens; returns the logits that the rows ask for, in their order: n V."""

    @abstractmethod
    def copy(self, row: int, twins: Sequence[int]) -> None:
        """Add rows with the state of a row."""

    @abstractmethod
    def leave(self, rows: Iterable[int]) -> None:
        """Remove rows."""

    def needs(self, tokens: int, source: int) -> int:
        """Places that a row with so many tokens and such a source needs."""
        return 1 + source

    @property
    def places(self) -> int:
        """Places that memory is held for now."""
        return 0


class CachedRows(OpenRows):
    """Rows of a network with a cache of keys and values, which reads on from wherever a row is."""

    PARTS = True

    def __init__(self, network: Any, device: torch.device | str) -> None:
        super().__init__(network, device)
        self.cache = RowCache(len(network.layers if network.decoder is None else network.decoder), self.device)

    def enter(self, rows: Sequence[int], sources: Sequence[Source] | None, places: Sequence[int]) -> None:
        if sources is not None:
            self.cache.add_sources(rows, self.network.read_sources(Ragged.of(sources, self.device)))
        for row, length in zip(rows, places, strict=True):
            self.cache.add(row, length + 1)

    def read(self, reading: Sequence[RowReading]) -> Tensor:
        self.cache.prepare([(part.row, len(part.tokens)) for part in reading])
        flat = torch.tensor([token for part in reading for token in part.tokens], device=self.device)
        hidden = self.network.further(flat, self.cache)
        if any(part.asks < len(part.tokens) for part in reading):
            asked, end = list[int](), 0
            for part in reading:
                end += len(part.tokens)
                asked += range(end - part.asks, end)
            hidden = hidden[torch.tensor(asked, dtype=torch.int64, device=self.device)]
        scores = in_full(self.network.words(hidden)) if len(hidden) else hidden.new_zeros(0, 0)
        self.cache.advance()
        return scores

    def copy(self, row: int, twins: Sequence[int]) -> None:
        for twin in twins:
            self.cache.copy(row, twin)

    def leave(self, rows: Iterable[int]) -> None:
        for row in rows:
            self.cache.remove(row)

    def needs(self, tokens: int, source: int) -> int:
        return room_for(tokens) + (room_for(source) if source else 0)

    @property
    def places(self) -> int:
        return self.cache.places


class JoinedRows(OpenRows):
    """Rows of a network whose state is a few tensors with a row for each text, which are joined."""

    def __init__(self, network: Any, device: torch.device | str) -> None:
        super().__init__(network, device)
        self.state: Any = None
        self.order: list[int] = []  # the rows of the state
        self.sources: dict[int, Source] = {}  # of rows that have read nothing yet

    def enter(self, rows: Sequence[int], sources: Sequence[Source] | None, places: Sequence[int]) -> None:
        if sources is not None:
            self.sources.update(zip(rows, sources, strict=True))

    def read(self, reading: Sequence[RowReading]) -> Tensor:
        assert all(part.asks == 1 for part in reading), "prompts are read whole"
        tokens, known = {part.row: part.tokens for part in reading}, set(self.order)
        new, started = [row for row in tokens if row not in known], None
        parts = []
        if new:  # first of all: where a prompt is refused, nothing has happened yet
            sources = [self.sources[row] for row in new] if self.sources else None
            source = None if sources is None else Ragged.of(sources, self.device)
            scores, started = self.network.start(Ragged.of([tokens[row] for row in new], self.device), source)
            parts.append(scores)
        if len(new) < len(tokens):
            assert len(tokens) - len(new) == len(self.order), "all rows go on together"
            latest = torch.tensor([tokens[row][0] for row in self.order], device=self.device)
            parts.insert(0, self.network.step(latest, self.state))
        order = [*(self.order if len(new) < len(tokens) else ()), *new]
        if started is not None:
            if self.order:
                self.state.join(started)
            else:
                self.state = started
            self.order = [*self.order, *new]
            for row in new:
                self.sources.pop(row, None)
        scores = parts[0] if len(parts) == 1 else torch.cat(parts)
        if order == list(tokens):
            return scores
        places = {row: place for place, row in enumerate(order)}
        return scores[torch.tensor([places[row] for row in tokens], device=self.device)]

    def copy(self, row: int, twins: Sequence[int]) -> None:
        place = self.order.index(row)
        self._pick([*range(len(self.order)), *[place] * len(twins)])
        self.order[len(self.order) - len(twins) :] = twins

    def leave(self, rows: Iterable[int]) -> None:
        gone = set(rows)
        for row in gone:
            self.sources.pop(row, None)
        if not gone.isdisjoint(self.order):
            self._pick([place for place, row in enumerate(self.order) if row not in gone])

    def _pick(self, places: list[int]) -> None:
        self.order = [self.order[place] for place in places]
        if self.order:
            self.state.pick(torch.tensor(places, device=self.device))
        else:
            self.state = None
