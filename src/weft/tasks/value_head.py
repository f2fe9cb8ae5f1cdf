"""A head that gives a value: its mean and spread can be changed, so that it answers in the units of the data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


@contextmanager
def rescaled(network: Any, scale: float, shift: float) -> Iterator[None]:
    """`rescale` for as long as this lasts; afterwards the weights are what they were, bit for bit."""
    moved = list(last_linear(network.heads["classify"]).parameters())
    moved += [] if len(moved) > 1 or not can_shift(network) else [last_norm(network).bias]
    before = [parameter.detach().clone() for parameter in moved]
    rescale(network, scale, shift)
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, value in zip(moved, before, strict=True):
                parameter.copy_(value)


def rescale(network: Any, scale: float, shift: float) -> None:
    """Make the head of values give `scale` times its output plus `shift`; without a bias, by the last norm below it."""
    output = last_linear(network.heads["classify"])
    with torch.no_grad():
        output.weight.mul_(scale)
        if output.bias is not None:
            output.bias.mul_(scale).add_(shift)
        elif shift:
            row = output.weight[0].double()
            last_norm(network).bias.add_((shift * row / row.square().sum()).to(output.weight.dtype))


def last_norm(network: Any) -> Any:
    """The norm whose output the heads read, where each head reads it as it is."""
    final = network.final_norm
    return network.layers[-1].feedforward_norm if isinstance(final, nn.Identity) else final


def can_shift(network: Any) -> bool:
    """Whether the head of values can be given another mean."""
    if last_linear(network.heads["classify"]).bias is not None:
        return True
    alone = set(network.heads) == {"classify"} and network.mix is None
    return alone and "bias" in dict(last_norm(network).named_parameters())


def last_linear(head: nn.Module) -> nn.Linear:
    return [module for module in head.modules() if isinstance(module, nn.Linear)][-1]
