"""ONNX graphs by torch's own exporter, for families that bring no graph: a plug-in is exported like any other family.

The network reads rows of equal length (B rows of T tokens), so that the graph needs no mask; the engine groups texts by
their length.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from weft.backends.onnx_graph import FORMAT, OPSET, RUNTIME
from weft.checkpoint.folder import LoadedModel
from weft.errors import UserError, shown
from weft.files import write_bytes
from weft.nn.rows import Rows

# Settings that it writes out though they are the usual ones; no size here is 0, so `allowzero` says nothing.
USUAL = ("allowzero", "input_forget", "layout", "noop_with_empty_axes", "stash_type")


class EvenRows(Rows):
    """Rows of equal length, worked out by operators that ONNX has."""

    def numbers(self, total: int) -> Tensor:
        return torch.arange(self.count)[:, None].expand(self.count, self.longest).flatten()

    def places(self, total: int) -> Tensor:
        return torch.arange(self.longest).expand(self.count, self.longest).flatten()


class DenseNetwork(nn.Module):
    """A network with its head over a rectangle of tokens: B T -> what the head gives, or the states B T W."""

    def __init__(self, network: nn.Module, head: str | None) -> None:
        super().__init__()
        self.network, self.head = network, head

    def forward(self, input_ids: Tensor, token_type_ids: Tensor | None = None) -> Tensor | tuple[Tensor, ...]:
        size = input_ids.shape
        rows = EvenRows(torch.arange(size[0] + 1) * size[1], size[1])
        segments = None if token_type_ids is None else token_type_ids.flatten()
        x = self.network(input_ids.flatten(), rows, segments)
        if self.head in (None, "words"):
            return x.view(*size, -1)
        logits: Tensor = self.network.logits(self.head, x, rows)  # type: ignore[operator]
        if self.head == "classify":
            return logits
        logits = logits.view(*size, -1)
        return logits.unbind(-1) if self.head == "answer" else logits


class WordScores(nn.Module):
    """The word head alone, so that words are scored only at the places asked for."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.network.words(hidden_states)  # type: ignore[operator]


def write_traced(path: Path, opened: LoadedModel, head: str | None) -> None:
    """The graph of a network and one head."""
    names = ["input_ids", *(["token_type_ids"] if opened.config.segments > 1 else [])]
    outputs = {"answer": ["start_logits", "end_logits"], None: ["last_hidden_state"], "words": ["last_hidden_state"]}
    tokens = {name: torch.zeros(3, 5, dtype=torch.int64) for name in names}  # one tensor twice would be one input
    _write(path, opened, DenseNetwork(opened.network, head), tokens, 2, outputs.get(head, ["logits"]))


def write_traced_words(path: Path, opened: LoadedModel) -> None:
    """The graph of the word head."""
    hidden = {"hidden_states": torch.zeros(3, opened.config.width)}
    _write(path, opened, WordScores(opened.network), hidden, 1, ["logits"])


def _write(
    path: Path, opened: LoadedModel, graph: nn.Module, inputs: dict[str, Tensor], dynamic: int, outputs: list[str]
) -> None:
    """Export a module whose inputs have so many dimensions of any size, the first ones."""
    try:
        import onnx.reference
        import onnxscript  # noqa: F401  (torch's exporter writes with it)
    except ImportError:
        raise UserError(
            f"a {opened.family.name} model is exported by torch, which needs the package onnxscript: "
            "pip install 'weft[fast-cpu]'"
        ) from None
    sizes = tuple(dict.fromkeys(range(dynamic), torch.export.Dim.DYNAMIC) for _ in inputs)
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)  # it tells of packages that nobody needs here
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            program: Any = torch.onnx.export(
                graph.eval(),
                tuple(inputs.values()),
                dynamo=True,
                dynamic_shapes=sizes,
                input_names=list(inputs),
                output_names=outputs,
                opset_version=OPSET,
                verbose=False,
            )
    except Exception as error:  # of many kinds: whatever the network does that an ONNX graph cannot
        lines = [line.partition(": ")[2] for line in str(error).splitlines() if line.startswith("<class")]
        reason = shown(lines[0] if lines else str(error), 160)
        raise UserError(f"torch cannot write a {opened.family.name} model as ONNX: {reason}") from None
    finally:
        log.setLevel(level)
    write_bytes(path, _plain(onnx, program.model_proto).SerializeToString())


