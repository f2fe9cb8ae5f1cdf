"""What a student learns by from what its teacher says of whole texts, mixed with right labels where there are some.

E: examples; C: outputs of the head; R: rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor

from weft.data.masking import NOTHING
from weft.nn.rows import Batch
from weft.objectives.base import Objective
from weft.objectives.tasks import text_scores


def soft_loss(scores: Tensor, said: Tensor, temperature: float) -> Tensor:
    """... C -> ...: how far the student's chances are from the teacher's, both at this temperature (Hinton, 2015).

    The square of the temperature keeps gradients as long as those of right labels, whatever it is.
    """
    ours, theirs = (F.log_softmax(each / temperature, -1) for each in (scores, said))
    return (theirs.exp() * (theirs - ours)).sum(-1) * temperature**2


def soft_labels_loss(scores: Tensor, said: Tensor, temperature: float) -> Tensor:
    """... C -> ...: the same where each label is a question of its own: the mean over labels."""
    ours, theirs = scores / temperature, said / temperature
    chance = theirs.sigmoid()
    found = chance * (F.logsigmoid(theirs) - F.logsigmoid(ours))
    found = found + (1 - chance) * (F.logsigmoid(-theirs) - F.logsigmoid(-ours))
    return found.mean(-1) * temperature**2


@dataclass(frozen=True)
class TaughtTexts(Objective):
    """One label, several labels, or a number for each text or pair, as the teacher says it.

    An example without a right label counts by the teacher alone; one that has a label, by `hard` of that and the rest
    of the teacher. Either weighs the same in a step.
    """

    kind: Literal["label", "labels", "value"]
    outputs: int
    temperature: float = 1.0
    hard: float = 0.0

    @property
    def terms(self) -> tuple[str, ...]:
        return ("teacher", "labels") if self.hard else ("teacher",)

    @property
    def heads(self) -> Mapping[str, int | None]:
        return {"classify": self.outputs}

    def counts(self, batch: Batch) -> dict[str, int]:
        return dict.fromkeys(self.terms, int((batch.targets["importance"] > 0).sum()))

    def sums(self, network: Any, batch: Batch) -> dict[str, Tensor]:
        hidden = network(batch.tokens, batch.rows, batch.segments)
        said, importance = batch.targets["said"], batch.targets["importance"]
        scores = text_scores(network, hidden, batch, len(importance))  # E C
        if self.kind == "label":
            soft = soft_loss(scores, said, self.temperature)
        elif self.kind == "labels":
            soft = soft_labels_loss(scores, said, self.temperature)
        else:
            soft = (scores - said).square().mean(-1)
        if not self.hard:
            return {"teacher": (soft * importance).sum()}
        target, labeled = batch.targets["target"], batch.targets["labeled"] * importance
        if self.kind == "label":
            right = F.cross_entropy(scores, target, reduction="none", ignore_index=NOTHING)
        elif self.kind == "labels":
            wanted = target.clamp_min(0).to(scores.dtype)
            right = F.binary_cross_entropy_with_logits(scores, wanted, reduction="none").mean(1)
        else:
            right = (scores[:, 0] - target.to(scores.dtype)).square()
        soft = soft * (importance - self.hard * labeled)
        return {"teacher": soft.sum(), "labels": self.hard * (right * labeled).sum()}
