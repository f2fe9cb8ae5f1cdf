"""Rows that go on: the text in parallel streams, for networks that carry a state from each row to the next.

N: tokens; B: streams.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from weft.data.rows import Drawn, ExampleSource, Framed, flat, identity_of, starts_of
from weft.data.shards import Places
from weft.errors import UserError

ENOUGH = 4096  # tokens of a held-out stream, so that its first ones, read with no state, count for little
MOST = 16  # held-out streams
ROW = 512  # tokens that each of them reads at a time


@dataclass(frozen=True)
class Streams(ExampleSource):
    """The framed documents one after the other, read at `streams` places at once, `length` tokens at a time.

    Example t B + b is row t of stream b: it begins where row t - 1 of that stream has ended. In training the text is a
    ring: each stream goes on for ever, after a B-th of an epoch over what another has read before it, so that no state
    is thrown away and no token left out. In evaluation each stream reads its own share of the text once.
    """

    ordered = True

    framed: Framed
    row: int  # tokens of a row, as asked for
    training: bool
    streams: int = 1

    @cached_property
    def length(self) -> int:
        if self.framed.size < 2:
            raise UserError(f"the text has only {self.framed.size} tokens, special ones included: too few for a row")
        return min(self.row, self.framed.size - 1)

    def of(self, streams: int) -> Streams:
        """The same text in so many streams."""
        return replace(self, streams=streams)

    def together(self, budget: int) -> int:
        """The rows of one moment; a row is never read together with its own next one."""
        return self.streams

    @cached_property
    def ends(self) -> Places:
        """B+1: where the shares of the streams begin and end."""
        last = self.framed.size if self.training else self.framed.size - 1  # the very last token is only foreseen
        return np.arange(self.streams + 1, dtype=np.int64) * last // self.streams

    @cached_property
    def count(self) -> int:
        if self.training:
            return max(1, self.framed.size // self.length)
        return self.streams * int(-(-np.diff(self.ends).max() // self.length))

    @property
    def mean(self) -> float:
        return self.length

    @property
    def even(self) -> bool:
        return self.training

    def _runs(self, epochs: Places, numbers: Places) -> tuple[Places, Places, Places]:
        """Which stream each example is of, where it begins, and how many tokens it reads."""
        times, streams = np.divmod(epochs * self.count + numbers, self.streams)
        begins = self.ends[streams] + times * self.length
        lengths = np.full(len(numbers), self.length)
        if not self.training:
            lengths = np.clip(self.ends[streams + 1] - begins, 0, self.length)
        return streams, begins, lengths

    def lengths(self, numbers: Places) -> Places:
        return self._runs(np.zeros_like(numbers), numbers)[2]

    def draw(self, epochs: Places, numbers: Places) -> Drawn:
        streams, begins, lengths = self._runs(epochs, numbers)
        lengths = lengths + (lengths > 0)  # the token after the last is the label of the last
        tokens, _, given = self.framed.read(flat(begins, lengths) % self.framed.size)
        return Drawn(tokens, starts_of(lengths), identity_of(epochs, numbers, lengths), given, places=streams)


def held_out(framed: Framed) -> Streams:
    """Text to evaluate on, in one stream or a few long ones; the length of its rows changes only the speed."""
    return Streams(framed, ROW, False, max(1, min(MOST, framed.size // ENOUGH)))
