"""What a run is made of: the values that make one differ from another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from weft.data.batching import Feed
from weft.data.rows import ExampleSource
from weft.models.base import Network
from weft.objectives.language import Objective
from weft.training.plan import Training


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The values that make one run differ from another; a step needs no more than the first three."""

    network: Network
    objective: Objective
    feed: Feed
    held_out: ExampleSource | None = None  # what the run is judged by
    plan: Training = Training()
    learning_rate: float = 1e-3
    steps: int = 1
    evaluate_every: int = 1
    save_every: int = 1
    device: torch.device = torch.device("cpu")
    precision: str = "fp32"
    seed: int = 0
    words_of: Callable[[list[int]], str] = str  # tokens as text, to show what went wrong
    evaluate_first: bool = False  # also before the first step: what continued training began with
    judge: Callable[[], Verdict] | None = None  # a task's own scores, which then decide what is best
    pace: Callable[[int], dict[str, Tensor]] | None = None  # what every batch of a step is told besides, by its number
    minutes: float | None = None  # of training: the speed of the first steps decides how many there are ...
    most: int | None = None  # ... but no more than these
    faster: Mapping[str, float] = field(default_factory=dict)  # beginnings of names: times the rate of the others
    capture: bool = False  # batches come in few shapes, so that their passes can be played back from CUDA graphs

    @property
    def beside(self) -> nn.Module | None:
        """Weights that the objective has of its own: trained and checkpointed, but no part of the model."""
        found: nn.Module | None = getattr(self.objective, "beside", None)
        return found if found is not None and any(True for _ in found.parameters()) else None

    @property
    def weights(self) -> list[nn.Parameter]:
        """All that is trained."""
        return [*self.network.parameters(), *(() if self.beside is None else self.beside.parameters())]

    def of_steps(self, steps: int) -> Setup:
        """The same run when its number of steps is known."""
        every = self.plan.evaluate_every or max(1, steps // 10)
        plan = replace(self.plan, warmup=min(self.plan.warmup, steps // 4)) if self.plan.warmup >= 1 else self.plan
        return replace(self, plan=plan, steps=steps, evaluate_every=every, save_every=self.plan.save_every or every)

    def due(self, every: int, step: int) -> bool:
        return step == self.steps or (step > 0 and step % every == 0)


@dataclass(frozen=True)
class Verdict:
    """What a task says of the model as it is."""

    scores: Mapping[str, float]
    chosen: str  # the one that decides, the higher the better
