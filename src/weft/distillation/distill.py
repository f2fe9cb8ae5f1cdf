"""`weft.distill`: a small student learns from what a large teacher says, in a run folder that can be gone on with."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from weft.checkpoint.locate import find_folder
from weft.config import changed, read_toml
from weft.data.tables import RunRows, Table, is_section
from weft.distillation.recipe import DistillData, DistillRecipe, recipe_of
from weft.distillation.run import go
from weft.distillation.stages import staged
from weft.errors import UserError
from weft.progress import Log, Progress, ProgressChoice, progress_of, to_logger
from weft.runs.driver import begun, scratch_folder
from weft.runs.finetune import SIDES
from weft.runs.recipes import overlaid
from weft.tasks.model import Model
from weft.training.run import Run
from weft.training.signals import Stop

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
    `data` and `dev` may also be rows in memory: a data frame, a Dataset, dicts or tuples (`weft.data.memory`).
    """
    rows = RunRows()
    if not isinstance(recipe, DistillRecipe):
        recipe = recipe_of(recipe, _said(settings, more, rows, teacher, text, data, dev, student, out))
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
    if recipe.tensorboard and find_spec("tensorboard") is None:
        raise UserError("--tensorboard needs the package tensorboard: pip install 'weft[tensorboard]'")
    recipe = _from_anywhere(recipe, rows, log)
    with begun(run, recipe) as stop:
        rows.write(recipe.out or "")
        return _gone(run, recipe, stop, log, progress_of(progress))


def go_on(run: Run, stop: Stop, log: Log, progress: Progress) -> Model:
    """Go on with a distillation that was broken off; where it had finished, its model."""
    return _gone(run, read_toml(DistillRecipe, run.recipe), stop, log, progress)


def _gone(run: Run, recipe: DistillRecipe, stop: Stop, log: Log, progress: Progress) -> Model:
    """In one stage, or in several."""
    return (go if recipe.stages.names == ("distill",) else staged)(run, recipe, stop, log, progress)


def _said(settings: Mapping[str, Any] | None, more: Mapping[str, Any], rows: RunRows, *given: Any) -> dict[str, Any]:
    """What a call says, as a recipe would."""
    said = overlaid(settings or {}, more)
    teacher, text, data, dev, student, out = given

    def put(section: str, key: str, value: Any) -> None:
        said[section] = {**said.get(section, {}), key: value}

    if is_section(data, DistillData):
        said, data = overlaid(said, {"data": data}), None
    if isinstance(student, Mapping):
        said, student = overlaid(said, {"student": student}), None
    there = said.get("data", {})
    sides = {key: there[key] for key in SIDES if isinstance(there.get(key), str | os.PathLike)}
    for key, value in (("text", text), ("files", data), ("dev", dev), *sides.items()):
        if value is not None:
            put("data", key, rows.names(key, value))
    if teacher is not None:
        put("teacher", "folders", _listed(teacher))
    if student is not None:
        put("student", "model", os.fspath(student))
    if out is not None:
        said["out"] = os.fspath(out)
    return said


def _listed(names: Names) -> list[str]:
    several: list[Any] = list(names) if isinstance(names, list | tuple) else [names]
    for name in several:
        if not isinstance(name, str | os.PathLike):
            kind = type(name).__name__
            raise UserError(f"a teacher is the name of a folder, not a {kind}; model.save(FOLDER) writes one")
    return [os.fspath(name) for name in several]


def _from_anywhere(recipe: DistillRecipe, rows: RunRows, log: Log) -> DistillRecipe:
    """The recipe with whole paths, so that the run can be gone on with from any folder."""
    values: dict[str, Any] = {"data": {**rows.paths(recipe.out or "")}, "student": {}}
    for key in ("text", "files", "dev", *SIDES):
        if (names := getattr(recipe.data, key)) and key not in rows.tables:
            table = Table(names, format=recipe.data.format if key in ("files", "dev") else "txt")
            values["data"][key] = table.absolute(lambda text: log(f"weft: note: {text}"))
    learned, judges = (
        {name for key in keys for name in values["data"].get(key, ())}
        for keys in (("text", "files", "source", "target"), ("dev", "dev_source", "dev_target"))
    )
    if both := learned & judges:
        raise UserError(f"{min(both)}: is both learned from and judged by")
    values["teacher"] = {"folders": [str(find_folder(name).absolute()) for name in recipe.teacher.folders]}
    for section, key, name in (
        ("data", "augment_by", recipe.data.augment_by),
        ("student", "model", recipe.student.model),
        ("student", "tokenizer", recipe.student.tokenizer),
    ):
        if name is not None and Path(name).expanduser().exists():
            values[section][key] = str(Path(name).expanduser().absolute())
    return changed(recipe, values)
