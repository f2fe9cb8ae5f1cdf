"""A flipped bit in any file of a checkpoint, of whatever run, is named; no run begins again in silence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.compress.taught import kinds_of, taught_by, write_texts
from tests.damage import flip
from tests.once import once
from tests.tasks.small import kinds, quiet, tuned, write_rows
from tests.training.small import stories
from weft.cli.main import run as command
from weft.errors import UserError
from weft.files import read_manifest, write_manifest
from weft.runs.driver import resume
from weft.runs.pretrain import learn_vectors, pretrain
from weft.training.run import Run, Unreadable

PLAN = {"steps": 6, "batch": 4, "save_every": 2, "keep": 2, "evaluate_every": 6, "threads": 1}


def text_in(folder: Path) -> list[str]:
    (folder / "text.txt").write_text(stories(40))
    return [str(folder / "text.txt")]


def pretrained(folder: Path, **more: Any) -> None:
    values = {"model": {"family": "gpt2", "size": "1x64"}, "objective": {"length": 16}, **more}
    files = {"text": {"files": text_in(folder)}, "tokenizer": {"size": 300}, "out": str(folder / "run")}
    pretrain(None, {"training": {**PLAN, "ema": 0.9}, **values, **files}, log=quiet)


def carried(folder: Path) -> None:
    pretrained(folder, model={"family": "lstm", "width": 16}, objective={"length": 8, "rows": "carried"}, training=PLAN)


def finetuned(folder: Path) -> None:
    tuned(write_rows(folder / "rows.jsonl", kinds(40)), "classify", folder / "run", steps=6)


def distilled(folder: Path) -> None:
    teacher = tuned(write_rows(folder / "rows.jsonl", kinds(40)), "classify", folder / "teacher", steps=6)
    teacher.save(folder / "saved")
    texts = write_texts(folder / "texts.txt", kinds_of(40, 5))
    taught_by(folder / "saved", "1x64", 6, text=texts, out=folder / "run", training=PLAN)


def staged(folder: Path) -> None:
    """A stage of a distillation is a run of its own."""
    tuned(write_rows(folder / "rows.jsonl", kinds(40)), "classify", folder / "teacher", steps=6)
    texts = write_texts(folder / "texts.txt", kinds_of(40, 5))
    stages = {"names": ["pretrain", "distill"], "pretrain": PLAN}
    taught_by(folder / "teacher", "1x64", 2, text=texts, out=folder / "whole", training=PLAN, stages=stages)
    shutil.copytree(folder / "whole" / "run" / "stages" / "pretrain", folder / "run")


def climbed(folder: Path) -> None:
    (folder / "text.txt").write_text(stories(200))
    settings = {"text": {"files": [str(folder / "text.txt")]}, "out": str(folder / "ladder")}
    budget = {"tokens": 2048, "size": "tiny", "models": ["mlp"], "parallel": 0}
    weft.ladder(None, {**settings, "ladder": budget}, log=quiet)
    shutil.copytree(folder / "ladder" / "mlp", folder / "run")


def vectors(kind: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        plan = {"kind": kind, "width": 8, "min_count": 1, "epochs": 1}
        learn_vectors(
            None, {"vectors": plan, "text": {"files": text_in(folder)}, "out": str(folder / "run")}, log=quiet
        )

    return make


KINDS: dict[str, Callable[[Path], None]] = {
    "pretrain": pretrained,
    "carried": carried,
    "finetune": finetuned,
    "distill": distilled,
    "stage": staged,
    "ladder": climbed,
    "word2vec": vectors("word2vec"),
    "glove": vectors("glove"),
}


@pytest.fixture(scope="module", params=KINDS)
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return once(tmp_path_factory, f"damage-{request.param}", KINDS[request.param]) / "run"


def test_a_flipped_bit_is_named(finished: Path, tmp_path: Path) -> None:
    """In every file of the newest checkpoint, of each kind of run."""
    shutil.copytree(finished / "run" / "checkpoints", tmp_path / "run" / "checkpoints")
    checkpoints = Run(tmp_path).checkpoints()
    for step in checkpoints.steps()[:-1]:
        shutil.rmtree(checkpoints.path(step))
    newest = checkpoints.newest()
    assert newest is not None and checkpoints.load() is not None
    names = sorted(path.name for path in newest.iterdir())
    assert "state.json" in names and len(names) >= 2
    for name in names:
        data = (newest / name).read_bytes()
        for seed in range(3):
            flip(newest / name, seed)
            for _ in range(2):  # the second time nothing else is said
                with pytest.raises(Unreadable) as caught:
                    checkpoints.load()
                assert f"{newest / name}: damaged: its bytes are not those that were saved" in str(caught.value)
                assert f"remove {checkpoints.folder} to train again from step 0" in str(caught.value)
            (newest / name).write_bytes(data)
        (newest / name).unlink()
        with pytest.raises(Unreadable, match=name):
            checkpoints.load()
        (newest / name).write_bytes(data)
    assert checkpoints.load() is not None


@pytest.fixture
def trained(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    source = once(tmp_path_factory, "damage-pretrain", pretrained)
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    shutil.copytree(source / "run", tmp_path / "run")
    return tmp_path / "run"


def test_an_earlier_checkpoint_takes_its_place(trained: Path) -> None:
    whole = (trained / "model.safetensors").read_bytes()
    flip(trained / "run/checkpoints/step-6/optimizer.safetensors", 1)
    said: list[str] = []
    resume(trained, log=said.append)
    notes = [line for line in said if "damaged" in line]
    assert len(notes) == 1 and "step-6/optimizer.safetensors: damaged" in notes[0]
    assert "going on from an earlier checkpoint, step 4" in notes[0]
    assert (trained / "model.safetensors").read_bytes() == whole
    assert Run(trained).checkpoints().load() is not None
    said.clear()
    resume(trained, log=said.append)
    assert not [line for line in said if "damaged" in line]


def test_a_damaged_model_is_named_before_a_run_goes_on(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It would stay the result if no later step was better."""
    shutil.rmtree(trained / "run/checkpoints/step-6")
    whole = (trained / "model.safetensors").read_bytes()
    flip(trained / "model.safetensors", 1)
    assert command(["resume", str(trained)]) == 2
    error = capsys.readouterr().err
    assert f"{trained / 'model.safetensors'}: damaged: its bytes are not those that were saved; put it back" in error
    assert "resume with" not in error
    (trained / "model.safetensors").write_bytes(whole)
    # A process that was killed while it put a model in place leaves the one before it, or none.
    saved = read_manifest(Run(trained).weights)[0]["saved"]
    write_manifest(Run(trained).weights, {"saved": dict.fromkeys(saved, "of the next"), "before": saved})
    Run(trained).check_model()
    (trained / "model.safetensors").unlink()
    write_manifest(Run(trained).weights, {"saved": saved, "before": {}})
    Run(trained).check_model()
    assert command(["resume", str(trained)]) == 0
    assert (trained / "model.safetensors").read_bytes() == whole


