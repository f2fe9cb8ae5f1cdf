"""Networks that read a text without its order, or nearly: averaged word vectors, and convolutions (Kim, 2014).

N: tokens; B: rows; W: width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.errors import UserError
from weft.models.base import ModelConfig, Network, States
from weft.models.limits import LIMITS
from weft.models.shared import mean_of
from weft.nn.heads import DeepLabelHead, LabelHead
from weft.nn.layers import neighbors
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
    """The table of words, and a head that reads the mean of a text (Iyyer et al., 2015, if it has a hidden layer)."""

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
        check_context(rows.longest, self.config.context)
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


@dataclass(frozen=True, kw_only=True)
class CnnConfig(ModelConfig):
    """Sizes of a convolutional network; narrower than Kim's, with kernels of 1 and 2 tokens, better on few rows."""

    vocabulary: int = 8000
    context: int = 1 << 24  # there is no position, so texts may be as long as anything that is read
    width: int = 128  # of the table of tokens; 300 in the paper
    kernels: tuple[int, ...] = (1, 2, 3)  # tokens that a feature map sees at a time; 3, 4, 5 in the paper
    maps: int = 100  # feature maps of each kernel
    both: bool = False  # two tables, one that learns and one that stays as it begins (Kim's two channels)
    dropout: float = 0.5  # of the features that the head reads
    weight_scale: float | None = None  # None: so that what goes in and what comes out vary alike

    def __post_init__(self) -> None:
        super().__post_init__()
        most = LIMITS["kernel"]
        if not 1 <= len(self.kernels) <= 64 or not all(1 <= kernel <= most for kernel in self.kernels):
            raise UserError(f"kernels must be 1 to 64 numbers between 1 and {most}, not {list(self.kernels)}")
        if len(set(self.kernels)) < len(self.kernels):
            raise UserError(f"kernels must differ, not {list(self.kernels)}; more maps see the same number of tokens")


def sight(kernel: int) -> tuple[int, int]:
    """The farthest places to the left and to the right that a kernel sees: one more to the right where it is even."""
    left = (kernel - 1) // 2
    return -left, kernel - 1 - left


class Cnn(Network):
    """The table of tokens, the convolutions, and a head that reads the largest value of each feature map.

    Every place is looked at with its neighbors, zeros beyond the ends of the text: a text may be shorter than a kernel.
    Kim's bound on the length of the output weights is left out (Zhang and Wallace, 2015): AdamW's decay does its work.
    """

    HEADS = ("classify",)
    fixed: Tensor  # the table that stays as it begins, where there are two

    def __init__(self, config: CnnConfig, heads: Mapping[str, int]) -> None:
        super().__init__(config)
        c = config
        self.tokens = nn.Embedding(c.vocabulary, c.width)
        if c.both:  # no parameter: nothing can train it
            self.register_buffer("fixed", torch.empty(c.vocabulary, c.width))
        self.channels = c.width * (1 + c.both)
        self.convolutions = nn.ModuleList(nn.Linear(kernel * self.channels, c.maps) for kernel in c.kernels)
        self.heads = self.make_heads(heads)

    @property
    def features(self) -> int:
        """Width of what the head reads."""
        return self.config.maps * len(self.config.kernels)

    @property
    def state_widths(self) -> list[int]:
        return [self.config.width, self.features]

    def layer_names(self) -> list[tuple[str, ...]]:
        return [("convolutions",)]

    def forward(self, tokens: Tensor, rows: Rows, segments: Tensor | None = None, states: States = None) -> Tensor:
        """N tokens -> N features, none below 0; segments mean nothing here, `states` gets the vectors and these."""
        check_context(rows.longest, self.config.context)
        x = self.tokens(tokens)
        vectors = torch.cat([x, F.embedding(tokens, self.fixed)], -1) if self.config.both else x
        sights = [sight(kernel) for kernel in self.config.kernels]
        first, last = min(left for left, _ in sights), max(right for _, right in sights)
        seen = neighbors(vectors, rows, range(first, last + 1))  # what the widest sees; the others see a part of it
        maps = [
            convolution(seen[:, (left - first) * self.channels : (right - first + 1) * self.channels])
            for convolution, (left, right) in zip(self.convolutions, sights, strict=True)
        ]
        hidden = torch.cat(maps, -1).relu()
        if states is not None:
            states += [x, hidden]
        return hidden

    def pooled(self, hidden: Tensor, rows: Rows) -> Tensor:
        """B features: the largest of each in each row; 0 for a row of no words."""
        numbers = rows.numbers(hidden.shape[0])[:, None].expand_as(hidden)
        return hidden.new_zeros(rows.count, hidden.shape[1]).scatter_reduce(0, numbers, hidden, "amax")

    @property
    def products(self) -> int:
        """Products that one token costs, forward; the heads, once a text, cost next to nothing."""
        return sum(parameter.numel() for parameter in self.convolutions.parameters() if parameter.dim() == 2)

    @torch.no_grad()
    def initialize(self) -> None:
        """Fresh weights: ReLU lets half of what varies through, which the convolutions make up for."""
        c = self.config
        for module in self.modules():
            if isinstance(module, nn.Linear):
                module.weight.normal_(0.0, c.weight_scale or (2.0 / module.in_features) ** 0.5)
                module.bias.zero_()
        # Small, so that what is learned of a rare word outweighs what it began with.
        self.tokens.weight.normal_(0.0, c.weight_scale or 0.05)
        if c.both:
            self.fixed.copy_(self.tokens.weight)
