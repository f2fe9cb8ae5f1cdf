"""A model with fewer layers: those that stay keep their weights, and the folder its published format."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from weft.checkpoint.families import outline
from weft.checkpoint.folder import LoadedModel, fill
from weft.errors import UserError

SIDES = ("encoder", "decoder")  # of a network that reads one text and writes another


def evenly(count: int, of: int) -> tuple[int, ...]:
    """Which layers stay, evenly spaced from the first on: 3 of 6 are 0, 2, 4, as DistilBERT begins from BERT's."""
    if not 1 <= count <= of:
        raise UserError(f"between 1 and {of} of {of} layers can be kept, not {count}")
    return tuple(number * of // count for number in range(count))


def layers_in(opened: LoadedModel) -> int:
    """How many layers a model has, or how often it reads its one; of an encoder-decoder those that read."""
    network, config = opened.network, opened.config
    stack = network.encoder if opened.family.reads else network.layers
    if not isinstance(stack, nn.ModuleList) or not config.layers:
        raise UserError(f"{opened.family.name} has no stack of layers to prune")
    return int(config.layers)


def can_take(opened: LoadedModel) -> bool:
    """Whether some of a model's layers may be taken: it has a stack, and writes with as many as it reads with."""
    try:
        count = layers_in(opened)
    except UserError:
        return False
    return not opened.family.reads or len(opened.network.get_submodule("decoder")) == count  # type: ignore[arg-type]


def with_layers(opened: LoadedModel, keep: Sequence[int], written: Sequence[int] | None = None) -> LoadedModel:
    """The model with these of its layers alone, counted from 0, in their order.

    An encoder-decoder keeps these on both sides; `written`: those of the side that writes, where they are others. Of
    ALBERT, which reads one layer again and again, only how many they are counts.
    """
    count = layers_in(opened)
    _check(keep, count, "layers")
    tensors = dict(opened.network.state_dict())
    config = opened.config
    changes: dict[str, Any] = {"layers": len(keep)}
    if opened.family.reads:
        stack = opened.network.get_submodule("decoder")
        assert isinstance(stack, nn.ModuleList)
        if written is None and len(stack) != count:
            raise UserError(
                f"the decoder has {len(stack)} layers, the encoder {count}: give the layers of each to keep"
            )
        written = keep if written is None else written
        _check(written, len(stack), "layers that write")
        changes["decoder_layers"] = len(written)
        for side, chosen in zip(SIDES, (keep, written), strict=True):
            tensors = _renumbered(tensors, side, chosen)
    elif len(opened.network.get_submodule("layers")) == count:  # type: ignore[arg-type]
        tensors = _renumbered(tensors, "layers", keep)
    if config.layer_heads is not None:
        changes["layer_heads"] = tuple(config.layer_heads[number] for number in keep)
    if "mix.shares" in tensors:  # of the embeddings, then of each layer
        tensors["mix.shares"] = tensors["mix.shares"][[0, *(number + 1 for number in keep)]]
    return rebuilt(opened, replace(config, **changes), tensors)


def _check(keep: Sequence[int], count: int, what: str) -> None:
    if not keep:
        raise UserError(f"no {what} would stay: at least one has to")
    if list(keep) != sorted(set(keep)) or keep[0] < 0 or keep[-1] >= count:
        raise UserError(f"{what} to keep must be some of 0 to {count - 1}, in their order, not {list(keep)}")


def _renumbered(tensors: Mapping[str, Tensor], stack: str, keep: Sequence[int]) -> dict[str, Tensor]:
    """The tensors with those of some layers alone, under their new numbers."""
    places = {number: place for place, number in enumerate(keep)}
    renumbered = {}
    for name, tensor in tensors.items():
        layer = re.match(rf"{stack}\.(\d+)\.", name)
        if layer is None:
            renumbered[name] = tensor
        elif int(layer[1]) in places:
            renumbered[f"{stack}.{places[int(layer[1])]}.{name[layer.end() :]}"] = tensor
    return renumbered


def rebuilt(opened: LoadedModel, config: Any, tensors: Mapping[str, Tensor], **changes: Any) -> LoadedModel:
    """The model of another config with these weights, copied; `changes` are those of what was opened."""
    heads = changes.get("heads", opened.heads)
    network = outline(opened.family, config, heads)
    expected = network.state_dict()
    unfit = [name for name, tensor in expected.items() if name not in tensors or tensors[name].shape != tensor.shape]
    if unfit or len(expected) != len(tensors):
        raise UserError(f"the parts that would stay of {opened.family.name} do not fit together ({sorted(unfit)[:1]})")
    fill(network, {name: tensors[name].detach().clone() for name in expected}, (), 0.0, 0)
    network.to(opened.device)
    return replace(opened, config=config, network=network.eval(), **changes)
