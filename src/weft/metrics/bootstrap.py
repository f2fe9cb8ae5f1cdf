"""How sure a score is: 95 % intervals from a bootstrap that streams, and from several seeds."""

from __future__ import annotations

import heapq
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weft.errors import UserError

REPLICATES = 500
BLOCK = 256  # examples whose weights are drawn together; part of what a seed means
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Score:
    """A score and the interval that holds the true one in 95 of 100 cases."""

    value: float
    low: float
    high: float


# Of each of the 65,536 numbers of 16 bits the Poisson(1) number that stands at that share of the distribution.
_SHARES = np.cumsum([math.exp(-1) / math.factorial(k) for k in range(16)])
POISSON: Floats = np.searchsorted(_SHARES, (np.arange(65536) + 0.5) / 65536).astype(np.float64)
Z = 1.96  # of the normal distribution, 95 % lie within so many deviations


def drawn(seed: int, stream: int, size: int) -> Floats:
    """So many Poisson(1) numbers, a pure function of seed and stream; fewer of them are the first of more."""
    # The bits themselves: unlike numpy's distributions they are the same in every version, and 4 times as fast.
    generator = np.random.Philox(key=np.array([seed % 2**64, stream], dtype=np.uint64))
    bits: NDArray[Any] = generator.random_raw((size + 3) // 4)
    return np.take(POISSON, bits.view(np.uint16)[:size], mode="clip")  # of 65,536 entries: nothing to clip, but faster


def interval(values: Floats, examples: int) -> Score:
    """The score of the data (the first value) with the middle 95 % of its replicates (the others)."""
    value, replicates = float(values[0]), values[1:][np.isfinite(values[1:])]
    if examples < 2 or not len(replicates):
        return Score(value, value, value)
    low, high = np.percentile(replicates, [2.5, 97.5])
    return Score(value, min(float(low), value), max(float(high), value))


def share(part: Floats, whole: Floats, empty: float = 0.0) -> Floats:
    """Part of the whole; `empty` where there is nothing to have a part of."""
    return np.divide(part, whole, out=np.full(np.broadcast(part, whole).shape, empty), where=whole != 0)


@dataclass(frozen=True)
class Replicates:
    """A score on the data (column 0) and on each of their resamplings, which are those of every model: for pairing."""

    values: Floats
    examples: int
    share: bool = False  # of things that are right or not, so that all right is known as well as their number lets
    scale: float = 1.0  # 100 where people write it so

    def score(self) -> Score:
        """The value with its interval."""
        score = interval(self.values, self.examples)
        # Where all are right, or none, every resampling says the same; Wilson's interval knows how many there were.
        if self.share and score.low == score.high == 1.0:
            score = Score(1.0, self.examples / (self.examples + Z**2), 1.0)
        elif self.share and score.low == score.high == 0.0:
            score = Score(0.0, 0.0, Z**2 / (self.examples + Z**2))
        return Score(self.scale * score.value, self.scale * score.low, self.scale * score.high)

    def minus(self, other: Replicates) -> Score:
        """By how much this score is above another on the same examples."""
        assert self.examples == other.examples, "two scores that are not of the same examples"
        return interval(self.scale * self.values - other.scale * other.values, self.examples)

    def over(self, other: Replicates) -> Score:
        """This score as a share of another on the same examples."""
        assert self.examples == other.examples, "two scores that are not of the same examples"
        with np.errstate(all="ignore"):
            return interval(self.scale * self.values / (other.scale * other.values), self.examples)


class Metrics(ABC):
    """Metrics of a stream of examples, each with its resamplings."""

    @abstractmethod
    def sampled(self) -> dict[str, Replicates]:
        """Every metric by its name, on the data and on their resamplings."""

    def result(self) -> dict[str, Score]:
        """Every metric by its name, with its interval."""
        return {name: replicates.score() for name, replicates in self.sampled().items()}

    def table(self) -> list[Any]:
        """A row per label, where there are labels."""
        return []

    def confusion(self) -> NDArray[np.int64]:
        """How often each true class (row) was predicted as each class (column); empty where there are no classes."""
        return np.zeros((0, 0), dtype=np.int64)


class Totals(NamedTuple):
    """What has been summed: column 0 for the data themselves, the others for their resamplings."""

    sums: Floats  # keys x columns
    sizes: Floats  # columns: how many examples each counts
    examples: int

    def sampled(self, values: Floats, scale: float = 1.0) -> Replicates:
        """A value per column; a resampling that drew nothing at all says nothing."""
        return Replicates(np.where(self.sizes > 0, values, np.nan), self.examples, True, scale)


class Bootstrap:
    """Sums by key over a stream of examples, for the data as they are and for 500 resamplings of them at once."""

    # The Poisson bootstrap (Chamandy et al., 2012): in each resampling an example counts Poisson(1) times. They
    # depend on the seed and the running number of the example alone, so no example is kept and batches do not matter.

    def __init__(self, keys: int, seed: int = 0) -> None:
        self.seed, self.examples, self.block = seed, 0, 0
        self.sums, self.sizes = np.zeros((keys, REPLICATES + 1)), np.zeros(REPLICATES + 1)
        self.waiting: list[tuple[Integers, Integers, Floats]] = []  # of the block that is not full yet

    def add(self, examples: int, rows: ArrayLike, keys: ArrayLike, amounts: ArrayLike | None = None) -> None:
        """Take in the next examples: example `rows[j]` of these adds `amounts[j]`, or 1, to the sum of `keys[j]`."""
        numbers = np.asarray(rows, dtype=np.int64) + self.examples
        values = np.ones(len(numbers)) if amounts is None else np.asarray(amounts, dtype=np.float64)
        self.waiting.append((numbers, np.asarray(keys, dtype=np.int64), values))
        self.examples += examples
        if self.examples < (self.block + 1) * BLOCK:
            return
        waiting = self._waiting()
        order = np.argsort(waiting[0] // BLOCK, kind="stable")
        numbers, places, values = (part[order] for part in waiting)
        first, full = 0, self.examples // BLOCK
        for block in range(self.block, full):
            last = int(np.searchsorted(numbers, (block + 1) * BLOCK))  # sorted by block, which is all this asks for
            part = slice(first, last)
            self.sums = self._settle(self.sums, self.sizes, block, BLOCK, numbers[part], places[part], values[part])
            first = last
        self.block, self.waiting = full, [(numbers[first:], places[first:], values[first:])]

    def totals(self) -> Totals:
        """The sums so far; more may be added after."""
        if not self.examples:
            raise UserError("no examples to score")
        sizes, size = self.sizes.copy(), self.examples - self.block * BLOCK
        sums = self._settle(self.sums.copy(), sizes, self.block, size, *self._waiting())
        return Totals(sums, sizes, self.examples)

    def _waiting(self) -> list[NDArray[Any]]:
        return [np.concatenate(part) for part in zip(*self.waiting, strict=True)]

    def _settle(
        self, sums: Floats, sizes: Floats, block: int, size: int, numbers: Integers, keys: Integers, amounts: Floats
    ) -> Floats:
        """Add the examples of one block; the sums come back, in a longer array where there are new keys."""
        weights = np.ones((size, REPLICATES + 1))
        weights[:, 1:] = drawn(self.seed, block, size * REPLICATES).reshape(size, REPLICATES)
        sizes += weights.sum(axis=0)
        if not len(keys):
            return sums
        order = np.argsort(keys, kind="stable")  # stable: the same order of addition whatever the batches were
        rows, keys, amounts = numbers[order] - block * BLOCK, keys[order], amounts[order]
        if keys[-1] >= len(sums):
            sums = np.concatenate([sums, np.zeros((int(keys[-1]) + 1 - len(sums), REPLICATES + 1))])
        borders = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1], True]).tolist()
        for first, last in pairwise(borders):  # np.add.reduceat does the same, four times as slowly
            sums[keys[first]] += amounts[first:last] @ weights[rows[first:last]]
        return sums


