"""`weft.distill`: a small student learns from the outputs of a large teacher, in a run folder that can be resumed."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from weft.checkpoint.folder import open_folder, save_folder
from weft.checkpoint.locate import find_folder
from weft.config import changed, read_toml
from weft.data.dataset import Dataset, RunRows
from weft.distillation import report as reporting
from weft.distillation.dataset import gather
from weft.distillation.recipe import DistillDataSection, DistillRecipe, StudentSection, recipe_of
from weft.distillation.report import JSON, point_of, read_curve
from weft.distillation.run import AGREEMENT, inner_run, open_teachers, student_task
from weft.distillation.run import go as distill_run
from weft.distillation.student import begun_student, find_student
from weft.distillation.teacher_outputs import Distillation
from weft.errors import UserError, listed
from weft.files import Damaged, digests, read_checked, write_manifest, write_text
from weft.progress import Log, ProgressChoice, to_logger
from weft.runs import finetune, pretrain
from weft.runs.driver import begun, check_tensorboard, device_for, new_run, scratch_folder
from weft.runs.preparation import absolute, absolute_tables, settings_of
from weft.runs.recipes import DataSection, ObjectiveSection, Recipe, TaskRecipe, TaskSection, TextSection, overlaid
from weft.tasks.base import Example, Task
from weft.tasks.model import Model, load
from weft.training.run import Run
from weft.training.signals import Control

GENTLE = 1e-5  # learning rate of the last stage, at a width of 768: what was learned is not to be forgotten
EPOCHS = 2.0  # of it


def staged(run: Run, recipe: DistillRecipe, control: Control) -> Model:
    """All stages of a student, one after the other; the last one's model is the run's."""
    began = time.perf_counter()
    device = device_for(recipe.device, recipe.training.threads)
    task_name, teachers = open_teachers(recipe, device)
    context = Distillation(run, recipe, teachers, device, control)
    task = student_task(recipe, task_name, teachers)
    find_student(recipe, context.teacher)  # mistakes in it are named before anything else
    dataset = gather(task, recipe.data, control)
    stages, names = run.inside / "stages", recipe.stages.names
    labeled = [row for row in dataset.train if task.has_target(row)]
    if "finetune" in names:
        if not labeled or not dataset.labeled_dev:
            raise UserError("no row has a target, so there is nothing to fine-tune on: leave out the stage finetune")
        task.fit_labels(labeled, task.labels)
    write_rows(stages, task, dataset)
    if not run.about.exists():
        run.describe({"date": datetime.now(UTC).isoformat(timespec="seconds"), "seed": recipe.seed, "stages": names})

    def stage(name: str, stage_recipe: Any, go_on: Callable[[Run, Any, Control], Model]) -> Model:
        """One stage, from where it stands; its model is the run's until the next one ends."""
        control.log(f"stage: {name}")
        check_unchanged(stages / name)
        model = inner_run(stages / name, stage_recipe, go_on, control)
        note_files(stages / name)
        card = context.card(model.card) if name != "pretrain" else replace(context.card(model.card), teacher=None)
        run.save_model(replace(model.opened, card=card), model.card.metrics)
        return model

    student = recipe.student
    if "pretrain" in names:
        stage("pretrain", pretraining(context, dataset, stages), pretrain.go)
        student = StudentSection(model=str((stages / "pretrain").absolute()))
    distilling = Run(stages / "distill")
    out, alone = str(distilling.folder.absolute()), replace(recipe.stages, names=("distill",))
    model = stage("distill", replace(recipe, out=out, student=student, stages=alone), distill_run)
    metric = read_toml(DistillRecipe, distilling.recipe).distill.metric
    reached = [{"stage": "distill", **point_of(model, metric, len(dataset.train))}]
    if "finetune" in names:
        model = stage("finetune", finetuning(recipe, task_name, task, stages, model, metric), finetune.go)
        reached.append({"stage": "finetune", **point_of(model, metric, len(labeled))})
    more: dict[str, Any] = {"forwards": distilling.info().teacher_forwards, "texts": len(dataset.train)}
    more |= {"metric": metric, "curve": read_curve(distilling.inside / JSON), "stages": reached}
    spent, final = (time.perf_counter() - began) / 2, load(run.folder).to(device)
    reporting.write_report(context, final, dataset.dev, spent, dataset.labeled_dev, **more)
    scores = [f"{point['stage']} {point['score']:.4f}" for point in reached if point["score"] is not None]
    control.log(f"stages: {listed(scores)} ({metric})")
    return load(run.folder)


