"""Averaged word vectors: each word has one vector, whatever stands beside it, and a text is the mean of its words.

With a hidden layer in the head it is the deep averaging network of Iyyer et al. (2015).
N: tokens; B: rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from weft.models.base import ModelConfig, Network, States
from weft.models.shared import mean_of
from weft.nn.heads import DeepLabelHead, LabelHead
from weft.nn.rows import Rows, check_context


@dataclass(frozen=True, kw_only=True)
class VectorsConfig(ModelConfig):
    """Sizes of averaged word vectors; the defaults are those of glove.6B.300d and one word for all unknown ones."""

    vocabulary: int = 400_001
    context: int = 1 << 24  # there is no position, so texts may be as long as anything that is read
    width: int = 300
    inner: int | None = None  # width of one hidden layer in the head; None: a plain linear map
    dropout: float = 0.0  # of the numbers that the head reads
    word_dropout: float = 0.0  # of whole words; 0.3 in the paper
    weight_scale: float = 0.02


class Vectors(Network):
    """The table of words, and a head that reads the mean of a text."""

    HEADS = ("classify",)

    def __init__(self, config: VectorsConfig, heads: Mapping[str, int]) -> None:
        super().__init__(config)
        c = config
        self.tokens = nn.Embedding(c.vocabulary, c.width)
        self.heads = self.make_heads(heads)

    def make_head(self, name: str, outputs: int) -> nn.Module:
        c = self.config
        if c.inner is None:
            return LabelHead(c.width, outputs, c.dropout)
        return DeepLabelHead(c.width, outputs, "relu", c.dropout, dropout_before=c.dropout, inner=c.inner)

    def forward(self, tokens: Tensor, rows: Rows, segments: Tensor | None = None, states: States = None) -> Tensor:
        """N tokens -> N width; segments mean nothing here, and `states`, where given, gets the vectors."""
        check_context(rows, self.config.context)
        x = self.tokens(tokens)
        if self.training:
            # The paper takes the mean of the words that stay. Here they are scaled up instead, which is the same on
            # average, and a short text that loses all its words has a mean of 0 rather than none.
            x = x * F.dropout(x.new_ones(x.shape[0], 1), self.config.word_dropout)
        if states is not None:
            states.append(x)
        return x

    def pooled(self, hidden: Tensor, rows: Rows) -> Tensor:
        """B width: the mean of each row, added up in float32 at least; 0 for a row of no words."""
        return mean_of(hidden, rows)
