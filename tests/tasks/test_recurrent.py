"""Recurrent networks that label texts and tokens, on the command line with nothing but a name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import weft
from tests.tasks.small import kinds, quiet, sentences, write_conll, write_rows
from weft.cli.main import run
from weft.config import read_toml
from weft.errors import UserError
from weft.runs.recipes import TaskRecipe


@pytest.mark.parametrize("small", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("task", ["classify", "tag"])
def test_labels_with_no_flags(task: str, small: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = tmp_path / "rows.jsonl"
    if task == "classify":
        write_rows(rows, kinds(90))
    else:
        rows = write_conll(tmp_path / "rows.conll", sentences(60))
    given = ["--task", task, "--model", "lstm", "--data", str(rows), "--out", str(tmp_path / "run")]
    assert run(["finetune", *given, *(["--size", "1x32", "--steps", "30"] if small else [])]) == 0
    assert ("size: 1x256 (--size overrides)" in capsys.readouterr().err) != small
    recipe = read_toml(TaskRecipe, tmp_path / "run/run/recipe.toml")
    assert recipe.model["bidirectional"] is True
    model = weft.load(tmp_path / "run")
    best = {metric.name: metric.value for metric in model.card.metrics}
    assert best["accuracy" if task == "classify" else "f1"] > 0.9, best
    assert json.loads((tmp_path / "run/config.json").read_text())["model_type"] == "weft-lstm"


def test_what_is_asked_for_stays(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", kinds(40))
    settings = {"family": "gru", "size": "2x24", "bidirectional": False, "pooling": "mean", "dropout": 0.1}
    model = weft.finetune(str(rows), task="classify", model=settings, training={"steps": 2}, log=quiet)
    assert (model.config.layers, model.config.width, model.config.bidirectional) == (2, 24, False)
    assert (model.config.pooling, model.config.dropout, model.config.cell) == ("mean", 0.1, "gru")
    with pytest.raises(UserError, match="looks both ways"):
        weft.finetune(str(rows), task="answer", model={"family": "gru"}, log=quiet)
    with pytest.raises(UserError, match="watch_gradients is for language models"):
        weft.finetune(str(rows), task="classify", model=settings, training={"watch_gradients": True}, log=quiet)
