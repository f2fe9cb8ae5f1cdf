"""The Transformer (Vaswani et al., 2017), Marian's models, and T5 (Raffel et al., 2020): an encoder and a decoder.

Marian's have sinusoids in two halves, and a bias on words. T5 has relative positions, RMS norms before, and no biases;
version 1.1 is gated and has a table of words of its own. N: tokens written; M: tokens read; B: rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from weft.errors import UserError
from weft.models.base import ModelConfig
from weft.models.encoder_decoder import Embedded, TransformerSides
from weft.models.shared import final_norm_of, layers_of, positions_of, start_weights
from weft.nn.attention import Cache
from weft.nn.layers import Activation, NormKind, NormPlace
from weft.nn.positions import Buckets, Kind
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


@dataclass(frozen=True, kw_only=True)
class T5Config(ModelConfig):
    """Sizes of a T5; the defaults are t5-small."""

    vocabulary: int = 32128
    context: int = 512  # tokens read, or written, at most; relative positions know no bound of their own
    width: int = 512
    layers: int = 6  # of the encoder
    decoder_layers: int | None = None  # as the encoder's
    heads: int = 8
    head_width: int = 64  # whatever the width
    inner: int = 2048
    activation: Activation = "relu"
    buckets: int = 32  # of distances
    farthest: int = 128  # distances from here on share the last bucket
    norm: NormKind = "rms-t5"
    norm_place: NormPlace = "before"
    norm_epsilon: float = 1e-6
    dropout: float = 0.1
    attention_dropout: float | None = None  # as all others
    tied: bool = True  # one table for what is read, written and scored
    scaled: bool = True  # what is scored is multiplied by width ** -0.5 first
    begin: int = 0  # the token that writing begins from: the padding
    weight_scale: float = 1.0  # a factor of each matrix's own scale

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.buckets < 4 or self.buckets % 2:
            raise UserError(f"buckets must be even and at least 4, not {self.buckets}")
        if self.farthest <= self.buckets // 2:
            raise UserError(f"farthest must be above half the buckets, {self.buckets // 2}, not {self.farthest}")


class T5(TransformerSides):
    """The encoder, the decoder, and its word head."""

    def __init__(self, config: T5Config, heads: Mapping[str, int]) -> None:
        super().__init__(config)
        c = config
        self.tokens = nn.Embedding(c.vocabulary, c.width)
        self.dropout = nn.Dropout(c.dropout)
        among = c.dropout if c.attention_dropout is None else c.attention_dropout
        # A score is not divided by the root of the head's width: the first weights make up for it.
        usual: dict[str, Any] = {"attention_dropout": among, "inner_dropout": c.dropout, "biases": False, "scale": 1.0}
        self.encoder_positions = Buckets(c.buckets, c.farthest, c.heads, c.context, both_ways=True)
        self.encoder = layers_of(c, causal=False, **usual)
        self.encoder_norm = final_norm_of(c)
        self.decoder_positions = Buckets(c.buckets, c.farthest, c.heads, c.context, both_ways=False)
        self.decoder = layers_of(c, causal=True, layers=c.decoder_layers, reads=True, **usual)
        self.decoder_norm = final_norm_of(c)
        self.heads = self.make_heads(heads)

    def embedded(self, tokens: Tensor, rows: Rows, cache: Cache | None = None, read: bool = False) -> Embedded:
        positions = self.encoder_positions if read else self.decoder_positions
        return self.dropout(self.tokens(tokens)), positions.bias(rows, cache), None

    def leave(self, x: Tensor) -> Tensor:
        return self.dropout(x)

    def word_inputs(self, hidden: Tensor) -> tuple[Tensor, Any]:
        return super().word_inputs(hidden * self.config.width**-0.5 if self.config.scaled else hidden)

    @property
    def rate_factors(self) -> Mapping[str, float]:
        """Tables begin larger than matrices by the root of the width, so they take steps as much larger.

        T5's own optimizer (Adafactor; Shazeer and Stern, 2018) scales each step by the weights; AdamW does not.
        """
        return {"tokens.": self.config.width**0.5}

    @torch.no_grad()
    def initialize(self) -> None:
        """Fresh weights as published: each matrix by what it reads, and queries by a head's width too."""
        c = self.config
        heads = c.heads * c.head_width
        self.tokens.weight.normal_(0.0, c.weight_scale)
        for name, parameter in self.named_parameters():
            if "norm" in name:
                parameter.fill_(c.weight_scale)
            elif name.endswith("qkv.weight"):
                for part, scale in zip(
                    parameter.chunk(3), ((c.width * c.head_width) ** -0.5, *[c.width**-0.5] * 2), strict=True
                ):
                    part.normal_(0.0, c.weight_scale * scale)
            elif name != "tokens.weight":
                reads = {"query": c.width * c.head_width, "output": heads, "down": c.inner}.get(name.split(".")[-2])
                # A table of words that is not scaled begins so that scores are near 1, as a scaled one's are.
                scaled = name.startswith("heads.") and c.scaled
                parameter.normal_(0.0, c.weight_scale * (1.0 if scaled else (reads or c.width) ** -0.5))
