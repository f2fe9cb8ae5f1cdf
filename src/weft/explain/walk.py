"""One self-attention head as a walk: every step from the embeddings to the next word, with this model's numbers.

The numbers are those that the network computes: `weft.watch` records its attention, and hooks its other modules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from weft.errors import UserError
from weft.explain.seen import Seen, StackArrays
from weft.explain.walk_layer import LayerWalk
from weft.explain.walk_output import OutputWalk
from weft.explain.walk_record import ModuleCalls, TokenInput, generated, names_of, plain, read_text, recorded
from weft.explain.walk_steps import Array, Walk
from weft.explain.watch import watch
from weft.generation.sampling import Sampling
from weft.models.transformer import T5
from weft.nn.attention import Attention
from weft.nn.layers import Layer
from weft.nn.rows import Ragged
from weft.tasks.complete import writer_of
from weft.tasks.model import Model

WRITTEN = 8  # tokens of its own output that the decoder of an encoder-decoder reads
WORKS = "albert, bert, distilbert, gpt2, marian, openai-gpt, roberta, t5, transformer, xlm-roberta"


@dataclass(frozen=True)
class LayerStack:
    """The layers of one stack in the order in which they are read; ALBERT has one layer many times."""

    name: str  # as `weft.watch` has it
    layers: list[Any]

    def call(self, number: int) -> int:
        """Which call of its module a layer is."""
        return sum(layer is self.layers[number] for layer in self.layers[:number])

    def check(self, layer: int, head: int) -> None:
        if not 0 <= layer < len(self.layers):
            raise UserError(f"--layer {layer}: this model has layers 0 to {len(self.layers) - 1}")
        heads = self.layers[layer].attention.heads
        if not 0 <= head < heads:
            raise UserError(f"--head {head}: this layer has heads 0 to {heads - 1}")


def stacks_of(model: Model) -> list[LayerStack]:
    """The stacks of a network whose layers have plain self-attention."""
    network: Any = model.network
    name = model.opened.family.name
    if model.opened.exported:
        raise UserError("an exported model shows no steps: give the folder that it was exported from")
    stacks = [LayerStack(stack, list(layers)) for stack, layers in network.stacks().items()]
    layers = [layer for stack in stacks for layer in stack.layers]
    usual = all(isinstance(layer, Layer) and type(layer.attention) is Attention for layer in layers)
    if not layers or not usual or network.languages is not None:
        raise UserError(f"{name}: --walk shows plain self-attention, as in {WORKS}")
    return stacks


def attention_walk(
    model: Model,
    text: str,
    layer: int = 0,
    head: int = 0,
    *,
    target: str | None = None,
    temperature: float | None = None,
    top_k: int = 10,
    seed: int = 0,
) -> Walk:
    """The steps of one head for a text, and of the network around it.

    The next token is the likeliest one, or at a temperature drawn from the `top_k` likeliest. An encoder-decoder is
    walked through twice, and its decoder reads `target`, by default the beginning of the model's own output.
    """
    stacks = stacks_of(model)
    for stack in stacks:
        stack.check(layer, head)
    sampling = Sampling() if temperature is None else Sampling(temperature=temperature, top_k=top_k)
    if top_k < 1:
        raise UserError(f"top_k must be at least 1, not {top_k}")
    builder = HeadWalk(model, layer, head)
    if model.opened.family.reads:
        builder.read_and_write(stacks, text, target)
    else:
        builder.read(stacks[0], text)
    builder.output(sampling, top_k, seed)
    count, width = len(stacks[0].layers), model.config.width
    about = f"Layer {layer}, head {head} of {model.folder.name if model.folder else model.opened.family.name}"
    builder.walk.title = f"{about}: {' '.join(text.split())[:60]}"
    builder.walk.intro = (
        f"One attention head of a {model.opened.family.name} model with {count} layers of width {width}, step by step. "
        "Every number is computed by the model itself."
    )
    return builder.walk


class HeadWalk:
    """Runs the network once, and adds the steps from its embeddings to the end of its last layer."""

    def __init__(self, model: Model, layer: int, head: int) -> None:
        self.model, self.number, self.head = model, layer, head
        self.network: Any = model.network
        self.walk = Walk("")
        self.calls = ModuleCalls()
        self.logits: Array | None = None
        self.given: TokenInput | None = None  # what the stack that predicts has read
        self.last = ""

    # ------------------------------------------------------------------------------------------------------ the pass

    def read(self, stack: LayerStack, text: str) -> None:
        """The walk of an encoder or a decoder."""
        network, given = self.network, read_text(self.model, text)
        with recorded(network) as self.calls, watch(network, self.number) as seen:
            hidden = network(given.tokens, given.rows, given.segments)
            head = self.head_name()
            if head is not None:
                self.logits = plain(network.logits(head, hidden, given.rows))
        self.stack(stack, given, seen.stack(), network.tokens, network.final_norm)
        self.given = given

    def read_and_write(self, stacks: list[LayerStack], text: str, target: str | None) -> None:
        """The walk of an encoder-decoder: through the encoder, and then through the decoder."""
        network, given = self.network, read_text(self.model, text)
        written = self.written(given, target)
        with recorded(network) as self.calls, watch(network, self.number) as seen:
            hidden = network(written.tokens, written.rows, source=Ragged(given.tokens, given.rows))
            self.logits = plain(network.words(hidden))
        self.walk.part = "Encoder"
        table = network.tokens if network.source_tokens is None else network.source_tokens
        self.stack(stacks[0], given, arrays_of(seen, "encoder"), table, network.encoder_norm)
        source = self.last
        self.walk.scope, self.walk.part = "decoder.", "Decoder"
        call = int(network.source_tokens is None)  # the same table of tokens was read before
        decoder = arrays_of(seen, "decoder")
        self.stack(stacks[1], written, decoder, network.tokens, network.decoder_norm, source, call)
        self.walk.scope = ""
        self.given = written

    def written(self, given: TokenInput, target: str | None) -> TokenInput:
        """What the decoder reads: the token that it begins from, and what it has written so far."""
        model, begin = self.model, self.model.config.begin
        if target is None:
            ids = generated(model, [begin], given.ids, WRITTEN).tokens[:-1]
        else:
            ids = writer_of(model.opened).ids([target], specials=False)[0]
        ids = [begin, *ids]
        return TokenInput.of(model, ids, names_of(model, ids, written=True))

    def head_name(self) -> str | None:
        """The head whose logits end the walk."""
        own, heads = self.model.task_object.head, self.network.heads
        return own if own in heads else "words" if "words" in heads else None

    # ------------------------------------------------------------------------------------------------------ its steps

    def stack(
        self,
        stack: LayerStack,
        given: TokenInput,
        seen: StackArrays,
        table: nn.Embedding,
        final_norm: nn.Module,
        source: str | None = None,
        call: int = 0,
    ) -> None:
        """From the embeddings through one layer in full and all others at once, up to the final norm."""
        walk, part = self.walk, self.walk.part
        steps = LayerWalk(walk, self.calls)
        walk.part = f"{part} embeddings" if part else "Embeddings"
        x = self.embeddings(given, table, steps, call, written=source is not None)
        chosen, number = stack.layers[self.number], self.number
        if number:
            x = walk.add("entry", "x", self.calls.input(chosen, stack.call(number)), given.names)
            below = f"Layers 0 to {number - 1}" if number > 1 else "Layer 0"
            walk.step(
                below, f"The layers below do the same with their own weights. Layer {number} reads this.", "", [x]
            )
        walk.part = part
        x = steps.layer(chosen, stack.call(number), self.head, x, seen, number, source)
        walk.part = f"{part} output" if part else "Output"
        rest = len(stack.layers) - 1
        if number < rest:
            x = walk.add("above", "x", self.calls.output(stack.layers[rest], stack.call(rest)), given.names)
            above = f"Layers {number + 1} to {rest}" if number + 1 < rest else f"Layer {rest}: the next layer"
            text = "The next layers do the same with their own weights. This is the output of the last one."
            walk.step(above, text, "", [x])
        if not isinstance(final_norm, nn.Identity):
            x = steps.norm("final_norm", "Final norm", final_norm, x)
        walk.part = part
        self.last = x

    def embeddings(self, given: TokenInput, table: nn.Embedding, steps: LayerWalk, call: int, written: bool) -> str:
        """Token vectors, with whatever is added to them; the id of what the first layer reads."""
        walk, network, config = self.walk, self.network, self.model.config
        used = list(dict.fromkeys(given.ids))
        rows = plain(table.weight[torch.tensor(used, device=table.weight.device)])
        shape = (table.weight.shape[0], table.weight.shape[1])
        shown = walk.add("table", "E", rows, names_of(self.model, used, written), shape=shape)
        made: dict[str, Any] = {"kind": "row", "left": shown, "indices": [used.index(token) for token in given.ids]}
        x = walk.add("tokens", "tokens", self.calls.output(table, call), given.names, **made)
        text = f"Each token is a row of the embedding table E, one of {shape[0]:,}. The page holds those of this text."
        walk.step("Embeddings", text, "x_i = E[token_i]", x)
        if isinstance(network, T5):
            return x
        if config.has("scaled") and config.scaled:
            factor = config.width**0.5
            x = walk.add("scaled", "√W x", walk.values(x) * factor, kind="scale", left=x, factor=factor)
            walk.step(
                "Scale", f"Token vectors are multiplied by the square root of the width, {factor:.4g}.", "√W x", x
            )
        if network.segments is not None or given.segments is not None:
            x = self.segments(given, x)
        x = self.positions(given, x, call)
        if network.embedding_norm is not None:
            x = steps.norm("embedding_norm", "Norm of the embeddings", network.embedding_norm, x)
        if network.widened is not None:
            x = steps.linear("widened", "x W^E", network.widened, x, "W^E")
            walk.step("Wider embeddings", "A linear map from the width of the table to that of the layers.", "x W^E", x)
        return x

    def segments(self, given: TokenInput, x: str) -> str:
        """The vectors that tell the two texts of a pair apart."""
        walk, network = self.walk, self.network
        if network.segments is None:
            values = plain(network.tokens(given.segments))
        elif given.segments is None or self.model.config.segments == 1:
            values = plain(network.segments.weight[0].expand(len(given.ids), -1))
        else:
            values = plain(network.segments(given.segments))
        added = walk.add("segments", "segments", values, given.names)
        x = walk.add("with_segments", "x + segments", walk.values(x) + values, kind="add", left=x, right=added)
        walk.step("Segments", "A learned vector tells the first text of a pair from the second.", "x + s", x)
        return x

    def positions(self, given: TokenInput, x: str, call: int) -> str:
        """The vectors of places, for the kinds that are added to tokens."""
        walk, network, count = self.walk, self.network, len(given.ids)
        values, positions = torch.as_tensor(walk.values(x), device=given.tokens.device), network.positions
        with torch.inference_mode():
            vectors = plain(positions.add(torch.zeros_like(values), positions.places(given.rows, count, None)))
        if not vectors.any():
            text = f"Positions of kind {positions.kind} are not added to the tokens: attention gets them."
            walk.step("Positions", text, "", [x])
            return x
        added = walk.add("positions", "positions", vectors, [str(n) for n in range(count)])
        after = network.dropout if network.embedding_norm is None else network.embedding_norm
        total = self.calls.input(after, call if after is network.dropout else 0)
        x = walk.add("placed", "x + positions", total, kind="add", left=x, right=added)
        text = "Attention does not see the order of tokens, so the vector of each place is added."
        walk.step("Positions", text, "x_i + p_i", x)
        return x

    def output(self, sampling: Sampling, top_k: int, seed: int) -> None:
        """From the last hidden states to words or labels."""
        network, given = self.network, self.given
        assert given is not None
        self.walk.part = "Prediction"
        if network.mix is not None:
            self.last = self.walk.add("mix", "mix of layers", self.calls.output(network.mix), given.names)
            self.walk.step("Mix of layers", "The head reads several layers together.", "", [self.last])
        if self.logits is None:
            text = "These are the hidden states that the model hands out; it has no head that predicts."
            self.walk.step("Hidden states", text, "", [self.last])
            return
        output = OutputWalk(self.model, self.walk, self.calls, given, self.last)
        name = self.head_name()
        if name == "words" or name is None:
            output.words(self.logits, sampling, top_k, seed)
        else:
            output.labels(name, self.logits)


def arrays_of(seen: Seen, name: str) -> StackArrays:
    """One stack of what was seen of an encoder-decoder."""
    return seen.only().stacks[name]
