"""Objectives of understanding tasks: labels and values of texts, labels of words, the two ends of an answer, vectors.

Each takes `soft` targets from a teacher as an option.

N: tokens; R: rows; E: examples; P: places where a word begins; C: outputs of the head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.data.masking import NOTHING
from weft.nn.heads import in_full
from weft.nn.rows import Batch, Rows
from weft.objectives.base import Objective, SoftTargets
from weft.objectives.language import cross_entropy

LOGITS, TAUGHT = "teacher_logits", "taught"  # targets: outputs of a teacher, and 1 where it has one


def by_row(logits: Tensor, rows: Rows) -> Tensor:
    """N 2 -> N 2: the logarithm of each token's probability among those of its row."""
    numbers = rows.numbers(logits.shape[0])[:, None].expand_as(logits)
    highest = logits.new_full((rows.count, 2), -1e30).scatter_reduce(0, numbers, logits.detach(), "amax")
    shifted = logits - highest.gather(0, numbers)
    total = logits.new_zeros(rows.count, 2).scatter_add(0, numbers, shifted.exp())
    return shifted - total.clamp_min(1e-30).log().gather(0, numbers)


@dataclass(frozen=True)
class Texts(Objective):
    """One label, several labels, or a number for each text or pair; with `words`, each token also predicts the next."""

    kind: Literal["label", "labels", "value"]
    outputs: int
    words: float = 0.0  # weight of the next tokens (Radford et al., 2018: 0.5)
    soft: SoftTargets | None = None

    @property
    def terms(self) -> tuple[str, ...]:
        return self.soft.terms if self.soft else ("task", "words") if self.words else ("task",)

    @property
    def heads(self) -> Mapping[str, int | None]:
        return {"words": None, "classify": self.outputs} if self.words else {"classify": self.outputs}

    def counts(self, batch: Batch) -> dict[str, int]:
        important = batch.targets["importance"] > 0
        if self.soft:
            return self.soft.counts(important, important)
        target = batch.targets["target"]
        labeled = (target[:, 0] if target.dim() == 2 else target) != NOTHING
        counts = {"task": int((important if self.kind == "value" else labeled).sum())}
        return {**counts, "words": int((batch.targets["words"] != NOTHING).sum())} if self.words else counts

    def sums(self, network: Any, batch: Batch) -> dict[str, Tensor]:
        hidden = network(batch.tokens, batch.rows, batch.segments)
        importance = batch.targets["importance"]
        # E C, of each example: the mean over its windows, each by the tokens that are its own.
        logits = in_full(network.logits("classify", hidden, batch.rows)) * batch.targets["shares"][:, None]  # R C
        logits = logits.new_zeros(len(importance), logits.shape[1]).index_add(0, batch.targets["owners"], logits)
        if self.soft:
            soft = self._soft_loss(self.soft, logits, batch.targets[LOGITS])
            right = self._loss(logits, batch.targets["target"]) if self.soft.hard else None
            return self.soft.sums(soft, right, importance, batch.targets.get("labeled", importance))
        sums = {"task": (self._loss(logits, batch.targets["target"]) * importance).sum()}
        if self.words:
            sums["words"] = self.words * cross_entropy(network.words(hidden), batch.targets["words"])
        return sums

    def _loss(self, logits: Tensor, target: Tensor) -> Tensor:
        if self.kind == "label":
            return F.cross_entropy(logits, target, reduction="none", ignore_index=NOTHING)
        if self.kind == "labels":
            target = target.clamp_min(0).to(logits.dtype)
            return F.binary_cross_entropy_with_logits(logits, target, reduction="none").mean(1)
        return (logits[:, 0] - target.to(logits.dtype)).square()

    def _soft_loss(self, soft: SoftTargets, logits: Tensor, teacher: Tensor) -> Tensor:
        if self.kind == "value":
            return (logits - teacher).square().mean(-1)
        return soft.one_of(logits, teacher) if self.kind == "label" else soft.each_of(logits, teacher)


@dataclass(frozen=True)
class Tags(Objective):
    """A label for each word, predicted at its first token."""

    outputs: int
    soft: SoftTargets | None = None

    @property
    def terms(self) -> tuple[str, ...]:
        return self.soft.terms if self.soft else ("tags",)

    @property
    def heads(self) -> Mapping[str, int | None]:
        return {"tag": self.outputs}

    def counts(self, batch: Batch) -> dict[str, int]:
        labeled = batch.targets["tags"] != NOTHING
        return self.soft.counts(batch.targets[TAUGHT], labeled) if self.soft else {"tags": int(labeled.sum())}

    def sums(self, network: Any, batch: Batch) -> dict[str, Tensor]:
        hidden = network(batch.tokens, batch.rows, batch.segments)[batch.targets["places"]]
        logits, tags = network.logits("tag", hidden, batch.rows), batch.targets["tags"]  # P C
        if not self.soft:
            return {"tags": cross_entropy(logits, tags)}
        logits = in_full(logits)
        soft = self.soft.one_of(logits, batch.targets[LOGITS].to(logits.dtype))
        right = F.cross_entropy(logits, tags, reduction="none", ignore_index=NOTHING)
        return self.soft.sums(soft, right, batch.targets[TAUGHT], (tags != NOTHING).to(soft.dtype))


