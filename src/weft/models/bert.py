"""BERT (Devlin et al., 2019): token + position + segment embeddings, then Transformer layers that look both ways.

N: tokens; B: rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from weft.models.base import ModelConfig, Network
from weft.models.shared import check_sizes, final_norm_of, layers_of, positions_of, through_layers
from weft.nn.heads import LabelHead, MaskedWordHead, Mix, Pooler
from weft.nn.layers import Activation, NormKind, NormPlace, norm
from weft.nn.positions import Kind
from weft.nn.rows import Rows


@dataclass(frozen=True, kw_only=True)
class BertConfig(ModelConfig):
    """Sizes of a BERT encoder; the defaults are bert-base-uncased."""

    vocabulary: int = 30522
    context: int = 512
    segments: int = 2
    width: int = 768
    layers: int = 12
    heads: int = 12
    head_width: int | None = None  # None: width / heads
    layer_heads: tuple[int, ...] | None = None  # of each layer, where some have lost heads
    inner: int = 3072
    activation: Activation = "gelu"
    positions: Kind = "learned"
    norm: NormKind = "layer"
    norm_place: NormPlace = "after"
    norm_epsilon: float = 1e-12
    dropout: float = 0.1
    attention_dropout: float = 0.1
    head_dropout: float | None = None  # before the heads of tasks; as `dropout`
    pooler: bool = True
    mix: bool = False  # the heads read a learned mix of all layers rather than the last
    tied: bool = True  # the word head reads the table of tokens backwards
    weight_scale: float = 0.02

    def __post_init__(self) -> None:
        check_sizes(self)


class Bert(Network):
    """The encoder, and the heads asked for: words, next, classify, choose, tag, answer."""

    HEADS = ("words", "next", "classify", "choose", "tag", "answer")
    POOLED = ("next", "classify", "choose")  # those that read the pooler

    def __init__(self, config: BertConfig, heads: Mapping[str, int]) -> None:
        super().__init__(config)
        c = config
        self.tokens = nn.Embedding(c.vocabulary, c.width)
        self.segments = nn.Embedding(c.segments, c.width)
        self.positions = positions_of(c)
        self.embedding_norm = norm(c.norm, c.width, c.norm_epsilon)
        self.dropout = nn.Dropout(c.dropout)
        self.layers = layers_of(c, causal=False)
        self.final_norm = final_norm_of(c)
        self.mix = Mix(c.layers + 1) if c.mix else None
        self.pooler = Pooler(c.width) if c.pooler else None
        self.heads = self.make_heads(heads)

    def make_head(self, name: str, outputs: int) -> nn.Module:
        c = self.config
        if name == "words":
            return MaskedWordHead(c.width, outputs, c.activation.removeprefix("gated-"), c.norm_epsilon, c.tied)
        dropout = 0.0 if name in ("next", "answer") else c.dropout if c.head_dropout is None else c.head_dropout
        return LabelHead(c.width, outputs, dropout)

    def forward(
        self, tokens: Tensor, rows: Rows, segments: Tensor | None = None, states: list[Tensor] | None = None
    ) -> Tensor:
        """N tokens -> N width; `states`, where given, gets the embeddings and what each layer makes of them."""
        places = self.positions.places(rows, tokens.shape[0], None)
        # Without segments every token is of the first text.
        segment = self.segments.weight[0] if segments is None else self.segments(segments)
        x = self.positions.add(self.tokens(tokens) + segment, places)
        x = self.dropout(self.embedding_norm(x))
        return through_layers(self, self.layers, x, rows, places, states)
