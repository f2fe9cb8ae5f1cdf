"""Documents into rows: packed full (across document borders or not), one by one, in streams, or as pairs of texts.

A source hands out examples by number, a `Feed` chooses them; nothing but the tokens is stored. N: tokens; B: rows
or streams; D: documents.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from weft.budget import by_budget
from weft.data.chance import below, key_of, scrambled, shuffled_run, uniform
from weft.data.shards import Corpus, Places
from weft.errors import UserError
from weft.nn.rows import Batch

Ids = tuple[int, ...]
T = TypeVar("T")


@dataclass(frozen=True)
class Drawn:
    """Examples laid out in one flat run, before an objective masks them or shifts them by one."""

    tokens: Places  # N
    starts: Places  # B+1
    # N: what chance is drawn from for a token: its epoch, example and place there; none where nothing is drawn
    identity: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, dtype=np.uint64))
    given: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=bool))  # N: by the frame, not the text
    segments: Places | None = None  # N
    follows: Places | None = None  # B: 0 where the second text of a pair follows the first, 1 where it does not
    places: Places | None = None  # the streams of rows that go on, or where the tokens stand in the text
    batch: Callable[[Drawn], Batch] | None = None  # of a task: adds the targets
    positions: Places | None = None  # N: where each token stands, where that is not its place in its row


class ExampleSource(ABC):
    """Where examples come from."""

    ordered: ClassVar[bool] = False  # rows go on where those of the step before ended, so they are not shuffled

    @property
    @abstractmethod
    def count(self) -> int: ...  # examples in an epoch

    @property
    @abstractmethod
    def mean(self) -> float: ...  # tokens of an example, on average

    @property
    def even(self) -> bool:  # whether all rows are equally long
        return False

    @property
    def parts(self) -> Mapping[str, ExampleSource]:
        """The sources that it mixes, by name; an evaluation tells the loss of each."""
        return {}

    def together(self, budget: int) -> int:
        """How many examples an evaluation looks at at a time, to cut them into batches of so many tokens."""
        return max(1, int(budget / self.mean))

    @abstractmethod
    def lengths(self, numbers: Places) -> Places: ...  # tokens of these examples, at most

    @abstractmethod
    def draw(self, epochs: Places, numbers: Places) -> Drawn: ...  # these examples, each of its epoch, in this order


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

    def draw(self, epochs: Places, numbers: Places, places: Places, lengths: Places) -> tuple[Drawn, Places]:
        """Rows of these places and lengths, special tokens put around each; and the number of each place's document."""
        tokens, documents, given = self.read(places)
        if self.frame.row:
            whole = lengths + self.frame.row
            framed = np.ones(int(whole.sum()), dtype=bool)
            framed[flat(whole.cumsum() - whole + len(self.frame.row_before), lengths)] = False
            inside, tokens, given = (tokens, given), np.empty(len(framed), dtype=np.int64), framed.copy()
            tokens[framed] = np.tile([*self.frame.row_before, *self.frame.row_after], len(lengths))
            tokens[~framed], given[~framed] = inside
            lengths = whole
        return Drawn(tokens, np.r_[0, lengths.cumsum()], identity_of(epochs, numbers, lengths), given), documents


def flat(begins: Places, lengths: Places) -> Places:
    """Runs of places, one after the other: begin, begin + 1 ... for each length."""
    ends: Places = lengths.cumsum()
    return np.repeat(begins - (ends - lengths), lengths) + np.arange(int(lengths.sum()), dtype=np.int64)


def example_of(epochs: Places, numbers: Places) -> NDArray[np.uint64]:
    """B: a number of its own for each example of each epoch."""
    return scrambled(1, numbers + (epochs << 40))


def identity_of(epochs: Places, numbers: Places, lengths: Places) -> NDArray[np.uint64]:
    """N: a number of its own for each place of each example."""
    return np.repeat(example_of(epochs, numbers), lengths) + flat(np.zeros_like(lengths), lengths).astype(np.uint64)


