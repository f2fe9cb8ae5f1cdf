"""Choosing the next token from scores: the best one, or by chance among the likely ones.

B: rows; V: vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How to choose; without any of the three the best token is taken."""

    temperature: float | None = None  # 1: the model's own chances; below 1: bolder; 0: the best token
    top_k: int | None = None  # among the k likeliest
    top_p: float | None = None  # among the fewest that together have this chance

    def __post_init__(self) -> None:
        if self.temperature is not None and not 0.0 <= self.temperature < float("inf"):
            raise UserError(f"temperature must be 0 or more, not {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"top_k must be at least 1, not {self.top_k}")
        if self.top_p is not None and not 0.0 < self.top_p <= 1.0:
            raise UserError(f"top_p must be above 0 and at most 1, not {self.top_p}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0 or (self.temperature is None and self.top_k is None and self.top_p is None)


def choose(scores: Tensor, sampling: Sampling, chances: Sequence[torch.Generator]) -> Tensor:
    """B: the next token of each row, by the row's own source of chance, so that its neighbours do not matter."""
    if sampling.greedy:
        return scores.argmax(-1)
    kept = likely(scores, sampling)
    heaps = kept.double().softmax(-1).cumsum(-1)  # B V: float32 sums would lose the rare words
    draws = torch.stack([torch.rand((), generator=chance, dtype=torch.float64) for chance in chances])
    marks = draws.to(scores.device)[:, None] * heaps[:, -1:]
    found = torch.searchsorted(heaps, marks, right=True).squeeze(1)
    # A draw of the very last sliver may land behind the last possible token.
    last = kept.shape[-1] - 1 - (kept > -torch.inf).flip(-1).int().argmax(-1)
    return torch.minimum(found, last)


def likely(scores: Tensor, sampling: Sampling) -> Tensor:
    """B V: the scores at this temperature, minus infinity where a token is out of the question."""
    if sampling.temperature is not None:
        # The best token stays at 0 whatever the temperature, so that nothing overflows into NaN.
        scores = (scores - scores.amax(-1, keepdim=True)).double() / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < scores.shape[-1]:
        least = scores.topk(sampling.top_k).values[:, -1:]
        scores = scores.masked_fill(scores < least, -torch.inf)
    if sampling.top_p is not None and sampling.top_p < 1.0:
        ordered, order = scores.sort(descending=True)
        chances = ordered.softmax(-1)
        before = chances.cumsum(-1) - chances  # what the likelier tokens have together; the first always stays
        ordered = ordered.masked_fill(before >= sampling.top_p, -torch.inf)
        scores = torch.empty_like(scores).scatter(1, order, ordered)
    return scores
