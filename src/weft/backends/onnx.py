"""ONNX Runtime in place of a network, and the check of a graph: one that has other operators than exports is refused.

The only module that imports ONNX Runtime: its telemetry starts with the import and must be off before it. A graph is a
program: it may ask for more memory than there is, or for files elsewhere. The exporter writes few operators, which are
listed here for it and for the loader. N: tokens of all rows; B: rows; b, t: rows and places of one rectangle.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.backends.groups import grouped
from weft.backends.onnx_attention import without_padding
from weft.backends.threads import thread_count
from weft.checkpoint.finite import all_finite
from weft.errors import UserError, listed, refuse, shown
from weft.files import MEGABYTE, read_bytes
from weft.startup import SWITCHES, TOO_LATE

WINDOWS = "windows"  # the input of a graph that reads numbers: a window in each row
OPSET, FORMAT = 20, 9  # of the standard: the first with GELU; and of the file
RUNTIME = "com.microsoft"  # the runtime's own operators, for integers
MAX_NODES = 100_000  # operators of one graph: 24 layers have some 700
CAST_TO = (1, 6)  # to which types numbers are turned: FLOAT, INT32
TRACED_CAST_TO = (*CAST_TO, 7, 9)  # and INT64, BOOL
INTEGERS = "MatMulIntegerToFloat"
BY_BATCH = "DynamicQuantizeMatMul"  # measures a whole batch at once; int8 exports of earlier versions have it

# Every operator that the exporter writes, and the settings that it gives it.
OPERATORS: dict[str, dict[str, tuple[str, ...]]] = {
    "": {
        **dict.fromkeys(("Abs", "Add", "Clip", "CumSum", "Div", "Identity", "MatMul", "Max", "Mul"), ()),
        **dict.fromkeys(("Range", "Relu", "Reshape", "Sigmoid", "Slice", "Sqrt", "Squeeze"), ()),
        **dict.fromkeys(("Sub", "Sum", "Tanh", "Unsqueeze"), ()),
        **dict.fromkeys(("ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"), ("keepdims",)),
        **dict.fromkeys(("Concat", "Gather", "QuantizeLinear", "Softmax"), ("axis",)),
        "Cast": ("to",),
        "Conv": ("kernel_shape", "pads"),
        "GRU": ("direction", "hidden_size", "linear_before_reset"),
        "GatherND": ("batch_dims",),
        "Gelu": ("approximate",),
        "LSTM": ("direction", "hidden_size"),
        "LayerNormalization": ("axis", "epsilon"),
        "RNN": ("activations", "direction", "hidden_size"),
        "Shape": ("end", "start"),
        "Split": ("axis", "num_outputs"),
        "Transpose": ("perm",),
    },
    RUNTIME: {
        BY_BATCH: (),
        INTEGERS: (),
        "MatMulNBits": ("K", "N", "accuracy_level", "bits", "block_size"),
    },
}
# What torch's exporter writes besides, for a family that brings no graph: none makes more of what it is given but those
# in `GROWING`, whose sizes are checked.
TRACED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("And", "Ceil", "Cos", "Equal", "Erf", "Exp", "Expand", "Floor", "Greater", "GreaterOrEqual", "Less"), ()
    ),
    **dict.fromkeys(("LessOrEqual", "Log", "Min", "Neg", "Not", "Or", "Pow", "Reciprocal", "Sin", "Softplus"), ()),
    **dict.fromkeys(("Sign", "Where", "Xor"), ()),
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
    *("bert", "roberta", "xlm-roberta", "albert", "distilbert", "xlm", "xlm-clm", "gpt2", "openai-gpt"),
    *("lstm", "gru", "rnn", "vectors", "cnn"),
)
# Types of stored tensors, by their numbers in the standard.
TENSORS = {1: np.float32, 2: np.uint8, 3: np.int8, 7: np.int64, 10: np.float16}
SETTINGS = (1, 2, 3, 7, 8)  # FLOAT, INT, STRING and lists of the last two: no graph, and no tensor that lies elsewhere


def library() -> Any:
    """The package that reads and writes ONNX files, where it is installed."""
    try:
        import onnx
    except ImportError:
        raise UserError("an ONNX model needs the package onnx: pip install 'weft[fast-cpu]'") from None
    return onnx


def check_graph(data: bytes, path: Path, config: Any, traced: bool = False) -> tuple[Any, bool]:
    """A graph, refused where it holds what no exported model does; and whether it takes ranges over a whole batch."""
    onnx = library()
    try:
        model = onnx.load_model_from_string(data)
    except Exception:  # protobuf's own kinds of fault differ by its version
        raise UserError(f"{path}: not a sound ONNX file: it is cut off or damaged") from None
    graph = model.graph
    names = chain(
        (opset.domain for opset in model.opset_import),
        (each.name for each in chain(graph.initializer, graph.input, graph.output, graph.value_info)),
        (name for node in graph.node for name in (node.op_type, node.domain, *node.input, *node.output)),
        (name for node in graph.node for each in node.attribute for name in (each.name, each.ref_attr_name)),
    )
    if not all(isinstance(name, str) for name in names):  # bytes stand for what is not UTF-8
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
    return model, any(node.op_type == BY_BATCH for node in graph.node)


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
        size = np.dtype(TENSORS[tensor.data_type]).itemsize * math.prod(tensor.dims)
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

    def fault(node: Any, settings: Mapping[str, Any]) -> str | None:
        given = [name for name in node.input if name]
        types = TRACED_CAST_TO if traced and not set(given) <= set(stored) else CAST_TO
        if node.op_type == "Cast" and ("to" not in settings or settings["to"].i not in types):
            return "turns numbers into another type"
        # The runtime works out what is constant when it opens a graph, before anyone has asked for anything.
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
        if (why := fault(node, settings)) is not None:
            raise UserError(f"{path}: operator {name} {why}, which no exported model does")
        made |= dict.fromkeys(node.output, node)


# ------------------------------------------------------------------------------------------------------- its memory
# Every operator of a graph may make more of what it is given: a few that join a tensor with itself fill any memory.

BASE = 1024 * MEGABYTE  # bytes that any graph may hold at once beside its weights; 24 layers of 512 tokens hold 70 MB
FOR_TOKENS = 64  # vectors of the model's width that it may hold for each token besides ...
FOR_PAIRS = 16  # ... and numbers for each head and each two tokens ...
FOR_WORDS = 4  # ... and, where words are scored, for each token and word
SMALL = 64  # numbers of a stored tensor that may say a shape
LENGTH = 1 << 16  # tokens of a row that is read at once, at most
TOKENS = 1024  # of several rows together
MAX_SIZE = 1 << 31  # of which others are worked out
GROWING = {"Expand": (1,), "Pad": (1,), "Range": (0, 1, 2)}  # operators with inputs that decide the size of the output


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
    inputs = {each.name for each in model.graph.input}
    wide = FOR_TOKENS * config.width
    wide += FOR_WORDS * config.vocabulary if "hidden_states" in inputs else 0  # a word head scores all of them
    sizes = [(1, longest), (TOKENS, 1), (32, 32)]
    if WINDOWS in inputs:  # whole windows of numbers, so many at once
        sizes = [(1, 1), (-(-TOKENS // longest), 1)]
    for rows, length in sizes:
        steps = longest if WINDOWS in inputs else length
        most = BASE + 4 * rows * steps * (wide + FOR_PAIRS * config.heads * steps)
        held = peak(model, path, rows, length)
        if held > most:
            size = f"{rows:,} rows of {steps:,} tokens"
            raise UserError(f"{path}: would hold {held / 1e9:,.1f} GB for {size}, more than {most / 1e9:,.1f} GB")


def peak(model: Any, path: Path, rows: int, length: int) -> int:
    """Bytes of all results that are held at once, at most, beside the stored tensors."""
    onnx, nodes = library(), model.graph.node
    lengths = _known_sizes(model, onnx, path, rows, length)
    try:
        outline = _outline(model, onnx, rows, length, lengths)
        inferred = onnx.shape_inference.infer_shapes(outline, data_prop=True).graph
    except Exception as error:  # of its own kinds
        raise UserError(f"{path}: not a sound ONNX graph: {shown(str(error), 160)}") from None
    shapes = {each.name: each.type.tensor_type for each in (*inferred.value_info, *inferred.output)}
    stored = {tensor.name for tensor in model.graph.initializer}
    known = {tensor.name for tensor in outline.graph.initializer}  # with the length of a text
    sizes = {}  # 0 of stored tensors in another type, which are as many as they are in the file
    for node in nodes:
        constant = all(name in stored for name in node.input if name)
        for name in filter(None, node.output):
            sizes[name] = 0 if constant or name in known else _bytes(shapes.get(name), onnx)
            if sizes[name] < 0:
                raise UserError(f"{path}: how large {shown(name)} is does not follow from the graph")
    last = {name: place for place, node in enumerate(nodes) for name in node.input}
    held = most = 0
    for place, node in enumerate(nodes):
        held += sum(sizes[name] for name in node.output if name)
        most = max(most, held)
        done = {name for name in (*node.input, *node.output) if name in sizes and last.get(name, place) <= place}
        held -= sum(sizes[name] for name in done)
    return most


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
    inputs = {each.name: _input_shape(each, onnx, rows, length) for each in model.graph.input}
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
            shape = np.array(inputs[node.input[0]], np.int64)
            lengths[node.output[0]] = shape[ends.get("start", 0) : ends.get("end", len(shape))]
        elif node.op_type in SIZES and any(name in lengths for name in node.input):
            joins = node.op_type in ("Add", "Mul", "Max", "Concat")
            if not joins and any(name in lengths for name in node.input[1:]):  # a size must not say which part it takes
                continue
            known = [value for value in values if value is not None]
            sound = all(((value >= 0) & (value <= MAX_SIZE)).all() for value in known)  # of which none can overflow
            sound = sound or not joins or node.op_type == "Concat"
            if len(known) == len(values) and sound and sum(value.size for value in known) <= SMALL:
                with suppress(ValueError, TypeError, IndexError):  # sizes that do not fit together
                    lengths[node.output[0]] = np.asarray(SIZES[node.op_type](*known))
        for place in GROWING.get(node.op_type, ()):
            size = values[place] if place < len(values) else None
            if size is None or (size < 0).any():
                raise UserError(f"{path}: operator {node.op_type} grows by something else than the size of a text")
    return lengths


def _input_shape(value: Any, onnx: Any, rows: int, length: int) -> list[int]:
    """Of an input for so many rows of so many tokens: of their ids, or of a vector for each."""
    kind = value.type.tensor_type
    rest = [dimension.dim_value for dimension in kind.shape.dim][1:]
    return [rows * length, *rest] if kind.elem_type == onnx.TensorProto.FLOAT else [rows, length]


def _outline(model: Any, onnx: Any, rows: int, length: int, lengths: Mapping[str, NDArray[Any]]) -> Any:
    """The graph with sizes for its inputs, and without the numbers of its weights."""
    helper, kinds, graph = onnx.helper, onnx.TensorProto, model.graph
    inputs = []
    for each in graph.input:
        shape = _input_shape(each, onnx, rows, length)
        inputs.append(helper.make_tensor_value_info(each.name, each.type.tensor_type.elem_type, shape))
    small, shapes = [], {}
    for tensor in graph.initializer:
        shapes[tensor.name] = list(tensor.dims)
        if math.prod(tensor.dims) <= SMALL:
            small.append(tensor)
        else:
            inputs.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    nodes: list[Any] = []
    for number, node in enumerate(graph.node):
        if node.output[0] in lengths:
            continue
        if not node.domain:
            nodes.append(node)
            continue
        # The runtime's own operators in the standard's words: all of them multiply by a stored matrix.
        sizes, given = {each.name: each.i for each in node.attribute}, [name for name in node.input if name]
        shape = list(shapes.get(given[1], ())) if len(given) > 1 else []
        shape = [sizes["K"], sizes["N"]] if {"K", "N"} <= set(sizes) else shape
        matrix, wide = f"matrix {number}", f"wide {number}"
        inputs.append(helper.make_tensor_value_info(matrix, kinds.FLOAT, shape))
        nodes.append(helper.make_node("Cast", given[:1], [wide], to=kinds.FLOAT))
        nodes.append(helper.make_node("MatMul", [wide, matrix], list(node.output)))
    small += [onnx.numpy_helper.from_array(value, name) for name, value in lengths.items()]
    outputs = [helper.make_empty_tensor_value_info(each.name) for each in graph.output]
    light = helper.make_graph(nodes, graph.name, inputs, outputs, small)
    return helper.make_model(light, opset_imports=model.opset_import[:1], ir_version=model.ir_version)


GRAPH, WORDS = "model.onnx", "words.onnx"  # the graph; of a model that fills gaps, its word head too
NARROW = 512  # width up to which rows of an int8 graph go through without padding, and their attention in one operator
LARGEST = (1 << 31) - 1  # bytes that such a file can have
SPIN = "1000"  # microseconds for which its threads wait awake: a short text after another finds them so


def runtime() -> Any:
    """The package that runs ONNX graphs, with its telemetry off."""
    os.environ.update(SWITCHES)  # again: a program may have changed its environment since `import weft`
    try:
        import onnxruntime
    except ImportError:
        raise UserError("an ONNX model needs the package onnxruntime: pip install 'weft[fast-cpu]'") from None
    onnxruntime.disable_telemetry_events()
    onnxruntime.set_default_logger_severity(4)  # fatal: what it raises it would also print, in color
    if TOO_LATE:
        warnings.warn(
            "onnxruntime was imported before weft and may send telemetry; "
            "import weft first or set ORT_DISABLE_TELEMETRY=1",
            stacklevel=2,
        )
    return onnxruntime


class OnnxGraph:
    """A graph that computes hidden states of tokens or the output of a head, on arrays and without torch.

    Several groups of rows run at once, each in one thread: if threads shared operators, they would wait for each other
    after each of some hundred short ones. Only a single text is run by all threads together.
    """

    def open(self, folder: Path, config: Any, heads: Mapping[str, int], wide: int, traced: bool) -> None:
        """`config`: the sizes of the model; `wide`: the width of the hidden states, for a graph without a head."""
        self.folder, self.sizes, self.wide, self.traced = folder, config, wide, traced
        self.path = folder / GRAPH
        self.threads = thread_count()
        # Whether it takes the range of its integers over a whole batch, so that each row must go through alone.
        graph, self.one_by_one, self.even = self._session(self.threads)
        self.graphs = {self.threads: graph}  # by their threads
        self.inputs = [each.name for each in graph.get_inputs()]
        self.masked = not traced  # a traced graph reads rows of equal length
        self.outputs = [each.name for each in graph.get_outputs()]
        self.by_token = self.outputs != ["logits"] or "tag" in heads
        self.word_graph = started(folder / WORDS, config, traced)[0] if "words" in heads else None
        self._check(folder / GRAPH, config, heads, graph)

    def _check(self, path: Path, config: Any, heads: Mapping[str, int], graph: Any) -> None:
        """Refuse a graph whose inputs and outputs do not fit the description of the folder."""
        two = config.segments > 1
        wanted = ["input_ids", *(["attention_mask"] if self.masked else []), *(["token_type_ids"] if two else [])]
        head = next((name for name in ("classify", "choose", "tag", "answer") if name in heads), None)
        expected = ["start_logits", "end_logits"] if head == "answer" else ["logits" if head else "last_hidden_state"]
        labels = heads[head] if head in ("classify", "choose", "tag") else None
        self.widths: tuple[int, ...] = () if head == "answer" else (labels or self.wide,)
        ranks = {len(each.shape) for each in graph.get_outputs()}
        wide = next((each.shape[-1] for each in graph.get_outputs() if each.shape), None)
        inputs = sorted(self.inputs) == sorted(wanted) and all(len(each.shape) == 2 for each in graph.get_inputs())
        ends = [] if self.word_graph is None else [*self.word_graph.get_inputs(), *self.word_graph.get_outputs()]
        names = [each.name for each in ends]
        words = f"{path.parent / WORDS}: has {shown(listed(names))} where hidden_states, logits are expected"
        gives = f"{path}: gives {shown(listed(self.outputs))} where {listed(expected)} is expected"
        refuse(
            (not inputs, f"{path}: reads {shown(listed(self.inputs))} where {listed(wanted)} are expected"),
            (self.outputs != expected, gives),
            (
                ranks != {1 + self.by_token + len(self.widths)},
                f"{path}: gives outputs of {shown(str(ranks))} dimensions",
            ),
            (labels not in (None, wide), f"{path}: gives {shown(str(wide))} scores for a head of {labels} outputs"),
            (self.word_graph is not None and names != ["hidden_states", "logits"], words),
        )

    def computed(
        self, tokens: NDArray[np.int64], starts: Sequence[int], segments: NDArray[np.int64] | None = None
    ) -> NDArray[Any]:
        """The output of the graph for rows of tokens: for each token (N ...), or for each row (B ...)."""
        if len(starts) == 2 and len(tokens):
            return self._row(tokens, segments)
        lengths = [end - begin for begin, end in pairwise(starts)]
        groups = [[row] for row in range(len(lengths))]
        if not self.one_by_one:
            padding = self.masked and not self.even
            groups = grouped([max(self.even, each) for each in lengths], padding=padding, parts=self.threads)
        flat = {"input_ids": tokens} if segments is None else {"input_ids": tokens, "token_type_ids": segments}
        if len(groups) == 1:
            parts = [self._outputs(self.graphs[self.threads], groups[0], flat, starts)]
            if self.by_token and len(tokens) == parts[0].shape[0] * parts[0].shape[1]:  # rows of one length, in order
                return parts[0].reshape(len(tokens), *parts[0].shape[2:])
        else:  # the longest rows first, so that no thread ends long after the others
            assert groups, "there are no rows"
            graph = self._by_one_thread()
            groups.reverse()
            with ThreadPoolExecutor(min(self.threads, len(groups))) as pool:
                parts = list(pool.map(lambda group: self._outputs(graph, group, flat, starts), groups))
        count = len(tokens) if self.by_token else len(lengths)
        output = np.zeros((count, *parts[0].shape[1 + self.by_token :]), dtype=parts[0].dtype)
        for group, part in zip(groups, parts, strict=True):
            if not self.by_token:
                output[group] = part
                continue
            for place, row in enumerate(group):
                output[starts[row] : starts[row + 1]] = part[place, : lengths[row]]
        return output

    def _row(self, tokens: NDArray[np.int64], segments: NDArray[np.int64] | None) -> NDArray[Any]:
        """The output for a single row, mostly a short text that somebody is waiting for."""
        fed = {"input_ids": tokens[None]}
        if self.masked:
            fed["attention_mask"] = np.ones_like(fed["input_ids"])
        if "token_type_ids" in self.inputs:
            fed["token_type_ids"] = np.zeros_like(fed["input_ids"]) if segments is None else segments[None]
        shape = (1, len(tokens), *self.widths) if self.by_token else (1, *self.widths)
        outputs = run(self.graphs[self.threads], fed, self.path, shape, self.outputs)
        output = outputs[0] if len(outputs) == 1 else np.stack(outputs, -1)
        return output[0] if self.by_token else output

    def _outputs(
        self, graph: Any, group: list[int], flat: Mapping[str, NDArray[Any]], starts: Sequence[int]
    ) -> NDArray[Any]:
        """b t ..., or b ...: the output of the graph for some rows, which are padded to one length."""
        lengths = [starts[row + 1] - starts[row] for row in group]
        longest = max(1, *lengths)
        fed = {name: np.zeros((len(group), longest), dtype=np.int64) for name in self.inputs}
        for place, (row, length) in enumerate(zip(group, lengths, strict=True)):
            for name, values in flat.items():
                if name in fed:
                    fed[name][place, :length] = values[starts[row] : starts[row + 1]]
            if self.masked:
                fed["attention_mask"][place, :length] = 1
        shape = (len(group), longest, *self.widths) if self.by_token else (len(group), *self.widths)
        outputs = run(graph, fed, self.path, shape)
        return outputs[0] if len(outputs) == 1 else np.stack(outputs, -1)

    def _by_one_thread(self) -> Any:
        """A session that runs in the calling thread, opened at the first call."""
        if 1 not in self.graphs:
            self.graphs[1], *_ = self._session(1)
        return self.graphs[1]

    def _session(self, threads: int) -> tuple[Any, bool, bool]:
        """A session of the graph, whether it takes ranges over a whole batch, and whether it runs without padding."""
        path = self.folder / GRAPH
        data, model, by_batch = checked(path, self.sizes, self.traced)
        # Either all groups run without padding or none: in int8 padding can change integers. In a wide model more
        # groups cost more than they save, since each reads all weights from memory.
        narrow = not by_batch and self.sizes.width <= NARROW
        in_int8 = any(node.op_type == INTEGERS for node in model.graph.node)
        even = without_padding(library(), model) if narrow and in_int8 else None
        return session_of(data if even is None else even, path, threads), by_batch, even is not None


def run(
    graph: Any, fed: dict[str, Any], path: Path, shape: tuple[int, ...], names: Sequence[str] | None = None
) -> list[NDArray[Any]]:
    """Run a graph; its outputs must be arrays of this shape. `names`: of the outputs, None for all."""
    try:
        outputs = graph.run(names, fed)
    except Exception as error:  # the runtime has an exception of its own for each kind of fault
        raise UserError(f"{path}: the ONNX graph failed: {shown(str(error), 200)}") from None
    for output in outputs:
        if not isinstance(output, np.ndarray) or output.shape != shape or output.dtype != np.float32:
            what = f"{output.dtype} {output.shape}" if isinstance(output, np.ndarray) else type(output).__name__
            raise UserError(f"{path}: the ONNX graph gave {shown(what)} where float32 {shape} is expected")
    return outputs


def started(path: Path, config: Any, traced: bool = False, threads: int | None = None) -> tuple[Any, bool]:
    """A session of a checked graph, and whether it takes ranges over a whole batch.

    `threads`: by default as many as torch has.
    """
    data, _, by_batch = checked(path, config, traced)
    return session_of(data, path, threads or thread_count()), by_batch


def checked(path: Path, config: Any, traced: bool = False) -> tuple[bytes, Any, bool]:
    """The bytes of a graph, and the results of `check_graph`."""
    runtime()
    if not path.exists():
        raise UserError(f"{path.parent}: has no {path.name}")
    data = read_bytes(path, LARGEST)
    return data, *check_graph(data, path, config, traced)


def session_of(data: bytes, path: Path, threads: int) -> Any:
    """A session of a checked graph; `path`: its file, for messages."""
    engine = runtime()
    options = engine.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # fatal: its errors are raised too, and would be printed in color
    # Between two calls its threads soon stop spinning, and leave the processors to torch and the tokenizer.
    options.add_session_config_entry("session.intra_op.spin_duration_us", SPIN)
    try:
        # The bytes that were checked, and not the path: the runtime takes no name that is not UTF-8.
        return engine.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime has an exception of its own for each kind of fault
        raise UserError(f"{path}: not a sound ONNX graph: {shown(str(error), 200)}") from None
