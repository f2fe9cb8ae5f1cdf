"""Scores of classes, labels and numbers: streamed, offline, each with a 95 % interval."""

from __future__ import annotations

import heapq
import math
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weft.errors import UserError
from weft.text.resampling import REPLICATES, Floats, Resampled, Sampled, Sampling, drawn, share

TINY = 1e-28  # the mean of equal numbers may miss them by a rounding: squared, that is no spread


class LabelRow(NamedTuple):
    """A line of the table of labels."""

    label: str
    precision: float
    recall: float
    f1: float
    support: int


def label_rows(labels: Sequence[str], right: Floats, predicted: Floats, gold: Floats) -> list[LabelRow]:
    """A line per label, from how often it was right, predicted and in the data."""
    rates = zip(labels, share(right, predicted), share(right, gold), f1_of(right, predicted, gold), gold, strict=True)
    return [LabelRow(label, float(p), float(r), float(f), round(float(n))) for label, p, r, f, n in rates]


def f1_of(right: Floats, predicted: Floats, gold: Floats) -> Floats:
    """The harmonic mean of precision and recall; 0 where there is nothing to find and nothing was found."""
    return share(2 * right, predicted + gold)


def macro_f1(right: Floats, predicted: Floats, gold: Floats) -> Floats:
    """The mean of F1 over the labels (rows) that occur at all, as scikit-learn has it."""
    occurs = (predicted + gold) > 0
    return share((f1_of(right, predicted, gold) * occurs).sum(axis=0), occurs.sum(axis=0).astype(np.float64), np.nan)


def same_length(predicted: Sequence[Any] | NDArray[Any], gold: Sequence[Any] | NDArray[Any], what: str) -> None:
    """Stop where answers and truth cannot belong together."""
    if len(predicted) != len(gold):
        raise UserError(f"{len(predicted)} predicted {what}, but {len(gold)} true ones")


class Classes(Sampling):
    """One class of several per example; memory grows with the classes, not with the examples."""

    def __init__(self, labels: Sequence[str], seed: int = 0) -> None:
        self.labels = tuple(labels)
        self.counts = Resampled(3 * len(self.labels), seed)  # right, predicted, gold of each class
        self.table_of_both = np.zeros((len(self.labels), len(self.labels)), dtype=np.int64)

    def add(self, predicted: Sequence[int] | NDArray[Any], gold: Sequence[int] | NDArray[Any]) -> None:
        """Take in the next examples, as places in the list of labels."""
        same_length(predicted, gold, "classes")
        classes, p, g = len(self.labels), np.asarray(predicted, dtype=np.int64), np.asarray(gold, dtype=np.int64)
        for values in (p, g):
            if len(values) and not 0 <= values.min() <= values.max() < classes:
                raise UserError(f"class {values.min()} to {values.max()}: there are {classes} classes, from 0")
        rows, right = np.arange(len(p)), np.flatnonzero(p == g)
        keys = np.concatenate([g[right], classes + p, 2 * classes + g])
        self.counts.add(len(p), np.concatenate([right, rows, rows]), keys)
        np.add.at(self.table_of_both, (g, p), 1)

    def sampled(self) -> dict[str, Sampled]:
        """accuracy, macro_f1, mcc (Matthews' correlation) and, of two classes, the f1 of the second."""
        totals = self.counts.totals()
        right, predicted, gold = totals.sums.reshape(3, len(self.labels), -1)  # classes columns
        n, hits = totals.sizes, right.sum(axis=0)
        # Gorodkin's form for several classes; 0 where one of the two sides never varies.
        spread = np.sqrt((n * n - (predicted**2).sum(axis=0)) * (n * n - (gold**2).sum(axis=0)))
        values = {
            "accuracy": share(hits, n),
            "macro_f1": macro_f1(right, predicted, gold),
            "mcc": share(hits * n - (predicted * gold).sum(axis=0), spread),
        }
        if len(self.labels) == 2:
            values["f1"] = f1_of(right[1], predicted[1], gold[1])
        return {name: totals.sampled(value) for name, value in values.items()}

    def table(self) -> list[LabelRow]:
        """Precision, recall, F1 and support of each class."""
        both = self.table_of_both.astype(np.float64)
        return label_rows(self.labels, both.diagonal(), both.sum(axis=0), both.sum(axis=1))

    def confusion(self) -> NDArray[np.int64]:
        """How often each true class (row) was called each class (column)."""
        return self.table_of_both.copy()


