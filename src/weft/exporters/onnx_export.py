"""Folders for ONNX Runtime: the graph of a network for one task, and what the folder says beside it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from weft.backends.onnx import GRAPH, OPSET, WORDS
from weft.checkpoint.card import GraphSettings
from weft.checkpoint.folder import LoadedModel, write_files
from weft.errors import UserError, refuse, shown
from weft.exporters.onnx_builder import FAR, FIRST, Graph, Precision, Ranges, cells, model_of
from weft.exporters.onnx_forecaster import write_forecaster
from weft.files import write_bytes
from weft.models.classifiers import sight
from weft.nn.heads import DeepLabelHead, MaskedWordHead, WordHead
from weft.nn.layer_choice import LayerChoice
from weft.nn.positions import alibi_slopes
from weft.nn.rows import Rows
from weft.tasks.registry import task_class
from weft.version import VERSION

BY_ROW = ("classify", "choose")  # heads with one output for a whole row


def _transformer(graph: Graph, opened: LoadedModel, head: str | None) -> str:
    """BERT and its relatives, and GPT: tables and layers."""
    network: Any = opened.network
    x = graph.table("input_ids", network.tokens)
    causal, by_row = opened.family.generates, head in BY_ROW
    if network.segments is not None and opened.config.segments > 1:
        table = graph.weight(network, "segments", network.segments.weight)
        x = graph.op("Add", x, graph.op("Gather", table, "token_type_ids"))
    elif network.segments is not None:
        x = graph.op("Add", x, graph.weight(network, "segment", network.segments.weight[0]))
    if network.languages is not None:  # every text is in the language of the config
        x = graph.op("Add", x, graph.weight(network, "language", network.languages.weight[opened.config.language]))
    x = _positions(graph, x, network.positions)
    if network.embedding_norm is not None:
        x = graph.norm(x, network.embedding_norm)
    x = graph.op("Reshape", x, graph.ints(-1, network.tokens.weight.shape[1]))  # N W: the rows below each other
    if network.widened is not None:
        x = graph.linear(x, network.widened)
    # B 1 1 T: 0 where a key is a token, and far below any score where it is none.
    gone = graph.op("Sub", graph.constant(1.0), graph.floats("attention_mask"))
    padding = graph.op("Unsqueeze", graph.op("Mul", gone, graph.constant(FAR)), graph.ints(1, 2))
    bias = _bias(graph, padding, network.positions, causal)
    layers = list(network.layers) * (opened.config.layers // len(network.layers))  # ALBERT repeats its one layer
    place = FIRST
    if causal:  # B 1: the place of each row's last token
        place = graph.op("ReduceMax", graph.op("Mul", _places(graph), "attention_mask"), graph.ints(1), keepdims=1)
    # Of the last layer a label needs one place only, and all that the others would cost is saved.
    alone = by_row and network.mix is None and network.positions.kind != "alibi"
    seen = [x]
    for number, layer in enumerate(layers):
        one = alone and number == len(layers) - 1
        x = graph.layer(x, layer, padding if one and causal else bias, place if one else None)
        seen.append(x)
    x = graph.norm(x, network.final_norm)
    if network.mix is not None:
        x = _chosen(graph, [*seen[:-1], x], network.mix.choice)
    if not by_row:
        return graph.dense(x)  # B T W
    return x if alone else graph.pick(x, place)  # B W


def _chosen(graph: Graph, seen: list[str], choice: LayerChoice) -> str:
    """N W: what the heads read of the hidden states."""
    states, weights = [seen[number] for number in choice.numbers], choice.weights
    if choice.how == "concat":
        return graph.op("Concat", *states, axis=-1)
    if choice.how == "mean":
        weights = (1 / len(states),) * len(states)
    if not weights:
        return graph.op("Sum", *states)
    pairs = zip(states, weights, strict=True)
    return graph.op("Sum", *(graph.op("Mul", state, graph.constant(weight)) for state, weight in pairs))


def _head_outputs(graph: Graph, opened: LoadedModel, head: str | None, x: str) -> dict[str, list[Any]]:
    """The head, and its outputs by their usual names."""
    network: Any = opened.network
    if head in (None, "words"):
        graph.named("last_hidden_state", x)
        return {"last_hidden_state": ["batch", "length", "width"]}
    module = network.heads[head]
    if head in BY_ROW and network.pooler is not None and head in network.POOLED:
        x = graph.op("Tanh", graph.linear(x, network.pooler.dense, small=True))
    if isinstance(module, DeepLabelHead):
        x = graph.activate(graph.linear(x, module.dense, small=True), module.activation)
    x = graph.linear(x, module.output, small=True)
    if head == "answer":
        ends = graph.op("Split", x, outputs=2, axis=-1, num_outputs=2)
        for name, end in zip(("start_logits", "end_logits"), ends, strict=True):
            graph.named(name, graph.op("Squeeze", end, graph.ints(-1)))
        return {"start_logits": ["batch", "length"], "end_logits": ["batch", "length"]}
    graph.named("logits", x)
    return {"logits": ["batch", *(["length"] if head == "tag" else []), opened.heads[head]]}


def _positions(graph: Graph, x: str, positions: Any) -> str:
    """B T W with what a place adds to its token."""
    if positions.kind in ("alibi", "none"):
        return x
    refuse((positions.kind == "rotary", "a model with rotary positions cannot be written as ONNX yet"))
    if positions.kind == "learned":
        table = positions.table.weight
    else:
        table = positions._waves(torch.arange(positions.context), torch.float32)
    if not positions.unused:
        ends = [graph.ints(0), graph.op("Shape", "input_ids", start=1, end=2), graph.ints(0)]
        return graph.op("Add", x, graph.op("Slice", graph.weight(positions, "places", table), *ends))
    # RoBERTa counts the tokens that are none of the padding, from the row after the padding's.
    counted = graph.op("CumSum", "attention_mask", graph.constant(1, np.int64))
    counted = graph.op("Mul", counted, "attention_mask")
    places = graph.op("Add", counted, graph.constant(positions.unused - 1, np.int64))
    return graph.op("Add", x, graph.op("Gather", graph.weight(positions, "places", table), places))


def _bias(graph: Graph, padding: str, positions: Any, causal: bool) -> str:
    """B or 1, H or 1, T T: what is added to the scores of all layers."""
    if not causal and positions.kind != "alibi":
        return padding
    every = graph.floats(_places(graph))
    columns = graph.op("Unsqueeze", every, graph.ints(0))
    ahead = graph.op("Sub", columns, graph.op("Unsqueeze", every, graph.ints(1)))  # T T
    if causal:
        later = graph.op("Clip", ahead, graph.constant(0.0), graph.constant(1.0))
        padding = graph.op("Add", padding, graph.op("Mul", later, graph.constant(FAR)))
    if positions.kind == "alibi":
        slopes = -alibi_slopes(positions.heads).numpy()[:, None, None]
        padding = graph.op("Add", padding, graph.op("Mul", graph.op("Abs", ahead), graph.constant(slopes)))
    return padding


def _places(graph: Graph) -> str:
    """T: the numbers of all places of a row."""
    length = graph.op("Squeeze", graph.op("Shape", "input_ids", start=1, end=2), graph.ints(0))
    return graph.op("Range", graph.constant(0, np.int64), length, graph.constant(1, np.int64))


def _mean(graph: Graph, x: str, mask: str) -> str:
    """B T W -> B W: the mean over the tokens of each row."""
    count = graph.op("ReduceSum", mask, graph.ints(1), keepdims=0)
    x = graph.op("ReduceSum", graph.op("Mul", x, mask), graph.ints(1), keepdims=0)
    return graph.op("Div", x, graph.op("Max", count, graph.constant(1.0)))


def words_of(graph: Graph, network: Any) -> None:
    """The word head as a graph of its own, so that words are scored only at the places asked for."""
    head = network.heads["words"]
    if not isinstance(head, MaskedWordHead | WordHead):
        raise UserError("a word head of this kind cannot be written as ONNX")
    x = "hidden_states"
    if isinstance(head, MaskedWordHead):
        x = graph.norm(graph.activate(graph.linear(x, head.dense, small=True), head.activation), head.norm)
    source = network.tokens if head.decoder is None else head.decoder
    bias = head.bias if head.decoder is None or head.decoder.bias is None else head.decoder.bias
    graph.named("logits", graph.map(x, source, source.weight, bias, "words", False))


def _vectors(graph: Graph, opened: LoadedModel, head: str | None) -> str:
    """Averaged word vectors."""
    x = graph.table("input_ids", opened.network.tokens)
    return x if head is None else _mean(graph, x, _mask(graph))


def _cnn(graph: Graph, opened: LoadedModel, head: str | None) -> str:
    """Kim's convolutions: a token and its neighbors, and of each feature map the largest."""
    network: Any = opened.network
    x = graph.table("input_ids", network.tokens)
    if opened.config.both:
        fixed = graph.op("Gather", graph.weight(network, "fixed", network.fixed), "input_ids")
        x = graph.op("Concat", x, fixed, axis=-1)
    mask = _mask(graph)
    x = graph.op("Transpose", graph.op("Mul", x, mask), perm=[0, 2, 1])  # B W T, nothing beyond the ends
    maps = []
    for module, kernel in zip(network.convolutions, opened.config.kernels, strict=True):
        weight = module.weight.unflatten(1, (kernel, network.channels)).transpose(1, 2)  # maps W K
        left, right = sight(kernel)
        names = graph.weight(module, "kernel", weight), graph.weight(module, "bias", module.bias)
        maps.append(graph.op("Conv", x, *names, kernel_shape=[kernel], pads=[-left, right]))
    x = graph.op("Transpose", graph.op("Relu", graph.op("Concat", *maps, axis=1)), perm=[0, 2, 1])
    if head is not None:  # nothing is below 0, so what is no token can be 0
        x = graph.op("ReduceMax", graph.op("Mul", x, mask), graph.ints(1), keepdims=0)
    return x


