"""The learning curve: students of an eighth, a quarter and a half of the texts, each trained as long as the last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from weft.config import write_toml
from weft.data.chance import key_of, shuffled
from weft.data.tables import Dataset
from weft.distillation.recipe import DistillRecipe
from weft.distillation.report import point_of
from weft.progress import Log, Progress
from weft.tasks.base import Example
from weft.tasks.model import Model
from weft.training.run import Run
from weft.training.signals import Stop

MIN_TEXTS = 8
Go = Callable[[Run, DistillRecipe, Stop, Log, Progress], Model]


def part_of(dataset: Dataset[Example], share: float, seed: int) -> Dataset[Example]:
    """The dataset with a share of its examples to learn from; a greater share holds every smaller one."""
    if share >= 1:
        return dataset
    numbers = dataset.train_numbers
    count = max(1, round(share * len(numbers)))
    order = shuffled(key_of(seed, "curve"), np.arange(len(numbers)), len(numbers))
    return replace(dataset, train_numbers=sorted(numbers[place] for place in order[:count].tolist()))


def curve_of(
    run: Run, recipe: DistillRecipe, texts: int, go: Go, stop: Stop, log: Log, progress: Progress
) -> list[dict[str, Any]]:
    """The metrics of students of fewer texts, each a run inside `run/curve` that can be resumed like the whole.

    `recipe` is that of the run itself, with its plan: so they make as many steps, and the cache has their teacher's
    outputs.
    """
    points = []
    for halvings in range(recipe.distill.curve - 1, 0, -1):
        share = 0.5**halvings
        count = max(1, round(share * texts))
        if count < MIN_TEXTS:
            continue
        part = Run(run.inside / "curve" / f"1-of-{2**halvings}")
        data, settings = replace(recipe.data, share=share * recipe.data.share), replace(recipe.distill, curve=0)
        smaller = replace(recipe, out=str(part.folder), data=data, distill=settings)
        with part.held():
            part.tidy()
            if not part.recipe.exists():
                write_toml(smaller, part.recipe)
            log(f"curve: a student of {count:,} texts")
            model = go(part, smaller, stop, log, progress)
        points.append(point_of(model, recipe.distill.metric, count))
    return points
