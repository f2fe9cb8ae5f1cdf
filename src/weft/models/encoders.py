"""BERT (Devlin et al., 2019) and its kin: RoBERTa, XLM-RoBERTa, ALBERT and DistilBERT.

All are token, position and segment embeddings, then Transformer layers that look both ways. N: tokens; B: rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, ClassVar

from torch import Tensor, nn

from weft.errors import UserError
from weft.models.base import ModelConfig, Network, States
from weft.models.shared import check_read, final_norm_of, layers_of, mix_of, positions_of, through_layers
from weft.nn.heads import DeepLabelHead, LabelHead, MaskedWordHead, Pooler
from weft.nn.layers import Activation, NormKind, NormPlace, norm
from weft.nn.positions import Kind, Positions
from weft.nn.rows import Rows


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(ModelConfig):
    """Sizes that all of these encoders have."""

    vocabulary: int = 30522
    context: int = 512
    width: int = 768
    layers: int = 12
    heads: int = 12
    head_width: int | None = None  # None: width / heads
    inner: int = 3072
    activation: Activation = "gelu"
    positions: Kind = "learned"
    norm: NormKind = "layer"
    norm_place: NormPlace = "after"
    norm_epsilon: float = 1e-12
    dropout: float = 0.1
    attention_dropout: float = 0.1
    mix: bool = False  # the heads read a learned mix of all layers rather than the last
    head_layers: str = "last"  # what the heads read otherwise: last4-concat, second-to-last ...
    tied: bool = True  # the word head reads the table of tokens backwards
    weight_scale: float = 0.02


class Encoder(Network):
    """The encoder, and the heads asked for."""

    HEADS: ClassVar[tuple[str, ...]] = ("words", "classify", "choose", "tag", "answer")
    STACK = True
    make_label_head: Callable[[str, int], nn.Module]
    WORDS: ClassVar[Mapping[str, Any]] = {}  # settings of the word head that are not the config's

    def __init__(self, config: EncoderConfig, heads: Mapping[str, int]) -> None:
        super().__init__(config)
        c = config
        check_read(heads, c, self.POOLED)
        width = c.embedding_width or c.width
        self.tokens = nn.Embedding(c.vocabulary, width)
        if c.has("segments") and c.segments:
            self.segments = nn.Embedding(c.segments, width)
        self.positions = self.make_positions(width)
        self.embedding_norm = norm(c.norm, width, c.norm_epsilon)
        self.dropout = nn.Dropout(c.dropout)
        if c.embedding_width is not None:
            self.widened = nn.Linear(width, c.width)
        self.layers = self.make_layers()
        self.final_norm = final_norm_of(c)
        self.mix = mix_of(c)
        self.pooler = Pooler(c.width) if c.pooler else None
        self.heads = self.make_heads(heads)

    def make_positions(self, width: int) -> Positions:
        c = self.config
        return positions_of(c, width, unused=0 if c.padding is None else c.padding + 1)

    def make_layers(self) -> nn.ModuleList:
        return layers_of(self.config, causal=False)

    def make_head(self, name: str, outputs: int) -> nn.Module:
        c = self.config
        if name != "words":
            return self.make_label_head(name, outputs)
        options = {"activation": c.activation.removeprefix("gated-"), "table_width": c.embedding_width, **self.WORDS}
        return MaskedWordHead(c.width, outputs, epsilon=c.norm_epsilon, tied=c.tied, **options)

    def turns(self) -> Iterable[nn.Module]:
        """The layers in the order in which they are read."""
        return self.layers

    def stacks(self) -> dict[str, list[Any]]:
        return {"": list(self.turns())}

    def forward(self, tokens: Tensor, rows: Rows, segments: Tensor | None = None, states: States = None) -> Tensor:
        """N tokens -> N width; `states`, where given, gets the embeddings and what each layer makes of them."""
        places = self.positions.places(rows, tokens.shape[0], None)
        x = self.tokens(tokens)
        if self.segments is not None:  # without segments, or with a single one, every token is of the first text
            alone = segments is None or self.config.segments == 1
            x = x + (self.segments.weight[0] if alone else self.segments(segments))
        x = self.dropout(self.embedding_norm(self.positions.add(x, places)))
        x = x if self.widened is None else self.widened(x)
        return through_layers(self, self.turns(), x, rows, places, states)


@dataclass(frozen=True, kw_only=True)
class BertConfig(EncoderConfig):
    """Sizes of a BERT encoder; the defaults are bert-base-uncased."""

    segments: int = 2
    layer_heads: tuple[int, ...] | None = None  # of each layer, where some have lost heads
    head_dropout: float | None = None  # before the heads of tasks; as `dropout`
    pooler: bool = True


class Bert(Encoder):
    """BERT: the head `next` tells whether two texts follow each other."""

    HEADS = ("words", "next", "classify", "choose", "tag", "answer")
    POOLED = ("next", "classify", "choose")

    def make_label_head(self, name: str, outputs: int) -> nn.Module:
        c = self.config
        dropout = 0.0 if name in ("next", "answer") else c.dropout if c.head_dropout is None else c.head_dropout
        return LabelHead(self.features, outputs, dropout)


@dataclass(frozen=True, kw_only=True)
class RobertaConfig(EncoderConfig):
    """Sizes of a RoBERTa encoder; the defaults are roberta-base."""

    vocabulary: int = 50265
    padding: int = 1  # id of the padding token; the table of positions is longer than the context by padding + 1
    segments: int = 1
    layer_heads: tuple[int, ...] | None = None  # of each layer, where some have lost heads
    norm_epsilon: float = 1e-5
    head_dropout: float | None = None  # before the heads classify and tag; as `dropout`
    pooler: bool = False  # not trained before a task asks for it

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.padding < 1 << 26:
            raise UserError(f"padding must be between 0 and {(1 << 26) - 1}, not {self.padding}")


class Roberta(Encoder):
    """RoBERTa (Liu et al., 2019) and XLM-RoBERTa (Conneau et al., 2020): BERT, trained longer and on words alone."""

    POOLED = ("choose",)
    WORDS: ClassVar = {"activation": "gelu"}  # the exact one, whatever the layers have

    def make_label_head(self, name: str, outputs: int) -> nn.Module:
        c = self.config
        dropout = c.dropout if c.head_dropout is None or name == "choose" else c.head_dropout
        if name == "classify":
            return DeepLabelHead(self.features, outputs, "tanh", dropout, dropout_before=dropout)
        return LabelHead(self.features, outputs, 0.0 if name == "answer" else dropout)


@dataclass(frozen=True, kw_only=True)
class AlbertConfig(EncoderConfig):
    """Sizes of an ALBERT encoder; the defaults are albert-base-v2. `layers`: how often the one layer is read."""

    vocabulary: int = 30000
    segments: int = 2
    embedding_width: int = 128
    activation: Activation = "gelu-tanh"
    dropout: float = 0.0
    attention_dropout: float = 0.0
    head_dropout: float = 0.1  # before the heads of tasks
    pooler: bool = True


class Albert(Encoder):
    """ALBERT (Lan et al., 2020): a narrow table of tokens, and one layer that is read again and again."""

    HEADS = Bert.HEADS
    POOLED = Bert.POOLED

    def make_layers(self) -> nn.ModuleList:
        layers = layers_of(replace(self.config, layers=1), causal=False)
        layers[0].feedforward_drop = nn.Identity()  # the published code drops out nothing here
        return layers

    def turns(self) -> Iterable[nn.Module]:
        return repeat(self.layers[0], self.config.layers)

    def make_label_head(self, name: str, outputs: int) -> nn.Module:
        return LabelHead(self.features, outputs, 0.0 if name == "answer" else self.config.head_dropout)


@dataclass(frozen=True, kw_only=True)
class DistilBertConfig(EncoderConfig):
    """Sizes of a DistilBERT encoder; the defaults are distilbert-base-uncased."""

    layers: int = 6
    layer_heads: tuple[int, ...] | None = None  # of each layer, where some have lost heads
    head_dropout: float = 0.2  # inside the heads classify and choose
    answer_dropout: float = 0.1


class DistilBert(Encoder):
    """DistilBERT (Sanh et al., 2019): BERT at half its layers, without segments and without a pooler."""

    WORDS: ClassVar = {"second_bias": False}

    def make_layers(self) -> nn.ModuleList:
        layers = layers_of(self.config, causal=False)
        for layer in layers:  # the published code drops out nothing here
            layer.attention_drop = nn.Identity()
        return layers

    def make_label_head(self, name: str, outputs: int) -> nn.Module:
        c = self.config
        if name in ("classify", "choose"):
            return DeepLabelHead(self.features, outputs, "relu", c.head_dropout)
        return LabelHead(self.features, outputs, c.answer_dropout if name == "answer" else c.dropout)
