"""Metrics of forecasts against the formulas written out."""

from __future__ import annotations

import numpy as np
import pytest

from weft.metrics.forecast import ForecastMetrics, widening


def test_errors_coverage_and_skill() -> None:
    chance = np.random.default_rng(0)
    truth, forecast, naive = chance.normal(size=(3, 20, 4, 1))
    scale = chance.uniform(0.5, 2.0, (20, 1))
    inside = np.abs(forecast - truth) <= 1.0
    metrics = ForecastMetrics()
    for n in range(20):
        metrics.add(forecast[n], truth[n], inside[n], scale[n], {"naive": naive[n]})
    scores = {name: score.value for name, score in metrics.result().items()}
    errors = np.abs(forecast - truth)
    assert scores["mse"] == pytest.approx(np.square(errors).mean())
    assert scores["mae"] == pytest.approx(errors.mean())
    assert scores["mase"] == pytest.approx((errors / scale[:, None]).mean())
    assert scores["coverage"] == pytest.approx(inside.mean())
    assert scores["skill"] == pytest.approx(1 - np.square(errors).sum() / np.square(naive - truth).sum())
    model, simple = metrics.compared()
    assert model["mse"] == pytest.approx(scores["mse"]) and simple["skill"] == pytest.approx(0)
    assert simple["mase"] == pytest.approx((np.abs(naive - truth) / scale[:, None]).mean())
    steps = metrics.steps()
    assert [row["mse"] for row in steps] == pytest.approx(np.square(errors).mean((0, 2)).tolist())
    assert [row["coverage"] for row in steps] == pytest.approx(inside.mean((0, 2)).tolist())


def test_several_targets_count_alike_in_skill() -> None:
    """A column in thousands must not decide alone: errors are taken in units of each column's naive error."""
    metrics = ForecastMetrics()
    truth, scale = np.array([[0.0, 0.0]]), np.array([1.0, 1000.0])
    metrics.add(np.array([[0.5, 0.0]]), truth, None, scale, {"naive": np.array([[1.0, 1000.0]])})
    assert metrics.result()["skill"].value == pytest.approx(1 - 0.25 / 2)
    assert "coverage" not in metrics.result()


def test_a_series_that_stands_still_has_finite_scores() -> None:
    metrics = ForecastMetrics()
    still = np.ones((3, 1))
    metrics.add(still, still, None, np.zeros(1), {"naive": still})
    assert all(np.isfinite(score.value) for score in metrics.result().values())


def test_forecasts_of_one_block_are_resampled_as_one() -> None:
    """Ten copies of each forecast say no more than one of each."""
    truth, forecast, naive = np.random.default_rng(0).normal(size=(3, 30, 4, 1))
    results = {}
    for copies, block in ((1, True), (10, True), (10, False)):
        metrics = ForecastMetrics()
        for n in range(30):
            for _ in range(copies):
                metrics.add(forecast[n], truth[n], None, np.ones(1), {"naive": naive[n]}, n if block else None)
        results[copies, block] = metrics.result()["skill"]
    one, ten, apart = results.values()
    assert ten.value == pytest.approx(one.value) and ten.low == pytest.approx(one.low)
    assert apart.high - apart.low < 0.6 * (ten.high - ten.low)


def test_intervals_of_few_errors_are_wider() -> None:
    """Quantiles of Student's t, from a table, over those of the normal distribution."""
    for share, count, t in ((0.9, 2, 2.920), (0.9, 5, 2.015), (0.9, 30, 1.697), (0.95, 10, 2.228), (0.8, 5, 1.476)):
        normal = {0.8: 1.282, 0.9: 1.645, 0.95: 1.960}[share]
        assert widening(share, count) == pytest.approx(t / normal, rel=0.06)
    assert widening(0.9, 10**6) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("scale", [1e-15, 1.0, 1e15])
def test_skill_does_not_depend_on_the_unit(scale: float) -> None:
    truth, forecast, naive = scale * np.random.default_rng(0).normal(size=(3, 20, 4, 1))
    metrics = ForecastMetrics()
    for n in range(20):
        metrics.add(forecast[n], truth[n], None, np.full(1, scale), {"naive": naive[n]})
    expected = 1 - np.square(forecast - truth).sum() / np.square(naive - truth).sum()
    assert metrics.result()["skill"].value == pytest.approx(expected)


def test_series_that_stand_still_leave_the_interval_of_skill_finite() -> None:
    metrics = ForecastMetrics()
    for value in (1.0, 5.0, 5.0):
        naive = np.full((3, 1), 5.0)
        metrics.add(naive + 0.01, np.full((3, 1), value), None, np.ones(1), {"naive": naive})
    assert metrics.result()["skill"].low > -10
