"""Folders that ONNX Runtime runs: loaded like any other, refused where they are not what they say."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft
from tests.engines import need_engine
from tests.tasks.small import model_for, vocabulary
from weft.backends import groups as grouping
from weft.backends import onnx as engine
from weft.cli.main import run
from weft.errors import UserError
from weft.exporters.onnx_export import write_onnx
from weft.nn.rows import Rows
from weft.tasks.forward import graph_of
from weft.tasks.model import Model

need_engine("onnx")
LABELS = ("a", "b", "c")


@pytest.fixture(scope="module")
def model() -> Model:
    return model_for("classify", 3, vocabulary(), LABELS)


@pytest.fixture
def folder(model: Model, tmp_path: Path) -> Path:
    """An export without the hashes of its files, so that what is in them is looked at."""
    weft.export(model, "onnx", out=tmp_path / "model")
    card = json.loads((tmp_path / "model" / "weft.json").read_text())
    del card["files"]
    (tmp_path / "model" / "weft.json").write_text(json.dumps(card))
    return tmp_path / "model"


def changed(folder: Path, change: Callable[[Any, Any], None]) -> None:
    """The folder's graph with something done to it."""
    import onnx

    graph = onnx.load(str(folder / engine.GRAPH))
    change(graph, onnx)
    (folder / engine.GRAPH).write_bytes(graph.SerializeToString())


