"""The Transformer (Vaswani et al., 2017): an encoder that reads one text, and a decoder that writes another from it.

Marian's models are the same network with two settings of their own: sinusoids in two halves, and a bias on words.

N: tokens written; M: tokens read; B: rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from weft.errors import UserError
from weft.models.base import ModelConfig, start_weights
from weft.models.encoder_decoder import Embedded, TransformerSides
from weft.models.shared import final_norm_of, layers_of, positions_of
from weft.nn.attention import Cache
from weft.nn.layers import Activation, NormKind, NormPlace
from weft.nn.positions import Kind
from weft.nn.rows import Rows


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(ModelConfig):
    """Sizes of a Transformer; the defaults are the paper's base model."""

    vocabulary: int = 37000  # of what is written
    source_vocabulary: int | None = None  # of what is read; without it, one vocabulary for both
    context: int = 1024
    width: int = 512
    layers: int = 6  # of the encoder
    decoder_layers: int | None = None  # as the encoder's
    heads: int = 8
    head_width: int | None = None  # None: width / heads
    decoder_heads: int | None = None  # as the encoder's
    inner: int | None = None  # None: 4 x width
    decoder_inner: int | None = None  # as the encoder's
    activation: Activation = "relu"
    positions: Kind = "sinusoidal"
    norm: NormKind = "layer"
    norm_place: NormPlace = "after"
    norm_epsilon: float = 1e-5
    embedding_dropout: float = 0.1
    dropout: float = 0.1
    attention_dropout: float = 0.0
    inner_dropout: float = 0.0  # between the two maps of a feed-forward network
    tied: Literal["all", "decoder", "none"] = "all"  # one table for what is read, written and scored; for the last two
    scaled: bool = True  # token vectors are multiplied by the root of the width
    word_bias: bool = False
    begin: int = 0  # the token that writing begins from
    weight_scale: float | None = None  # without it, Xavier's, and tables by the root of the width

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decoder_heads not in (None, self.heads):
            if self.positions in ("rotary", "alibi"):
                raise UserError(f"with {self.positions} positions the decoder has as many heads as the encoder")
            if self.head_width is None and self.width % self.decoder_heads:
                raise UserError(f"width {self.width} cannot be cut into {self.decoder_heads} equal heads of a decoder")


def of_decoder(config: TransformerConfig) -> TransformerConfig:
    """The config with the decoder's sizes in place of the encoder's."""
    sizes = {"layers": config.decoder_layers, "heads": config.decoder_heads, "inner": config.decoder_inner}
    own: dict[str, Any] = {name: size for name, size in sizes.items() if size is not None}
    return replace(config, decoder_layers=None, decoder_heads=None, decoder_inner=None, **own) if own else config


class Transformer(TransformerSides):
    """The encoder, the decoder, and its word head."""

    def __init__(self, config: TransformerConfig, heads: Mapping[str, int]) -> None:
        super().__init__(config)
        c = config
        self.tokens = nn.Embedding(c.vocabulary, c.width)
        own = c.tied != "all"
        self.source_tokens = nn.Embedding(c.source_vocabulary or c.vocabulary, c.width) if own else None
        self.positions = positions_of(c)
        self.dropout = nn.Dropout(c.embedding_dropout)
        self.encoder = layers_of(c, causal=False)
        self.encoder_norm = final_norm_of(c)
        self.decoder = layers_of(of_decoder(c), causal=True, reads=True)
        self.decoder_norm = final_norm_of(c)
        self.heads = self.make_heads(heads)

    def embedded(self, tokens: Tensor, rows: Rows, cache: Cache | None = None, read: bool = False) -> Embedded:
        table = self.source_tokens if read and self.source_tokens is not None else self.tokens
        x, places = table(tokens), self.positions.places(rows, tokens.shape[0], cache)
        if self.config.scaled:
            x = x * self.config.width**0.5
        x = self.dropout(self.positions.add(x, places))
        return x, self.positions.bias(rows, cache), self.positions.turns(places, x.dtype)

    @torch.no_grad()
    def initialize(self) -> None:
        """Fresh weights: tables by the root of the width, so that scaled vectors and scores both begin near 1."""
        c = self.config
        start_weights(self, c.width**-0.5 if c.weight_scale is None else c.weight_scale)
        if c.weight_scale is None:
            for part in (self.encoder, self.decoder):
                for name, parameter in part.named_parameters():
                    if parameter.dim() == 2:
                        # Three maps in one matrix are drawn as three.
                        for map in parameter.chunk(3 if "qkv" in name else 2 if "key_value" in name else 1):
                            nn.init.xavier_uniform_(map)
