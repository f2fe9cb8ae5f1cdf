"""The backends `onednn` and `onednn-bf16`: layers with packed weights, and the GELU fused into the matrix product.

torch multiplies float32 matrices on a CPU with MKL, which on an AMD processor reaches less than half of the speed of
oneDNN; bfloat16 doubles it again if the processor has instructions for it. The residual stream, the norms and the heads
stay in float32. N: tokens; H: heads; D: width of a head; b, t: rows and places of one square.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from weft.checkpoint.folder import LoadedModel
from weft.errors import refuse
from weft.models.base import Network
from weft.nn.attention import Attention, Square, attend, squares_of, turn
from weft.nn.layers import FeedForward, activate
from weft.nn.linear import INSIDE, ONEDNN, Linear, PackedWeight
from weft.nn.rows import Rows

DTYPES = {"onednn": torch.float32, "onednn-bf16": torch.bfloat16}
SCORES = 1 << 20  # attention scores that are computed together: as many as fit into a processor's cache
LONG = 32  # length of the longest row above which products are faster than torch's own attention in bfloat16
SMALL = 1 << 12  # weights below which packing a matrix does not pay off


def supported(dtype: torch.dtype) -> bool:
    """Whether torch has the operators, and the processor instructions for this precision."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return dtype == torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def network_of(model: LoadedModel, kind: str) -> Network:
    """A copy of the network with packed layers; the modules that stay in float32 are shared with the original."""
    dtype, network = DTYPES[kind], model.network
    refuse(
        (not supported(dtype), f"backend {kind} needs a CPU with oneDNN" + " and bfloat16" * (dtype != torch.float32)),
        (not network.STACK or model.family.reads, f"backend {kind} runs encoders and decoders of attention layers"),
        (network.memory is not None, f"backend {kind} does not run {model.family.name}: its positions are distances"),
    )
    with torch.no_grad():
        fast = _shared(network)
        fast.layers = _packed(fast.layers, dtype)
    return fast.eval()


def writer_of(model: LoadedModel, kind: str) -> Network:
    """A copy of the network for generation, with packed layers in this precision; the logits stay in float32."""
    dtype, network = DTYPES[kind], model.network
    able = ONEDNN and supported(dtype)
    refuse((not able, f"backend {kind} needs a CPU with oneDNN" + " and bfloat16" * (dtype != torch.float32)))
    fast = _shared(network)
    maps = [module for module in fast.modules() if isinstance(module, Linear)]
    refuse((not maps, f"backend {kind} runs models of linear maps, and {model.family.name} counts or recurs"))
    for module in maps:
        module.packed = PackedWeight(dtype)
    return fast.eval()


def _shared(module: Any) -> Any:
    """A copy of a module tree with the same parameters, so that parts of the copy can be replaced."""
    twin = copy.copy(module)
    twin._modules = {name: None if child is None else _shared(child) for name, child in module._modules.items()}
    return twin


def _packed(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A module whose parts are replaced by their packed forms, if they have one."""
    if type(module) is Attention:
        return PackedAttention(module, dtype)
    if type(module) is FeedForward:
        return PackedFeedForward(module, dtype)
    if type(module) is nn.Linear and module.weight.numel() >= SMALL:
        return PackedLinear(module.weight, module.bias, dtype)
    for name, child in module.named_children():
        setattr(module, name, _packed(child, dtype))
    return module


class PackedLinear(nn.Module):
    """A linear map with weights in oneDNN's layout, and the activation after it."""

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, activation: str = "") -> None:
        super().__init__()
        self.dtype = dtype
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach().to(dtype), None)
        self.bias = None if bias is None else bias.detach().to(dtype)
        self.end, self.algorithm = INSIDE.get(activation, ("none", ""))

    def forward(self, x: Tensor) -> Tensor:
        """N inputs -> N outputs, in the precision of the weights"""
        x = x.to(self.dtype)
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, self.end, [], self.algorithm)


