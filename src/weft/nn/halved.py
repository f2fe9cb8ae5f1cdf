"""The half-precision copy of a network that answers on a GPU; it is updated when the weights have changed."""

from __future__ import annotations

import copy
import threading
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import nn

Precision = Literal["auto", "fp32", "bf16", "fp16"]
KINDS = {"bf16": torch.bfloat16, "fp16": torch.float16}
WATCHERS = ("watcher", "editor", "listener")  # attributes that are None unless `weft.watch` is active
INVENTORIES: WeakKeyDictionary[nn.Module, Inventory] = WeakKeyDictionary()
COPIES: WeakKeyDictionary[nn.Module, Halves] = WeakKeyDictionary()
MAKING = threading.Lock()  # threads that answer with one network share its copies


class Inventory:
    """The tensors and hooks of a network, collected once, since every pass needs them."""

    def __init__(self, network: nn.Module) -> None:
        modules = list(network.modules())
        self.heads = vars(network)["_modules"].get("heads")
        self.tensors = [*network.parameters(), *network.buffers()]
        self.counted = [
            tensor for tensor in self.tensors if not tensor.is_inference()
        ]  # that know how often they changed
        self.hooks = [vars(module)[name] for module in modules for name in ("_forward_hooks", "_forward_pre_hooks")]
        self.watchable = [(vars(module), name) for module in modules for name in WATCHERS if name in vars(module)]


def inventory_of(network: nn.Module) -> Inventory:
    """The inventory of a network; collected again if the network has got other heads."""
    kept = INVENTORIES.get(network)
    if kept is None or kept.heads is not vars(network)["_modules"].get("heads"):
        kept = INVENTORIES[network] = Inventory(network)
    return kept


def is_watched(network: nn.Module) -> bool:
    """Whether hooks or watchers look into a network: then it must run itself, not a copy or a captured graph."""
    kept = inventory_of(network)
    return any(kept.hooks) or any(module[name] is not None for module, name in kept.watchable)


def kind_of(network: nn.Module, precision: Precision, generates: bool) -> torch.dtype | None:
    """The half precision that a network answers in; None: its own precision.

    The default on a GPU is bf16 for generation, since its range is that of training, and fp16 for labels and vectors,
    since it has three more bits of mantissa.
    """
    weight = next(iter(inventory_of(network).tensors), None)
    if weight is None or weight.dtype != torch.float32 or weight.device.type != "cuda" or precision == "fp32":
        return None
    if precision != "auto":
        return KINDS[precision]
    if generates and torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.bfloat16
    return torch.float16


def places_of(network: nn.Module) -> tuple[int, ...]:
    """The addresses of a network's first and last tensors: a captured graph is only valid while they are the same."""
    tensors = inventory_of(network).tensors
    return (tensors[0].data_ptr(), tensors[-1].data_ptr()) if tensors else ()


class Halves:
    """The copies of one network."""

    def __init__(self, places: tuple[int, ...]) -> None:
        self.places = places
        self.versions: list[int] | None = None  # of the weights that were copied; None: they have changed
        self.copies: dict[torch.dtype, nn.Module] = {}


def weights_changed(network: nn.Module) -> None:
    """Tell that weights have changed: the changes of a captured training step do not show in their versions."""
    if network in COPIES:
        COPIES[network].versions = None


def halved(network: Any, kind: torch.dtype | None) -> Any:
    """The copy of a network in this precision; the network itself if `kind` is None or it is watched."""
    if kind is None or is_watched(network):
        return network
    with MAKING:
        return _copy_of(network, kind)


def _copy_of(network: Any, kind: torch.dtype) -> Any:
    halves, places = COPIES.get(network), places_of(network)
    if halves is None or halves.places != places:
        halves = COPIES[network] = Halves(places)
    versions = [tensor._version for tensor in inventory_of(network).counted]
    if kind not in halves.copies:
        with torch.inference_mode(False):  # it may be used in any mode
            halves.copies[kind] = copy.deepcopy(network).requires_grad_(False).to(kind).eval()
    if halves.versions != versions:
        with torch.no_grad():
            for half in halves.copies.values():
                for ours, theirs in zip(
                    [*half.parameters(), *half.buffers()], inventory_of(network).tensors, strict=True
                ):
                    ours.copy_(theirs)
    halves.versions = versions
    return halves.copies[kind]
