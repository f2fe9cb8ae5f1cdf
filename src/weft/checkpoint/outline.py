"""Networks with shapes and no numbers yet: to be filled from a folder, or measured as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from weft.checkpoint.families import Family
from weft.models.base import Network
from weft.nn.rows import Rows


class _Unfilled(TorchFunctionMode):
    """Modules are made without drawing weights: on no device that would do nothing, and load the compiler to do it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def outline(family: Family, config: Any, heads: Mapping[str, int]) -> Network:
    """A network with shapes and no numbers, ready to be measured or filled."""
    with torch.device("meta"), _Unfilled():
        return family.network(config, heads)


@dataclass(frozen=True)
class Measure:
    """What a model of some size weighs and costs."""

    parameters: int
    flops: float  # per token, forward, over a text that fills the context

    def bytes(self, kind: str) -> int:
        """Of the weights alone; int8 keeps one scale per output in float32, which is left out here."""
        return self.parameters * {"fp32": 4, "bf16": 2, "int8": 1}[kind]


def measure(family: Family, config: Any, heads: Mapping[str, int]) -> Measure:
    """Count a model's parameters and operations without making it."""
    network = outline(family, config, heads)
    parameters = sum(p.numel() for p in network.parameters())
    if family.reads:  # what is read and what is written both fill the context
        rows = Rows.of([config.context])
        return Measure(parameters, network.operations(rows, rows) / config.context)
    if network.products is not None:
        return Measure(parameters, 2.0 * network.products)
    turns = config.layers // len(network.layers) if network.layers else 1  # a layer may be read many times
    matrices = 0
    for name, module in network.named_modules():
        if isinstance(module, nn.Linear) and not name.startswith(("heads.", "pooler.")):
            matrices += module.weight.numel() * (turns if name.startswith("layers.") else 1)
    if "words" in heads:
        matrices += network.tokens.weight.numel()
    if not config.heads:  # no attention
        return Measure(parameters, 2.0 * matrices)
    head_width = config.head_width or config.width // config.heads
    keys = config.context / 2 if family.speaks else config.context  # a decoder sees half the text on average
    # A multiplication and an addition per weight; scores and mixed values per key and head.
    lookers = sum(config.layer_heads or [config.layers * config.heads])  # of all layers
    flops = 2.0 * matrices + 4.0 * lookers * head_width * keys
    return Measure(parameters, flops)
