"""What all engines share: the interface of a network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from weft.models.base import Network


class Engine(Network):
    """Stands where a network would: a config, and a place on the CPU."""

    # The network that it was made from, where that is at hand: it does what the engine does not do, or not alike.
    stand_in: Callable[[], Network] | None = None

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.register_buffer("place", torch.empty(0), persistent=False)  # whoever asks where a network is finds it

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        return self  # nothing moves: the engine runs on the CPU in the precision that it was written in
