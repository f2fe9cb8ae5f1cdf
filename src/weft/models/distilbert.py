"""DistilBERT (Sanh et al., 2019): BERT at half its layers, without segments and without a pooler.

N: tokens; B: rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from weft.models.base import ModelConfig, Network
from weft.models.shared import check_sizes, final_norm_of, layers_of, positions_of, through_layers
from weft.nn.heads import DeepLabelHead, LabelHead, MaskedWordHead, Mix
from weft.nn.layers import Activation, NormKind, NormPlace, norm
from weft.nn.positions import Kind
from weft.nn.rows import Rows


@dataclass(frozen=True, kw_only=True)
class DistilBertConfig(ModelConfig):
    """Sizes of a DistilBERT encoder; the defaults are distilbert-base-uncased."""

    vocabulary: int = 30522
    context: int = 512
    width: int = 768
    layers: int = 6
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
    head_dropout: float = 0.2  # inside the heads classify and choose
    answer_dropout: float = 0.1
    mix: bool = False  # the heads read a learned mix of all layers rather than the last
    tied: bool = True  # the word head reads the table of tokens backwards
    weight_scale: float = 0.02

    def __post_init__(self) -> None:
        check_sizes(self)


class DistilBert(Network):
    """The encoder, and the heads asked for: words, classify, choose, tag, answer."""

    HEADS = ("words", "classify", "choose", "tag", "answer")

    def __init__(self, config: DistilBertConfig, heads: Mapping[str, int]) -> None:
        super().__init__(config)
        c = config
        self.tokens = nn.Embedding(c.vocabulary, c.width)
        self.positions = positions_of(c)
        self.embedding_norm = norm(c.norm, c.width, c.norm_epsilon)
        self.dropout = nn.Dropout(c.dropout)
        self.layers = layers_of(c, causal=False)
        for layer in self.layers:  # the published code drops out nothing here
            layer.attention_drop = nn.Identity()
        self.final_norm = final_norm_of(c)
        self.mix = Mix(c.layers + 1) if c.mix else None
        self.heads = self.make_heads(heads)

    def make_head(self, name: str, outputs: int) -> nn.Module:
        c = self.config
        if name == "words":
            activation = c.activation.removeprefix("gated-")
            return MaskedWordHead(c.width, outputs, activation, c.norm_epsilon, c.tied, second_bias=False)
        if name in ("classify", "choose"):
            return DeepLabelHead(c.width, outputs, "relu", c.head_dropout)
        return LabelHead(c.width, outputs, c.answer_dropout if name == "answer" else c.dropout)

    def forward(
        self, tokens: Tensor, rows: Rows, segments: Tensor | None = None, states: list[Tensor] | None = None
    ) -> Tensor:
        """N tokens -> N width, whatever their segments; `states`, where given, gets what each layer makes of them."""
        places = self.positions.places(rows, tokens.shape[0], None)
        x = self.positions.add(self.tokens(tokens), places)
        x = self.dropout(self.embedding_norm(x))
        return through_layers(self, self.layers, x, rows, places, states)
