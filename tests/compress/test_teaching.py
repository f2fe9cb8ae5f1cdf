"""What teachers say is kept whole, found again wherever it is the same, and never half there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import weft
from tests.compress.taught import kinds_of, taught_by, write_texts
from tests.tasks.small import quiet
from tests.training.test_resume import contents, same
from weft.checkpoint.folder import LoadedModel, open_folder
from weft.cli.main import run
from weft.distillation import dataset as teaching
from weft.distillation import report as reporting
from weft.distillation.dataset import Distillation, Teacher, TeacherReads, teacher_outputs
from weft.distillation.recipe import DistillRecipe
from weft.progress import silent
from weft.tasks.base import Example, TeacherArrays
from weft.tasks.classify import TextTask
from weft.training.log import RunLog
from weft.training.run import Run
from weft.training.signals import Control, Interrupted, Stop

KILLED = Path(__file__).parent / "killed.py"


class Echo(TextTask):
    """Says of each text its letters, once for each word: arrays of many lengths; of some texts one thing more."""

    seen: list[str] = []  # noqa: RUF012

    def teacher_outputs(self, model: LoadedModel, windows: Any, examples: Sequence[Example]) -> list[TeacherArrays]:
        found: list[TeacherArrays] = []
        for example in examples:
            Echo.seen.append(example.texts[0])
            words = example.texts[0].split()
            letters = np.array([[len(word), ord(word[0])] for word in words], dtype=np.float32).reshape(-1, 2)
            text = np.frombuffer(example.texts[0].encode(), dtype=np.uint8)
            found.append({"letters": letters, "text": text} if "o" in example.texts[0] else {"letters": letters})
        return found


@pytest.fixture(autouse=True)
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports measure how fast models are, which takes longer than these students learn."""
    monkeypatch.setattr(reporting, "write_report", lambda *given, **more: None)


@pytest.fixture
def listened(teacher: Path, monkeypatch: pytest.MonkeyPatch) -> Teacher:
    Echo.seen = []
    monkeypatch.setattr(teaching, "SHARD", 8)
    return Teacher.of(open_folder(teacher), teacher)


def examples_of(texts: Sequence[str]) -> list[Example]:
    return [Example((text,), None, "") for text in texts]


def asked(listened: Teacher, texts: Sequence[str], parts: Sequence[int] | None = None, stop: Stop | None = None) -> Any:
    lesson = Echo("classify", "label", labels=("a", "b", "c"))
    control = Control(quiet, silent, Stop() if stop is None else stop)
    context = Distillation(Run(Path("run")), DistillRecipe(), [listened], torch.device("cpu"), control)
    return teacher_outputs(context, lesson, examples_of(texts), parts or [len(texts)])


def test_all_comes_back_as_it_was_said(listened: Teacher) -> None:
    texts = [row["text"] for row in kinds_of(21)]
    found = asked(listened, texts)
    assert found.forwards == 21 == len(found)
    for place in (20, 0, 7, 8, -1, 15, 3):
        said, text = found[place], texts[place]
        assert said["letters"].tolist() == [[len(word), ord(word[0])] for word in text.split()]
        assert said["text"].tobytes().decode() == (text if "o" in text else "")
    some = found.select([19, 2, 11])[1:]
    assert [len(each["letters"]) for each in some] == [len(texts[n].split()) for n in (2, 11)] and len(some) == 2
    with pytest.raises(IndexError):
        found[21]


def test_the_same_texts_are_found_whatever_stands_beside_them(listened: Teacher) -> None:
    texts = [row["text"] + f" {number}" for number, row in enumerate(kinds_of(40))]
    assert asked(listened, texts[:20]).forwards == 20
    assert asked(listened, texts[:20]).forwards == 0
    assert asked(listened, texts[:30]).forwards == 14  # two whole shards of eight were there
    assert asked(listened, [*texts[30:33], *texts[:20]], [3, 20]).forwards == 3
    assert asked(listened, list(reversed(texts[:20]))).forwards == 20


