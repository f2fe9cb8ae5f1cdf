"""Metrics of forecasts: errors, errors by those of naive forecasts, and how often intervals hold the true value."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from statistics import NormalDist
from typing import Any

import numpy as np

from weft.metrics.bootstrap import Floats, Metrics, Ratios, Replicates

TINY = 1e-12  # a forecast that is so near, as a share of the value, is exact
HOPELESS = 1e9  # times the error of the naive forecast


def widening(share: float, count: int) -> float:
    """By how much an interval for such a share is wider that so few independent errors decide: Student's t over normal.

    By the expansion of Cornish and Fisher.
    """
    z = NormalDist().inv_cdf((1 + share) / 2)
    return 1 + (z**2 + 1) / (4 * count) + (5 * z**4 + 16 * z**2 + 3) / (96 * count**2)


class ForecastMetrics(Metrics):
    """skill, mse, mae, mase and coverage of forecasts, and the same of baselines beside them.

    mase: mean absolute error as a share of that of the (seasonal) naive forecast over the past of the series (Hyndman
    and Koehler, 2006). skill: 1 - mse / that of the naive forecast of the same steps, so that more is better.
    """

    names = ("mse", "mae", "mase", "coverage", "lost")

    def __init__(self) -> None:
        self.ratios = Ratios(self.names, shares=False)
        self.block: Hashable = None
        self.parts: dict[str, tuple[float, float]] = {}  # of the block that may go on
        self.by_step: dict[str, Floats] = {}  # sums by step ahead
        self.baselines: dict[str, dict[str, Floats]] = {}  # by name: sums of squares, of sizes, of scaled sizes

    def add(
        self,
        forecast: Floats,
        truth: Floats,
        inside: Any,
        scale: Floats,
        baselines: Mapping[str, Floats],
        block: Hashable = None,
    ) -> None:
        """Take in one forecast: H T each; `inside`: whether the interval holds the truth, None where there is none.

        `scale`: T, the mean error of the naive forecast in the past. Of several targets it gives `skill` one unit.
        `block`: forecasts of one block that follow each other overlap, and are resampled as one example.
        """
        errors, count = forecast - truth, float(truth.size)
        scale = np.where(scale > 0, scale, np.maximum(1.0, np.abs(truth).max(0)))
        unit = scale if len(scale) > 1 else np.ones(1)
        naive = float(np.square((baselines["naive"] - truth) / unit).sum())
        naive = max(naive, count * float(np.square(TINY * truth / unit).max()), 1e-300)
        lost = float(np.square(errors / unit).sum())
        parts = {"mse": (float(np.square(errors).sum()), count), "mae": (float(np.abs(errors).sum()), count)}
        parts |= {"mase": (float((np.abs(errors) / scale).sum()), count), "lost": (lost, naive)}
        if inside is not None:
            parts["coverage"] = (float(np.sum(inside)), count)
        if self.block is not None and block == self.block:
            parts = {name: (a + self.parts[name][0], b + self.parts[name][1]) for name, (a, b) in parts.items()}
        elif self.parts:
            self.ratios.add(self.parts)
        self.block, self.parts = block, parts
        steps = {"mse": np.square(errors).mean(1), "mae": np.abs(errors).mean(1)}
        steps |= {} if inside is None else {"coverage": np.asarray(inside, dtype=np.float64).mean(1)}
        for name, values in {**steps, "count": np.ones(len(errors))}.items():
            self.by_step[name] = self.by_step.get(name, 0.0) + values
        for name, values in {"model": forecast, **baselines}.items():
            sums, missed = self.baselines.setdefault(name, {}), values - truth
            amounts = {"mse": np.square(missed).sum(), "mae": np.abs(missed).sum()}
            amounts |= {"mase": (np.abs(missed) / scale).sum(), "lost": np.square(missed / unit).sum()}
            for key, value in {**amounts, "naive": naive, "count": count}.items():
                sums[key] = sums.get(key, np.zeros(())) + value

    def sampled(self) -> dict[str, Replicates]:
        if self.parts:
            self.ratios.add(self.parts)
            self.block, self.parts = None, {}
        ratios = self.ratios.sampled()
        lost = ratios.pop("lost")
        skills = 1 - lost.values
        skills[1:][skills[1:] < -HOPELESS] = np.nan  # a resampling of series that stand still says nothing
        return {"skill": Replicates(skills, lost.examples), **ratios}

    def compared(self) -> list[dict[str, Any]]:
        """A row for the model and one for each baseline."""
        rows = []
        for name, sums in self.baselines.items():
            means = {key: float(sums[key] / sums["count"]) for key in ("mse", "mae", "mase")}
            rows.append({"forecast": name, **means, "skill": float(1 - sums["lost"] / sums["naive"])})
        return rows

    def steps(self) -> list[dict[str, Any]]:
        """A row for each step ahead."""
        sums, count = self.by_step, self.by_step["count"]
        names = [name for name in ("mse", "mae", "coverage") if name in sums]
        return [{"step": n + 1, **{name: float(sums[name][n] / count[n]) for name in names}} for n in range(len(count))]
