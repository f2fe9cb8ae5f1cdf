"""What a run is made of: the values that make one differ from another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from weft.data.batching import Feed
from weft.data.rows import ExampleSource
from weft.models.base import Network
from weft.objectives.base import Objective
from weft.training.plan import Training

UNKNOWN = 2000  # steps that a run of some minutes counts with until its speed is known


@dataclass(frozen=True)
class HeldOutMetrics:
    """The task's own metrics of the model as it is."""

    values: Mapping[str, float]
    deciding: str  # the metric that decides which model is kept, the higher the better


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What one run trains, on what and how; a step needs no more than the first three."""

    network: Network
    objective: Objective
    feed: Feed
    held_out: ExampleSource | None = None  # what the run is judged by
    plan: Training = Training()
    device: torch.device = torch.device("cpu")
    decode: Callable[[list[int]], str] = str  # tokens as text, to show what went wrong
    evaluate_first: bool = False  # also before the first step: what continued training began with
    evaluate: Callable[[], HeldOutMetrics] | None = None  # a task's own metrics, which then decide what is best
    pace: Callable[[int], dict[str, Tensor]] | None = None  # targets that every batch of a step has besides
    faster: Mapping[str, float] = field(default_factory=dict)  # beginnings of names: times the others' learning rate
    capture: bool = False  # batches come in few shapes, so that their passes can be played back from CUDA graphs

    @property
    def steps(self) -> int:
        """How many there are; a guess where minutes are given and the speed is not known yet."""
        if self.plan.minutes is None:
            return self.plan.steps or 1
        return min(UNKNOWN, self.plan.steps or UNKNOWN)

    @property
    def learning_rate(self) -> float:
        return self.plan.learning_rate or 0.0

    @property
    def precision(self) -> str:
        return "fp32" if self.plan.precision == "auto" else self.plan.precision

    @property
    def beside(self) -> nn.Module | None:
        """Weights that the objective has of its own, where there are any."""
        beside = self.objective.beside
        return None if beside is None or next(beside.parameters(), None) is None else beside

    @property
    def weights(self) -> list[nn.Parameter]:
        """All that is trained."""
        return [*self.network.parameters(), *(() if self.beside is None else self.beside.parameters())]

    def of_steps(self, steps: int) -> Setup:
        """The same run when its speed, and so its number of steps, is known."""
        plan = self.plan
        every = plan.evaluate_every or max(1, steps // 10)
        plan = replace(
            plan,
            minutes=None,
            steps=steps,
            warmup=min(plan.warmup, steps // 4) if plan.warmup >= 1 else plan.warmup,
            evaluate_every=every,
            save_every=plan.save_every or every,
        )
        return replace(self, plan=plan)

    def due(self, every: int | None, step: int) -> bool:
        """Whether something that is done so often is done after this step; None: at the end alone."""
        return step == self.steps or (every is not None and step > 0 and step % every == 0)
