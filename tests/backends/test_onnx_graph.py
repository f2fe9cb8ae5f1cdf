"""ONNX graphs hold what the exporter writes and nothing else: no growth, no other operator, no wrong shape."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft
from tests.backends.test_onnx import LABELS, changed
from tests.compress.test_onnx import HEADS, WRITTEN, model_of
from tests.engines import need_engine
from tests.tasks.small import model_for, vocabulary
from weft.backends import onnx as engine
from weft.backends.onnx import BY_BATCH, OPERATORS, RUNTIME, SETTINGS, TENSORS, check_graph
from weft.checkpoint.families import FAMILIES
from weft.errors import UserError
from weft.exporters.onnx_builder import Graph
from weft.exporters.onnx_export import ranges_of, write_onnx
from weft.nn.rows import Ragged
from weft.tasks.model import Model

need_engine("onnx")
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((family, {}) for family in WRITTEN),
    ("bert", {"positions": "alibi", "norm": "rms", "norm_place": "before", "activation": "gated-silu", "mix": True}),
    ("bert", {"positions": "sinusoidal", "activation": "relu"}),
    ("bert", {"activation": "tanh"}),
    ("gpt2", {"positions": "alibi"}),
    ("lstm", {"bidirectional": True, "pooling": "last"}),
    ("gru", {"pooling": "max"}),
    ("lstm", {"bidirectional": True, "pooling": "attention"}),
    ("rnn", {"activation": "relu", "pooling": "mean"}),
    ("cnn", {"both": True}),
    ("vectors", {"inner": 12}),
]


@pytest.fixture(scope="module")
def model() -> Model:
    return model_for("classify", 3, vocabulary(), LABELS)


@pytest.fixture(scope="module")
def exported(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "model"
    weft.export(model, "onnx", out=folder)
    card = json.loads((folder / "weft.json").read_text())
    del card["files"]
    (folder / "weft.json").write_text(json.dumps(card))
    return folder


@pytest.fixture
def folder(exported: Path) -> Any:
    whole = (exported / engine.GRAPH).read_bytes()
    yield exported
    (exported / engine.GRAPH).write_bytes(whole)


def test_the_list_is_what_the_exporter_writes(tmp_path: Path) -> None:
    """Every family, task and precision together: nothing is missing, and nothing is listed in vain."""
    import onnx

    seen: dict[tuple[str, str], set[str]] = {}
    kinds, settings = set(), set()
    for number, (family, blocks) in enumerate(VARIANTS):
        whole = family in ("bert", "gpt2", "lstm") and not blocks
        for task in ("classify", "answer", "fill", "embed") if whole else ("classify",):
            known = FAMILIES[family]
            if task in HEADS and (HEADS[task][0] not in known.names.heads or (task == "fill" and known.generates)):
                continue
            opened = model_of(family, task, **blocks)
            ragged = Ragged.of([[5, 6]])
            ranges = ranges_of(opened, lambda o=opened, r=ragged: o.network(r.tokens, r.rows))  # type: ignore[misc]
            every = family in ("bert", "lstm") and not blocks
            for precision in ("fp32", "fp16", "int8", "int8-static", "int4") if every else ("fp32",):
                place = tmp_path / f"{number}-{task}-{precision}"
                place.mkdir()
                write_onnx(place, opened, task, precision, ranges if precision == "int8-static" else None)  # type: ignore[arg-type]
                for path in place.glob("*.onnx"):
                    graph = onnx.load(str(path)).graph
                    kinds |= {tensor.data_type for tensor in graph.initializer}
                    for node in graph.node:
                        names = {attribute.name for attribute in node.attribute}
                        seen.setdefault((node.domain, node.op_type), set()).update(names)
                        settings |= {attribute.type for attribute in node.attribute}
    listed = {(domain, name): set(given) for domain, some in OPERATORS.items() for name, given in some.items()}
    # Exports of earlier versions have these two.
    seen |= {(RUNTIME, BY_BATCH): set(), ("", "ReduceMin"): {"keepdims"}}
    assert seen == listed and kinds == set(TENSORS) and settings == set(SETTINGS)


# ------------------------------------------------------------------------------------------------ hostile graphs


def add(graph: Any, onnx: Any, kind: str, inputs: list[str], domain: str = "", **settings: Any) -> None:
    """An operator more, whose result is added to the logits."""
    node = onnx.helper.make_node(kind, inputs, ["more"], domain=domain, **settings)
    last = graph.graph.node.pop()
    graph.graph.node.extend([node, onnx.helper.make_node("ReduceSum", ["more"], ["sum"], keepdims=0)])
    graph.graph.node.extend([onnx.helper.make_node("Add", [last.input[0], "sum"], ["grown"])])
    graph.graph.node.extend([onnx.helper.make_node("Identity", ["grown"], list(last.output))])


def constant(graph: Any, onnx: Any, name: str, value: Any, kind: Any = np.int64) -> str:
    graph.graph.initializer.append(onnx.numpy_helper.from_array(np.array(value, kind), name))
    return name


def expand(graph: Any, onnx: Any) -> None:
    sizes = [constant(graph, onnx, "one", 1.0, np.float32), constant(graph, onnx, "size", [1 << 40])]
    add(graph, onnx, "Expand", sizes)


def tile(graph: Any, onnx: Any) -> None:
    add(graph, onnx, "Tile", ["attention_mask", constant(graph, onnx, "size", [1 << 20, 1 << 20])])


def of_shape(graph: Any, onnx: Any) -> None:
    add(graph, onnx, "ConstantOfShape", [constant(graph, onnx, "size", [1 << 40])])


def counted(graph: Any, onnx: Any) -> None:
    ends = [constant(graph, onnx, f"end{n}", value) for n, value in enumerate((0, 1 << 40, 1))]
    add(graph, onnx, "Range", ends)


def counted_far(graph: Any, onnx: Any) -> None:
    ends = [constant(graph, onnx, f"end{n}", value) for n, value in enumerate((0, 1 << 40, 1))]
    graph.graph.node.insert(0, onnx.helper.make_node("Squeeze", ["input_ids"], ["far"]))
    add(graph, onnx, "Range", [ends[0], "far", ends[2]])


def outer(graph: Any, onnx: Any) -> None:
    names = [constant(graph, onnx, f"side{n}", np.ones(s), np.float32) for n, s in enumerate(((9999, 1), (1, 9999)))]
    add(graph, onnx, "MatMul", names)


def shape_of_weights(graph: Any, onnx: Any) -> None:
    graph.graph.node.insert(0, onnx.helper.make_node("Abs", ["input_ids"], ["positive"]))
    add(graph, onnx, "Shape", ["positive"])


def padded(graph: Any, onnx: Any) -> None:
    kernel = constant(graph, onnx, "kernel", np.ones((1, 1, 1)), np.float32)
    graph.graph.node.insert(0, onnx.helper.make_node("Cast", ["attention_mask"], ["floats"], to=1))
    add(graph, onnx, "Conv", ["floats", kernel], kernel_shape=[1], pads=[1 << 30, 1 << 30])


def loop(graph: Any, onnx: Any) -> None:
    body = onnx.helper.make_graph([], "body", [], [])
    add(graph, onnx, "Loop", ["", ""], body=body)


def doubled(graph: Any, onnx: Any) -> None:
    """A tensor joined with itself, again and again."""
    for number in range(36):
        before = f"joined{number - 1}" if number else "attention_mask"
        graph.graph.node.insert(number, onnx.helper.make_node("Concat", [before] * 2, [f"joined{number}"], axis=1))
    add(graph, onnx, "Identity", ["joined35"])


def cubed(graph: Any, onnx: Any) -> None:
    """One number for every three rows: little for one text, and much for many."""
    names = []
    for number in range(3):
        axes = constant(graph, onnx, f"axes{number}", [axis for axis in range(4) if axis not in (number, 3)])
        node = onnx.helper.make_node("Unsqueeze", ["attention_mask", axes], [f"side{number}"])
        graph.graph.node.insert(0, node)
        names.append(f"side{number}")
    add(graph, onnx, "Sum", names)


def data_shaped(graph: Any, onnx: Any) -> None:
    add(graph, onnx, "Reshape", ["attention_mask", "input_ids"])


def other_type(graph: Any, onnx: Any) -> None:
    add(graph, onnx, "Cast", ["attention_mask"], to=onnx.TensorProto.STRING)


def with_setting(graph: Any, onnx: Any) -> None:
    node = next(node for node in graph.graph.node if node.op_type == "MatMul")
    node.attribute.append(onnx.helper.make_attribute("transA", 1))


def opset(graph: Any, onnx: Any) -> None:
    graph.opset_import[0].version = 19


def not_finite(graph: Any, onnx: Any) -> None:
    tensor = next(each for each in graph.graph.initializer if each.name.endswith("_matrix"))
    array = onnx.numpy_helper.to_array(tensor).copy()
    array[1, 2] = np.nan
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))


def infinite_half(graph: Any, onnx: Any) -> None:
    constant(graph, onnx, "half", [1.0, np.inf], np.float16)


def short(graph: Any, onnx: Any) -> None:
    graph.graph.initializer[0].dims[0] = 1 << 40


def negative(graph: Any, onnx: Any) -> None:
    dims = graph.graph.initializer[0].dims
    dims[0], dims[1] = -dims[0], -dims[1]


def words(graph: Any, onnx: Any) -> None:
    graph.graph.initializer.append(onnx.helper.make_tensor("text", onnx.TensorProto.STRING, [1], [b"a"]))


def typed(graph: Any, onnx: Any) -> None:
    graph.graph.initializer.append(onnx.helper.make_tensor("typed", onnx.TensorProto.FLOAT, [2], [1.0, float("nan")]))


def twice(graph: Any, onnx: Any) -> None:
    constant(graph, onnx, "input_ids", [[1]])


REFUSED: list[tuple[Callable[[Any, Any], None], str]] = [
    (expand, "operator Expand is none that an exported model has"),
    (tile, "operator Tile is none"),
    (of_shape, "operator ConstantOfShape is none"),
    (loop, "operator Loop is none"),
    (counted, "Range has nothing to work on but constants"),
    (counted_far, "Range counts to something else than the length"),
    (outer, "MatMul has nothing to work on but constants"),
    (shape_of_weights, "Shape asks for the size of something else"),
    (padded, "Conv puts more around a text than it looks at"),
    (doubled, "would hold .* GB for .* tokens, more than .* GB"),
    (cubed, "would hold .* GB for 1,024 rows of 1 tokens"),
    (data_shaped, "how large more is does not follow from the graph|not a sound ONNX graph"),
    (other_type, "Cast turns numbers into another type"),
    (with_setting, "MatMul has settings that no exported model has: transA"),
    (opset, "written for ONNX 19"),
    (not_finite, r"weights that are not numbers \(NaN or infinite\): weight_"),
    (infinite_half, r"not numbers \(NaN or infinite\): half"),
    (short, "has not as many bytes as its shape says"),
    (negative, "has not as many bytes as its shape says"),
    (words, "text is of a type that no exported model has"),
    (typed, "typed has not as many bytes as its shape says"),
    (twice, "two tensors of one name"),
]


@pytest.mark.parametrize("name", [b"constant_", b"Gather", b"input_ids", b"com.microsoft", b"axis"])
def test_names_that_are_no_text(name: bytes, folder: Path) -> None:
    data = (folder / engine.GRAPH).read_bytes()
    assert name in data
    (folder / engine.GRAPH).write_bytes(data.replace(name, b"\xff" + name[1:]))
    with pytest.raises(UserError, match="model.onnx: not a sound ONNX file: a name in it is not UTF-8 text"):
        weft.load(folder)


@pytest.mark.parametrize(("change", "message"), REFUSED, ids=lambda each: getattr(each, "__name__", ""))
def test_what_no_export_holds_is_refused_before_the_runtime_sees_it(
    change: Callable[[Any, Any], None], message: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed(folder, change)
    monkeypatch.setattr(engine.runtime(), "InferenceSession", lambda *given, **named: pytest.fail("it was opened"))
    with pytest.raises(UserError, match=message) as found:
        weft.load(folder)
    assert "\n" not in str(found.value) and "model.onnx: " in str(found.value)


def summed(graph: Any, onnx: Any) -> None:
    """One row for all texts: it was spread over them in silence."""
    last = graph.graph.node.pop()
    constant(graph, onnx, "first", [0])
    graph.graph.node.append(onnx.helper.make_node("ReduceSum", [last.input[0], "first"], ["logits"], keepdims=1))


def scalar(graph: Any, onnx: Any) -> None:
    last = graph.graph.node.pop()
    graph.graph.node.append(onnx.helper.make_node("ReduceSum", [last.input[0]], ["logits"], keepdims=0))
    del graph.graph.output[0].type.tensor_type.shape.dim[:]


def whole_numbers(graph: Any, onnx: Any) -> None:
    graph.graph.node.pop()
    graph.graph.node.append(onnx.helper.make_node("Identity", ["input_ids"], ["logits"]))
    graph.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT64


@pytest.mark.parametrize("change", [summed, scalar, whole_numbers])
def test_outputs_of_another_shape_are_refused(change: Callable[[Any, Any], None], folder: Path) -> None:
    changed(folder, change)
    with pytest.raises(UserError, match="model.onnx: (the ONNX graph gave|gives outputs of)") as found:
        weft.load(folder)(["the cat is now", "oak", "the flint is there again"])
    assert "\n" not in str(found.value)


def test_a_graph_that_fails_names_its_file(folder: Path) -> None:
    class Failing:
        def run(self, *given: Any) -> Any:
            raise RuntimeError("[ONNXRuntimeError] : 1 : FAIL : Non-zero status code\nreturned")

    model = weft.load(folder)
    model.network.graphs = {1: Failing(), model.network.threads: Failing()}  # type: ignore[assignment]
    with pytest.raises(UserError, match=r"model/model.onnx: the ONNX graph failed: .*Non-zero status") as found:
        model("the cat")
    assert "\n" not in str(found.value)


def test_the_runtime_prints_nothing_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its errors have escape sequences in them, and names out of the file."""
    import onnx

    graph, path = Graph("int4"), tmp_path / "x.onnx"
    graph.named("y", graph.linear("hidden_states", torch.nn.Linear(64, 3)))
    graph.write(path, {"hidden_states": ["n", 64]}, {"y": ["n", 3]})
    model = onnx.load(str(path))
    sizes = [each for node in model.graph.node for each in node.attribute if each.name == "block_size"]
    assert sizes
    sizes[0].i = 7
    onnx.save(model, str(path))
    monkeypatch.setattr(engine, "check_graph", lambda *given: (None, False))
    with pytest.raises(UserError, match="not a sound ONNX graph"):
        engine.started(path, None)
    assert capfd.readouterr().err == ""


