"""What several teachers say together, as one more party that a student is held to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.comparison.cost import Costs
from weft.comparison.kinds import Kind, OfAnswers, OfTags, OfTexts, OfWriting
from weft.comparison.unlabeled import OfVectors
from weft.tasks.answer import Candidates
from weft.tasks.base import Prediction

LEAST = 1e-300  # a chance of which there still is a logarithm


def voice_of(kinds: Sequence[Kind]) -> Kind | None:
    """The kind of what several say together; None where there is none, and a student is held to the first of them."""
    first = kinds[0]
    return first if isinstance(first, OfTexts | OfTags | OfAnswers | OfVectors) else None


def joint(kinds: Sequence[Kind], found: Sequence[Prediction]) -> Prediction:
    """What several models say of one example together: the mean of their chances, as what is learned from them is."""
    first = kinds[0]
    if isinstance(first, OfTexts):
        return first.task.combine(found)
    if isinstance(first, OfTags):
        mean = np.mean([_chances(each.output) for each in found], axis=0)
        return replace(found[0], output=np.log(np.maximum(mean, LEAST)))
    if isinstance(first, OfAnswers):
        return replace(found[0], output=_answer([each.task for each in kinds], [each.output for each in found]))
    # Vectors side by side, each of length 1: their cosine is then the mean of the cosines.
    parts = [each.output / max(float(np.linalg.norm(each.output)), 1e-12) for each in found]
    return replace(found[0], output=np.concatenate(parts) / math.sqrt(len(parts)))


def _chances(scores: NDArray[Any]) -> NDArray[np.float64]:
    """n C: of each word."""
    powers = np.exp(scores.astype(np.float64) - scores.max(1, keepdims=True, initial=-1e30))
    return powers / powers.sum(1, keepdims=True)


def _answer(tasks: Sequence[Any], said: Sequence[Candidates]) -> Candidates:
    """The answers that any of them thinks of, by the mean of their chances, in scores of the first of the tasks."""
    places: dict[tuple[int, int], float] = {}
    nothing = 0.0
    for task, found in zip(tasks, said, strict=True):
        chances, none = task.probabilities(found)
        nothing += none / len(said)
        for (_, start, end), chance in zip(found.spans, chances, strict=True):
            places[start, end] = places.get((start, end), 0.0) + float(chance) / len(said)

    def score(chance: float) -> float:
        return tasks[0].temperature * math.log(max(chance, LEAST))

    best = sorted(((score(chance), *place) for place, chance in places.items()), key=lambda c: (-c[0], c[1], c[2]))
    # Whoever always answers has no threshold, and gives nothing no chance.
    return Candidates(tuple(best), score(nothing) + (tasks[0].threshold or 0.0))


def writing_together(kinds: Sequence[Kind], others: Sequence[Any]) -> Kind | None:
    """Of writers, one that chooses each word with the others; None of other kinds."""
    first = kinds[0]
    return OfWriting(replace(first.task, others=tuple(others))) if isinstance(first, OfWriting) else None


def costs_together(costs: Sequence[Costs | None]) -> Costs | None:
    """What it costs to ask all of them, one after the other."""
    known = [each for each in costs if each is not None]
    if len(known) < len(costs):
        return None

    def total(name: str) -> int | None:
        values = [getattr(each, name) for each in known]
        return None if None in values else sum(values)

    return Costs(
        bytes=total("bytes"),
        parameters=total("parameters"),
        p50=sum(each.p50 for each in known),
        p95=sum(each.p95 for each in known),
        per_second=1 / sum(1 / each.per_second for each in known),
        memory=None,
    )