class PackedFeedForward(nn.Module):
    """The feed-forward part of a layer; the activation is fused into the first map unless it is gated."""

    def __init__(self, module: FeedForward, dtype: torch.dtype) -> None:
        super().__init__()
        self.activation, self.gated = module.activation, module.gated
        self.inside = not module.gated and module.activation in INSIDE
        up = module.activation if self.inside else ""
        self.up = PackedLinear(module.up.weight, module.up.bias, dtype, up)
        self.down = PackedLinear(module.down.weight, module.down.bias, dtype)

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(x)
        if self.gated:
            gate, x = x.chunk(2, -1)
            x = activate(gate, self.activation) * x
        elif not self.inside:
            x = activate(x, self.activation)
        return self.down(x)


class PackedAttention(nn.Module):
    """Self-attention over ragged rows; the scale of the scores is multiplied into the weights of the queries."""

    def __init__(self, module: Attention, dtype: torch.dtype) -> None:
        super().__init__()
        self.heads, self.causal = module.heads, module.causal
        inner = module.heads * module.head_width
        scale = 1 / math.sqrt(module.head_width) if module.scale is None else module.scale
        factor = torch.ones(3 * inner, 1)
        factor[:inner] = scale
        bias = None if module.qkv.bias is None else module.qkv.bias * factor[:, 0]
        self.qkv = PackedLinear(module.qkv.weight * factor, bias, dtype)
        self.output = PackedLinear(module.output.weight, module.output.bias, dtype)

    def forward(
        self, x: Tensor, rows: Rows, bias: Any = None, turns: Tensor | None = None, *unused: None
    ) -> Tensor:  # `unused`: the cache and the sources, which an encoder does not have
        assert not any(each is not None for each in unused), "a packed network reads whole texts only"
        joined = self.qkv(x)  # N 3HD
        plain = self.qkv.dtype == torch.float32 or rows.longest <= LONG
        if bias is not None or turns is not None or self.causal or plain:
            query, key, value = joined.unflatten(-1, (3, self.heads, -1)).unbind(1)  # N H D each
            if turns is not None:
                query, key = turn(query, turns), turn(key, turns)
            mixed = attend(query, key, value, rows, bias=bias, causal=self.causal, scale=1.0)[0].flatten(1)
            return self.output(mixed)
        squares = squares_of(rows, None, len(joined), len(joined))
        if len(squares) == 1 and squares[0].query.tokens is None:
            return self.output(self._mixed(joined, squares[0]))
        mixed = joined.new_empty(len(joined), joined.shape[1] // 3)
        for square in squares:
            assert square.query.tokens is not None
            mixed.index_copy_(0, square.query.tokens, self._mixed(joined.index_select(0, square.query.tokens), square))
        return self.output(mixed)

    def _mixed(self, joined: Tensor, square: Square) -> Tensor:
        """n 3HD -> n HD: attention of one square as matrix products, for which oneDNN has fast kernels."""
        side, width = square.query, joined.shape[1]
        if side.slots is not None:
            joined = joined.new_zeros(side.count * side.longest, width).index_copy_(0, side.slots, joined)
        joined = joined.view(side.count, side.longest, 3, self.heads, -1).permute(2, 0, 3, 1, 4)  # 3 b H t D
        together = max(1, SCORES // (self.heads * side.longest**2))
        parts = []
        for first in range(0, side.count, together):
            part = joined[:, first : first + together]
            query, key, value = part.reshape(3, -1, *part.shape[3:]).unbind(0)  # bH t D each
            scores = torch.bmm(query, key.transpose(1, 2))  # bH t t
            if square.real is not None:
                unreal = ~square.real[first : first + together]  # b 1 1 t
                scores.view(-1, self.heads, *scores.shape[1:]).masked_fill_(unreal, -math.inf)
            mixed = torch.bmm(scores.softmax(-1), value).view(-1, self.heads, *query.shape[1:])
            parts.append(mixed.transpose(1, 2).reshape(-1, width // 3))  # bt HD
        mixed = parts[0] if len(parts) == 1 else torch.cat(parts)
        return mixed if side.slots is None else mixed.index_select(0, side.slots)
