"""How much a language model gains from more context: the same tokens foreseen after 1, 2, 3 ... tokens before them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from weft.budget import BUDGET, by_budget
from weft.checkpoint.folder import LoadedModel
from weft.errors import UserError
from weft.metrics.bootstrap import Floats
from weft.tasks.scoring import Reading, surprises

CONTEXTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
WORK = 1 << 19  # tokens that are read for all of them together; on a GPU four times as many
MOST, LEAST = 1024, 32  # places that are foreseen
APART = 8  # tokens at least from one place to the next: neighbors tell little more than one of them


@dataclass(frozen=True)
class ByContext:
    """Mean loss by the number of tokens before, in nats, and the longest context that was of use."""

    contexts: tuple[int, ...]
    nats: tuple[float, ...]
    errors: tuple[float, ...]  # standard error of each mean
    useful: int  # beyond this, no longer context is better by more than the noise
    places: int  # tokens that were foreseen with each context


def places_of(size: int, longest: int, work: int = WORK) -> list[int]:
    """Places of a text, evenly apart, each with at least `longest` tokens before it."""
    cost = sum(context for context in CONTEXTS if context <= longest)
    count = max(1, min(MOST, work // max(1, cost), (size - longest) // APART))
    return [longest + place * (size - longest) // count for place in range(count)]


@torch.inference_mode()
def by_context(opened: LoadedModel, tokens: Sequence[int]) -> ByContext:
    """The loss at the same places of a text, after each of `CONTEXTS` tokens that the model can read.

    Each context is read from nothing, as if the text began there. The places are the same for every model of one
    vocabulary.
    """
    work = WORK if opened.device.type == "cpu" else 4 * WORK
    longest = max((context for context in CONTEXTS if context <= len(tokens) // 2), default=0)
    places = places_of(len(tokens), longest, work) if longest else []
    if len(places) < LEAST:
        raise UserError(f"{len(tokens)} tokens of held-out text are too few to see what context is worth")
    reach = min(longest if opened.config.reach is None else opened.config.reach, opened.config.context)
    farthest = min(longest, max(1, reach))
    contexts = sorted({farthest, *(context for context in CONTEXTS if context <= farthest)})
    losses = np.empty((len(contexts), len(places)))
    for row, context in enumerate(contexts):
        readings = [Reading(list(tokens[place - context : place]), [tokens[place]]) for place in places]
        row_losses = list[float]()
        for batch in by_budget(readings, lambda reading: len(reading.tokens), BUDGET):
            row_losses += [float(nats[0]) for nats in surprises(opened, batch)]
        losses[row] = row_losses
    errors = losses.std(axis=1, ddof=1) / math.sqrt(len(places))
    nats = tuple(losses.mean(axis=1).tolist())
    best = contexts[useful(losses)] if reach else 0
    return ByContext(tuple(contexts), nats, tuple(errors.tolist()), best, len(places))


def useful(losses: Floats) -> int:
    """The first row that no later row is better than by more than twice the noise of their difference, place by place.

    A gain of less than a hundredth of a nat is none, however sure it is.
    """
    for row in range(len(losses) - 1):
        gains = losses[row] - losses[row + 1 :]
        noise = gains.std(axis=1, ddof=1) / math.sqrt(gains.shape[1])
        if not (gains.mean(axis=1) > np.maximum(2 * noise, 0.01)).any():
            return row
    return len(losses) - 1
