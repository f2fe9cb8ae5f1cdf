"""Examples of a task, tokenized once: rows of tokens, several where a text is long, or pairs of texts; their targets.

N: tokens (of pairs: written); R: rows; E: examples; P: places in rows that have a target.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from weft.data.chance import below, key_of, uniform
from weft.data.masking import NOTHING, Targets, make_batch, rows_of
from weft.data.rows import Drawn, ExampleSource, flat
from weft.data.shards import Places
from weft.nn.rows import Batch, Ragged
from weft.text.windows import TextWindow, segments_of

Pair = tuple[int, int]
STEP, ROWS = 64, 8  # batches whose passes are captured are filled up to multiples of so many tokens and rows


@dataclass(frozen=True)
class Examples(ExampleSource):
    """A source of batches for a task; examples are handed out by number, as the order asks for them."""

    tokens: NDArray[np.int32]
    starts: Places  # R+1
    borders: Places  # R: where the second segment begins in its row; its length where there is none
    rows: Places  # E+1: the rows of each example
    shares: NDArray[np.float32]  # R: how much a row counts in its example
    whole: Targets  # targets of examples: E ...
    spots: Places | None = None  # R+1: where the places of each row begin
    places: Places | None = None  # P: in their rows
    by_place: Targets = field(default_factory=dict)  # P ...: targets there
    by_token: Targets = field(default_factory=dict)  # N ...: targets of every token
    by_row: Targets = field(default_factory=dict)  # R ...: targets of every window
    segments: int = 0  # ids of segments, as a `Framing` has them
    next_words: bool = False  # each token predicts the next one, too
    fixed: bool = False  # batches come in few shapes, for passes that are captured
    most_rows: int | None = None  # of one example in one step; in training a book is read in part in each epoch
    undivided: bool = False  # all rows of an example are read in every step, however many
    seed: int = 0
    notes: tuple[str, ...] = ()  # on what was left out, for the log
    about: str = ""  # what the rows are, where it is not the texts of a table

    @property
    def count(self) -> int:
        return len(self.rows) - 1

    @property
    def rows_count(self) -> int:
        return len(self.starts) - 1

    @property
    def mean(self) -> float:
        return len(self.tokens) / max(1, self.count)

    @cached_property
    def longest(self) -> int:
        return int(np.diff(self.starts).max(initial=1))

    def lengths(self, numbers: Places) -> Places:
        first, last = self.rows[numbers], self.rows[numbers + 1]
        whole = self.starts[last] - self.starts[first]
        most = self.most_rows
        return whole if most is None else np.where(last - first > most, most * self.longest, whole)

    def for_training(self, most_rows: int, seed: int, fixed: bool) -> Examples:
        """The same examples as a run takes them: of a book, some windows in each step."""
        return replace(self, most_rows=None if self.undivided else most_rows, seed=seed, fixed=fixed)

    def _rows(self, epochs: Places, numbers: Places) -> tuple[Places, Places]:
        """The rows of these examples, and to which of the examples each belongs."""
        begins, counts = self.rows[numbers], self.rows[numbers + 1] - self.rows[numbers]
        if self.most_rows is not None and (counts > self.most_rows).any():
            # A run of neighboring windows, another one in each epoch.
            extra = np.maximum(counts - self.most_rows, 0)
            begins = begins + below(key_of(self.seed, "windows"), numbers + (epochs << 40), extra + 1)
            counts = np.minimum(counts, self.most_rows)
        return flat(begins, counts), np.repeat(np.arange(len(numbers)), counts)

    def draw(self, epochs: Places, numbers: Places) -> Drawn:
        rows, owners = self._rows(epochs, numbers)
        lengths = self.starts[rows + 1] - self.starts[rows]
        tokens = self.tokens[flat(self.starts[rows], lengths)].astype(np.int64)
        starts = starts_of(lengths)
        segments = segments_of(self.borders[rows], lengths, self.segments) if self.segments else None
        return Drawn(tokens, starts, segments=segments, batch=partial(self._batch, numbers, rows, owners))

    def _batch(self, numbers: Places, rows: Places, owners: Places, drawn: Drawn) -> Batch:
        """These examples with their targets; `rows`: of the whole; `owners`: the example of each row, in this batch."""
        tokens, starts, shares = drawn.tokens, drawn.starts, self.shares[rows]
        if self.most_rows is not None:  # shares of an example add up to 1, also where not all of its rows are read
            shares = (shares / np.bincount(owners, shares)[owners]).astype(np.float32)
        targets: dict[str, NDArray[Any]] = {"owners": owners, "shares": shares}
        targets |= {name: values[numbers] for name, values in self.whole.items()}
        if self.spots is not None and self.places is not None:
            counts = self.spots[rows + 1] - self.spots[rows]
            spots = flat(self.spots[rows], counts)
            targets["places"] = self.places[spots] + np.repeat(starts[:-1], counts)
            targets |= {name: values[spots] for name, values in self.by_place.items()}
        if self.by_token:
            there = flat(self.starts[rows], self.starts[rows + 1] - self.starts[rows])
            targets |= {name: values[there] for name, values in self.by_token.items()}
        targets |= {name: values[rows] for name, values in self.by_row.items()}
        if self.next_words:
            following = np.append(tokens[1:], 0)
            following[starts[1:] - 1] = NOTHING
            targets["words"] = following
        if self.fixed:
            drawn, targets = _filled_up(drawn, targets, self)
        longest = self.longest if self.fixed else None
        return make_batch(drawn.tokens, np.diff(drawn.starts), targets, drawn.segments, longest)


def starts_of(lengths: Places) -> Places:
    """R+1: where rows of these lengths begin, and where the last one ends."""
    starts = np.zeros(len(lengths) + 1, dtype=np.int64)
    lengths.cumsum(out=starts[1:])
    return starts


def batch_of(drawn: Drawn) -> Batch:
    """Drawn examples, or pairs, with their targets."""
    assert drawn.batch is not None
    return drawn.batch(drawn)


def _rounded(number: int, least: int) -> int:
    """The next multiple of a step that grows with the number: a sixteenth of it at most."""
    return _up(number, max(least, 1 << max(0, number.bit_length() - 5)))


def _up(number: int, step: int) -> int:
    return -(-number // step) * step


def _filled_up(drawn: Drawn, targets: Targets, table: Examples) -> tuple[Drawn, dict[str, NDArray[Any]]]:
    """A batch with some rows more, empty or of padding, none of which has a target: few shapes for all batches."""
    longest, count, tokens = table.longest, len(drawn.starts) - 1, len(drawn.tokens)
    size = _rounded(tokens + 1, STEP)
    extra, more = size - tokens, _rounded(count + 1 + _rounded(size // 16, STEP) // longest, ROWS) - count
    # The last one holds at least one token: the first token of an empty row is that of the next row.
    padding = np.minimum(longest, np.maximum(0, extra - longest * np.arange(more)))[::-1]
    assert padding.sum() == extra
    zeros = np.zeros(extra, dtype=np.int64)
    longer = replace(
        drawn,
        tokens=np.concatenate([drawn.tokens, zeros]),
        starts=np.concatenate([drawn.starts, tokens + padding.cumsum()]),
        segments=None if drawn.segments is None else np.concatenate([drawn.segments, zeros]),
    )
    fills = {"owners": len(next(iter(targets[name] for name in table.whole), ())), "ends": NOTHING}
    fills |= {"tags": NOTHING, "words": NOTHING}
    filled: dict[str, NDArray[Any]] = {}
    for name, values in targets.items():
        room, fill = 1, 0 if values.dtype.kind == "f" else NOTHING  # of an example
        if name in ("owners", "shares", *table.by_row):
            room, fill = more, fills.get(name, 0)
        elif name in ("places", *table.by_place):
            room, fill = _rounded(len(values), STEP) - len(values), fills.get(name, 0)
        elif name in ("words", *table.by_token):
            room, fill = extra, fills.get(name, 0)
        filled[name] = np.concatenate([values, np.full((room, *values.shape[1:]), fill, dtype=values.dtype)])
    return longer, filled


class ExamplesBuilder:
    """Examples one after the other, put together at the end."""

    def __init__(self) -> None:
        self.tokens, self.starts, self.borders = array("i"), array("q", [0]), array("q")
        self.rows, self.shares = array("q", [0]), array("f")
        self.ends, self.spots, self.places, self.tags = array("q"), array("q", [0]), array("q"), array("q")
        self.tagged = False  # whether places have targets, even if no example has such a place

    def add(self, pieces: Sequence[TextWindow], ends: Sequence[Pair] = (), tags: Sequence[Iterable[Pair]] = ()) -> None:
        """One example: its windows, and by window the ends of an answer, or places and the tags there."""
        own = [max(1, piece.cut.last - piece.cut.first) for piece in pieces]
        self.tagged |= len(tags) > 0
        for number, piece in enumerate(pieces):
            self.tokens.extend(piece.tokens)
            self.starts.append(len(self.tokens))
            self.borders.append(piece.border)
            self.shares.append(own[number] / sum(own))
            if ends:
                self.ends.extend(ends[number])
            for place, tag in tags[number] if tags else ():
                self.places.append(place)
                self.tags.append(tag)
            self.spots.append(len(self.places))
        self.rows.append(len(self.starts) - 1)

    def examples(
        self, whole: Targets, by_place: Targets | None = None, by_row: Targets | None = None, **settings: Any
    ) -> Examples:
        """All of them; `by_place` and `by_row`: further targets."""
        tags = {"tags": np.array(self.tags)} if self.tagged else {}
        ends = {"ends": np.array(self.ends).reshape(-1, 2)} if self.ends else {}
        return Examples(
            tokens=np.array(self.tokens),
            starts=np.array(self.starts),
            borders=np.array(self.borders),
            rows=np.array(self.rows),
            shares=np.array(self.shares),
            whole=whole,
            spots=np.array(self.spots) if self.tagged else None,
            places=np.array(self.places) if self.tagged else None,
            by_place={**tags, **(by_place or {})},
            by_row={**ends, **(by_row or {})},
            **settings,
        )


LEAST = 8  # the shortest `longest` of batches whose passes are captured


@dataclass(frozen=True)
class TextSide:
    """One side of all pairs: their tokens in one flat run, an end token after each text."""

    tokens: NDArray[np.int32]
    starts: Places  # E+1

    @staticmethod
    def of(texts: Sequence[Sequence[int]]) -> TextSide:
        tokens = np.fromiter((token for text in texts for token in text), dtype=np.int32)
        return TextSide(tokens, np.cumsum([0, *map(len, texts)], dtype=np.int64))

    @cached_property
    def longest(self) -> int:
        return int(np.diff(self.starts).max(initial=1))

    def lengths(self, numbers: Places) -> Places:
        return self.starts[numbers + 1] - self.starts[numbers]

    def take(self, numbers: Places) -> tuple[Places, Places]:
        """The tokens of these texts, one after the other, and where each begins."""
        lengths = self.lengths(numbers)
        return self.tokens[flat(self.starts[numbers], lengths)].astype(np.int64), starts_of(lengths)


@dataclass(frozen=True)
class VectorSide:
    """One side of all rows where vectors are read: each stands for a text of one token."""

    tokens: NDArray[np.float32]  # E features

    longest = 1

    def lengths(self, numbers: Places) -> Places:
        return np.ones_like(numbers)

    def take(self, numbers: Places) -> tuple[NDArray[np.float32], Places]:
        return self.tokens[numbers], np.arange(len(numbers) + 1)


@dataclass(frozen=True)
class TargetSampler:
    """Several texts that may be written from each source, one in each epoch, as often as its share of them says."""

    # The epochs of a source go through 0..1 as van der Corput's points do, from a place of its own: so that after 2, 4,
    # 8 ... epochs no text has come once more or less than its share.

    starts: Places  # E+1: which of the written texts are of each source
    sums: NDArray[np.float64]  # of the shares of a source's texts up to each; the last is 1
    seed: int = 0

    @staticmethod
    def of(shares: Sequence[Sequence[float]], seed: int = 0) -> TargetSampler:
        """From the shares of the texts of each source, which need not add up to 1."""
        sums = [np.cumsum(np.array(some, dtype=np.float64)) / sum(some) for some in shares]
        return TargetSampler(np.r_[0, np.cumsum([len(some) for some in shares])], np.concatenate(sums), seed)

    @cached_property
    def cumulative(self) -> NDArray[np.float64]:
        return self.sums + np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    @property
    def shares(self) -> NDArray[np.float64]:
        """How much each text counts among those of its source."""
        before = np.r_[0.0, self.sums[:-1]]
        before[self.starts[:-1]] = 0.0
        return self.sums - before

    def drawn(self, epochs: Places, numbers: Places) -> Places:
        """Which text each source has in each epoch."""
        turn, share, rest = np.zeros(len(epochs)), 0.5, epochs.copy()
        while rest.any():  # the bits of the epoch, read backwards
            turn, share, rest = turn + share * (rest & 1), share / 2, rest >> 1
        points = (uniform(key_of(self.seed, "way"), numbers) + turn) % 1.0
        texts = np.searchsorted(self.cumulative, numbers + points, side="right")
        return np.clip(texts, self.starts[numbers], self.starts[numbers + 1] - 1)


@dataclass(frozen=True)
class Sequences(ExampleSource):
    """A source of batches of pairs; pairs are handed out by number, as the order asks for them."""

    read: TextSide | VectorSide
    written: TextSide
    begin: int  # the token that writing begins from
    context: int = 1 << 30  # tokens of a side at most
    fixed: bool = False  # batches come in few shapes, for passes that are captured
    notes: tuple[str, ...] = ()  # on what was left out, for the log
    ways: TargetSampler | None = None  # where a source has several texts that may be written from it

    @property
    def count(self) -> int:
        return len((self.written if self.ways is None else self.ways).starts) - 1

    @property
    def rows_count(self) -> int:
        return self.count

    @property
    def mean(self) -> float:
        return (len(self.read.tokens) + self.writes) / max(1, self.count)

    @cached_property
    def writes(self) -> int:
        """Tokens that are written in an epoch."""
        if self.ways is None:
            return len(self.written.tokens)
        return round(float(self.ways.shares @ np.diff(self.written.starts)))

    @cached_property
    def _longest(self) -> Places:
        """E: tokens to write from each source at most."""
        lengths = np.diff(self.written.starts)
        return lengths if self.ways is None else np.maximum.reduceat(lengths, self.ways.starts[:-1])

    def lengths(self, numbers: Places) -> Places:
        return self.read.lengths(numbers) + self._longest[numbers]

    def for_training(self, most_rows: int, seed: int, fixed: bool) -> Sequences:
        return replace(self, fixed=fixed, ways=None if self.ways is None else replace(self.ways, seed=seed))

    def draw(self, epochs: Places, numbers: Places) -> Drawn:
        texts = numbers if self.ways is None else self.ways.drawn(epochs, numbers)
        tokens, starts = self.written.take(texts)
        return Drawn(tokens, starts, batch=partial(self.batch, numbers))

    def batch(self, numbers: Places, drawn: Drawn) -> Batch:
        """The sources, the targets shifted by one, and the tokens to predict."""
        words, starts = drawn.tokens, drawn.starts
        read, read_starts = self.read.take(numbers)
        longest, longest_read = int(np.diff(starts).max(initial=1)), int(np.diff(read_starts).max(initial=1))
        if self.fixed:
            longest = min(few(longest), max(2, self.context))
            needed = -(-_step(len(words)) // (longest - 1))  # rows with room for what a side is filled up with
            if isinstance(self.read, TextSide):
                longest_read = min(few(longest_read), max(2, self.context))
                needed = max(needed, -(-_step(len(read)) // (longest_read - 1)))
            more = _up(len(numbers) + needed, ROWS) - len(numbers)
            starts = _more_starts(starts, longest, more)
            if isinstance(self.read, TextSide):
                read_starts = _more_starts(read_starts, longest_read, more)
            else:  # each row has one vector, whatever is put at the end
                read_starts = np.arange(len(numbers) + more + 1)
            words = np.append(words, np.full(starts[-1] - len(words), NOTHING))
            room = np.zeros((int(read_starts[-1]) - len(read), *read.shape[1:]), dtype=read.dtype)
            read = np.concatenate([read, room])
        tokens = np.zeros_like(words)
        np.maximum(words[:-1], 0, out=tokens[1:])
        tokens[starts[:-1]] = self.begin
        source = Ragged(torch.from_numpy(read), rows_of(np.diff(read_starts), longest_read))
        return replace(make_batch(tokens, np.diff(starts), {"words": words}, longest=longest), source=source)


def few(longest: int) -> int:
    """The next of few lengths, each at most half as long again as the one before: 8, 12, 16, 24, 32, 48 ..."""
    power = max(LEAST, 1 << (longest - 1).bit_length())
    return power * 3 // 4 if longest <= power * 3 // 4 and power > LEAST else power


def _step(tokens: int) -> int:
    """Tokens from one size of a batch to the next: an eighth of it at most."""
    return max(STEP, 1 << max(0, tokens.bit_length() - 4))


def _more_starts(starts: Places, longest: int, more: int) -> Places:
    """Where rows begin when more of them fill a batch up to one of few sizes; each has a token at least."""
    tokens = int(starts[-1])
    extra = _up(tokens + more, _step(tokens)) - tokens - more
    lengths = 1 + np.minimum(longest - 1, np.maximum(0, extra - (longest - 1) * np.arange(more)))
    assert lengths.sum() == extra + more
    return np.append(starts, tokens + lengths.cumsum())
