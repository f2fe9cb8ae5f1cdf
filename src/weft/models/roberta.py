"""RoBERTa (Liu et al., 2019) and XLM-RoBERTa (Conneau et al., 2020): BERT's encoder, trained longer and on words alone.

Its positions are counted from the padding token's id + 1, so that the first rows of the table are never read.

N: tokens; B: rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from weft.errors import UserError
from weft.models.base import ModelConfig, Network
from weft.models.shared import check_sizes, final_norm_of, layers_of, positions_of, through_layers
from weft.nn.heads import DeepLabelHead, LabelHead, MaskedWordHead, Mix, Pooler
from weft.nn.layers import Activation, NormKind, NormPlace, norm
from weft.nn.positions import Kind
from weft.nn.rows import Rows


@dataclass(frozen=True, kw_only=True)
class RobertaConfig(ModelConfig):
    """Sizes of a RoBERTa encoder; the defaults are roberta-base."""

    vocabulary: int = 50265
    context: int = 512  # the longest text; the table of positions is longer by padding + 1
    padding: int = 1  # id of the padding token
    segments: int = 1
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
    norm_epsilon: float = 1e-5
    dropout: float = 0.1
    attention_dropout: float = 0.1
    head_dropout: float | None = None  # before the heads classify and tag; as `dropout`
    pooler: bool = False  # not trained before a task asks for it
    mix: bool = False  # the heads read a learned mix of all layers rather than the last
    tied: bool = True  # the word head reads the table of tokens backwards
    weight_scale: float = 0.02

    def __post_init__(self) -> None:
        check_sizes(self)
        if not 0 <= self.padding < 1 << 26:
            raise UserError(f"padding must be between 0 and {(1 << 26) - 1}, not {self.padding}")


class Roberta(Network):
    """The encoder, and the heads asked for: words, classify, choose, tag, answer."""

    HEADS = ("words", "classify", "choose", "tag", "answer")
    POOLED = ("choose",)  # those that read the pooler

    def __init__(self, config: RobertaConfig, heads: Mapping[str, int]) -> None:
        super().__init__(config)
        c = config
        self.tokens = nn.Embedding(c.vocabulary, c.width)
        self.segments = nn.Embedding(c.segments, c.width)
        self.positions = positions_of(c, unused=c.padding + 1)
        self.embedding_norm = norm(c.norm, c.width, c.norm_epsilon)
        self.dropout = nn.Dropout(c.dropout)
        self.layers = layers_of(c, causal=False)
        self.final_norm = final_norm_of(c)
        self.mix = Mix(c.layers + 1) if c.mix else None
        self.pooler = Pooler(c.width) if c.pooler else None
        self.heads = self.make_heads(heads)

    def make_head(self, name: str, outputs: int) -> nn.Module:
        c = self.config
        if name == "words":  # bent by the exact GELU, whatever the layers are bent by
            return MaskedWordHead(c.width, outputs, "gelu", c.norm_epsilon, c.tied)
        dropout = c.dropout if c.head_dropout is None or name == "choose" else c.head_dropout
        if name == "classify":
            return DeepLabelHead(c.width, outputs, "tanh", dropout, dropout_before=dropout)
        return LabelHead(c.width, outputs, 0.0 if name == "answer" else dropout)

    def forward(
        self, tokens: Tensor, rows: Rows, segments: Tensor | None = None, states: list[Tensor] | None = None
    ) -> Tensor:
        """N tokens -> N width; `states`, where given, gets the embeddings and what each layer makes of them."""
        places = self.positions.places(rows, tokens.shape[0], None)
        # The published models know a single segment, and their tokenizers put the second of a pair into it too.
        alone = segments is None or self.config.segments == 1
        segment = self.segments.weight[0] if alone else self.segments(segments)
        x = self.positions.add(self.tokens(tokens) + segment, places)
        x = self.dropout(self.embedding_norm(x))
        return through_layers(self, self.layers, x, rows, places, states)
