"""What the trainer knows of any objective."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from weft.nn.rows import Batch


class Objective(ABC):
    """A loss in one or several terms, summed over predictions; the trainer divides by the counts of a whole step.

    So each prediction weighs the same, however a step is cut into passes.
    """

    beside: nn.Module | None = None  # weights of its own: trained and checkpointed, but not part of the model

    @property
    @abstractmethod
    def terms(self) -> tuple[str, ...]:
        """The kinds of predictions, in the order of its counts and sums."""

    @property
    @abstractmethod
    def heads(self) -> Mapping[str, int | None]:
        """The heads that it trains and their outputs; None: as many as the vocabulary has tokens."""

    @abstractmethod
    def counts(self, batch: Batch) -> dict[str, int]:
        """How many predictions of each kind a batch asks for."""

    @abstractmethod
    def sums(self, network: Any, batch: Batch) -> dict[str, Tensor]:
        """The summed loss of each kind, in float32."""

    def carried(self, network: Any) -> dict[str, Tensor]:
        """Tensors that it takes from step to step, laid out on the network's device; checkpoints keep them."""
        return {}

    def settle(self) -> None:  # noqa: B027
        """A step is done: what it left is what the next begins with."""

    def for_evaluation(self, network: Any, source: Any) -> Objective:
        """The same with a state of its own, for held-out text."""
        return self
