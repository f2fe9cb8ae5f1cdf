"""`weft.distill`: a small student learns from what a large teacher says, in a run folder that can be gone on with."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from weft.checkpoint.locate import find_folder
from weft.config import changed
from weft.data.tables import RunRows
from weft.distillation.recipe import DistillDataSection, DistillRecipe, recipe_of
from weft.distillation.run import go as distill_run
from weft.distillation.stages import staged
from weft.errors import UserError
from weft.progress import Log, Progress, ProgressChoice, progress_of, to_logger
from weft.runs.calls import absolute, absolute_tables, settings_of
from weft.runs.driver import begun, check_tensorboard, scratch_folder
from weft.runs.recipes import overlaid
from weft.tasks.model import Model
from weft.training.run import Run
from weft.training.signals import Stop

RECIPE = DistillRecipe  # what `weft.resume` reads
Names = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def distill(
    teacher: Names | None = None,
    recipe: DistillRecipe | str | None = None,
    settings: Mapping[str, Any] | None = None,
    *,
    text: Names | None = None,
    data: Any = None,
    dev: Any = None,
    student: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    out: str | os.PathLike[str] | None = None,
    online: bool = False,
    log: Log = to_logger,
    progress: ProgressChoice = None,
    **more: Any,
) -> Model:
    """Teach a small model what a large one says; without `out`, in a folder that goes away with the process.

    `weft.distill("runs/reviews", text="unlabeled.txt", student="3x256")`; every section of the recipe may be given so:
    `distill={"temperature": 4}`, `data={"files": ["rows.csv"], "holdout": 0.1}`; what is given stands above `recipe`.
    `data` and `dev` may also be rows in memory: a data frame, a Dataset, dicts or tuples (`weft.data.parts`).
    """
    rows = RunRows()
    if not isinstance(recipe, DistillRecipe):
        tables = {"text": text, "files": data, "dev": dev}
        values = {"teacher.folders": None if teacher is None else _listed(teacher), "student.model": student}
        given = overlaid(settings or {}, more)
        recipe = recipe_of(recipe, settings_of(given, rows, DistillDataSection, tables, values, out))
    if recipe.out is None:
        recipe = replace(recipe, out=str(scratch_folder() / "run"))
    assert recipe.out is not None
    run = Run(Path(recipe.out))
    run.check_new()
    for name in recipe.teacher.folders if online else ():
        if not Path(name).exists():
            find_folder(name, online)  # from here on it lies in the cache
    d = recipe.data
    if not (d.text or d.files or d.source):
        raise UserError("no text to learn from: give --text FILE of unlabeled texts, or --data FILE of rows")
    check_tensorboard(recipe)
    recipe = _from_anywhere(recipe, rows, log)
    with begun(run, recipe) as stop:
        rows.write(recipe.out or "")
        return go(run, recipe, stop, log, progress_of(progress))


def go(run: Run, recipe: DistillRecipe, stop: Stop, log: Log, progress: Progress) -> Model:
    """In one stage, or in several; from the last checkpoint on where there is one."""
    return (distill_run if recipe.stages.names == ("distill",) else staged)(run, recipe, stop, log, progress)


def _listed(names: Names) -> list[str]:
    several: list[Any] = list(names) if isinstance(names, list | tuple) else [names]
    for name in several:
        if not isinstance(name, str | os.PathLike):
            kind = type(name).__name__
            raise UserError(f"a teacher is the name of a folder, not a {kind}; model.save(FOLDER) writes one")
    return [os.fspath(name) for name in several]


def _from_anywhere(recipe: DistillRecipe, rows: RunRows, log: Log) -> DistillRecipe:
    """The recipe with whole paths, so that the run can be gone on with from any folder."""
    values: dict[str, Any] = {
        "data": absolute_tables(recipe.data, ("text", "files"), rows, recipe.out or "", log),
        "student": {},
    }
    values["teacher"] = {"folders": [str(find_folder(name).absolute()) for name in recipe.teacher.folders]}
    for section, key, name in (
        ("data", "augment_by", recipe.data.augment_by),
        ("student", "model", recipe.student.model),
        ("student", "tokenizer", recipe.student.tokenizer),
    ):
        if name is not None and Path(name).expanduser().exists():
            values[section][key] = absolute(name)
    return changed(recipe, values)
