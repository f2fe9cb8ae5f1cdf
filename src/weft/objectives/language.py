"""Language objectives: the next token, masked words, and masked words with a question about a pair of texts.

The trainer divides the sums by the counts of the whole step, so that each prediction weighs the same however the step
is split into passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor

from weft.data.masking import NOTHING
from weft.nn.rows import Batch
from weft.objectives.base import Objective
from weft.objectives.soft import TOKENS, SoftTargets


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Summed over all labels but `NOTHING`; in float32, since a sum of many is too much for less."""
    logits = logits.float() if logits.dtype.itemsize < 4 else logits
    return F.cross_entropy(logits, labels, reduction="sum", ignore_index=NOTHING)


@dataclass(frozen=True)
class NextToken(Objective):
    """Each token predicts the next (GPT); with `soft`, as a teacher does, where a batch has its outputs."""

    heads: ClassVar[Mapping[str, int | None]] = {"words": None}
    soft: SoftTargets | None = field(default=None, kw_only=True)

    @property
    def terms(self) -> tuple[str, ...]:
        return ("words", "teacher") if self.soft else ("words",)

    def counts(self, batch: Batch) -> dict[str, int]:
        words = {"words": int((batch.targets["words"] != NOTHING).sum())}
        return {**words, "teacher": len(batch.targets[TOKENS])} if self.soft and TOKENS in batch.targets else words

    def sums(self, network: Any, batch: Batch) -> dict[str, Tensor]:
        logits = network.words(network(batch.tokens, batch.rows, batch.segments))
        loss = cross_entropy(logits, batch.targets["words"])
        if self.soft is None or TOKENS not in batch.targets:  # held-out text has no teacher outputs
            return {"words": loss}
        soft = self.soft.next_token(logits, batch.targets).sum()
        return {"words": self.soft.hard * loss, "teacher": (1 - self.soft.hard) * soft}


@dataclass(frozen=True)
class MaskedWords(Objective):
    """The words behind the masks (BERT); with `pairs`, also whether the second text of a pair follows the first."""

    pairs: bool = False

    @property
    def terms(self) -> tuple[str, ...]:
        return ("words", "pairs") if self.pairs else ("words",)

    @property
    def heads(self) -> Mapping[str, int | None]:
        return {"words": None, "next": 2} if self.pairs else {"words": None}

    def counts(self, batch: Batch) -> dict[str, int]:
        words = {"words": int((batch.targets["words"] != NOTHING).sum())}
        return {**words, "pairs": len(batch.targets["follows"])} if self.pairs else words

    def sums(self, network: Any, batch: Batch) -> dict[str, Tensor]:
        hidden = network(batch.tokens, batch.rows, batch.segments)
        # The table of all words is by far the largest matrix: it is read only at masks.
        sums = {"words": cross_entropy(network.words(hidden[batch.targets["places"]]), batch.targets["words"])}
        if self.pairs:
            sums["pairs"] = cross_entropy(network.logits("next", hidden, batch.rows), batch.targets["follows"])
        return sums