class SummedMetrics(Metrics):
    """Metrics that are functions of sums over the examples."""

    def __init__(self, keys: int, seed: int = 0) -> None:
        self.sums = Bootstrap(keys, seed)

    @abstractmethod
    def values(self, totals: Totals) -> dict[str, Floats]:
        """Every metric by its name: a value per column of the totals."""

    def sampled(self) -> dict[str, Replicates]:
        totals = self.sums.totals()
        return {name: totals.sampled(values) for name, values in self.values(totals).items()}


class MeanMetrics(SummedMetrics):
    """Metrics that are means of a value per example."""

    def __init__(self, names: Sequence[str], seed: int = 0) -> None:
        super().__init__(len(names), seed)
        self.names = tuple(names)

    def add_values(self, values: Floats) -> None:
        """Take in the next examples: names x examples."""
        keys, rows = np.indices(values.shape)
        self.sums.add(values.shape[1], rows.ravel(), keys.ravel(), values.ravel())

    def values(self, totals: Totals) -> dict[str, Floats]:
        return {name: share(sums, totals.sizes) for name, sums in zip(self.names, totals.sums, strict=True)}


def summarized(values: Sequence[float]) -> tuple[float, float, float, float]:
    """Mean, standard deviation and 95 % t interval of the mean over several seeds; one seed alone has no spread."""
    if not len(values):
        raise UserError("nothing to summarize: there is no value")
    mean = float(np.mean(values))
    if len(values) == 1:
        return mean, 0.0, mean, mean
    freedom, low, high = len(values) - 1, 0.0, math.pi / 2
    for _ in range(60):  # t = sqrt(freedom) tan(angle), between minus and plus which 95 % of Student's t lie
        angle = (low + high) / 2
        sine, cosine, odd = math.sin(angle), math.cos(angle), freedom % 2
        term, total = (cosine if odd else 1.0), 0.0
        for power in range(1 + odd, freedom, 2):  # a finite sum (Abramowitz and Stegun 26.7.3)
            total += term
            term *= cosine * cosine * power / (power + 1)
        inside = 2 / math.pi * (angle + sine * total) if odd else sine * total
        low, high = (angle, high) if inside < 0.95 else (low, angle)
    deviation = float(np.std(values, ddof=1))
    reach = math.sqrt(freedom) * math.tan(low) * deviation / math.sqrt(len(values))
    return mean, deviation, mean - reach, mean + reach


