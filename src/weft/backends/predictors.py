"""Backends that answer in place of a model's network: the same weights, run faster by other kernels or engines.

A predictor is built when it is first used. If the network is trained, changed, watched or moved, the network itself
answers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from operator import attrgetter, is_
from pathlib import Path
from typing import Any

from torch import Tensor

from weft.backends import onednn
from weft.backends.choice import ANY, BACKENDS, TORCH, VECTORS, WRITING, export_of, folder_of
from weft.backends.opening import opened as open_exported
from weft.checkpoint.folder import LoadedModel
from weft.errors import UserError, one_of, shown
from weft.models.base import Network
from weft.nn.halved import is_watched

VERSION_OF = attrgetter("_version")  # torch counts the changes of a tensor
END = object()


class Predictor:
    """A backend of one network."""

    def __init__(self, name: str, model: LoadedModel, head: str | None, build: Callable[[], Network]) -> None:
        self.name, self.head, self.build = name, head, build
        self.source = model.network
        self.parameters = list(model.network.parameters())
        self.on_cpu = all(weight.is_cpu for weight in self.parameters)
        self.counted = [weight for weight in self.parameters if not weight.is_inference()]  # with a `_version`
        modules = list(model.network.modules())
        tables = (vars(module)[kind] for module in modules for kind in ("_modules", "_parameters"))
        self.tables = [table for table in tables if table]
        self.parts = list(self._parts())
        self.state = self._state()
        self.lock = threading.Lock()
        self.on_arrays = BACKENDS[name].precision != "" and BACKENDS[name].engine == "onnx"  # it needs no tensors
        self.network: Network | None = None

    def network_for(self, network: Network, head: str | None) -> Network:
        """The network of the backend, or the given one if the backend cannot replace it."""
        serves = head == self.head or (self.head == ANY and head != WRITING)
        if network is not self.source or not serves or not self._is_current():
            return network
        return self.ready()

    def ready(self) -> Network:
        """The network of the backend, built at the first call."""
        if self.network is None:
            with self.lock:
                self.network = self.build() if self.network is None else self.network
        return self.network

    def _state(self) -> tuple[list[int], list[int]]:
        """A value that changes when a weight is changed, or the network moved."""
        return list(map(VERSION_OF, self.counted)), list(map(Tensor.data_ptr, self.parameters))

    def _parts(self) -> Iterator[Any]:
        """All modules and weights, and a mark at the end."""
        return chain(chain.from_iterable(map(dict.values, self.tables)), (END,))

    def _is_current(self) -> bool:
        """Whether the network is unchanged, in evaluation mode, on the CPU and not watched."""
        if self.source.training or is_watched(self.source) or not self.on_cpu:
            return False
        # No Python loop: every call needs it.
        return all(map(is_, self._parts(), self.parts)) and self._state() == self.state


def predictor_of(name: str, model: LoadedModel, task: Any) -> Predictor:
    """A backend for a model opened from a folder; `task`: what the model answers."""
    one_of(name, BACKENDS, "backend")
    writes = generates(model, task)
    head = WRITING if writes else None if task.embeds else task.head
    if name in onednn.DTYPES:
        make = onednn.writer_of if writes else onednn.network_of
        return Predictor(name, model, WRITING if writes else ANY, lambda: make(model, name))
    folder = place_of_export(name, model, task)
    if not folder.is_dir():
        raise UserError(f"{model.folder}: has nothing for {name}: it is a model for torch (weft bench prepares it)")

    def build() -> Network:
        try:
            network: Any = open_exported(folder).network
            network.stand_in = lambda: model.network  # for what the engine does not do, or not exactly
            return network
        except UserError as error:
            again = f"weft bench {model.folder} exports it again"
            raise UserError(f"backend {name} cannot be used; {again} ({shown(str(error), 160)})") from None

    return Predictor(name, model, head, build)


def generates(model: LoadedModel, task: Any) -> bool:
    """Whether the answers to a task are generated text; an encoder-decoder always generates."""
    return bool(task.writes or model.family.reads)


def made_for(model: LoadedModel, task: Any, name: str) -> str:
    """The name under which a backend is measured and exported: of the task, or of all that generate or embed."""
    return WRITING if generates(model, task) else VECTORS if task.embeds else name


def place_of_export(name: str, model: LoadedModel, task: Any) -> Path:
    """The folder of the export that a backend runs; all tasks that generate share one."""
    assert model.folder is not None, "an export is stored under the hash of a model folder"
    backend, use = BACKENDS[name], made_for(model, task, task.name)
    return export_of(folder_of(model.folder), use, backend.precision, backend.engine)


def with_predictor(name: str, model: LoadedModel, task: Any) -> LoadedModel:
    """The same model, which answers with this backend."""
    return replace(model, predictor=None if name == TORCH else predictor_of(name, model, task))
