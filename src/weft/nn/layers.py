"""Norms, feed-forward networks, the Transformer layer made of them, and convolution over ragged rows.

N: tokens; B: rows; K: places that a convolution sees; W: width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.nn.attention import Attention, CrossAttention, LayerCache, LayerMemory, MultiHead, Sources
from weft.nn.linear import Linear
from weft.nn.rows import Rows

Activation = Literal["relu", "gelu", "gelu-tanh", "silu", "tanh", "gated-gelu", "gated-gelu-tanh", "gated-silu"]
NormKind = Literal["layer", "rms", "rms-t5"]
NormPlace = Literal["before", "after"]


# The two GELUs differ by up to 5e-4, which parity tests can see.
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    **{"relu": F.relu, "gelu": F.gelu, "silu": F.silu, "tanh": torch.tanh},
    "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
}


def activate(x: Tensor, activation: str) -> Tensor:
    """The non-linearity by name."""
    return FUNCTIONS[activation](x)


def norm(kind: NormKind, width: int, epsilon: float) -> nn.Module:
    """Layer norm, or the RMS norm that neither centers nor shifts."""
    if kind == "layer":
        return nn.LayerNorm(width, epsilon)
    return T5Norm(width, epsilon) if kind == "rms-t5" else nn.RMSNorm(width, epsilon)


class T5Norm(nn.RMSNorm):
    """T5's RMS norm, which takes the variance in float32 even of float64, as the published code does."""

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != torch.float64:  # torch's own does it in float32
            return super().forward(x)
        assert self.eps is not None
        variance = x.float().square().mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + self.eps))


class Drop(nn.Dropout):
    """Dropout that is not even called outside of training: decoding takes many small steps, and each call counts."""

    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x) if self.training else x


class FeedForward(nn.Module):
    """Each token on its own: wide, bent, and back; gated kinds multiply by a second wide projection."""

    def __init__(
        self, width: int, inner: int, activation: Activation, dropout: float = 0.0, biases: bool = True
    ) -> None:
        super().__init__()
        self.gated = activation.startswith("gated-")
        self.activation = activation.removeprefix("gated-")
        self.up = Linear(width, 2 * inner if self.gated else inner, bias=biases)
        self.drop = Drop(dropout)
        self.down = Linear(inner, width, bias=biases)

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(x)
        if self.gated:
            gate, x = x.chunk(2, -1)
            return self.down(self.drop(activate(gate, self.activation) * x))
        return self.down(self.drop(activate(x, self.activation)))


class Layer(nn.Module):
    """Attention and a feed-forward network, each with a residual and a norm before (GPT-2) or after (BERT, GPT) it."""

    def __init__(
        self,
        *,
        width: int,
        heads: int,
        inner: int,
        head_width: int | None = None,
        activation: Activation = "gelu",
        norm_kind: NormKind = "layer",
        norm_place: NormPlace = "after",
        norm_epsilon: float = 1e-5,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        inner_dropout: float = 0.0,
        causal: bool = False,
        reads: bool = False,  # between the two it attends to an encoder's output (Vaswani et al., 2017)
        biases: bool = True,
        scale: float | None = None,
        attention: MultiHead | None = None,  # in place of plain self-attention
    ) -> None:
        super().__init__()
        sizes: dict[str, Any] = {"head_width": head_width, "dropout": attention_dropout, "bias": biases, "scale": scale}
        self.attention = attention or Attention(width, heads, causal=causal, **sizes)
        self.attention_norm = norm(norm_kind, width, norm_epsilon)
        self.attention_drop = Drop(dropout)
        self.reads = reads
        if reads:
            self.cross = CrossAttention(width, heads, **sizes)
            self.cross_norm = norm(norm_kind, width, norm_epsilon)
            self.cross_drop = Drop(dropout)
        self.feedforward = FeedForward(width, inner, activation, inner_dropout, biases)
        self.feedforward_norm = norm(norm_kind, width, norm_epsilon)
        self.feedforward_drop = Drop(dropout)
        self.norm_before = norm_place == "before"

    def forward(
        self,
        x: Tensor,
        rows: Rows,
        bias: Tensor | None = None,
        turns: Tensor | None = None,
        cache: LayerCache | None = None,
        sources: Sources | LayerMemory | None = None,
    ) -> Tensor:
        if self.norm_before:
            x = x + self.attention_drop(self.attention(self.attention_norm(x), rows, bias, turns, cache))
            if sources is not None:
                x = x + self.cross_drop(self.cross(self.cross_norm(x), rows, sources))
            return x + self.feedforward_drop(self.feedforward(self.feedforward_norm(x)))
        x = self.attention_norm(x + self.attention_drop(self.attention(x, rows, bias, turns, cache)))
        if sources is not None:
            x = self.cross_norm(x + self.cross_drop(self.cross(x, rows, sources)))
        return self.feedforward_norm(x + self.feedforward_drop(self.feedforward(x)))


def neighbors(x: Tensor, rows: Rows, offsets: Sequence[int], beyond: Tensor | None = None) -> Tensor:
    """N W -> N KW: the tokens at some distances from each one; beyond the ends of its row `beyond` (W), or zeros."""
    total = x.shape[0]
    before, after = max(0, -min(offsets)), max(0, max(offsets))
    padded = F.pad(x, (0, 0, before, after))

    def inside(offset: int) -> Tensor:
        places = rows.places(total) + offset
        return ((places >= 0) & (places < rows.lengths()[rows.numbers(total)]))[:, None]

    columns = []
    for offset in offsets:
        moved = padded[before + offset : before + offset + total]
        outside = rows.once(("outside", offset), lambda offset=offset: ~inside(offset))  # type: ignore[misc]
        if offset:
            moved = moved.masked_fill(outside, 0.0) if beyond is None else torch.where(outside, beyond, moved)
        columns.append(moved)
    return torch.cat(columns, -1)


class GatedConvolution(nn.Module):
    """A convolution to both sides, or causal; half of its outputs gate the others (Dauphin et al., 2017)."""

    def __init__(self, width: int, kernel: int, causal: bool) -> None:
        super().__init__()
        self.offsets = range(1 - kernel, 1) if causal else range(-(kernel // 2), kernel // 2 + 1)
        self.maps = nn.Linear(kernel * width, 2 * width)

    def forward(self, x: Tensor, rows: Rows, before: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """N W -> N W; after the K-1 inputs before it (B K-1 W), one new token per row, and also the new K-1."""
        if before is None:
            return F.glu(self.maps(neighbors(x, rows, self.offsets)), -1)
        seen = torch.cat([before, x[:, None]], 1)  # B K W
        return F.glu(self.maps(seen.flatten(1)), -1), seen[:, 1:]

    def left(self, x: Tensor, rows: Rows) -> Tensor:
        """B K-1 W: the last inputs of each row, with which the next step goes on; zeros before its first."""
        places = rows.lasts()[:, None] + torch.tensor(self.offsets[1:], device=x.device)
        beyond = places < rows.firsts()[:, None]
        return x[places.clamp(min=0)].masked_fill(beyond[..., None], 0.0)
