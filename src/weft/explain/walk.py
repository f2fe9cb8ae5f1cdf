"""One self-attention head as a walk: every step from the embeddings to the next word, with this model's numbers.

The numbers are those that the network computes: hooks on its modules and the watcher of its attention record them.
T: tokens; W: width; D: width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from weft.errors import UserError
from weft.explain.walk_steps import Array, Walk
from weft.generation.sampling import RandomDraws, Sampling, choose
from weft.nn.attention import Attention, Sighting
from weft.nn.heads import DeepLabelHead, LabelHead, MaskedWordHead
from weft.nn.layers import Layer
from weft.nn.rows import Rows
from weft.tasks.forward import evaluating, framing_for, tokenizer_of
from weft.tasks.model import Model
from weft.text.windows import pieces, segments_of

MOST_TOKENS = 64
FAMILIES = ("albert", "bert", "distilbert", "gpt", "gpt2", "roberta", "t5", "transformer", "marian", "xlm-roberta")


class Recorder:
    """What modules read and gave in one pass: by module, a list of (inputs, output), one for each call."""

    def __init__(self) -> None:
        self.calls: dict[nn.Module, list[tuple[tuple[Any, ...], Any]]] = {}
        self.sightings: dict[nn.Module, list[Sighting]] = {}

    def output(self, module: nn.Module, call: int = 0) -> Array:
        return plain(self.calls[module][call][1])

    def inputs(self, module: nn.Module, call: int = 0) -> tuple[Any, ...]:
        return self.calls[module][call][0]

    def input(self, module: nn.Module, call: int = 0) -> Array:
        return plain(self.inputs(module, call)[0])


@contextmanager
def recorded(network: nn.Module, watched: Sequence[nn.Module] = ()) -> Iterator[Recorder]:
    """Record every module of a network, and the attention of those `watched`, without changing what it computes."""
    record, hooks = Recorder(), []

    def hook(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        record.calls.setdefault(module, []).append((inputs, output))

    def watcher(module: nn.Module) -> Callable[[Sighting], None]:
        return lambda sighting: record.sightings.setdefault(module, []).append(sighting)

    watching: list[Any] = list(watched)
    try:
        hooks = [module.register_forward_hook(hook) for module in network.modules()]
        for module in watching:
            module.watcher = watcher(module)
        with evaluating(network), torch.inference_mode():
            yield record
    finally:
        for handle in hooks:
            handle.remove()
        for module in watching:
            module.watcher = None


def plain(x: Tensor) -> Array:
    """An array on the CPU, in float32 at least."""
    x = x.detach().cpu()
    return (x.float() if x.dtype in (torch.float16, torch.bfloat16) else x).numpy()


def tokens_of(model: Model, text: str) -> tuple[Tensor, Rows, Tensor | None, list[str]]:
    """A text as the network reads it, and its tokens as strings."""
    tokenizer = tokenizer_of(model.opened)
    if model.opened.family.reads:
        ids = list(tokenizer.ids([text])[0])
        segments = None
    else:
        framing = framing_for(model.opened)
        windows = pieces(framing, tokenizer.ids([text], specials=False)[0], None)
        if len(windows) > 1:
            raise UserError(f"the text is longer than a window of {framing.length} tokens")
        ids = list(windows[0].tokens)
        marks = framing.marks(False)
        segments = None
        if marks:
            borders = np.array([windows[0].border])
            segments = torch.from_numpy(segments_of(borders, np.array([len(ids)]), marks)).to(model.opened.device)
    if not ids:
        raise UserError("the text has no tokens")
    if len(ids) > MOST_TOKENS:
        raise UserError(f"a walk shows texts of up to {MOST_TOKENS} tokens; this one has {len(ids)}")
    device = model.opened.device
    return torch.tensor(ids, device=device), Rows.of([len(ids)], device), segments, labels_of(model, ids)


def labels_of(model: Model, ids: Sequence[int], target: bool = False) -> list[str]:
    """Tokens as strings."""
    tokenizer = (model.target_tokenizer if target else None) or tokenizer_of(model.opened)
    return [tokenizer.token(int(id)) or f"<{id}>" for id in ids]


def attention_walk(
    model: Model,
    text: str,
    layer: int = 0,
    head: int = 0,
    *,
    temperature: float | None = None,
    top_k: int = 10,
    seed: int = 0,
) -> Walk:
    """The walk of one head for a text; the next token is the best one, or drawn at a temperature."""
    network: Any = model.network
    layers, turns = stack_of(model)
    if not 0 <= layer < len(turns):
        raise UserError(f"layer {layer}: this model has layers 0 to {len(turns) - 1}")
    tokens, rows, segments, names = tokens_of(model, text)
    chosen = layers[turns[layer]]
    if not 0 <= head < chosen.attention.heads:
        raise UserError(f"head {head}: this layer has heads 0 to {chosen.attention.heads - 1}")
    logits = None
    with recorded(network, [chosen.attention]) as record:
        if model.opened.family.reads:
            network.encode(_ragged(tokens, rows))
        else:
            hidden = network(tokens, rows, segments)
            task_head = "words" if "words" in network.heads else model.task_object.head
            if task_head in network.heads:
                logits = plain(network.logits(task_head, hidden, rows))
    title = f"{' '.join(text.split())[:60]}: layer {layer}, head {head} of {model.opened.family.name}"
    walk = Walk(
        title,
        f"{len(names)} tokens, {len(turns)} layers, width {model.config.width}. Every number is this model's own.",
    )
    call = [n for n, number in enumerate(turns) if number == turns[layer]].index(layer)
    steps = HeadWalk(walk, model, record, names)
    entry = steps.embeddings(tokens, rows, segments)
    steps.layer(chosen, call, layer, head, entry)
    steps.ending(layers, turns, layer)
    if logits is not None:
        steps.prediction(logits, tokens, temperature, top_k, seed)
    return walk


def _ragged(tokens: Tensor, rows: Rows) -> Any:
    from weft.nn.rows import Ragged

    return Ragged(tokens, rows)


def stack_of(model: Model) -> tuple[list[Any], list[int]]:
    """The layers of the stack that reads, and which of them is read at each turn (ALBERT reads one again and again)."""
    family, network = model.opened.family, model.network
    if model.opened.exported:
        raise UserError("an exported model shows no steps: give the folder that it was exported from")
    layers: list[Any] = list(network.encoder if family.reads and network.encoder is not None else network.layers)  # type: ignore[arg-type, union-attr]
    plain_layers = bool(layers) and all(
        isinstance(layer, Layer) and type(layer.attention) is Attention for layer in layers
    )
    if not plain_layers:
        raise UserError(
            f"{family.name} has no plain self-attention to walk through; this works for {', '.join(FAMILIES)}"
        )
    count = model.config.layers
    return layers, list(range(count)) if len(layers) == count else [0] * count


class HeadWalk:
    """The steps of one walk, from what was recorded."""

    def __init__(self, walk: Walk, model: Model, record: Recorder, names: list[str]) -> None:
        self.walk, self.model, self.record, self.names = walk, model, record, names
        self.network: Any = model.network
        self.last = ""  # the matrix that the next step reads

    def embeddings(self, tokens: Tensor, rows: Rows, segments: Tensor | None) -> str:
        """Token vectors, positions, segments and their norm; the id of what the first layer reads."""
        walk, network, names = self.walk, self.network, self.names
        reads = self.model.opened.family.reads
        table = network.source_tokens if reads and network.source_tokens is not None else network.tokens
        own = self.record.output(table)
        used = list(dict.fromkeys(tokens.tolist()))
        rows_shown = plain(table.weight[torch.tensor(used, device=table.weight.device)])
        walk.add("table", "E", rows_shown, labels_of(self.model, used), shape=tuple(table.weight.shape))
        indices = [used.index(token) for token in tokens.tolist()]
        last = walk.add("tokens", "Tokens", own, names, kind="row", left="table", indices=indices)
        walk.step(
            "Embeddings",
            f"Each token is a row of the embedding table E, which has {table.weight.shape[0]:,} rows. "
            "The page holds the rows of this text.",
            "x_i = E[token_i]",
            ["table", "→", "tokens"],
        )
        if (
            reads
            and self.model.config.has("scaled")
            and self.model.opened.family.name != "t5"
            and self.model.config.scaled
        ):
            factor = self.model.config.width**0.5
            last = self._scaled(last, factor)
        if segments is not None or network.segments is not None:
            last = self._segments(last, segments)
        if self.model.opened.family.name != "t5":
            last = self._positions(last, rows)
        if network.embedding_norm is not None:
            last = self.norm("embedding_norm", network.embedding_norm, 0, last, "Embedding norm")
        if network.widened is not None:
            last = self.product("widened", network.widened, 0, last, "x", "W^{wide}")
            walk.step(
                "Widen",
                "A linear map brings the embeddings to the width of the layers.",
                "x W^{wide}",
                self._shown("widened"),
            )
        self.last = last
        return last

    def _scaled(self, last: str, factor: float) -> str:
        values = self.walk.matrices[last].values * factor
        self.walk.add("scaled", "√W x", values, self.names, kind="scale", left=last, factor=factor)
        self.walk.step(
            "Scale", "The Transformer multiplies token vectors by the root of the width.", "x √W", [last, "→", "scaled"]
        )
        return "scaled"

    def _segments(self, last: str, segments: Tensor | None) -> str:
        network, walk = self.network, self.walk
        if network.segments is None:
            values = plain(network.tokens(segments))
        elif segments is None or self.model.config.segments == 1:
            values = plain(network.segments.weight[0].expand(len(self.names), -1))
        else:
            values = plain(network.segments(segments))
        walk.add("segments", "Segments", values, self.names)
        total = walk.matrices[last].values + values
        walk.add("with_segments", "x + segments", total, self.names, kind="add", left=last, right="segments")
        walk.step(
            "Segments",
            "A learned vector tells the first text of a pair from the second.",
            "x + s",
            [last, "+", "segments", "=", "with_segments"],
        )
        return "with_segments"

    def _positions(self, last: str, rows: Rows) -> str:
        network, walk = self.network, self.walk
        count = len(self.names)
        before = torch.as_tensor(walk.matrices[last].values, device=rows.starts.device)
        places = network.positions.places(rows, count, None)
        with torch.inference_mode():
            values = plain(network.positions.add(torch.zeros_like(before), places))
        if not values.any():
            walk.step(
                "Positions",
                f"Positions of kind {network.positions.kind} are not added to the tokens: the attention gets them.",
                "",
                [last],
            )
            return last
        # What the dropout after it reads is the sum that the network itself computed.
        after = network.embedding_norm if network.embedding_norm is not None else network.dropout
        walk.add("positions", "Positions", values, [f"{n}" for n in range(count)])
        walk.add(
            "placed", "x + positions", self.record.input(after), self.names, kind="add", left=last, right="positions"
        )
        walk.step(
            "Positions",
            "Attention does not see the order of tokens, so each place has a vector of its own, which is added.",
            "x_i + p_i",
            [last, "+", "positions", "=", "placed"],
        )
        return "placed"

    def _shown(self, id: str) -> list[str]:
        made = self.walk.matrices[id].made_from or {}
        return [made["left"], "×", made["right"], "=", id]

    def product(self, id: str, linear: Any, call: int, left: str, name: str, weight: str, bias: str = "b") -> str:
        """What a linear map gave, with its weights."""
        walk = self.walk
        walk.weights(f"{id}_weights", weight, plain(linear.weight).T)
        if linear.bias is not None:
            walk.add(f"{id}_bias", bias, plain(linear.bias)[None], [bias])
        with_bias = f"{id}_bias" if linear.bias is not None else None
        return walk.add(
            id,
            name,
            self.record.output(linear, call),
            self.walk.matrices[left].rows,
            kind="product",
            left=left,
            right=f"{id}_weights",
            bias=with_bias,
        )

    def norm(self, id: str, module: Any, call: int, left: str, title: str) -> str:
        """A layer norm or RMS norm, with the mean and variance of each token in its details."""
        walk, rms = self.walk, isinstance(module, nn.RMSNorm)
        values = np.asarray(walk.matrices[left].values, dtype=np.float64)
        names = walk.matrices[left].rows
        mean, variance = values.mean(-1), (values**2).mean(-1) if rms else values.var(-1)
        columns = ["mean square"] if rms else ["mean", "variance"]
        statistics = variance[:, None] if rms else np.stack([mean, variance], -1)
        walk.add(
            f"{id}_statistics", "mean square" if rms else "mean and variance", statistics, names, columns, digits=4
        )
        walk.add(f"{id}_gain", "gain", plain(module.weight)[None], ["gain"])
        bias = None
        if not rms and module.bias is not None:
            bias = walk.add(f"{id}_bias", "bias", plain(module.bias)[None], ["bias"])
        epsilon = float(module.eps)
        made: dict[str, Any] = {"kind": "norm", "left": left, "gain": f"{id}_gain", "bias": bias, "epsilon": epsilon}
        walk.add(id, "norm(x)", self.record.output(module, call), names, rms=True if rms else None, **made)
        inside = [f"{id}_statistics", f"{id}_gain", *([bias] if bias else [])]
        from weft.explain.walk_steps import WalkStep

        detail = WalkStep(
            "Open the norm: each token's mean and variance, gain and bias",
            f"Mean and variance are of one token's {values.shape[1]} numbers; gain and bias are learned, one for each column. "
            f"epsilon is {epsilon:g}.",
            "x / √(mean(x^2) + ε) · gain" if rms else "(x − mean) / √(variance + ε) · gain + bias",
            inside,
        )
        text = (
            "Each token's numbers are divided by their root mean square."
            if rms
            else "Each token's numbers are shifted and scaled to mean 0 and variance 1, then by a learned gain and bias."
        )
        walk.step(title, text, "norm(x)", [left, "→", id], details=[detail])
        return id

    def layer(self, layer: Layer, call: int, number: int, head: int, entry: str) -> None:
        """Every step of one layer; what it reads is the embeddings or what the layers below made."""
        walk = self.walk
        given = self.record.input(layer, call)
        if number:
            entry = walk.add("entry", "x", given, self.names)
            walk.step(
                f"Layers 0 to {number - 1}" if number > 1 else "Layer 0",
                f"The layers below do the same as this one will, with weights of their own. This is what layer {number} reads.",
                "",
                [entry],
            )
        x = entry
        if layer.norm_before:
            x = self.norm("attention_norm", layer.attention_norm, call, entry, "Norm before attention")
        mixed = self._attention(layer.attention, call, head, x, layer, number)
        added = walk.matrices[entry].values + walk.matrices[mixed].values
        if not layer.norm_before:
            added = self.record.input(layer.attention_norm, call)
        walk.add("added", "x + attention", added, self.names, kind="add", left=entry, right=mixed)
        walk.step(
            "Add",
            "What attention made is added to what the layer had read: a residual connection.",
            "x + attention(x)",
            [entry, "+", mixed, "=", "added"],
        )
        x = "added"
        if not layer.norm_before:
            x = self.norm("attention_norm", layer.attention_norm, call, "added", "Norm after attention")
        residual = x
        if layer.norm_before:
            x = self.norm(
                "feedforward_norm", layer.feedforward_norm, call, "added", "Norm before the feed-forward network"
            )
        self._feedforward(layer.feedforward, call, x)
        output = (
            self.record.output(layer, call) if layer.norm_before else self.record.input(layer.feedforward_norm, call)
        )
        walk.add("layer_sum", "x + feed-forward", output, self.names, kind="add", left=residual, right="down")
        walk.step("Add", "A second residual connection.", "x + FFN(x)", [residual, "+", "down", "=", "layer_sum"])
        self.last = "layer_sum"
        if not layer.norm_before:
            self.last = self.norm(
                "feedforward_norm", layer.feedforward_norm, call, "layer_sum", "Norm after the feed-forward network"
            )

    def _attention(self, attention: Any, call: int, head: int, x: str, layer: Layer, number: int) -> str:
        """Queries, keys and values of one head, its weights, and the output of all heads."""
        walk, names, record = self.walk, self.names, self.record
        sighting = record.sightings[attention][call]
        size, heads = attention.head_width, attention.heads
        weight, bias = plain(attention.qkv.weight), attention.qkv.bias
        raw = record.output(attention.qkv, call)
        for part, letter in enumerate("QKV"):
            first = (part * heads + head) * size
            walk.weights(f"w{letter}", f"W^{letter}", weight[first : first + size].T)
            if bias is not None:
                walk.add(f"b{letter}", f"b^{letter}", plain(bias)[None, first : first + size], ["b"])
            walk.add(
                letter,
                letter,
                raw[:, first : first + size],
                names,
                kind="product",
                left=x,
                right=f"w{letter}",
                bias=f"b{letter}" if bias is not None else None,
            )
            what = {
                "Q": "What each token asks for",
                "K": "What each token offers to be asked by",
                "V": "What each token hands over",
            }[letter]
            walk.step(
                f"W^{letter}".replace("^", " "),
                f"{what}: {'queries' if letter == 'Q' else 'keys' if letter == 'K' else 'values'} of head {head}.",
                f"{letter} = x W^{letter}" + (f" + b^{letter}" if bias is not None else ""),
                [x, "×", f"w{letter}", "=", letter],
            )
        query, key = "Q", "K"
        turns = record.inputs(layer, call)[3] if len(record.inputs(layer, call)) > 3 else None
        if turns is not None:
            query = walk.add("Qr", "Q turned", plain(sighting.query[:, head]), names)
            key = walk.add("Kr", "K turned", plain(sighting.key[:, head]), names)
            walk.step(
                "Rotary positions",
                "Queries and keys are turned by angles that grow with their places.",
                "",
                ["Q", "→", "Qr", "K", "→", "Kr"],
            )
        return self._weights(attention, call, head, sighting, query, key, layer)

    def _weights(
        self, attention: Any, call: int, head: int, sighting: Sighting, query: str, key: str, layer: Layer
    ) -> str:
        walk, names = self.walk, self.names
        size, count = attention.head_width, len(names)
        scores = walk.matrices[query].values @ walk.matrices[key].values.T
        walk.add("scores", "QK^⊤", scores, names, names, kind="product", left=query, right=key, transpose=True)
        walk.step(
            "Logits",
            "Each query times each key: how well they fit. A row for each query.",
            "Q K^⊤",
            [query, "×", key, "=", "scores"],
        )
        factor = 1 / math.sqrt(size) if attention.scale is None else float(attention.scale)
        last = walk.add(
            "divided",
            "QK^⊤ / √d_k",
            scores * factor,
            names,
            names,
            kind="scale",
            left="scores",
            factor=factor,
            divisor=1 / factor,
        )
        text = (
            f"Divided by the root of the head's width, √{size} = {1 / factor:.3g}, so that the softmax does not saturate."
            if attention.scale is None
            else "This family does not divide: its first weights make up for it."
        )
        walk.step("Divide by √d_k", text, "Q K^⊤ / √d_k", ["scores", "→", last])
        bias = record_bias(self.record.inputs(layer, call))
        if bias is not None:
            values = plain(bias.expand(*bias.shape[:-2], count, count).reshape(-1, count, count)[head])
            walk.add("bias", "Position bias", values, names, names)
            last = walk.add(
                "biased",
                "logits + bias",
                walk.matrices[last].values + values,
                names,
                names,
                kind="add",
                left=last,
                right="bias",
            )
            walk.step(
                "Position bias",
                "Relative positions: a bias for each distance between query and key, learned or fixed, by head.",
                "",
                ["divided", "+", "bias", "=", last],
            )
        if attention.causal:
            mask = np.where(np.tril(np.ones((count, count), bool)), 0.0, -np.inf)
            walk.add("mask", "Mask", mask, names, names)
            masked = walk.matrices[last].values + mask
            walk.add("masked", "masked logits", masked, names, names, kind="add", left=last, right="mask")
            walk.step(
                "Mask",
                "A token may not look at those after it: their logits become minus infinity.",
                "",
                [last, "+", "mask", "=", "masked"],
            )
            last = "masked"
        weights = plain(sighting.weights[0, head, :count, :count])
        walk.add("weights", "Attention", weights, names, names, kind="softmax", left=last, scale="sequential")
        walk.step(
            "Softmax",
            "Each row becomes shares that add up to 1: how much each token looks at each other.",
            "A = softmax(Q K^⊤ / √d_k)",
            [last, "→", "weights"],
        )
        heads_input = self.record.input(attention.output, call)
        walk.add(
            "Z",
            f"Z (head {head})",
            heads_input[:, head * size : (head + 1) * size],
            names,
            kind="product",
            left="weights",
            right="V",
        )
        walk.step(
            "Weighted sum",
            "Each token gets the values of all tokens, weighed by its attention.",
            "Z = A V",
            ["weights", "×", "V", "=", "Z"],
        )
        columns = [f"{h}.{n}" for h in range(attention.heads) for n in range(size)]
        walk.add(
            "heads", "All heads", heads_input, names, columns, kind="concat", left="Z", right="Z", offset=head * size
        )
        walk.step(
            "Concatenate heads",
            f"The {attention.heads} heads did the same with weights of their own. Their results stand side by side; column 2.5 is column 5 of head 2.",
            "[Z_0, Z_1, …]",
            ["Z", "→", "heads"],
        )
        self.product("attended", attention.output, call, "heads", "Attention output", "W^O", "b^O")
        walk.step(
            "W O",
            "One more map mixes the heads.",
            "[Z_0, Z_1, …] W^O",
            ["heads", "×", "attended_weights", "=", "attended"],
        )
        return "attended"

    def _feedforward(self, part: Any, call: int, x: str) -> None:
        """The two maps around the activation, gated or not."""
        walk, record = self.walk, self.record
        self.product("up", part.up, call, x, "x W_1", "W_1", "b_1")
        walk.step(
            "Feed-forward: up",
            "Each token by itself goes through a wide layer.",
            "x W_1 + b_1",
            [x, "×", "up_weights", "=", "up"],
        )
        bent = record.input(part.down, call)
        if part.gated:
            inner = bent.shape[1]
            up = walk.matrices["up"].values
            walk.add("gate", "gate", up[:, :inner], self.names, kind="columns", left="up", offset=0)
            walk.add("content", "content", up[:, inner:], self.names, kind="columns", left="up", offset=inner)
            from weft.nn.layers import activate

            opened = plain(activate(torch.from_numpy(up[:, :inner].copy()), part.activation))
            walk.add(
                "opened",
                f"{part.activation}(gate)",
                opened,
                self.names,
                kind="map",
                left="gate",
                function=part.activation,
            )
            walk.add("bent", "gated", bent, self.names, kind="multiply", left="opened", right="content")
            shown = ["gate", "→", "opened", "content", "→", "bent"]
        else:
            walk.add("bent", f"{part.activation}(x)", bent, self.names, kind="map", left="up", function=part.activation)
            shown = ["up", "→", "bent"]
        walk.step(
            "Activation",
            "The activation bends each number by itself; without it two maps would be one.",
            part.activation,
            shown,
        )
        self.product("down", part.down, call, "bent", "feed-forward output", "W_2", "b_2")
        walk.step(
            "Feed-forward: down",
            "Back to the width of the model.",
            "f(x W_1 + b_1) W_2 + b_2",
            ["bent", "×", "down_weights", "=", "down"],
        )

    def ending(self, layers: list[Any], turns: list[int], number: int) -> None:
        """The layers above, and the norm after the last one."""
        walk, network = self.walk, self.network
        reads = self.model.opened.family.reads
        if number + 1 < len(turns):
            top, call = layers[turns[-1]], turns.count(turns[-1]) - 1
            self.last = walk.add("above", "x", self.record.output(top, call), self.names)
            rest = f"Layers {number + 1} to {len(turns) - 1}" if number + 2 < len(turns) else f"Layer {number + 1}"
            walk.step(
                rest,
                "The next layers do the same again. This is what the last one made; choose --layer to see another.",
                "",
                ["above"],
            )
        final = network.encoder_norm if reads else network.final_norm
        if not isinstance(final, nn.Identity):
            self.last = self.norm("final_norm", final, 0, self.last, "Final norm")

    def prediction(self, logits: Array, tokens: Tensor, temperature: float | None, top_k: int, seed: int) -> None:
        """From the last hidden states to words or labels."""
        network, model = self.network, self.model
        if network.mix is not None:
            self.walk.step("Mix of layers", "The head of this model reads several layers together.", "", [self.last])
            return
        if "words" in network.heads:
            self._words(logits, tokens, temperature, top_k, seed)
        elif model.task_object.head in network.heads and not model.task_object.by_token:
            self._labels(logits)

    def _labels(self, logits: Array) -> None:
        """A label of the whole text."""
        walk, network, model = self.walk, self.network, self.model
        head: Any = network.heads[model.task_object.head]
        if not isinstance(head, LabelHead | DeepLabelHead):
            return
        pooled = model.task_object.head in network.POOLED
        reader = network.pooler.dense if pooled else head.dense if isinstance(head, DeepLabelHead) else head.output
        text = walk.add("text", "text", self.record.input(reader), ["text"])
        walk.step("One vector for the text", "The head reads one token for the whole text.", "", [self.last, "→", text])
        if pooled:
            self.product("pool", network.pooler.dense, 0, text, "x W^P", "W^P", "b^P")
            walk.add(
                "pooled",
                "tanh(x W^P)",
                self.record.output(network.pooler),
                ["text"],
                kind="map",
                left="pool",
                function="tanh",
            )
            walk.step(
                "Pooler",
                "One more layer with tanh.",
                "tanh(x W^P + b^P)",
                [text, "×", "pool_weights", "=", "pool", "→", "pooled"],
            )
            text = "pooled"
        if isinstance(head, DeepLabelHead):
            self.product("deep", head.dense, 0, text, "x W^D", "W^D", "b^D")
            text = walk.add(
                "deep_bent",
                head.activation,
                self.record.input(head.output),
                ["text"],
                kind="map",
                left="deep",
                function=head.activation,
            )
            walk.step("Dense layer", "One more layer of the head.", "f(x W^D + b^D)", ["deep", "→", text])
        labels = list(model.card.labels or [f"{n}" for n in range(logits.shape[-1])])
        walk.weights("label_weights", "W", plain(head.output.weight).T, labels)
        if head.output.bias is not None:
            walk.add("label_bias", "b", plain(head.output.bias)[None], ["b"], labels)
        walk.add(
            "logits",
            "logits",
            logits,
            ["text"],
            labels,
            kind="product",
            left=text,
            right="label_weights",
            bias="label_bias" if head.output.bias is not None else None,
        )
        walk.step(
            "Logits of labels",
            "A column of weights for each label.",
            "x W + b",
            [text, "×", "label_weights", "=", "logits"],
        )
        walk.add(
            "probabilities",
            "probabilities",
            _softmax(logits),
            ["text"],
            labels,
            kind="softmax",
            left="logits",
            scale="sequential",
        )
        walk.step("Softmax", "Logits become probabilities.", "softmax", ["logits", "→", "probabilities"])

    def _words(self, logits: Array, tokens: Tensor, temperature: float | None, top_k: int, seed: int) -> None:
        """The product with the table of tokens, softmax, the k best and the token drawn."""
        walk, network, model, names = self.walk, self.network, self.model, self.names
        word_head: Any = network.heads["words"]
        masked = model.tokenizer.id_of("mask") if model.tokenizer is not None else None
        ids = tokens.tolist()
        place = ids.index(masked) if masked in ids else len(ids) - 1
        causal = model.opened.family.one_way
        text = walk.add(
            "place", f"x of {names[place]}", walk.matrices[self.last].values[place : place + 1], [names[place]]
        )
        walk.step(
            "The place that predicts",
            f"{'The last token predicts the one after it' if causal else 'The masked place, or else the last token, says which word stands there'}.",
            "",
            [self.last, "→", text],
        )
        if isinstance(word_head, MaskedWordHead):
            text = self._masked_head(word_head, text, place)
        table = plain((network.tokens if word_head.decoder is None else word_head.decoder).weight)
        bias = word_head.bias if word_head.decoder is None or word_head.decoder.bias is None else word_head.decoder.bias
        row = logits[place].astype(np.float64)
        best = np.argsort(-row, kind="stable")[: min(top_k, len(row))]
        words = labels_of(model, best.tolist())
        walk.add("word_table", "E^⊤", table[best].T, "", words, shape=(table.shape[1], table.shape[0]))
        if bias is not None:
            walk.add("word_bias", "b", plain(bias)[None, best], ["b"], words)
        walk.add(
            "logits",
            "logits",
            logits[place : place + 1, best],
            [names[place]],
            words,
            shape=(1, len(row)),
            kind="product",
            left=text,
            right="word_table",
            bias="word_bias" if bias is not None else None,
        )
        tied = "the embedding table again (tied)" if word_head.decoder is None else "a table of its own"
        walk.step(
            "Product with the embeddings",
            f"The vector is compared with every word of the vocabulary, by {tied}. The {len(best)} best of {len(row):,} are shown.",
            "logits = x E^⊤",
            [text, "×", "word_table", "=", "logits"],
        )
        self._drawn(row, best, words, names[place], temperature, top_k, seed)

    def _masked_head(self, head: MaskedWordHead, text: str, place: int) -> str:
        walk, name = self.walk, self.names[place]
        walk.weights("transform_weights", "W^T", plain(head.dense.weight).T)
        walk.add("transform_bias", "b^T", plain(head.dense.bias)[None], ["b"])
        dense = self.record.output(head.dense)[place : place + 1]
        walk.add(
            "transform",
            "x W^T",
            dense,
            [name],
            kind="product",
            left=text,
            right="transform_weights",
            bias="transform_bias",
        )
        walk.add(
            "transform_bent",
            head.activation,
            self.record.input(head.norm)[place : place + 1],
            [name],
            kind="map",
            left="transform",
            function=head.activation,
        )
        walk.step(
            "Word head",
            "A head for masked words begins with one more layer.",
            "f(x W^T + b^T)",
            [text, "×", "transform_weights", "=", "transform", "→", "transform_bent"],
        )
        walk.add("transform_gain", "gain", plain(head.norm.weight)[None], ["gain"])
        walk.add("transform_shift", "bias", plain(head.norm.bias)[None], ["bias"])
        made: dict[str, Any] = {
            "kind": "norm",
            "left": "transform_bent",
            "gain": "transform_gain",
            "bias": "transform_shift",
            "epsilon": head.norm.eps,
        }
        walk.add("transformed", "norm(x)", self.record.output(head.norm)[place : place + 1], [name], **made)
        walk.step("Norm of the word head", "And a norm.", "norm(x)", ["transform_bent", "→", "transformed"])
        return "transformed"

    def _drawn(
        self, row: Array, best: Array, words: list[str], name: str, temperature: float | None, top_k: int, seed: int
    ) -> None:
        """Probabilities, the k best alone, and the token that is chosen as generation chooses it."""
        from weft.explain.walk_steps import WalkTable

        walk = self.walk
        whole = _softmax(row[None])
        walk.add(
            "probabilities",
            "probabilities",
            whole[:, best],
            [name],
            words,
            shape=(1, len(row)),
            scale="sequential",
            digits=4,
        )
        rest = 1 - float(whole[0, best].sum())
        walk.step(
            "Softmax",
            f"Over all {len(row):,} words. The words that are not shown share {rest:.4f}.",
            "p = softmax(logits)",
            ["logits", "→", "probabilities"],
        )
        heat = 1.0 if temperature is None else temperature
        if heat:
            walk.add(
                "heated",
                f"logits / {heat:g}",
                row[None, best] / heat,
                [name],
                words,
                kind="scale",
                left="logits",
                factor=1 / heat,
                divisor=heat,
            )
            walk.add(
                "kept",
                f"top {len(best)}",
                _softmax(row[None, best] / heat),
                [name],
                words,
                kind="softmax",
                left="heated",
                scale="sequential",
                digits=4,
            )
            walk.step(
                f"Top {len(best)} at temperature {heat:g}",
                "Only these words stay. A low temperature sharpens their shares, a high one flattens them.",
                "softmax(logits / temperature)",
                ["logits", "→", "heated", "→", "kept"],
            )
        sampling = Sampling() if temperature is None else Sampling(temperature=temperature, top_k=top_k)
        draws = RandomDraws([seed]).draw([0])
        token = int(choose(torch.from_numpy(row)[None], sampling, draws)[0])
        how = (
            "the likeliest word"
            if sampling.greedy
            else f"drawn with seed {seed}: {float(draws[0]):.4f} of the shares in the order of the vocabulary"
        )
        chosen = labels_of(self.model, [token])[0]
        order = [
            (word, f"{whole[0, number]:.4f}", "chosen" if number == token else "")
            for word, number in zip(words, best, strict=True)
        ]
        mark = [(n, 0) for n, number in enumerate(best) if number == token]
        walk.step(
            "The token", f"'{chosen}' is {how}.", "", tables=[WalkTable("", ("token", "probability", ""), order, mark)]
        )


def record_bias(inputs: tuple[Any, ...]) -> Tensor | None:
    """The bias on the scores that a layer was called with."""
    return inputs[2] if len(inputs) > 2 else None


def _softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)
