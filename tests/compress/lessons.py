"""What the tests of lessons share: odd texts, vocabularies of several kinds, and a student trained by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import weft
from tests.tasks.small import LINES
from weft.checkpoint.card import Window
from weft.checkpoint.folder import LoadedModel
from weft.data.examples import Examples, batch_of
from weft.nn.rows import Batch
from weft.objectives.losses import Objective
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.tokenizers.training import learn

# Several spaces, letters with marks put after them, one that is composed, pictures of several code points, signs.
ODD = "Ada  lives   in Li\u0301ma \U0001f642 now .  Bo goes to New   York "
ODD += "\U0001f469\u200d\U0001f467 again, nai\u0308ve caf\u00e9!"


@cache
def vocabulary(kind: str) -> Tokenizer:
    return learn(LINES, kind, 300)


def model(
    kind: str, heads: dict[str, int], length: int = 24, stride: int = 10, scale: float = 5.0, **card: Any
) -> LoadedModel:
    """A model with one layer whose weights are random and large; its card says in which windows it reads."""
    made = weft.new("bert", vocabulary(kind), size="1x64", settings={"context": 48}, heads=dict(heads), seed=1).opened
    with torch.no_grad():
        for parameter in made.network.parameters():
            if parameter.dim() > 1:
                parameter.mul_(scale)
    return replace(made, card=replace(made.card, window=Window(length=length, stride=stride), **card))


def whole(table: Examples, fixed: bool = False) -> Batch:
    """All examples in one batch."""
    table = table.for_training(99, 0, fixed)
    numbers = np.arange(table.count)
    return batch_of(table.draw(np.zeros_like(numbers), numbers))


class Saying(nn.Module):
    """A network that says the scores it is given, whatever it reads."""

    def __init__(self, scores: Tensor) -> None:
        super().__init__()
        self.said = nn.Parameter(scores)

    def forward(self, tokens: Tensor, rows: Any, segments: Any = None) -> Tensor:
        return self.said

    def logits(self, head: str, hidden: Tensor, rows: Any) -> Tensor:
        return hidden


def loss(objective: Objective, network: Any, batch: Batch) -> Tensor:
    """As the trainer adds it up."""
    counts, sums = objective.counts(batch), objective.sums(network, batch)
    assert set(counts) == set(sums) == set(objective.terms)
    return sum((sums[name] / counts[name] for name in sums), torch.zeros(()))


def learned(
    student: LoadedModel, objective: Objective, table: Examples, steps: int = 60, learning_rate: float = 3e-3
) -> list[float]:
    """Train a student on everything at once; its losses."""
    batch, found = whole(table), []
    weights = list(student.network.parameters())
    means, squares = ([torch.zeros_like(weight) for weight in weights] for _ in range(2))
    student.network.eval()  # without dropout
    for step in range(1, steps + 1):
        value = loss(objective, student.network, batch)
        found.append(float(value.detach()))
        grads = torch.autograd.grad(value, weights, allow_unused=True)
        with torch.no_grad():  # Adam, written out: torch.optim takes seconds to import
            for weight, grad, mean, square in zip(weights, grads, means, squares, strict=True):
                if grad is not None:
                    mean.lerp_(grad, 0.1)
                    square.lerp_(grad * grad, 0.001)
                    weight -= learning_rate * (mean / (1 - 0.9**step)) / ((square / (1 - 0.999**step)).sqrt() + 1e-8)
    return found
