"""Norms, feed-forward networks, the Transformer layer made of them, and convolution over ragged rows.

N: tokens; B: rows; K: places that a convolution sees; W: width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.nn.attention import Attention, CrossAttention, LayerCache, LayerMemory, MultiHead, Sources, turn
from weft.nn.compiled import CheapGelu, cheap_dropout, cheap_gelu_tanh
from weft.nn.fixed import FixedLayer, has_kernel
from weft.nn.linear import INSIDE, Linear, fuses, step_map
from weft.nn.rows import Rows

Activation = Literal["relu", "gelu", "gelu-tanh", "silu", "tanh", "gated-gelu", "gated-gelu-tanh", "gated-silu"]
NormKind = Literal["layer", "rms", "rms-t5"]
NormPlace = Literal["before", "after"]


# The two GELUs differ by up to 5e-4, which parity tests can see.
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    **{"relu": F.relu, "gelu": F.gelu, "silu": F.silu, "tanh": torch.tanh},
    "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
}


# In half precision, which their differences from the above are far below.
COMPILED: dict[str, Callable[[Tensor], Tensor]] = {"gelu": CheapGelu.apply, "gelu-tanh": cheap_gelu_tanh}


def activate(x: Tensor, activation: str) -> Tensor:
    """The non-linearity by name."""
    if torch.compiler.is_compiling() and x.is_cuda and x.dtype.itemsize == 2:
        return COMPILED.get(activation, FUNCTIONS[activation])(x)
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

    def forward(self, x: Tensor) -> Tensor:
        return cheap_dropout(x, self.p) if torch.compiler.is_compiling() and x.is_cuda else super().forward(x)


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
        if cache is not None and self._fuses_step(x, cache):
            return self._fused_step(x, rows, bias, turns, cache, sources)
        if self._fuses(x):
            return self._fused(x, rows, bias, turns, cache, sources)
        if self.norm_before:
            x = x + self.attention_drop(self.attention(self.attention_norm(x), rows, bias, turns, cache))
            if sources is not None:
                x = x + self.cross_drop(self.cross(self.cross_norm(x), rows, sources))
            return x + self.feedforward_drop(self.feedforward(self.feedforward_norm(x)))
        x = self.attention_norm(x + self.attention_drop(self.attention(x, rows, bias, turns, cache)))
        if sources is not None:
            x = self.cross_norm(x + self.cross_drop(self.cross(x, rows, sources)))
        return self.feedforward_norm(x + self.feedforward_drop(self.feedforward(x)))

    def _fuses_step(self, x: Tensor, cache: LayerCache) -> bool:
        """Whether a decoding step goes through products that do several things at once."""
        if isinstance(cache, FixedLayer):
            return cache.fuses(x, self.feedforward.activation)
        plain = type(self.attention) is Attention and isinstance(cache, LayerCache) and not self.training
        return plain and cache.filled and self.feedforward.activation in INSIDE and fuses(x)

    def _fuses(self, x: Tensor) -> bool:
        """Whether sums and norms go through one kernel: where half precision answers on a GPU."""
        if self.training or not x.is_cuda or x.dtype.itemsize != 2 or torch.is_grad_enabled():
            return False
        known = isinstance(self.attention_norm, nn.LayerNorm | nn.RMSNorm)
        return known and not torch.compiler.is_compiling() and has_kernel()

    def _fused(
        self,
        x: Tensor,
        rows: Rows,
        bias: Tensor | None,
        turns: Tensor | None,
        cache: LayerCache | None,
        sources: Sources | LayerMemory | None,
    ) -> Tensor:
        from weft.nn.kernels import add_norm

        before = self.norm_before
        made = self.attention(self.attention_norm(x) if before else x, rows, bias, turns, cache)
        # Before: of each sum the norm that the next part reads; after: the norm is all that goes on.
        norms = [self.cross_norm, self.feedforward_norm] if sources is not None else [self.feedforward_norm]
        norms = norms if before else [self.attention_norm, *norms[:-1]]
        for norm in norms[:-1] if sources is not None else ():
            x, normed = add_norm(made, x, norm, keeps=before)
            x = x if before else normed
            made = self.cross(normed, rows, sources)
        x, normed = add_norm(made, x, norms[-1], keeps=before)
        if before:
            return x + self.feedforward(normed)
        return add_norm(self.feedforward(normed), normed, self.feedforward_norm, keeps=False)[1]

    def _fused_step(
        self,
        x: Tensor,
        rows: Rows,
        bias: Tensor | None,
        turns: Tensor | None,
        cache: LayerCache | FixedLayer,
        sources: Sources | LayerMemory | None,
    ) -> Tensor:
        """A decoding step in which the calls take longest: on a GPU those of few rows, in five kernels."""
        linear_step: Any = step_map
        if x.is_cuda:
            from weft.nn import kernels

            linear_step = kernels.linear_step
        before, own, inner = self.norm_before, self.attention, self.feedforward
        assert isinstance(own, Attention)
        qkv = linear_step(x, own.qkv, self.attention_norm if before else None)
        query, key, value = qkv.view(len(x), 3, own.heads, -1).unbind(1)  # R H D each
        if turns is not None:
            query, key = turn(query, turns), turn(key, turns)
        mixed, _ = cache.attend(query, key, value, bias, own.scale)
        x = linear_step(mixed.flatten(1), own.output, residual=x)
        x = x if before else self.attention_norm(x)
        if sources is not None:
            assert isinstance(sources, LayerMemory)
            query = linear_step(x, self.cross.query, self.cross_norm if before else None)
            mixed, _ = sources.attend(query.view(len(x), self.cross.heads, -1), rows, self.cross.scale)
            x = linear_step(mixed.flatten(1), self.cross.output, residual=x)
            x = x if before else self.cross_norm(x)
        wide = linear_step(
            x, inner.up, self.feedforward_norm if before else None, "" if inner.gated else inner.activation
        )
        if inner.gated:
            gate, wide = wide.chunk(2, -1)
            wide = activate(gate, inner.activation) * wide
        x = linear_step(wide, inner.down, residual=x)
        return x if before else self.feedforward_norm(x)


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
