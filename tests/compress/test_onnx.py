"""What is written as ONNX says what the network says: every family and head, ragged, short and long."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft
from tests.engines import need_engine
from tests.table import CASES
from tests.tasks.small import kinds, model_for, vocabulary, write_rows
from weft.backends import onnx as onnx_graph
from weft.backends.onnx import GRAPH
from weft.backends.opening import opened as open_exported
from weft.checkpoint.card import Card
from weft.checkpoint.families import FAMILIES
from weft.checkpoint.folder import LoadedModel
from weft.errors import UserError
from weft.exporters import export as exporting
from weft.exporters.export import made_up_inputs
from weft.exporters.onnx_builder import four_bits
from weft.exporters.onnx_export import FAMILIES as WRITTEN
from weft.exporters.onnx_export import ranges_of, write_onnx
from weft.nn.rows import Ragged
from weft.tasks.model import Model

need_engine("onnx")
HEADS = {"classify": ("classify", 3), "tag": ("tag", 5), "answer": ("answer", 2), "fill": ("words", 101)}
TASKS = [(family, task) for family in WRITTEN for task in ("classify", "tag", "answer", "fill", "embed")]
LENGTHS = (1, 40, 7, 7, 3, 23, 2, 40)


def model_of(family: str, task: str, **settings: Any) -> LoadedModel:
    """A small network with large random weights and a card that says what it is for."""
    found, config = FAMILIES[family], CASES[family].config(**settings)
    head, outputs = HEADS.get(task, (None, 0))
    heads = {} if head is None else {head: outputs}
    if config.has("pooler"):
        config = replace(config, pooler=any(name in found.network.POOLED for name in heads))
    torch.manual_seed(0)
    network = found.network(config, heads)
    network.initialize()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(0, 0.2) if parameter.dim() > 1 else parameter.add_(0.1 * torch.randn_like(parameter))
    labels = tuple("abcde"[:outputs]) if head in ("classify", "tag") else None
    return LoadedModel(found, config, network.eval(), heads, None, Card(task=task, labels=labels))


def both(opened: LoadedModel, task: str, folder: Path, precision: Any = "fp32", **more: Any) -> tuple[Any, Any]:
    """What the network and its graph say of the same ragged rows."""
    folder.mkdir()
    write_onnx(folder, opened, task, precision, **more)
    chance = torch.Generator().manual_seed(1)
    ragged = Ragged.of([torch.randint(0, 101, (n,), generator=chance).tolist() for n in LENGTHS])
    segments = torch.randint(0, 2, (len(ragged.tokens),), generator=chance)
    segments = segments if opened.config.segments > 1 else None  # type: ignore[assignment]
    found: list[Any] = []
    for network in (opened.network, open_exported(folder).network):
        with torch.inference_mode():
            x = network(ragged.tokens, ragged.rows, segments)
            found.append(network.logits(HEADS[task][0], x, ragged.rows) if task in HEADS else x)  # type: ignore[operator]
    return found[0], found[1]


def apart(ours: Any, theirs: Any) -> float:
    assert ours.shape == theirs.shape
    return float((ours - theirs).abs().max() / ours.abs().max())


@pytest.mark.parametrize(("family", "task"), TASKS)
def test_a_graph_says_what_its_network_says(family: str, task: str, tmp_path: Path) -> None:
    found = FAMILIES[family]
    if task in HEADS and (HEADS[task][0] not in found.names.heads or (task == "fill" and found.generates)):
        with pytest.raises(UserError, match="has no head for|cannot be written"):
            write_onnx(tmp_path, model_of(family, "embed"), task)
        return
    assert apart(*both(model_of(family, task), task, tmp_path / "folder")) < 2e-5


@pytest.mark.parametrize(
    "settings",
    [
        {"positions": "sinusoidal"},
        {"positions": "alibi"},
        {"positions": "none", "norm": "rms", "norm_place": "before"},
        {"activation": "gated-silu", "mix": True},
        {"activation": "relu", "head_width": 20},
    ],
)
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_swapped_blocks(family: str, settings: dict[str, Any], tmp_path: Path) -> None:
    assert apart(*both(model_of(family, "classify", **settings), "classify", tmp_path / "folder")) < 2e-5


def test_padding_may_stand_before_the_text_as_others_put_it(tmp_path: Path) -> None:
    """RoBERTa counts its places from the first token, so it says the same on whichever side the padding stands."""
    opened = model_of("roberta", "tag")
    write_onnx(tmp_path, opened, "tag")
    graph = open_exported(tmp_path).network.graphs[1]
    ids = np.array([[7, 8, 9, 10, 1, 1]])
    mask = np.array([[1, 1, 1, 1, 0, 0]])
    after = graph.run(None, {"input_ids": ids, "attention_mask": mask})[0]  # type: ignore[union-attr, operator]
    ids, mask = np.roll(ids, 2, 1), np.roll(mask, 2, 1)
    before = graph.run(None, {"input_ids": ids, "attention_mask": mask})[0]  # type: ignore[union-attr, operator]
    assert np.abs(after[0, :4] - before[0, 2:]).max() < 1e-5


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("lstm", {"bidirectional": True, "pooling": "last", "embedding_width": 24}),
        ("lstm", {"pooling": "mean"}),
        ("gru", {"bidirectional": True, "pooling": "max"}),
        ("gru", {"pooling": "last"}),
        ("rnn", {"activation": "relu", "pooling": "last", "bidirectional": True}),
        ("cnn", {"both": True, "kernels": (1, 2, 5)}),
        ("vectors", {"inner": 12}),
    ],
)
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_the_families_without_attention(family: str, settings: dict[str, Any], precision: str, tmp_path: Path) -> None:
    far = apart(*both(model_of(family, "classify", **settings), "classify", tmp_path / "folder", precision))
    assert far < (2e-5 if precision == "fp32" else 0.04)


def test_what_has_no_graph_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="rotary positions cannot"):
        write_onnx(tmp_path, model_of("bert", "embed", positions="rotary"), "embed")
    with pytest.raises(UserError, match="a mlp model is exported by torch, in fp32 only"):
        write_onnx(tmp_path, model_of("mlp", "embed"), "embed", "int8")
    with pytest.raises(UserError, match="a model for complete cannot be written as ONNX; ctranslate2"):
        write_onnx(tmp_path, model_of("gpt2", "embed"), "complete")


@pytest.mark.parametrize(
    ("precision", "least", "most"), [("fp16", 1e-6, 5e-3), ("int8", 1e-4, 0.2), ("int4", 1e-3, 0.9)]
)
@pytest.mark.parametrize("task", ["classify", "fill"])
def test_smaller_numbers_are_near_and_smaller(
    task: str, precision: Any, least: float, most: float, tmp_path: Path
) -> None:
    opened = model_of("bert", task)
    both(opened, task, tmp_path / "whole")
    far = apart(*both(opened, task, tmp_path / "small", precision))
    assert least < far < most
    share = (tmp_path / "small" / GRAPH).stat().st_size / (tmp_path / "whole" / GRAPH).stat().st_size
    assert share < {"fp16": 0.6, "int8": 0.4, "int4": 0.35}[precision]


def test_static_integers_use_the_ranges_that_were_seen(tmp_path: Path) -> None:
    opened = model_of("bert", "classify")
    ragged = Ragged.of([list(range(20, 40)), [5, 6]])
    ranges = ranges_of(opened, lambda: opened.network(ragged.tokens, ragged.rows))
    assert ranges
    # The pooler and the head were not read, so nothing is known of them; no hook is left behind.
    assert all(m not in ranges for m in opened.network.heads.modules())  # type: ignore[union-attr]
    assert not any(module._forward_pre_hooks for module in opened.network.modules())
    near = apart(*both(opened, "classify", tmp_path / "near", "int8-static", ranges=ranges))
    narrow = {number: (low / 50, high / 50) for number, (low, high) in ranges.items()}
    far = apart(*both(opened, "classify", tmp_path / "far", "int8-static", ranges=narrow))
    assert near < 0.2 < far


def test_four_bits_give_back_what_they_can() -> None:
    weight = np.random.default_rng(0).normal(size=(5, 70)).astype(np.float32)
    packed, scales = four_bits(weight)
    assert packed.shape == (5, 3, 16) and scales.shape == (5, 3)
    low, high = packed & 15, packed >> 4
    whole = np.stack([low, high], -1).reshape(5, 3, 32).astype(np.float32) - 8
    back = (whole * scales[..., None]).reshape(5, -1)
    assert np.abs(back[:, 70:]).max() == 0
    assert (np.abs(back[:, :70] - weight) <= np.abs(np.repeat(scales, 32, 1)[:, :70]) * 1.01).all()


# ------------------------------------------------------------------------------------------- torch's exporter


def test_families_that_bring_a_graph_are_those_that_the_loader_knows() -> None:
    assert set(WRITTEN) == set(onnx_graph.WRITTEN)


@pytest.mark.parametrize(
    ("family", "task", "settings"),
    [
        ("bert", "classify", {}),
        ("bert", "fill", {"positions": "alibi", "norm": "rms", "mix": True}),
        ("gpt2", "answer", {}),
        ("lstm", "tag", {"bidirectional": True}),
        ("cnn", "classify", {}),
        ("mlp", "embed", {}),
        ("deberta", "tag", {"kernel": 3}),
    ],
)
def test_a_family_without_a_graph_is_exported_by_torch(
    family: str, task: str, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugged = replace(FAMILIES[family], name="plugged", model_type="")
    monkeypatch.setitem(FAMILIES, "plugged", plugged)
    monkeypatch.setitem(CASES, "plugged", CASES[family])
    opened = replace(model_of(family, task, **settings), family=plugged)
    assert apart(*both(opened, task, tmp_path / "folder")) < 2e-5
    names = [each.name for each in open_exported(tmp_path / "folder").network.graphs[1].get_inputs()]  # type: ignore[union-attr, operator]
    assert names == ["input_ids", *(["token_type_ids"] if CASES[family].segments else [])]


def test_torch_needs_onnxscript_to_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UserError, match=r"a mlp model .* needs the package onnxscript: pip install 'weft\[fast-cpu\]'"):
        write_onnx(tmp_path, model_of("mlp", "embed"), "embed")


def test_what_torch_cannot_export_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = model_of("mlp", "embed")
    monkeypatch.setattr(type(opened.network), "forward", lambda self, tokens, rows, *more: self.tokens(tokens).tolist())
    with pytest.raises(UserError, match="torch cannot write a mlp model as ONNX: ") as found:
        write_onnx(tmp_path, opened, "embed")
    assert "\n" not in str(found.value)


# ------------------------------------------------------------------------------------------------ weft.export


def test_an_export_is_checked_and_answers_the_same(tmp_path: Path) -> None:
    tokenizer = vocabulary()
    model = model_for("classify", 3, tokenizer, labels=("a", "b", "c"))
    rows = write_rows(tmp_path / "rows.jsonl", kinds(20))
    found = weft.export(model, "onnx", out=tmp_path / "out", data=rows)
    assert found.texts == 20 and found.max_difference < 1e-5
    again = weft.load(tmp_path / "out")
    assert again.card.backend == "onnx" and again.card.precision == "fp32" and again.card.labels == ("a", "b", "c")
    texts = ["the cat is now", "", "oak", "the flint is there again and again " * 9]
    for ours, theirs in zip(model(texts), again(texts), strict=True):
        assert ours.label == theirs.label and ours.n_windows == theirs.n_windows
        assert ours.score == pytest.approx(theirs.score, abs=1e-5)
    assert not (tmp_path / "out" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("task", "outputs", "labels"),
    [
        ("multilabel", 3, ("a", "b", "c")),
        ("regress", 1, None),
        ("pair", 2, ("a", "b")),
        ("tag", 3, ("O", "B-X", "I-X")),
        ("answer", 2, None),
    ],
)
@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2"])
def test_every_task_says_the_same(
    family: str, task: str, outputs: int, labels: tuple[str, ...] | None, tmp_path: Path
) -> None:
    model = model_for(task, outputs, vocabulary("bpe" if family == "gpt2" else "wordpiece"), labels, family)
    assert weft.export(model, "onnx", out=tmp_path / "out").max_difference < 1e-5
    given = made_up_inputs(model, 6, seed=3)
    ours, theirs = model(given), weft.load(tmp_path / "out")(given)
    assert [answer.decision for answer in ours] == [answer.decision for answer in theirs]
    if task == "regress":
        assert [a.value for a in ours] == pytest.approx([a.value for a in theirs], abs=1e-4)  # type: ignore[attr-defined]


def test_gaps_are_filled_with_the_same_words(tmp_path: Path) -> None:
    model = weft.new("bert", vocabulary(), size="1x64", settings={"context": 48}, seed=2)
    found = weft.export(model, "onnx", out=tmp_path / "out")
    assert found.max_difference < 1e-5
    again, text = weft.load(tmp_path / "out"), "the [MASK] is [MASK] now"
    assert again.task == "fill"
    ours, theirs = model(text), again(text)
    words = [[word.word for gap in answer.gaps for word in gap] for answer in (ours, theirs)]  # type: ignore[attr-defined]
    assert words[0] == words[1]
    assert len(weft.load(tmp_path / "out", task="embed")("a cat").values) == 64  # type: ignore[attr-defined]


@pytest.mark.parametrize("fault", ["weight", "mask"])
def test_a_damaged_export_is_not_written(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_for("classify", 3, vocabulary(), labels=("a", "b", "c"))

    def damaged(inside: Path, opened: LoadedModel, task: str) -> None:
        write_onnx(inside, opened, task)
        import onnx

        graph = onnx.load(str(inside / GRAPH))
        if fault == "weight":
            tensor = next(each for each in graph.graph.initializer if each.name.endswith("_matrix"))
            array = onnx.numpy_helper.to_array(tensor).copy()
            array[3, 5] += 0.5
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
        else:  # padding is looked at as if it were text
            for tensor in graph.graph.initializer:
                if tensor.dims == [] and onnx.numpy_helper.to_array(tensor) == np.float32(-1e9):
                    tensor.CopyFrom(onnx.numpy_helper.from_array(np.array(0, np.float32), tensor.name))
        (inside / GRAPH).write_bytes(graph.SerializeToString())

    monkeypatch.setitem(exporting.WAYS, "onnx", damaged)
    with pytest.raises(UserError, match=r"differs from its source: logits by .* nothing was written"):
        weft.export(model, "onnx", out=tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_made_up_texts_are_of_all_lengths() -> None:
    model = model_for("classify", 3, vocabulary(), labels=("a", "b", "c"))
    assert model.tokenizer is not None
    lengths = [len(ids) for ids in model.tokenizer.ids(made_up_inputs(model), specials=False)]
    assert min(lengths) <= 2 and max(lengths) > 20  # longer than a window of 20
    assert made_up_inputs(model) == made_up_inputs(model)
    assert all(len(pair) == 2 for pair in made_up_inputs(Model(model.opened, "pair")))


def test_mistakes_in_an_export(tmp_path: Path) -> None:
    model = model_for("classify", 3, vocabulary(), labels=("a", "b", "c"))
    with pytest.raises(UserError, match="to 'onx' is not one of onnx.*did you mean 'onnx'"):
        weft.export(model, "onx", out=tmp_path / "out")
    weft.export(model, "onnx", out=tmp_path / "out")
    with pytest.raises(UserError, match="a model for onnx already"):
        weft.export(tmp_path / "out", "onnx", out=tmp_path / "again")