def test_another_teacher_is_asked_anew(teacher: Path, listened: Teacher, here: Path) -> None:
    texts = [row["text"] for row in kinds_of(9)]
    asked(listened, texts)
    before = listened.digest
    model = weft.load(teacher)
    model.save(here / "copy")
    first = Teacher.of(listened.model, here / "copy").digest
    (here / "copy" / "run").mkdir()
    (here / "copy" / "run" / "notes.json").write_text("{}")
    assert (
        Teacher.of(listened.model, here / "copy").digest == first
    )  # what was noted of its training says nothing of what it says
    data = bytearray((here / "copy" / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (here / "copy" / "model.safetensors").write_bytes(data)
    assert (
        first == before != Teacher.of(listened.model, here / "copy").digest
    )  # a copy is the same teacher, one bit less is not
    other = Teacher.of(listened.model, here / "copy")
    assert asked(other, texts).forwards == 9


def test_whoever_stops_keeps_whole_shards(listened: Teacher, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [row["text"] + f" {number}" for number, row in enumerate(kinds_of(24))]
    stop = Stop()
    before = Echo.teacher_outputs

    def said(self: Echo, *given: Any) -> Any:
        if len(Echo.seen) >= 8:
            stop.number = 15
        return before(self, *given)

    monkeypatch.setattr(Echo, "teacher_outputs", said)
    with pytest.raises(Interrupted, match="its outputs so far are cached"):
        asked(listened, texts, stop=stop)
    assert len(Echo.seen) == 16  # the second shard was on its way and is written; the third was not begun
    monkeypatch.setattr(Echo, "teacher_outputs", before)
    assert asked(listened, texts).forwards == 8


def test_what_a_killed_process_had_read_counts_too(here: Path) -> None:
    """One shard was counted, one was written and not yet counted, one was lost on the way and one given up."""
    shards = [here / f"{number}.safetensors" for number in range(4)]
    with TeacherReads(here).shard(shards[0], 8):
        shards[0].touch()
    killed = [TeacherReads(here).shard(shards[1], 5)]
    killed[0].__enter__()
    shards[1].touch()
    again = TeacherReads(here)
    assert again.total == 13
    killed.append(again.shard(shards[2], 4))
    killed[1].__enter__()
    last = TeacherReads(here)
    assert last.total == 13
    with pytest.raises(KeyError), last.shard(shards[3], 2):
        raise KeyError
    shards[3].touch()  # by someone else
    assert last.total == TeacherReads(here).total == 13


def test_a_damaged_shard_is_named_and_read_anew(listened: Teacher, here: Path) -> None:
    texts = [row["text"] for row in kinds_of(9)]
    asked(listened, texts)
    shard = min((here / "cache" / "teachers").rglob("*.safetensors"))
    assert all(name.removesuffix(".ends") in ("letters", "text") for name in load_file(shard))
    shard.write_bytes(shard.read_bytes()[:40])
    with pytest.warns(UserWarning, match=f"{shard.name}: damaged: .*made again"):
        found = asked(listened, texts)
    assert len(list(found)) == 9


def test_the_cache_is_listed_and_cleared(listened: Teacher, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked(listened, [row["text"] for row in kinds_of(9)])
    assert run(["cache", "list"]) == 0
    said = capsys.readouterr().out
    assert "0 tokenized texts and the outputs of 1 teacher" in said and f"teacher {listened.folder}" in said
    assert run(["cache", "clear"]) == 0
    assert not list((here / "cache").rglob("*.safetensors"))
    assert asked(listened, [row["text"] for row in kinds_of(9)]).forwards == 9


def recipe_of(teacher: Path, here: Path) -> dict[str, Any]:
    """A short run with everything in it that has a state."""
    texts = write_texts(here / "texts.txt", kinds_of(48, 5))
    return {
        "teacher": {"folders": [str(teacher)]},
        "student": {"model": "lstm:1x32"},
        "data": {"text": [str(texts)], "holdout": 0.2},
        "training": {
            "steps": 12, "batch": 8, "ema": 0.9, "save_every": 4, "evaluate_every": 6, "threads": 1, "log_every": 3,
        },
    }  # fmt: skip


def check_equal(here: Path) -> None:
    whole, parts = contents(here / "run-whole"), contents(here / "run")
    assert whole["state"]["finished"] and whole["state"]["step"] == 12
    for name in whole:
        assert same(whole[name], parts[name]), name


def test_stopped_twice_it_ends_as_the_unbroken_run(teacher: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a signal while the teacher reads and by another while the student learns."""
    settings = recipe_of(teacher, here)
    monkeypatch.setattr(teaching, "SHARD", 16)
    weft.distill(None, None, {**settings, "out": str(here / "run-whole")}, log=quiet)
    monkeypatch.setenv("WEFT_CACHE", str(here / "cache-2"))
    write, record, written = teaching._write, RunLog.record, list[int]()

    def second(*given: Any) -> None:
        write(*given)
        written.append(1)
        if len(written) == 2:
            signal.raise_signal(signal.SIGTERM)

    def later(self: RunLog, values: dict[str, Any]) -> None:
        record(self, values)
        if values["step"] == 9:
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patched:
        patched.setattr(teaching, "_write", second)
        with pytest.raises(
            Interrupted, match="while the teacher reads; its outputs so far are cached; resume with: weft res"
        ):
            weft.distill(None, None, {**settings, "out": str(here / "run")}, log=quiet)
    with monkeypatch.context() as patched:
        patched.setattr(RunLog, "record", later)
        with pytest.raises(Interrupted, match="stopped after step 9 of 12, all saved; resume with: weft resume"):
            weft.resume(here / "run", log=quiet)
    weft.resume(here / "run", log=quiet)
    assert json.loads((here / "run" / "run" / "run.json").read_text())["teacher_forwards"] == 48
    check_equal(here)


@pytest.mark.slow
def test_killed_while_the_teacher_reads_and_while_the_student_learns(teacher: Path, here: Path) -> None:
    """Killed twice and gone on with, it ends as the unbroken run, to the last bit."""
    (here / "settings.json").write_text(json.dumps(recipe_of(teacher, here)))
    command = [sys.executable, str(KILLED), str(here / "settings.json"), str(here / "run")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr[-3000:]
    assert json.loads(found.stdout.splitlines()[-1]) == {"killed": ["teacher", "step"], "forwards": 48}
    check_equal(here)


def test_a_run_does_not_go_on_with_another_teacher(teacher: Path, here: Path) -> None:
    texts = write_texts(here / "texts.txt", kinds_of(20, 5))
    weft.load(teacher).save(here / "mine")
    taught_by(here / "mine", "lstm:1x32", 1, text=texts, out=here / "run")
    data = bytearray((here / "mine" / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (here / "mine" / "model.safetensors").write_bytes(data)
    with pytest.raises(weft.UserError, match="the data has changed since the run began"):
        weft.resume(here / "run", log=quiet)