def test_a_second_segment_is_not_left_out(folder: Path) -> None:
    def without(graph: Any, onnx: Any) -> None:
        kept = [each for each in graph.graph.input if each.name != "token_type_ids"]
        del graph.graph.input[:]
        graph.graph.input.extend(kept)
        for node in graph.graph.node:
            node.input[:] = ["input_ids" if name == "token_type_ids" else name for name in node.input]

    changed(folder, without)
    with pytest.raises(UserError, match="where input_ids, attention_mask, token_type_ids are expected"):
        weft.load(folder)


def test_states_of_both_directions_are_as_wide_as_they_are(tmp_path: Path) -> None:
    model = weft.new("lstm", vocabulary(), size="1x64", settings={"bidirectional": True}, heads={"classify": 2})
    weft.export(Model(model.opened, "embed"), "onnx", out=tmp_path / "x")
    assert len(weft.load(tmp_path / "x")("the cat").values) == 128  # type: ignore[attr-defined]


def far(graph: Any, onnx: Any, size: str) -> None:
    """One number, as often as a size says."""
    add(graph, onnx, "Expand", [constant(graph, onnx, "one", 1.0, np.float32), size])


def by_tokens(graph: Any, onnx: Any) -> None:
    graph.graph.node.insert(
        0, onnx.helper.make_node("Reshape", ["input_ids", constant(graph, onnx, "all", [-1])], ["s"])
    )
    far(graph, onnx, "s")


