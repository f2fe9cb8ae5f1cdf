"""How far below its heads a weight of a network stands, for rates by layer and for layers that are left as they are.

Layers are counted from the output downwards: of an encoder-decoder first those of the decoder, then those of the
encoder. The heads and what normalizes or narrows what they read are at depth 0, the tables of tokens and positions one
below the lowest layer.
"""

from __future__ import annotations

from typing import Any

from torch import nn

ABOVE = ("heads", "pooler", "mix")  # what stands above an encoder
TOP = (*ABOVE, "final_norm", "decoder_norm", "combine", "narrow", "project", "beside")
# What belongs to the lowest or highest layer of a side without being a part of it.
LOWEST = {"encoder": ("encoder_positions",), "decoder": ("decoder_positions", "bridge", "looking")}
HIGHEST = {"encoder": ("encoder_norm", "encoder.leave"), "decoder": ()}
BESIDE = ("queries", "mixes")  # one for each layer of a convolutional decoder


def stacked(network: nn.Module) -> list[tuple[str, ...]]:
    """The layers from the input to the output: the first parts of the names of the weights of each."""
    if isinstance(getattr(network, "layers", None), nn.ModuleList):
        return [(f"layers.{number}",) for number in range(len(network.layers))]  # type: ignore[arg-type]
    found = list[tuple[str, ...]]()
    for side in ("encoder", "decoder"):
        found += _side(network, side)
    if found:
        return found
    return [(name,) for name in ("convolutions", "hidden") if hasattr(network, name)]


def _side(network: Any, side: str) -> list[tuple[str, ...]]:
    module = getattr(network, side, None)
    if module is None:
        return []
    inside = module if isinstance(module, nn.ModuleList) else getattr(module, "layers", None)
    if not isinstance(inside, nn.ModuleList):
        return []
    within = side if inside is module else f"{side}.layers"
    wide = len(getattr(module, "directions", (False,)))  # a layer that reads both ways is two modules
    layers = [tuple(f"{within}.{wide * n + way}" for way in range(wide)) for n in range(len(inside) // wide)]
    beside = [name for name in BESIDE if side == "decoder" and hasattr(network, name)]
    layers = [(*names, *(f"{name}.{n}" for name in beside)) for n, names in enumerate(layers)]
    layers[0] += LOWEST[side]
    layers[-1] += HIGHEST[side]
    return layers


def depth_of(network: nn.Module, name: str) -> int:
    """How many layers below the heads a weight or module stands: 0 for the heads, more than the layers for tables."""
    layers = stacked(network)
    if name.split(".")[0] in TOP or name.startswith("decoder.leave"):
        return 0
    for number, names in enumerate(layers):
        if any(f"{name}.".startswith(f"{part}.") for part in names):
            return len(layers) - number
    return len(layers) + 1
