"""Backends of one model: equal to plain torch, stepping aside where the network is changed, chosen from the cache."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft
from tests.engines import need_engine
from tests.tasks.small import model_for, vocabulary
from weft.backends import choice, onednn
from weft.backends.choice import BACKENDS, BackendChoice
from weft.backends.predictors import Predictor
from weft.bench.agreement import fault_of, numbers_fault
from weft.bench.encode import prepare_export
from weft.cli.main import run
from weft.errors import UserError
from weft.nn.rows import Rows
from weft.tasks.chosen import answering_by, measured_as
from weft.tasks.model import Model

LABELS = ("a", "b", "c")
TEXTS = [
    "the cat is now",
    "oak and flint",
    "",
    *(f"{'the flint is there again and again ' * n}oak" for n in range(1, 6)),
]
BFLOAT16 = pytest.mark.skipif(not onednn.supported(torch.bfloat16), reason="this CPU has no bfloat16")
KINDS = ["onednn", pytest.param("onednn-bf16", marks=BFLOAT16)]
pytestmark = pytest.mark.skipif(not onednn.supported(torch.float32), reason="this torch has no oneDNN")


@pytest.fixture(autouse=True)
def own_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def stored_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench") / "model"
    model_for("classify", 3, vocabulary(), LABELS).save(folder)
    return folder


@pytest.fixture
def model(stored_folder: Path) -> Model:
    return weft.load(stored_folder, backend="torch")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("bert", {}),
        ("bert", {"activation": "relu", "norm_place": "before"}),
        ("bert", {"activation": "gated-silu", "positions": "alibi"}),
        ("bert", {"activation": "tanh", "positions": "rotary"}),
        ("roberta", {"activation": "gelu-tanh"}),
        ("albert", {}),
        ("distilbert", {}),
        ("gpt2", {}),
        ("deberta", {}),
    ],
)
def test_packed_layers_are_the_same_network(family: str, settings: dict[str, Any], kind: str) -> None:
    sizes = {"context": 160, "vocabulary": 90, "weight_scale": 0.1, **settings}
    opened = weft.new(family, size="2x64", settings=sizes).opened
    fast = onednn.network_of(opened, kind)
    for lengths in ([5], [1, 70, 3, 140, 40, 66], [40, 40, 40]):
        tokens, rows = torch.randint(5, 90, (sum(lengths),)), Rows.of(lengths)
        with torch.inference_mode():
            one, two = opened.network(tokens, rows), fast(tokens, Rows.of(lengths))
        size = float(one.abs().max())
        assert float((one - two).abs().max()) <= (2e-5 if kind == "onednn" else 0.06) * size
    assert torch.equal(opened.network.state_dict()["tokens.weight"], fast.tokens.weight)


@pytest.mark.parametrize("kind", KINDS)
def test_relative_attention_is_not_packed(kind: str) -> None:
    """It reads parts of its matrices, which have no packed form."""
    opened = weft.new("transformer-xl", size="1x64", settings={"vocabulary": 90}).opened
    with pytest.raises(UserError, match=f"backend {kind} does not run transformer-xl"):
        onednn.network_of(opened, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_answers_of_a_text_alone_and_in_a_batch(model: Model, kind: str) -> None:
    fast = answering_by(model, kind)
    assert fault_of(model, fast, [text or "a" for text in TEXTS], BACKENDS[kind]) is None
    plain, packed = model(TEXTS), fast(TEXTS)
    assert [each.label for each in plain] == [each.label for each in packed]
    tolerance = 1e-5 if kind == "onednn" else 0.02
    assert [each.score for each in packed] == pytest.approx([each.score for each in plain], abs=tolerance)
    vectors = [np.array(each.embed("oak and flint").values) for each in (model, fast)]
    assert np.allclose(*vectors, atol=1e-5 if kind == "onednn" else 0.05 * np.abs(vectors[0]).max())


def test_exports_in_the_cache_answer_the_same(model: Model) -> None:
    need_engine("onnx")
    for name in ("onnx", "onnx-int8"):
        with pytest.raises(UserError, match=f"has nothing for {name}: it is a model for torch"):
            weft.load(model.folder, backend=name)
        prepare_export(model, name)
        fast = weft.load(model.folder, backend=name)
        assert fault_of(model, fast, TEXTS[:2], BACKENDS[name]) is None
        assert fast.opened.answering("classify") is not fast.network  # the export has this head alone
        assert fast.opened.answering(None) is fast.network
        assert fast.embed("oak").values == model.embed("oak").values
    (graph,) = [path / "model.onnx" for path in (choice.cache_folder() / choice.ROOM).glob("*.onnx") if _is_fp32(path)]
    graph.write_bytes(graph.read_bytes()[:-100])
    damaged = weft.load(model.folder, backend="onnx")
    with pytest.raises(UserError, match="backend onnx cannot be used; weft bench .* exports it again"):
        damaged("oak")
    chosen(model, "onnx")
    assert weft.load(model.folder).opened.predictor is None  # a note, and plain torch
    prepare_export(model, "onnx")  # made again
    assert weft.load(model.folder).opened.predictor.name == "onnx"
    assert fault_of(model, weft.load(model.folder, backend="onnx"), TEXTS[:2], BACKENDS["onnx"]) is None


def _is_fp32(folder: Path) -> bool:
    return json.loads((folder / "weft.json").read_text())["precision"] == "fp32"


def test_it_stands_aside_where_the_network_is_changed(model: Model) -> None:
    fast = answering_by(model, "onednn")
    predictor = fast.opened.predictor
    assert isinstance(predictor, Predictor) and predictor.network is None  # made when it is first asked
    assert fast.opened.answering("classify") is predictor.network is not None
    with weft.watch(fast) as seen:
        assert fast.opened.answering("classify") is fast.network
        fast("oak and flint")
    assert len(seen.attention) == 1
    assert fast.opened.answering("classify") is predictor.network
    fast.network.train()
    assert fast.opened.answering("classify") is fast.network
    fast.network.eval()
    assert replace(fast.opened, network=model_for("classify", 3, vocabulary(), LABELS).network).answering("x") is not (
        predictor.network
    )
    layer, output = fast.network.layers[0], fast.network.heads["classify"].output
    fast.network.layers[0] = torch.nn.Identity()
    assert fast.opened.answering("classify") is fast.network
    fast.network.layers[0] = layer
    assert fast.opened.answering("classify") is predictor.network
    bias = output.bias
    output.bias = torch.nn.Parameter(bias.detach().clone())
    assert fast.opened.answering("classify") is fast.network
    output.bias = bias
    with torch.no_grad():
        fast.network.heads["classify"].output.bias += 3 * torch.arange(3)
    assert fast.opened.answering("classify") is fast.network and fast("oak").label == "c"


def test_the_gate_refuses_other_answers(model: Model) -> None:
    broken = answering_by(model, "onednn")
    fast = broken.opened.answering("classify")
    packed = fast.layers[0].feedforward.down
    packed.bias = packed.bias + torch.arange(64.0) / 64  # one wrong bias
    fault = fault_of(model, broken, TEXTS[:2], BACKENDS["onednn"])
    assert fault is not None and "of the largest number (limit 0.0001)" in fault
    swapped = answering_by(model, "onednn")
    swapped.opened.predictor.network = _Swapped(swapped.opened.answering("classify"))
    loose = replace(BACKENDS["onednn"], tolerance=1e9)
    fault = fault_of(model, swapped, TEXTS[:2], loose)
    assert fault is not None and fault.startswith("answers ") and "in place of" in fault


class _Swapped:
    """A network whose head gives the least likely label the largest logit."""

    def __init__(self, network: Any) -> None:
        self.network = network

    def __call__(self, *inputs: Any) -> Any:
        return self.network(*inputs)

    def logits(self, *inputs: Any) -> Any:
        return -self.network.logits(*inputs)


def test_a_value_has_less_room_than_a_logit(tmp_path: Path) -> None:
    """No label hides what it is off by: int8 may be wrong by 2 % of the largest value, not by 20 %."""
    model_for("regress", 1, vocabulary(), None).save(tmp_path / "values")
    model = weft.load(tmp_path / "values", backend="torch")
    with torch.no_grad():
        model.network.heads["classify"].output.bias += 10
    for shift, refused in ((0.1, False), (0.5, True)):
        moved = answering_by(model, "onednn")
        network = moved.opened.predictor.ready()
        whole = network.logits
        network.logits = lambda *given, whole=whole, shift=shift: whole(*given) + shift
        fault = fault_of(model, moved, TEXTS, BACKENDS["onnx-int8"])
        assert (fault is not None and "(limit 0.02)" in fault) is refused, fault


def test_vectors_must_point_the_same_way() -> None:
    one = list(np.random.default_rng(0).normal(size=(6, 32)).astype(np.float32))
    loose = replace(BACKENDS["onnx-int8"], tolerance=10.0)
    assert numbers_fault(one, [1.01 * each for each in one], loose, True) is None
    assert "turn" in (numbers_fault(one, [-each for each in one], loose, True) or "")
    there, moved = ([np.array([np.cos(a), np.sin(a)]) for a in angles] for angles in ((0, 0.3, -0.32), (0, 0.3, -0.28)))
    assert "another text is nearest" in (numbers_fault(there, moved, replace(loose, angle=1e-3), True) or "")
    assert numbers_fault(there, moved, replace(loose, angle=1e-2), True) is None  # a tie, as far as it may be told
    assert "other shapes" in (numbers_fault(one, [each[:5] for each in one], loose, True) or "")
    assert "differs" in (numbers_fault(one, [each * np.nan for each in one], loose, False) or "")


# ------------------------------------------------------------------------------------------------------- the choice


def chosen(model: Model, backend: str = "onednn") -> Path:
    assert model.folder is not None
    return choice.store(choice.key_of(model.folder, model.task), BackendChoice(backend, 2.0, ("1 x 16",), "2026-01-01"))


def test_what_was_chosen_is_used_and_named(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    assert weft.load(model.folder).opened.predictor is None  # nothing was measured
    chosen(model)
    assert weft.load(model.folder).opened.predictor.name == "onednn"
    assert weft.load(model.folder, backend="torch").opened.predictor is None
    assert weft.load(model.folder, task="embed").opened.predictor is None  # another task was not measured
    vectors = weft.load(model.folder, task="rank", backend="torch")
    choice.store(choice.key_of(model.folder, measured_as(vectors)), BackendChoice("onednn", 2.0))
    for task in ("embed", "rank", "central"):  # one choice serves all that need nothing but vectors
        assert weft.load(model.folder, task=task).opened.predictor.name == "onednn"
    capsys.readouterr()
    folder = str(model.folder)
    assert run(["predict", folder, "oak", "--device", "cpu"]) == 0
    output, notes = capsys.readouterr()
    assert notes.splitlines() == [
        "backend onednn: 2.00 x torch in weft bench (1 x 16, 2026-01-01); --backend torch for the plain path"
    ]
    for backend in ("torch", "onednn"):
        assert run(["predict", folder, "oak", "--device", "cpu", "--backend", backend]) == 0
        again, notes = capsys.readouterr()
        assert notes == "" and again.split("\t")[0] == output.split("\t")[0]
    assert run(["predict", folder, "oak", "--backend", "onyx"]) == 2
    assert "backend 'onyx' is not one of torch, onednn" in capsys.readouterr().err


def test_a_choice_for_something_else_is_ignored(model: Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = chosen(model)
    with monkeypatch.context() as patch:
        patch.setattr(choice, "cpu_name", lambda: "another processor")
        assert weft.load(model.folder).opened.predictor is None
    with monkeypatch.context() as patch:
        patch.setattr(choice, "version_of", lambda package: "99.0")
        assert weft.load(model.folder).opened.predictor is None
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        assert weft.load(model.folder).opened.predictor is None
    finally:
        torch.set_num_threads(threads)
    other = model_for("classify", 3, vocabulary(), LABELS)
    with torch.no_grad():
        other.network.heads["classify"].output.bias += 1
    other.save(tmp_path / "other")
    assert weft.load(tmp_path / "other").opened.predictor is None
    # The file of one model under the name of another: its key says so.
    assert other.folder is None
    path.rename(choice.path_of(choice.key_of(tmp_path / "other", "classify")))
    assert weft.load(tmp_path / "other").opened.predictor is None


def test_fewer_threads_take_the_choice_for_all_cores(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """As workers of a server do, which share the cores."""
    threads = torch.get_num_threads()
    monkeypatch.setattr(choice, "core_count", lambda: threads + 1)
    try:
        torch.set_num_threads(threads + 1)
        chosen(model)
    finally:
        torch.set_num_threads(threads)
    assert weft.load(model.folder).opened.predictor is not None
    monkeypatch.setattr(choice, "core_count", lambda: threads)
    assert weft.load(model.folder).opened.predictor is None


@pytest.mark.parametrize("damage", ["cut", "changed", "pickle", "list"])
def test_a_damaged_choice_is_ignored_with_a_note(model: Model, damage: str) -> None:
    path = chosen(model)
    text = path.read_text()
    spoiled = {
        "cut": text[: len(text) // 2].encode(),
        "changed": text.replace('"onednn"', '"onnx"').encode(),
        "pickle": b"\x80\x04cposix\nsystem\n(S'touch spoiled'\ntR.",
        "list": b"[]",
    }
    path.write_bytes(spoiled[damage])
    with pytest.warns(UserWarning, match="plain torch is used"):
        assert weft.load(model.folder).opened.predictor is None


def test_a_changed_file_of_weights_is_hashed_again(tmp_path: Path) -> None:
    model = model_for("classify", 3, vocabulary(), LABELS)
    model.save(tmp_path / "m")
    before = choice.folder_of(tmp_path / "m")
    assert choice.folder_of(tmp_path / "m") == before
    weights = tmp_path / "m" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(bytes(data))
    assert choice.folder_of(tmp_path / "m") != before


def test_an_unknown_backend_in_the_cache_is_not_used(model: Model) -> None:
    chosen(model, "tensorrt")
    assert weft.load(model.folder).opened.predictor is None
    chosen(model, "onnx")  # chosen, but its export is gone
    assert weft.load(model.folder).opened.predictor is None


def test_the_cache_is_cleared_with_all_others(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    path = chosen(model)
    assert run(["cache", "clear"]) == 0 and "freed" in capsys.readouterr().out
    assert not path.exists() and weft.load(model.folder).opened.predictor is None