def by_constants(graph: Any, onnx: Any) -> None:
    graph.graph.node.insert(0, onnx.helper.make_node("Cast", ["input_ids"], ["floats"], to=1))
    add(graph, onnx, "Expand", ["floats", constant(graph, onnx, "size", [1 << 30, 1, 1])])


def by_size(graph: Any, onnx: Any, kind: str, *others: str) -> None:
    shape = onnx.helper.make_node("Shape", ["input_ids"], ["shape"], start=1, end=2)
    graph.graph.node.insert(0, shape)
    graph.graph.node.insert(1, onnx.helper.make_node(kind, [*others, "shape"], ["s"]))
    far(graph, onnx, "s")


def by_product(graph: Any, onnx: Any) -> None:
    by_size(graph, onnx, "Mul", constant(graph, onnx, "many", [1 << 30]))


def by_difference(graph: Any, onnx: Any) -> None:
    by_size(graph, onnx, "Sub", constant(graph, onnx, "many", [1 << 30]))


def by_overflow(graph: Any, onnx: Any) -> None:
    by_size(graph, onnx, "Mul", constant(graph, onnx, "many", [1 << 62]))


def by_choice(graph: Any, onnx: Any) -> None:
    """A size that is small for the checked lengths and large for another."""
    shape = onnx.helper.make_node("Shape", ["input_ids"], ["shape"], start=1, end=2)
    choices = constant(graph, onnx, "choices", [1, 1, 1 << 40, 1])
    end = onnx.helper.make_node("Add", ["shape", constant(graph, onnx, "next", [1])], ["end"])
    for place, node in enumerate((shape, end, onnx.helper.make_node("Slice", [choices, "shape", "end"], ["s"]))):
        graph.graph.node.insert(place, node)
    far(graph, onnx, "s")


