"""Wrong types in whatever a run keeps: one line that names the file and the key, and never a traceback."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.once import once
from tests.tasks.small import kinds, quiet, write_rows
from tests.training.small import stories
from weft.cli.main import run as command
from weft.distillation.dataset import TeacherReads
from weft.distillation.report import read_report
from weft.errors import UserError
from weft.runs.pages import _baselines, _record, write_curves
from weft.tasks.evaluate import Evaluation, evaluation_parts
from weft.training.log import draw_gradients, read_metrics
from weft.training.run import Run

ODD: list[Any] = [None, True, -1, 0, 10**400, 1e300, float("nan"), float("inf"), "", "x", [], [1], [[]], {}, {"x": 1}]


def made(folder: Path) -> None:
    """A task with baselines, and a recurrent network whose gradients were watched."""
    data = write_rows(folder / "rows.jsonl", kinds(60))
    model = {"family": "bert", "size": "1x64", "context": 64}
    training = {"steps": 4, "batch": 8, "evaluate_every": 2, "log_every": 1}
    settings = {"model": model, "tokenizer": {"size": 300}, "training": training}
    weft.finetune(data, None, settings, task="classify", out=folder / "task", log=quiet)
    (folder / "text.txt").write_text(stories(40))
    settings = {"model": {"family": "lstm", "width": 16}, "tokenizer": {"size": 300}, "objective": {"length": 8}}
    training = {**training, "watch_gradients": True}
    files = {"text": {"files": [str(folder / "text.txt")]}, "out": str(folder / "words")}
    weft.pretrain(None, {**settings, **files, "training": training}, log=quiet)


@pytest.fixture
def runs(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = once(tmp_path_factory, "records", made)
    shutil.copytree(source, tmp_path / "runs")
    return tmp_path / "runs"


def swept(values: Any, odd: Sequence[Any] = ODD) -> Iterator[Any]:
    """The values with each of them, at whatever depth, in turn replaced, left out, or joined by one that is unknown."""
    yield from odd
    few = odd[::2] if odd is not ODD else tuple(ODD)
    if isinstance(values, dict):
        for key in values:
            yield {name: value for name, value in values.items() if name != key}
            for wrong in swept(values[key], few):
                yield {**values, key: wrong}
        yield {**values, "unheard": 1}
    elif isinstance(values, list) and values:
        for wrong in swept(values[0], few):
            yield [wrong, *values[1:]]
        yield [*values, *values[:1]]


def one_line(work: Callable[[], object]) -> str:
    """What is said, if anything is wrong."""
    try:
        work()
    except UserError as error:
        assert len(str(error).splitlines()) == 1, error
        return str(error)
    return ""


def check_sweep(path: Path, work: Callable[[], object], least: int) -> None:
    """Read a file with each of its values replaced; at least so many of the replacements are refused, by its name."""
    lines = path.suffix == ".jsonl"
    values = json.loads(path.read_text().splitlines()[0] if lines else path.read_text())
    rest = path.read_text().split("\n", 1)[1] if lines else ""
    refused = 0
    for wrong in swept(values):
        path.write_text(f"{json.dumps(wrong)}\n{rest}")
        message = one_line(work)
        assert not message or path.name in message, message
        refused += bool(message)
    assert refused >= least, refused


@pytest.mark.parametrize("line", [0, -1])
def test_metrics(line: int, runs: Path) -> None:
    path = runs / "task/run/metrics.jsonl"
    lines = path.read_text().splitlines()
    lines.insert(0, lines.pop(line))  # a line of training, and one of an evaluation
    path.write_text("\n".join(lines) + "\n")
    check_sweep(path, lambda: write_curves([runs / "task"], runs / "page.html"), 60)


def test_gradients(runs: Path) -> None:
    path = runs / "words/run/gradients.jsonl"
    check_sweep(path, lambda: draw_gradients(path, runs / "page.html", "words"), 30)


READERS: dict[str, Callable[[Path], object]] = {
    "run.json": lambda path: f"{Run(path.parent.parent).info().parameters:,}",
    "evaluation.json": lambda path: evaluation_parts(Evaluation.read(path)),
    "baseline.json": lambda path: _baselines(path.parent.parent),
}


@pytest.mark.parametrize("name", READERS)
def test_json_of_a_run(name: str, runs: Path) -> None:
    path = runs / "task/run" / name
    check_sweep(path, lambda: READERS[name](path), 20)
    assert name in one_line(lambda: write_curves([runs / "task"], runs / "page.html"))


def test_reports_of_a_student(runs: Path) -> None:
    path = runs / "task/run/distill.json"
    point = {"texts": 8, "score": 0.5, "low": 0.4, "high": 0.6}
    path.write_text(json.dumps({"summary": "as good", "table": {"header": ["a"], "rows": [["b"]]}, "curve": [point]}))
    check_sweep(path, lambda: read_report(runs / "task"), 20)


def test_a_tally(runs: Path) -> None:
    path = runs / "task/run/teacher_reads.json"
    path.write_text(json.dumps({"read": 3, "shard": "nowhere", "count": 2}))
    check_sweep(path, lambda: TeacherReads(path.parent), 30)


def test_a_record_that_is_no_json(runs: Path) -> None:
    path = runs / "task/run/metrics.jsonl"
    for text in ("[" * 100_000, "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"), "\x00", "null", "3"):
        path.write_text(f"{text}\n{text}\n")
        assert "metrics.jsonl" in one_line(lambda: read_metrics(path))
    path.write_bytes(b"\xff\n")
    assert "metrics.jsonl" in one_line(lambda: read_metrics(path))


SECTIONS = ("task", "teacher", "distill", "objective")


@pytest.mark.parametrize("section", SECTIONS)
def test_recipes_on_a_page(section: str, runs: Path) -> None:
    """Pages are drawn of runs of every kind, so they read any recipe."""
    path = runs / "task/run/recipe.toml"
    values = ["1", "true", '""', '"x"', "[]", "[1]", "{}", "{x = 1}", "1.5", "1979-05-27"]
    for value in values:
        keys = [f"{section}.{key} = {value}" for key in ("name", "labels", "metric", "folders", "other")]
        for line in (f"{section} = {value}", *keys):
            path.write_text(f"{line}\n")
            one_line(lambda: _record(runs / "task").scores)
    path.write_text("x = " + "[" * 100_000)
    write_curves([runs / "task"], runs / "page.html")


def test_recipes_of_a_run(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`weft resume` names the file and the key."""
    path = runs / "task/run/recipe.toml"
    plain = path.read_text()
    wrong = {
        "seed": "seed = []",
        "steps": "[training]\nsteps = {}",
        "files": "[data]\nfiles = 3",
        "deep": "x = " + "[" * 9999,
    }
    for key, text in wrong.items():
        path.write_text(f'{text}\n[task]\nname = "classify"\n' if key != "deep" else text)
        assert command(["resume", str(runs / "task")]) == 2
        message = capsys.readouterr().err
        assert len(message.splitlines()) == 1 and "recipe.toml" in message and (key == "deep" or key in message)
    path.write_text(plain)
    assert Run(runs / "task").info().parameters > 0
    assert Evaluation.read(runs / "task/run/evaluation.json").examples > 0
