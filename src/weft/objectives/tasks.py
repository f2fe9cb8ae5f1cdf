"""Objectives of understanding tasks: labels and values of whole texts, labels of words, the two ends of an answer.

N: tokens; R: rows; E: examples; C: outputs of the head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor

from weft.data.masking import NOTHING
from weft.nn.heads import in_full
from weft.nn.rows import Batch, Rows
from weft.objectives.base import Objective
from weft.objectives.language import cross_entropy


def text_scores(network: Any, hidden: Tensor, batch: Batch, examples: int) -> Tensor:
    """E C: what the head says of each example: the mean over its windows, each by the tokens that are its own."""
    scores = in_full(network.scores("classify", hidden, batch.rows)) * batch.targets["shares"][:, None]  # R C
    return scores.new_zeros(examples, scores.shape[1]).index_add(0, batch.targets["owners"], scores)


def by_row(scores: Tensor, rows: Rows) -> Tensor:
    """N 2 -> N 2: the logarithm of each token's chance among those of its row."""
    numbers = rows.numbers(scores.shape[0])[:, None].expand_as(scores)
    highest = scores.new_full((rows.count, 2), -1e30).scatter_reduce(0, numbers, scores.detach(), "amax")
    shifted = scores - highest.gather(0, numbers)
    total = scores.new_zeros(rows.count, 2).scatter_add(0, numbers, shifted.exp())
    return shifted - total.clamp_min(1e-30).log().gather(0, numbers)


@dataclass(frozen=True)
class Texts(Objective):
    """One label, several labels, or a number for each text or pair; with `words`, each token also says the next."""

    kind: Literal["label", "labels", "value"]
    outputs: int
    words: float = 0.0  # how much the next tokens count (Radford et al., 2018: 0.5)

    @property
    def terms(self) -> tuple[str, ...]:
        return ("task", "words") if self.words else ("task",)

    @property
    def heads(self) -> Mapping[str, int | None]:
        return {"words": None, "classify": self.outputs} if self.words else {"classify": self.outputs}

    def counts(self, batch: Batch) -> dict[str, int]:
        target = batch.targets["target"]
        said = (target[:, 0] if target.dim() == 2 else target) != NOTHING
        found = {"task": int(said.sum()) if self.kind != "value" else int((batch.targets["importance"] > 0).sum())}
        return {**found, "words": int((batch.targets["words"] != NOTHING).sum())} if self.words else found

    def sums(self, network: Any, batch: Batch) -> dict[str, Tensor]:
        hidden = network(batch.tokens, batch.rows, batch.segments)
        target, importance = batch.targets["target"], batch.targets["importance"]
        scores = text_scores(network, hidden, batch, len(target))
        if self.kind == "label":
            loss = F.cross_entropy(scores, target, reduction="none", ignore_index=NOTHING)
        elif self.kind == "labels":
            wanted = target.clamp_min(0).to(scores.dtype)
            loss = F.binary_cross_entropy_with_logits(scores, wanted, reduction="none").mean(1)
        else:
            loss = (scores[:, 0] - target.to(scores.dtype)).square()
        found = {"task": (loss * importance).sum()}
        if self.words:
            found["words"] = self.words * cross_entropy(network.words(hidden), batch.targets["words"])
        return found


@dataclass(frozen=True)
class Tags(Objective):
    """A label for each word, said at its first token."""

    outputs: int

    @property
    def terms(self) -> tuple[str, ...]:
        return ("tags",)

    @property
    def heads(self) -> Mapping[str, int | None]:
        return {"tag": self.outputs}

    def counts(self, batch: Batch) -> dict[str, int]:
        return {"tags": int((batch.targets["tags"] != NOTHING).sum())}

    def sums(self, network: Any, batch: Batch) -> dict[str, Tensor]:
        hidden = network(batch.tokens, batch.rows, batch.segments)[batch.targets["places"]]
        return {"tags": cross_entropy(network.scores("tag", hidden, batch.rows), batch.targets["tags"])}


@dataclass(frozen=True)
class Ends(Objective):
    """The first and the last token of an answer in its row; a row without one points at its first token."""

    @property
    def terms(self) -> tuple[str, ...]:
        return ("ends",)

    @property
    def heads(self) -> Mapping[str, int | None]:
        return {"answer": 2}

    def counts(self, batch: Batch) -> dict[str, int]:
        return {"ends": 2 * int((batch.targets["ends"][:, 0] != NOTHING).sum())}

    def sums(self, network: Any, batch: Batch) -> dict[str, Tensor]:
        hidden = network(batch.tokens, batch.rows, batch.segments)
        chances = by_row(in_full(network.scores("answer", hidden, batch.rows)), batch.rows)
        ends = batch.targets["ends"]  # R 2
        said = ends[:, 0] != NOTHING
        places = batch.rows.firsts()[:, None] + ends.clamp_min(0)
        return {"ends": -(chances.gather(0, places) * said[:, None]).sum()}
