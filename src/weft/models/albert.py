"""ALBERT (Lan et al., 2020): a narrow table of tokens, and one layer that is read again and again.

N: tokens; B: rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import repeat

from torch import Tensor, nn

from weft.models.base import ModelConfig, Network
from weft.models.shared import check_sizes, final_norm_of, one_layer_of, positions_of, through_layers
from weft.nn.heads import LabelHead, MaskedWordHead, Mix, Pooler
from weft.nn.layers import Activation, NormKind, NormPlace, norm
from weft.nn.positions import Kind
from weft.nn.rows import Rows


@dataclass(frozen=True, kw_only=True)
class AlbertConfig(ModelConfig):
    """Sizes of an ALBERT encoder; the defaults are albert-base-v2."""

    vocabulary: int = 30000
    context: int = 512
    segments: int = 2
    embedding_width: int = 128
    width: int = 768
    layers: int = 12  # how often the one layer is read
    heads: int = 12
    head_width: int | None = None  # None: width / heads
    inner: int = 3072
    activation: Activation = "gelu-tanh"
    positions: Kind = "learned"
    norm: NormKind = "layer"
    norm_place: NormPlace = "after"
    norm_epsilon: float = 1e-12
    dropout: float = 0.0
    attention_dropout: float = 0.0
    head_dropout: float = 0.1  # before the heads of tasks
    pooler: bool = True
    mix: bool = False  # the heads read a learned mix of all layers rather than the last
    tied: bool = True  # the word head reads the table of tokens backwards
    weight_scale: float = 0.02

    def __post_init__(self) -> None:
        check_sizes(self)


class Albert(Network):
    """The encoder, and the heads asked for: words, next (are two texts in order?), classify, choose, tag, answer."""

    HEADS = ("words", "next", "classify", "choose", "tag", "answer")
    POOLED = ("next", "classify", "choose")  # those that read the pooler

    def __init__(self, config: AlbertConfig, heads: Mapping[str, int]) -> None:
        super().__init__(config)
        c = config
        self.tokens = nn.Embedding(c.vocabulary, c.embedding_width)
        self.segments = nn.Embedding(c.segments, c.embedding_width)
        self.positions = positions_of(c, width=c.embedding_width)
        self.embedding_norm = norm(c.norm, c.embedding_width, c.norm_epsilon)
        self.dropout = nn.Dropout(c.dropout)
        self.widened = nn.Linear(c.embedding_width, c.width)
        self.layers = one_layer_of(c)
        self.layers[0].feedforward_drop = nn.Identity()  # the published code drops out nothing here
        self.final_norm = final_norm_of(c)
        self.mix = Mix(c.layers + 1) if c.mix else None
        self.pooler = Pooler(c.width) if c.pooler else None
        self.heads = self.make_heads(heads)

    def make_head(self, name: str, outputs: int) -> nn.Module:
        c = self.config
        if name == "words":
            activation = c.activation.removeprefix("gated-")
            return MaskedWordHead(c.width, outputs, activation, c.norm_epsilon, c.tied, table_width=c.embedding_width)
        return LabelHead(c.width, outputs, 0.0 if name == "answer" else c.head_dropout)

    def forward(
        self, tokens: Tensor, rows: Rows, segments: Tensor | None = None, states: list[Tensor] | None = None
    ) -> Tensor:
        """N tokens -> N width; `states`, where given, gets the embeddings and what each turn makes of them."""
        places = self.positions.places(rows, tokens.shape[0], None)
        # Without segments every token is of the first text.
        segment = self.segments.weight[0] if segments is None else self.segments(segments)
        x = self.positions.add(self.tokens(tokens) + segment, places)
        x = self.widened(self.dropout(self.embedding_norm(x)))
        return through_layers(self, repeat(self.layers[0], self.config.layers), x, rows, places, states)
