"""A small language model learns words from a large one: where it begins, that it learns, and that it can be gone on."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import weft
from tests.once import once
from tests.training.test_resume import contents, same
from weft.cli.main import run
from weft.distillation.dataset import Distillation, Teacher
from weft.distillation.distill import distill
from weft.distillation.recipe import DistillRecipe, StudentSection, TeacherSection
from weft.distillation.student import begun_student
from weft.errors import UserError
from weft.nn.rows import Ragged
from weft.progress import silent
from weft.runs.driver import resume
from weft.runs.pretrain import pretrain
from weft.text.tokenizers.training import learn
from weft.training.log import read_metrics
from weft.training.run import Run
from weft.training.signals import Control, listening

PLACES = {"ada": "rome", "bo": "oslo", "cleo": "lima", "dan": "bern", "eve": "cairo", "finn": "paris"}


def quiet(_: str) -> None:
    """Says nothing."""


def lines(count: int) -> list[str]:
    """Who is where follows from who it is, so that a hidden word can be told from the others."""
    chance = random.Random(0)
    found = []
    for _ in range(count):
        (one, here), (other, there) = (chance.choice(list(PLACES.items())) for _ in range(2))
        found.append(f"{one} goes to {here} {chance.choice(['now', 'again'])} and {other} stays in {there}")
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text, and a teacher that has learned something of it."""

    def make(folder: Path) -> None:
        (folder / "text.txt").write_text("\n".join(lines(200)) + "\n")
        settings = {
            "out": str(folder / "bert"),
            "model": {"family": "bert", "size": "2x64"},
            "text": {"files": [str(folder / "text.txt")]},
            "tokenizer": {"size": 200},
            "objective": {"name": "mlm", "length": 24},
            "training": {"steps": 40, "batch": 16, "learning_rate": 5e-3, "evaluate_every": 40, "log_every": 40},
        }
        pretrain(None, settings, log=quiet)

    folder = tmp_path_factory.mktemp("teacher")  # a test changes the teacher, so each process has a copy
    return shutil.copytree(once(tmp_path_factory, "pretrained", make), folder, dirs_exist_ok=True)


@pytest.fixture(autouse=True)
def cache(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(place / "cache"))


def go(place: Path, out: Path, student: Any = "distilbert", teacher: str = "bert", **more: Any) -> weft.Model:
    plan = {"steps": 8, "batch": 16, "learning_rate": 3e-3, "evaluate_every": 8, "log_every": 4, "threads": 1}
    said = {"student": student, "training": {**plan, **more.pop("training", {})}, "log": quiet, **more}
    said["distill"] = {"pretrain": True, "length": 24, **said.get("distill", {})}
    return distill(str(place / teacher), text=str(place / "text.txt"), out=out, **said)


def losses(out: Path) -> list[float]:
    return [line["validation_loss"] for line in read_metrics(out / "run/metrics.jsonl") if "validation_loss" in line]


def test_every_second_layer_is_the_teachers(tmp_path: Path) -> None:
    """Embeddings and layers to the last bit of what float32 knows, and the words with them."""
    made = weft.new("bert", learn(lines(40), "wordpiece", 120), size="4x64", settings={"context": 32}, seed=4)
    with torch.no_grad():
        made.opened.network.get_submodule("segments").weight.normal_()  # type: ignore[operator]
    recipe = DistillRecipe(teacher=TeacherSection(folders=("x",)), student=StudentSection(model="distilbert"))
    with listening() as stop:
        teachers = [Teacher(made.opened, tmp_path, "")]
        context = Distillation(Run(tmp_path), recipe, teachers, torch.device("cpu"), Control(quiet, silent, stop))
        begun = begun_student(context, {"words": None}, "words", lambda: [])
    student, teacher = begun.opened.network.eval(), made.opened.network.eval()
    assert begun.opened.family.name == "distilbert" and begun.opened.config.layers == 2 and not begun.fresh
    assert student.pooler is None and set(begun.opened.heads) == {"words"}
    batch = Ragged.of([[2, 8, 9, 30, 3], [2, 11, 3]])
    ours: list[torch.Tensor] = []
    theirs: list[torch.Tensor] = []
    student(batch.tokens, batch.rows, states=ours)
    teacher(batch.tokens, batch.rows, states=theirs)
    torch.testing.assert_close(ours[0], theirs[0], atol=1e-5, rtol=0)
    for here, there in ((0, 0), (1, 2)):
        one, other = student.get_submodule(f"layers.{here}"), teacher.get_submodule(f"layers.{there}")
        for name, tensor in one.state_dict().items():
            assert tensor.equal(other.state_dict()[name]), name
    said, right = (network.words(theirs[-1]) for network in (student, teacher))  # type: ignore[operator]
    torch.testing.assert_close(said, right, atol=1e-5, rtol=0)