@dataclass(frozen=True)
class Ends(Objective):
    """The first and the last token of an answer in its row; a row without one points at its first token.

    A teacher gives the probability of each token to be either, already at the temperature of `soft`.
    """

    heads: ClassVar[Mapping[str, int | None]] = {"answer": 2}
    soft: SoftTargets | None = None

    @property
    def terms(self) -> tuple[str, ...]:
        return self.soft.terms if self.soft else ("ends",)

    def counts(self, batch: Batch) -> dict[str, int]:
        labeled = batch.targets["ends"][:, 0] != NOTHING
        counts = self.soft.counts(batch.targets[TAUGHT], labeled) if self.soft else {"ends": int(labeled.sum())}
        return {name: 2 * count for name, count in counts.items()}

    def sums(self, network: Any, batch: Batch) -> dict[str, Tensor]:
        rows, ends = batch.rows, batch.targets["ends"]  # R 2
        logits = in_full(network.logits("answer", network(batch.tokens, rows, batch.segments), rows))  # N 2
        right = -by_row(logits, rows).gather(0, rows.firsts()[:, None] + ends.clamp_min(0))
        labeled = ends[:, :1] != NOTHING
        if not self.soft:
            return {"ends": (right * labeled).sum()}
        teacher = batch.targets["teacher_probabilities"].to(logits.dtype)  # N 2
        apart = torch.special.xlogy(teacher, teacher) - teacher * by_row(logits / self.soft.temperature, rows)
        soft = logits.new_zeros(rows.count, 2).index_add(0, rows.numbers(len(logits)), apart)
        soft = soft * self.soft.temperature**2
        return self.soft.sums(soft, right, batch.targets[TAUGHT][:, None], labeled.to(soft.dtype))


@dataclass(frozen=True)
class TextVectors(Objective):
    """A text as the teacher's vector: its direction, and unless that is all that matters its length too.

    Both errors are normalized by how far the teacher's vectors lie from their mean: predicting the mean scores 1, a
    perfect copy 0.
    """

    terms: ClassVar[tuple[str, ...]] = ("teacher",)
    heads: ClassVar[Mapping[str, int | None]] = {}
    pooling: Literal["mean", "first", "max"] = "mean"

    def counts(self, batch: Batch) -> dict[str, int]:
        return {"teacher": int((batch.targets["direction_weight"] > 0).sum())}

    def sums(self, network: Any, batch: Batch) -> dict[str, Tensor]:
        hidden = in_full(network(batch.tokens, batch.rows, batch.segments))
        target = batch.targets["teacher_vectors"].to(hidden.dtype)
        vectors = pooled(hidden, batch, len(target), self.pooling)  # E width
        direction = 2 * (1 - F.cosine_similarity(vectors, target))  # the squared distance of unit vectors
        distance = (vectors - target).square().sum(1)
        weighted = direction * batch.targets["direction_weight"] + distance * batch.targets["distance_weight"]
        return {"teacher": weighted.sum()}


def pooled(hidden: Tensor, batch: Batch, examples: int, pooling: str) -> Tensor:
    """N width -> E width: the vector of each text from the tokens of all its windows, as `weft embed` makes it."""
    rows, owners, own = batch.rows, batch.targets["owners"], batch.targets["own"]  # own: N, 1 where a token counts
    if pooling == "first":
        hidden, own = hidden[rows.firsts()], torch.ones_like(owners, dtype=hidden.dtype)
    else:
        owners, own = owners[rows.numbers(len(hidden))], own.to(hidden.dtype)
    if pooling == "max":
        lowest = hidden.new_full((examples, hidden.shape[1]), -torch.inf)
        counted = hidden.masked_fill(own[:, None] == 0, -torch.inf)
        highest = lowest.scatter_reduce(0, owners[:, None].expand_as(counted), counted, "amax")
        return highest.masked_fill(highest == -torch.inf, 0.0)
    total = hidden.new_zeros(examples, hidden.shape[1]).index_add(0, owners, hidden * own[:, None])
    return total / own.new_zeros(examples).index_add(0, owners, own).clamp_min(1)[:, None]
