"""Metrics of regression: correlations and errors, with intervals."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import UserError
from weft.metrics.bootstrap import REPLICATES, Floats, Metrics, Replicates, drawn, same_length

TINY = 1e-28  # the mean of equal numbers may miss them by a rounding: squared, that is no spread


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


def ranks(values: NDArray[Any], weights: Floats | None = None) -> Floats:
    """The rank of each value (equal ones share the mean of theirs) when each counts `weights` times, or once."""
    groups = np.unique(values, return_inverse=True)[1] if weights is None else values
    sizes = np.bincount(groups, weights)
    return (np.cumsum(sizes) - (sizes - 1) / 2)[groups]


class RegressionMetrics(Metrics):
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

    def sampled(self) -> dict[str, Replicates]:
        """pearson, spearman, mse, mae, r2; the correlations are 0 where one side does not vary."""
        if not self.gold:
            raise UserError("no examples to score")
        p, g = np.array(self.predicted), np.array(self.gold)
        groups = [np.unique(values, return_inverse=True)[1] for values in (p, g)]
        distance = p - g
        squares, sizes = distance * distance, np.abs(distance)
        values = {name: np.full(REPLICATES + 1, math.nan) for name in ("pearson", "spearman", "mse", "mae", "r2")}
        for column in range(REPLICATES + 1):
            weights = drawn(self.seed, column, len(p)) if column else np.ones(len(p))
            if not (n := weights.sum()):
                continue
            lost, around = weights @ squares, g - weights @ g / n
            spread = weights @ (around * around)
            values["mse"][column], values["mae"][column] = lost / n, weights @ sizes / n
            values["r2"][column] = 1 - lost / spread if spread > TINY * (weights @ (g * g)) else math.nan
            values["pearson"][column] = _correlation(p, g, weights)
            if column <= self.ranked:
                values["spearman"][column] = _correlation(ranks(groups[0], weights), ranks(groups[1], weights), weights)
        if g.min() == g.max():  # as scikit-learn: no spread to explain
            values["r2"][:] = float(not squares.any())
        for name in ("pearson", "spearman"):
            if p.min() == p.max() or g.min() == g.max():
                values[name][:] = 0.0
        return {name: Replicates(columns, len(p)) for name, columns in values.items()}