def test_a_student_of_the_teachers_layers(place: Path, tmp_path: Path) -> None:
    """It begins better than a fresh one, gets better, and ends where no student without a teacher is by then."""
    model = go(place, tmp_path / "layers")
    kept = losses(tmp_path / "layers")
    go(place, tmp_path / "scratch", {"model": "distilbert", "start": "scratch"})
    fresh = losses(tmp_path / "scratch")
    assert kept[0] < fresh[0] - 0.5 and kept[-1] < kept[0] and fresh[-1] < fresh[0] - 0.5
    alone = {
        "out": str(tmp_path / "alone"),
        "model": {"family": "distilbert", "size": "1x64"},
        "text": {"files": [str(place / "text.txt")]},
        "tokenizer": {"folder": str(place / "bert")},
        "objective": {"name": "mlm", "length": 24},
        "training": {"steps": 8, "batch": 16, "learning_rate": 3e-3, "evaluate_every": 8, "log_every": 8, "threads": 1},
    }
    pretrain(None, alone, log=quiet)
    assert kept[-1] < losses(tmp_path / "alone")[-1] - 0.5
    compared = json.loads((tmp_path / "layers/run/kept.json").read_text())
    assert compared["student"]["loss"] == min(kept)
    assert compared["student"]["parameters"] < compared["teacher"]["parameters"]
    # The teacher is judged as it was when it was trained: the same text, the same words hidden.
    assert compared["teacher"]["loss"] == pytest.approx(weft.load(place / "bert").card.metrics[0].value, rel=1e-5)
    # What lies in the folder is a model that fills gaps, and nothing of how it was taught.
    assert model.task == "fill" and model.card.teacher == "bert" and model.card.metrics[0].value == min(kept)
    config = json.loads((tmp_path / "layers/config.json").read_text())
    assert config["model_type"] == "distilbert" and config["architectures"] == ["DistilBertForMaskedLM"]
    assert not any("teacher" in name or "beside" in name for name in load_file(tmp_path / "layers/model.safetensors"))
    first = next(line for line in read_metrics(tmp_path / "layers/run/metrics.jsonl") if "learning_rate" in line)
    assert {"words", "soft", "cosine"} <= set(first)


def test_killed_and_gone_on_with(place: Path, tmp_path: Path) -> None:
    """A student of another width and of part of the vocabulary, with maps that are learned: bit for bit the same."""
    student = {"model": "bert:1x128", "vocabulary": 60}
    plan = {"steps": 4, "save_every": 2, "evaluate_every": 4, "keep": 9, "log_every": 1, "pass_tokens": 100}
    go(place, tmp_path / "whole", student, distill={"match": ["states", "relations"]}, training=plan)
    assert (tmp_path / "whole/run/checkpoints/step-4/beside.safetensors").exists()
    shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    shutil.rmtree(tmp_path / "parts/run/checkpoints/step-4")
    resume(tmp_path / "parts", log=quiet)
    for out in (tmp_path / "whole", tmp_path / "parts"):  # read by name below
        path = out / "run/checkpoints/step-4/beside.safetensors"
        path.rename(out / "beside.safetensors")
    assert same(load_file(tmp_path / "whole/beside.safetensors"), load_file(tmp_path / "parts/beside.safetensors"))
    whole, parts = contents(tmp_path / "whole", ema=False), contents(tmp_path / "parts", ema=False)
    for name in whole:
        assert same(whole[name], parts[name]), name
    model = weft.load(tmp_path / "parts")
    assert model.tokenizer is not None and model.tokenizer.vocabulary == 60
    held = (place / "bert/weft.json").read_text()
    try:  # another teacher in the place of the one that the run began with
        (place / "bert/weft.json").write_text(held.replace('"fill"', '"fill" '))
        with pytest.raises(UserError, match="the teacher has changed since the run began"):
            resume(tmp_path / "parts", log=quiet)
    finally:
        (place / "bert/weft.json").write_text(held)


