"""Our networks as ONNX graphs with a dense entrance: rows of one length, a mask, and both of any size.

B: rows; T: places; W: width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from weft.backends.onnx import GRAPH, WORDS
from weft.checkpoint.folder import Opened, write_files
from weft.compress.graph import FAR, FIRST, Graph, Precision, Range
from weft.errors import UserError, listed
from weft.nn.heads import MaskedWords
from weft.nn.positions import alibi_slopes
from weft.version import VERSION

Sizes = Mapping[str, list[Any]]


def write_onnx(
    inside: Path,
    opened: Opened,
    task: str,
    precision: Precision = "fp32",
    ranges: Mapping[int, Range] | None = None,
) -> None:
    """The files of an ONNX folder, for this task, one by one."""
    told = exported_as(opened, task, precision)
    graph = Graph(precision, ranges)
    inputs, outputs = FAMILIES[opened.family.name](graph, opened, _head(opened, task))
    write_files(inside, told, weights=False)
    graph.write(inside / GRAPH, inputs, outputs)
    if "words" in told.heads:
        words = Graph(precision, ranges)
        _words(words, opened.network)
        width = ["places", opened.config.width]
        words.write(inside / WORDS, {"hidden_states": width}, {"logits": ["places", opened.config.vocabulary]})


def exported_as(opened: Opened, task: str, precision: str) -> Opened:
    """What an exported folder says of itself: the one head that it has, and what runs it."""
    if opened.family.name not in FAMILIES:
        raise UserError(f"a {opened.family.name} model cannot be written as ONNX; {listed(FAMILIES, 20)} can")
    head = _head(opened, task)
    if head is not None and head not in opened.heads:
        raise UserError(
            f"this {opened.family.name} model has no head for {task}; weft finetune --task {task} makes one"
        )
    heads = {} if head is None else {head: opened.heads[head]}
    plain: Any = precision.partition("-")[0]
    return replace(
        opened, heads=heads, card=replace(opened.card, task=task, backend="onnx", precision=plain, weft=VERSION)
    )


def _head(opened: Opened, task: str) -> str | None:
    """The head that a task reads; None: the states themselves."""
    heads = {"tag": "tag", "answer": "answer", "fill": "words", "embed": None, "rank": None, "central": None}
    heads |= dict.fromkeys(("classify", "multilabel", "regress", "pair"), "classify")
    if task not in heads or (task == "fill" and opened.family.speaks):
        raise UserError(f"a model for {task} cannot be written as ONNX; ctranslate2 is for models that write")
    return heads[task]


# -------------------------------------------------------------------------------------------------- encoders


def _transformer(graph: Graph, opened: Opened, head: str | None) -> tuple[Sizes, Sizes]:
    """BERT and its relatives, and GPT: tables, layers, head."""
    network: Any = opened.network
    inputs: dict[str, list[Any]] = {name: ["batch", "length"] for name in ("input_ids", "attention_mask")}
    x = graph.table("input_ids", network.tokens, network.tokens.weight)
    causal = opened.family.speaks
    if hasattr(network, "segments"):
        if opened.config.segments > 1:
            inputs["token_type_ids"] = ["batch", "length"]
            x = graph.op("Add", x, graph.op("Gather", graph.weight(id(network), "segments", network.segments.weight),
                                            "token_type_ids"))  # fmt: skip
        else:
            x = graph.op("Add", x, graph.weight(id(network), "segment", network.segments.weight[0]))
    x = _positions(graph, x, network.positions)
    if hasattr(network, "embedding_norm"):
        x = graph.norm(x, network.embedding_norm)
    if hasattr(network, "widened"):
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
    if by_row:
        x = graph.op("Squeeze", x if alone else graph.pick(x, place), graph.constant([1], np.int64))  # B W
    return inputs, _said(graph, opened, head, x)


def _said(graph: Graph, opened: Opened, head: str | None, x: str) -> Sizes:
    """The head, and what it gives by the names that others use."""
    network: Any = opened.network
    if head in (None, "words"):
        graph.named("last_hidden_state", x)
        return {"last_hidden_state": ["batch", "length", getattr(network, "features", opened.config.width)]}
    module = network.heads[head]
    if head == "classify" and getattr(network, "pooler", None) is not None and "classify" in network.POOLED:
        x = graph.op("Tanh", graph.linear(x, network.pooler.dense, small=True))
    if hasattr(module, "dense"):
        x = graph.activate(graph.linear(x, module.dense, small=True), getattr(module, "activation", "relu"))
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
    """B 1 1: the place of each row's last token."""
    length = graph.op("Squeeze", graph.op("Shape", "input_ids", start=1, end=2), graph.constant([0], np.int64))
    every = graph.op("Range", graph.constant(0, np.int64), length, graph.constant(1, np.int64))
    last = graph.op("ReduceMax", graph.op("Mul", every, "attention_mask"), graph.constant([1], np.int64), keepdims=1)
    return graph.op("Unsqueeze", last, graph.constant([2], np.int64))


def _mixed(graph: Graph, mix: Any, states: list[str]) -> str:
    """The learned mix of all layers."""
    shares = (mix.shares.softmax(0) * mix.scale).tolist()
    parts = [graph.op("Mul", state, graph.constant(share)) for state, share in zip(states, shares, strict=True)]
    return graph.op("Sum", *parts)


def _words(graph: Graph, network: Any) -> None:
    """The word head as a graph of its own, so that words are scored only at the places asked for."""
    head = network.heads["words"]
    if not isinstance(head, MaskedWords):
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


def _vectors(graph: Graph, opened: Opened, head: str | None) -> tuple[Sizes, Sizes]:
    """Averaged word vectors."""
    network: Any = opened.network
    x = graph.table("input_ids", network.tokens, network.tokens.weight)
    if head is not None:
        mask = graph.op("Cast", "attention_mask", to=graph.onnx.TensorProto.FLOAT)
        count = graph.op("ReduceSum", mask, graph.constant([1], np.int64), keepdims=1)
        x = graph.op("Mul", x, graph.op("Unsqueeze", mask, graph.constant([2], np.int64)))
        x = graph.op("ReduceSum", x, graph.constant([1], np.int64), keepdims=0)
        x = graph.op("Div", x, graph.op("Max", count, graph.constant(1.0)))
    return {name: ["batch", "length"] for name in ("input_ids", "attention_mask")}, _said(graph, opened, head, x)


FAMILIES: dict[str, Callable[[Graph, Opened, str | None], tuple[Sizes, Sizes]]] = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "albert", "distilbert", "gpt2", "openai-gpt"), _transformer),
    "vectors": _vectors,
}


def ranges_of(opened: Opened, read: Callable[[], Any]) -> dict[int, Range]:
    """Between which numbers the inputs of every linear map lie while `read` runs, by the map's id."""
    found: dict[int, Range] = {}

    def seen(module: nn.Module, given: tuple[Any, ...]) -> None:
        low, high = (float(end) for end in given[0].detach().aminmax())
        before = found.get(id(module), (low, high))
        found[id(module)] = min(low, before[0]), max(high, before[1])

    hooks = [m.register_forward_pre_hook(seen) for m in opened.network.modules() if isinstance(m, nn.Linear)]
    try:
        read()
    finally:
        for hook in hooks:
            hook.remove()
    return found
