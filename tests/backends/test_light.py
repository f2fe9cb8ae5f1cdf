"""An exported model that labels texts answers without torch, and as torch would have it answer."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.engines import need_engine
from tests.tasks.small import model_for, vocabulary
from weft.checkpoint.card import Window
from weft.cli.main import run
from weft.errors import UserError
from weft.tasks.light import TASKS, open_light
from weft.tasks.model import Model

need_engine("onnx")
LABELS = ("a", "b", "c")
TEXTS = ["the cat is now", "oak", "", "the flint is there again and again " * 9]


def exported(task: str, out: Path) -> Path:
    """An export whose windows are short."""
    model = model_for(task, 1 if task == "regress" else 3, vocabulary(), None if task == "regress" else LABELS)
    card = replace(model.card, window=Window(length=24, stride=18))
    weft.export(Model(replace(model.opened, card=card), task), "onnx", out=out)
    return out


@pytest.mark.parametrize("task", TASKS)
def test_it_answers_as_the_loaded_model(task: str, tmp_path: Path) -> None:
    """Alone and together, with long texts in windows; the graphs are the same, so the numbers are too."""
    folder = exported(task, tmp_path / "model")
    light = open_light(folder)
    assert light is not None
    inputs: list[Any] = [(text, "a cow") for text in TEXTS] if task == "pair" else TEXTS
    answers = light(inputs)
    assert answers == weft.load(folder)(inputs)
    assert max(answer.n_windows for answer in answers) > 1
    for each, answer in zip(inputs, answers, strict=True):
        assert light([each])[0].numbers == pytest.approx(answer.numbers, abs=1e-5)


def test_torch_is_not_imported(tmp_path: Path) -> None:
    folder = exported("classify", tmp_path / "model")
    code = "import sys; from weft.cli.main import run; run(sys.argv[1:]); print('torch' in sys.modules)"
    for more in ([], ["--device", "cpu", "--jsonl"]):
        command = [sys.executable, "-c", code, "predict", str(folder), "the cat", *more]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == "False", done.stdout


def test_tables_go_the_same_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = exported("classify", tmp_path / "model")
    (tmp_path / "rows.csv").write_text("text\nthe cat\noak and flint\n")
    out = tmp_path / "out.csv"
    assert run(["predict", str(folder), "--data", str(tmp_path / "rows.csv"), "--out", str(out)]) == 0
    labels = [answer.label for answer in weft.load(folder)(["the cat", "oak and flint"])]
    assert [line.split(",")[1] for line in out.read_text().splitlines()[1:]] == labels


def test_what_needs_torch_is_left_to_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another task, a folder of an earlier version, an ensemble."""
    model_for("tag", 3, vocabulary(), ("O", "B-X", "I-X")).save(tmp_path / "ours")
    weft.export(weft.load(tmp_path / "ours"), "onnx", out=tmp_path / "tag")
    assert open_light(tmp_path / "ours") is None and open_light(tmp_path / "tag") is None
    folder = exported("classify", tmp_path / "model")
    assert run(["predict", str(folder), str(folder), "the cat"]) == 0
    card = json.loads((folder / "weft.json").read_text())
    (folder / "weft.json").write_text(json.dumps({**card, "graph": None, "files": {}}))
    assert open_light(folder) is None
    assert run(["predict", str(folder), "the cat"]) == 0


def test_all_checks_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = exported("classify", tmp_path / "model")
    card = json.loads((folder / "weft.json").read_text())

    def refused(message: str, trust: bool = False, **graph: Any) -> None:
        values = {**card, "graph": {**card["graph"], **graph}, **({"files": {}} if trust else {})}
        (folder / "weft.json").write_text(json.dumps(values))
        with pytest.raises(UserError, match=message):
            open_light(folder)

    refused("not as it was exported: weft.json has changed", context=47)
    refused("the model only 5", trust=True, vocabulary=5)
    refused("context must be between 1 and", trust=True, context=0)
    refused("width must be between 1 and", trust=True, width=1 << 30)  # it decides how much memory a graph may hold
    refused("scores for a head of 9 outputs", trust=True, outputs={"classify": 9})
    refused("gives outputs of", trust=True, outputs={"tag": 3})
    refused("are expected", trust=True, segments=1)
    (folder / "weft.json").write_text(json.dumps(card))
    light = open_light(folder)
    assert light is not None
    nothing = np.full((1, 3), np.nan, np.float32)
    monkeypatch.setattr(light.opened.graph, "computed", lambda *given: nothing)
    with pytest.raises(UserError, match="not a number"):
        light(["the cat"])
