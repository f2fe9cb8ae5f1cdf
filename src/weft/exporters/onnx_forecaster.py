"""The graph of a forecasting network: windows of one length in, the forecast after their last step out.

B: windows; T: steps of a window; F: numbers of a step; N: B times T, steps below each other; W: width.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from weft.backends.onnx import GRAPH, WINDOWS
from weft.backends.onnx_forecaster import TABLES
from weft.checkpoint.folder import LoadedModel
from weft.checkpoint.tensors import save_tensors
from weft.errors import refuse
from weft.exporters.onnx_builder import FAR, Graph, Precision, cells


def write_forecaster(inside: Path, opened: LoadedModel, precision: Precision = "fp32") -> None:
    """The graph, and beside it the coefficients of least squares."""
    c = opened.config
    network: Any = opened.network
    refuse((precision not in ("fp32", "fp16"), f"a {opened.family.name} is written as ONNX in fp32 or fp16 only"))
    graph = Graph(precision)
    x = ENCODERS[c.encoder](graph, network)  # B W
    graph.named("logits", graph.linear(x, network.heads["forecast"].output, small=True))
    graph.write(inside / GRAPH, {WINDOWS: ["batch", c.context * c.features]}, {"logits": ["batch", c.outputs]})
    save_tensors(inside / TABLES, {"least_squares": network.get_buffer("least_squares").float().cpu()})


def _steps(graph: Graph, network: Any) -> str:
    """B T F"""
    return graph.op("Reshape", WINDOWS, graph.ints(-1, network.config.context, network.config.features))


def _last(graph: Graph, network: Any, x: str) -> str:
    """B T W -> B W"""
    return graph.op("Gather", x, graph.constant(network.config.context - 1, np.int64), axis=1)


def _linear(graph: Graph, network: Any) -> str:
    return WINDOWS  # the head reads the whole window


def _recurrent(graph: Graph, network: Any) -> str:
    x, last = graph.op("Transpose", _steps(graph, network), perm=[1, 0, 2]), ""  # T B F
    for module in network.recurrent.layers:
        x, last = cells(graph, network.recurrent, [module], x)
    return last


def _wavenet(graph: Graph, network: Any) -> str:
    length = network.config.context
    x, total = graph.linear(_steps(graph, network), network.inputs, small=True), ""

    def earlier(offset: int) -> str:
        """B T W: each step's neighbor so many steps before it, zeros before the first."""
        if not offset:
            return x
        size = min(-offset, length)
        zeros = graph.op("Mul", graph.op("Slice", x, graph.ints(0), graph.ints(size), graph.ints(1)), zero)
        if size == length:
            return zeros
        rest = graph.op("Slice", x, graph.ints(0), graph.ints(length - size), graph.ints(1))
        return graph.op("Concat", zeros, rest, axis=1)

    zero = graph.constant(0.0)
    for layer in network.layers:
        near = graph.op("Concat", *map(earlier, layer.offsets), axis=-1)
        bent, gate = graph.op("Split", graph.linear(near, layer.maps), outputs=2, axis=-1, num_outputs=2)
        made = graph.op("Mul", graph.op("Tanh", bent), graph.op("Sigmoid", gate))
        x, total = graph.op("Add", x, graph.linear(made, layer.output)), graph.op("Add", total, made) if total else made
    last = graph.op("Relu", _last(graph, network, total))
    return graph.op("Relu", graph.linear(last, network.final))


def _transformer(graph: Graph, network: Any) -> str:
    c = network.config
    steps = graph.op("Reshape", WINDOWS, graph.ints(-1, c.features))  # N F
    x = graph.linear(steps, network.inputs, small=True)
    places = torch.arange(c.context)
    cosine, sine = network.positions.turns(places, torch.float32)
    graph.turns = graph.weight(network, "cosine", cosine), graph.weight(network, "sine", sine)
    graph.known["shape", (c.attention_heads, c.width // c.attention_heads)] = graph.ints(
        -1, c.context, c.attention_heads, c.width // c.attention_heads
    )
    ahead = graph.constant(np.triu(np.full((c.context, c.context), FAR), 1))  # no step sees a later one
    for layer in network.layers:
        x = graph.layer(x, layer, ahead)
    x = graph.op("Reshape", graph.norm(x, network.final_norm), graph.ints(-1, c.context, c.width))
    return _last(graph, network, x)


ENCODERS = {
    **dict.fromkeys(("rnn", "lstm", "gru"), _recurrent),
    "linear": _linear,
    "wavenet": _wavenet,
    "transformer": _transformer,
}
