"""Choosing the next token from logits: the best one, or a sample from the likely ones.

B: rows; V: vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.errors import UserError

DRAWS = 64  # numbers that a row draws at a time
SPREAD = 0x9E3779B97F4A7C15  # sets the seeds of a prompt's samples far apart


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How to choose; without any of the filters the best token is taken. `n` answers per prompt."""

    temperature: float | None = None  # 1: the model's own probabilities; 0: greedy
    top_k: int | None = None  # among the k likeliest
    top_p: float | None = None  # among the fewest whose probabilities sum to this
    min_p: float | None = None  # among those with at least this share of the best one's probability
    typical: float | None = None  # among the most typical whose probabilities sum to this
    n: int = 1

    def __post_init__(self) -> None:
        if self.temperature is not None and not 0.0 <= self.temperature < float("inf"):
            raise UserError(f"temperature must be 0 or more, not {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"top_k must be at least 1, not {self.top_k}")
        for name, value in (("top_p", self.top_p), ("min_p", self.min_p), ("typical", self.typical)):
            if value is not None and not 0.0 < value <= 1.0:
                raise UserError(f"{name} must be above 0 and at most 1, not {value}")
        if self.n < 1:
            raise UserError(f"n must be at least 1, not {self.n}")
        if self.n > 1 and self.greedy:
            raise UserError(f"greedy search gives one text, not {self.n}: give beam_size or a temperature")

    @property
    def greedy(self) -> bool:
        filters = (self.temperature, self.top_k, self.top_p, self.min_p, self.typical)
        return self.temperature == 0.0 or all(value is None for value in filters)


class RandomDraws:
    """Random numbers of each row, drawn from its own seed, so that its neighbors do not matter."""

    def __init__(self, seeds: Sequence[int], n: int = 1) -> None:
        """`n` rows for each seed; the first of them draws as if it were alone."""
        for seed in seeds:
            if not 0 <= seed < 1 << 63:
                raise UserError(f"a seed must be between 0 and {(1 << 63) - 1}, not {seed}")
        every = [(int(seed) + sample * SPREAD) % (1 << 63) for seed in seeds for sample in range(n)]
        self.generators = [torch.Generator().manual_seed(seed) for seed in every]
        self.drawn = torch.empty(len(every), DRAWS, dtype=torch.float64)
        self.step = 0

    def draw(self, rows: Sequence[int]) -> Tensor:
        """One number between 0 and 1 for each of these rows; all of them draw at every step."""
        place = self.step % DRAWS
        if place == 0:
            for row in rows:
                torch.rand(DRAWS, generator=self.generators[row], dtype=torch.float64, out=self.drawn[row])
        self.step += 1
        return self.drawn[list(rows), place]


def choose(scores: Tensor, sampling: Sampling, draws: Tensor) -> Tensor:
    """B: the next token of each row; `draws` (B, between 0 and 1) are its random numbers."""
    if sampling.greedy:
        return scores.argmax(-1)
    kept = likely(scores, sampling)
    heaps = kept.double().softmax(-1).cumsum(-1)  # B V: float32 sums would lose the rare words
    marks = draws.to(scores.device)[:, None] * heaps[:, -1:]
    tokens = torch.searchsorted(heaps, marks, right=True).squeeze(1)
    # A draw of the very last sliver may land behind the last possible token.
    last = kept.shape[-1] - 1 - (kept > -torch.inf).flip(-1).int().argmax(-1)
    return torch.minimum(tokens, last)


def likely(scores: Tensor, sampling: Sampling) -> Tensor:
    """B V: the scores at this temperature, minus infinity where a token is out of the question."""
    if sampling.temperature is not None:
        # The best token stays at 0 whatever the temperature, so that nothing overflows into NaN.
        scores = (scores - scores.amax(-1, keepdim=True)).double() / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < scores.shape[-1]:
        lowest = scores.topk(sampling.top_k).values[:, -1:]
        scores = scores.masked_fill(scores < lowest, -torch.inf)
    if sampling.top_p is not None and sampling.top_p < 1.0:
        ordered, order = scores.sort(descending=True)
        probabilities = ordered.softmax(-1)
        before = (
            probabilities.cumsum(-1) - probabilities
        )  # what the likelier tokens have together; the first always stays
        ordered = ordered.masked_fill(before >= sampling.top_p, -torch.inf)
        scores = torch.empty_like(scores).scatter(1, order, ordered)
    if sampling.min_p is not None:
        probabilities = scores.softmax(-1)
        lowest = sampling.min_p * probabilities.amax(-1, keepdim=True)
        scores = scores.masked_fill(probabilities < lowest, -torch.inf)
    if sampling.typical is not None and sampling.typical < 1.0:
        scores = _typical(scores, sampling.typical)
    return scores


def _typical(scores: Tensor, mass: float) -> Tensor:
    """Locally typical (Meister et al., 2023): what carries about as much news as this place is expected to."""
    logs = scores.log_softmax(-1)
    probabilities = logs.exp()
    expected = -(logs * probabilities).nansum(-1, keepdim=True)
    distance, order = (-logs - expected).abs().sort()
    together = probabilities.gather(1, order).cumsum(-1)
    last = (together < mass).sum(-1, keepdim=True).clamp(max=scores.shape[-1] - 1)
    return torch.empty_like(scores).scatter(
        1, order, scores.gather(1, order).masked_fill(distance > distance.gather(1, last), -torch.inf)
    )
