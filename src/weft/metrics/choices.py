"""Metrics of multiple choice: one option of several, or every option judged by itself."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from weft.metrics.bootstrap import Floats, SummedMetrics, Totals, share
from weft.metrics.classification import f1_of
from weft.metrics.generation import answer_scores


class ChoiceMetrics(SummedMetrics):
    """The share of questions whose right option was chosen, beside guessing and the most frequent place."""

    SUMS = 5  # right, chance, clozes, and exact and F1 of these; then how often each place holds the right option

    def __init__(self, seed: int = 0) -> None:
        super().__init__(self.SUMS + 2, seed)

    def add(self, chosen: int, right: Collection[int], options: Sequence[str], cloze: bool = False) -> None:
        """Take in the next question: the numbers of the chosen and of the right options; `cloze`: they fill a gap."""
        keys, amounts = [0, 1], [float(chosen in right), len(right) / len(options)]
        if cloze:
            exact, f1 = answer_scores(options[chosen], [options[number] for number in right])
            keys, amounts = [*keys, 2, 3, 4], [*amounts, 1.0, exact, f1]
        keys += [self.SUMS + number for number in right]
        self.sums.add(1, np.zeros(len(keys)), keys, [*amounts, *[1.0] * len(right)])

    def values(self, totals: Totals) -> dict[str, Floats]:
        """accuracy, chance, majority (one place for all); of clozes exact and F1 of words, as ReCoRD has them."""
        right, chance, clozes, exact, f1 = totals.sums[: self.SUMS]
        values = {name: share(each, totals.sizes) for name, each in (("accuracy", right), ("chance", chance))}
        most = int(totals.sums[self.SUMS :, 0].argmax())
        values["majority"] = share(totals.sums[self.SUMS + most], totals.sizes)
        if clozes[0]:
            values |= {"exact": share(exact, clozes, np.nan), "f1": share(f1, clozes, np.nan)}
        return values


class SelectionMetrics(SummedMetrics):
    """Any number of right options, as MultiRC scores them."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(6, seed)  # right, predicted and gold options; questions all right; options, right decisions

    def add(self, chosen: Collection[int], right: Collection[int], options: int) -> None:
        """Take in the next question: the numbers of the chosen and of the right options, and how many there are."""
        hits, wrong = len(set(chosen) & set(right)), len(set(chosen) ^ set(right))
        amounts = [hits, len(chosen), len(right), float(not wrong), options, options - wrong]
        self.sums.add(1, np.zeros(6), np.arange(6), amounts)

    def values(self, totals: Totals) -> dict[str, Floats]:
        """f1a: F1 over all options; exact: questions with every option right; accuracy of options, and of majority."""
        right, predicted, gold, exact, options, decided = totals.sums
        most = gold if 2 * gold[0] > options[0] else options - gold  # all of them are right, or none
        return {
            "f1a": f1_of(right, predicted, gold),
            "exact": share(exact, totals.sizes),
            "accuracy": share(decided, options),
            "majority": share(most, options),
        }
