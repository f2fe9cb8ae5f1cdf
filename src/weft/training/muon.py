"""Muon (Jordan et al., 2024) for the matrices of the layers, AdamW for tables, norms, biases and heads.

Each step of a matrix is made orthogonal, and then scaled so that its entries are as large as those of an AdamW step
(Liu et al., 2025): one learning rate and one weight decay serve both.
"""

from __future__ import annotations

from collections import defaultdict
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

from weft.nn.layers import FeedForward
from weft.training.adamw import AdamW

MOMENTUM = 0.95
LIKE_ADAMW = 0.2  # root mean square of the entries of an AdamW step
QUINTIC = (3.4445, -4.7750, 2.0315)  # of an iteration that brings all singular values near 1
ITERATIONS = 5
PARTS = {"qkv": 3, "key_value": 2, "maps": 2}  # matrices that stand in one tensor, by the name of their module


def muon_parts(network: Any) -> dict[str, int]:
    """The weights that Muon trains by name, and how many matrices each consists of."""
    inside = tuple(f"{part}." for parts in network.layer_names() for part in parts)
    modules = dict(network.named_modules())
    linear = [name for name, module in modules.items() if isinstance(module, nn.Linear)]
    gated = {f"{name}.up": 2 for name, module in modules.items() if isinstance(module, FeedForward) and module.gated}
    parts = {name: gated.get(name, PARTS.get(name.rpartition(".")[2], 1)) for name in linear}
    return {f"{name}.weight": count for name, count in parts.items() if f"{name}.".startswith(inside)}


def orthogonal(matrices: Tensor, dtype: torch.dtype) -> Tensor:
    """k A B -> k A B: nearly U V', where a matrix is U S V' (Newton-Schulz)."""
    a, b, c = QUINTIC
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.to(dtype)
    x = x.mT if tall else x
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp_min(1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Muon(AdamW):
    """AdamW, with Muon in the groups whose `parts` are not 0. Nothing in a step waits for a GPU."""

    def __init__(self, groups: Any, *given: Any, **options: Any) -> None:
        super().__init__(groups, *given, **options)
        self._step_supports_amp_scaling = False  # a step that overflows is left out as a whole

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step of all groups."""
        groups = self.param_groups
        self.param_groups = [group for group in groups if not group["parts"]]
        try:
            super().step(closure)
        finally:
            self.param_groups = groups
        for group in groups:
            if group["parts"]:
                self._step_matrices(group)

    @torch.no_grad()
    def _step_matrices(self, group: dict[str, Any]) -> None:
        together: dict[torch.Size, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        for weight in group["params"]:
            if weight.grad is not None:
                momentum = self.state[weight]["momentum"]
                momentum.lerp_(weight.grad, 1 - MOMENTUM)
                together[weight.shape].append((weight, weight.grad.lerp(momentum, MOMENTUM)))  # Nesterov's
        rate, parts = group["lr"], group["parts"]
        for (rows, columns), pairs in together.items():
            each = (rows // parts, columns)
            matrices = torch.stack([update for _, update in pairs]).view(-1, *each)
            half = torch.bfloat16 if matrices.is_cuda else matrices.dtype
            steps = orthogonal(matrices, half).reshape(-1, rows, columns)
            scale = LIKE_ADAMW * sqrt(max(each))
            for (weight, _), update in zip(pairs, steps.unbind(), strict=True):
                weight.mul_(1 - rate * group["weight_decay"])
                weight.sub_(update.to(weight.dtype) * (rate * scale))
