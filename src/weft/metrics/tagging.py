"""Metrics of tagged sentences: entities and tags of words, with intervals."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from weft.metrics.bootstrap import Floats, SummedMetrics, Totals, same_length, share
from weft.metrics.classification import LabelRow, f1_of, label_rows, macro_f1
from weft.text.tags import spans_of

Sentences = Sequence[Sequence[str]]


class _SentenceMetrics(SummedMetrics):
    """Counts over tagged sentences; a whole sentence is one example, since its words hang together."""

    first = 0  # keys before those of the labels

    def __init__(self, labels: Sequence[str] = (), seed: int = 0) -> None:
        self.numbers = {label: number for number, label in enumerate(labels)}
        super().__init__(self.first + 3 * len(self.numbers), seed)

    def key(self, label: str, place: int) -> int:
        """Where right (0), predicted (1) and gold (2) of a label are counted; new labels are taken in."""
        return self.first + 3 * self.numbers.setdefault(label, len(self.numbers)) + place

    def add(self, predicted: Sentences, gold: Sentences) -> None:
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

    def parts(self, totals: Totals) -> np.ndarray[tuple[int, int, int], np.dtype[np.float64]]:
        """right, predicted, gold (3 x labels x columns)."""
        counted = totals.sums[self.first :]
        missing = 3 * len(self.numbers) - len(counted)  # keys of the last label that have not been met
        counted = np.concatenate([counted, np.zeros((missing, counted.shape[1]))])
        return counted.reshape(len(self.numbers), 3, counted.shape[1]).transpose(1, 0, 2)

    def table(self) -> list[LabelRow]:
        """Precision, recall, F1 and support of each label."""
        right, predicted, gold = self.parts(self.sums.totals())[:, :, 0]
        return label_rows(list(self.numbers), right, predicted, gold)


class EntityMetrics(_SentenceMetrics):
    """Spans of words, right only with the right borders and the right type; the numbers are seqeval's."""

    first = 2  # words, words with the right tag

    def __init__(self, seed: int = 0) -> None:
        super().__init__((), seed)

    def events(self, predicted: Sequence[str], gold: Sequence[str]) -> list[int]:
        """Words, right words, and the spans predicted, given and both."""
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
        """Each word's tag as predicted, as given, and as right."""
        keys = [self.key(tag, 1) for tag in predicted] + [self.key(tag, 2) for tag in gold]
        return keys + [self.key(b, 0) for a, b in zip(predicted, gold, strict=True) if a == b]

    def values(self, totals: Totals) -> dict[str, Floats]:
        """accuracy over the words, and macro_f1 over the tags that occur."""
        right, predicted, gold = self.parts(totals)
        accuracy = share(right.sum(axis=0), gold.sum(axis=0))
        return {"accuracy": accuracy, "macro_f1": macro_f1(right, predicted, gold)}
