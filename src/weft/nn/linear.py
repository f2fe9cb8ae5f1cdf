"""Linear maps on a CPU without gradients: run by oneDNN, in decoding with packed weights.

A decoding step multiplies every weight by a few rows, so its time is that of reading the weights. torch uses MKL for
float32, which reads them far below the bandwidth of memory (one row on an AMD EPYC: 18 of 50 GB/s), and whose large
products are half as fast there. N: tokens; O: outputs; I: inputs.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.files import memory_here

SMALL = 1 << 18  # multiplications below which MKL is faster, since a call of oneDNN costs more
ROWS = 32  # number of rows for which a weight is packed; the layout serves any number
SHARE = 0.25  # of the machine's memory that packed copies may take
DECODING: ContextVar[bool] = ContextVar("decoding", default=False)
FUSING: ContextVar[bool] = ContextVar("fusing", default=False)
PACKING = threading.RLock()  # threads that decode by one network share its copies
# Activations that a product can end with: their name and algorithm in oneDNN.
INSIDE = {"gelu": ("gelu", "none"), "gelu-tanh": ("gelu", "tanh"), "relu": ("relu", ""), "silu": ("swish", "")}


def has_onednn() -> bool:
    """Whether torch has the kernels: all x86 builds do, since torch.compile uses them."""
    return (
        platform.machine().lower() in ("x86_64", "amd64")
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    )


ONEDNN = has_onednn()


@contextmanager
def decoding(fuse: bool = False) -> Iterator[None]:
    """Pack every weight that is used within the context, since it will be used for many tokens.

    `fuse`: a layer may run a step by `step_map`, which does not call its modules, so their hooks do not run.
    """
    before = DECODING.set(True), FUSING.set(fuse and not torch.is_autocast_enabled("cpu"))
    try:
        yield
    finally:
        DECODING.reset(before[0])
        FUSING.reset(before[1])


class PackedWeight:
    """A copy of a weight in oneDNN's layout: made at the first use in decoding, and again after changes."""

    held: ClassVar[int] = 0  # bytes of all copies

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.dtype = dtype  # of the copy
        self.packed: Tensor | None = None
        self.source: Tensor | None = None  # referenced, so that no other weight can get its address
        self.version = -1

    def of(self, weight: Tensor) -> Tensor:
        """The packed copy if there is one, or in decoding; else the weight itself."""
        kept = self._kept(weight)
        if kept is not None:
            return kept
        if not DECODING.get() or weight.is_inference():  # changes of an inference tensor cannot be detected
            self.release()
            return weight
        with PACKING:
            kept = self._kept(weight)
            if kept is not None:  # another thread has been quicker
                return kept
            self.release()
            if self.held + weight.nbytes > memory_here() * SHARE:
                return weight
            self.version, packed = weight._version, laid_out(weight.to(self.dtype))
            self.packed, self.source = packed, weight.detach()
            type(self).held += weight.nbytes
            return packed

    def _kept(self, weight: Tensor) -> Tensor | None:
        """The copy, if it is of this weight and the weight has not changed."""
        source = self.source
        same = source is not None and source.data_ptr() == weight.data_ptr() and weight._version == self.version
        return self.packed if same else None

    def release(self) -> None:
        """Free the copy: the weight is trained, moved or converted."""
        if self.source is not None:
            type(self).held -= self.source.nbytes
        self.packed = self.source = None

    def __del__(self) -> None:
        self.release()

    def __reduce__(self) -> Any:  # not copied or pickled with its module, since it can be made again
        return PackedWeight, (self.dtype,)


def laid_out(weight: Tensor) -> Tensor:
    """The weight in oneDNN's layout."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach(), ROWS)


def product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    packed: PackedWeight,
    activation: str = "",
    residual: Tensor | None = None,
) -> Tensor:
    """N I, O I -> N O by oneDNN, in the precision of the packed copy; input and output are float32."""
    assert not (activation and residual is not None), "a product ends with one of them"
    laid = packed.of(weight)
    end, algorithm = INSIDE.get(activation, ("none", ""))
    if laid.dtype is not torch.float32:
        bias = None if bias is None else bias.to(laid.dtype)
        made = torch.ops.mkldnn._linear_pointwise(x.to(laid.dtype), laid, bias, end, [], algorithm).float()
        return made if residual is None else residual + made
    if residual is not None:
        return torch.ops.mkldnn._linear_pointwise.binary(x, residual, laid, bias, "add")
    return torch.ops.mkldnn._linear_pointwise(x, laid, bias, end, [], algorithm)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, packed: PackedWeight) -> Tensor:
    """N I, O I -> N O, as F.linear"""
    if (
        not ONEDNN
        or torch.is_grad_enabled()
        or not x.is_cpu
        or x.dtype is not torch.float32
        or weight.dtype is not torch.float32
        or x.dim() < 2
        or x.numel() * weight.shape[0] < SMALL
        or torch.compiler.is_compiling()
        or torch.is_autocast_enabled("cpu")
    ):
        return F.linear(x, weight, bias)
    return product(x, weight, bias, packed)


def fuses(x: Tensor) -> bool:
    """Whether a layer runs a decoding step by `step_map`: on a CPU small operators would take much of its time."""
    return ONEDNN and FUSING.get() and x.is_cpu and x.dtype is torch.float32 and not torch.is_grad_enabled()


def step_map(
    x: Tensor, map: Any, norm: nn.Module | None = None, activation: str = "", residual: Tensor | None = None
) -> Tensor:
    """N I -> N O in a decoding step: a norm, and a linear map with the activation or residual fused into it."""
    if isinstance(norm, nn.LayerNorm):
        x = torch.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)
    elif norm is not None:
        x = norm(x)
    return product(x, map.weight, map.bias, map.packed, activation, residual)


class Packs(nn.Module):
    """A module with a packed weight, which is freed when the module is trained, moved or converted."""

    def __init__(self, *sizes: Any, **settings: Any) -> None:
        super().__init__(*sizes, **settings)
        self.packed = PackedWeight()

    def train(self, mode: bool = True) -> Self:
        if mode:
            self.packed.release()
        return super().train(mode)

    def _apply(self, *change: Any, **settings: Any) -> Self:
        self.packed.release()
        return super()._apply(*change, **settings)  # type: ignore[no-untyped-call]


class Linear(Packs, nn.Linear):
    """A linear map that is fast on a CPU too."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias, self.packed)
