"""ONNX graphs, written operator by operator: linear maps, norms, tables and attention over dense rows.

B: rows; T: places of the longest; N: B times T, rows below each other; W: width; H: heads; D: width of a head. The file
has no padding that is not masked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from weft.backends.onnx import FORMAT, OPERATORS, OPSET, RUNTIME, WINDOWS, library
from weft.errors import refuse
from weft.files import write_bytes
from weft.nn.layers import Layer
from weft.version import VERSION

Precision = Literal["fp32", "fp16", "int8", "int8-static", "int4"]
FAR = -1e9  # added to the scores of keys that are no tokens: no share is left of them
# Of seven bits: the instructions of processors without VNNI add two products in sixteen bits, and eight overflow there.
LARGEST = 63
BLOCK = 32  # weights of four bits that share one scale
Ranges = Mapping[nn.Module, tuple[float, float]]


@dataclass
class Graph:
    """A graph in the making; what is added is named, and a weight that is used twice is stored once."""

    precision: Precision = "fp32"
    ranges: Ranges = field(default_factory=dict)  # of the inputs of linear maps: static integers
    nodes: list[Any] = field(default_factory=list)
    tensors: dict[str, NDArray[Any]] = field(default_factory=dict)
    known: dict[Any, str] = field(default_factory=dict)
    onnx: Any = field(default_factory=library)
    one_place: bool = False  # whether of each row one place is worked on, and not all
    turns: tuple[str, str] | None = None  # cosine and sine that queries and keys are turned by, T 1 D each

    def op(self, kind: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes: Any) -> Any:
        """Add an operator; the name of what it gives, or the names."""
        assert kind in OPERATORS[domain] and set(attributes) <= set(OPERATORS[domain][kind]), f"{kind} would be refused"
        names = [f"{kind.lower()}_{len(self.nodes)}" + (f"_{n}" if outputs > 1 else "") for n in range(outputs)]
        self.nodes.append(self.onnx.helper.make_node(kind, list(inputs), names, domain=domain, **attributes))
        return names[0] if outputs == 1 else names

    def named(self, name: str, what: str) -> None:
        """Let a result be called what others call it."""
        self.nodes.append(self.onnx.helper.make_node("Identity", [what], [name]))

    def floats(self, what: str) -> str:
        """A result as numbers of four bytes."""
        return self.op("Cast", what, to=self.onnx.TensorProto.FLOAT)

    def ints(self, *values: int) -> str:
        """Axes, sizes or places."""
        return self.constant(values, np.int64)

    def constant(self, value: Any, kind: Any = np.float32) -> str:
        """A number or a few."""
        array = np.array(value, dtype=kind)
        return self._stored((array.tobytes(), array.shape, array.dtype.str), "", array)

    def _stored(self, key: Any, suffix: str, array: NDArray[Any]) -> str:
        """A tensor by its key, which is stored once; a constant has no suffix."""
        if (key, suffix) not in self.known:
            number = len(self.tensors)
            self.known[key, suffix] = f"weight_{number}_{suffix}" if suffix else f"constant_{number}"
            self.tensors[self.known[key, suffix]] = array
        return self.known[key, suffix]

    def weight(self, key: Any, suffix: str, tensor: Tensor) -> str:
        """Weights as they are, or in half of the bytes and widened when the graph is opened."""
        array = tensor.detach().float().numpy()
        if self.precision == "fp32" or array.ndim < 2:
            return self._stored(key, suffix, array)
        if (key, suffix, "wide") not in self.known:
            self.known[key, suffix, "wide"] = self.floats(self._stored(key, suffix, array.astype(np.float16)))
        return self.known[key, suffix, "wide"]

    def linear(self, x: str, module: nn.Linear, small: bool = False) -> str:
        """The output of a linear map; `small`: too small to be worth integers."""
        return self.map(x, module, module.weight, module.bias, "whole", small)

    def map(self, x: str, source: nn.Module, weight: Tensor, bias: Tensor | None, part: str, small: bool) -> str:
        """... W -> ... outputs by a matrix (outputs W), in the precision of this graph."""
        key = (source, part)
        if small or self.precision in ("fp32", "fp16"):
            x = self.op("MatMul", x, self.weight(key, "matrix", weight.t().contiguous()))
        elif self.precision == "int4":
            packed, scales = four_bits(weight.detach().float().numpy())
            names = self._stored(key, "nibbles", packed), self._stored(key, "scales", scales)
            sizes = {"N": weight.shape[0], "K": weight.shape[1], "bits": 4, "block_size": BLOCK, "accuracy_level": 4}
            x = self.op("MatMulNBits", x, *names, domain=RUNTIME, **sizes)
        else:
            return self._eight_bits(x, source, key, weight, bias)
        return x if bias is None else self.op("Add", x, self.weight(key, "bias", bias))

    def _eight_bits(self, x: str, source: nn.Module, key: Any, weight: Tensor, bias: Tensor | None) -> str:
        """N W -> N outputs; by a known range, or each row by its own largest value, whatever else is in the batch."""
        whole, by_output = eight_bits(weight.detach().float().numpy())
        matrix = self._stored(key, "integers", np.ascontiguousarray(whole.T))
        scales, zeros = self._stored(key, "scales", by_output), self.constant(np.zeros(len(by_output)), np.int8)
        if source in self.ranges:
            added = "" if bias is None else self.weight(key, "bias", bias)
            low, high = min(self.ranges[source][0], 0.0), max(self.ranges[source][1], 0.0)
            step = max(high - low, 1e-8) / 255
            scale, zero = self.constant(step), self.constant(round(-low / step), np.uint8)
            x = self.op("QuantizeLinear", x, scale, zero)
            return self.op("MatMulIntegerToFloat", x, matrix, scale, scales, zero, zeros, added, domain=RUNTIME)
        largest = self.op("ReduceMax", self.op("Abs", x), self.ints(-1), keepdims=0)
        by_row = self.op("Max", self.op("Mul", largest, self.constant(1 / 127)), self.constant(1e-12))  # zeros stay so
        middle, rows = self.constant(128, np.uint8), "one place" if self.one_place else "all places"
        if ("middles", rows) not in self.known:  # N times 128, in one operator, for all maps of so many rows
            self.known["middles", rows] = self.op("QuantizeLinear", by_row, self.constant(1e30), middle)
        integers = self.op("QuantizeLinear", x, by_row, self.known["middles", rows], axis=0)
        x = self.op("MatMulIntegerToFloat", integers, matrix, self.constant(1.0), scales, middle, zeros, domain=RUNTIME)
        x = self.op("Mul", x, self.op("Unsqueeze", by_row, self.ints(1)))
        # As a matrix: beside a vector the runtime would fuse it with a GELU, into an operator that is slower than both.
        return x if bias is None else self.op("Add", x, self._stored(key, "bias", bias.detach().float().numpy()[None]))

    def table(self, numbers: str, module: nn.Module) -> str:
        """B T -> B T W: rows of a table; in eight bits with a scale for each row, where numbers are small."""
        key, array = (module, "table"), module.weight.detach().float().numpy()  # type: ignore[operator]
        if self.precision == "fp32":
            return self.op("Gather", self._stored(key, "rows", array), numbers)
        if self.precision == "fp16":
            return self.floats(self.op("Gather", self._stored(key, "rows", array.astype(np.float16)), numbers))
        whole, scales = eight_bits(array, 127)
        rows = self.floats(self.op("Gather", self._stored(key, "rows", whole), numbers))
        return self.op("Mul", rows, self.op("Gather", self._stored(key, "scales", scales[:, None]), numbers))

    def norm(self, x: str, module: nn.Module) -> str:
        """Layer norm, or the RMS norm; no norm at all leaves x as it is."""
        if isinstance(module, nn.LayerNorm):
            ends = [self.weight(module, "weight", module.weight), self.weight(module, "bias", module.bias)]
            return self.op("LayerNormalization", x, *ends, axis=-1, epsilon=module.eps)
        if isinstance(module, nn.RMSNorm):
            assert module.eps is not None
            square = self.op("ReduceMean", self.op("Mul", x, x), self.ints(-1), keepdims=1)
            root = self.op("Sqrt", self.op("Add", square, self.constant(module.eps)))
            return self.op("Mul", self.op("Div", x, root), self.weight(module, "weight", module.weight))
        assert isinstance(module, nn.Identity), module
        return x

    def activate(self, x: str, kind: str) -> str:
        """The non-linearity by name."""
        if kind in ("gelu", "gelu-tanh"):
            return self.op("Gelu", x, approximate="tanh" if kind == "gelu-tanh" else "none")
        if kind == "silu":
            return self.op("Mul", x, self.op("Sigmoid", x))
        return self.op({"relu": "Relu", "tanh": "Tanh"}[kind], x)

    def layer(self, x: str, module: Layer, bias: str | None, at: str | None = None) -> str:
        """A Transformer layer, N W -> N W; `at` (B 1): only that place of each row is asked for, B W."""
        before = module.norm_before
        seen = self.norm(x, module.attention_norm) if before else x
        x, asked = (x, seen) if at is None else (self.pick(x, at), self.pick(seen, at))
        x = self.op("Add", x, self.attention(seen, asked, module.attention, bias, at is None))
        if before:
            return self.op("Add", x, self.feedforward(self.norm(x, module.feedforward_norm), module.feedforward))
        x = self.norm(x, module.attention_norm)
        return self.norm(self.op("Add", x, self.feedforward(x, module.feedforward)), module.feedforward_norm)

    def attention(self, x: str, asked: str, module: Any, bias: str | None, whole: bool) -> str:
        """N W: what each place of `asked`, or each of all, takes from the places of x."""
        inner = module.heads * module.head_width
        scale = module.head_width**-0.5 if module.scale is None else module.scale
        # Scores are products with the query, so the query's weights can carry their scale.
        factor = torch.ones(3 * inner, 1)
        factor[:inner] = scale
        weight = module.qkv.weight * factor
        added = None if module.qkv.bias is None else module.qkv.bias * factor[:, 0]
        if whole:
            joined = self.map(x, module.qkv, weight, added, "qkv", False)
            query, key, value = self.op("Split", joined, outputs=3, axis=-1, num_outputs=3)
        else:
            of = [None if added is None else added[some] for some in (slice(0, inner), slice(inner, None))]
            joined = self.map(x, module.qkv, weight[inner:], of[1], "key-value", False)
            self.one_place = True  # from here on: it is the last layer
            query = self.map(asked, module.qkv, weight[:inner], of[0], "query", False)
            key, value = self.op("Split", joined, outputs=2, axis=-1, num_outputs=2)
        places = self.shape(module.heads, module.head_width)  # B T H D
        one = places if whole else self.ints(-1, 1, module.heads, module.head_width)
        query = self.op("Transpose", self.turned(self.op("Reshape", query, one)), perm=[0, 2, 1, 3])
        value = self.op("Transpose", self.op("Reshape", value, places), perm=[0, 2, 1, 3])
        key = self.op("Transpose", self.turned(self.op("Reshape", key, places)), perm=[0, 2, 3, 1])
        scores = self.op("MatMul", query, key)  # B H T T
        shares = self.op("Softmax", scores if bias is None else self.op("Add", scores, bias), axis=-1)
        mixed = self.op("Transpose", self.op("MatMul", shares, value), perm=[0, 2, 1, 3])
        return self.linear(self.op("Reshape", mixed, self.ints(-1, inner)), module.output)

    def turned(self, x: str) -> str:
        """B T H D with rotary positions, where there are such."""
        if self.turns is None:
            return x
        first, second = self.op("Split", x, outputs=2, axis=-1, num_outputs=2)
        swapped = self.op("Concat", self.op("Mul", second, self.constant(-1.0)), first, axis=-1)
        return self.op("Add", self.op("Mul", x, self.turns[0]), self.op("Mul", swapped, self.turns[1]))

    def feedforward(self, x: str, module: Any) -> str:
        x = self.linear(x, module.up)
        if module.gated:
            gate, x = self.op("Split", x, outputs=2, axis=-1, num_outputs=2)
            return self.linear(self.op("Mul", self.activate(gate, module.activation), x), module.down)
        return self.linear(self.activate(x, module.activation), module.down)

    def pick(self, x: str, at: str) -> str:
        """N W -> B W: one place of each row, the first or the one that `at` (B 1) says."""
        dense = self.dense(x)
        if at == FIRST:
            return self.op("Gather", dense, self.constant(0, np.int64), axis=1)
        return self.op("GatherND", dense, at, batch_dims=1)

    def dense(self, x: str) -> str:
        """N W -> B T W"""
        return self.op("Reshape", x, self.shape(-1))

    def shape(self, *sizes: int) -> str:
        """The shape B T and these sizes, as far as the inputs say it."""
        if ("shape", sizes) not in self.known:
            self.known["shape", sizes] = self.op("Concat", self.op("Shape", "input_ids"), self.ints(*sizes), axis=0)
        return self.known["shape", sizes]

    def write(self, path: Path, inputs: Mapping[str, Sequence[Any]], outputs: Mapping[str, Sequence[Any]]) -> None:
        """The graph as a file; inputs and outputs by name, with their shapes, in which a word is any number."""
        value_info, types = self.onnx.helper.make_tensor_value_info, self.onnx.TensorProto
        total = sum(array.nbytes for array in self.tensors.values())
        refuse((total > (1 << 31) - (1 << 20), f"{total / 1e9:.1f} GB of weights are more than an ONNX file can hold"))
        kinds = dict.fromkeys(inputs, types.INT64) | dict.fromkeys(("hidden_states", WINDOWS), types.FLOAT)
        feeds = [value_info(name, kinds[name], list(shape)) for name, shape in inputs.items()]
        gives = [value_info(name, types.FLOAT, list(shape)) for name, shape in outputs.items()]
        tensors = [self.onnx.numpy_helper.from_array(array, name) for name, array in self.tensors.items()]
        model = model_of(self.onnx, self.nodes, feeds, gives, tensors)
        model.producer_name, model.producer_version = "weft", VERSION
        write_bytes(path, model.SerializeToString())


# Our gates in the standard's order: of an LSTM enter, show, keep, new; of a GRU keep, reset, new.
GATES = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn": (0,)}


def cells(graph: Graph, layer: Any, modules: Sequence[Any], x: str, lengths: str = "") -> tuple[str, str]:
    """T B inputs -> T B width of all directions, and B width: where each direction ends.

    `modules`: the directions of one layer of a recurrent network; `lengths`: of the rows, where they differ.
    """
    ways, order = len(layer.directions), GATES[layer.cell]
    refuse((layer.directions == (True,), "a network that reads backwards alone cannot be written as ONNX"))

    def ordered(tensor: torch.Tensor) -> torch.Tensor:
        return torch.cat([tensor.chunk(len(order))[gate] for gate in order])

    weights = [[ordered(tensor) for tensor in module._flat_weights] for module in modules]
    inputs, back = (torch.stack([each[number] for each in weights]) for number in (0, 1))
    biases = torch.stack([torch.cat(each[2:]) for each in weights])
    names = [
        graph.weight(modules[0], name, each) for name, each in {"inputs": inputs, "back": back, "bias": biases}.items()
    ]
    settings: dict[str, Any] = {"hidden_size": layer.width, "direction": "bidirectional" if ways > 1 else "forward"}
    settings |= {"linear_before_reset": 1} if layer.cell == "gru" else {}
    settings |= {"activations": [layer.activation.capitalize()] * ways} if layer.cell == "rnn" else {}
    settings["outputs"] = 3 if layer.cell == "lstm" else 2
    made, ends, *_ = graph.op(layer.cell.upper(), x, *names, *([lengths] if lengths else []), **settings)
    width = graph.ints(0, 0, ways * layer.width)
    made = graph.op("Reshape", graph.op("Transpose", made, perm=[0, 2, 1, 3]), width)  # T D B W -> T B DW
    return made, graph.op("Reshape", graph.op("Transpose", ends, perm=[1, 0, 2]), graph.ints(0, ways * layer.width))


FIRST = "first"  # in place of a name: the first place of every row


def model_of(onnx: Any, nodes: Sequence[Any], inputs: Any, outputs: Any, tensors: Sequence[Any]) -> Any:
    """The file of a graph, in the version of the format that the loader takes."""
    graph = onnx.helper.make_graph(nodes, "weft", inputs, outputs, tensors)
    opsets = [onnx.helper.make_opsetid("", OPSET), onnx.helper.make_opsetid(RUNTIME, 1)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=FORMAT)


def eight_bits(weight: NDArray[np.float32], largest: int = LARGEST) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Each row as whole numbers, and by what they are multiplied."""
    scales = np.maximum(np.abs(weight).max(1), 1e-12) / largest
    return np.round(weight / scales[:, None]).astype(np.int8), scales.astype(np.float32)


def four_bits(weight: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Each row in blocks of nibbles, 0 to 15 around 8, and by what each block is multiplied."""
    rows, columns = weight.shape
    padded = np.zeros((rows, -(-columns // BLOCK) * BLOCK), dtype=np.float32)
    padded[:, :columns] = weight
    blocks = padded.reshape(rows, -1, BLOCK)
    # The number farthest from 0 becomes -8, the one end of the range that has no opposite.
    scales = np.take_along_axis(blocks, np.abs(blocks).argmax(-1)[..., None], -1) / -8
    safe = np.where(scales == 0, 1, scales)
    whole = np.clip(np.round(blocks / safe) + 8, 0, 15).astype(np.uint8)
    packed: NDArray[np.uint8] = np.bitwise_or(whole[..., 0::2], np.left_shift(whole[..., 1::2], 4))
    return packed, scales[..., 0].astype(np.float32).reshape(rows, -1)
