"""The convolutional encoder-decoder (Gehring et al., 2017): gated convolutions, and attention in every decoder layer,
or none: all that is kept of the source is then one vector, which every place reads (Kalchbrenner and Blunsom, 2013).

Left out of the paper: weight normalization (whose work the starting scale of the weights does here), and smaller
gradients for the encoder. N: tokens; B: rows; T, S: places written and read; W: width; K: kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from weft.errors import UserError
from weft.models.base import ModelConfig, Network, Started
from weft.models.encoder_decoder import EncoderDecoder, numbered, sides_of
from weft.models.shared import matrices, mean_of
from weft.nn.heads import in_full
from weft.nn.layers import GatedConvolution
from weft.nn.recurrent import Looking
from weft.nn.rows import DecoderState, Ragged, Rows, check_context, filled, gathered, spread

HALF = 0.5**0.5  # a sum of two varies as much as each of them


@dataclass(frozen=True, kw_only=True)
class ConvSeq2SeqConfig(ModelConfig):
    """Sizes of a convolutional encoder-decoder; the defaults are those of the paper's summaries."""

    vocabulary: int = 30000
    source_vocabulary: int | None = None  # of what is read, where it is not the same
    context: int = 1024
    width: int = 256
    layers: int = 6  # of the encoder, and of the decoder
    kernel: int = 3  # places that a convolution sees
    attention: Literal["none", "dot"] = "dot"  # none: the decoder reads one vector of the source
    dropout: float = 0.1
    tied: Literal["none", "decoder", "all"] = "none"  # tables that are one: written and scored; read as well
    begin: int = 0  # the token that writing begins from
    weight_scale: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kernel % 2 == 0:
            raise UserError(f"kernel must be odd, to see as far to both sides, not {self.kernel}")


@dataclass(frozen=True)
class ConvolutionMemory:
    """What the decoder looks at."""

    keys: Tensor  # B S W: what the encoder made of the source
    values: Tensor  # B S W: the same with the words themselves
    may: Tensor  # B S bool: places that hold a token

    def look(self, query: Tensor, looking: Looking | None = None) -> tuple[Tensor, Tensor]:
        """B T W -> what is seen, B T W, scaled by the root of the source's length, and how much of it where, B T S."""
        alone = self.may[:, None].to(query.dtype).expand(-1, query.shape[1], -1)  # one vector of the source
        where = alone if looking is None else looking(query, self.keys, self.may)
        return where @ self.values * self.may.sum(-1).to(query.dtype).sqrt()[:, None, None], where

    def picked(self, rows: Tensor) -> ConvolutionMemory:
        return ConvolutionMemory(*(x.index_select(0, rows) for x in (self.keys, self.values, self.may)))


class ConvolutionState(DecoderState):
    """The state between two steps of writing: the last K-1 inputs of each layer."""

    def __init__(self, memory: ConvolutionMemory, rows: Rows, wanted: bool) -> None:
        self.memory, self.wanted = memory, wanted
        self.lengths, self.longest = rows.lengths().long(), rows.longest
        self.inputs: list[Tensor] = []  # B K-1 W for each layer
        self.shares: list[Tensor] = []  # B S for each layer
        self.sources = torch.arange(rows.count, device=self.lengths.device)  # B: which source each row reads

    @property
    def attention(self) -> Tensor | None:
        return torch.stack(self.shares).float().mean(0) if self.wanted else None

    def pick(self, rows: Tensor) -> None:
        self.lengths = self.lengths.index_select(0, rows)
        self.inputs = [x.index_select(0, rows) for x in self.inputs]
        self.shares = [x.index_select(0, rows) for x in self.shares]
        sources = self.sources.index_select(0, rows)
        if not torch.equal(sources, self.sources):  # what was read is large: rows that only change places leave it
            self.memory, self.sources = self.memory.picked(rows), sources


class ConvolutionStack(nn.Module):
    """What encoder and decoder have in common: positions, a way in, convolutions, a way out."""

    def __init__(self, c: ConvSeq2SeqConfig, causal: bool) -> None:
        super().__init__()
        self.positions = nn.Embedding(c.context, c.width)
        self.enter = nn.Linear(c.width, c.width)
        self.layers = nn.ModuleList(GatedConvolution(c.width, c.kernel, causal) for _ in range(c.layers))
        self.leave = nn.Linear(c.width, c.width)


