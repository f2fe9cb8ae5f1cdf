"""What an ONNX graph of ours may hold: its operators, their settings and its tensors; anything else is not opened.

A graph is a program: it may ask for more memory than there is, or for files elsewhere. Ours are made of few operators,
which are listed here for the exporter and the loader alike.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from weft.backends.arrays import all_finite
from weft.backends.onnx_memory import check_memory
from weft.errors import UserError, listed, shown

OPSET, FORMAT = 20, 9  # of the standard: the first with GELU; and of the file
RUNTIME = "com.microsoft"  # the runtime's own operators, for integers
MAX_NODES = 100_000  # operators of one graph: 24 layers have some 700
CAST_TO = (1, 6)  # to which types numbers are turned: FLOAT, INT32
TRACED_CAST_TO = (*CAST_TO, 7, 9)  # and INT64, BOOL
BY_BATCH = "DynamicQuantizeMatMul"  # measures a whole batch at once; int8 exports of earlier versions have it

# Every operator that the exporter writes, and the settings that it gives it.
OPERATORS: dict[str, dict[str, tuple[str, ...]]] = {
    "": {
        **dict.fromkeys(("Abs", "Add", "Clip", "CumSum", "Div", "Identity", "MatMul", "Max", "Mul"), ()),
        **dict.fromkeys(("Range", "Relu", "Reshape", "Sigmoid", "Slice", "Sqrt", "Squeeze"), ()),
        **dict.fromkeys(("Sub", "Sum", "Tanh", "Unsqueeze"), ()),
        **dict.fromkeys(("ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"), ("keepdims",)),
        "Cast": ("to",),
        "Concat": ("axis",),
        "Gather": ("axis",),
        "QuantizeLinear": ("axis",),
        "Conv": ("kernel_shape", "pads"),
        "GRU": ("direction", "hidden_size", "linear_before_reset"),
        "GatherND": ("batch_dims",),
        "Gelu": ("approximate",),
        "LSTM": ("direction", "hidden_size"),
        "LayerNormalization": ("axis", "epsilon"),
        "RNN": ("activations", "direction", "hidden_size"),
        "Shape": ("end", "start"),
        "Softmax": ("axis",),
        "Split": ("axis", "num_outputs"),
        "Transpose": ("perm",),
    },
    RUNTIME: {
        BY_BATCH: (),
        "MatMulIntegerToFloat": (),
        "MatMulNBits": ("K", "N", "accuracy_level", "bits", "block_size"),
    },
}
# What torch's exporter writes besides, for a family that brings no graph: none makes more of what it is given but those
# in `onnx_memory.GROWING`, whose sizes are checked there.
TRACED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("And", "Cos", "Equal", "Erf", "Exp", "Expand", "Floor", "Greater", "GreaterOrEqual", "Less"), ()),
    **dict.fromkeys(("LessOrEqual", "Log", "Min", "Neg", "Not", "Or", "Pow", "Reciprocal", "Sin", "Softplus"), ()),
    **dict.fromkeys(("Where", "Xor"), ()),
    **dict.fromkeys(("Elu", "LeakyRelu"), ("alpha",)),
    **dict.fromkeys(("Flatten", "GatherElements", "LogSoftmax"), ("axis",)),
    "Gemm": ("alpha", "beta", "transA", "transB"),
    "Mod": ("fmod",),
    "Pad": ("mode",),
    "ScatterElements": ("axis", "reduction"),
    "ScatterND": ("reduction",),
    "Trilu": ("upper",),
}
# Families whose graphs the exporter writes itself; those of all others come from torch's exporter.
WRITTEN = (
    *("bert", "roberta", "xlm-roberta", "albert", "distilbert", "gpt2", "openai-gpt"),
    *("lstm", "gru", "rnn", "vectors", "cnn"),
)
# Types of stored tensors, by their numbers in the standard.
TENSORS = {1: np.float32, 2: np.uint8, 3: np.int8, 7: np.int64, 10: np.float16}
SETTINGS = (1, 2, 3, 7, 8)  # FLOAT, INT, STRING and lists of the last two: no graph, and no tensor that lies elsewhere


def check_graph(data: bytes, path: Path, config: Any, traced: bool = False) -> bool:
    """Refuse a file that holds anything that no export of ours does; whether it takes ranges over a whole batch.

    `traced`: the graph of a family that brings none, so torch's exporter has written it.
    """
    try:
        import onnx
    except ImportError:
        raise UserError("an ONNX model needs the package onnx: pip install 'weft[fast-cpu]'") from None
    try:
        model = onnx.load_model_from_string(data)
    except Exception:  # protobuf's own kinds of fault differ by its version
        raise UserError(f"{path}: not a sound ONNX file: it is cut off or damaged") from None
    graph = model.graph
    if not all(isinstance(text, str) for text in _texts(model)):  # bytes stand for what is not UTF-8
        raise UserError(f"{path}: not a sound ONNX file: a name in it is not UTF-8 text")
    if model.functions or model.training_info or graph.sparse_initializer or graph.quantization_annotation:
        raise UserError(f"{path}: holds functions, training or sparse tensors of its own, which no exported model has")
    versions = {opset.domain: opset.version for opset in model.opset_import}
    if versions != {"": OPSET, RUNTIME: 1} or model.ir_version != FORMAT:
        opsets = ", ".join(f"{shown(name) or 'ONNX'} {version}" for name, version in versions.items())
        raise UserError(f"{path}: written for {opsets} (format {model.ir_version}), where ONNX {OPSET} is expected")
    if len(graph.node) > MAX_NODES:
        raise UserError(f"{path}: has {len(graph.node):,} operators, more than {MAX_NODES:,}")
    _check_tensors(graph, path)
    _check_operators(graph, path, traced)
    check_memory(model, path, config)
    return any(node.op_type == BY_BATCH for node in graph.node)


def _texts(model: Any) -> Iterator[str | bytes]:
    """Every name in a file."""
    graph = model.graph
    yield from (opset.domain for opset in model.opset_import)
    yield from (each.name for each in (*graph.initializer, *graph.input, *graph.output, *graph.value_info))
    for node in graph.node:
        yield from (node.op_type, node.domain, *node.input, *node.output)
        for attribute in node.attribute:
            yield from (attribute.name, attribute.ref_attr_name)


def _check_tensors(graph: Any, path: Path) -> None:
    """Refuse tensors of other types or in other files, of another size than they say, and numbers that are none."""
    names = [tensor.name for tensor in graph.initializer]
    if len({*names, *(each.name for each in graph.input)}) < len(names) + len(graph.input):
        raise UserError(f"{path}: two tensors of one name")
    broken = []
    for tensor in graph.initializer:
        if tensor.data_location or tensor.external_data:
            raise UserError(f"{path}: tensor {shown(tensor.name)} lies in another file, which is never opened")
        if tensor.data_type not in TENSORS:
            raise UserError(f"{path}: tensor {shown(tensor.name)} is of a type that no exported model has")
        size = np.dtype(TENSORS[tensor.data_type]).itemsize
        for length in tensor.dims:
            size *= max(0, length)
        data = tensor.raw_data  # a copy each time
        if size != len(data) or any(length < 0 for length in tensor.dims) or tensor.HasField("segment"):
            raise UserError(f"{path}: tensor {shown(tensor.name)} has not as many bytes as its shape says")
        if not all_finite(np.frombuffer(data, TENSORS[tensor.data_type])):
            broken.append(shown(tensor.name))
    if broken:
        raise UserError(f"{path}: weights that are not numbers (NaN or infinite): {listed(broken)}")


def _check_operators(graph: Any, path: Path, traced: bool) -> None:
    """Refuse operators and settings that the exporter does not write, and what would grow before it is asked."""
    stored = {tensor.name: tensor for tensor in graph.initializer}
    inputs = {each.name for each in graph.input}
    made: dict[str, Any] = {}
    operators = {**OPERATORS, "": {**OPERATORS[""], **(TRACED if traced else {})}}
    for node in graph.node:
        name = shown(node.op_type)
        if node.op_type not in operators.get(node.domain, {}):
            of = f" of {shown(node.domain)}" if node.domain else ""
            raise UserError(f"{path}: operator {name}{of} is none that an exported model has")
        known = operators[node.domain][node.op_type]
        settings = {each.name: each for each in node.attribute}
        odd = [
            shown(each.name) for each in node.attribute
            if each.name not in known or each.type not in SETTINGS or each.ref_attr_name
        ]  # fmt: skip
        if odd or len(settings) < len(node.attribute):
            raise UserError(f"{path}: operator {name} has settings that no exported model has: {listed(odd or known)}")
        fault = _fault(node, settings, stored, inputs, made, traced)
        if fault is not None:
            raise UserError(f"{path}: operator {name} {fault}, which no exported model does")
        made |= dict.fromkeys(node.output, node)


def _fault(
    node: Any,
    settings: Mapping[str, Any],
    stored: Mapping[str, Any],
    inputs: Collection[str],
    made: Mapping[str, Any],
    traced: bool,
) -> str | None:
    """What an operator does that none of ours does, such as to make much of nothing.

    The runtime works out what is constant when it opens a graph, before anyone has asked for anything.
    """
    given = [name for name in node.input if name]
    types = TRACED_CAST_TO if traced and not set(given) <= set(stored) else CAST_TO
    if node.op_type == "Cast" and ("to" not in settings or settings["to"].i not in types):
        return "turns numbers into another type"
    if node.op_type != "Cast" and all(name in stored for name in given):
        return "has nothing to work on but constants"
    if node.op_type == "Conv":
        kernel = max(settings["kernel_shape"].ints, default=0) if "kernel_shape" in settings else 0
        if "pads" in settings and any(abs(pad) > kernel for pad in settings["pads"].ints):
            return "puts more around a text than it looks at"
    if traced:  # how far it counts, and of what it asks the size, is seen where the memory is checked
        return None
    if node.op_type == "Shape" and given[0] not in inputs:
        return "asks for the size of something else than an input"
    if node.op_type == "Range":
        length = made.get(given[1])
        source = made.get(length.input[0]) if length is not None and length.op_type == "Squeeze" else None
        if source is None or source.op_type != "Shape" or not {given[0], given[2]} <= set(stored):
            return "counts to something else than the length of a text"
        ends = [np.frombuffer(stored[given[place]].raw_data, np.int64).tolist() for place in (0, 2)]
        if ends != [[0], [1]]:
            return "counts otherwise than one by one"
    return None
