"""How far below its heads a weight of a network stands, for learning rates by layer and for frozen layers.

Layers are counted from the output downwards: of an encoder-decoder first those of the decoder, then those of the
encoder. The heads and what normalizes or narrows their input are at depth 0, the tables of tokens and positions one
below the lowest layer.
"""

from __future__ import annotations

from weft.models.base import Network

BESIDE = "beside"  # weights of an objective


def depth_of(network: Network, name: str) -> int:
    """How many layers below the heads a weight or module stands: 0 for the heads, more than the layers for tables."""
    layers = network.layer_names()
    stacks = [(*network.TOP, BESIDE), *reversed(layers)]
    for depth, names in enumerate(stacks):
        if any(f"{name}.".startswith(f"{part}.") for part in names):
            return depth
    return len(layers) + 1
