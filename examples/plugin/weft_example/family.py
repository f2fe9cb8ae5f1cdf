"""A gated convolutional encoder (after Dauphin et al., 2017): a table of tokens and residual gated convolutions.

N: tokens of all rows; B: rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weft.checkpoint.families import Family
from weft.errors import UserError
from weft.models.base import ModelConfig, Network
from weft.models.shared import check_limits
from weft.nn.layers import GatedConvolution
from weft.nn.rows import Rows, check_context


@dataclass(frozen=True, kw_only=True)
class GatedCnnConfig(ModelConfig):
    """Sizes of a gated convolutional encoder."""

    vocabulary: int = 8000
    context: int = 1 << 24  # there are no positions, so a text may be of any length
    width: int = 64
    layers: int = 2
    kernel: int = 3  # tokens that a convolution sees
    dropout: float = 0.1
    weight_scale: float = 0.3

    def __post_init__(self) -> None:
        check_limits(self)
        if self.kernel % 2 == 0:
            raise UserError(f"kernel must be odd, not {self.kernel}")


class GatedCnn(Network):
    """The table of tokens, the convolutions, and the heads asked for."""

    HEADS = ("classify", "tag")

    def __init__(self, config: GatedCnnConfig, heads: Mapping[str, int]) -> None:
        super().__init__(config)
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.layers = nn.ModuleList(
            GatedConvolution(config.width, config.kernel, causal=False) for _ in range(config.layers)
        )
        self.dropout = nn.Dropout(config.dropout)
        self.heads = self.make_heads(heads)

    def forward(
        self, tokens: Tensor, rows: Rows, segments: Tensor | None = None, states: list[Tensor] | None = None
    ) -> Tensor:
        """N tokens -> N width."""
        check_context(rows.longest, self.config.context)
        x = self.tokens(tokens)
        seen = [x]
        for layer in self.layers:
            x = x + layer(self.dropout(x), rows)
            seen.append(x)
        if states is not None:
            states += seen
        return x

    def pooled(self, hidden: Tensor, rows: Rows) -> Tensor:
        """B width: the mean of each row; 0 for a row without tokens."""
        sums = torch.zeros(rows.count, hidden.shape[1], dtype=hidden.dtype, device=hidden.device)
        sums = sums.index_add(0, rows.numbers(hidden.shape[0]), hidden)
        return sums / rows.lengths().clamp(min=1)[:, None]


FAMILY = Family(name="gated-cnn", config=GatedCnnConfig, network=GatedCnn, tokenizer="word", trained=())
