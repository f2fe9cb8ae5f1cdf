"""An exported model that labels texts answers without torch, and as torch would have it answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.engines import need_engine
from tests.tasks.small import model_for, vocabulary
from weft.backends import choice, threads
from weft.backends.choice import BackendChoice
from weft.backends.threads import VARIABLES
from weft.bench.encode import prepare_export
from weft.checkpoint.card import Window
from weft.cli import inputs
from weft.cli.main import run
from weft.errors import UserError
from weft.tasks.light import TASKS, open_chosen, open_light
from weft.tasks.model import Model

need_engine("onnx")
LABELS = ("a", "b", "c")
TEXTS = ["the cat is now", "oak", "", "the flint is there again and again " * 9]


def exported(task: str, out: Path) -> Path:
    """An export whose windows are short."""
    model = model_for(task, 1 if task == "regress" else 3, vocabulary(), None if task == "regress" else LABELS)
    card = replace(model.card, window=Window(length=24, stride=18))
    weft.export(Model(replace(model.opened, card=card), task), "onnx", out=out)
    return out


@pytest.mark.parametrize("task", TASKS)
def test_it_answers_as_the_loaded_model(task: str, tmp_path: Path) -> None:
    """Alone and together, with long texts in windows; the graphs are the same, so the numbers are too."""
    folder = exported(task, tmp_path / "model")
    light = open_light(folder)
    assert light is not None
    inputs: list[Any] = [(text, "a cow") for text in TEXTS] if task == "pair" else TEXTS
    answers = light(inputs)
    assert answers == weft.load(folder)(inputs)
    assert max(answer.n_windows for answer in answers) > 1
    for each, answer in zip(inputs, answers, strict=True):
        assert light([each])[0].numbers == pytest.approx(answer.numbers, abs=1e-5)


def test_torch_is_not_imported(tmp_path: Path) -> None:
    folder = exported("classify", tmp_path / "model")
    code = "import sys; from weft.cli.main import run; run(sys.argv[1:]); print('torch' in sys.modules)"
    for more in ([], ["--device", "cpu", "--jsonl"]):
        command = [sys.executable, "-c", code, "predict", str(folder), "the cat", *more]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == "False", done.stdout


def test_tables_go_the_same_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = exported("classify", tmp_path / "model")
    (tmp_path / "rows.csv").write_text("text\nthe cat\noak and flint\n")
    out = tmp_path / "out.csv"
    assert run(["predict", str(folder), "--data", str(tmp_path / "rows.csv"), "--out", str(out)]) == 0
    labels = [answer.label for answer in weft.load(folder)(["the cat", "oak and flint"])]
    assert [line.split(",")[1] for line in out.read_text().splitlines()[1:]] == labels


def test_what_needs_torch_is_left_to_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another task, a folder of an earlier version, an ensemble."""
    model_for("tag", 3, vocabulary(), ("O", "B-X", "I-X")).save(tmp_path / "ours")
    weft.export(weft.load(tmp_path / "ours"), "onnx", out=tmp_path / "tag")
    assert open_light(tmp_path / "ours") is None and open_light(tmp_path / "tag") is None
    folder = exported("classify", tmp_path / "model")
    assert run(["predict", str(folder), str(folder), "the cat"]) == 0
    card = json.loads((folder / "weft.json").read_text())
    (folder / "weft.json").write_text(json.dumps({**card, "graph": None, "files": {}}))
    assert open_light(folder) is None
    assert run(["predict", str(folder), "the cat"]) == 0


def test_all_checks_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = exported("classify", tmp_path / "model")
    card = json.loads((folder / "weft.json").read_text())

    def refused(message: str, trust: bool = False, **graph: Any) -> None:
        values = {**card, "graph": {**card["graph"], **graph}, **({"files": {}} if trust else {})}
        (folder / "weft.json").write_text(json.dumps(values))
        with pytest.raises(UserError, match=message):
            open_light(folder)

    refused("not as it was exported: weft.json has changed", context=47)
    refused("the model only 5", trust=True, vocabulary=5)
    refused("context must be between 1 and", trust=True, context=0)
    refused("width must be between 1 and", trust=True, width=1 << 30)  # it decides how much memory a graph may hold
    refused("scores for a head of 9 outputs", trust=True, outputs={"classify": 9})
    refused("gives outputs of", trust=True, outputs={"tag": 3})
    refused("are expected", trust=True, segments=1)
    for labels, message in ((["a", "b"], "weft.json: 2 labels for a head of 3 outputs"), (["a", "c", "b"], "differ")):
        (folder / "weft.json").write_text(json.dumps({**card, "labels": labels, "files": {}}))
        for opened in (open_light, weft.load):
            with pytest.raises(UserError, match=message):
                opened(folder)
    (folder / "weft.json").write_text(json.dumps(card))
    light = open_light(folder)
    assert light is not None
    nothing = np.full((1, 3), np.nan, np.float32)
    monkeypatch.setattr(light.opened.graph, "computed", lambda *given: nothing)
    with pytest.raises(UserError, match="not a number"):
        light(["the cat"])