def _recurrent(graph: Graph, opened: LoadedModel, head: str | None) -> str:
    """LSTM, GRU and the plain cell, one way or both."""
    network, pooling = opened.network, opened.config.pooling
    x = graph.table("input_ids", network.tokens)
    x = graph.op("Transpose", x, perm=[1, 0, 2])  # T B W
    lengths = graph.op("ReduceSum", "attention_mask", graph.ints(1), keepdims=0)
    lengths = graph.op("Cast", graph.op("Max", lengths, graph.constant(1, np.int64)), to=graph.onnx.TensorProto.INT32)
    last = ""
    for layer in network.layers:
        x, last = cells(graph, layer, list(layer.layers), x, lengths)
    x = graph.op("Transpose", x, perm=[1, 0, 2])  # B T W
    mask = _mask(graph)
    if head != "classify":
        return x
    some = graph.op("ReduceMax", mask, graph.ints(1), keepdims=0)  # B 1: whether there is a token
    if pooling == "mean":
        last = _mean(graph, x, mask)
    elif pooling == "max":
        gone = graph.op("Mul", graph.op("Sub", graph.constant(1.0), mask), graph.constant(FAR))
        last = graph.op("ReduceMax", graph.op("Add", x, gone), graph.ints(1), keepdims=0)
    elif pooling == "attention":
        pooler = network.pooler
        keys = graph.op("Tanh", graph.linear(x, pooler.dense, small=True))
        scores = graph.op("MatMul", keys, graph.weight(pooler, "query", pooler.query[:, None]))  # B T 1
        gone = graph.op("Mul", graph.op("Sub", graph.constant(1.0), mask), graph.constant(FAR))
        weights = graph.op("Softmax", graph.op("Add", scores, gone), axis=1)
        last = graph.op("ReduceSum", graph.op("Mul", x, weights), graph.ints(1), keepdims=0)
    return graph.op("Mul", last, some)


