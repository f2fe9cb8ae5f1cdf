"""GPT, GPT-2 and the GPT-3 sizes (Radford et al., 2018, 2019; Brown et al., 2020): Transformer layers that look back.

GPT puts its norms after each part, GPT-2 before, with one more at the end. Every layer of GPT-3's sizes looks at all of
the text; the sparse ones are not here. N: tokens; B: rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from weft.models.base import ModelConfig, Network, Started, States
from weft.models.shared import check_read, final_norm_of, layers_of, mix_of, positions_of, through_layers
from weft.nn.attention import Cache
from weft.nn.fixed import FixedCache
from weft.nn.heads import LabelHead, WordHead, step_scores
from weft.nn.layers import Activation, NormKind, NormPlace
from weft.nn.open_rows import CachedRows
from weft.nn.positions import Kind
from weft.nn.rows import Ragged, Rows


@dataclass(frozen=True, kw_only=True)
class GptConfig(ModelConfig):
    """Sizes of a GPT decoder; the defaults are gpt2."""

    vocabulary: int = 50257
    context: int = 1024
    width: int = 768
    layers: int = 12
    heads: int = 12
    head_width: int | None = None  # None: width / heads
    layer_heads: tuple[int, ...] | None = None  # of each layer, where some have lost heads
    inner: int | None = None  # None: 4 x width
    activation: Activation = "gelu-tanh"
    positions: Kind = "learned"
    norm: NormKind = "layer"
    norm_place: NormPlace = "before"
    norm_epsilon: float = 1e-5
    embedding_dropout: float = 0.1
    dropout: float = 0.1
    attention_dropout: float = 0.1
    head_dropout: float = 0.1  # before the choose head
    tag_dropout: float = 0.1
    mix: bool = False  # the heads read a learned mix of all layers rather than the last
    head_layers: str = "last"  # what the heads read otherwise: last4-concat, second-to-last ...
    tied: bool = True  # the word head reads the table of tokens backwards
    weight_scale: float = 0.02


class Gpt(Network):
    """The decoder, and the heads asked for: words, classify, choose, tag, answer."""

    in_slots = FixedCache
    open_rows = CachedRows
    HEADS = ("words", "classify", "choose", "tag", "answer")
    STACK = True

    def __init__(self, config: GptConfig, heads: Mapping[str, int]) -> None:
        super().__init__(config)
        c = config
        check_read(heads, c, self.POOLED)
        self.tokens = nn.Embedding(c.vocabulary, c.width)
        self.positions = positions_of(c)
        self.dropout = nn.Dropout(c.embedding_dropout)
        self.layers = layers_of(c, causal=True)
        self.final_norm = final_norm_of(c)
        self.mix = mix_of(c)
        self.heads = self.make_heads(heads)

    def make_head(self, name: str, outputs: int) -> nn.Module:
        c = self.config
        if name == "words":
            return WordHead(c.width, outputs, c.tied)
        dropout = {"choose": c.head_dropout, "tag": c.tag_dropout}.get(name, 0.0)
        return LabelHead(self.features, outputs, dropout, bias=name != "classify")

    def forward(
        self,
        tokens: Tensor,
        rows: Rows,
        segments: Tensor | None = None,
        states: States = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """N tokens -> N width; with a cache that holds something, one new token per row."""
        places = self.positions.places(rows, tokens.shape[0], cache)
        x = self.tokens(tokens)
        if segments is not None:  # GPT-2 reads a segment as one more token (Wolf et al., 2019)
            x = x + self.tokens(segments)
        x = self.dropout(self.positions.add(x, places))
        return through_layers(self, self.layers, x, rows, places, states, cache)

    def pooled(self, hidden: Tensor, rows: Rows) -> Tensor:
        """B width: the last token of each row has read all of it."""
        return hidden[rows.lasts()]

    def start(self, prompt: Ragged, source: Ragged | None = None, room: int = 0, attention: bool = False) -> Started:
        cache = Cache(self.config.layers, prompt.rows, room)
        hidden = self(prompt.tokens, prompt.rows, cache=cache)
        return step_scores(self.words(hidden[prompt.rows.lasts()])), cache

    def step(self, tokens: Tensor, state: Cache) -> Tensor:
        hidden = self.further(tokens, state)
        state.advance()
        return step_scores(self.words(hidden))

    def further(self, tokens: Tensor, cache: Any) -> Tensor:
        """N tokens that come after what is in the cache -> N width"""
        return self(tokens, Rows.single(len(tokens), tokens.device), cache=cache)

    @torch.no_grad()
    def initialize(self) -> None:
        """Draw fresh weights; in GPT-2 the last projection of each part starts smaller in a deeper network."""
        super().initialize()
        if self.config.norm_place == "before":
            for name, parameter in self.layers.named_parameters():
                if name.endswith(("attention.output.weight", "feedforward.down.weight")):
                    parameter.normal_(0.0, self.config.weight_scale / (2 * self.config.layers) ** 0.5)
