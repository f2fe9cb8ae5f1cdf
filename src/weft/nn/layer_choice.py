"""Which hidden states are read: the last layer, another one, or several of them together.

N: tokens; n: hidden states.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor, nn

from weft.errors import UserError, did_you_mean, listed, shown

How = Literal["sum", "mean", "concat"]
NAMES = ("last", "second-to-last", "all-sum", "all-mean", "all-concat", "weighted")
SEVERAL = re.compile(r"(-?[0-9]{1,4}(?:,-?[0-9]{1,4})*|all|last[0-9]{1,4})(?:-(sum|mean|concat))?")


@dataclass(frozen=True)
class LayerChoice:
    """Some hidden states (0: the embeddings) and how they are combined; none: what the network gives out."""

    numbers: tuple[int, ...] = ()
    how: How = "sum"
    weights: tuple[float, ...] = ()  # of each, where they are summed with weights

    @staticmethod
    @lru_cache(256)
    def of(name: str, layers: int) -> LayerChoice:
        """'last4-concat' and the like, for a network of so many layers; 'weighted' alone is what it has learned."""
        if name in ("last", "weighted"):
            return LayerChoice()
        if name.startswith("weighted:"):
            return _weighted(name, layers)
        match = SEVERAL.fullmatch({"second-to-last": "-2"}.get(name, name))
        which, how = (match[1], match[2]) if match else ("", None)
        last = which == "all" or which.startswith("last")
        if last and how:
            count = layers + 1 if which == "all" else int(which[4:])
            numbers = [*range(layers + 1 - count, layers + 1)] if 1 <= count <= layers + 1 else []
        else:
            numbers = [int(number) for number in which.split(",")] if which and not last else []
        if not numbers or not all(-layers - 1 <= number <= layers for number in numbers):
            several = ("sum", "mean", "concat")
            known = f"last, second-to-last, numbers from {-layers - 1} to {layers}, all-sum, weighted"
            more = f"{', '.join(f'lastK-{how}' for how in several)} (K from 1 to {layers + 1})"
            close = did_you_mean(name, [*NAMES, *(f"last{min(4, layers + 1)}-{how}" for how in several)])
            raise UserError(f"layers {shown(name)!r} is not one of {known}, {more}{close}")
        whole: dict[str | None, How] = {"sum": "sum", "mean": "mean", "concat": "concat"}
        return LayerChoice(tuple(number % (layers + 1) for number in numbers), whole.get(how, "concat"))

    def combined(self, states: Sequence[Tensor]) -> Tensor:
        """n x (N width) -> N width: the hidden states that are read, together."""
        parts = [states[number] for number in self.numbers]
        if self.how == "concat":
            return torch.cat(parts, -1)
        if self.weights:
            parts = [part * weight for part, weight in zip(parts, self.weights, strict=True)]
        total = sum(parts[1:], parts[0])
        return total / len(parts) if self.how == "mean" else total

    def width(self, widths: Sequence[int]) -> int:
        """Of what is read, where the hidden states have these widths."""
        own = [widths[number] for number in self.numbers]
        if self.how == "concat" or not own:
            return sum(own) if own else widths[-1]
        if len(set(own)) > 1:
            different = listed(map(str, own))
            raise UserError(f"hidden states of widths {different} can be concatenated, not added up")
        return own[0]


def _weighted(name: str, layers: int) -> LayerChoice:
    """'weighted:0.2,0.8': a sum with these weights, of the embeddings and of each layer."""
    try:
        weights = tuple(float(number) for number in name.removeprefix("weighted:").split(","))
    except ValueError:
        raise UserError(f"layers {shown(name)!r}: the weights must be numbers with commas between them") from None
    if len(weights) != layers + 1 or not all(map(math.isfinite, weights)):
        wanted = f"{layers + 1} weights are needed, of the embeddings and of each of the {layers} layers"
        raise UserError(f"layers {shown(name)!r}: {wanted}")
    return LayerChoice(tuple(range(layers + 1)), "sum", weights)


class ChosenLayers(nn.Module):
    """The choice of layers that the heads of a network read."""

    def __init__(self, choice: LayerChoice) -> None:
        super().__init__()
        self.choice = choice

    def forward(self, states: list[Tensor]) -> Tensor:
        return self.choice.combined(states)
