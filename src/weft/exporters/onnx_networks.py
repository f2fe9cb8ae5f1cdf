"""Our networks as ONNX graphs with a dense entrance: rows of one length, a mask, and both of any size.

B: rows; T: places; W: width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from weft.checkpoint.folder import LoadedModel
from weft.errors import UserError
from weft.exporters.onnx_builder import FAR, FIRST, Graph
from weft.models.cnn import sight
from weft.nn.heads import DeepLabelHead, MaskedWordHead
from weft.nn.positions import alibi_slopes

Sizes = Mapping[str, list[Any]]
ENTRANCE = ("input_ids", "attention_mask")  # as others call them


# -------------------------------------------------------------------------------------------------- encoders


def _transformer(graph: Graph, opened: LoadedModel, head: str | None) -> tuple[Sizes, Sizes]:
    """BERT and its relatives, and GPT: tables, layers, head."""
    network: Any = opened.network
    inputs: dict[str, list[Any]] = {name: ["batch", "length"] for name in ENTRANCE}
    x = graph.table("input_ids", network.tokens, network.tokens.weight)
    causal = opened.family.speaks
    if network.segments is not None:
        if opened.config.segments > 1:
            inputs["token_type_ids"] = ["batch", "length"]
            x = graph.op("Add", x, graph.op("Gather", graph.weight(id(network), "segments", network.segments.weight),
                                            "token_type_ids"))  # fmt: skip
        else:
            x = graph.op("Add", x, graph.weight(id(network), "segment", network.segments.weight[0]))
    x = _positions(graph, x, network.positions)
    if network.embedding_norm is not None:
        x = graph.norm(x, network.embedding_norm)
    x = graph.flat(x, network.tokens.weight.shape[1])  # N W
    if network.widened is not None:
        x = graph.linear(x, network.widened)
    bias = _bias(graph, network.positions, causal)
    layers = list(network.layers)
    layers = layers * opened.config.layers if opened.family.name == "albert" else layers
    by_row = head == "classify"
    place = _last(graph) if causal else FIRST
    seen = [x]
    for number, layer in enumerate(layers):
        # Of the last layer a label needs one place only, and all that the others would cost is saved.
        alone = by_row and number == len(layers) - 1 and network.mix is None
        one = _padding(graph) if alone and causal and network.positions.kind != "alibi" else bias
        if alone and network.positions.kind == "alibi":
            alone, one = False, bias
        x = graph.layer(x, layer, one, place if alone else None)
        seen.append(x)
    x = graph.norm(x, network.final_norm)
    alone = by_row and network.mix is None and network.positions.kind != "alibi"
    if network.mix is not None:
        x = _mixed(graph, network.mix, [*seen[:-1], x])
    if not by_row:
        x = graph.dense(x)  # B T W
    elif not alone:
        x = graph.pick(x, place)  # B W
    return inputs, _head_outputs(graph, opened, head, x)


def _head_outputs(graph: Graph, opened: LoadedModel, head: str | None, x: str) -> Sizes:
    """The head, and its outputs by their usual names."""
    network: Any = opened.network
    if head in (None, "words"):
        graph.named("last_hidden_state", x)
        return {"last_hidden_state": ["batch", "length", "width"]}
    module = network.heads[head]
    if head == "classify" and network.pooler is not None and "classify" in network.POOLED:
        x = graph.op("Tanh", graph.linear(x, network.pooler.dense, small=True))
    if isinstance(module, DeepLabelHead):
        x = graph.activate(graph.linear(x, module.dense, small=True), module.activation)
    x = graph.linear(x, module.output, small=True)
    outputs = opened.heads[head]
    if head == "answer":
        for name, end in zip(("start_logits", "end_logits"), graph.op("Split", x, outputs=2, axis=-1, num_outputs=2),
                             strict=True):  # fmt: skip
            graph.named(name, graph.op("Squeeze", end, graph.constant([-1], np.int64)))
        return {"start_logits": ["batch", "length"], "end_logits": ["batch", "length"]}
    graph.named("logits", x)
    return {"logits": ["batch", "length", outputs] if head == "tag" else ["batch", outputs]}


def _positions(graph: Graph, x: str, positions: Any) -> str:
    """B T W with what a place adds to its token."""
    if positions.kind in ("alibi", "none"):
        return x
    if positions.kind == "rotary":
        raise UserError("a model with rotary positions cannot be written as ONNX yet")
    if positions.kind == "learned":
        table = positions.table.weight
    else:
        table = positions._waves(torch.arange(positions.context), torch.float32)
    if not positions.unused:
        length = graph.op("Shape", "input_ids", start=1, end=2)
        ends = [graph.constant([0], np.int64), length, graph.constant([0], np.int64)]
        return graph.op("Add", x, graph.op("Slice", graph.weight(id(positions), "places", table), *ends))
    # RoBERTa counts the tokens that are none of the padding, from the row after the padding's.
    counted = graph.op("CumSum", "attention_mask", graph.constant(1, np.int64))
    counted = graph.op("Mul", counted, "attention_mask")
    places = graph.op("Add", counted, graph.constant(positions.unused - 1, np.int64))
    return graph.op("Add", x, graph.op("Gather", graph.weight(id(positions), "places", table), places))


def _padding(graph: Graph) -> str:
    """B 1 1 T: 0 where a key is a token, and far below any score where it is none."""
    if "padding" not in graph.known:
        mask = graph.op("Cast", "attention_mask", to=graph.onnx.TensorProto.FLOAT)
        gone = graph.op("Mul", graph.op("Sub", graph.constant(1.0), mask), graph.constant(FAR))
        graph.known["padding"] = graph.op("Unsqueeze", gone, graph.constant([1, 2], np.int64))
    return graph.known["padding"]


def _bias(graph: Graph, positions: Any, causal: bool) -> str:
    """B or 1, H or 1, T T: what is added to the scores of all layers."""
    padding = _padding(graph)
    if not causal and positions.kind != "alibi":
        return padding
    length = graph.op("Squeeze", graph.op("Shape", "input_ids", start=1, end=2), graph.constant([0], np.int64))
    every = graph.op("Range", graph.constant(0, np.int64), length, graph.constant(1, np.int64))
    every = graph.op("Cast", every, to=graph.onnx.TensorProto.FLOAT)
    columns = graph.op("Unsqueeze", every, graph.constant([0], np.int64))
    ahead = graph.op("Sub", columns, graph.op("Unsqueeze", every, graph.constant([1], np.int64)))  # T T
    if causal:
        later = graph.op("Clip", ahead, graph.constant(0.0), graph.constant(1.0))
        padding = graph.op("Add", padding, graph.op("Mul", later, graph.constant(FAR)))
    if positions.kind == "alibi":
        slopes = -alibi_slopes(positions.heads).numpy()[:, None, None]
        padding = graph.op("Add", padding, graph.op("Mul", graph.op("Abs", ahead), graph.constant(slopes)))
    return padding


def _last(graph: Graph) -> str:
    """B 1: the place of each row's last token."""
    length = graph.op("Squeeze", graph.op("Shape", "input_ids", start=1, end=2), graph.constant([0], np.int64))
    every = graph.op("Range", graph.constant(0, np.int64), length, graph.constant(1, np.int64))
    return graph.op("ReduceMax", graph.op("Mul", every, "attention_mask"), graph.constant([1], np.int64), keepdims=1)


