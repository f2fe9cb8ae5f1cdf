"""One model while it is compared with others, and what may be wrong with it."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weft.comparison.comparison import LESS
from weft.comparison.kinds import LEAST, Kind
from weft.comparison.unlabeled import BITS
from weft.metrics.bootstrap import Replicates
from weft.metrics.worst_rows import WorstRows
from weft.tasks.model import Model

APART = 10  # texts that are shown, where two models disagree most
TENTH = 0.1  # of the first model's score: who writes and keeps less is broken


@dataclass
class Party:
    """One model while it is compared."""

    name: str
    model: Model
    folder: Path | None
    kind: Kind
    metrics: Any
    agreement: Any
    worst: WorstRows = field(default_factory=lambda: WorstRows(20 * APART))  # the same text may come again and again
    keys: set[Hashable] = field(default_factory=set)  # a few of its answers: two are enough to tell that they differ
    damaged: str | None = None
    found: dict[str, Replicates] = field(default_factory=dict)
    of: tuple[Party, ...] = ()  # of the joint voice of several: those whose it is


def fault(party: Party, first: Party, varied: bool, rows: int) -> str | None:
    """Why a model is no model to be used, as far as these rows tell."""
    other = party is not first and len(first.keys) > 1
    if rows >= LEAST and len(party.keys) == 1 and (varied or other):
        return f"it gives all {rows:,} texts the same answer"
    if party.model.task == "complete":
        bits = party.found["bits_per_byte"].score()
        return f"it needs {bits.value:.2f} bits per byte, and {BITS:g} need no model" if bits.low >= BITS else None
    if not party.found or not first.found:
        return None
    chosen = party.kind.chosen
    if party is first:  # nobody stands beside it, so it must be worse than chance, not just no better
        return worse(party, rows)
    if party.kind.beyond_chance is None:
        kept = party.found[chosen].over(first.found[chosen])
        few = math.isfinite(kept.high) and kept.high < TENTH
        return f"it keeps {100 * kept.value:.1f} % of the {chosen} of {first.name}" if few else None
    name, level = party.kind.beyond_chance, party.kind.level
    mine, theirs = party.found[name], first.found[name]
    if mine.score().low <= level < theirs.score().low and mine.minus(theirs).high < 0:
        return f"its {name} of {mine.score().value:.3f} is no better than chance, {level:.3f}"
    return None


def worse(party: Party, rows: int) -> str | None:
    """Whether a model says the wrong thing so often that guessing would be better: what it says has been mixed up."""
    name = party.kind.beyond_chance
    score = None if name is None else party.found[name].score()
    if score is None or rows < 2 * LEAST or not score.high < party.kind.level:  # of few rows it may be bad luck
        return None
    return f"its {name} of {score.value:.3f} is worse than chance, {party.kind.level:.3f}"


def fallen(party: Party, hash: str) -> str | None:
    """What a model's own card says it reaches on these very rows, where it no longer does."""
    chosen = party.kind.chosen
    if not hash or chosen in LESS or chosen not in party.found or party.model.task_object.writes:  # writers: of a part
        return None
    value = party.found[chosen].score().value
    for told in party.model.card.metrics:
        if told.data == hash and told.name == chosen and told.low is not None and value < told.low:
            return f"its {chosen} of {value:.3f} is not the {told.value:.3f} that its card says of the same rows"
    return None
