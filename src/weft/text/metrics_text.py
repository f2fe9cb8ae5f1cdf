"""Scores of what is found in texts: entities, tags, answers, ranked texts; streamed, each with a 95 % interval."""

from __future__ import annotations

import math
import re
import string
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from weft.errors import UserError
from weft.text.metrics import LabelRow, f1_of, label_rows, macro_f1, same_length
from weft.text.resampling import Resampled, Sampled, Sampling, Totals, share
from weft.text.tags import spans_of

Sentences = Sequence[Sequence[str]]


class _Sentences(Sampling):
    """Counts over tagged sentences; a whole sentence is one example, since its words hang together."""

    first = 0  # keys before those of the labels

    def __init__(self, labels: Sequence[str] = (), seed: int = 0) -> None:
        self.numbers = {label: number for number, label in enumerate(labels)}
        self.counts = Resampled(self.first + 3 * len(self.numbers), seed)

    def key(self, label: str, place: int) -> int:
        """Where right (0), predicted (1) and gold (2) of a label are counted; new labels are taken in."""
        return self.first + 3 * self.numbers.setdefault(label, len(self.numbers)) + place

    def add(self, predicted: Sentences, gold: Sentences) -> None:
        """Take in the next sentences: a tag per word each."""
        same_length(predicted, gold, "sentences")
        rows, keys = list[int](), list[int]()
        for row, (p, g) in enumerate(zip(predicted, gold, strict=True)):
            same_length(p, g, f"tags in sentence {self.counts.examples + row + 1}")
            found = self.events(p, g)
            rows += [row] * len(found)
            keys += found
        self.counts.add(len(gold), rows, keys)

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
        right, predicted, gold = self.parts(self.counts.totals())[:, :, 0]
        return label_rows(list(self.numbers), right, predicted, gold)


class Entities(_Sentences):
    """Spans of words, right only with the right borders and the right type; the numbers are seqeval's."""

    first = 2  # words, words with the right tag

    def __init__(self, seed: int = 0) -> None:
        super().__init__((), seed)

    def events(self, predicted: Sequence[str], gold: Sequence[str]) -> list[int]:
        """Words, right words, and the spans found, given and both."""
        p, g = spans_of(predicted, "bio"), spans_of(gold, "bio")  # reads all schemes
        keys = [0] * len(gold) + [1 for a, b in zip(predicted, gold, strict=True) if a == b]
        keys += [self.key(span.label, 1) for span in p] + [self.key(span.label, 2) for span in g]
        both = set(p) & set(g)
        return keys + [self.key(span.label, 0) for span in g if span in both]

    def sampled(self) -> dict[str, Sampled]:
        """f1, precision and recall of all spans together (micro), and accuracy of the words."""
        totals = self.counts.totals()
        right, predicted, gold = self.parts(totals).sum(axis=1)
        values = {
            "f1": f1_of(right, predicted, gold),
            "precision": share(right, predicted),
            "recall": share(right, gold),
            "accuracy": share(totals.sums[1], totals.sums[0]),
        }
        return {name: totals.sampled(value) for name, value in values.items()}

    def table(self) -> list[LabelRow]:
        """Precision, recall, F1 and support of each type, by name."""
        return sorted(super().table())


class WordTags(_Sentences):
    """A tag per word, such as parts of speech; a tag that is not among the labels is one more."""

    def events(self, predicted: Sequence[str], gold: Sequence[str]) -> list[int]:
        """Each word's tag as predicted, as given, and as right."""
        keys = [self.key(tag, 1) for tag in predicted] + [self.key(tag, 2) for tag in gold]
        return keys + [self.key(b, 0) for a, b in zip(predicted, gold, strict=True) if a == b]

    def sampled(self) -> dict[str, Sampled]:
        """accuracy over the words, and macro_f1 over the tags that occur."""
        totals = self.counts.totals()
        right, predicted, gold = self.parts(totals)
        accuracy = share(right.sum(axis=0), gold.sum(axis=0))
        return {"accuracy": totals.sampled(accuracy), "macro_f1": totals.sampled(macro_f1(right, predicted, gold))}


NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
ARTICLE = re.compile(r"\b(?:a|an|the)\b")


def normalized(answer: str) -> str:
    """What counts in an answer: lower case, no punctuation, no articles, single spaces (Rajpurkar et al., 2016)."""
    return " ".join(ARTICLE.sub(" ", answer.lower().translate(NO_PUNCTUATION)).split())


def _overlap(predicted: str, gold: str) -> float:
    """F1 of two normalized answers as bags of words; an empty one is matched by an empty one alone."""
    if predicted == gold:
        return 1.0
    p, g = predicted.split(), gold.split()
    common = 0 if set(p).isdisjoint(g) else sum((Counter(p) & Counter(g)).values())
    return 2 * common / (len(p) + len(g))


def answer_scores(predicted: str, golds: Sequence[str]) -> tuple[float, float]:
    """Exact match and F1 of an answer, the best over the right ones; '' and no right one stand for no answer."""
    found = normalized(predicted)
    rights = [right for gold in golds if (right := normalized(gold))] or [""]
    return float(found in rights), max(_overlap(found, right) for right in rights)


class Answers(Sampling):
    """Answers to questions as SQuAD scores them, the best over the answers that are right."""

    def __init__(self, seed: int = 0) -> None:
        self.sums = Resampled(5, seed)  # exact, f1; answerable, and exact and f1 of these

    def add(self, predicted: str, golds: Sequence[str]) -> tuple[float, float]:
        """Take in the next question ('' says no answer; no golds: there is none); its exact and F1 come back."""
        exact, f1 = answer_scores(predicted, golds)
        amounts = [exact, f1, 1.0, exact, f1] if len(golds) else [exact, f1]
        self.sums.add(1, np.zeros(len(amounts)), np.arange(len(amounts)), amounts)
        return exact, f1

    def sampled(self) -> dict[str, Sampled]:
        """exact and f1 in 0..1; where some questions have no answer and some do, also each kind by itself."""
        totals = self.sums.totals()
        exact, f1, answerable, answerable_exact, answerable_f1 = totals.sums
        values = {"exact": share(exact, totals.sizes), "f1": share(f1, totals.sizes)}
        if 0 < answerable[0] < totals.examples:
            values["answerable_exact"] = share(answerable_exact, answerable, math.nan)
            values["answerable_f1"] = share(answerable_f1, answerable, math.nan)
            values["no_answer_accuracy"] = share(exact - answerable_exact, totals.sizes - answerable, math.nan)
        return {name: totals.sampled(value) for name, value in values.items()}


class Ranking(Sampling):
    """How far up the one right text stands among all texts."""

    def __init__(self, at: int = 10, seed: int = 0) -> None:
        self.at = at
        self.sums = Resampled(4, seed)

    def add(self, place: int | None) -> None:
        """Take in the place of the right text of the next question, from 1; None where it was not found."""
        self.add_many([place])

    def add_many(self, places: Iterable[int | None]) -> None:
        """Take in the places of the right texts of the next questions."""
        places = list(places)
        if any(place is not None and place < 1 for place in places):
            raise UserError(f"place {min(p for p in places if p is not None)}: the first place is 1")
        place = np.array([math.inf if place is None else place for place in places], dtype=np.float64)
        # One text is right, so the best possible gain is 1 and needs no dividing by.
        near = place <= self.at
        gains = np.stack([1 / place, near / np.log2(1 + place), place <= 1, near])  # 4 n
        keys, rows = np.indices(gains.shape)
        self.sums.add(len(places), rows.ravel(), keys.ravel(), gains.ravel())

    def sampled(self) -> dict[str, Sampled]:
        """mrr (the mean of 1 / place), ndcg and recall within the first so many, and recall@1."""
        totals = self.sums.totals()
        names = ("mrr", f"ndcg@{self.at}", "recall@1", f"recall@{self.at}")
        return {name: totals.sampled(share(sums, totals.sizes)) for name, sums in zip(names, totals.sums, strict=True)}