def test_on_the_command_line(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A teacher that says the next word, and a student that cannot see its layers: soft words alone."""
    monkeypatch.chdir(tmp_path)
    teacher = weft.new("gpt2", learn(lines(40), "bpe", 280), size="2x64", settings={"context": 24})
    teacher.save(tmp_path / "gpt")
    told = ["--text", str(place / "text.txt"), "--steps", "4", "--batch", "4", "--set", "training.evaluate_every=2"]
    command = ["distill", "gpt", "--pretrain", *told]
    assert run([*command, "--student", "1x64", "--out", "small"]) == 0
    said = capsys.readouterr().err
    assert "from layer 0 of the teacher" in said and "plan: 4 steps" in said and "held-out loss" in said
    model: Any = weft.load("small")
    assert model.task == "complete" and model("ada goes", max_tokens=3).text
    assert losses(tmp_path / "small")[-1] < losses(tmp_path / "small")[0]
    assert run([*command, "--student", "lstm:1x64", "--out", "lstm"]) == 0
    assert run(["resume", "small"]) == 0 and "finished already" in capsys.readouterr().err
    mistakes = {
        "vocabularies differ": [*command, "--student", "1x64", "--tokenizer", "learned", "--out", "r"],
        "bert does not: choose another student": [*command, "--student", "bert:1x64", "--out", "r"],
        "which has no layers to compare": [*command, "--student", "lstm:1x64", "--match", "states", "--out", "r"],
        "learns from plain text alone": ["distill", "gpt", "--pretrain", "--data", "x.csv", "--student", "1x64"],
    }
    (tmp_path / "x.csv").write_text("text\nbo\n")
    for message, words in mistakes.items():
        assert run(words if "--out" in words else [*words, "--out", "r"]) == 2
        error = capsys.readouterr().err.strip().splitlines()
        assert message in error[-1], error
        assert not Path("r").exists()


def test_rows_of_a_teacher_that_reads_texts_of_any_length(place: Path, tmp_path: Path) -> None:
    """A Transformer-XL has no context to fill: rows are as long as its segments."""
    teacher = weft.new("transformer-xl", learn(lines(40), "bpe", 280), size="2x64", settings={"segment": 24})
    teacher.save(tmp_path / "xl")
    shutil.copy(place / "text.txt", tmp_path)
    go(tmp_path, tmp_path / "small", "1x64", "xl", distill={"length": None})
    assert "length = 24" in (tmp_path / "small/run/recipe.toml").read_text()


@pytest.mark.parametrize("family, kind", [("xlnet", "unigram"), ("elmo", "word-bytes")])
def test_teachers_that_neither_fill_masks_nor_predict_the_next_word(family: str, kind: str, tmp_path: Path) -> None:
    tokenizer = learn(lines(40), kind, 300)
    weft.new(family, tokenizer, size="1x64", heads={"words": tokenizer.vocabulary}).save(tmp_path / "teacher")
    (tmp_path / "text.txt").write_text("\n".join(lines(9)))
    with pytest.raises(UserError, match=f"needs a masked or causal language model, not {family} with words"):
        go(tmp_path, tmp_path / "small", "1x64", "teacher")
