"""The same run with several seeds: what is luck, and what is not."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from weft.checkpoint.folder import TARGET
from weft.config import read_toml, values_of
from weft.errors import UserError
from weft.files import read_json, write_json
from weft.metrics.bootstrap import summarized
from weft.progress import Log, ProgressChoice, to_logger
from weft.runs.finetune import finetune
from weft.runs.recipes import TaskRecipe, read_recipe
from weft.runs.resume import resume
from weft.scratch import sweep
from weft.tasks.model import Model
from weft.training.run import Run


@dataclass(frozen=True)
class Seeds:
    """The scores of runs that differ in nothing but the seed."""

    scores: dict[str, list[float]]
    best: int  # the seed whose model stands in the folder above the runs

    def rows(self) -> list[list[str]]:
        rows = []
        for name, values in self.scores.items():
            mean, spread, low, high = summarized(values)
            each = ", ".join(f"{value:.4f}" for value in values)
            rows.append([name, f"{mean:.4f}", f"{spread:.4f}", f"{low:.4f}", f"{high:.4f}", each])
        return rows


def with_seeds(
    recipe: str | None,
    settings: Mapping[str, Any],
    count: int,
    *,
    online: bool = False,
    log: Log = to_logger,
    progress: ProgressChoice = None,
) -> Seeds:
    """Train, or go on, with `count` seeds, each in `seed-N` of the folder, and put the best model into the folder."""
    if not 2 <= count <= 1000:
        raise UserError(f"seeds must be between 2 and 1000, not {count}")
    plan = read_recipe(recipe, settings, TaskRecipe)
    if plan.out is None:
        raise UserError("no folder for the runs: give --out FOLDER")
    folder = Path(plan.out)
    note = folder / "seeds.json"
    sweep(folder)
    if folder.exists() and any(folder.iterdir()) and not note.exists():
        raise UserError(f"{folder}: already there and not empty; choose another --out or remove it first")
    same = json.dumps(values_of(replace(plan, seed=0, out=None)), sort_keys=True)
    wanted = {"count": count, "first": plan.seed, "recipe": hashlib.sha256(same.encode()).hexdigest()}
    if note.exists() and {key: read_json(note).get(key) for key in wanted} != wanted:
        raise UserError(f"{folder}: holds runs of another recipe or with other seeds; choose another --out")
    write_json(note, wanted)
    models: dict[int, Model] = {}
    for seed in range(plan.seed, plan.seed + count):
        run = Run(folder / f"seed-{seed}")
        if run.recipe.exists():
            models[seed] = resume(run.folder, log=log, progress=progress)
        else:
            one = replace(plan, out=os.fspath(run.folder), seed=seed)
            try:
                models[seed] = finetune(recipe=one, online=online, log=log, progress=progress)
            except UserError:
                if [path.name for path in folder.iterdir()] == [note.name]:  # nothing was learned: nothing is left
                    shutil.rmtree(folder)
                raise
    by_name: dict[str, list[float]] = {}
    for model in models.values():
        for metric in model.card.metrics:
            by_name.setdefault(metric.name, []).append(metric.value)
    chosen = read_toml(TaskRecipe, Run(folder / f"seed-{plan.seed}").recipe).task.metric
    deciding = chosen if chosen is not None and chosen in by_name else next(iter(by_name))
    sign = -1 if deciding == "loss" else 1
    scores = {seed: {each.name: sign * each.value for each in model.card.metrics} for seed, model in models.items()}
    best = max(models, key=lambda seed: scores[seed].get(deciding, float("-inf")))
    for path in (folder / f"seed-{best}").iterdir():
        if path.is_file():
            shutil.copyfile(path, folder / path.name)
        elif path.name == TARGET:
            shutil.copytree(path, folder / path.name, dirs_exist_ok=True)
    write_json(note, {**wanted, "scores": by_name, "best": best})
    return Seeds(by_name, best)
