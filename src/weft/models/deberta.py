"""DeBERTa v2 and v3 (He et al., 2021; 2023): attention that reads content and relative position apart.

N: tokens; B: rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from weft.errors import UserError, refuse
from weft.models.base import States
from weft.models.encoders import Encoder, EncoderConfig
from weft.models.shared import layers_of
from weft.nn.disentangled import Convolution, DisentangledLayer, RelativePositions, Term
from weft.nn.heads import DeepLabelHead, LabelHead, ReplacedHead
from weft.nn.layers import Activation
from weft.nn.positions import Kind, Positions
from weft.nn.rows import Rows

DECODINGS = 2  # how often the mask decoder reads the last layer, as published


@dataclass(frozen=True, kw_only=True)
class DebertaConfig(EncoderConfig):
    """Sizes of a DeBERTa encoder; the defaults are deberta-v3-base."""

    vocabulary: int = 128100
    segments: int = 0  # 0: no table
    layer_heads: tuple[int, ...] | None = None  # of each layer, where some have lost heads
    norm_epsilon: float = 1e-7
    positions: Kind = "none"  # absolute ones, added to tokens
    terms: tuple[Term, ...] = ("p2c", "c2p")  # of the scores, for relative positions
    shared_maps: bool = True  # distances go through the maps of queries and keys
    position_buckets: int | None = 256  # of distances to either side; None: every distance has its own vector
    farthest: int | None = None  # distance that still has its own bucket; None: the context
    relative_norm: bool = True  # of the table of distances
    kernel: int | None = None  # of the convolution beside the first layer (v2)
    kernel_activation: Activation = "tanh"
    pooler_dropout: float = 0.0
    pooler_activation: Activation = "gelu"
    head_dropout: float | None = None  # before the last map of classify and choose; as `dropout`
    mask_decoder: bool = False  # words are read from a decoder that knows absolute positions
    MAY_BE_ZERO: ClassVar[tuple[str, ...]] = ("segments",)

    def __post_init__(self) -> None:
        super().__post_init__()
        buckets, farthest, terms = self.position_buckets, self.farthest or self.context, self.terms
        known = len(set(terms)) == len(terms) and set(terms) <= {"c2p", "p2c"}
        # Distances up to half of the buckets have one each; beyond, the farthest must leave some to be shared.
        own = 0 if buckets is None else buckets // 2 + 1
        enough = buckets is None or (4 <= buckets <= 1 << 16 and (farthest > own or self.context <= own))
        several = f"position_buckets must be at least 4, and half of them less than the farthest distance {farthest}"
        refuse(
            (not known, f"terms must be of c2p and p2c, each once, not {list(terms)[:20]}"),
            (not enough, f"{several}, not {buckets}"),
            (self.kernel is not None and self.kernel % 2 == 0, f"kernel must be odd, not {self.kernel}"),
            (self.positions == "alibi", "deberta has its own bias for distances: positions cannot be alibi"),
        )

    def with_heads(self, heads: Mapping[str, int]) -> DebertaConfig:
        return replace(self, mask_decoder=self.mask_decoder and "words" in heads)


class Deberta(Encoder):
    """DeBERTa: the head `replaced` tells of each token whether a generator put it there."""

    HEADS = ("words", "replaced", "classify", "choose", "tag", "answer")
    BY_TOKEN = ("words", "replaced", "tag", "answer")

    def make_positions(self, width: int) -> Positions:
        c = self.config
        if not c.terms:
            return super().make_positions(width)
        sizes = {
            "context": c.context,
            "width": width,
            "heads": c.heads,
            "head_width": c.head_width or c.width // c.heads,
        }
        distances = 2 * (c.position_buckets or c.farthest or c.context)
        return RelativePositions(
            c.positions, distances=distances, normed=c.relative_norm, epsilon=c.norm_epsilon, **sizes
        )

    def make_layers(self) -> nn.ModuleList:
        c = self.config
        attention = {"terms": c.terms, "shared": c.shared_maps, "buckets": c.position_buckets}
        attention |= {"farthest": c.farthest or c.context, "distance_dropout": c.dropout}
        layers = layers_of(c, causal=False, kind=DisentangledLayer, attention=attention)
        if c.kernel is not None:
            layers[0].convolution = Convolution(c.width, c.kernel, c.kernel_activation, c.norm_epsilon, c.dropout)
        return layers

    def make_head(self, name: str, outputs: int) -> nn.Module:
        c = self.config
        head = super().make_head(name, outputs)
        if name == "words" and c.mask_decoder:
            head.positions = nn.Embedding(c.context, c.width)
        return head

    def make_label_head(self, name: str, outputs: int) -> nn.Module:
        c = self.config
        if name == "replaced":
            return ReplacedHead(c.width, c.activation.removeprefix("gated-"), c.norm_epsilon)
        if name in ("classify", "choose"):
            dropout = c.dropout if c.head_dropout is None else c.head_dropout
            return DeepLabelHead(self.features, outputs, c.pooler_activation, dropout, dropout_before=c.pooler_dropout)
        return LabelHead(self.features, outputs, 0.0 if name == "answer" else c.dropout)

    def forward(self, tokens: Tensor, rows: Rows, segments: Tensor | None = None, states: States = None) -> Tensor:
        """N tokens -> N width; with a mask decoder, its output, while `states` has what the layers make."""
        if not (self.config.mask_decoder and "words" in self.heads):
            return super().forward(tokens, rows, segments, states)
        seen: list[Tensor] = []
        super().forward(tokens, rows, segments, seen)
        if states is not None:
            states += seen
        return self.decoded(seen[-2], rows)

    def decoded(self, hidden: Tensor, rows: Rows) -> Tensor:
        """N width: the last layer again, its queries from absolute positions; `hidden` is what the layer before made.

        The enhanced mask decoder (He et al., 2021, section 3.2): positions come in right before words are predicted.
        """
        places = rows.places(hidden.shape[0])
        asking = hidden + self.heads["words"].positions(places)
        table, turns = self.positions.bias(rows, None), self.positions.turns(places, hidden.dtype)
        for _ in range(DECODINGS):
            asking = self.layers[-1].asked(asking, hidden, rows, table, turns)
        return self.final_norm(asking)

    def check_lens(self) -> None:
        super().check_lens()
        if self.config.mask_decoder:
            raise UserError("the word head of this model reads its mask decoder, so no layer alone predicts words")

    def logits(self, head: str, hidden: Tensor, rows: Rows) -> Tensor:
        if head != "replaced":
            return super().logits(head, hidden, rows)
        return self.heads[head](hidden, hidden[rows.firsts()[rows.numbers(hidden.shape[0])]])

    def make_generator(self) -> Deberta:
        """As wide, half as deep and with a mask decoder: it proposes words in replaced-token detection (v3)."""
        c = self.config
        config = replace(c, layers=max(1, c.layers // 2), mask_decoder=True, mix=False, head_layers="last")
        return Deberta(config, {"words": config.vocabulary})

    def initialize(self) -> None:
        super().initialize()
        for module in self.modules():
            if isinstance(module, nn.Conv1d):
                with torch.no_grad():
                    module.weight.normal_(0.0, self.config.weight_scale)
