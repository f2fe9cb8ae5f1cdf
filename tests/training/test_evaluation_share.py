"""How many rows evaluations generate: all where they are quick, and the same rows in every one that is compared."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from weft.training import evaluation_share
from weft.training.evaluation_share import EvaluationShare
from weft.training.loop import Moment, limit_of, live_line, record_evaluation
from weft.training.plan import Training
from weft.training.run import State
from weft.training.step import HeldOutMetrics, Setup


class Run:
    """A run of 1,000 seconds and 100 steps that is evaluated after each tenth; a row takes so many seconds."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, seconds: float, rows: int = 500, share: float = 0.1, loss: float = 0.0
    ) -> None:
        self.clock, self.asked, self.said = 0.0, list[tuple[int, int | None]](), list[str]()
        monkeypatch.setattr(evaluation_share, "time", SimpleNamespace(perf_counter=lambda: self.clock))
        self.state = State()

        def evaluate(count: int | None) -> HeldOutMetrics:
            self.asked.append((self.state.step, count))
            self.clock += seconds * (rows if count is None else count)
            return HeldOutMetrics({"bleu": 1.0}, "bleu")

        plan = Training(steps=100, evaluate_every=10, evaluation_share=share)
        nothing: Any = None
        setup = Setup(network=nothing, objective=nothing, feed=nothing, plan=plan, evaluate=evaluate, generated=rows)
        log: Any = SimpleNamespace(line=self.said.append)
        self.metrics = []
        for step in range(10, 101, 10):
            self.state.step = step
            self.metrics.append(EvaluationShare(setup, self.state, log).metrics(10.0 * step, loss))


def test_a_quick_evaluation_generates_all_rows_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, seconds=0.001)
    assert [count for _, count in run.asked] == [50] + [500] * 10 and not run.said
    run = Run(monkeypatch, seconds=0.001, rows=40)
    assert [count for _, count in run.asked] == [40] * 10


def test_a_slow_one_generates_fewer_but_always_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, seconds=0.05)
    counts = [count for _, count in run.asked[1:]]
    assert len(set(counts)) == 1 and 100 <= counts[0] < 500 and len(counts) == 10  # type: ignore[operator]
    assert 90 < run.clock <= 100, "a tenth of the run, and not much less"
    assert run.said == [f"evaluations generate {counts[0]} of 500 held-out rows, so that they take 10 % of the run"]


def test_a_very_slow_one_leaves_the_first_evaluations_to_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, seconds=0.2)
    assert run.asked == [(10, 50), *((step, 100) for step in (70, 80, 90, 100))] and run.clock <= 100
    assert [metrics is not None and "bleu" in metrics.values for metrics in run.metrics] == [False] * 6 + [True] * 4
    assert "the last 4 of 10 evaluations generate 100 of 500 held-out rows" in run.said[0]
    run = Run(monkeypatch, seconds=10.0)
    assert run.said[0].endswith("and take more than 10 % of the run")
    assert run.asked == [(10, 50), (90, 100), (100, 100)], "two at least, or there would be nothing to choose from"


def test_the_loss_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, seconds=0.05, loss=3.0)
    assert 60 < run.clock <= 70 and all(count == run.asked[-1][1] for _, count in run.asked[1:])


def test_without_a_limit_all_is_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, seconds=10.0, share=1.0)
    assert [count for _, count in run.asked] == [None] * 10


def test_a_postponed_evaluation_chooses_no_model() -> None:
    saved: list[dict[str, float]] = []
    records: list[dict[str, Any]] = []
    log: Any = SimpleNamespace(line=lambda text: None, record=records.append)
    state = State(step=10)
    record_evaluation(state, {"words": 2.0}, HeldOutMetrics({}, "postponed"), log, saved.append)
    assert not saved and state.best is None and state.worse == 0 and state.evaluated == 10
    assert records[0]["validation_loss"] == 2.0
    state.step = 20
    record_evaluation(state, {"words": 2.5}, HeldOutMetrics({"bleu": 0.3}, "bleu"), log, saved.append)
    assert saved == [{"loss": 2.5, "bleu": 0.3}] and state.best == -0.3 and state.best_step == 20


def test_the_live_line_says_what_limits() -> None:
    import torch

    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert limit_of(Moment(waited=0.5), 10.0, 0.0, cpu) == "computation"
    assert limit_of(Moment(waited=0.5), 10.0, 1.0, cuda) == "GPU"
    assert limit_of(Moment(waited=0.5), 10.0, 0.01, cuda) == "launching kernels"
    assert limit_of(Moment(waited=2.5), 10.0, 1.0, cuda) == "data 25 %"
    assert limit_of(Moment(waited=2.5, paused=10.0), 10.0, 0.0, cpu) == "evaluation 50 %"
    values = {"step": 5, "loss": math.pi, "learning_rate": 1e-3, "memory": 1e9, "tokens_per_second": 8_000}
    assert "8,000 tokens/s  43 % of peak  limit: GPU" in live_line({**values, "mfu": 0.43, "limit": "GPU"}, 9, "0:01")
    assert "limit" not in live_line({**values, "limit": "computation"}, 9, "0:01")
    assert live_line(values, 9, "0:01").startswith("step 5/9  0:01 left")
    assert live_line(values, None, "0:01").startswith("step 5  0:01 left")