def _mask(graph: Graph) -> str:
    """B T 1: 1 where a place holds a token."""
    return graph.op("Unsqueeze", graph.floats("attention_mask"), graph.ints(2))


# What the head reads: of each token, or of each row for `classify`.
FAMILIES: dict[str, Callable[[Graph, LoadedModel, str | None], str]] = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "albert", "distilbert", "gpt2", "openai-gpt"), _transformer),
    **dict.fromkeys(("xlm", "xlm-clm"), _transformer),
    **dict.fromkeys(("lstm", "gru", "rnn"), _recurrent),
    "vectors": _vectors,
    "cnn": _cnn,
}


HEADS = (None, "classify", "choose", "tag", "answer", "words", "forecast")  # that a graph can end in


def write_onnx(
    inside: Path, opened: LoadedModel, task: str, precision: Precision = "fp32", ranges: Ranges | None = None
) -> None:
    """The files of an ONNX folder, for this task, one by one."""
    kind, name = task_class(task), opened.family.name
    head = None if kind.embeds else kind.head  # None: the hidden states themselves
    writes = kind.writes or head not in HEADS or (head == "words" and opened.family.generates)
    refuse(
        (writes, f"a model for {task} cannot be written as ONNX; ctranslate2 is for models that generate"),
        (
            opened.network.memory is not None,
            f"{name} cannot be written as ONNX: its positions are distances",
        ),
        (
            "spans" in opened.heads,
            f"the head spans of {name} cannot be written as ONNX: weft finetune --task answer first",
        ),
        (not opened.network.COMPILES, f"{name} cannot be written as ONNX: its tokens decide how many words it reads"),
        (head is not None and head not in opened.heads, f"this {name} model has no head for {task}: finetune it first"),
    )
    plain: Any = precision.partition("-")[0]
    card = replace(opened.card, task=task, backend="onnx", precision=plain, weft=VERSION)
    heads = {} if head is None else {head: opened.heads[head]}
    card = replace(card, graph=graph_settings(opened, heads))
    write_files(inside, replace(opened, heads=heads, card=card), weights=False)
    width, outputs = opened.config.width, opened.config.vocabulary
    if opened.family.series:
        write_forecaster(inside, opened, precision)
        return
    if name in FAMILIES:
        graph = Graph(precision, ranges or {})
        two = opened.network.segments is not None and opened.config.segments > 1
        names = ["input_ids", "attention_mask", *(["token_type_ids"] if two else [])]
        inputs = {each: ["batch", "length"] for each in names}
        x = FAMILIES[name](graph, opened, head)
        graph.write(inside / GRAPH, inputs, _head_outputs(graph, opened, head, x))
        if head == "words":
            words = Graph(precision, ranges or {})
            words_of(words, opened.network)
            words.write(inside / WORDS, {"hidden_states": ["places", width]}, {"logits": ["places", outputs]})
        return
    refuse((precision != "fp32", f"a {name} model is exported by torch, in fp32 only"))
    names = ["input_ids", *(["token_type_ids"] if opened.config.segments > 1 else [])]
    gives = {"answer": ["start_logits", "end_logits"], None: ["last_hidden_state"], "words": ["last_hidden_state"]}
    tokens = {each: torch.zeros(3, 5, dtype=torch.int64) for each in names}  # one tensor twice would be one input
    _write_traced(inside / GRAPH, name, DenseNetwork(opened.network, head), tokens, 2, gives.get(head, ["logits"]))
    if head == "words":
        hidden = {"hidden_states": torch.zeros(3, width)}
        _write_traced(inside / WORDS, name, DenseNetwork(opened.network, head), hidden, 1, ["logits"])


