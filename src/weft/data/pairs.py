"""Pairs of texts, tokenized once: the sources and targets of an encoder-decoder.

N: tokens written; M: tokens read; E: pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import torch
from numpy.typing import NDArray

from weft.data.chance import key_of, uniform
from weft.data.masking import NOTHING
from weft.data.rows import Drawn, ExampleSource, flat
from weft.data.shards import Places
from weft.nn.rows import Batch, Ragged, Rows

STEP, ROWS, LEAST = 64, 8, 8  # of batches whose passes are captured: tokens, rows, and the shortest `longest`


@dataclass(frozen=True)
class TextSide:
    """One side of all pairs: their tokens in one flat run, an end token after each text."""

    tokens: NDArray[np.int32]
    starts: Places  # E+1

    @staticmethod
    def of(texts: Sequence[Sequence[int]]) -> TextSide:
        lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
        tokens = np.fromiter((token for text in texts for token in text), dtype=np.int32, count=int(lengths.sum()))
        return TextSide(tokens, np.r_[0, lengths.cumsum()])

    @cached_property
    def longest(self) -> int:
        return int(np.diff(self.starts).max(initial=1))

    def lengths(self, numbers: Places) -> Places:
        return self.starts[numbers + 1] - self.starts[numbers]

    def take(self, numbers: Places) -> tuple[Places, Places]:
        """The tokens of these texts, one after the other, and where each begins."""
        lengths = self.lengths(numbers)
        return self.tokens[flat(self.starts[numbers], lengths)].astype(np.int64), np.r_[0, lengths.cumsum()]


@dataclass(frozen=True)
class VectorSide:
    """One side of all rows where vectors are read: each stands for a text of one token."""

    tokens: NDArray[np.float32]  # E features

    longest = 1

    @property
    def starts(self) -> Places:
        return np.arange(len(self.tokens) + 1)

    def lengths(self, numbers: Places) -> Places:
        return np.ones_like(numbers)

    def take(self, numbers: Places) -> tuple[NDArray[np.float32], Places]:
        return self.tokens[numbers], np.arange(len(numbers) + 1)


@dataclass(frozen=True)
class TargetSampler:
    """Several texts that may be written from each source, one in each epoch, as often as its share of them says.

    The epochs of a source go through 0..1 as van der Corput's points do, from a place of its own: so that after 2, 4,
    8 ... epochs no text has come once more or less than its share.
    """

    starts: Places  # E+1: which of the written texts are of each source
    sums: NDArray[np.float64]  # of the shares of a source's texts up to each; the last is 1
    seed: int = 0

    @staticmethod
    def of(shares: Sequence[Sequence[float]], seed: int = 0) -> TargetSampler:
        """From the shares of the texts of each source, which need not add up to 1."""
        sums = [np.cumsum(np.array(some, dtype=np.float64)) / sum(some) for some in shares]
        return TargetSampler(np.r_[0, np.cumsum([len(some) for some in shares])], np.concatenate(sums), seed)

    @property
    def shares(self) -> NDArray[np.float64]:
        """How much each text counts among those of its source."""
        before = np.r_[0.0, self.sums[:-1]]
        before[self.starts[:-1]] = 0.0
        return self.sums - before

    @cached_property
    def _sums(self) -> NDArray[np.float64]:
        return self.sums + np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    def drawn(self, epochs: Places, numbers: Places) -> Places:
        """Which text each source has in each epoch."""
        turn, share, rest = np.zeros(len(epochs)), 0.5, epochs.copy()
        while rest.any():  # the bits of the epoch, read backwards
            turn, share, rest = turn + share * (rest & 1), share / 2, rest >> 1
        points = (uniform(key_of(self.seed, "way"), numbers) + turn) % 1.0
        texts = np.searchsorted(self._sums, numbers + points, side="right")
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
        """The same pairs as a run takes them; none is read in part."""
        return replace(self, fixed=fixed, ways=None if self.ways is None else replace(self.ways, seed=seed))

    def draw(self, epochs: Places, numbers: Places) -> Drawn:
        texts = numbers if self.ways is None else self.ways.drawn(epochs, numbers)
        tokens, starts = self.written.take(texts)
        nothing = np.zeros(0, dtype=np.uint64)
        return Drawn(tokens, starts, nothing, nothing.astype(bool), batch=partial(self.batch, numbers))

    def batch(self, numbers: Places, drawn: Drawn) -> Batch:
        """The sources, the targets shifted by one, and the tokens to predict."""
        words, starts = drawn.tokens, drawn.starts
        read, read_starts = self.read.take(numbers)
        longest, longest_read = int(np.diff(starts).max(initial=1)), int(np.diff(read_starts).max(initial=1))
        if self.fixed:
            longest = min(few(longest), max(2, self.context))
            sides = [(len(words), longest)]
            if isinstance(self.read, TextSide):
                longest_read = min(few(longest_read), max(2, self.context))
                sides.append((len(read), longest_read))
            more = _rows_more(len(numbers), *sides)
            starts = _filled_up(starts, longest, more)
            if isinstance(self.read, TextSide):
                read_starts = _filled_up(read_starts, longest_read, more)
            else:  # each row has one vector, whatever is put at the end
                read_starts = np.arange(len(numbers) + more + 1)
            words = np.r_[words, np.full(starts[-1] - len(words), NOTHING)]
            room = np.zeros((int(read_starts[-1]) - len(read), *read.shape[1:]), dtype=read.dtype)
            read = np.concatenate([read, room])
        tokens = np.r_[0, np.maximum(words[:-1], 0)]
        tokens[starts[:-1]] = self.begin
        return Batch(
            torch.from_numpy(tokens),
            Rows(torch.from_numpy(starts.astype(np.int32)), longest),
            targets={"words": torch.from_numpy(words)},
            source=Ragged(torch.from_numpy(read), Rows(torch.from_numpy(read_starts.astype(np.int32)), longest_read)),
        )


def few(longest: int) -> int:
    """The next of few lengths, each at most half as long again as the one before: 8, 12, 16, 24, 32, 48 ..."""
    power = max(LEAST, 1 << (longest - 1).bit_length())
    return power * 3 // 4 if longest <= power * 3 // 4 and power > LEAST else power


def _step(tokens: int) -> int:
    """Tokens from one size of a batch to the next: an eighth of it at most."""
    return max(STEP, 1 << max(0, tokens.bit_length() - 4))


def _rows_more(count: int, *sides: tuple[int, int]) -> int:
    """How many rows that say nothing are put at the end, so that they have room for what a side is filled up with."""
    needed = max(-(-_step(tokens) // (longest - 1)) for tokens, longest in sides)
    return -(-(count + needed) // ROWS) * ROWS - count


def _filled_up(starts: Places, longest: int, more: int) -> Places:
    """Where rows begin when more of them fill a batch up to one of few sizes; each has a token at least."""
    tokens = int(starts[-1])
    step = _step(tokens)
    extra = -(-(tokens + more) // step) * step - tokens - more
    lengths = 1 + np.minimum(longest - 1, np.maximum(0, extra - (longest - 1) * np.arange(more)))
    assert lengths.sum() == extra + more
    return np.r_[starts, tokens + lengths.cumsum()]
