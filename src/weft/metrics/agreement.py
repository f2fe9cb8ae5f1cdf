"""How often two models agree: shares of what was counted, and the similarity of their vectors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.metrics.bootstrap import Bootstrap, Metrics, Replicates, share
from weft.metrics.regression import RegressionMetrics


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
        return {
            name: Replicates(share(part, whole, math.nan), totals.examples, self.shares)
            for name, (part, whole) in zip(self.names, sums, strict=True)
            if whole[0]
        }


class VectorAgreement(Metrics):
    """How alike the vectors of two models are: their cosine where they are equally wide, and their similarities."""

    def __init__(self) -> None:
        self.cosines = Ratios(["cosine"], shares=False)
        self.similarities = RegressionMetrics()
        self.before: tuple[NDArray[Any], NDArray[Any]] | None = None

    def add(self, vector: NDArray[Any], reference: NDArray[Any]) -> None:
        """Add the vectors of the next text; both models are asked how near it is to the one before."""
        self.cosines.add({"cosine": (cosine(vector, reference), 1.0)} if len(vector) == len(reference) else {})
        if self.before is not None:
            self.similarities.add([cosine(vector, self.before[0])], [cosine(reference, self.before[1])])
        self.before = (vector, reference)

    def sampled(self) -> dict[str, Replicates]:
        results = self.cosines.sampled()
        if len(self.similarities.gold) > 1:
            results["similarities"] = self.similarities.sampled()["pearson"]
        return results


def cosine(a: NDArray[Any], b: NDArray[Any]) -> float:
    """The cosine of two vectors; 0 where one is nothing."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / size if size else 0.0
