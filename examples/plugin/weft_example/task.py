"""Grades: labels in an order, such as 1 to 5 stars, where the answer is the grade nearest to the expected one.

For a text that might be 1 or 5 stars, `classify` says one of the two; this task says 3, which is less wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weft.tasks.answers import Label
from weft.tasks.base import Example, Prediction
from weft.tasks.classify import TextTask


@dataclass(frozen=True)
class GradeTask(TextTask):
    """One of several ordered labels for each text; their order is the order in `labels`."""

    def grade(self, prediction: Prediction) -> int:
        """The number of the label nearest to the mean of all, each weighted by its probability."""
        probabilities = self.probabilities(prediction)
        return round(float(probabilities @ range(len(probabilities))))

    def answer(self, prediction: Prediction, input: Any = None, **options: Any) -> Label:
        """The grade, with the probability of each."""
        scores = dict(zip(self.labels, self.probabilities(prediction).tolist(), strict=True))
        label = self.labels[self.grade(prediction)]
        return Label(label=label, score=scores[label], scores=scores, **prediction.reading)

    def add(self, metrics: Any, predictions: Sequence[Prediction], examples: Sequence[Example]) -> None:
        """Count the grades given against those of the rows."""
        metrics.add([self.grade(prediction) for prediction in predictions], self.targets(examples).tolist())
