"""Training by the clock: the speed of the first steps decides how many there are, and the checkpoint keeps that."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.small import stories
from weft.errors import UserError
from weft.runs.driver import resume
from weft.runs.pretrain import pretrain
from weft.training.log import read_metrics
from weft.training.loop import MEASURED, Pace
from weft.training.plan import Training
from weft.training.run import State
from weft.training.signals import Interrupted


@pytest.fixture(autouse=True)
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text(stories(40))
    return tmp_path / "text.txt"


def go(text: Path, out: Path, log: Any = lambda line: None, **training: Any) -> torch.nn.Module:
    settings = {
        "out": str(out),
        "model": {"family": "gpt2", "size": "1x64"},
        "text": {"files": [str(text)]},
        "tokenizer": {"size": 300},
        "objective": {"length": 16},
        "training": {"batch": 4, "log_every": 5, "warmup": 10, **training},
    }
    return pretrain(None, settings, log=log).network


def stored(run: Path) -> dict[str, Any]:
    steps = sorted((run / "run" / "checkpoints").glob("step-*"), key=lambda path: int(path.name[5:]))
    return json.loads((steps[-1] / "state.json").read_text())


def test_the_pace_leaves_out_the_first_line() -> None:
    pace, state = Pace(), State(step=10, seconds=30.0)  # compiling
    assert pace.steps(state, 1.0) is None
    state.step, state.seconds = 20, 31.0
    assert pace.steps(state, 1.0) is None, "a second is too little to tell"
    state.step, state.seconds = 110, 40.0
    assert pace.steps(state, 1.0) == 10 + 600, "ten a second for a minute"
    state.step, state.seconds = 10 + MEASURED, 31.0
    assert pace.steps(state, 1.0) == 10 + 60 * MEASURED, "enough steps tell it too"
    assert pace.steps(state, 1e-6) == state.step + 1


def test_steps_are_the_most_that_minutes_may_bring(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = list[str]()
    monkeypatch.setattr("weft.training.loop.MEASURED", 5)
    plain = go(text, tmp_path / "a", steps=25, warmup=5)
    timed = go(text, tmp_path / "b", said.append, steps=25, warmup=5, minutes=0.3)
    assert any("25 steps are enough, and fit into 0.3 minutes" in line for line in said)
    assert (
        stored(tmp_path / "b")["step"] == 25
        and read_metrics(tmp_path / "b" / "run" / "metrics.jsonl")[-1]["step"] == 25
    )
    for one, other in zip(plain.parameters(), timed.parameters(), strict=True):
        assert torch.equal(one, other), "the same run"


def test_a_timed_run_goes_on_as_it_was_planned(text: Path, tmp_path: Path) -> None:
    said = list[str]()

    def interrupt(line: str) -> None:
        said.append(line)
        if "held-out loss" in line and not any("stopped" in other for other in said):
            said.append("stopped")
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        go(text, tmp_path / "run", interrupt, minutes=0.02)
    assert any("steps fit into 0.02 minutes" in line for line in said)
    before = stored(tmp_path / "run")
    resume(tmp_path / "run", log=said.append)
    after = stored(tmp_path / "run")
    assert before["step"] < before["steps"] == after["steps"] == after["step"]
    rates = [
        line["learning_rate"]
        for line in read_metrics(tmp_path / "run" / "run" / "metrics.jsonl")
        if "learning_rate" in line
    ]
    assert rates[-1] == pytest.approx(0.1 * max(rates), rel=0.5), "it falls to its floor where the time ends"


def test_mistakes(text: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="minutes must be above 0"):
        Training(minutes=0.0)
    with pytest.raises(UserError, match="steps and epochs cannot both"):
        Training(steps=1, epochs=1.0, minutes=1.0)
    from weft.runs.recipes import FinetuneTraining

    with pytest.raises(UserError, match="minutes are for pre-training"):
        FinetuneTraining(minutes=1.0)
