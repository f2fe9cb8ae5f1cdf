"""The loss of forecasts: squared errors of the next steps, after every step of a window or after its last one.

What is learned after every step teaches quickly, but only the last step of a window is used in the end: training moves
from the one to the other.

N: steps of all windows; B: windows; O: outputs of the head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from weft.nn.heads import in_full
from weft.nn.rows import Batch
from weft.objectives.losses import Objective, SoftTargets

FUTURE, KNOWN = "future", "known"  # targets of a batch: the next steps (N O, or B O), and 1 where they are known
TEACHER = "teacher_forecast"  # B O
SHARE = "share_of_all"  # how much of the loss is that of all steps; the rest is that of the last step of each window


@dataclass(frozen=True)
class SquaredErrors(Objective):
    """The mean squared error of all numbers that are forecast, in the units that the network learns in."""

    kinds = ("error",)
    outputs: int
    every: bool = True  # a loss after every step, rather than after the last step of a window
    soft: SoftTargets | None = None

    @property
    def heads(self) -> Mapping[str, int | None]:
        return {"forecast": self.outputs}

    def counts(self, batch: Batch) -> dict[str, int]:
        known = batch.targets[KNOWN]
        if self.soft is None:
            return {"error": int(known.sum())}
        return self.soft.counts(batch.targets[TEACHER].new_ones(known.shape), known)

    def sums(self, network: Any, batch: Batch) -> dict[str, Tensor]:
        hidden = network(batch.tokens, batch.rows, batch.segments)
        hidden = hidden if self.every and self.soft is None else hidden[batch.rows.lasts()]
        outputs, known = in_full(network.logits("forecast", hidden, batch.rows)), batch.targets[KNOWN]
        errors = (outputs - batch.targets[FUTURE].to(outputs.dtype)).square()
        if self.soft is None:
            total = (errors * known).sum()
            if not self.every or SHARE not in batch.targets:
                return {"error": total}
            share, lasts, lengths = batch.targets[SHARE], batch.rows.lasts(), batch.rows.lengths()[:, None]
            return {"error": share * total + (1 - share) * (errors[lasts] * known[lasts] * lengths).sum()}
        teacher = (outputs - batch.targets[TEACHER].to(outputs.dtype)).square()
        return self.soft.sums(teacher, errors if self.soft.hard else None, known.new_ones(known.shape), known)
