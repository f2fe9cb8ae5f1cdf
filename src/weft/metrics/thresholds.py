"""Where to draw the line between yes and no: the threshold that scores best on labeled data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from weft.errors import UserError

FAR = 1e30  # stands for infinity: a threshold must fit into JSON


def best_thresholds(scores: ArrayLike, gold: ArrayLike) -> list[float]:
    """Per label (column) the threshold of the highest F1, where a label is set when score >= threshold.

    It lies half-way between two neighboring scores; it is 0.5 for a label without a positive example.
    """
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
        if last + 1 < len(ordered):
            middle = lowest - (lowest - float(ordered[last + 1])) / 2
            thresholds.append(middle if middle > ordered[last + 1] else lowest)
        else:
            thresholds.append(lowest / 2 if lowest > 0 else lowest)  # all are set, and those a little lower would be
    return thresholds


def best_no_answer(margin: Sequence[float], if_answered: Sequence[float], if_not: Sequence[float]) -> float:
    """The threshold that earns most, where a question is answered when margin <= threshold.

    `margin` is the score of "no answer" less that of the best span. The threshold lies half-way between two
    neighboring margins, or 1 beyond the last one.
    """
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