class ConvSeq2Seq(EncoderDecoder):
    """The encoder, the decoder and the word head."""

    TOP = (*Network.TOP, "decoder.leave")

    def __init__(self, config: ConvSeq2SeqConfig, heads: Mapping[str, int]) -> None:
        super().__init__(config)
        c = config
        self.tokens = nn.Embedding(c.vocabulary, c.width)
        self.source_tokens = None if c.tied == "all" else nn.Embedding(c.source_vocabulary or c.vocabulary, c.width)
        self.encoder, self.decoder = ConvolutionStack(c, causal=False), ConvolutionStack(c, causal=True)
        looks = c.layers if c.attention == "dot" else 0
        self.queries = nn.ModuleList(nn.Linear(c.width, c.width) for _ in range(looks))
        self.mixes = nn.ModuleList(nn.Linear(c.width, c.width) for _ in range(c.layers))
        self.looking, self.looking_layers = Looking("dot", c.width, c.width) if looks else None, c.layers
        self.dropout = nn.Dropout(c.dropout)
        self.heads = self.make_heads(heads)

    def layer_names(self) -> list[tuple[str, ...]]:
        layers = self.config.layers
        decoder: list[tuple[str, ...]] = [(f"decoder.layers.{n}", f"queries.{n}", f"mixes.{n}") for n in range(layers)]
        return sides_of(numbered("encoder.layers", layers), decoder, leave="encoder.leave")

    def stacks(self) -> dict[str, list[Any]]:
        return {"encoder": list(self.encoder.layers), "decoder": list(self.decoder.layers)}

    def lens(self, hidden: Tensor) -> Tensor:
        raise UserError("a convolution's output is added to what it read: only its sum has a logit lens")

    def encode(self, source: Ragged) -> ConvolutionMemory:
        """Read the sources."""
        check_context(source.rows.longest, self.config.context)
        table = self.tokens if self.source_tokens is None else self.source_tokens
        words = self.dropout(table(source.tokens) + self.encoder.positions(source.rows.places(len(source.tokens))))
        x = self.encoder.enter(words)
        for layer in self.encoder.layers:
            x = (x + layer(self.dropout(x), source.rows)) * HALF
        x = self.encoder.leave(x)
        if self.config.attention == "none":  # one place: the mean, scaled to vary as much as what it is made of
            root = source.rows.lengths().clamp(min=1).to(x.dtype).sqrt()
            whole = (mean_of((x + words) * HALF, source.rows) * root[:, None])[:, None]  # B 1 W
            return ConvolutionMemory(whole, whole, torch.ones_like(whole[..., 0], dtype=torch.bool))
        keys, values = (spread(y, source.rows).transpose(0, 1) for y in (x, (x + words) * HALF))
        return ConvolutionMemory(keys, values, filled(source.rows))

    def decode(
        self, tokens: Tensor, rows: Rows, memory: ConvolutionMemory, state: ConvolutionState | None = None
    ) -> Tensor:
        """N tokens, each read before the word that follows it -> N width; `state` gets what steps need."""
        check_context(rows.longest, self.config.context)
        total = len(tokens)
        words = self.dropout(self.tokens(tokens) + self.decoder.positions(rows.places(total)))

        def convolve(layer: Any, x: Tensor) -> Tensor:
            if state is not None:
                state.inputs.append(layer.left(x, rows))
            return layer(x, rows)

        def look(query: Tensor) -> Tensor:
            seen, where = memory.look(spread(query, rows).transpose(0, 1), self.looking)
            if state is not None:
                state.shares.append(gathered(where.transpose(0, 1), rows, total)[rows.lasts()])
            return gathered(seen.transpose(0, 1), rows, total)

        return self._write(words, convolve, look)

    def _write(
        self, words: Tensor, convolve: Callable[[Any, Tensor], Tensor], look: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Through the decoder's layers: each convolves, looks at what was read, and adds to what is there."""
        x = self.decoder.enter(words)
        for number, (layer, mix) in enumerate(zip(self.decoder.layers, self.mixes, strict=True)):
            y = convolve(layer, self.dropout(x))
            query = (self.queries[number](y) + words) * HALF if self.queries else y
            y = (y + mix(look(query))) * HALF
            x = (x + y) * HALF
        return self.dropout(self.decoder.leave(x))

    def start(self, prompt: Ragged, source: Ragged | None = None, room: int = 0, attention: bool = False) -> Started:
        assert source is not None, "an encoder-decoder writes what it makes of a source"
        state = ConvolutionState(self.encode(source), prompt.rows, attention and self.config.attention != "none")
        hidden = self.decode(prompt.tokens, prompt.rows, state.memory, state)
        return in_full(self.words(hidden[prompt.rows.lasts()])), state

    def step(self, tokens: Tensor, state: ConvolutionState) -> Tensor:
        check_context(state.longest + 1, self.config.context)
        before, state.inputs, state.shares = iter(state.inputs), [], []
        rows = Rows.single(len(tokens), tokens.device)

        def convolve(layer: Any, x: Tensor) -> Tensor:
            y, after = layer(x, rows, next(before))
            state.inputs.append(after)
            return y

        def look(query: Tensor) -> Tensor:
            seen, where = state.memory.look(query[:, None], self.looking)
            state.shares.append(where.squeeze(1))
            return seen.squeeze(1)

        hidden = self._write(self.tokens(tokens) + self.decoder.positions(state.lengths), convolve, look)
        state.lengths, state.longest = state.lengths + 1, state.longest + 1
        return in_full(self.words(hidden))

    def operations(self, source: Rows, rows: Rows) -> float:
        c, tables = self.config, matrices(self.encoder.positions)
        pairs = float((source.lengths().double() * rows.lengths()).sum())
        uses = (matrices(self.encoder) - tables) * int(source.starts[-1])
        uses += (matrices(self.decoder, self.queries, self.mixes, self.tokens) - tables) * int(rows.starts[-1])
        return 2.0 * (uses + (2 * c.layers * c.width * pairs if self.queries else 0))

    @torch.no_grad()
    def initialize(self) -> None:
        """Fresh weights, so that what goes up varies as much in every layer: a gate halves what it lets through."""
        gated = {layer.maps for side in (self.encoder, self.decoder) for layer in side.layers}
        for module in self.modules():
            if isinstance(module, nn.Embedding):
                module.weight.normal_(0.0, self.config.weight_scale)
            elif isinstance(module, nn.Linear):
                gain = 4.0 * (1.0 - self.config.dropout) if module in gated else 1.0
                module.weight.normal_(0.0, (gain / module.in_features) ** 0.5)
                if module.bias is not None:
                    module.bias.zero_()
