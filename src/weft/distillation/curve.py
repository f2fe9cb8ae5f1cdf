"""How many texts are enough: students of an eighth, a quarter and a half of them, each trained as long as the last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from weft.config import write_toml
from weft.data.chance import key_of, shuffled
from weft.distillation.dataset import Material
from weft.distillation.recipe import DistillRecipe
from weft.distillation.report import point_of
from weft.progress import Log, Progress
from weft.tasks.model import Model
from weft.training.run import Run
from weft.training.signals import Stop

LEAST = 8  # texts, of which a student learns at least
Go = Callable[[Run, DistillRecipe, Stop, Log, Progress], Model]


def part_of(material: Material, share: float, seed: int) -> Material:
    """The material with a part of what is to be learned from; a greater part holds every smaller one."""
    if share >= 1:
        return material
    count = max(1, round(share * len(material.learned)))
    order = shuffled(key_of(seed, "curve"), np.arange(len(material.learned)), len(material.learned))
    return replace(material, learned=sorted(material.learned[place] for place in order[:count].tolist()))


def curve_of(
    run: Run, recipe: DistillRecipe, texts: int, go: Go, stop: Stop, log: Log, progress: Progress
) -> list[dict[str, Any]]:
    """What students of fewer texts reach, each a run inside `run/curve`, that can be gone on with like the whole.

    `recipe` is that of the run itself, with its plan: so they make as many steps, and find what the teacher says in the
    cache.
    """
    found = []
    for halvings in range(recipe.distill.curve - 1, 0, -1):
        share = 0.5**halvings
        count = max(1, round(share * texts))
        if count < LEAST:
            continue
        part = Run(run.inside / "curve" / f"1-of-{2**halvings}")
        smaller = replace(
            recipe,
            out=str(part.folder),
            data=replace(recipe.data, share=share * recipe.data.share),
            distill=replace(recipe.distill, curve=0),
        )
        with part.held():
            part.tidy()
            if not part.recipe.exists():
                write_toml(smaller, part.recipe)
            log(f"curve: a student of {count:,} texts")
            model = go(part, smaller, stop, log, progress)
        found.append(point_of(model, recipe.distill.metric, count))
    return found