def to_int64(graph: Any, onnx: Any) -> None:
    add(graph, onnx, "Cast", [constant(graph, onnx, "bytes", [1], np.int8)], to=7)


TRACED: list[tuple[Callable[[Any, Any], None], str]] = [
    (by_tokens, "Expand grows by something else than the size of a text"),
    (by_constants, "would hold .* GB"),
    (by_product, "would hold .* GB"),
    (by_difference, "Expand grows by something else"),
    (by_overflow, "Expand grows by something else"),
    (by_choice, "Expand grows by something else"),
    (counted_far, "Range grows by something else"),
    (expand, "nothing to work on but constants"),
    (tile, "operator Tile is none"),
    (loop, "operator Loop is none"),
    (doubled, "would hold .* GB"),
    (to_int64, "Cast turns numbers into another type"),
]


@pytest.mark.parametrize(("change", "message"), TRACED, ids=lambda each: getattr(each, "__name__", ""))
def test_a_traced_graph_is_checked_too(change: Callable[[Any, Any], None], message: str, folder: Path) -> None:
    """A family without a graph may have more operators, and none of them makes more than a text takes."""
    changed(folder, change)
    path, config = folder / engine.GRAPH, weft.new("bert", vocabulary(), size="1x64", settings={"context": 48}).config
    with pytest.raises(UserError, match=message) as found:
        check_graph(path.read_bytes(), path, config, traced=True)
    assert "\n" not in str(found.value)


def test_domains_are_two() -> None:
    assert set(OPERATORS) == {"", RUNTIME}
