"""A task without --model or --base takes the family that serves it best from scratch, and says so."""

from __future__ import annotations

from pathlib import Path

import pytest

import weft
from weft.checkpoint.families import FAMILIES
from weft.cli.main import run
from weft.errors import UserError
from weft.runs.preparation import tasks_for
from weft.runs.recipes import FROM_SCRATCH, family_for

ROWS = {
    "classify": ("csv", "text,label\n" + "the loom sang,good\nthe loom broke,bad\n" * 8),
    "tag": ("conll", "the O\nloom B-THING\nsang O\n\nAda B-NAME\nwove O\n\n" * 8),
    "translate": ("tsv", "source\ttarget\n" + "the loom sang\tder Webstuhl sang\nAda wove\tAda webte\n" * 8),
}


@pytest.mark.parametrize("task", ROWS)
def test_a_task_without_a_model(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    suffix, rows = ROWS[task]
    (tmp_path / f"rows.{suffix}").write_text(rows)
    command = [
        "finetune",
        "--task",
        task,
        "--data",
        str(tmp_path / f"rows.{suffix}"),
        "--steps",
        "1",
        "--device",
        "cpu",
    ]
    command += ["--set", "tokenizer.kind=word", *(["--size", "1x64"] if task != "classify" else [])]
    assert run([*command, "--out", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().err
    assert f"model: {FROM_SCRATCH[task]}, from scratch (--model or --base overrides)" in said.splitlines()[0]
    assert weft.load(tmp_path / "run").opened.family.name == FROM_SCRATCH[task]


def test_every_usual_family_can_do_its_task() -> None:
    for task, family in FROM_SCRATCH.items():
        assert task in tasks_for(FAMILIES[family])
    assert family_for("tag", {"base": "x"}, print) == {"base": "x"}
    assert family_for("tag", {"family": "rnn"}, print) == {"family": "rnn"}
    for task in ("pair", "answer"):
        with pytest.raises(UserError, match=f"{task} needs a pretrained model: give --base"):
            family_for(task, {}, print)
