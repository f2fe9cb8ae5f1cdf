"""What every objective shares: what the trainer knows of it, and soft targets from a teacher.

n: predictions; C: outputs of the head; k: tokens kept of each teacher output; V: vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.nn.heads import in_full
from weft.nn.rows import Batch


class Objective(ABC):
    """A loss in one or several terms, summed over predictions; the trainer divides by the counts of a whole step."""

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


# Targets of a batch with the likeliest next tokens of a teacher: n k, n k and n (the probability of all other tokens).
TOKENS, LOGPROBS, REST = "teacher_tokens", "teacher_logprobs", "teacher_rest"


@dataclass(frozen=True)
class SoftTargets:
    """How a student learns from teacher outputs (Hinton et al., 2015).

    A prediction without a right label counts by the teacher alone; one that has a label, by `hard` of that and the rest
    of the teacher; one without a teacher output, by its label alone, unless `hard` is 0. All weigh alike in a step.
    """

    temperature: float = 1.0
    hard: float = 0.0

    @property
    def terms(self) -> tuple[str, ...]:
        return ("teacher", "labels") if self.hard else ("teacher",)

    def counts(self, taught: Tensor, labeled: Tensor) -> dict[str, int]:
        """Predictions with something to learn from: `taught` by the teacher, or `labeled` where labels count."""
        known = (taught > 0) | (labeled.bool() & (self.hard > 0))
        return dict.fromkeys(self.terms, int(known.sum()))

    def sums(self, soft: Tensor, right: Tensor | None, taught: Tensor, labeled: Tensor) -> dict[str, Tensor]:
        """The summed losses, by the teacher (`soft`) and by labels (`right`; None where `hard` is 0)."""
        if right is None or not self.hard:
            return {"teacher": (soft * taught).sum()}
        by_label = labeled * (1 - taught + self.hard * taught)
        by_teacher = taught * (1 - self.hard * labeled)
        return {"teacher": (soft * by_teacher).sum(), "labels": (right * by_label).sum()}

    def one_of(self, logits: Tensor, teacher: Tensor) -> Tensor:
        """n C -> n: the divergence from the teacher's probabilities, one of C being right."""
        ours, theirs = (F.log_softmax(each / self.temperature, -1) for each in (logits, teacher))
        # The square of the temperature keeps gradients as large as those of right labels.
        return (theirs.exp() * (theirs - ours)).sum(-1) * self.temperature**2

    def each_of(self, logits: Tensor, teacher: Tensor) -> Tensor:
        """n C -> n: the same where each of C labels is a question of its own: the mean over labels."""
        ours, theirs = logits / self.temperature, teacher / self.temperature
        probability = theirs.sigmoid()
        loss = probability * (F.logsigmoid(theirs) - F.logsigmoid(ours))
        loss = loss + (1 - probability) * (F.logsigmoid(-theirs) - F.logsigmoid(-ours))
        return loss.mean(-1) * self.temperature**2

    def next_token(self, logits: Tensor, targets: Mapping[str, Tensor]) -> Tensor:
        """n V -> n: the divergence from the kept tokens of a teacher's output, stored at this temperature."""
        kept = (targets[name] for name in (TOKENS, LOGPROBS, REST))
        return self.temperature**2 * kept_divergence(in_full(logits) / self.temperature, *kept)


def kept_divergence(logits: Tensor, tokens: Tensor, logprobs: Tensor, rest: Tensor) -> Tensor:
    """n V -> n: the divergence (Kullback and Leibler, 1951) from k tokens and the rest, in nats.

    Tokens that were not kept count as one: the result is never more than the divergence of all tokens, and the same
    where all are kept.
    """
    kept = logprobs.to(logits.dtype).exp()
    rest = rest.to(logits.dtype)
    kept = kept * ((1 - rest) / kept.sum(-1))[:, None]  # stored in half precision: normalized again
    ours = logits.gather(1, tokens) - logits.logsumexp(-1, keepdim=True)  # n k
    # What the student leaves for all others; never zero, since its logarithm would be infinite.
    left = (-torch.expm1(ours.logsumexp(-1))).clamp_min(torch.finfo(logits.dtype).eps)
    return (torch.xlogy(kept, kept) - kept * ours).sum(-1) + torch.xlogy(rest, rest) - rest * left.log()
