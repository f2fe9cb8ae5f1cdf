"""Metrics of extractive answers, as SQuAD has them: exact match and F1, with intervals."""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np

from weft.metrics.bootstrap import Floats, SummedMetrics, Totals, share

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
    answer = normalized(predicted)
    rights = [right for gold in golds if (right := normalized(gold))] or [""]
    return float(answer in rights), max(_overlap(answer, right) for right in rights)


class AnswerMetrics(SummedMetrics):
    """Answers to questions as SQuAD scores them, the best over the answers that are right."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(5, seed)  # exact, f1; answerable, and exact and f1 of these

    def add(self, predicted: str, golds: Sequence[str]) -> tuple[float, float]:
        """Take in the next question ('' is no answer; no golds: there is none); its exact and F1 come back."""
        exact, f1 = answer_scores(predicted, golds)
        amounts = [exact, f1, 1.0, exact, f1] if len(golds) else [exact, f1]
        self.sums.add(1, np.zeros(len(amounts)), np.arange(len(amounts)), amounts)
        return exact, f1

    def values(self, totals: Totals) -> dict[str, Floats]:
        """exact and f1 in 0..1; where some questions have no answer and some do, also each kind by itself."""
        exact, f1, answerable, answerable_exact, answerable_f1 = totals.sums
        values = {"exact": share(exact, totals.sizes), "f1": share(f1, totals.sizes)}
        if 0 < answerable[0] < totals.examples:
            values["answerable_exact"] = share(answerable_exact, answerable, math.nan)
            values["answerable_f1"] = share(answerable_f1, answerable, math.nan)
            values["no_answer_accuracy"] = share(exact - answerable_exact, totals.sizes - answerable, math.nan)
        return values