class MultiLabels(Sampling):
    """Any number of labels per example."""

    def __init__(self, labels: Sequence[str], seed: int = 0) -> None:
        self.labels = tuple(labels)
        self.counts = Resampled(3 * len(self.labels) + 1, seed)  # right, predicted, gold of each label; all right

    def add(self, predicted: ArrayLike, gold: ArrayLike) -> None:
        """Take in the next examples: n x labels, true where a label is set."""
        p, g, width = np.asarray(predicted, dtype=bool), np.asarray(gold, dtype=bool), len(self.labels)
        same_length(p, g, "rows of labels")
        if not p.ndim == g.ndim == 2 or not p.shape[1] == g.shape[1] == width:
            raise UserError(f"labels of shape {p.shape} and {g.shape}: expected (examples, {width} labels)")
        rows, keys = list[NDArray[Any]](), list[NDArray[Any]]()
        for place, marks in enumerate((p & g, p, g)):
            row, label = np.nonzero(marks)
            rows.append(row)
            keys.append(place * width + label)
        whole = np.flatnonzero((p == g).all(axis=1))
        keys.append(np.full(len(whole), 3 * width))
        self.counts.add(len(p), np.concatenate([*rows, whole]), np.concatenate(keys))

    def sampled(self) -> dict[str, Sampled]:
        """micro_f1, macro_f1 (over all labels, seen or not) and exact: the share with every label right."""
        totals = self.counts.totals()
        right, predicted, gold = totals.sums[:-1].reshape(3, len(self.labels), -1)  # labels columns
        values = {
            "micro_f1": f1_of(right.sum(axis=0), predicted.sum(axis=0), gold.sum(axis=0)),
            "macro_f1": f1_of(right, predicted, gold).mean(axis=0),
            "exact": share(totals.sums[-1], totals.sizes),
        }
        return {name: totals.sampled(value) for name, value in values.items()}

    def table(self) -> list[LabelRow]:
        """Precision, recall, F1 and support of each label."""
        right, predicted, gold = self.counts.totals().sums[:-1, 0].reshape(3, len(self.labels))
        return label_rows(self.labels, right, predicted, gold)


def _correlation(x: Floats, y: Floats, weights: Floats) -> float:
    """Pearson's correlation of weighted pairs; not a number where one side does not vary."""
    n = weights.sum()
    if not n:
        return math.nan
    a, b = x - weights @ x / n, y - weights @ y / n
    spread_a, spread_b = weights @ (a * a), weights @ (b * b)
    if spread_a <= TINY * (weights @ (x * x)) or spread_b <= TINY * (weights @ (y * y)):
        return math.nan
    return float(np.clip(weights @ (a * b) / math.sqrt(spread_a * spread_b), -1, 1))


def _ranks(groups: NDArray[Any], weights: Floats) -> Floats:
    """The rank of each value (equal ones share the mean of theirs) when each counts `weights` times."""
    sizes = np.bincount(groups, weights)
    return (np.cumsum(sizes) - (sizes - 1) / 2)[groups]


class Numbers(Sampling):
    """A number per example. All pairs are kept (16 bytes each), since ranks need all of them."""

    ranked = 200  # resamplings for spearman, the slow one

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.predicted, self.gold = array("d"), array("d")

    def add(self, predicted: Sequence[float] | NDArray[Any], gold: Sequence[float] | NDArray[Any]) -> None:
        """Take in the next examples."""
        same_length(predicted, gold, "numbers")
        self.predicted.frombytes(np.asarray(predicted, dtype=np.float64).tobytes())
        self.gold.frombytes(np.asarray(gold, dtype=np.float64).tobytes())

    def sampled(self) -> dict[str, Sampled]:
        """pearson, spearman, mse, mae, r2; the correlations are 0 where one side does not vary."""
        if not self.gold:
            raise UserError("nothing to score: there was no example")
        p, g = np.array(self.predicted), np.array(self.gold)
        groups = [np.unique(values, return_inverse=True)[1] for values in (p, g)]
        distance = p - g
        squares, sizes = distance * distance, np.abs(distance)
        found = {name: np.full(REPLICATES + 1, math.nan) for name in ("pearson", "spearman", "mse", "mae", "r2")}
        for column in range(REPLICATES + 1):
            weights = drawn(self.seed, column, len(p)) if column else np.ones(len(p))
            if not (n := weights.sum()):
                continue
            lost, around = weights @ squares, g - weights @ g / n
            spread = weights @ (around * around)
            found["mse"][column], found["mae"][column] = lost / n, weights @ sizes / n
            found["r2"][column] = 1 - lost / spread if spread > TINY * (weights @ (g * g)) else math.nan
            found["pearson"][column] = _correlation(p, g, weights)
            if column <= self.ranked:
                found["spearman"][column] = _correlation(
                    _ranks(groups[0], weights), _ranks(groups[1], weights), weights
                )
        if g.min() == g.max():  # as scikit-learn: no spread to explain
            found["r2"][:] = float(not squares.any())
        for name in ("pearson", "spearman"):
            if p.min() == p.max() or g.min() == g.max():
                found[name][:] = 0.0
        return {name: Sampled(values, len(p)) for name, values in found.items()}


class Worst:
    """The rows on which a model did worst, as many as asked for and no more in memory."""

    def __init__(self, most: int = 10) -> None:
        self.most = most
        self.heap = list[tuple[float, int, dict[str, Any]]]()
        self.seen = 0

    def add(self, badness: float, row: dict[str, Any]) -> None:
        """Offer a row; of equally bad ones the earlier stays."""
        self.seen += 1
        entry = (math.inf if math.isnan(badness) else badness, -self.seen, row)
        if len(self.heap) < self.most:
            heapq.heappush(self.heap, entry)
        elif self.heap:
            heapq.heappushpop(self.heap, entry)

    def rows(self) -> list[dict[str, Any]]:
        """The rows kept, the worst first."""
        return [row for _, _, row in sorted(self.heap, key=lambda entry: entry[:2], reverse=True)]
