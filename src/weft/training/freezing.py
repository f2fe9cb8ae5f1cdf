"""Leaving a part of a network as it is."""

from __future__ import annotations

from torch import nn

from weft.errors import UserError
from weft.nn.multihead import Attention
from weft.nn.recurrent import Recurrent

ABOVE = ("heads", "pooler", "mix")  # what stands above an encoder


def freeze(network: nn.Module, what: str) -> None:
    """`encoder`, or `all-but-K`: all of it but its last K layers; no gradients there, and no dropout.

    `tokens`: the table of tokens alone, such as one that was filled with word vectors.
    """
    if what == "tokens":
        network.get_submodule("tokens").requires_grad_(False)
        return
    stack = getattr(network, "layers", None)
    layers = list(stack) if isinstance(stack, nn.ModuleList) else []
    free = [module for name, module in network.named_children() if name in ABOVE]
    if what != "encoder":
        count = int(what.removeprefix("all-but-"))
        if count >= len(layers):
            raise UserError(f"freeze {what}: the model has only {len(layers)} layers")
        free += [*layers[-count:], *(module for name, module in network.named_children() if name == "final_norm")]
    trained = {id(parameter) for module in free for parameter in module.parameters()}
    for parameter in network.parameters():
        parameter.requires_grad_(id(parameter) in trained)
    loose = {id(module) for part in free for module in part.modules()}
    for module in network.modules():
        if id(module) in loose:
            continue
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(module, Attention):
            module.dropout = 0.0
        elif isinstance(module, Recurrent):
            module.dropout = module.weight_drop = 0.0
