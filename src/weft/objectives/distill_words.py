"""The next word as a teacher foresees it: its likeliest words one by one, all others together.

n: tokens; k: words that are kept of each forecast; V: vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from weft.nn.heads import in_full
from weft.nn.rows import Batch
from weft.objectives.base import Objective
from weft.objectives.language import cross_entropy

WORDS, CHANCES, REST = "taught_words", "taught_chances", "taught_rest"  # n k, n k (logarithms), n


def divergence(scores: Tensor, words: Tensor, chances: Tensor, rest: Tensor) -> Tensor:
    """n: how far a student's forecasts (scores, n V) are from the teacher's, in nats (Kullback and Leibler, 1951).

    Words that were not kept count as one: so this is never more than the divergence of all words, and the same where
    all are kept.
    """
    kept = chances.to(scores.dtype).exp()
    rest = rest.to(scores.dtype)
    kept = kept * ((1 - rest) / kept.sum(-1))[:, None]  # they are stored in half precision: together they are whole
    ours = scores.gather(1, words) - scores.logsumexp(-1, keepdim=True)  # n k
    # What the student leaves for all others; never quite nothing, since that would cost everything.
    left = (-torch.expm1(ours.logsumexp(-1))).clamp_min(torch.finfo(scores.dtype).eps)
    return (torch.xlogy(kept, kept) - kept * ours).sum(-1) + torch.xlogy(rest, rest) - rest * left.log()


@dataclass(frozen=True)
class TaughtWords(Objective):
    """Each token says the next: as the teacher does, and as it stands in the text.

    Held-out text, of which no teacher has said anything, is judged by its own words alone.
    """

    temperature: float = 1.0
    hard: float = 0.0  # how much the words of the text count

    @property
    def terms(self) -> tuple[str, ...]:
        return ("words", "taught")

    @property
    def heads(self) -> Mapping[str, int | None]:
        return {"words": None}

    def counts(self, batch: Batch) -> dict[str, int]:
        found = {"words": len(batch.targets["words"])}
        return {**found, "taught": len(batch.targets[WORDS])} if WORDS in batch.targets else found

    def sums(self, network: Any, batch: Batch) -> dict[str, Tensor]:
        scores = in_full(network.words(network(batch.tokens, batch.rows, batch.segments)))
        plain = cross_entropy(scores, batch.targets["words"])
        if WORDS not in batch.targets:
            return {"words": plain}
        said = (batch.targets[name] for name in (WORDS, CHANCES, REST))
        # The gradients of softened chances are smaller by the square of the temperature (Hinton et al., 2015).
        taught = self.temperature**2 * divergence(scores / self.temperature, *said).sum()
        return {"words": self.hard * plain, "taught": (1 - self.hard) * taught}
