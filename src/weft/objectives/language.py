"""Language objectives: the next token, masked words, and masked words with a question about a pair of texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from weft.data.masking import NOTHING
from weft.nn.rows import Batch
from weft.objectives.base import Objective


def cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    """Summed over all labels but `NOTHING`; in float32, since a sum of many is too much for less."""
    scores = scores.float() if scores.dtype.itemsize < 4 else scores
    return F.cross_entropy(scores, labels, reduction="sum", ignore_index=NOTHING)


@dataclass(frozen=True)
class NextToken(Objective):
    """Each token says the next (GPT)."""

    @property
    def terms(self) -> tuple[str, ...]:
        return ("words",)

    @property
    def heads(self) -> Mapping[str, int | None]:
        return {"words": None}

    def counts(self, batch: Batch) -> dict[str, int]:
        return {"words": int((batch.targets["words"] != NOTHING).sum())}

    def sums(self, network: Any, batch: Batch) -> dict[str, Tensor]:
        hidden = network(batch.tokens, batch.rows, batch.segments)
        return {"words": cross_entropy(network.words(hidden), batch.targets["words"])}


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
        # The table of all words is by far the largest matrix: it is read only where something is to be said.
        found = {"words": cross_entropy(network.words(hidden[batch.targets["places"]]), batch.targets["words"])}
        if self.pairs:
            found["pairs"] = cross_entropy(network.scores("next", hidden, batch.rows), batch.targets["follows"])
        return found
