"""The base class of engines: an exported model with the interface of a network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from weft.models.base import Network


class Engine(Network):
    """Takes the place of a network: it has a config, and lies on the CPU."""

    # The network that it was exported from, if it is loaded: it does what the engine does not do, or not exactly.
    stand_in: Callable[[], Network] | None = None

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.register_buffer("place", torch.empty(0), persistent=False)  # for code that asks for the network's device

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        return self  # an engine cannot be moved or converted: it runs on the CPU in the precision of its export
