"""Recurrent encoder-decoders: one fixed vector (Sutskever et al., 2014), or attention to all that was read.

Attention is Bahdanau's (2015): what the state before looked at is part of the input; or Luong's (2015): the new state
looks, and what comes of it may be fed into the next place. Luong's without feeding needs no loop over places.

N: tokens; B: rows; T, S: places written and read; W: width; M: width of what is looked at; G: gates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from weft.errors import UserError
from weft.models.base import ModelConfig, Network, Started
from weft.models.encoder_decoder import EncoderDecoder, numbered, sides_of
from weft.models.shared import matrices
from weft.nn.fixed import FixedRows
from weft.nn.heads import step_scores
from weft.nn.open_rows import JoinedRows
from weft.nn.recurrent import Bridge, Cell, DecoderPlace, Looking, Recurrent, RecurrentDecoderState, SourceMemory, Steps
from weft.nn.rows import Ragged, Rows, check_context, filled, gathered, spread


@dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig(ModelConfig):
    """Sizes of a recurrent encoder-decoder."""

    vocabulary: int = 32000
    source_vocabulary: int | None = None  # of what is read, where it is not the same
    context: int = 1024  # tokens read or written at most
    width: int = 512  # of each direction
    embedding_width: int | None = None  # None: width
    layers: int = 1  # of the encoder, and of the decoder
    cell: Cell = "lstm"
    bidirectional: bool = True  # the encoder reads both ways
    attention: Literal["none", "additive", "dot", "general"] = "general"
    feeding: bool = False  # dot and general: what came of looking is part of the next place's input
    reverse: bool | None = None  # the source is read from its end; without it, where one vector is all that is kept
    dropout: float = 0.3
    tied: Literal["none", "decoder", "all"] = "all"  # tables that are one: written and scored; read as well
    begin: int = 0  # the token that writing begins from
    weight_scale: float = 0.08

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.feeding and self.attention in ("none", "additive"):
            raise UserError(f"feeding is for attention dot or general; {self.attention} has its own way")
        if self.reverse and self.bidirectional:
            raise UserError("an encoder that reads both ways cannot read in reverse; try bidirectional=false")


class RecurrentDecoder(EncoderDecoder):
    """A recurrent decoder, with or without attention to what was read."""

    in_slots = FixedRows
    open_rows = JoinedRows
    READS_OWN = True
    dropout: nn.Module
    looking: Looking | None
    combine: nn.Module | None
    fed = 0  # width of what is fed into a place beside its word

    def stacks(self) -> dict[str, list[Any]]:
        sides = {} if self.encoder is None else {"encoder": [self.encoder] * self.config.layers}
        return {**sides, "decoder": [self.decoder] * self.config.layers}

    def lens(self, hidden: Tensor) -> Tensor:
        if self.combine is not None:
            raise UserError("the word head of a recurrent decoder with attention reads more than a layer's output")
        return self.words(hidden)

    def decode(self, tokens: Tensor, rows: Rows, memory: SourceMemory, own: Tensor | None = None) -> Tensor:
        """N tokens -> N width; `own`: how often a place reads the model's own best guess (Bengio et al., 2015)."""
        check_context(rows.longest, self.config.context)
        if own is not None or self.config.feeding or self.config.attention == "additive":
            return gathered(self._one_by_one(tokens, rows, memory, own), rows, len(tokens))
        x, _ = self.decoder(self.dropout(self.tokens(tokens)), rows, memory.state, last=False)
        if self.looking is None:
            return self.dropout(x)
        states = spread(x, rows).transpose(0, 1)  # B T W
        mixed = self.looking(states, memory.keys, memory.may) @ memory.values
        return self._output(x, gathered(mixed.transpose(0, 1), rows, len(tokens)), None)

    def _one_by_one(self, tokens: Tensor, rows: Rows, memory: SourceMemory, own: Tensor | None) -> Tensor:
        """T B W, place by place."""
        words = spread(tokens, rows)  # T B
        steps = self.decoder.steps(self.fed)
        embedded = self.dropout(self.tokens(words))
        given = steps.given(embedded).unbind()  # B GW for each place
        hidden = []
        before = self._first(memory)
        for place, (x, y) in enumerate(zip(embedded.unbind(), given, strict=True)):
            if own is not None and place:
                guess = self.words(before.output.detach()).argmax(-1)
                mine = torch.rand(guess.shape, device=guess.device) < own
                x = self.dropout(self.tokens(torch.where(mine, guess, words[place])))
                y = steps.given(x)
            before = self._place(steps, x, y, before, memory)
            hidden.append(before.output)
        return torch.stack(hidden)

    def _first(self, memory: SourceMemory) -> DecoderPlace:
        return DecoderPlace(memory.state, torch.zeros_like(memory.state[0][0]))

    def _place(
        self, steps: Steps, x: Tensor, given: Tensor, before: DecoderPlace, memory: SourceMemory
    ) -> DecoderPlace:
        """One place of all rows: its words B embedding, and what the decoder makes of them B GW."""
        shares = mixed = None
        fed = before.output if self.config.feeding else None
        if self.looking is not None and self.config.attention == "additive":
            shares = self.looking(before.state[-1][0][:, None], memory.keys, memory.may)  # B 1 S
            fed = mixed = (shares @ memory.values).squeeze(1)  # B M
        top, state = steps.step(given, before.state, fed)
        if self.looking is not None and shares is None:
            shares = self.looking(top[:, None], memory.keys, memory.may)
            mixed = (shares @ memory.values).squeeze(1)
        return DecoderPlace(state, self._output(top, mixed, x), None if shares is None else shares.squeeze(1))

    def _output(self, top: Tensor, mixed: Tensor | None, x: Tensor | None) -> Tensor:
        """What the word head reads: the state, and what it looked at; Bahdanau's also reads the word before."""
        if self.combine is None or mixed is None:
            return self.dropout(top)
        seen = [top, mixed, x] if self.config.attention == "additive" and x is not None else [top, mixed]
        return self.dropout(self.combine(torch.cat(seen, -1)).tanh())

    def start(self, prompt: Ragged, source: Ragged | None = None, room: int = 0, attention: bool = False) -> Started:
        assert source is not None, "an encoder-decoder writes what it makes of a source"
        memory = self.encode(source)
        words, lengths = spread(prompt.tokens, prompt.rows), prompt.rows.lengths()
        state = RecurrentDecoderState(memory, self._first(memory), attention)
        steps, embedded = self.decoder.steps(self.fed), self.tokens(words)
        for number, (x, given) in enumerate(zip(embedded, steps.given(embedded), strict=True)):
            place = self._place(steps, x, given, state.place, memory)
            state.place = place.where(number < lengths, state.place)
        return step_scores(self.words(state.place.output)), state

    def step(self, tokens: Tensor, state: RecurrentDecoderState) -> Tensor:
        steps, x = self.decoder.steps(self.fed), self.tokens(tokens)
        state.place = self._place(steps, x, steps.given(x), state.place, state.memory)
        return step_scores(self.words(state.place.output))


