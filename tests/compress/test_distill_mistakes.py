"""Whatever is wrong with what people ask of a distillation is said in one line, and nothing is left behind."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import weft
from tests.compress.taught import kinds_of, write_texts
from tests.tasks.small import LINES, model_for, pairs, quiet, write_rows
from weft.cli.main import run
from weft.distillation import distill as running
from weft.distillation import report as reporting
from weft.text.tokenizers.training import learn
from weft.training.signals import Interrupted

REST = ["--student", "1x64", "--out", "out", "--steps", "1", "--batch", "4"]


@pytest.fixture(autouse=True)
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports measure how fast models are, which takes longer than these students learn."""
    monkeypatch.setattr(reporting, "write_report", lambda *given, **more: None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, teacher: Path) -> Path:
    """All that a mistake needs."""
    here = tmp_path_factory.mktemp("mistakes")
    (here / "t").symlink_to(teacher)
    write_rows(here / "rows.jsonl", kinds_of(12))
    write_rows(here / "pairs.jsonl", pairs(12))
    write_rows(here / "others.jsonl", [{**row, "label": row["label"].upper()} for row in kinds_of(12)])
    write_rows(here / "one.jsonl", [*kinds_of(11), {"text": "a fish", "label": "fish"}])
    write_rows(here / "questions.jsonl", [{"question": "who?", "context": f"the cat {n}"} for n in range(12)])
    write_texts(here / "texts.txt", kinds_of(12))
    (here / "empty.txt").write_text("\n \n")
    (here / "few.txt").write_text("a cat\nan oak\n")
    tokenizer = learn(LINES, "wordpiece", 200)
    weft.new("bert", tokenizer, size="1x64").save(here / "base")
    model_for("pair", 2, tokenizer, ("greater", "not")).save(here / "pair")
    model_for("classify", 2, tokenizer, ("animal", "plant")).save(here / "two")
    return here