def note_files(folder: Path) -> None:
    """Keep the hashes of a model that the next stage begins from, beside its folder."""
    record = folder.with_suffix(".json")
    if not record.exists():
        names = [f"{folder.name}/{path.name}" for path in folder.iterdir() if path.is_file()]
        write_manifest(record, {}, digests(folder.parent, names))


def check_unchanged(folder: Path) -> None:
    """The model of a stage that has come to its end is still what it was."""
    record = folder.with_suffix(".json")
    try:
        if record.exists():
            read_checked(record)
    except Damaged as error:
        raise UserError(f"{error}; remove {folder} and {record} to do this stage again") from None


def write_rows(stages: Path, task: Task, dataset: Dataset[Example]) -> None:
    """The texts of the first stage and the rows of the last, without those that are held out."""
    stages.mkdir(parents=True, exist_ok=True)
    texts = (" ".join(text.split()) for row in dataset.train for text in row.texts)
    write_text(stages / "texts.txt", "".join(f"{text}\n" for text in dict.fromkeys(texts) if text))
    for name, rows in (("rows", dataset.train), ("dev", dataset.dev)):
        known = [task.to_record(row) for row in rows if task.has_target(row)]
        write_text(stages / f"{name}.jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in known))


def pretraining(context: Distillation, dataset: Dataset[Example], stages: Path) -> Recipe:
    """The first stage: masked or next words of the text, from the student before it has learned anything."""
    recipe, student = context.recipe, context.recipe.student
    lineage, fresh = find_student(recipe, context.teacher), False
    if isinstance(lineage, Path):
        base = lineage
    else:
        family, base = lineage.family, stages / "start"
        if not {"mlm", "next"} & set(family.objectives) or "words" not in family.names.heads or family.reads:
            raise UserError(f"{family.name} is not pre-trained on text: leave out the stage pretrain")
        if not base.exists():
            part = replace(context, run=Run(stages / "vocabulary"))
            texts = [text for example in dataset.train for text in example.texts]
            model = begun_student(part, {"words": None}, "words", lambda: texts).opened
            card = replace(model.card, task=family.task, labels=None, thresholds={}, metrics=())
            save_folder(base, replace(model, card=card))
            note_files(base)
        check_unchanged(base)
        usual = "layers" if lineage.fits and student.tokenizer is None else "scratch"
        fresh = (student.start or usual) == "scratch"
    opened, theirs, plan = open_folder(base), context.teacher.card.window, recipe.stages.pretrain
    room = opened.config.context
    length = min(room, recipe.distill.length or (theirs.length if theirs is not None else room))
    if plan.learning_rate is None and fresh:  # from a base it would be a fifth of that
        plan = replace(plan, learning_rate=opened.family.learning_rate * (768 / opened.config.width) ** 0.5)
    return Recipe(
        out=str((stages / "pretrain").absolute()),
        seed=recipe.seed,
        device=recipe.device,
        model={"base": str(base.absolute())},
        text=TextSection(files=(str((stages / "texts.txt").absolute()),)),
        objective=ObjectiveSection(
            name="mlm" if "mlm" in opened.family.objectives else "next",
            length=None if opened.family.row is not None else max(2, length),
            mask=recipe.distill.mask,
        ),
        training=plan,
    )


def finetuning(
    recipe: DistillRecipe, name: str, task: Task, stages: Path, student: Model, metric: str | None
) -> TaskRecipe:
    """The last stage: labels alone, at a low learning rate."""
    plan, window, here = recipe.stages.finetune, student.card.window, stages.absolute()
    if plan.learning_rate is None:
        plan = replace(plan, learning_rate=GENTLE * (768 / student.config.width) ** 0.5)
    if plan.steps is None and plan.epochs is None:
        plan = replace(plan, epochs=EPOCHS)
    work: dict[str, Any] = {"name": name, "labels": task.labels, "metric": None if metric == AGREEMENT else metric}
    return TaskRecipe(
        task=TaskSection(**work, **(asdict(window) if window is not None else {})),
        out=str(here / "finetune"),
        seed=recipe.seed,
        device=recipe.device,
        model={"base": str(here / "distill")},
        data=DataSection(files=(str(here / "rows.jsonl"),), dev=(str(here / "dev.jsonl"),)),
        training=plan,
    )


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
    """Train a small model on the outputs of a large one; without `out`, in a folder that goes away with the process.

    `weft.distill("runs/reviews", text="unlabeled.txt", student="3x256")`; every section of the recipe may be given so:
    `distill={"temperature": 4}`, `data={"files": ["rows.csv"], "holdout": 0.1}`; what is given stands above `recipe`.
    `data` and `dev` may also be rows in memory: a data frame, a Dataset, dicts or tuples (`weft.data.tables`).
    """
    rows = RunRows()
    if not isinstance(recipe, DistillRecipe):
        tables = {"text": text, "files": data, "dev": dev}
        folders = None if teacher is None else _listed(teacher)
        values = {"teacher.folders": folders, "student.model": student, "out": out}
        given = overlaid(settings or {}, more)
        recipe = recipe_of(recipe, settings_of(given, rows, DistillDataSection, tables, values))
    if recipe.out is None:
        recipe = replace(recipe, out=str(scratch_folder() / "run"))
    run = new_run(recipe)
    for name in recipe.teacher.folders if online else ():
        if not Path(name).exists():
            find_folder(name, online)  # from here on it lies in the cache
    if not (recipe.data.text or recipe.data.files or recipe.data.source):
        raise UserError("no text to learn from: give --text FILE of unlabeled texts, or --data FILE of rows")
    check_tensorboard(recipe)
    recipe = _from_anywhere(recipe, rows, log)
    with begun(run, recipe, log, progress) as control:
        rows.write(recipe.out or "")
        return go(run, recipe, control)


def go(run: Run, recipe: DistillRecipe, control: Control) -> Model:
    """In one stage, or in several; from the last checkpoint on where there is one."""
    return (distill_run if recipe.stages.names == ("distill",) else staged)(run, recipe, control)


def _listed(names: Names) -> list[str]:
    several: list[Any] = list(names) if isinstance(names, list | tuple) else [names]
    for name in several:
        if not isinstance(name, str | os.PathLike):
            kind = type(name).__name__
            raise UserError(f"a teacher is the name of a folder, not a {kind}; model.save(FOLDER) writes one")
    return [os.fspath(name) for name in several]


def _from_anywhere(recipe: DistillRecipe, rows: RunRows, log: Log) -> DistillRecipe:
    """The recipe with whole paths, so that the run can be resumed from any folder."""
    values: dict[str, Any] = {
        "data": absolute_tables(recipe.data, ("text", "files"), rows, recipe.out or "", log),
        "student": {},
        "teacher": {"folders": [str(find_folder(name).absolute()) for name in recipe.teacher.folders]},
    }
    for section, key in (("data", "augment_by"), ("student", "model"), ("student", "tokenizer")):
        name = vars(vars(recipe)[section])[key]
        if name is not None and Path(name).expanduser().exists():
            values[section][key] = absolute(name)
    return changed(recipe, values)


RUNS = {"distill": (DistillRecipe, go)}  # what `weft.resume` reads and calls