# --------------------------------------------------------------------------- models of PyTorch weights, by an export


def chosen(folder: Path, backend: str = "onnx-int8") -> Path:
    """The model of a folder, exported into the cache, with this backend as what was measured to be the best."""
    model = weft.load(folder, backend="torch")
    prepare_export(model, backend)
    return choice.store(choice.key_of(folder, model.task), BackendChoice(backend, 2.0, ("1 x 16",), "2026-01-01"))


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    model = model_for("classify", 3, vocabulary(), LABELS)
    card = replace(model.card, window=Window(length=24, stride=18))
    Model(replace(model.opened, card=card), "classify").save(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("backend", ["onnx", "onnx-int8"])
def test_a_chosen_export_answers_as_by_torch(trained: Path, backend: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The choice and a backend that is asked for lead to the same export, the same numbers and the same note."""
    assert open_chosen(trained) is None, "nothing was measured"
    chosen(trained, backend)
    slow = weft.load(trained)
    assert slow.opened.predictor.name == backend
    expected = slow(TEXTS)
    for light in (open_chosen(trained), open_chosen(trained, backend)):
        assert light is not None and light(TEXTS) == expected
    assert run(["predict", str(trained), "the cat", "--device", "cpu"]) == 0
    output, notes = capsys.readouterr()
    assert notes.splitlines() == [
        f"backend {backend}: 2.00 x torch in weft bench (1 x 16, 2026-01-01); --backend torch for the plain path"
    ]
    assert output.split("\t")[:2] == [slow("the cat").label, f"{slow('the cat').score:.6f}"]


def test_torch_is_not_imported_for_a_chosen_export(trained: Path) -> None:
    chosen(trained)
    code = "import sys; from weft.cli.main import run; run(sys.argv[1:]); print('torch' in sys.modules)"
    for more, imported in (
        (["--device", "cpu"], False),
        (["--backend", "onnx-int8"], False),
        (["--backend", "torch"], True),
        (["--device", "cpu", "--precision", "fp32"], True),
    ):
        command = [sys.executable, "-c", code, "predict", str(trained), "the cat", *more]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == str(imported), (more, done.stdout)


def test_a_chosen_export_is_used_for_the_same_weights_alone(trained: Path) -> None:
    place = chosen(trained)
    weights = trained / "model.safetensors"
    before = weights.read_bytes()
    weights.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    assert open_chosen(trained) is None and open_chosen(trained, "onnx-int8") is None
    weights.write_bytes(before)
    assert open_chosen(trained) is not None
    assert open_chosen(trained, "onnx") is None and open_chosen(trained, "onednn") is None
    (graph,) = place.parent.glob("*/model.onnx")
    data = graph.read_bytes()
    graph.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert open_chosen(trained) is None, "not as it was exported"
    graph.write_bytes(data)
    place.write_text(place.read_text().replace("onnx-int8", "onnx"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert open_chosen(trained) is None, "a damaged choice"
    with pytest.warns(UserWarning, match="plain torch is used"):
        weft.load(trained)


@pytest.mark.parametrize(
    ("setting", "hidden", "file", "expected"),
    [
        ("2.9.0+cpu", None, "nvidia0", True),
        ("2.9.0", None, "nvidiactl", False),
        ("2.9.0", None, "dxg", False),
        ("2.9.0", None, "kfd", False),
        ("2.9.0", None, "null", True),
        ("2.9.0", "-1", "nvidia0", True),
        ("2.9.0", "0", "nvidia0", False),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="looks for drivers of Linux")
def test_a_choice_for_the_cpu_waits_for_torch_where_there_may_be_a_gpu(
    setting: str, hidden: str | None, file: str, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "version_of", lambda package: setting)
    monkeypatch.setattr(inputs, "DEVICES", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    (tmp_path / file).touch()
    assert inputs.without_gpu() is expected


@pytest.mark.parametrize(
    "environment",
    [{}, {"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "2"}, {"OMP_NUM_THREADS": "0"}],
)
def test_threads_are_counted_as_torch_counts_them(environment: dict[str, str]) -> None:
    """A choice is kept by the number of threads; where the two differ it is not found before torch is there."""
    code = "from weft.backends.threads import thread_count; before = thread_count(); import torch; "
    code += "print(before == thread_count(), torch.backends.mkl.is_available())"
    given = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=given | environment)
    assert done.stdout.split() in (["True", "True"], ["True", "False"], ["False", "False"]), done.stderr


def test_two_processors_of_one_core_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 5}, raising=False)
    monkeypatch.setattr(threads, "TOPOLOGY", tmp_path)
    assert threads.core_count() == 4, "the system does not tell"
    for number, siblings in ((0, "0,4"), (1, "1,5"), (2, "2,6"), (5, "1,5")):
        (tmp_path / f"cpu{number}" / "topology").mkdir(parents=True)
        (tmp_path / f"cpu{number}" / "topology" / "thread_siblings_list").write_text(f"{siblings}\n")
    assert threads.core_count() == 3
