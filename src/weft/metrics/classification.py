"""Metrics of classification, with one label per example or several; streamed, each with a 95 % interval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weft.errors import UserError
from weft.metrics.bootstrap import Floats, SummedMetrics, Totals, same_length, share


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
    """The harmonic mean of precision and recall; 0 where a label is neither predicted nor in the data."""
    return share(2 * right, predicted + gold)


def macro_f1(right: Floats, predicted: Floats, gold: Floats) -> Floats:
    """The mean of F1 over the labels (rows) that occur at all, as scikit-learn has it."""
    occurs = (predicted + gold) > 0
    return share((f1_of(right, predicted, gold) * occurs).sum(axis=0), occurs.sum(axis=0).astype(np.float64), np.nan)


class ClassificationMetrics(SummedMetrics):
    """One class of several per example; memory grows with the classes, not with the examples."""

    def __init__(self, labels: Sequence[str], seed: int = 0) -> None:
        super().__init__(3 * len(labels), seed)  # right, predicted, gold of each class
        self.labels = tuple(labels)
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
        self.sums.add(len(p), np.concatenate([right, rows, rows]), keys)
        np.add.at(self.table_of_both, (g, p), 1)

    def values(self, totals: Totals) -> dict[str, Floats]:
        """accuracy, macro_f1, mcc (Matthews' correlation) and, of two classes, the f1 of the second."""
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
        return values

    def table(self) -> list[LabelRow]:
        """Precision, recall, F1 and support of each class."""
        both = self.table_of_both.astype(np.float64)
        return label_rows(self.labels, both.diagonal(), both.sum(axis=0), both.sum(axis=1))

    def confusion(self) -> NDArray[np.int64]:
        return self.table_of_both.copy()


class MultiLabelMetrics(SummedMetrics):
    """Any number of labels per example."""

    def __init__(self, labels: Sequence[str], seed: int = 0) -> None:
        super().__init__(3 * len(labels) + 1, seed)  # right, predicted, gold of each label; all right
        self.labels = tuple(labels)

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
        self.sums.add(len(p), np.concatenate([*rows, whole]), np.concatenate(keys))

    def values(self, totals: Totals) -> dict[str, Floats]:
        """micro_f1, macro_f1 (over all labels, seen or not) and exact: the share with every label right."""
        right, predicted, gold = totals.sums[:-1].reshape(3, len(self.labels), -1)  # labels columns
        return {
            "micro_f1": f1_of(right.sum(axis=0), predicted.sum(axis=0), gold.sum(axis=0)),
            "macro_f1": f1_of(right, predicted, gold).mean(axis=0),
            "exact": share(totals.sums[-1], totals.sizes),
        }

    def table(self) -> list[LabelRow]:
        """Precision, recall, F1 and support of each label."""
        right, predicted, gold = self.sums.totals().sums[:-1, 0].reshape(3, len(self.labels))
        return label_rows(self.labels, right, predicted, gold)
