"""What a student learns by from what its teacher says of words, of the ends of answers, and of texts as vectors.

A prediction that has no right label counts by the teacher alone; one that has, by `hard` of that and the rest of the
teacher; one of which the teacher says nothing, by its label alone, unless labels count for nothing. Each weighs the
same in a step.

N: tokens; R: rows; E: examples; P: places where a word begins; C: outputs of the head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.data.masking import NOTHING
from weft.nn.heads import in_full
from weft.nn.rows import Batch
from weft.objectives.base import Objective
from weft.objectives.distill import soft_loss
from weft.objectives.tasks import by_row


def mixed(soft: Tensor, right: Tensor, taught: Tensor, labeled: Tensor, hard: float) -> dict[str, Tensor]:
    """The summed losses of predictions, each by what there is to learn it from."""
    if not hard:
        return {"teacher": (soft * taught).sum()}
    by_label = labeled * (1 - taught + hard * taught)
    by_teacher = taught * (1 - hard * labeled)
    return {"teacher": (soft * by_teacher).sum(), "labels": (right * by_label).sum()}


@dataclass(frozen=True)
class TaughtTags(Objective):
    """A label for each word, said at its first token, as the teacher says it of that word."""

    outputs: int
    temperature: float = 1.0
    hard: float = 0.0

    @property
    def terms(self) -> tuple[str, ...]:
        return ("teacher", "labels") if self.hard else ("teacher",)

    @property
    def heads(self) -> Mapping[str, int | None]:
        return {"tag": self.outputs}

    def counts(self, batch: Batch) -> dict[str, int]:
        known = (batch.targets["taught"] > 0) | ((batch.targets["tags"] != NOTHING) & (self.hard > 0))
        return dict.fromkeys(self.terms, int(known.sum()))

    def sums(self, network: Any, batch: Batch) -> dict[str, Tensor]:
        hidden = network(batch.tokens, batch.rows, batch.segments)[batch.targets["places"]]
        scores = in_full(network.scores("tag", hidden, batch.rows))  # P C
        tags, taught = batch.targets["tags"], batch.targets["taught"]
        soft = soft_loss(scores, batch.targets["said"].to(scores.dtype), self.temperature)
        right = F.cross_entropy(scores, tags, reduction="none", ignore_index=NOTHING)
        return mixed(soft, right, taught, (tags != NOTHING).to(soft.dtype), self.hard)


@dataclass(frozen=True)
class TaughtEnds(Objective):
    """The first and the last token of an answer: the teacher's chances of each token to be it, in every row."""

    temperature: float = 1.0
    hard: float = 0.0

    @property
    def terms(self) -> tuple[str, ...]:
        return ("teacher", "labels") if self.hard else ("teacher",)

    @property
    def heads(self) -> Mapping[str, int | None]:
        return {"answer": 2}

    def counts(self, batch: Batch) -> dict[str, int]:
        known = (batch.targets["taught"] > 0) | ((batch.targets["ends"][:, 0] != NOTHING) & (self.hard > 0))
        return dict.fromkeys(self.terms, 2 * int(known.sum()))

    def sums(self, network: Any, batch: Batch) -> dict[str, Tensor]:
        rows, ends = batch.rows, batch.targets["ends"]  # R 2
        scores = in_full(network.scores("answer", network(batch.tokens, rows, batch.segments), rows))  # N 2
        wanted = batch.targets["chances"].to(scores.dtype)  # N 2, already at this temperature
        apart = torch.special.xlogy(wanted, wanted) - wanted * by_row(scores / self.temperature, rows)
        soft = scores.new_zeros(rows.count, 2).index_add(0, rows.numbers(len(scores)), apart) * self.temperature**2
        right = -by_row(scores, rows).gather(0, rows.firsts()[:, None] + ends.clamp_min(0))
        taught, labeled = batch.targets["taught"][:, None], (ends[:, :1] != NOTHING).to(soft.dtype)
        return mixed(soft, right, taught, labeled, self.hard)


@dataclass(frozen=True)
class TaughtVectors(Objective):
    """A text as the teacher's vector: its direction, and unless that is all that matters its length too.

    Both errors are told in units of how far the teacher's vectors lie from their middle, or most of them would be what
    all texts have in common: whoever says the middle of every text is wrong by 1, and a copy by 0.
    """

    pooling: Literal["mean", "first", "max"] = "mean"

    @property
    def terms(self) -> tuple[str, ...]:
        return ("teacher",)

    @property
    def heads(self) -> Mapping[str, int | None]:
        return {}

    def counts(self, batch: Batch) -> dict[str, int]:
        return {"teacher": int((batch.targets["turned"] > 0).sum())}

    def sums(self, network: Any, batch: Batch) -> dict[str, Tensor]:
        said, turned, far = (batch.targets[name] for name in ("said", "turned", "far"))
        hidden = in_full(network(batch.tokens, batch.rows, batch.segments))
        vectors = pooled(hidden, batch, len(said), self.pooling)  # E width
        wanted = said.to(vectors.dtype)
        direction = 2 * (1 - F.cosine_similarity(vectors, wanted))  # the square of what is between their ends
        return {"teacher": (direction * turned + (vectors - wanted).square().sum(1) * far).sum()}


def pooled(hidden: Tensor, batch: Batch, examples: int, pooling: str) -> Tensor:
    """N width -> E width: the vector of each text from the tokens of all its windows, as `weft embed` makes it."""
    rows, owners, own = batch.rows, batch.targets["owners"], batch.targets["own"]  # own: N, 1 where a token counts
    if pooling == "first":
        hidden, own = hidden[rows.firsts()], torch.ones_like(owners, dtype=hidden.dtype)
    else:
        owners, own = owners[rows.numbers(len(hidden))], own.to(hidden.dtype)
    if pooling == "max":
        lowest = hidden.new_full((examples, hidden.shape[1]), -torch.inf)
        there = hidden.masked_fill(own[:, None] == 0, -torch.inf)
        found = lowest.scatter_reduce(0, owners[:, None].expand_as(there), there, "amax")
        return found.masked_fill(found == -torch.inf, 0.0)
    total = hidden.new_zeros(examples, hidden.shape[1]).index_add(0, owners, hidden * own[:, None])
    return total / own.new_zeros(examples).index_add(0, owners, own).clamp_min(1)[:, None]
