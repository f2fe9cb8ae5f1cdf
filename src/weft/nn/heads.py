"""What stands on top of an encoder or decoder: words, labels for a text, labels for its tokens, spans.

N: tokens; n: the places asked for; B: rows.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.nn.layers import activate


def in_full(scores: Tensor) -> Tensor:
    """Scores in float32 at least: half precision is too coarse to choose words by."""
    return scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores


def scores_of(x: Tensor, table: Tensor, bias: Tensor | None = None) -> Tensor:
    """n width, vocabulary width -> n vocabulary"""
    few = 2 <= x.shape[0] <= 32 and x.device.type == "cpu" and not torch.is_grad_enabled()
    if not few or torch.compiler.is_compiling():
        return F.linear(x, table, bias)
    # A large table by a few rows, as in a beam: with the table first it takes a CPU half of the time.
    scores = torch.mm(table, x.t()).t().contiguous()
    return scores if bias is None else scores.add_(bias)


class Pooler(nn.Module):
    """BERT's summary of a text: its first token through one more layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)

    def forward(self, firsts: Tensor) -> Tensor:
        return self.dense(firsts).tanh()


class Mix(nn.Module):
    """A learned mix of all layers (Peters et al., 2018): shares that add up to 1, and one scale."""

    def __init__(self, states: int) -> None:
        super().__init__()
        self.shares = nn.Parameter(torch.zeros(states))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, states: list[Tensor]) -> Tensor:
        shares = self.shares.softmax(0) * self.scale
        return torch.stack([share * state for share, state in zip(shares.unbind(), states, strict=True)]).sum(0)


class LabelHead(nn.Module):
    """Dropout and one linear map: labels of a text, of tokens, or the two ends of a span."""

    def __init__(self, width: int, outputs: int, dropout: float, bias: bool = True) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(width, outputs, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.dropout(x))


class DeepLabelHead(nn.Module):
    """Labels of a text through one more layer: tanh and dropout before it in RoBERTa, ReLU in DistilBERT."""

    def __init__(
        self, width: int, outputs: int, activation: str, dropout: float, dropout_before: float = 0.0, inner: int = 0
    ) -> None:
        super().__init__()
        self.activation = activation
        self.dropout_before = nn.Dropout(dropout_before)
        self.dense = nn.Linear(width, inner or width)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(inner or width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = activate(self.dense(self.dropout_before(x)), self.activation)
        return self.output(self.dropout(x))


class MaskedWordHead(nn.Module):
    """BERT's word head: one more layer, then the transposed table of tokens, or a table of its own."""

    def __init__(
        self,
        width: int,
        vocabulary: int,
        activation: str,
        epsilon: float,
        tied: bool,
        table_width: int | None = None,
        second_bias: bool = True,
    ) -> None:
        super().__init__()
        table_width = table_width or width
        self.dense = nn.Linear(width, table_width)
        self.norm = nn.LayerNorm(table_width, epsilon)
        self.activation = activation
        # The published format keeps the bias of the tied table also beside that of an own one, except in DistilBERT.
        self.decoder = None if tied else nn.Linear(table_width, vocabulary, bias=second_bias)
        self.bias = nn.Parameter(self.dense.bias.new_zeros(vocabulary))

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        """n width, vocabulary table_width -> n vocabulary"""
        x = self.norm(activate(self.dense(x), self.activation))
        if self.decoder is None:
            return F.linear(x, tokens, self.bias)
        return F.linear(x, self.decoder.weight, self.bias if self.decoder.bias is None else self.decoder.bias)


class WordHead(nn.Module):
    """A decoder's word head: the transposed table of tokens, or a table of its own, and a bias where published."""

    def __init__(self, width: int, vocabulary: int, tied: bool, bias: bool = False) -> None:
        super().__init__()
        self.decoder = None if tied else nn.Linear(width, vocabulary, bias=False)
        self.bias = nn.Parameter(torch.zeros(vocabulary)) if bias else None

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        return scores_of(x, tokens if self.decoder is None else self.decoder.weight, self.bias)
