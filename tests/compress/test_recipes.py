"""Distillations by recipe: those that come with the package, and flags above what a file says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import weft
from tests.compress.taught import kinds_of, write_texts
from tests.tasks.small import quiet, write_rows
from weft.cli.main import run
from weft.config import read_toml
from weft.distillation import report as reporting
from weft.distillation.recipe import DistillRecipe

SMALL = ["--steps", "2", "--batch", "8", "--length", "24", "--out", "r"]
SHORT = ["--set", "stages.pretrain.steps=1", "--set", "stages.finetune.steps=1"]


@pytest.fixture(autouse=True)
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports measure how fast models are, which takes longer than these students learn."""
    monkeypatch.setattr(reporting, "write_report", lambda *given, **more: None)


@pytest.mark.slow
def test_the_shipped_recipe_of_a_classifier(teacher: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All of its stages, with a student that is small."""
    write_texts(here / "unlabeled.txt", kinds_of(60, 5))
    rows = write_rows(here / "rows.jsonl", kinds_of(60, 6))
    small = ["--student", "1x64", "--vocabulary", "70", *SMALL, *SHORT]
    assert run(["distill", "distill-reviews", str(teacher), "--data", str(rows), *small]) == 0, capsys.readouterr().err
    assert weft.load("r")("a cat").label in ("animal", "plant", "stone")
    said = read_toml(DistillRecipe, here / "r" / "run" / "recipe.toml")
    assert said.stages.names == ("pretrain", "distill", "finetune") and said.distill.temperature == 2.0
    assert said.training.steps == 2 and said.training.epochs is None  # a flag in place of the recipe's epochs
    assert {path.name for path in (here / "r" / "run" / "stages").iterdir()} >= set(said.stages.names)


def test_the_shipped_recipe_like_distilbert(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = write_texts(here / "corpus.txt", kinds_of(60, 5))
    weft.pretrain(
        model={"family": "bert", "size": "2x64", "context": 32},
        text={"files": [str(lines)]},
        tokenizer={"size": 150},
        training={"steps": 1, "batch": 2},
        out="big",
        log=quiet,
    )
    assert run(["distill", "distill-base", "big", *SMALL]) == 0, capsys.readouterr().err
    student = weft.load("r")
    assert (student.opened.family.name, student.config.layers, student.config.width) == ("distilbert", 1, 64)
    said = read_toml(DistillRecipe, here / "r" / "run" / "recipe.toml")
    assert (said.distill.hard, said.distill.match, said.training.learning_rate) == (0.3, ("cosine",), 5e-4)


def test_flags_and_arguments_stand_above_a_file(
    teacher: Path, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found: list[Any] = []
    monkeypatch.setattr(
        "weft.distillation.distill.go", lambda run, recipe, *_: found.append(recipe) or weft.load(teacher)
    )
    write_texts(here / "texts.txt", kinds_of(12))
    (here / "mine.toml").write_text(
        '[student]\nmodel = "1x64"\n[data]\ntext = ["texts.txt"]\n[distill]\nhard = 0.25\ncurve = 3\n'
        "[training]\nepochs = 5\nlearning_rate = 1e-3\n"
    )
    assert run(["distill", "mine.toml", str(teacher), "--curve", "2", "--steps", "7", "--out", "r"]) == 0
    [recipe] = found
    assert (recipe.distill.hard, recipe.distill.curve, recipe.training.learning_rate) == (0.25, 2, 1e-3)
    assert (recipe.training.steps, recipe.training.epochs, recipe.student.model) == (7, None, "1x64")
    assert recipe.teacher.folders == (str(teacher),) and recipe.data.text == (str(here / "texts.txt"),)
    # In Python by the same name.
    weft.distill(teacher, "mine.toml", distill={"hard": 0.75}, out="s", log=quiet)
    assert (found[1].distill.hard, found[1].distill.curve) == (0.75, 3)
    capsys.readouterr()
    for more, told in (
        (["mine.toml"], "a distillation needs a teacher: give its folder"),
        (["mine.toml", "nobody"], "'nobody' is neither a folder nor in the local"),
        (["lost.toml", str(teacher)], "lost.toml: neither a file nor a recipe of the package"),
    ):
        assert run(["distill", *more, "--out", "t"]) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert told in line
    (here / "mine.toml").write_text('[student]\nmodle = "1x64"\n')
    assert run(["distill", "mine.toml", str(teacher), "--out", "t"]) == 2
    assert "mine.toml [student]: unknown key 'modle'; did you mean" in capsys.readouterr().err
