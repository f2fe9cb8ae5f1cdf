"""Half-precision copies of weights, all made by one kernel.

Autocast casts each weight by a kernel of its own, and its gradient by another: in the fine-tuning of a small model a
third of all kernels of a step.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


class HalfWeights(TorchFunctionMode):
    """Within it linear maps multiply by copies of weights, where autocast would cast these; results are the same.

    A weight that a pass uses has a copy from the next pass on. What reads a weight in another way (a table, a part of a
    weight, a recurrent layer) gets the weight itself.
    """

    def __init__(self, weights: Iterable[Tensor], kind: torch.dtype) -> None:
        super().__init__()
        self.kind = kind
        self.weights = {id(weight): weight for weight in weights if weight.dtype == torch.float32}
        self.used: dict[int, Tensor] = {}
        self.copies: dict[int, Tensor] = {}

    def __enter__(self) -> Self:
        if self.used:
            copies = Copies.apply(self.kind, *self.used.values())  # type: ignore[no-untyped-call]
            self.copies = dict(zip(self.used, copies, strict=True))
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self.copies = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.linear:
            args = [self._copy_of(each) for each in args]
            kwargs = {name: self._copy_of(each) for name, each in kwargs.items()}
        return func(*args, **kwargs)

    def _copy_of(self, x: Tensor | None) -> Tensor | None:
        if x is None or id(x) not in self.weights or not torch.is_autocast_enabled(x.device.type):
            return x
        self.used[id(x)] = x
        return self.copies.get(id(x), x)


class Copies(torch.autograd.Function):
    """Weights in half precision; their gradients in float32 again."""

    @staticmethod
    def forward(ctx: Any, kind: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)  # an unused weight has no gradient
        copies = [torch.empty_like(weight, dtype=kind) for weight in weights]
        torch._foreach_copy_(copies, weights)
        ctx.mark_non_differentiable(
            *(copy for copy, weight in zip(copies, weights, strict=True) if not weight.requires_grad)
        )
        return tuple(copies)

    @staticmethod
    def backward(ctx: Any, *arriving: Tensor | None) -> Any:
        halves = [gradient for gradient in arriving if gradient is not None]
        full = [torch.empty_like(gradient, dtype=torch.float32) for gradient in halves]
        if full:
            torch._foreach_copy_(full, halves)
        made = iter(full)
        return (None, *(None if gradient is None else next(made) for gradient in arriving))
