"""Documents into rows: packed full (across document borders or not), or one by one.

A source hands out examples by number; which numbers come when is the order's business (`batching.py`). All positions
are arithmetic on where documents begin, so that nothing but the tokens is stored.

N: tokens; B: rows; D: documents.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from weft.data.chance import below, key_of, scrambled
from weft.data.shards import Corpus, Places
from weft.errors import UserError
from weft.nn.rows import Batch

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Drawn:
    """Examples laid out in one flat run, before an objective masks them or shifts them by one."""

    tokens: Places  # N
    starts: Places  # B+1
    identity: NDArray[np.uint64]  # N: what chance is drawn from for a token: its epoch, example and place there
    given: NDArray[np.bool_]  # N: put there by the frame, not by the text
    segments: Places | None = None  # N
    follows: Places | None = None  # B: 0 where the second text of a pair follows the first, 1 where it does not
    places: Places | None = None  # the streams of rows that go on, or where the tokens stand in the text
    batch: Callable[[Drawn], Batch] | None = None  # of a task: adds the targets


class ExampleSource(ABC):
    """Where examples come from."""

    ordered: ClassVar[bool] = False  # rows go on where those of the step before ended, so they are not shuffled

    @property
    @abstractmethod
    def count(self) -> int:
        """Examples in an epoch."""

    @property
    @abstractmethod
    def mean(self) -> float:
        """Tokens of an example, on average."""

    @property
    def even(self) -> bool:
        """Whether all rows are equally long."""
        return False

    def together(self, budget: int) -> int:
        """How many examples an evaluation looks at at a time, to cut them into batches of so many tokens."""
        return max(1, int(budget / self.mean))

    @abstractmethod
    def lengths(self, numbers: Places) -> Places:
        """Tokens of these examples, at most."""

    @abstractmethod
    def draw(self, epochs: Places, numbers: Places) -> Drawn:
        """These examples, each of its epoch, in this order."""


@dataclass(frozen=True)
class Frame:
    """Which special tokens stand around what."""

    before: Ids = ()  # a document
    after: Ids = ()
    row_before: Ids = ()  # a row
    row_after: Ids = ()
    lead: Ids = ()  # before the first document, which has no end of another before it

    @property
    def document(self) -> int:
        return len(self.before) + len(self.after)

    @property
    def row(self) -> int:
        return len(self.row_before) + len(self.row_after)


@dataclass(frozen=True)
class Framed:
    """A corpus as if each document had its special tokens around it; places are counted with them."""

    corpus: Corpus
    frame: Frame

    @cached_property
    def starts(self) -> Places:
        """D+1"""
        documents = np.asarray(self.corpus.documents)
        return documents - documents[0] + np.arange(len(documents)) * self.frame.document + len(self.frame.lead)

    @property
    def size(self) -> int:
        return int(self.starts[-1])

    def read(self, places: Places) -> tuple[Places, Places, NDArray[np.bool_]]:
        """At each place: the token, the number of its document, and whether the frame put it there."""
        documents = self.corpus.documents
        numbers = np.maximum(np.searchsorted(self.starts, places, side="right") - 1, 0)  # the lead is of the first
        inside = places - self.starts[numbers] - len(self.frame.before)
        lengths = documents[numbers + 1] - documents[numbers]
        given = (inside < 0) | (inside >= lengths)
        tokens = np.empty(places.shape, dtype=np.int64)
        tokens[~given] = self.corpus.take(documents[numbers[~given]] + inside[~given])
        # What stands before is counted from the end, as -1 is.
        around = np.array([*self.frame.after, *self.frame.lead, *self.frame.before, 0], dtype=np.int64)
        offset = np.where(inside < 0, inside - 1, inside - lengths)
        tokens[given] = around[offset[given]]
        return tokens, numbers, given


def flat(begins: Places, lengths: Places) -> Places:
    """Runs of places, one after the other: begin, begin + 1 ... for each length."""
    ends: Places = lengths.cumsum()
    return np.repeat(begins - (ends - lengths), lengths) + np.arange(int(lengths.sum()), dtype=np.int64)


def _around(
    tokens: Places, given: NDArray[np.bool_], lengths: Places, frame: Frame
) -> tuple[Places, NDArray[np.bool_]]:
    """Rows with their special tokens put around each."""
    if not frame.row:
        return tokens, given
    whole = lengths + frame.row
    starts = whole.cumsum() - whole
    inside = flat(starts + len(frame.row_before), lengths)
    framed = np.empty(int(whole.sum()), dtype=np.int64)
    marks = np.ones(len(framed), dtype=bool)
    framed[inside], marks[inside] = tokens, given
    for place, token in enumerate(frame.row_before):
        framed[starts + place] = token
    for place, token in enumerate(frame.row_after):
        framed[starts + whole - len(frame.row_after) + place] = token
    return framed, marks


def example_of(epochs: Places, numbers: Places) -> NDArray[np.uint64]:
    """B: a number of its own for each example of each epoch."""
    return scrambled(1, numbers + (epochs << 40))


def identity_of(epochs: Places, numbers: Places, lengths: Places) -> NDArray[np.uint64]:
    """N: a number of its own for each place of each example."""
    return np.repeat(example_of(epochs, numbers), lengths) + flat(np.zeros_like(lengths), lengths).astype(np.uint64)


def starts_of(lengths: Places) -> Places:
    return np.r_[0, lengths.cumsum()]


@dataclass(frozen=True)
class PackedRows(ExampleSource):
    """Full rows: the framed documents one after the other, cut into rows of equal length.

    `apart` cuts a row further at each document border, so that attention never crosses one. In training the text is a
    ring and each epoch begins to cut at another place, so that no token is always the last of its row; in evaluation
    the cuts are fixed and the last row is the remainder.
    """

    framed: Framed
    length: int  # tokens of a row, its own special tokens included
    extra: int  # 1 where the token after the last is read too, as the label of the last
    apart: bool
    seed: int | None  # None: for evaluation

    @cached_property
    def stride(self) -> int:
        stride = min(self.length - self.framed.frame.row, self.framed.size - self.extra)
        if stride < 1:
            raise UserError(f"the text has only {self.framed.size} tokens, special ones included: too few for a row")
        return stride

    @cached_property
    def count(self) -> int:
        if self.seed is not None:
            return self.framed.size // self.stride
        return -((self.extra - self.framed.size) // self.stride)

    @property
    def mean(self) -> float:
        return self.stride + self.framed.frame.row

    @property
    def even(self) -> bool:
        return not self.apart

    def lengths(self, numbers: Places) -> Places:
        return np.full(len(numbers), self.stride + self.framed.frame.row)

    def places(self, epochs: Places, numbers: Places) -> tuple[Places, Places]:
        """The places of these rows in the framed text, one after the other, and how many each row has."""
        begins = numbers * self.stride
        lengths = np.full(len(numbers), self.stride + self.extra)
        if self.seed is None:
            lengths = np.minimum(lengths, self.framed.size - begins)
        else:
            begins = begins + below(key_of(self.seed, "cut"), epochs, self.stride)
        return flat(begins, lengths) % self.framed.size, lengths

    def draw(self, epochs: Places, numbers: Places) -> Drawn:
        frame = self.framed.frame
        places, lengths = self.places(epochs, numbers)
        tokens, documents, given = self.framed.read(places)
        tokens, given = _around(tokens, given, lengths, frame)
        lengths = lengths + frame.row
        starts = starts_of(lengths)
        identity = identity_of(epochs, numbers, lengths)
        if self.apart:
            assert not frame.row, "rows that are cut at documents have no frame of their own"
            # Where the ring closes, the number of the document falls.
            borders = np.flatnonzero(documents[1:] != documents[:-1]) + 1
            starts = np.union1d(starts, borders)
        return Drawn(tokens, starts, identity, given)


@dataclass(frozen=True)
class DocumentRows(ExampleSource):
    """Each document as a row of its own length; one that is too long is cut into several."""

    framed: Framed
    length: int
    extra: int

    @cached_property
    def _counts(self) -> Places:
        """D+1: how many examples come before each document."""
        lengths = np.diff(self.framed.starts) - self.extra
        return np.r_[0, np.cumsum(-(-np.maximum(lengths, 0) // self.stride))]

    @property
    def stride(self) -> int:
        return self.length - self.framed.frame.row

    @cached_property
    def count(self) -> int:
        if not self._counts[-1]:
            raise UserError("the text has no document of two tokens or more")
        return int(self._counts[-1])

    @property
    def mean(self) -> float:
        return self.framed.size / self.count + self.framed.frame.row

    def _runs(self, numbers: Places) -> tuple[Places, Places]:
        """Where each example begins, and how long it is without the frame of its row."""
        documents = np.searchsorted(self._counts, numbers, side="right") - 1
        begins = self.framed.starts[documents] + (numbers - self._counts[documents]) * self.stride
        return begins, np.minimum(self.stride + self.extra, self.framed.starts[documents + 1] - begins)

    def lengths(self, numbers: Places) -> Places:
        return self._runs(numbers)[1] + self.framed.frame.row - self.extra

    def draw(self, epochs: Places, numbers: Places) -> Drawn:
        begins, lengths = self._runs(numbers)
        tokens, _, given = self.framed.read(flat(begins, lengths))
        tokens, given = _around(tokens, given, lengths, self.framed.frame)
        lengths = lengths + self.framed.frame.row
        return Drawn(tokens, starts_of(lengths), identity_of(epochs, numbers, lengths), given)
