"""How far below its heads a weight of a network stands, and leaving a part of a network as it is."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from weft.errors import UserError
from weft.models.base import Network
from weft.nn.multihead import Attention
from weft.nn.recurrent import Recurrent

BESIDE = "beside"  # weights of an objective


def depth_of(network: Network, name: str) -> int:
    """How many layers below the heads a weight or module stands: 0 for the heads, more than the layers for tables."""
    layers = network.layer_names()  # of an encoder-decoder those of the decoder are nearer to the heads
    stacks = [(*network.TOP, BESIDE), *reversed(layers)]
    for depth, names in enumerate(stacks):
        if any(f"{name}.".startswith(f"{part}.") for part in names):
            return depth
    return len(layers) + 1


def freeze(network: Network, what: str) -> None:
    """`encoder`, or `all-but-K`: all of it but its last K layers; no gradients there, and no dropout.

    Of an encoder-decoder, `encoder` is what reads, its tables among it, and the last layers are those of the decoder,
    then those of the encoder. `tokens`: the table of tokens alone, such as one that was filled with word vectors.
    """
    if what == "tokens":
        network.get_submodule("tokens").requires_grad_(False)
        return
    is_free = _all_but_encoder(network) if what == "encoder" else _last_layers(network, what)
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(is_free(name))
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise UserError(f"freeze {what}: nothing of this model would be left to train")
    for name, module in network.named_modules():
        if isinstance(module, nn.Dropout):
            module.p = module.p if is_free(name) else 0.0
        elif any(parameter.requires_grad for parameter in module.parameters()):
            continue
        elif isinstance(module, Attention):
            module.dropout = 0.0
        elif isinstance(module, Recurrent):
            module.dropout = module.weight_drop = 0.0


def _all_but_encoder(network: Network) -> Callable[[str], bool]:
    """Which weights learn where the encoder does not: the heads, or the decoder with its own table."""
    if network.decoder is None:
        return lambda name: name.split(".")[0] in ("heads", "pooler", "mix")
    if network.encoder is None:
        raise UserError("freeze encoder: this model has none; freeze tokens, or all-but-K")
    # A table that both sides read is the encoder's too.
    reads = ["encoder", "encoder_norm", "encoder_positions", "source_tokens", "positions", "dropout"]
    reads += ["tokens"] if network.source_tokens is None else []
    return lambda name: name.split(".")[0] not in reads


def _last_layers(network: Network, what: str) -> Callable[[str], bool]:
    """Which weights learn where only the last layers do: theirs, and those of what stands above them."""
    count, layers = int(what.removeprefix("all-but-")), len(network.layer_names())
    if count >= layers:
        raise UserError(f"freeze {what}: the model has only {layers} layers")
    return lambda name: depth_of(network, name) <= count