@dataclass(frozen=True)
class PackedRows(ExampleSource):
    """Full rows: the framed documents one after the other, cut into rows of equal length.

    In training the text is a ring and each epoch begins to cut at another place, so that no token is always the last of
    its row; in evaluation the cuts are fixed and the last row is the remainder.
    """

    framed: Framed
    length: int  # tokens of a row, its own special tokens included
    extra: int  # 1 where the token after the last is read too, as the label of the last
    apart: bool  # cut a row further at each document border, so that attention never crosses one
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
        places, lengths = self.places(epochs, numbers)
        drawn, documents = self.framed.draw(epochs, numbers, places, lengths)
        if not self.apart:
            return drawn
        assert not self.framed.frame.row, "rows that are cut at documents have no frame of their own"
        borders = np.flatnonzero(documents[1:] != documents[:-1]) + 1  # where the ring closes, the number falls
        return replace(drawn, starts=np.union1d(drawn.starts, borders))


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
        return self.framed.draw(epochs, numbers, flat(begins, lengths), lengths)[0]


ENOUGH = 4096  # tokens of a held-out stream, so that its first ones, read with no state, count for little
MOST = 16  # held-out streams
ROW = 512  # tokens that each of them reads at a time


@dataclass(frozen=True)
class Streams(ExampleSource):
    """The framed documents one after the other, read at `streams` places at once, `length` tokens at a time.

    Example t B + b is row t of stream b: it begins where row t - 1 of that stream has ended. In training the text is a
    ring, on which each stream goes on for ever. In evaluation each stream reads its own share of the text once.
    """

    ordered = True

    framed: Framed
    row: int  # tokens of a row, as asked for, its own special tokens included
    training: bool
    streams: int = 1
    extra: int = 1  # where the token after the last is read too, as the label of the last; else 0

    @cached_property
    def length(self) -> int:
        """Tokens of the text in a row."""
        if self.framed.size < 1 + self.extra:
            raise UserError(f"the text has only {self.framed.size} tokens, special ones included: too few for a row")
        return min(self.row - self.framed.frame.row, self.framed.size - self.extra)

    def together(self, budget: int) -> int:
        """The rows of one moment; a row is never read together with its own next one."""
        return self.streams

    @cached_property
    def ends(self) -> Places:
        """B+1: where the shares of the streams begin and end."""
        last = self.framed.size - (0 if self.training else self.extra)  # the very last token is only predicted
        return np.arange(self.streams + 1, dtype=np.int64) * last // self.streams

    @cached_property
    def count(self) -> int:
        if self.training:
            return max(1, self.framed.size // self.length)
        return self.streams * int(-(-np.diff(self.ends).max() // self.length))

    @property
    def mean(self) -> float:
        return self.length + self.framed.frame.row

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
        lengths = self._runs(np.zeros_like(numbers), numbers)[2]
        return lengths + self.framed.frame.row * (lengths > 0)

    def draw(self, epochs: Places, numbers: Places) -> Drawn:
        streams, begins, lengths = self._runs(epochs, numbers)
        there = lengths > 0  # some streams may be at their end before others
        epochs, numbers, streams, begins, lengths = (x[there] for x in (epochs, numbers, streams, begins, lengths))
        lengths = lengths + self.extra
        drawn, _ = self.framed.draw(epochs, numbers, flat(begins, lengths) % self.framed.size, lengths)
        return replace(drawn, places=streams)


def held_out(framed: Framed, row: int = ROW, extra: int = 1) -> Streams:
    """Text to evaluate on, in one stream or a few long ones; for next tokens, the length of rows changes only speed."""
    return Streams(framed, row, False, max(1, min(MOST, framed.size // ENOUGH)), extra)


WINDOWS = 128  # of a run of documents that pairs are cut from


@dataclass(frozen=True)
class SentencePairs(ExampleSource):
    """Two neighboring runs of sentences from one document, for objectives that ask whether the second follows.

    In half of the examples it does not: for next-sentence prediction (Devlin et al., 2019) it comes from another
    document, for sentence order (Lan et al., 2020) the two change places.
    """

    corpus: Corpus
    frame: tuple[Sequence[int], Sequence[int], Sequence[int]]  # the special tokens before, between and after two texts
    length: int
    kind: str  # "next" or "order"
    seed: int
    across: bool = True  # a window fills its row across documents; its two texts part inside one where they can

    @property
    def framing(self) -> int:
        return sum(map(len, self.frame))

    @cached_property
    def _windows(self) -> tuple[Places, Places]:
        """Where each example's tokens begin and end: as many whole sentences as fit."""
        room = self.length - self.framing
        if room < 2:
            raise UserError(f"rows of {self.length} tokens have no room for a pair of texts")
        documents = np.asarray(self.corpus.documents)
        if self.across:  # long runs of documents, many of which are cut into windows at once
            every = np.arange(documents[0], documents[-1], WINDOWS * room)
            documents = np.r_[documents[np.unique(np.searchsorted(documents, every))], documents[-1]]
        sentences = self.corpus.sentences
        assert sentences is not None
        lengths = np.diff(documents)
        begin, end = documents[:-1][lengths >= 2], documents[1:][lengths >= 2]
        windows = []
        while len(begin):  # the next window of every document that is not at its end
            cut = sentences[np.searchsorted(sentences, begin + room, "right") - 1]
            cut = np.where(cut > begin + 1, cut, begin + room)  # a sentence that is too long is cut
            cut = np.where(end - begin <= room, end, cut)
            windows.append((begin, cut))
            begin, end = cut[cut < end], end[cut < end]
        if not windows:
            return documents[:0], documents[:0]
        begins, ends = (np.concatenate(parts) for parts in zip(*windows, strict=True))
        order = np.argsort(begins, kind="stable")
        enough = (ends - begins)[order] >= 2
        return begins[order][enough], ends[order][enough]

    @cached_property
    def count(self) -> int:
        if not len(self._windows[0]):
            raise UserError("the text has no document of two tokens or more, so there are no pairs")
        return len(self._windows[0])

    @property
    def mean(self) -> float:
        begins, ends = self._windows
        return float((ends - begins).mean()) + self.framing

    def lengths(self, numbers: Places) -> Places:
        begins, ends = self._windows
        return ends[numbers] - begins[numbers] + self.framing

    def draw(self, epochs: Places, numbers: Places) -> Drawn:
        begins, ends = self._windows
        chance = scrambled(key_of(self.seed, "pairs"), example_of(epochs, numbers))
        cuts = uniform(key_of(self.seed, "middle"), chance)
        others, elsewhere = (uniform(key_of(self.seed, word), chance) for word in ("other", "elsewhere"))
        follows = (chance & np.uint64(1)).astype(np.int64)
        before, between, after = (np.array(ids, dtype=np.int64) for ids in self.frame)
        pieces = list[Places]()
        for place, number in enumerate(numbers):
            begin, end = int(begins[number]), int(ends[number])
            middle = self._middle(begin, end, float(cuts[place]))
            first, second = np.arange(begin, middle), np.arange(middle, end)
            if follows[place] and self.kind == "order":
                first, second = second, first
            elif follows[place]:
                other = self._other(float(others[place]), float(elsewhere[place]), begin, end, len(second))
                follows[place] = other is not None  # the only document: there is nothing else to take
                second = second if other is None else other
            taken = self.corpus.take(np.r_[first, second])
            pieces += [before, taken[: len(first)], between, taken[len(first) :], after]
        sizes = np.array([len(piece) for piece in pieces])
        lengths = sizes.reshape(-1, 5).sum(1)
        return Drawn(
            np.concatenate(pieces),
            np.r_[0, lengths.cumsum()],
            identity_of(epochs, numbers, lengths),
            np.repeat(np.tile([True, False, True, False, True], len(numbers)), sizes),
            np.repeat(np.tile([0, 0, 0, 1, 1], len(numbers)), sizes),
            follows,
        )

    def _middle(self, begin: int, end: int, chance: float) -> int:
        """Where the first text ends: at a sentence border drawn by chance, or in the middle where there is none."""
        sentences = self.corpus.sentences
        assert sentences is not None
        borders = sentences[np.searchsorted(sentences, begin, "right") : np.searchsorted(sentences, end)]
        documents = self.corpus.documents
        inside = borders[documents[np.searchsorted(documents, borders)] != borders]
        borders = inside if len(inside) else borders
        return int(borders[int(chance * len(borders))]) if len(borders) else (begin + end) // 2

    def _other(self, which: float, where: float, begin: int, end: int, wanted: int) -> Places | None:
        """As many tokens of another document, from a sentence border on, so that its length tells nothing."""
        begins, ends = self._windows
        documents = self.corpus.documents
        # Where the documents begin and end that this example is of.
        mine = documents[np.searchsorted(documents, begin, "right") - 1], documents[np.searchsorted(documents, end)]
        first, last = np.searchsorted(ends, mine[0], "right"), np.searchsorted(begins, mine[1])
        others = self.count - int(last - first)
        if not others:
            return None
        number = int(which * others)
        number += int(last - first) if number >= first else 0
        start = self._middle(int(begins[number]), int(ends[number]), where)
        end = int(documents[-1 if self.across else np.searchsorted(documents, start, "right")])
        end = min(end, int(mine[0])) if start < mine[0] else end
        return np.arange(start, min(end, start + wanted))


# ----------------------- which examples make up a step: a pure function of seed and step, for any number of ranks


@dataclass(frozen=True)
class Feed:
    """Batches by step. The seed fixes the examples of a step, not how they are split into passes."""

    source: ExampleSource
    prepare: Callable[[Drawn], Batch]  # masks or shifts
    seed: int
    rows: int  # examples in a step
    first: Feed | None = None  # what the first steps read in its place
    border: int = 0  # so many of them
    epoch: int = 0  # the number of its first epoch

    def at(self, step: int) -> tuple[Feed, int]:
        """What feeds a step, and which of its own steps that is."""
        if self.first is not None and step < self.border:
            return self.first, step
        if self.first is None and not self.border:
            return self, step
        return replace(self, first=None, border=0), step - self.border

    def examples(self, step: int) -> tuple[Places, Places]:
        """The epochs and numbers of a step's examples: epochs follow each other without a gap."""
        feed, step = self.at(step)
        count = feed.source.count
        epochs, numbers = np.divmod(np.arange(step * feed.rows, (step + 1) * feed.rows), count)
        epochs += feed.epoch
        for epoch in () if feed.source.ordered or not len(epochs) else range(int(epochs[0]), int(epochs[-1]) + 1):
            here = epochs == epoch
            numbers[here] = shuffled_run(key_of(feed.seed, "order", epoch), numbers[here], count)
        return epochs, numbers

    def passes(self, step: int, budget: int, rank: int = 0, ranks: int = 1) -> list[Batch]:
        """The step's examples in batches of at most `budget` tokens (or one example), those that fall to this rank."""
        source = self.at(step)[0].source
        epochs, numbers = self.examples(step)
        cuts = list(cut_to_budget(source, numbers, budget))[rank::ranks]
        return [self.prepare(source.draw(epochs[cut], numbers[cut])) for cut in cuts]

    def drawn(self, step: int) -> Drawn:
        """The examples of a step, for a report on what went wrong."""
        return self.at(step)[0].source.draw(*self.examples(step))


def in_two_phases(feed: Feed, short: ExampleSource, border: int) -> Feed:
    """Short rows in the steps before the border (Devlin et al., 2019), more of them for as many tokens."""
    # The long rows begin with an epoch of their own, so that no number is drawn twice.
    first = replace(feed, source=short, rows=max(1, round(feed.rows * feed.source.mean / short.mean)))
    return replace(feed, first=first, border=border, epoch=-(-border * first.rows // short.count))


def cut_to_budget(source: ExampleSource, numbers: Places, budget: int) -> Iterator[slice]:
    """The numbers in order, as many together as have no more tokens than the budget; at least one."""
    lengths = source.lengths(numbers).tolist()
    if not source.even:
        if lengths and sum(lengths) <= budget:
            yield slice(0, len(numbers))
            return
        groups = by_budget(range(len(numbers)), lengths.__getitem__, budget)
        yield from (slice(group[0], group[-1] + 1) for group in groups)
        return
    # Batches of one shape where that can be had, since each shape is compiled for itself.
    most = max(1, min(len(numbers), budget // lengths[0]))
    together = max(size for size in range(1, most + 1) if len(numbers) % size == 0)
    together = together if 2 * together > most else most
    yield from (slice(begin, begin + together) for begin in range(0, len(numbers), together))


def every_example(source: ExampleSource, prepare: Callable[[Drawn], Batch], budget: int) -> Iterator[Batch]:
    """All examples of a source once, in order, in batches that stay within the budget: an evaluation."""
    together = source.together(budget)
    for begin in range(0, source.count, together):
        numbers = np.arange(begin, min(begin + together, source.count))
        for cut in cut_to_budget(source, numbers, budget):
            drawn = source.draw(np.zeros_like(numbers[cut]), numbers[cut])
            if len(drawn.tokens):  # some streams may be at their end before others
                yield prepare(drawn)


class Ahead(Generic[T]):
    """Makes the next few things in a thread of its own while the present one is used."""

    def __init__(self, make: Callable[[int], T], first: int, end: int, depth: int = 3) -> None:
        self._make, self._numbers, self._thread = make, iter(range(first, end)), ThreadPoolExecutor(1)
        self._coming = deque(self._thread.submit(make, number) for number in islice(self._numbers, depth))

    def __iter__(self) -> Iterator[T]:
        while self._coming:
            thing = self._coming.popleft().result()
            self._coming.extend(self._thread.submit(self._make, number) for number in islice(self._numbers, 1))
            yield thing

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)