def _mixed(graph: Graph, mix: Any, states: list[str]) -> str:
    """The learned mix of all layers."""
    shares = (mix.shares.softmax(0) * mix.scale).tolist()
    parts = [graph.op("Mul", state, graph.constant(share)) for state, share in zip(states, shares, strict=True)]
    return graph.op("Sum", *parts)


def words_of(graph: Graph, network: Any) -> None:
    """The word head as a graph of its own, so that words are scored only at the places asked for."""
    head = network.heads["words"]
    if not isinstance(head, MaskedWordHead):
        raise UserError("a word head of this kind cannot be written as ONNX")
    x = graph.activate(graph.linear("hidden_states", head.dense, small=True), head.activation)
    x = graph.norm(x, head.norm)
    if head.decoder is None:
        x = graph.map(x, network.tokens, network.tokens.weight, head.bias, "words", False)
    else:
        bias = head.bias if head.decoder.bias is None else head.decoder.bias
        x = graph.map(x, head.decoder, head.decoder.weight, bias, "words", False)
    graph.named("logits", x)


# -------------------------------------------------------------------------------------------------- means and windows


def _vectors(graph: Graph, opened: LoadedModel, head: str | None) -> tuple[Sizes, Sizes]:
    """Averaged word vectors."""
    network: Any = opened.network
    x = graph.table("input_ids", network.tokens, network.tokens.weight)
    if head is not None:
        mask = _mask(graph)
        count = graph.op("ReduceSum", mask, graph.constant([1], np.int64), keepdims=0)
        x = graph.op("ReduceSum", graph.op("Mul", x, mask), graph.constant([1], np.int64), keepdims=0)
        x = graph.op("Div", x, graph.op("Max", count, graph.constant(1.0)))
    return {name: ["batch", "length"] for name in ENTRANCE}, _head_outputs(graph, opened, head, x)


def _cnn(graph: Graph, opened: LoadedModel, head: str | None) -> tuple[Sizes, Sizes]:
    """Kim's convolutions: a token and its neighbors, and of each feature map the largest."""
    network: Any = opened.network
    x = graph.table("input_ids", network.tokens, network.tokens.weight)
    if opened.config.both:
        fixed = graph.op("Gather", graph.weight(id(network), "fixed", network.fixed), "input_ids")
        x = graph.op("Concat", x, fixed, axis=-1)
    mask = _mask(graph)
    x = graph.op("Transpose", graph.op("Mul", x, mask), perm=[0, 2, 1])  # B W T, nothing beyond the ends
    maps = []
    for module, kernel in zip(network.convolutions, opened.config.kernels, strict=True):
        weight = module.weight.unflatten(1, (kernel, network.channels)).transpose(1, 2)  # maps W K
        left, right = sight(kernel)
        names = graph.weight(id(module), "kernel", weight), graph.weight(id(module), "bias", module.bias)
        maps.append(graph.op("Conv", x, *names, kernel_shape=[kernel], pads=[-left, right]))
    x = graph.op("Transpose", graph.op("Relu", graph.op("Concat", *maps, axis=1)), perm=[0, 2, 1])
    if head is not None:  # nothing is below 0, so what is no token can be 0
        x = graph.op("ReduceMax", graph.op("Mul", x, mask), graph.constant([1], np.int64), keepdims=0)
    return {name: ["batch", "length"] for name in ENTRANCE}, _head_outputs(graph, opened, head, x)