def _plain(onnx: Any, traced: Any) -> Any:
    """The graph in the form that the loader takes: our version of the format, no notes, tensors as raw bytes."""
    graph = traced.graph
    nodes, arrays = [], {tensor.name: _finite(onnx.numpy_helper.to_array(tensor)) for tensor in graph.initializer}
    for node in _sizes_of_inputs(onnx, graph):
        kind, inputs, settings = node.op_type, list(node.input), {each.name: each for each in node.attribute}
        if kind == "ConstantOfShape":  # its value is a tensor, which is no setting that the loader takes
            value = settings.pop("value", None)
            filler = np.zeros(1, np.float32) if value is None else onnx.numpy_helper.to_array(value.t)
            kind, inputs = "Expand", [f"{node.output[0]} value", inputs[0]]
            arrays[inputs[0]] = _finite(filler.reshape(()))
        plain = onnx.helper.make_node(kind, inputs, list(node.output), domain=node.domain)
        plain.attribute.extend(each for name, each in settings.items() if name not in USUAL)
        if all(name in arrays for name in inputs):  # the loader wants nothing to be left to work out
            arrays |= _worked_out(onnx, plain, arrays)
        else:
            nodes.append(plain)
    used = {name for node in nodes for name in node.input}
    stored = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items() if name in used]
    ends = [
        [onnx.helper.make_tensor_value_info(each.name, each.type.tensor_type.elem_type, _shape(each)) for each in side]
        for side in (graph.input, graph.output)
    ]
    opsets = [onnx.helper.make_opsetid("", OPSET), onnx.helper.make_opsetid(RUNTIME, 1)]
    made = onnx.helper.make_graph(nodes, "weft", *ends, stored)
    return onnx.helper.make_model(made, opset_imports=opsets, ir_version=FORMAT)


def _sizes_of_inputs(onnx: Any, graph: Any) -> Iterator[Any]:
    """The operators; what asks for the size of a result asks for that of the inputs, where that is the same."""
    shapes = {each.name: _shape(each) for each in (*graph.input, *graph.value_info)}
    first = graph.input[0].name
    for node in graph.node:
        sizes = shapes.get(node.input[0], []) if node.op_type == "Shape" else []
        same = all(isinstance(size, int) or size in shapes[first] for size in sizes)
        if not sizes or not same or node.input[0] == first:
            yield node
            continue
        ends, parts = {each.name: each.i for each in node.attribute}, []
        for number, size in enumerate(sizes[ends.get("start", 0) : ends.get("end", len(sizes))]):
            parts.append(f"{node.output[0]} {number}")
            if isinstance(size, int):
                yield onnx.helper.make_node("Constant", [], parts[-1:], value_ints=[size])
            else:
                place = shapes[first].index(size)
                yield onnx.helper.make_node("Shape", [first], parts[-1:], start=place, end=place + 1)
        yield onnx.helper.make_node("Concat", parts, list(node.output), axis=0)


def _worked_out(onnx: Any, node: Any, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """What an operator makes of constants."""
    part = onnx.helper.make_graph([node], "part", [], [onnx.ValueInfoProto(name=name) for name in node.output])
    part.initializer.extend(onnx.numpy_helper.from_array(arrays[name], name) for name in node.input)
    model = onnx.helper.make_model(part, opset_imports=[onnx.helper.make_opsetid("", OPSET)])
    return dict(zip(node.output, onnx.reference.ReferenceEvaluator(model).run(None, {}), strict=True))


def _finite(array: Any) -> Any:
    """Constants that the loader takes: the farthest number in place of infinity, which masks as well."""
    return np.clip(array, np.finfo(array.dtype).min, np.finfo(array.dtype).max) if array.dtype.kind == "f" else array


def _shape(value: Any) -> list[int | str]:
    sizes = value.type.tensor_type.shape.dim
    return [size.dim_value if size.HasField("dim_value") else size.dim_param for size in sizes]
