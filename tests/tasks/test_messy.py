"""The first minutes of a new user: messy files and rows in memory, each to a trained model without a further flag."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.data import messy
from tests.tasks.small import quiet
from weft.cli.main import run
from weft.errors import UserError
from weft.runs.finetune import finetune
from weft.training.run import Run
from weft.training.signals import Interrupted

ROWS = messy.rows(40)
SMALL = ["--model", "bert", "--size", "1x64", "--set", "model.context=32"]
SMALL += ["--set", "tokenizer.size=200", "--steps", "2", "--batch", "8"]
MODEL: dict[str, Any] = {"family": "bert", "size": "1x64", "context": 32}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["semicolons.csv", "cp1252.csv", "array.json", "classes", "no-header.csv"])
def test_a_messy_file_becomes_a_model(name: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    messy.FILES[name](here / name, ROWS)
    assert run(["finetune", "--task", "classify", "--data", name, "--out", "out", *SMALL]) == 0
    err = capsys.readouterr().err
    assert all(err.count(line) == 1 for line in err.splitlines() if line.startswith("weft: note: "))
    assert weft.load("out").card.labels == ("negative", "positive")
    assert run(["evaluate", "out", "--data", name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["examples"] == 40
    assert run(["predict", "out", "--data", name]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 40


def test_columns_that_were_found_are_remembered(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    messy.FILES["odd-names.csv"](here / "odd-names.csv", ROWS)
    assert run(["finetune", "--task", "classify", "--data", "odd-names.csv", "--out", "out", *SMALL]) == 0
    assert weft.load("out").card.columns == {"text": "Nachricht", "label": "Abteilung"}
    Path("new.csv").write_text("Nachricht,Antwort\nso fine,yes it is so\nso bad,no it is not\n")
    capsys.readouterr()
    assert run(["predict", "out", "--data", "new.csv"]) == 0
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()] == ["fine", "bad"]


def taught(data: Any, **more: Any) -> weft.Model:
    given = {"task": "classify", "model": MODEL, "tokenizer": {"size": 200}, "training": {"steps": 2, "batch": 8}}
    return finetune(data, log=quiet, **{**given, **more})


def test_rows_in_memory_survive_for_resume(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = ({"text": text, "label": label} for text, label in ROWS)
    with monkeypatch.context() as patch:
        patch.setattr("weft.runs.finetune.drive", _stopped)
        with pytest.raises(Interrupted):
            taught(rows, dev=ROWS[:10], out="out")
    kept = Path("out/run/data/train.jsonl")
    assert len(kept.read_text().splitlines()) == 40 and Path("out/run/data/dev.jsonl").exists()
    model = weft.resume("out")
    assert model.card.labels == ("negative", "positive") and Run(Path("out")).metrics.exists()


def _stopped(*_: Any) -> None:
    raise Interrupted(15, "stopped")


def test_bad_rows_in_memory_leave_nothing_behind() -> None:
    with pytest.raises(UserError, match=r"data row 2, column 'text': a cell holds a object"):
        taught([{"text": "a", "label": "b"}, {"text": object(), "label": "b"}], out="out")
    assert not Path("out").exists()


def test_evaluate_takes_rows_in_memory(here: Path) -> None:
    model = taught(ROWS)
    assert model.evaluate(ROWS[:10]).examples == 10
    found = model.evaluate({"text": [text for text, _ in ROWS], "label": [label for _, label in ROWS]})
    assert found.examples == 40 and found.data == "data"


def test_a_giant_text_is_announced_before_it_is_read(here: Path) -> None:
    lines: list[str] = []
    rows = [*ROWS, ("word " * 240_000, "positive")]
    given = {"model": MODEL, "tokenizer": {"size": 200}, "training": {"steps": 1, "batch": 2}}
    finetune(rows, log=lines.append, task={"name": "classify", "long": "truncate"}, **given)
    notes = [number for number, line in enumerate(lines) if "a text of 1.2 million characters" in line]
    plan = next(number for number, line in enumerate(lines) if "plan: " in line)
    assert notes and notes[0] < plan and "data row 41" in lines[notes[0]]