# Our gates in the standard's order: of an LSTM enter, show, keep, new; of a GRU keep, reset, new.
GATES = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn": (0,)}


def _recurrent(graph: Graph, opened: LoadedModel, head: str | None) -> tuple[Sizes, Sizes]:
    """LSTM, GRU and the plain cell, one way or both."""
    network, c = opened.network, opened.config
    x = graph.table("input_ids", network.tokens, network.tokens.weight)
    x = graph.op("Transpose", x, perm=[1, 0, 2])  # T B W
    lengths = graph.op("ReduceSum", "attention_mask", graph.constant([1], np.int64), keepdims=0)
    lengths = graph.op("Cast", graph.op("Max", lengths, graph.constant(1, np.int64)), to=graph.onnx.TensorProto.INT32)
    last = ""
    for layer in network.layers:
        x, last = _cells(graph, layer, x, lengths)
    x = graph.op("Transpose", x, perm=[1, 0, 2])  # B T W
    mask = _mask(graph)
    if head == "classify":
        some = graph.op("ReduceMax", mask, graph.constant([1], np.int64), keepdims=0)  # B 1: whether there is a token
        if c.pooling == "mean":
            count = graph.op("ReduceSum", mask, graph.constant([1], np.int64), keepdims=0)
            x = graph.op("ReduceSum", graph.op("Mul", x, mask), graph.constant([1], np.int64), keepdims=0)
            x = graph.op("Div", x, graph.op("Max", count, graph.constant(1.0)))
        elif c.pooling == "max":
            gone = graph.op("Mul", graph.op("Sub", graph.constant(1.0), mask), graph.constant(FAR))
            x = graph.op("ReduceMax", graph.op("Add", x, gone), graph.constant([1], np.int64), keepdims=0)
        else:
            x = last
        x = graph.op("Mul", x, some)
    return {name: ["batch", "length"] for name in ENTRANCE}, _head_outputs(graph, opened, head, x)


def _cells(graph: Graph, layer: Any, x: str, lengths: str) -> tuple[str, str]:
    """T B inputs -> T B width of all directions, and B width: where each direction ends."""
    ways, order = len(layer.directions), GATES[layer.cell]
    if layer.directions == (True,):
        raise UserError("a network that reads backwards alone cannot be written as ONNX")

    def ordered(tensor: torch.Tensor) -> torch.Tensor:
        return torch.cat([tensor.chunk(len(order))[gate] for gate in order])

    weights = [[ordered(tensor) for tensor in module._flat_weights] for module in layer.layers]
    inputs, back = (torch.stack([each[number] for each in weights]) for number in (0, 1))
    biases = torch.stack([torch.cat(each[2:]) for each in weights])
    graph.kept.append(layer)
    named = {"inputs": inputs, "back": back, "bias": biases}
    names = [graph.weight(id(layer), name, each) for name, each in named.items()]
    settings: dict[str, Any] = {"hidden_size": layer.width, "direction": "bidirectional" if ways > 1 else "forward"}
    settings |= {"linear_before_reset": 1} if layer.cell == "gru" else {}
    settings |= {"activations": [layer.activation.capitalize()] * ways} if layer.cell == "rnn" else {}
    made, ends, *_ = graph.op(
        layer.cell.upper(), x, *names, lengths, outputs=3 if layer.cell == "lstm" else 2, **settings
    )
    width = graph.constant([0, 0, ways * layer.width], np.int64)
    made = graph.op("Reshape", graph.op("Transpose", made, perm=[0, 2, 1, 3]), width)  # T D B W -> T B DW
    flat = graph.constant([0, ways * layer.width], np.int64)
    return made, graph.op("Reshape", graph.op("Transpose", ends, perm=[1, 0, 2]), flat)


def _mask(graph: Graph) -> str:
    """B T 1: 1 where a place holds a token."""
    mask = graph.op("Cast", "attention_mask", to=graph.onnx.TensorProto.FLOAT)
    return graph.op("Unsqueeze", mask, graph.constant([2], np.int64))


FAMILIES: dict[str, Callable[[Graph, LoadedModel, str | None], tuple[Sizes, Sizes]]] = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "albert", "distilbert", "gpt2", "openai-gpt"), _transformer),
    **dict.fromkeys(("lstm", "gru", "rnn"), _recurrent),
    "vectors": _vectors,
    "cnn": _cnn,
}
