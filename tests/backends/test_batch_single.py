"""Batch = single: a text gets the same answer in any company, by every engine, in every precision, for every task."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft
from tests.backends.engines import carried, drawn, texts
from tests.engines import need_engine
from tests.tasks.small import kinds, model_for, vocabulary, write_rows
from weft.backends import groups
from weft.backends.onnx import runtime
from weft.backends.onnx_network import OnnxNetwork
from weft.cli.main import run
from weft.errors import UserError
from weft.exporters import export as checks
from weft.exporters.export import (
    BOUNDS,
    check_batch_single,
    difference,
    largest_difference,
    made_up_inputs,
    mixed,
)
from weft.exporters.onnx_builder import RUNTIME, Graph, eight_bits
from weft.quantization.quantize import KINDS, Refused, write_candidate
from weft.tasks.complete import complete
from weft.tasks.model import Model

need_engine("onnx")
need_engine("ctranslate2")
ENGINES = ("torch", *KINDS)
LABELS = ("a", "b", "c")
TASKS = {
    "classify": (3, LABELS),
    "multilabel": (3, LABELS),
    "pair": (3, LABELS),
    "regress": (1, None),
    "tag": (3, ("O", "B-X", "I-X")),
    "answer": (2, None),
    "embed": (0, None),
    "fill": (0, None),
}


@cache
def model_of(task: str, wide: bool = True) -> Model:
    """A small encoder; where `wide`, the largest numbers of a text are far larger than others, and its own."""
    outputs, labels = TASKS[task]
    if outputs:
        model = model_for(task, outputs, vocabulary(), labels)
    else:
        heads: Any = {"words": None} if task == "fill" else {}
        sizes = {"context": 48, "weight_scale": 0.1}
        made = weft.new("bert", vocabulary(), size="1x64", settings=sizes, heads=heads, seed=1)
        model = Model(replace(made.opened, card=replace(made.card, task=task)), task)
    network: Any = model.network
    if not wide:
        return model
    with torch.no_grad():  # a few wide places, as trained models have them: how wide, depends on the text
        for norm in (network.embedding_norm, *(layer.attention_norm for layer in network.layers)):
            norm.weight[:3] *= 30
        for head in network.heads.values():
            if hasattr(head, "output"):
                head.output.weight *= 3  # so that a little more or less of a score shows
    return model


def written(model: Model, kind: str, folder: Path) -> Model:
    """The model as an engine runs it."""
    if kind == "torch":
        return model
    folder.mkdir()
    write_candidate(kind, folder, model, made_up_inputs(model, 8))
    return weft.load(folder, task=model.task)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("kind", ENGINES)
def test_a_text_is_answered_as_it_is_alone(kind: str, task: str, tmp_path: Path) -> None:
    # Integers must be measured where ranges differ; halves have none, and would only be rounded more.
    model = written(model_of(task, wide=kind != "bf16"), kind, tmp_path / "model")
    inputs = made_up_inputs(model, 16, seed=5)
    bound = BOUNDS[model.card.precision or "fp32"]
    apart, place = largest_difference(model, inputs)
    assert apart <= bound, inputs[place]
    if task in ("classify", "pair"):
        alone: list[Any] = [model(each) for each in inputs]
        for one, other in zip(model(inputs), alone, strict=True):
            best = sorted(one.scores.values())
            assert one.label == other.label or best[-1] - best[-2] <= 2 * bound


def test_on_another_processor_with_more_threads() -> None:
    """The same table where torch has no vector instructions and every engine two threads."""
    arguments = ["-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", __file__, "-k", "alone and classify"]
    settings = {**os.environ, "ATEN_CPU_CAPABILITY": "default", "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"}
    found = subprocess.run([sys.executable, *arguments], env=settings, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stdout[-2000:]


@pytest.mark.parametrize("family", ["transformer", "t5", "gpt2"])
@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
def test_what_is_written_greedily_is_the_same(family: str, engine: str, tmp_path: Path) -> None:
    model = drawn(family)
    model = model if engine == "torch" else carried(model, tmp_path / "model")
    prompts = texts(12)
    together: list[Any] = complete(model.opened, prompts, max_tokens=12)
    alone: list[Any] = [complete(model.opened, [prompt], max_tokens=12)[0] for prompt in prompts]
    assert [answer.text for answer in together] == [answer.text for answer in alone]
    assert [answer.logprob for answer in together] == pytest.approx([answer.logprob for answer in alone], abs=1e-4)


# ------------------------------------------------------------------------------------------------ ranges of a batch


def dynamic(self: Graph, x: str, source: Any, key: Any, weight: Any, bias: Any) -> str:
    """The operator that took its range over the whole batch."""
    whole, scales = eight_bits(weight.detach().numpy())
    names = [self._stored(key, "integers", np.ascontiguousarray(whole.T)), self._stored(key, "scales", scales)]
    names.append(self.constant(np.zeros(len(scales)), np.int8))
    added = "" if bias is None else self.weight(key, "bias", bias)
    return self.op("DynamicQuantizeMatMul", x, *names, added, domain=RUNTIME)


@pytest.mark.parametrize("task", ["classify", "tag", "fill"])
def test_an_old_graph_answers_one_text_at_a_time(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Graph, "_eight_bits", dynamic)
    model = written(model_of(task), "onnx-int8", tmp_path / "model")
    network: Any = model.network
    assert network.one_by_one
    inputs = made_up_inputs(model, 12, seed=5)
    assert largest_difference(model, inputs)[0] < 1e-6
    network.one_by_one, network.threads = False, 1  # more threads would have a text each
    assert largest_difference(model, inputs)[0] > 1e-3, "or the tests here could not fail"


def test_a_row_of_zeros_stays_one(tmp_path: Path) -> None:
    graph = Graph("int8")
    module = torch.nn.Linear(8, 3)
    graph.named("y", graph.linear("hidden_states", module))
    graph.write(tmp_path / "x.onnx", {"hidden_states": ["n", 8]}, {"y": ["n", 3]})
    x = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32) * np.array([[1], [0], [1e-6], [1e6]])
    session = runtime().InferenceSession(str(tmp_path / "x.onnx"), providers=["CPUExecutionProvider"])
    y = session.run(None, {"hidden_states": x.astype(np.float32)})[0]
    exact = module(torch.tensor(x, dtype=torch.float32)).detach().numpy()
    assert np.allclose(y[1], module.bias.detach().numpy())
    assert (np.abs(y - exact).max(1) <= 0.05 * np.abs(exact).max(1)).all()  # each row by its own range


def test_no_padding_goes_through_ctranslate2(tmp_path: Path) -> None:
    """Beside padding its sums take another order, by which int8 of a MiniLM differed by 0.02."""
    model = written(model_of("classify"), "ctranslate2-int8", tmp_path / "model")
    network: Any = model.network
    lengths: list[set[int]] = []

    class Listening:
        def forward_batch(self, rows: list[list[int]], **more: Any) -> Any:
            lengths.append(set(map(len, rows)))
            return engine.forward_batch(rows, **more)

    engine, network.engine = network.engine, Listening()
    model(["the cat", "the cat is there again", "oak", "the cow is there again"])
    assert len(lengths) > 1 and all(len(each) == 1 for each in lengths)


def test_rows_of_one_length_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "TOKENS", 12)
    lengths = [3, 0, 5, 3, 3, 5, 3, 3, 20]
    assert groups.grouped(lengths, padding=False) == [[0, 3, 4, 6], [7], [2, 5], [8]]
    assert groups.grouped([], padding=False) == []


# ---------------------------------------------------------------------------------------------------------- the gate


def test_the_gate_refuses_what_depends_on_its_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    model_of("classify").save(tmp_path / "model")
    rows = write_rows(tmp_path / "rows.jsonl", kinds(20))
    monkeypatch.setattr(Graph, "_eight_bits", dynamic)
    for name, value in {"one_by_one": False, "threads": 1}.items():  # more threads would have a text each
        fixed = property(lambda _, value=value: value, lambda _, value: None)
        monkeypatch.setattr(OnnxNetwork, name, fixed, raising=False)
    command = ["quantize", str(tmp_path / "model"), "--data", str(rows), "--out", str(tmp_path / "out")]
    assert run([*command, "--kinds", "onnx-int8"]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and "its answers depend on the batch: probabilities of a text alone" in line
    assert "(limit 0.005)" in line and not (tmp_path / "out").exists()
    with pytest.raises(
        (UserError, Refused), match="nothing to choose from: onnx-int8: its answers depend on the batch"
    ):
        weft.quantize(tmp_path / "model", rows, out=tmp_path / "out", kinds=["onnx-int8"])


def test_an_export_that_depends_on_its_batch_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = OnnxNetwork.computed

    def lonely(self: OnnxNetwork, tokens: Any, starts: Any, *more: Any) -> Any:
        logits = before(self, tokens, starts, *more)
        return logits + np.float32(0.01) * np.arange(3) if len(starts) == 2 else logits

    monkeypatch.setattr(OnnxNetwork, "computed", lonely)
    with pytest.raises(
        UserError, match=r"its answers depend on the batch: .* among 200 differ by 0\.0\d+ \(limit 1e-05\)"
    ):
        weft.export(model_of("classify"), "onnx", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_writer_that_depends_on_its_batch_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = carried(drawn("gpt2"), tmp_path / "model")
    check_batch_single(model, texts(6))
    before = checks.complete

    def lonely(opened: Any, prompts: Any, **options: Any) -> Any:
        other = {"banned": ["the"]} if len(prompts) == 1 else {}
        return before(opened, [prompt + " cat" * len(other) for prompt in prompts], **options)

    monkeypatch.setattr(checks, "complete", lonely)
    with pytest.raises(UserError, match="its answers depend on the batch: .* among .* prompts, .* alone"):
        check_batch_single(model, texts(6))


def test_the_texts_are_short_and_long() -> None:
    model = model_of("classify")
    chance = random.Random(0)
    given = ["the cat " * chance.randint(1, 100) for _ in range(500)]
    found = mixed(model, given, 200)
    assert len(found) == 200 and {min(given, key=len), max(given, key=len)} <= set(found[:150])
    assert len(mixed(model, given[:3], 200)) == 200 and len(mixed(model, [], 200)) == 200
    assert max(map(len, mixed(model, ["cat " * 10**6], 200))) <= max(checks.MAX_CHARACTERS, 3000)
    pair = mixed(model_of("answer"), [("where", "cat " * 10**5)], 20)[0]
    assert isinstance(pair, tuple) and len(pair[1]) == checks.MAX_CHARACTERS


def test_the_largest_difference_is_found() -> None:
    one, other = [np.array([0.5, 0.5]), np.array([0.1, 0.9])], [np.array([0.5, 0.5]), np.array([0.3, 0.7])]
    assert difference(one, other, relative=False) == (pytest.approx(0.2), 1)
    assert difference([10 * each for each in one], [10 * each for each in other], relative=True)[0] > 0.2
    worst, place = difference([np.array([np.nan]), np.array([1.0])], [np.array([1.0]), np.array([9.0])], relative=False)
    assert np.isnan(worst) and place == 0
