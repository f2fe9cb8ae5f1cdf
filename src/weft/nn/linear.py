"""Linear maps on a CPU without gradients: by oneDNN, in decoding with the weights laid out for it beforehand.

A decoding step multiplies every weight by a few rows, so it takes as long as reading the weights does. torch hands
float32 to MKL, which reads them far more slowly than memory allows (one row on an AMD EPYC: 18 of 50 GB/s), and whose
large products are half as fast there. N: tokens; O: outputs; I: inputs.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.files import memory_here

SMALL = 1 << 18  # products; below, the call itself takes oneDNN longer than all of it takes MKL
ROWS = 32  # for which a weight is laid out; the layout serves any number of them
SHARE = 0.25  # of the memory of the machine that copies may take
DECODING: ContextVar[bool] = ContextVar("decoding", default=False)


def has_onednn() -> bool:
    """Whether torch has the kernels: in all versions built for x86, as its compiler uses them."""
    return (
        platform.machine().lower() in ("x86_64", "amd64")
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    )


ONEDNN = has_onednn()


@contextmanager
def decoding() -> Iterator[None]:
    """Lay out every weight that is used within, since it will be used for many tokens."""
    before = DECODING.set(True)
    try:
        yield
    finally:
        DECODING.reset(before)


class PackedWeight:
    """A second copy of a weight in the layout of the kernel: made when decoding first asks, and again after changes."""

    held: ClassVar[int] = 0  # bytes of all copies

    def __init__(self) -> None:
        self.packed: Tensor | None = None
        self.source: Tensor | None = None  # kept, so that no other weight can come to lie at its address
        self.version = -1

    def of(self, weight: Tensor) -> Tensor:
        """The laid out copy where there is one or decoding needs one, else the weight itself."""
        source = self.source
        if source is not None and source.data_ptr() == weight.data_ptr() and weight._version == self.version:
            assert self.packed is not None
            return self.packed
        self.release()
        too_much = self.held + weight.nbytes > memory_here() * SHARE
        if too_much or not DECODING.get() or weight.is_inference():  # in inference mode no change could be seen
            return weight
        self.packed, self.source, self.version = laid_out(weight), weight.detach(), weight._version
        type(self).held += weight.nbytes
        return self.packed

    def release(self) -> None:
        """Give up the copy: the weight is trained, moved or converted."""
        if self.source is not None:
            type(self).held -= self.source.nbytes
        self.packed = self.source = None

    def __del__(self) -> None:
        self.release()

    def __reduce__(self) -> Any:  # neither copied nor sent with its module: it can be made anew
        return PackedWeight, ()


def laid_out(weight: Tensor) -> Tensor:
    """The copy itself: numbers in another order."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach(), ROWS)


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
    return torch.ops.mkldnn._linear_pointwise(x, packed.of(weight), bias, "none", [], "")


class Packs(nn.Module):
    """A module that multiplies by one weight, and gives up the copy when that is trained, moved or converted."""

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
