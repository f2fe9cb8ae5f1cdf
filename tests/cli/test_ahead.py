"""The libraries of torch are loaded ahead where torch answers, and nowhere else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import weft
from tests.backends.test_light import chosen
from tests.engines import need_engine
from tests.tasks.small import model_for
from weft.cli import ahead
from weft.text.tokenizers.training import learn

TEXT = "the cat"
# What `weft` does before it imports anything large; then what the thread has loaded.
CODE = """
import sys
from weft.cli.ahead import begin
thread = begin(sys.argv[1:])
if thread is not None:
    thread.join()
print("torch" in sys.modules, "libtorch_cpu" in open("/proc/self/maps").read())
"""
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is loaded ahead")


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    model_for("classify", 3, learn([TEXT, "a dog"] * 8, "wordpiece", 40), ("a", "b", "c")).save(tmp_path / "model")
    return tmp_path / "model"


def loaded(*arguments: str | Path) -> list[str]:
    """Whether torch was imported, and whether its libraries were loaded, in a new process."""
    command = [sys.executable, "-c", CODE, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout.split()


@on_linux
def test_libraries_are_loaded_where_torch_answers(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead.os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.delitem(sys.modules, "torch")
    assert ahead._names_weights(["predict", str(model), TEXT])
    for other in (
        ["predict"],
        ["predict", "--help"],
        ["predict", str(model), "--help"],
        ["predict", str(model), TEXT, "--backend", "onnx"],
        ["predict", str(model.parent), TEXT],
        ["predict", "\0", TEXT],
        ["predict", "x" * 5000, TEXT],
        ["info", str(model)],
        ["--version"],
        [],
    ):
        assert not ahead._names_weights(other), other
    monkeypatch.setattr(ahead.os, "sched_getaffinity", lambda _: {0})
    assert not ahead._names_weights(["predict", str(model), TEXT]), "one core does one thing at a time"


@on_linux
def test_torch_finds_its_libraries_loaded(model: Path) -> None:
    if ahead._library() is None:
        pytest.skip("this torch has libraries of CUDA, which come in an order of their own")
    assert loaded("predict", model, TEXT) == ["False", str(len(ahead.os.sched_getaffinity(0)) > 1)]
    expected = weft.load(model, device="cpu")(TEXT)
    command = [sys.executable, "-m", "weft", "predict", str(model), TEXT, "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.split("\t")[:2] == [expected.label, f"{expected.score:.6f}"], done.stderr


@on_linux
def test_a_chosen_export_needs_no_library_of_torch(model: Path) -> None:
    need_engine("onnx")
    chosen(model, "onnx-int8")
    assert loaded("predict", model, TEXT) == ["False", "False"]
    if ahead._library() is not None and len(ahead.os.sched_getaffinity(0)) > 1:
        assert loaded("embed", model, TEXT) == ["False", "True"], "vectors are computed with torch"


@on_linux
def test_a_damaged_card_is_told_by_the_verb(model: Path) -> None:
    (model / "weft.json").write_text('{"task": 3, "labels": "')
    assert loaded("predict", model, TEXT)[0] == "False"
    done = subprocess.run([sys.executable, "-m", "weft", "predict", str(model), TEXT], capture_output=True, text=True)
    assert done.returncode == 2 and "weft.json" in done.stderr and len(done.stderr.splitlines()) == 1


@on_linux
def test_a_call_that_fails_ends_in_order(model: Path) -> None:
    command = [sys.executable, "-m", "weft", "predict", str(model), "--no-such-option"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("weft predict: No such option: --no-such-option"), done
