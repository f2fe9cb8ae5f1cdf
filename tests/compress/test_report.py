"""What is told of a student: measured against its teacher, and how much text it took."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.compress.models import BY_TASK, CASES, Case, drawn, knowing, tokenizer_for, written
from tests.compress.test_compare import Links
from tests.tasks.small import kinds, quiet, write_rows
from weft.cli.main import run as command
from weft.comparison.compare import rows_of
from weft.data.dataset import Dataset
from weft.distillation.dataset import held_texts, part_of
from weft.distillation.recipe import DistillDataSection
from weft.distillation.report import read_table
from weft.errors import UserError
from weft.runs import finetune
from weft.tasks.base import Example
from weft.tasks.classify import TextTask
from weft.tasks.registry import task_for
from weft.tasks.tag import TagTask, joined
from weft.training.signals import Interrupted

TEXTS = 80
STAGES = ("pretrain", "distill", "finetune")
PLAN = {"steps": 6, "batch": 8, "evaluate_every": 6, "learning_rate": 1e-3}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teacher")
    knowing(BY_TASK["classify"], tokenizer_for(BY_TASK["classify"]), kinds(60)).save(folder / "big")
    return folder / "big"


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    (folder / "texts.txt").write_text("".join(f"{row['text']} {n}\n" for n, row in enumerate(kinds(TEXTS, 3))))
    write_rows(folder / "dev.jsonl", kinds(30, 4))
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))


def told(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "run" / "distill.json").read_text())


def steps_of(folder: Path) -> int:
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return max(json.loads(line)["step"] for line in lines)


def test_a_student_is_held_beside_its_teacher_and_the_curve_costs_no_teacher(
    teacher: Path, rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "small"
    more = [f"training.{key}={value}" for key, value in PLAN.items()]
    asked = ["distill", str(teacher), "--text", str(rows / "texts.txt"), "--dev", str(rows / "dev.jsonl"), "--out"]
    flags = ["--student", "1x64", "--start", "scratch", "--curve", "2"]
    assert command([*asked, str(out), *flags, *(word for each in more for word in ("--set", each))]) == 0
    said, found = capsys.readouterr(), told(out)
    student, big = weft.load(out), weft.load(teacher)
    scores = {name: weft.load(each).evaluate(rows / "dev.jsonl").scores for name, each in (("a", teacher), ("b", out))}
    models = found["comparison"]["models"]
    assert [each["name"] for each in models] == ["big (teacher)", "small (student)"]
    for each, name in zip(models, "ab", strict=True):
        assert each["scores"]["accuracy"]["value"] == scores[name]["accuracy"].value
    assert found["kept"][0] == pytest.approx(scores["b"]["accuracy"].value / scores["a"]["accuracy"].value)
    texts = [row["text"] for row in kinds(30, 4)]
    same = [a.label == b.label for a, b in zip(student(texts), big(texts), strict=True)]  # type: ignore[attr-defined]
    assert models[1]["agreement"]["same"]["value"] == pytest.approx(sum(same) / len(same))

    # Each text was read by the teacher once, whatever the students of the curve were trained on.
    assert found["teacher_forwards"] == TEXTS + 30 and found["texts"] == TEXTS
    assert [point["texts"] for point in found["curve"]] == [TEXTS // 2, TEXTS]
    card = {metric.name: metric.value for metric in student.card.metrics}
    assert found["curve"][-1]["score"] == card["accuracy"]
    half = out / "run" / "curve" / "1-of-2"
    about = json.loads((half / "run" / "run.json").read_text())
    assert about["teacher_forwards"] == 0 and about["rows"]["train"] == TEXTS // 2
    assert steps_of(half) == steps_of(out) == PLAN["steps"] and not (half / "run" / "distill.json").exists()

    table = read_table(out)
    assert table is not None and table[0] in said.out and "small (student)" in said.out
    page = Links()
    text = (out / "run" / "distill.html").read_text()
    page.feed(text)
    assert not page.open and not page.points and "How much text is enough" in text

    # A report that was lost, or not come to, is made when the run is gone on with.
    (out / "run" / "distill.json").unlink()
    weft.resume(out, log=quiet)
    assert told(out)["kept"] == found["kept"] and told(out)["curve"] == found["curve"]


def test_without_labels_a_student_is_held_to_what_its_teacher_says(teacher: Path, rows: Path, tmp_path: Path) -> None:
    weft.distill(
        teacher,
        text=rows / "texts.txt",
        student={"model": "1x64", "start": "scratch"},
        out=tmp_path / "small",
        training=PLAN,
        log=quiet,
    )
    found = told(tmp_path / "small")
    assert found["kept"] is None and found["comparison"]["labeled"] == 0 and not found["curve"]
    assert found["metric"] == "agreement" and "same" in found["comparison"]["models"][1]["agreement"]
    assert "agrees with big (teacher) by" in found["summary"] and "keeps" not in found["summary"]


@pytest.mark.slow
def test_stages_are_runs_of_their_own_and_are_gone_on_with(
    teacher: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_rows(tmp_path / "rows.jsonl", kinds(40, 5))
    short = {"steps": 3, "batch": 8, "evaluate_every": 3}
    out = tmp_path / "small"
    real = finetune.go

    def stopped(*_: Any) -> Any:
        raise Interrupted(2, "stopped")

    monkeypatch.setattr(finetune, "go", stopped)
    with pytest.raises(Interrupted, match=f"stopped; resume with: weft resume {out}"):
        weft.distill(
            teacher,
            text=rows / "texts.txt",
            data=data,
            dev=rows / "dev.jsonl",
            student={"model": "1x64", "start": "scratch"},
            out=out,
            training=short,
            stages={"names": ["pretrain", "distill", "finetune"], "pretrain": short, "finetune": short},
            log=quiet,
        )
    stages = out / "run" / "stages"
    before = {name: (stages / name / "model.safetensors").read_bytes() for name in ("pretrain", "distill")}
    assert (out / "model.safetensors").read_bytes() == before["distill"] != before["pretrain"]
    monkeypatch.setattr(finetune, "go", real)
    heard = list[str]()
    model = weft.resume(out, log=heard.append)
    assert {name: (stages / name / "model.safetensors").read_bytes() for name in before} == before
    assert (out / "model.safetensors").read_bytes() == (stages / "finetune" / "model.safetensors").read_bytes()
    assert (out / "model.safetensors").read_bytes() != before["distill"]
    assert (model.task, model.card.teacher, model.card.base) == ("classify", "big", "1x64")
    assert any("0 read anew" in line for line in heard)
    # The last stage learns from labels alone, gently.
    assert len((stages / "rows.jsonl").read_text().splitlines()) == 40
    rates = [
        tomllib.loads((stages / name / "run" / "recipe.toml").read_text())["training"]["learning_rate"]
        for name in STAGES
    ]
    assert rates[0] > rates[1] > rates[2]
    found = told(out)
    assert [each["stage"] for each in found["stages"]] == ["distill", "finetune"]
    scores = {metric.name: metric.value for metric in model.card.metrics}
    assert (
        found["stages"][1]["score"] == scores["accuracy"] == model.evaluate(rows / "dev.jsonl").scores["accuracy"].value
    )
    assert "Stage by stage" in (out / "run" / "distill.html").read_text()


def test_stages_that_cannot_be_are_named(teacher: Path, rows: Path, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"text": rows / "texts.txt", "out": tmp_path / "small", "log": quiet}
    with pytest.raises(UserError, match="stages are some of pretrain, distill, finetune in this order"):
        weft.distill(teacher, student="1x64", stages={"names": ["finetune", "distill"]}, **asked)
    with pytest.raises(UserError, match="nothing to fine-tune on: leave out the stage finetune"):
        weft.distill(teacher, student="1x64", stages={"names": ["distill", "finetune"]}, **asked)
    with pytest.raises(UserError, match="cnn is not pre-trained on text: leave out the stage pretrain"):
        weft.distill(teacher, student="cnn", stages={"names": ["pretrain", "distill"]}, **asked)
    assert not (tmp_path / "small").exists()


@pytest.mark.parametrize("case", [case for case in CASES if case.right], ids=lambda case: case.task)
def test_rows_of_stages_are_read_as_they_were(case: Case, tmp_path: Path) -> None:
    """What a stage writes for the next is the same example again."""
    task = task_for(drawn(case, tokenizer_for(case), 1).opened, case.task)
    examples = list(rows_of(task, {}, written(case, tmp_path, 8)).examples)
    again = write_rows(tmp_path / "again.jsonl", [task.to_record(example) for example in examples])
    for one, two in zip(examples, rows_of(task, {}, again).examples, strict=True):
        assert (one.texts, one.target) == (two.texts, two.target)


def test_a_student_of_words_is_held_beside_its_teacher_on_held_out_text(rows: Path, tmp_path: Path) -> None:
    case = BY_TASK["fill"]
    drawn(case, tokenizer_for(case), 1).save(tmp_path / "big")
    more: dict[str, Any] = {"distill": {"pretrain": True, "length": 16}, "training": {"steps": 2, "batch": 4}}
    student = {"model": "1x64", "start": "scratch"}
    weft.distill(tmp_path / "big", text=rows / "texts.txt", student=student, out=tmp_path / "s", log=quiet, **more)
    found = told(tmp_path / "s")["comparison"]
    assert (found["task"], found["metric"], found["agreement_metric"]) == ("fill", "filled", "same")
    assert found["models"][1]["name"] == "s (student)" and found["models"][1]["costs"]["p50"] > 0
    texts = (rows / "texts.txt").read_text().splitlines()
    held = [each.texts[0] for each in held_texts(DistillDataSection(text=(str(rows / "texts.txt"),), holdout=0.1))]
    assert held == texts[-len(held) :] and 1 <= len(held) <= 8


def test_a_greater_part_holds_every_smaller_one() -> None:
    rows = [Example((str(n),), None, "") for n in range(100)]
    whole = Dataset(rows, list(range(0, 100, 2)), [1, 3], {})
    parts = [part_of(whole, share, 0) for share in (0.125, 0.25, 0.5, 1.0)]
    assert [len(part.train_numbers) for part in parts] == [6, 12, 25, 50] and parts[-1] is whole
    for less, more in zip(parts, parts[1:], strict=False):
        assert set(less.train_numbers) < set(more.train_numbers) and less.train_numbers == sorted(less.train_numbers)
    assert all(part.dev_numbers == [1, 3] and part.examples is rows for part in parts)
    assert part_of(whole, 0.25, 1).train_numbers != parts[1].train_numbers


def test_what_a_teacher_said_is_taken_out_again() -> None:
    task = TextTask("classify")
    assert task.with_texts(Example(("a",), "label", "here"), ["a"], []) == Example(("a",), None, "here")
    tagged = joined(["a", "b"], ["O", "O"])
    assert TagTask().with_texts(tagged, ["a b"], [tagged.words]) == replace(tagged, target=None)
