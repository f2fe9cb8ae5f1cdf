"""What encoder-decoders learn by: each token that is written says the next, from all that was read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from weft.data.masking import NOTHING
from weft.nn.heads import in_full
from weft.nn.rows import Batch
from weft.objectives.base import Objective


@dataclass(frozen=True)
class Writing(Objective):
    """The next token of what is written; a share of `smoothing` is asked of all tokens alike (Szegedy et al., 2016)."""

    smoothing: float = 0.0

    @property
    def terms(self) -> tuple[str, ...]:
        return ("words",)

    @property
    def heads(self) -> Mapping[str, int | None]:
        return {"words": None}

    def counts(self, batch: Batch) -> dict[str, int]:
        return {"words": int((batch.targets["words"] != NOTHING).sum())}

    def sums(self, network: Any, batch: Batch) -> dict[str, Tensor]:
        # How often a network is fed its own words grows with the steps, so it comes with the batch.
        own = {"own": batch.targets["own"]} if "own" in batch.targets else {}
        scores = network.words(network(batch.tokens, batch.rows, source=batch.source, **own))
        smoothing = self.smoothing if network.training else 0.0  # held-out losses are plain, to be compared by
        loss = F.cross_entropy(
            in_full(scores), batch.targets["words"], reduction="sum", ignore_index=NOTHING, label_smoothing=smoothing
        )
        return {"words": loss}