def test_the_command_line_answers_the_same(
    model: Model, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model.save(tmp_path / "ours")
    said = []
    for place in (tmp_path / "ours", folder):
        assert run(["predict", str(place), "the cat is now", "oak and flint", "--jsonl", "--device", "cpu"]) == 0
        said.append([json.loads(line) for line in capsys.readouterr().out.splitlines()])
    for ours, theirs in zip(*said, strict=True):
        assert ours["label"] == theirs["label"] and ours["score"] == pytest.approx(theirs["score"], abs=1e-5)
    assert run(["info", str(folder)]) == 0
    assert "stored as       fp32" in capsys.readouterr().out


def test_vectors_and_ranks(model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model.save(tmp_path / "ours")
    assert run(["export", str(tmp_path / "ours"), "--task", "embed", "--out", str(tmp_path / "theirs")]) == 0
    assert "the same answers" in capsys.readouterr().out
    texts = ["the cat is now", "oak", "the flint is there again and again " * 9]
    ours, theirs = (weft.load(tmp_path / name, task="embed") for name in ("ours", "theirs"))
    for one, other in zip(ours(texts), theirs(texts), strict=True):
        assert one.values == pytest.approx(other.values, abs=1e-5) and one.n_windows == other.n_windows
    ranks = [weft.load(tmp_path / name, task="rank")("a cat", texts=texts) for name in ("ours", "theirs")]
    assert [hit.number for hit in ranks[0].hits] == [hit.number for hit in ranks[1].hits]  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="its last layer only"):
        theirs("a", layers="last2-mean")
    with pytest.raises(UserError, match="was exported for embed, and does nothing else|has no head for classify"):
        weft.load(tmp_path / "theirs", task="classify")


def test_rows_are_put_together_by_length(model: Model, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = weft.load(folder).network
    monkeypatch.setattr(grouping, "TOKENS", 64)
    lengths = [1, 40, 2, 40, 3, 40, 0, 39]
    groups = grouping.grouped(lengths, padding=True)
    assert sorted(number for group in groups for number in group) == list(range(8))
    assert max(len(group) * max(lengths[n] for n in group) for group in groups) <= 64
    assert sum(len(group) * max(lengths[n] for n in group) for group in groups) < sum(lengths) + 16
    tokens = torch.randint(0, 100, (sum(lengths),))
    alone = [tokens[start:end] for start, end in zip(*_ends(lengths), strict=True)]
    said = network(tokens, Rows.of(lengths))
    assert said.shape == (8, 3)
    for number, (row, length) in enumerate(zip(alone, lengths, strict=True)):
        if length:
            assert torch.allclose(said[number], network(row, Rows.of([length]))[0], atol=1e-5)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_groups_of_rows_by_threads_of_their_own(tmp_path: Path, precision: Any) -> None:
    model = weft.new("bert", vocabulary(), size="2x64", settings={"context": 48}, heads={"classify": 3}, seed=1)
    (tmp_path / "model").mkdir()
    write_onnx(tmp_path / "model", model.opened, "classify", precision)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        network = weft.load(tmp_path / "model").network
    finally:
        torch.set_num_threads(threads)
    lengths = [40, 7, 44, 7, 1, 40]
    tokens, rows = torch.randint(0, 100, (sum(lengths),)), Rows.of(lengths)
    near = 1e-5 if precision == "fp32" else 0.02
    alone = [network(row, Rows.of([len(row)]))[0] for row in torch.split(tokens, lengths)]
    assert list(network.graphs) == [2]  # both threads work on a text that is alone
    assert network.even == (precision == "int8")  # the attention of its first layer is one operator
    together = network(tokens, rows)
    assert sorted(network.graphs) == [1, 2]
    for one, other in zip(together, alone, strict=True):
        assert torch.allclose(one, other, atol=near)


def test_a_faulty_group_is_reported_from_its_thread(model: Model, folder: Path) -> None:
    network = weft.load(folder).network
    network.threads = 2
    network.widths = (7,)
    with pytest.raises(UserError, match="the ONNX graph gave"):
        network(torch.randint(0, 100, (30,)), Rows.of([10, 20]))


def test_threads_have_groups_of_about_the_same_size() -> None:
    assert grouping.grouped([10] * 8, padding=True, parts=2) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert grouping.grouped([10] * 8, padding=True) == [[*range(8)]]
    assert grouping.grouped([10], padding=True, parts=4) == [[0]]


def _ends(lengths: list[int]) -> tuple[list[int], list[int]]:
    ends = np.cumsum(lengths).tolist()
    return [end - length for end, length in zip(ends, lengths, strict=True)], ends


def test_which_engine_is_asked_for(model: Model, folder: Path, tmp_path: Path) -> None:
    model.save(tmp_path / "ours")
    assert weft.load(folder, backend="onnx").card.backend == "onnx"
    assert weft.load(tmp_path / "ours", backend="torch").card.backend is None
    with pytest.raises(UserError, match="has no PyTorch weights: it is a model for onnx"):
        weft.load(folder, backend="torch")
    with pytest.raises(UserError, match="has nothing for onnx: it is a model for torch"):
        weft.load(tmp_path / "ours", backend="onnx")
    with pytest.raises(UserError, match="backend 'onyx' is not one of torch, onednn"):
        weft.load(folder, backend="onyx")


def test_it_stays_on_the_cpu_and_is_not_saved(folder: Path, tmp_path: Path) -> None:
    found = weft.load(folder)
    assert str(found.to("cpu").opened.device) == "cpu"
    for wrong in (lambda: found.to("cuda"), lambda: weft.load(folder, device="cuda:1")):
        with pytest.raises(UserError, match="a model for onnx runs on the cpu, not on cuda"):
            wrong()
    with pytest.raises(UserError, match="has no PyTorch weights to save"):
        found.save(tmp_path / "copy")
    with pytest.raises(UserError, match="does nothing else"):
        weft.load(folder, task="embed")


def test_a_folder_whose_name_is_not_utf_8(folder: Path) -> None:
    other = folder.rename(folder.with_name("caf\udce9"))
    assert weft.load(other)("the weaver").label


def test_a_text_longer_than_the_context_is_refused(folder: Path) -> None:
    with pytest.raises(UserError, match="a text of 49 tokens is longer than the model's context of 48"):
        weft.load(folder).network(torch.zeros(49, dtype=torch.int64), Rows.of([49]))


# ------------------------------------------------------------------------------------------------ hostile files


def test_a_damaged_file_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = (folder / engine.GRAPH).read_bytes()
    for data in (b"", b"\x00" * 100, whole[: len(whole) // 2], whole[:-1], b"{}" * 50):
        (folder / engine.GRAPH).write_bytes(data)
        assert run(["predict", str(folder), "a cat"]) == 2
        told = capsys.readouterr().err
        assert told.count("\n") == 1 and "model.onnx: " in told, told
    (folder / engine.GRAPH).unlink()
    with pytest.raises(UserError, match="has no model.onnx"):
        weft.load(folder)


def test_weights_in_other_files_are_never_opened(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"\x00" * 4096)

    def elsewhere(graph: Any, onnx: Any) -> None:
        tensor = graph.graph.initializer[0]
        size = len(tensor.raw_data)
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", "../secret"), ("length", str(size))):
            tensor.external_data.add(key=key, value=value)

    changed(folder, elsewhere)
    with pytest.raises(UserError, match="lies in another file, which is never opened"):
        weft.load(folder)


def test_a_graph_holds_no_code_of_others(folder: Path) -> None:
    def foreign(graph: Any, onnx: Any) -> None:
        graph.graph.node[0].domain = "evil.example"

    changed(folder, foreign)
    with pytest.raises(UserError, match="operator Gather of evil.example is none that an exported model has"):
        weft.load(folder)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda graph, onnx: _renamed(graph, "attention_mask", "mask"), "reads .* where input_ids, attention_mask"),
        (lambda graph, onnx: _renamed(graph, "logits", "scores"), "gives scores where logits is expected"),
        (lambda graph, onnx: graph.graph.ClearField("node"), "not a sound ONNX graph"),
        (lambda graph, onnx: graph.graph.sparse_initializer.add(), "holds functions, training or sparse tensors"),
        (lambda graph, onnx: graph.training_info.add(), "holds functions, training or sparse tensors"),
    ],
)
def test_a_graph_of_something_else_is_named(folder: Path, change: Callable[[Any, Any], None], told: str) -> None:
    changed(folder, change)
    with pytest.raises(UserError, match=told):
        weft.load(folder)


def _renamed(graph: Any, old: str, new: str) -> None:
    for each in (*graph.graph.input, *graph.graph.output):
        each.name = new if each.name == old else each.name
    for node in graph.graph.node:
        for names in (node.input, node.output):
            names[:] = [new if name == old else name for name in names]


def test_a_head_of_another_size_is_named(folder: Path) -> None:
    for name in ("config.json", "weft.json"):
        told = json.loads((folder / name).read_text())
        if name == "config.json":
            told |= {
                "id2label": dict(zip("0123", "abcd", strict=True)),
                "label2id": dict(zip("abcd", range(4), strict=True)),
            }
        else:
            told["labels"] = list("abcd")
        (folder / name).write_text(json.dumps(told))
    with pytest.raises(UserError, match="gives 3 scores for a head of 4 outputs"):
        weft.load(folder)


def test_a_card_that_names_no_engine_of_ours(folder: Path) -> None:
    card = json.loads((folder / "weft.json").read_text())
    (folder / "weft.json").write_text(json.dumps({**card, "backend": "tensorrt"}))
    with pytest.raises(UserError, match="backend.*tensorrt"):
        weft.load(folder)
    (folder / "weft.json").write_text(json.dumps({**card, "backend": None}))
    with pytest.raises(UserError, match=r"has no model.safetensors"):
        weft.load(folder)


def test_without_the_package_one_line_says_which(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UserError, match=r"needs the package onnxruntime: pip install 'weft\[fast-cpu\]'"):
        weft.load(folder)


def test_standard_input(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"the cat\n\noak\n")))
    assert run(["predict", str(folder)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


@pytest.mark.parametrize("pooling", ["mean", "max", "first"])
def test_vectors_without_torch_are_those_of_the_network(pooling: str, tmp_path: Path) -> None:
    """Also of a text of several windows, where only what is new in each counts."""
    made = weft.new("bert", vocabulary(), size="1x64", settings={"context": 48, "weight_scale": 0.3}, heads={})
    card = replace(made.opened.card, task="embed", pooling=pooling)
    model = Model(replace(made.opened, card=card), "embed")
    weft.export(model, "onnx", out=tmp_path / "model")
    exported = weft.load(tmp_path / "model")
    assert graph_of(exported.opened, None) is exported.network and graph_of(model.opened, None) is None
    texts = ["the cat", "the cat is there again " * 30, "oak"]
    for one, other in zip(exported(texts), model(texts), strict=True):
        assert np.allclose(one.values, other.values, atol=1e-4) and one.n_windows == other.n_windows
    assert exported(texts)[1].n_windows > 1