@pytest.fixture
def rows(folder: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--text", "texts.txt"], "a distillation needs a teacher"),
        (["nobody", "--text", "texts.txt"], "'nobody' is neither a folder nor in the local"),
        (["t"], "no text to learn from: give --text FILE of unlabeled texts, or --data FILE of rows"),
        (["t", "--text", "empty.txt"], "empty.txt: there is no text in it"),
        (
            ["t", "--data", "questions.jsonl"],
            "has context and question, as rows of the task answer have; the teacher's",
        ),
        (["t", "--text", "texts.txt", "--stages", "finetune"], "in this order, with distill, not finetune"),
        (["t", "--text", "few.txt"], "few.txt: 2 texts are too few to learn from; 4 are the least"),
        (["t", "--text", "lost.txt"], "lost.txt: no such file"),
        (["base", "--text", "texts.txt"], "a model for fill teaches no task"),
        (["t", "--data", "pairs.jsonl"], "its rows have text)"),
        (["pair", "--data", "rows.jsonl"], "(the teacher's task is pair: its rows have text, pair)"),
        (["pair", "--text", "texts.txt"], "reads pairs: give --data FILE"),
        (["t", "--data", "others.jsonl"], "others.jsonl: no common labels: its rows have ANIMAL, PLANT, STONE, the"),
        (["t", "--data", "one.jsonl"], "one.jsonl line 12: label 'fish' is not one of animal, plant, stone"),
        (["t", "--data", "rows.jsonl", "--column", "label=kind"], "no column 'kind', which --column says is label"),
        (["t", "--text", "texts.txt", "--dev", "texts.txt"], "texts.txt: is both training and held-out data"),
        (["t", "--text", "texts.txt", "--student", "3x255"], "a width of 255 is not a multiple of 64"),
        (["t", "--text", "texts.txt", "--student", "bort"], "no model is called 'bort'; did you mean"),
        (["t", "--text", "texts.txt", "--student", "ngram"], "ngram does not learn from teacher outputs"),
        (["t", "--text", "texts.txt", "--student", "t5:1x64"], "the teacher does not write from what it reads"),
        (["t", "--text", "texts.txt", "--student", "two", "--vocabulary", "90"], "a folder brings its own sizes"),
        (["t", "--text", "texts.txt", "--start", "middle"], "--start 'middle' is not one of layers, scratch"),
        (["t", "--text", "texts.txt", "--temperature", "0"], "temperature must be above 0"),
        (["t", "--text", "texts.txt", "--vocabulary", "9"], "a vocabulary of 9 is too small"),
        (["t", "--text", "texts.txt", "--match", "hats"], "--match 'hats' is not one of states"),
        (["t", "--data", "rows.jsonl", "--dev", "one.jsonl"], "label 'fish' is not one of"),
        (["t", "--text", "texts.txt", "--metric", "accuracy"], "accuracy needs targets: give --dev"),
        (["t", "--text", "texts.txt", "--dev", "rows.jsonl", "--metric", "bleu"], "metric 'bleu' is not one of"),
        (["base", "--pretrain", "--text", "texts.txt", "--curve", "3"], "--curve is for students of a task"),
        (["t", "pair", "--text", "texts.txt"], "pair: is made for pair, the first teacher for classify"),
        (["t", "two", "--text", "texts.txt"], "two: has other labels than the first teacher"),
    ],
)
def test_one_line_and_nothing_left(given: list[str], told: str, rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rest = [] if "--student" in given else REST[:2]
    before = sorted(os.listdir(rows))
    status = run(["distill", *given, *rest, *REST[2:]])
    said = capsys.readouterr().err.strip().splitlines()
    assert status == 2, said
    assert told in said[-1] and said[-1].startswith("weft distill: ") and len(said[-1]) < 400
    assert not (rows / "out").exists()
    assert sorted(os.listdir(rows)) == before


def test_what_is_missing_is_asked_for(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["distill", "t", "--text", "texts.txt", "--out", "out"]) == 2
    assert "which student? give --student SIZE" in capsys.readouterr().err
    assert run(["distill", "t", "--text", "texts.txt", "--student", "1x64"]) == 2
    assert "no folder for the run: give --out FOLDER" in capsys.readouterr().err


def test_rows_with_strange_labels_can_be_passed_over(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["distill", "t", "--data", "one.jsonl", "--on-bad-row", "skip", *REST]) == 0
    shutil.rmtree("out")
    assert "one.jsonl line 12: label 'fish' is not one of" in capsys.readouterr().err


def test_stopped_it_says_how_to_go_on(rows: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also before anything was learned: what the teacher has said by then is kept."""

    def stopped(*given: object) -> object:
        raise Interrupted(2, "stopped while the teacher reads; its outputs so far are cached")

    monkeypatch.setattr(running, "teacher_outputs", stopped)
    with pytest.raises(Interrupted, match="cached; resume with: weft resume out"):
        weft.distill("t", text="texts.txt", student="1x64", out="out", training={"steps": 1})
    monkeypatch.undo()
    monkeypatch.chdir(rows)
    monkeypatch.setenv("WEFT_CACHE", str(here / "cache"))
    assert weft.resume("out", log=quiet).card.teacher == "t"
    shutil.rmtree("out")


def test_insides_that_cannot_be_compared_are_said_before_the_teacher_reads(
    rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["distill", "t", "--text", "texts.txt", "--match", "states"]
    for more, told in (
        (["--map", "9:1", *REST], "map 9:1: the student has 1 layers"),
        (["--student", "lstm:1x64", "--out", "out"], "is of family lstm, which has no layers to compare"),
    ):
        assert run([*given, *more]) == 2
        said = capsys.readouterr().err
        assert told in said and "read anew" not in said
        assert not Path("out").exists()


def test_an_exported_teacher_shows_nothing_of_its_inside(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weft.export("t", "onnx", out=tmp_path / "onnx")
    assert run(["distill", str(tmp_path / "onnx"), "--text", "texts.txt", "--match", "states", *REST]) == 2
    said = capsys.readouterr().err
    assert said.endswith("a model for onnx has no hidden states; take the one it was made of\n")
    assert not Path("out").exists()