class Seq2Seq(RecurrentDecoder):
    """The encoder, the decoder and the word head."""

    TOP = (*Network.TOP, "combine", "narrow")

    def __init__(self, config: Seq2SeqConfig, heads: Mapping[str, int]) -> None:
        super().__init__(config)
        c = config
        size = c.embedding_width or c.width
        self.tokens = nn.Embedding(c.vocabulary, size)
        self.source_tokens = None if c.tied == "all" else nn.Embedding(c.source_vocabulary or c.vocabulary, size)
        reverse = c.attention == "none" if c.reverse is None else c.reverse
        reading: Literal["forwards", "backwards", "both"] = "backwards" if reverse else "forwards"
        self.encoder = Recurrent(c.cell, size, c.width, c.layers, "both" if c.bidirectional else reading, c.dropout)
        self.bridge = Bridge(c.width, c.layers, 2 if c.cell == "lstm" else 1) if c.bidirectional else None
        seen = c.width if c.attention == "dot" else self.encoder.outputs  # M
        self.looking = None if c.attention == "none" else Looking(c.attention, c.width, seen)
        self.fed = seen if c.attention == "additive" else c.width if c.feeding else 0
        self.decoder = Recurrent(c.cell, size + self.fed, c.width, c.layers, dropout=c.dropout)
        combined = c.width + seen + (size if c.attention == "additive" else 0)
        self.combine = None if c.attention == "none" else nn.Linear(combined, c.width)
        self.narrow = nn.Linear(c.width, size, bias=False) if c.tied != "none" and size != c.width else None
        self.dropout = nn.Dropout(c.dropout)
        self.heads = self.make_heads(heads)

    def layer_names(self) -> list[tuple[str, ...]]:
        layers, directions = self.config.layers, len(self.encoder.directions)
        return sides_of(numbered("encoder.layers", layers, directions), numbered("decoder.layers", layers))

    def encode(self, source: Ragged) -> SourceMemory:
        """Read the sources."""
        check_context(source.rows.longest, self.config.context)
        table = self.tokens if self.source_tokens is None else self.source_tokens
        read, state = self.encoder(self.dropout(table(source.tokens)), source.rows)
        state = state if self.bridge is None else self.bridge(state)
        may = filled(source.rows)
        if self.looking is None:
            return SourceMemory(state, may, None, None)
        if self.config.attention == "dot" and self.config.bidirectional:  # states of one width can be compared
            read = read[:, : self.config.width] + read[:, self.config.width :]
        values = spread(read, source.rows).transpose(0, 1)  # B S M
        return SourceMemory(state, may, values, self.looking.keys(values))

    def operations(self, source: Rows, rows: Rows) -> float:
        read, written = int(source.starts[-1]), int(rows.starts[-1])
        uses = matrices(self.encoder) * read + matrices(self.bridge) * rows.count
        uses += (matrices(self.decoder, self.combine, self.narrow) + self.tokens.weight.numel()) * written
        if self.narrow is None:  # the words are scored by a table as wide as the decoder
            uses += self.config.vocabulary * (self.config.width - self.tokens.weight.shape[1]) * written
        if self.looking is not None:
            seen = self.config.width if self.config.attention == "dot" else self.encoder.outputs
            pairs = float((source.lengths().double() * rows.lengths()).sum())
            uses += matrices(self.looking.key) * read + matrices(self.looking.query) * written
            uses += (self.config.width + seen) * pairs
        return 2.0 * uses

    @torch.no_grad()
    def initialize(self) -> None:
        """Fresh weights: tables as Sutskever drew them, recurrent matrices as rotations, maps by their width."""
        for module in self.modules():
            if isinstance(module, Recurrent):
                module.initialize()
            elif isinstance(module, nn.Embedding) or module in self.heads.values():
                for table in module.parameters():
                    table.uniform_(-self.config.weight_scale, self.config.weight_scale)
            elif isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    module.bias.zero_()
