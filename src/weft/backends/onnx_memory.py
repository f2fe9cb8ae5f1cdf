"""How much memory an ONNX graph takes at once, by its shapes before the runtime opens it.

Every operator of a graph may make more of what it is given: a few that join a tensor with itself fill any memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import UserError, shown
from weft.files import MEGABYTE

BASE = 1024 * MEGABYTE  # bytes that any graph may hold at once beside its weights; 24 layers of 512 tokens hold 70 MB
FOR_TOKENS = 64  # vectors of the model's width that it may hold for each token besides ...
FOR_PAIRS = 16  # ... and numbers for each head and each two tokens ...
FOR_WORDS = 4  # ... and, where words are scored, for each token and word
SMALL = 64  # numbers of a stored tensor that may say a shape
LENGTH = 1 << 16  # tokens of a row that is read at once, at most
TOKENS = 1024  # of several rows together
LARGEST = 1 << 31  # of a size that others are worked out from
GROWING = {
    "Expand": (1,),
    "Pad": (1,),
    "Range": (0, 1, 2),
}  # operators with inputs that decide the size of the output


def _slice(size: NDArray[Any], first: NDArray[Any], last: NDArray[Any], *rest: NDArray[Any]) -> NDArray[Any]:
    """A part of a size; refused with an axis or a step of its own."""
    if [value.item() for value in rest] not in ([], [0], [0, 1]):
        raise ValueError("not a plain part")
    return size[first.item() : last.item()]


# By what sizes are worked out from those of the inputs. None falls where its inputs grow, so the checked sizes are the
# largest that there are.
SIZES: dict[str, Callable[..., NDArray[Any]]] = {
    "Add": np.add,
    "Mul": np.multiply,
    "Max": np.maximum,
    "Concat": lambda *parts: np.concatenate(parts),
    "Identity": lambda size: size,
    "Cast": lambda size: size,
    "Squeeze": lambda size, *axes: size.reshape(()) if size.size == 1 else size,
    "Unsqueeze": lambda size, *axes: size.reshape(-1),
    "Slice": _slice,
    "Reshape": lambda size, shape: size.reshape(-1) if shape.size == 1 else size.reshape(()),
}


def check_memory(model: Any, path: Path, config: Any) -> None:
    """Refuse a graph that would hold far more at once than a model of this config does."""
    longest = min(config.context, LENGTH)
    words = any(each.name == "hidden_states" for each in model.graph.input)  # a word head scores all of them
    wide = FOR_TOKENS * config.width + (FOR_WORDS * config.vocabulary if words else 0)
    for rows, length in ((1, longest), (TOKENS, 1), (32, 32)):
        most = BASE + 4 * rows * length * (wide + FOR_PAIRS * config.heads * length)
        held = peak(model, path, rows, length)
        if held > most:
            raise UserError(
                f"{path}: would hold {held / 1e9:,.1f} GB for {rows:,} rows of {length:,} tokens, more than the "
                f"{most / 1e9:,.1f} GB that such a model may"
            )


def peak(model: Any, path: Path, rows: int, length: int) -> int:
    """Bytes of all results that are held at once, at most, beside the stored tensors."""
    sizes = _sizes(model, path, rows, length)
    nodes = model.graph.node
    last = {name: place for place, node in enumerate(nodes) for name in node.input}
    held = most = 0
    for place, node in enumerate(nodes):
        held += sum(sizes[name] for name in node.output if name)
        most = max(most, held)
        done = {name for name in (*node.input, *node.output) if name in sizes and last.get(name, place) <= place}
        held -= sum(sizes[name] for name in done)
    return most


def _sizes(model: Any, path: Path, rows: int, length: int) -> dict[str, int]:
    """The bytes of every result; 0 of stored tensors in another type, which are as many as they are in the file."""
    import onnx

    lengths = _known_sizes(model, onnx, path, rows, length)
    try:
        outline = _outline(model, onnx, rows, length, lengths)
        inferred = onnx.shape_inference.infer_shapes(outline, data_prop=True).graph
    except Exception as error:  # of its own kinds
        raise UserError(f"{path}: not a sound ONNX graph: {shown(str(error), 160)}") from None
    shapes = {each.name: each.type.tensor_type for each in (*inferred.value_info, *inferred.output)}
    stored = {tensor.name for tensor in model.graph.initializer}
    known = {tensor.name for tensor in outline.graph.initializer}  # with the length of a text
    sizes = {}
    for node in model.graph.node:
        constant = all(name in stored for name in node.input if name)
        for name in node.output:
            if name:
                sizes[name] = 0 if constant or name in known else _bytes(shapes.get(name), onnx)
            if name and sizes[name] < 0:
                raise UserError(f"{path}: how large {shown(name)} is does not follow from the graph")
    return sizes


def _bytes(kind: Any, onnx: Any) -> int:
    """Of a tensor of this type; -1 where its shape is not known."""
    if kind is None or not kind.HasField("shape"):
        return -1
    size = int(np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)).itemsize) if kind.elem_type else 8
    for dimension in kind.shape.dim:
        if not dimension.HasField("dim_value"):
            return -1
        size *= max(0, dimension.dim_value)
    return size


def _known_sizes(model: Any, onnx: Any, path: Path, rows: int, length: int) -> dict[str, NDArray[Any]]:
    """What asks for the size of an input, and what follows from it, as numbers; refused where something else grows."""
    inputs = {each.name for each in model.graph.input}
    stored = {
        tensor.name: onnx.numpy_helper.to_array(tensor)
        for tensor in model.graph.initializer
        if tensor.data_type == onnx.TensorProto.INT64 and math.prod(tensor.dims) <= SMALL
    }
    lengths: dict[str, NDArray[Any]] = {}
    for node in model.graph.node:
        values = [lengths.get(name, stored.get(name)) for name in node.input if name]
        if node.op_type == "Shape" and node.input[0] in inputs:
            ends = {each.name: each.i for each in node.attribute}
            lengths[node.output[0]] = np.array([rows, length], np.int64)[ends.get("start", 0) : ends.get("end", 2)]
        elif node.op_type in SIZES and any(name in lengths for name in node.input):
            joins = node.op_type in ("Add", "Mul", "Max", "Concat")
            if not joins and any(name in lengths for name in node.input[1:]):  # a size must not say which part it takes
                continue
            known = [value for value in values if value is not None]
            sound = all(((value >= 0) & (value <= LARGEST)).all() for value in known)  # of which none can overflow
            sound = sound or not joins or node.op_type == "Concat"
            if len(known) == len(values) and sound and sum(value.size for value in known) <= SMALL:
                with suppress(ValueError, TypeError, IndexError):  # sizes that do not fit together
                    lengths[node.output[0]] = np.asarray(SIZES[node.op_type](*known))
        for place in GROWING.get(node.op_type, ()):
            size = values[place] if place < len(values) else None
            if size is None or (size < 0).any():
                raise UserError(f"{path}: operator {node.op_type} grows by something else than the size of a text")
    return lengths


def _outline(model: Any, onnx: Any, rows: int, length: int, lengths: Mapping[str, NDArray[Any]]) -> Any:
    """The graph with sizes for its inputs, and without the numbers of its weights."""
    helper, kinds, graph = onnx.helper, onnx.TensorProto, model.graph
    inputs = []
    for each in graph.input:
        kind = each.type.tensor_type
        dimensions = [dimension.dim_value for dimension in kind.shape.dim]
        shape = [rows * length, *dimensions[1:]] if kind.elem_type == kinds.FLOAT else [rows, length]
        inputs.append(helper.make_tensor_value_info(each.name, kind.elem_type, shape))
    small, shapes = [], {}
    for tensor in graph.initializer:
        shapes[tensor.name] = list(tensor.dims)
        if math.prod(tensor.dims) <= SMALL:
            small.append(tensor)
        else:
            inputs.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    nodes: list[Any] = []
    for number, node in enumerate(graph.node):
        if node.output[0] not in lengths:
            nodes += _product(node, number, shapes, inputs, helper, kinds) if node.domain else [node]
    small += [onnx.numpy_helper.from_array(value, name) for name, value in lengths.items()]
    outputs = [helper.make_empty_tensor_value_info(each.name) for each in graph.output]
    light = helper.make_graph(nodes, graph.name, inputs, outputs, small)
    return helper.make_model(light, opset_imports=model.opset_import[:1], ir_version=model.ir_version)


def _product(
    node: Any, number: int, shapes: Mapping[str, Sequence[int]], inputs: list[Any], helper: Any, kinds: Any
) -> list[Any]:
    """An operator of the runtime's own in the standard's words: all of ours multiply by a stored matrix."""
    sizes = {each.name: each.i for each in node.attribute}
    given = [name for name in node.input if name]
    shape = list(shapes.get(given[1], ())) if len(given) > 1 else []
    shape = [sizes["K"], sizes["N"]] if {"K", "N"} <= set(sizes) else shape
    matrix, wide = f"matrix {number}", f"wide {number}"
    inputs.append(helper.make_tensor_value_info(matrix, kinds.FLOAT, shape))
    cast = helper.make_node("Cast", given[:1], [wide], to=kinds.FLOAT)
    return [cast, helper.make_node("MatMul", [wide, matrix], list(node.output))]