def test_no_run_begins_again_in_silence(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (trained / "run/checkpoints").glob("step-*/model.safetensors"):
        flip(path, 1)
    for _ in range(2):
        assert command(["resume", str(trained)]) == 2
        message = capsys.readouterr().err
        assert "step-6/model.safetensors: damaged" in message and "step-4/model.safetensors: damaged" in message
        assert f"remove {trained / 'run/checkpoints'} to train again" in message and len(message.splitlines()) == 1
        assert "weft resume" not in message.replace("weft resume:", "")  # it would end here again
    shutil.rmtree(trained / "run/checkpoints")
    assert command(["resume", str(trained)]) == 0
    assert "there is no checkpoint; training again from step 0" in capsys.readouterr().err


def test_another_recipe_is_noted(trained: Path) -> None:
    path = trained / "run/recipe.toml"
    path.write_text(path.read_text().replace("ema = 0.9", "ema = 0.8"))
    said: list[str] = []
    resume(trained, log=said.append)
    assert [line for line in said if "recipe.toml: is not the one that the checkpoint was saved with" in line]


def test_another_tokenizer_is_refused(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Of a task, whose rows are not tokenized beforehand."""
    source = once(tmp_path_factory, "damage-finetune", finetuned)
    shutil.copytree(source / "run", tmp_path / "run")
    path = tmp_path / "run/tokenizer.json"
    text = path.read_text()
    resume(tmp_path / "run", log=quiet)
    path.write_text(text.replace('"the": ', '"thf": ') if '"the": ' in text else text.replace('"a": ', '"@": '))
    assert path.read_text() != text
    with pytest.raises(UserError, match="the tokenizer has changed since the run began"):
        resume(tmp_path / "run", log=quiet)


def test_checkpoints_of_another_kind(trained: Path) -> None:
    """State of another type, with a checksum that fits, and one without any."""
    from weft.files import read_manifest, write_manifest

    shutil.rmtree(trained / "run/checkpoints/step-4")
    path = trained / "run/checkpoints/step-6/state.json"
    values, hashes = read_manifest(path)
    for wrong in (None, "x", [], {}, 1.5, True):
        for key in values:
            if isinstance(values[key], float) and wrong == 1.5 or isinstance(values[key], bool) and wrong is True:
                continue
            if wrong == "x" and key == "recipe":
                continue
            if wrong is None and key in ("steps", "first_loss", "best", "best_loss", "best_step", "recipe"):
                continue
            write_manifest(path, {**values, key: wrong}, hashes)
            with pytest.raises(UserError, match=key):
                Run(trained).checkpoints().load()
    path.write_text(json.dumps(values))
    with pytest.raises(UserError, match="state.json: has no checksums"):
        Run(trained).checkpoints().load()


def test_a_stage_begins_from_what_the_one_before_left(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = once(tmp_path_factory, "damage-stage", staged)
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    stages = tmp_path / "run/run/stages"
    shutil.copytree(source / "whole", tmp_path / "run")
    for stage in ("pretrain", "start", "distill"):
        data = (stages / stage / "model.safetensors").read_bytes()
        flip(stages / stage / "model.safetensors", 1)
        with pytest.raises(UserError, match=f"{stage}/model.safetensors: damaged: .*; remove .*{stage} and"):
            weft.resume(tmp_path / "run", log=quiet)
        (stages / stage / "model.safetensors").write_bytes(data)


# ---------------------------------------------------------------------------------------------------------- a ladder


@pytest.fixture
def ladder(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = once(tmp_path_factory, "damage-ladder", climbed)
    shutil.copytree(source / "ladder", tmp_path / "ladder")
    path = tmp_path / "ladder/run/recipe.toml"
    path.write_text(path.read_text().replace(str(source / "ladder"), str(tmp_path / "ladder")))
    return tmp_path / "ladder"


def test_the_text_of_a_ladder(ladder: Path) -> None:
    inside = ladder / "run"
    paths = [inside / "text.json", *(path for path in inside.glob("*/*") if path.parent.name in ("text", "vocabulary"))]
    assert len(paths) >= 4
    for path in paths:
        data = path.read_bytes()
        flip(path, 1)
        with pytest.raises(UserError, match=f"{path.name}: damaged: .*; put it back, or remove .*ladder"):
            weft.ladder(out=str(ladder), log=quiet)
        path.write_bytes(data)
    weft.ladder(out=str(ladder), log=quiet)


def test_a_damaged_result_of_a_rung_is_judged_again(ladder: Path) -> None:
    before = json.loads((ladder / "ladder.json").read_text())["rungs"][0]["bits_per_byte"]
    flip(ladder / "mlp/run/rung.json", 1)
    with pytest.warns(UserWarning, match="rung.json: damaged"):
        found = weft.ladder(out=str(ladder), log=quiet)
    assert found["rungs"][0]["bits_per_byte"] == before


# --------------------------------------------------------------------------------------------- what teachers have said


@pytest.mark.parametrize(
    "kind, teacher, text, suffix",
    [("distill", "saved", "texts.txt", ".safetensors"), ("pretrain", "run", "text.txt", ".npy")],
)
def test_a_flipped_bit_in_the_outputs_of_a_teacher(
    kind: str,
    teacher: str,
    text: str,
    suffix: str,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are made anew, and the student is the same."""
    source = once(tmp_path_factory, f"damage-{kind}", KINDS[kind])
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    how = {"text": source / text, "training": PLAN}
    taught_by(source / teacher, "1x64", 2, **how, out=tmp_path / "first")
    weights = (tmp_path / "first/model.safetensors").read_bytes()
    shards = [path for path in (tmp_path / "cache/teachers").glob("*/*") if path.name != "corpus.json"]
    assert {path.suffix for path in shards} == {suffix, ".json"}
    for path in shards[:2]:
        flip(path, 1)
        with pytest.warns(UserWarning, match=f"{path.name}: .*made again"):
            taught_by(source / teacher, "1x64", 2, **how, out=tmp_path / f"after-{path.suffix[1:]}")
        assert (tmp_path / f"after-{path.suffix[1:]}/model.safetensors").read_bytes() == weights
