"""A network's copy in half precision, for answers on a GPU: made once, and made anew when the weights have changed."""

from __future__ import annotations

import copy
from itertools import chain
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import nn

Precision = Literal["auto", "fp32", "bf16", "fp16"]
KINDS = {"bf16": torch.bfloat16, "fp16": torch.float16}
COPIES: WeakKeyDictionary[nn.Module, Halves] = WeakKeyDictionary()


def is_watched(network: nn.Module) -> bool:
    """Whether somebody looks at a network's inside while it works, or changes it: then it works step by step itself."""
    names = ("watcher", "editor", "listener")
    for module in network.modules():
        own = vars(module)
        if own["_forward_hooks"] or own["_forward_pre_hooks"] or any(own.get(name) is not None for name in names):
            return True
    return False


def kind_of(network: nn.Module, precision: Precision, generates: bool) -> torch.dtype | None:
    """The half precision that a network answers in; None: its own.

    By default on a GPU: bf16 where it generates, since its range is that of training, and fp16, which rounds eight
    times more finely, where it gives labels or vectors.
    """
    weight = next(network.parameters(), None)
    if weight is None or weight.dtype != torch.float32 or weight.device.type != "cuda" or precision == "fp32":
        return None
    if precision != "auto":
        return KINDS[precision]
    if generates and torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.bfloat16
    return torch.float16


def places_of(network: nn.Module) -> tuple[int, ...]:
    """Where the tensors of a network lie: what was captured is of no use when they lie elsewhere."""
    return tuple(tensor.data_ptr() for tensor in chain(network.parameters(), network.buffers()))


class Halves:
    """The copies of one network."""

    def __init__(self, places: tuple[int, ...]) -> None:
        self.places = places
        self.versions: list[int] | None = None  # of the weights that were copied; None: they have changed
        self.copies: dict[torch.dtype, nn.Module] = {}


def weights_changed(network: nn.Module) -> None:
    """What a captured step of training has changed does not show in the versions of the weights."""
    if network in COPIES:
        COPIES[network].versions = None


def halved(network: Any, kind: torch.dtype | None) -> Any:
    """The copy of a network in this precision; itself where there is none, or where somebody watches it."""
    if kind is None or is_watched(network):
        return network
    halves, places = COPIES.get(network), places_of(network)
    if halves is None or halves.places != places:
        halves = COPIES[network] = Halves(places)
    tensors = [*network.parameters(), *network.buffers()]
    versions = [0 if tensor.is_inference() else tensor._version for tensor in tensors]
    if kind not in halves.copies:
        with torch.inference_mode(False):  # it may be used in any mode
            halves.copies[kind] = copy.deepcopy(network).requires_grad_(False).to(kind).eval()
    if halves.versions != versions:
        with torch.no_grad():
            for half in halves.copies.values():
                for ours, theirs in zip([*half.parameters(), *half.buffers()], tensors, strict=True):
                    ours.copy_(theirs)
    halves.versions = versions
    return halves.copies[kind]
