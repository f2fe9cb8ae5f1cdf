"""Metrics of classes and of tagged sentences, with intervals, and the thresholds that score best."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weft.errors import UserError
from weft.metrics.bootstrap import Floats, SummedMetrics, Totals, same_length, share
from weft.text.tags import spans_of


class LabelRow(NamedTuple):
    """A line of the table of labels."""

    label: str
    precision: float
    recall: float
    f1: float
    support: int


def f1_of(right: Floats, predicted: Floats, gold: Floats) -> Floats:
    """The harmonic mean of precision and recall; 0 where a label is neither predicted nor in the data."""
    return share(2 * right, predicted + gold)


def macro_f1(right: Floats, predicted: Floats, gold: Floats) -> Floats:
    """The mean of F1 over the labels (rows) that occur at all, as scikit-learn has it."""
    occurs = (predicted + gold) > 0
    return share((f1_of(right, predicted, gold) * occurs).sum(axis=0), occurs.sum(axis=0).astype(np.float64), np.nan)


class LabelMetrics(SummedMetrics):
    """Metrics of how often each label was right, predicted and in the data."""

    labels: Sequence[str] | dict[str, int]

    def parts(self, totals: Totals) -> NDArray[np.float64]:
        """right, predicted, gold (3 x labels x columns)."""
        return totals.sums[: 3 * len(self.labels)].reshape(3, len(self.labels), -1)

    def table(self) -> list[LabelRow]:
        """Precision, recall, F1 and support of each label."""
        right, predicted, gold = self.parts(self.sums.totals())[:, :, 0]
        rates = share(right, predicted), share(right, gold), f1_of(right, predicted, gold), gold
        rows = zip(self.labels, *rates, strict=True)
        return [LabelRow(label, float(p), float(r), float(f), round(float(n))) for label, p, r, f, n in rows]


class ClassificationMetrics(LabelMetrics):
    """One class of several per example; memory grows with the classes, not with the examples."""

    def __init__(self, labels: Sequence[str], seed: int = 0) -> None:
        super().__init__(3 * len(labels), seed)  # right, predicted, gold of each class
        self.labels = tuple(labels)
        self.counts = np.zeros((len(self.labels), len(self.labels)), dtype=np.int64)

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
        np.add.at(self.counts, (g, p), 1)

    def values(self, totals: Totals) -> dict[str, Floats]:
        """accuracy, macro_f1, mcc (Matthews' correlation) and, of two classes, the f1 of the second."""
        right, predicted, gold = self.parts(totals)  # classes columns
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

    def confusion(self) -> NDArray[np.int64]:
        return self.counts.copy()


class MultiLabelMetrics(LabelMetrics):
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
        self.sums.add(len(p), *np.nonzero(np.concatenate([p & g, p, g, (p == g).all(axis=1)[:, None]], axis=1)))

    def values(self, totals: Totals) -> dict[str, Floats]:
        """micro_f1, macro_f1 (over all labels, seen or not) and exact: the share with every label right."""
        right, predicted, gold = self.parts(totals)  # labels columns
        return {
            "micro_f1": f1_of(right.sum(axis=0), predicted.sum(axis=0), gold.sum(axis=0)),
            "macro_f1": f1_of(right, predicted, gold).mean(axis=0),
            "exact": share(totals.sums[-1], totals.sizes),
        }


FAR = 1e30  # stands for infinity: a threshold must fit into JSON


def best_thresholds(scores: ArrayLike, gold: ArrayLike) -> list[float]:
    """Per label (column) the threshold (score >= threshold) of the highest F1; 0.5 where no example is positive."""
    values, truth = np.asarray(scores, dtype=np.float64), np.asarray(gold, dtype=bool)
    if values.ndim != 2 or values.shape != truth.shape:
        raise UserError(f"scores of shape {values.shape} and labels of shape {truth.shape}: expected two equal tables")
    thresholds = []
    for column, marks in zip(values.T, truth.T, strict=True):
        if not marks.any():
            thresholds.append(0.5)
            continue
        order = np.argsort(-column, kind="stable")
        ordered, right = column[order], np.cumsum(marks[order])
        f1 = 2 * right / (np.arange(1, len(column) + 1) + right[-1])  # of the first k + 1 set
        f1[:-1][ordered[1:] == ordered[:-1]] = -1  # no threshold parts equal scores
        last = int(f1.argmax())
        lowest = float(ordered[last])
        # Halfway to the next score; where all are set, those a little lower would be, too.
        below = float(ordered[last + 1]) if last + 1 < len(ordered) else min(lowest, 0.0)
        middle = lowest - (lowest - below) / 2
        thresholds.append(middle if middle > below else lowest)
    return thresholds


def best_no_answer(margin: Sequence[float], if_answered: Sequence[float], if_not: Sequence[float]) -> float:
    """The threshold that earns most, where a question is answered when margin ("no answer" less span) <= threshold."""
    if not len(margin) == len(if_answered) == len(if_not):
        raise UserError(f"{len(margin)} margins, {len(if_answered)} and {len(if_not)} earnings: expected as many each")
    if not len(margin):
        return 0.0
    margins = np.clip(np.asarray(margin, dtype=np.float64), -FAR, FAR)
    order = np.argsort(margins, kind="stable")
    margins = margins[order]
    gains = np.asarray(if_answered, dtype=np.float64)[order] - np.asarray(if_not, dtype=np.float64)[order]
    earned = np.concatenate([[0.0], np.cumsum(gains)])  # with the first k answered, beyond answering none
    earned[1:-1][margins[1:] == margins[:-1]] = -np.inf
    answered = int(earned.argmax())
    if answered == 0:
        return float(min(margins[0] - 1, np.nextafter(margins[0], -np.inf)))
    if answered == len(margins):
        return float(margins[-1] + 1)
    low, high = float(margins[answered - 1]), float(margins[answered])
    middle = low + (high - low) / 2
    return middle if middle < high else low


class _SentenceMetrics(LabelMetrics):
    """Counts over tagged sentences; a whole sentence is one example, since its words hang together."""

    first = 0  # keys before those of the labels

    def __init__(self, labels: Sequence[str] = (), seed: int = 0) -> None:
        self.labels: dict[str, int] = {label: number for number, label in enumerate(labels)}
        super().__init__(self.first + 3 * len(self.labels), seed)

    def key(self, label: str, place: int) -> int:
        """Where right (0), predicted (1) and gold (2) of a label are counted; new labels are taken in."""
        return self.first + 3 * self.labels.setdefault(label, len(self.labels)) + place

    def add(self, predicted: Sequence[Sequence[str]], gold: Sequence[Sequence[str]]) -> None:
        """Take in the next sentences: a tag per word each."""
        same_length(predicted, gold, "sentences")
        rows, keys = list[int](), list[int]()
        for row, (p, g) in enumerate(zip(predicted, gold, strict=True)):
            same_length(p, g, f"tags in sentence {self.sums.examples + row + 1}")
            events = self.events(p, g)
            rows += [row] * len(events)
            keys += events
        self.sums.add(len(gold), rows, keys)

    @abstractmethod
    def events(self, predicted: Sequence[str], gold: Sequence[str]) -> list[int]:
        """A key for each thing to count in one sentence."""

    def parts(self, totals: Totals) -> NDArray[np.float64]:
        counted = totals.sums[self.first :]
        missing = 3 * len(self.labels) - len(counted)  # keys of the last label that have not been met
        counted = np.concatenate([counted, np.zeros((missing, counted.shape[1]))])
        return counted.reshape(len(self.labels), 3, counted.shape[1]).transpose(1, 0, 2)


class EntityMetrics(_SentenceMetrics):
    """Spans of words, right only with the right borders and the right type; the numbers are seqeval's."""

    first = 2  # words, words with the right tag

    def events(self, predicted: Sequence[str], gold: Sequence[str]) -> list[int]:
        p, g = spans_of(predicted, "bio"), spans_of(gold, "bio")  # reads all schemes
        keys = [0] * len(gold) + [1 for a, b in zip(predicted, gold, strict=True) if a == b]
        keys += [self.key(span.label, 1) for span in p] + [self.key(span.label, 2) for span in g]
        both = set(p) & set(g)
        return keys + [self.key(span.label, 0) for span in g if span in both]

    def values(self, totals: Totals) -> dict[str, Floats]:
        """f1, precision and recall of all spans together (micro), and accuracy of the words."""
        right, predicted, gold = self.parts(totals).sum(axis=1)
        return {
            "f1": f1_of(right, predicted, gold),
            "precision": share(right, predicted),
            "recall": share(right, gold),
            "accuracy": share(totals.sums[1], totals.sums[0]),
        }

    def table(self) -> list[LabelRow]:
        """Precision, recall, F1 and support of each type, by name."""
        return sorted(super().table())


class TagMetrics(_SentenceMetrics):
    """A tag per word, such as parts of speech; a tag that is not among the labels is one more."""

    def events(self, predicted: Sequence[str], gold: Sequence[str]) -> list[int]:
        keys = [self.key(tag, 1) for tag in predicted] + [self.key(tag, 2) for tag in gold]
        return keys + [self.key(b, 0) for a, b in zip(predicted, gold, strict=True) if a == b]

    def values(self, totals: Totals) -> dict[str, Floats]:
        """accuracy over the words, and macro_f1 over the tags that occur."""
        right, predicted, gold = self.parts(totals)
        accuracy = share(right.sum(axis=0), gold.sum(axis=0))
        return {"accuracy": accuracy, "macro_f1": macro_f1(right, predicted, gold)}
