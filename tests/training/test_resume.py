"""A run killed at any moment and gone on with ends as the unbroken run does, to the last bit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.training.small import family_for, stories
from weft.training.log import TIMES, read_metrics

BROKEN = Path(__file__).parent / "broken.py"


def settings(objective: str, text: Path) -> dict[str, Any]:
    """Small, with everything on that has a state: dropout, accumulation, EMA, evaluations."""
    return {
        "seed": 3,
        "model": {"family": family_for(objective), "size": "1x64"},
        "text": {"files": [str(text)]},
        "tokenizer": {"size": 300},
        "objective": {"name": objective, "length": 32, "rows": "stream"},
        "training": {
            "batch": 12, "pass_tokens": 150, "ema": 0.9, "log_every": 7,
            "evaluate_every": 10, "save_every": 4, "threads": 1,
        },
    }  # fmt: skip


def contents(out: Path, ema: bool = True) -> dict[str, Any]:
    """All that must be equal: weights, optimizer, EMA, history, state, and the record without its times."""
    last = max((out / "run" / "checkpoints").glob("step-*"), key=lambda path: int(path.name[5:]))
    found: dict[str, Any] = {path.stem: load_file(path) for path in last.glob("*.safetensors")}
    assert {"model", "optimizer", "history", *(["ema"] if ema else [])} == set(found) - {"beside"}
    state = json.loads((last / "state.json").read_text())
    found["state"] = {
        name: value
        for name, value in state.items()
        if name not in ("seconds", "evaluating", "metrics", "recipe", "sha256")
    }
    lines = read_metrics(out / "run" / "metrics.jsonl")
    found["metrics"] = [{name: value for name, value in line.items() if name not in TIMES} for line in lines]
    found["best"] = load_file(out / "model.safetensors")
    return found


def same(left: Any, right: Any) -> bool:
    if isinstance(left, dict) and left and all(hasattr(value, "dtype") for value in left.values()):
        return set(left) == set(right) and all(
            left[name].dtype == right[name].dtype and left[name].equal(right[name]) for name in left
        )
    return left == right


def broken(objective: str, kills: int, folder: Path) -> None:
    text = folder / "text.txt"
    text.write_text(stories(60))
    given = settings(objective, text)
    given["training"]["epochs"] = 2 if kills <= 3 else 3
    (folder / "settings.json").write_text(json.dumps(given))
    environment = {**os.environ, "WEFT_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(BROKEN), str(folder / "settings.json"), str(folder / "run"), str(kills), "1"]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert found.returncode == 0, found.stderr[-3000:]
    said = json.loads(found.stdout.splitlines()[-1])
    assert said["kills"] == kills and said["in_saves"] >= kills // 3, said
    whole, parts = contents(folder / "run-whole"), contents(folder / "run")
    assert whole["state"]["finished"] and len(whole["metrics"]) > 5
    for name in whole:
        assert same(whole[name], parts[name]), name


@pytest.mark.parametrize("objective", ["next", "mlm+nsp", "rtd"])
def test_three_kills(objective: str, tmp_path: Path) -> None:
    broken(objective, 3, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["next", "mlm+nsp", "spans", "rtd", "permutation"])
def test_twenty_kills(objective: str, tmp_path: Path) -> None:
    broken(objective, 20, tmp_path)


def test_across_the_border_of_two_phases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short rows first, long rows after: whichever side of the border a run goes on from, it ends the same."""
    from weft.runs.driver import resume
    from weft.runs.pretrain import pretrain

    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    text = tmp_path / "text.txt"
    text.write_text(stories(60))
    given = settings("mlm", text)
    given["objective"] |= {"length": 64, "short": 16, "short_share": 0.6, "rows": "stream"}
    given["training"] = {"steps": 6, "batch": 2, "keep": 20, "save_every": 1, "log_every": 1, "threads": 1}
    given["training"] |= {"evaluate_every": 6}
    said: list[str] = []
    pretrain(None, {**given, "out": str(tmp_path / "whole")}, log=said.append)
    assert "6 steps of 2 rows of about 64 tokens" in "".join(said)
    assert "the first 4 of them 8 rows of about 16 tokens" in "".join(said)
    lines = [line for line in read_metrics(tmp_path / "whole/run/metrics.jsonl") if "learning_rate" in line]
    tokens = [line["tokens"] for line in lines]
    assert tokens == [128 * step for step in range(1, 7)], "a step of either phase has as many tokens"
    for step in (3, 4):  # the last short one is step 4
        shutil.copytree(tmp_path / "whole", tmp_path / str(step))
        for path in (tmp_path / str(step) / "run/checkpoints").glob("step-*"):
            if int(path.name[5:]) > step:
                shutil.rmtree(path)
        resume(tmp_path / str(step), log=lambda _: None)
        whole, parts = contents(tmp_path / "whole", ema=False), contents(tmp_path / str(step), ema=False)
        for name in whole:
            assert same(whole[name], parts[name]), (step, name)
