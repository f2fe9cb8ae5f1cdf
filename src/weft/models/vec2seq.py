"""Texts written from a vector, such as captions from the features of an image (Vinyals et al., 2015: Show and tell).

The vector sets the first state of a recurrent decoder, or is read by it before the first word.

N: tokens; B: rows; T: places written; F: numbers of a vector; W: width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from weft.errors import UserError
from weft.models.base import ModelConfig, Network
from weft.models.encoder_decoder import numbered
from weft.models.seq2seq import RecurrentDecoder
from weft.models.shared import matrices
from weft.nn.recurrent import PARTS, Cell, Recurrent, SourceMemory
from weft.nn.rows import Ragged, Rows, spread


@dataclass(frozen=True, kw_only=True)
class Vec2SeqConfig(ModelConfig):
    """Sizes of a recurrent decoder that begins from a vector."""

    vocabulary: int = 32000
    features: int = 512  # numbers of a vector
    context: int = 1024  # tokens written at most
    width: int = 512
    embedding_width: int | None = None  # None: width
    layers: int = 1
    cell: Cell = "lstm"
    entrance: Literal["state", "input"] = "state"  # the vector sets the first state, or is read before the first word
    dropout: float = 0.3
    tied: bool = True  # one table for words that are read and scored
    begin: int = 0  # the token that writing begins from
    weight_scale: float = 0.08


class Vec2Seq(RecurrentDecoder):
    """The way in, the decoder and the word head; vectors are taken by their distance from those of training."""

    TOP = (*Network.TOP, "narrow")
    center: Tensor
    spread: Tensor

    def __init__(self, config: Vec2SeqConfig, heads: Mapping[str, int]) -> None:
        super().__init__(config)
        c = config
        size = c.embedding_width or c.width
        self.register_buffer("center", torch.zeros(c.features))
        self.register_buffer("spread", torch.ones(c.features))
        self.tokens = nn.Embedding(c.vocabulary, size)
        self.decoder = Recurrent(c.cell, size, c.width, c.layers, dropout=c.dropout)
        self.entrance = nn.Linear(c.features, size if c.entrance == "input" else c.layers * PARTS[c.cell] * c.width)
        self.narrow = nn.Linear(c.width, size, bias=False) if c.tied and size != c.width else None
        self.dropout, self.looking, self.combine = nn.Dropout(c.dropout), None, None
        self.heads = self.make_heads(heads)

    def layer_names(self) -> list[tuple[str, ...]]:
        return numbered("decoder.layers", self.config.layers)

    @torch.no_grad()
    def settle(self, vectors: Tensor) -> None:
        """Standardize by the vectors to learn from (E F), number by number; one that never changes stays as it is."""
        vectors = vectors.double()  # numbers may be large beside what they differ by
        far = vectors.std(0, correction=0)
        self.center.copy_(vectors.mean(0))
        self.spread.copy_(torch.where(far > 1e-9 * vectors.abs().amax(0), far, 1.0))

    def encode(self, source: Ragged) -> SourceMemory:
        """Take in the vectors, one for each row: B F."""
        c, vectors = self.config, source.tokens
        if vectors.dim() != 2 or vectors.shape[1] != c.features:
            numbers = vectors.shape[1] if vectors.dim() == 2 else 1
            raise UserError(f"a vector of {numbers} numbers, where the model takes {c.features}")
        assert len(vectors) == source.rows.count, "a text is written from one vector"
        x = self.entrance((vectors.to(self.center.dtype) - self.center) / self.spread)
        may = torch.ones(len(x), 1, dtype=torch.bool, device=x.device)
        if c.entrance == "input":
            steps = self.decoder.steps()
            _, state = steps.step(steps.given(self.dropout(x)), self.decoder.beginning(len(x), x))
            return SourceMemory(state, may, None, None)
        parts = iter(x.chunk(c.layers * PARTS[c.cell], -1))  # B W each
        # An LSTM's memory has no bounds; a state has.
        first = tuple((next(parts).tanh(), *(next(parts) for _ in range(PARTS[c.cell] - 1))) for _ in range(c.layers))
        return SourceMemory(first, may, None, None)

    def _one_by_one(self, tokens: Tensor, rows: Rows, memory: SourceMemory, own: Tensor | None) -> Tensor:
        """T B W, place by place."""
        steps, outputs, state = self.decoder.steps(), list[Tensor](), memory.state
        for word in spread(tokens, rows):
            if outputs and own is not None:
                guess = self.words(outputs[-1].detach()).argmax(-1)
                word = torch.where(torch.rand(guess.shape, device=guess.device) < own, guess, word)
            top, state = steps.step(steps.given(self.dropout(self.tokens(word))), state)
            outputs.append(self.dropout(top))
        return torch.stack(outputs)

    def operations(self, source: Rows, rows: Rows) -> float:
        c, written = self.config, int(rows.starts[-1])
        size = self.tokens.weight.shape[1]
        scored = c.vocabulary * (size if c.tied else c.width)
        uses = (matrices(self.decoder, self.narrow) + scored) * written + matrices(self.entrance) * rows.count
        uses += matrices(self.decoder) * rows.count if c.entrance == "input" else 0.0
        return 2.0 * uses

    @torch.no_grad()
    def initialize(self) -> None:
        """Fresh weights: tables within the scale, recurrent matrices as rotations, maps by their width."""
        self.center.zero_()
        self.spread.fill_(1.0)
        self.decoder.initialize()
        for table in (*self.tokens.parameters(), *self.heads.parameters()):
            table.uniform_(-self.config.weight_scale, self.config.weight_scale)
        for module in (self.entrance, self.narrow):
            if module is not None:
                nn.init.xavier_uniform_(module.weight)
        self.entrance.bias.zero_()