def graph_settings(opened: LoadedModel, heads: dict[str, int]) -> GraphSettings | None:
    """What a folder says so that its graph can be run without torch; None where that takes more."""
    c, family = opened.config, opened.family
    if family.series or c.languages or opened.tokenizer is None:
        return None
    sizes = {"context": c.context, "segments": c.segments, "width": c.width, "heads": c.heads}
    return GraphSettings(
        family=family.name, one_way=family.one_way, vocabulary=c.vocabulary, outputs=heads, row=family.row, **sizes
    )


def ranges_of(opened: LoadedModel, read: Callable[[], Any]) -> Ranges:
    """Between which numbers the inputs of every linear map lie while `read` runs."""
    ranges: dict[nn.Module, tuple[float, float]] = {}

    def observe(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        low, high = (float(end) for end in inputs[0].detach().aminmax())
        before = ranges.get(module, (low, high))
        ranges[module] = min(low, before[0]), max(high, before[1])

    with ExitStack() as hooks:
        for module in opened.network.modules():
            if isinstance(module, nn.Linear):
                hooks.enter_context(module.register_forward_pre_hook(observe))
        read()
    return ranges


# Settings that it writes out though they are the usual ones; no size here is 0, so `allowzero` says nothing.
USUAL = ("allowzero", "input_forget", "layout", "noop_with_empty_axes", "stash_type")


class EvenRows(Rows):
    """Rows of equal length, worked out by operators that ONNX has."""

    def numbers(self, total: int) -> Tensor:
        return torch.arange(self.count)[:, None].expand(self.count, self.longest).flatten()

    def places(self, total: int) -> Tensor:
        return torch.arange(self.longest).expand(self.count, self.longest).flatten()


class DenseNetwork(nn.Module):
    """A network with its head over a rectangle of tokens: B T -> the output of the head, or the states B T W."""

    def __init__(self, network: nn.Module, head: str | None) -> None:
        super().__init__()
        self.network, self.head = network, head

    def forward(self, input_ids: Tensor, token_type_ids: Tensor | None = None) -> Tensor | tuple[Tensor, ...]:
        if input_ids.is_floating_point():  # hidden states: the word head alone, at the places asked for
            return self.network.words(input_ids)  # type: ignore[operator]
        size = input_ids.shape
        rows = EvenRows(torch.arange(size[0] + 1) * size[1], size[1])
        segments = None if token_type_ids is None else token_type_ids.flatten()
        x = self.network(input_ids.flatten(), rows, segments)
        if self.head in (None, "words"):
            return x.view(*size, -1)
        logits: Tensor = self.network.logits(self.head, x, rows)  # type: ignore[operator]
        if self.head in BY_ROW:
            return logits
        logits = logits.view(*size, -1)
        return logits.unbind(-1) if self.head == "answer" else logits


def _write_traced(
    path: Path, family: str, graph: nn.Module, inputs: dict[str, Tensor], dynamic: int, outputs: list[str]
) -> None:
    """Let torch export a module whose inputs have so many dimensions of any size, the first ones."""
    try:
        import onnx.reference
        import onnxscript  # noqa: F401  (torch's exporter writes with it)
    except ImportError:
        needs = "which needs the package onnxscript: pip install 'weft[fast-cpu]'"
        raise UserError(f"a {family} model is exported by torch, {needs}") from None
    options: dict[str, Any] = {"input_names": list(inputs), "output_names": outputs, "opset_version": OPSET}
    sizes = tuple(dict.fromkeys(range(dynamic), torch.export.Dim.DYNAMIC) for _ in inputs)
    options |= {"dynamo": True, "dynamic_shapes": sizes, "verbose": False}
    tensors = tuple(inputs.values())
    # They tell of packages that nobody needs here, and of constants that stay as they are.
    levels = {log: log.level for log in map(logging.getLogger, ("torch.onnx", "onnxscript"))}
    try:
        for log in levels:
            log.setLevel(logging.ERROR)
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            program: Any = torch.onnx.export(graph.eval(), tensors, **options)
    except Exception as error:  # of many kinds: whatever the network does that an ONNX graph cannot
        lines = [line.partition(": ")[2] for line in str(error).splitlines() if line.startswith("<class")]
        reason = shown(lines[0] if lines else str(error), 160)
        raise UserError(f"torch cannot write a {family} model as ONNX: {reason}") from None
    finally:
        for log, level in levels.items():
            log.setLevel(level)
    write_bytes(path, _plain(onnx, program.model_proto).SerializeToString())


def _plain(onnx: Any, traced: Any) -> Any:
    """The graph in the form that the loader takes: our version of the format, no notes, tensors as raw bytes."""
    graph = traced.graph
    nodes, arrays = [], {tensor.name: _clipped(onnx.numpy_helper.to_array(tensor)) for tensor in graph.initializer}
    for node in _sizes_of_inputs(onnx, graph):
        kind, inputs, settings = node.op_type, list(node.input), {each.name: each for each in node.attribute}
        if kind == "ConstantOfShape":  # its value is a tensor, which is no setting that the loader takes
            value = settings.pop("value", None)
            filler = np.zeros(1, np.float32) if value is None else onnx.numpy_helper.to_array(value.t)
            kind, inputs = "Expand", [f"{node.output[0]} value", inputs[0]]
            arrays[inputs[0]] = _clipped(filler.reshape(()))
        plain = onnx.helper.make_node(kind, inputs, list(node.output), domain=node.domain)
        plain.attribute.extend(each for name, each in settings.items() if name not in USUAL)
        if not all(name in arrays for name in inputs):
            nodes.append(plain)
            continue
        # It makes a constant of constants, which the loader would refuse.
        part = onnx.helper.make_graph([plain], "part", [], [onnx.ValueInfoProto(name=name) for name in plain.output])
        part.initializer.extend(onnx.numpy_helper.from_array(arrays[name], name) for name in inputs)
        alone = onnx.helper.make_model(part, opset_imports=[onnx.helper.make_opsetid("", OPSET)])
        arrays |= dict(zip(plain.output, onnx.reference.ReferenceEvaluator(alone).run(None, {}), strict=True))
    used = {name for node in nodes for name in node.input}
    stored = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items() if name in used]
    ends = [
        [onnx.helper.make_tensor_value_info(each.name, each.type.tensor_type.elem_type, _shape(each)) for each in side]
        for side in (graph.input, graph.output)
    ]
    return model_of(onnx, nodes, ends[0], ends[1], stored)


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


def _clipped(array: Any) -> Any:
    """Constants that the loader takes: the farthest number in place of infinity, which masks as well."""
    return np.clip(array, np.finfo(array.dtype).min, np.finfo(array.dtype).max) if array.dtype.kind == "f" else array


def _shape(value: Any) -> list[int | str]:
    sizes = value.type.tensor_type.shape.dim
    return [size.dim_value if size.HasField("dim_value") else size.dim_param for size in sizes]