def same_length(predicted: Sequence[Any] | NDArray[Any], gold: Sequence[Any] | NDArray[Any], what: str) -> None:
    """Stop where answers and truth cannot belong together."""
    if len(predicted) != len(gold):
        raise UserError(f"{len(predicted)} predicted {what}, but {len(gold)} true ones")


class Ratios(Metrics):
    """Parts of wholes, summed over examples: for each name what an example adds to both."""

    def __init__(self, names: Sequence[str], shares: bool = True, seed: int = 0) -> None:
        self.names, self.shares = tuple(names), shares  # whether a part is at most its whole
        self.sums = Bootstrap(2 * len(self.names), seed)

    def add(self, parts: Mapping[str, tuple[float, float]]) -> None:
        """Add an example; a name that is not given gets nothing."""
        keys = [2 * number + side for number, name in enumerate(self.names) if name in parts for side in (0, 1)]
        self.sums.add(1, [0] * len(keys), keys, [each for name in self.names if name in parts for each in parts[name]])

    def sampled(self) -> dict[str, Replicates]:
        """The ratio of each name that has a whole."""
        totals = self.sums.totals()
        sums = totals.sums.reshape(len(self.names), 2, -1)
        shares = {
            name: share(both[0], both[1], math.nan) for name, both in zip(self.names, sums, strict=True) if both[1][0]
        }
        return {name: Replicates(values, totals.examples, self.shares) for name, values in shares.items()}


class WorstRows:
    """The rows on which a model did worst, as many as asked for and no more in memory."""

    def __init__(self, max_rows: int = 10) -> None:
        self.max_rows, self.seen = max_rows, 0
        self.heap = list[tuple[float, int, dict[str, Any]]]()

    def add(self, badness: float, row: dict[str, Any]) -> None:
        """Offer a row; of equally bad ones the earlier stays."""
        self.seen += 1
        entry = (math.inf if math.isnan(badness) else badness, -self.seen, row)
        if len(self.heap) < self.max_rows:
            heapq.heappush(self.heap, entry)
        elif self.heap:
            heapq.heappushpop(self.heap, entry)

    def rows(self) -> list[dict[str, Any]]:
        """The rows kept, the worst first."""
        return [row for _, _, row in sorted(self.heap, key=lambda entry: entry[:2], reverse=True)]
