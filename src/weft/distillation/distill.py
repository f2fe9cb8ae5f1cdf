"""`weft.distill`: a small student learns from what a large teacher says, in a run folder that can be gone on with."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from weft.checkpoint.folder import open_folder, save_folder
from weft.checkpoint.locate import find_folder
from weft.checksums import Damaged, digests, read_checked, write_manifest
from weft.config import changed, read_toml, write_toml
from weft.data.dataset import Dataset, RunRows
from weft.distillation import report as reporting
from weft.distillation.recipe import DistillDataSection, DistillRecipe, StudentSection, recipe_of
from weft.distillation.report import JSON, point_of, read_curve
from weft.distillation.run import AGREEMENT, gather, open_teachers, student_task
from weft.distillation.run import go as distill_run
from weft.distillation.student import begun_student, find_student
from weft.distillation.teacher_outputs import Distillation, Teacher
from weft.errors import UserError, listed
from weft.files import write_text
from weft.progress import Log, ProgressChoice, to_logger
from weft.runs import finetune, pretrain
from weft.runs.dataset import absolute, absolute_tables, settings_of
from weft.runs.driver import begun, check_tensorboard, device_for, scratch_folder
from weft.runs.recipes import DataSection, ObjectiveSection, Recipe, TaskRecipe, TaskSection, TextSection, overlaid
from weft.tasks.base import Example, Task
from weft.tasks.model import Model, load
from weft.training.run import Run
from weft.training.signals import Control

GENTLE = 1e-5  # the rate of fine-tuning at last, at a width of 768: what was learned is not to be forgotten
EPOCHS = 2.0  # of it
Continue = Callable[[Run, Any, Control], Model]


def staged(run: Run, recipe: DistillRecipe, control: Control) -> Model:
    """All stages of a student, one after the other; the last one's model is the run's."""
    began = time.perf_counter()
    device = device_for(recipe.device, recipe.training.threads)
    name, teachers = open_teachers(recipe, device)
    task = student_task(recipe, name, teachers)
    find_student(recipe, teachers[0].model, lambda _: None)  # mistakes in it are named before anything else
    dataset = gather(task, recipe, control)
    stages, names = run.inside / "stages", recipe.stages.names
    if "finetune" in names:
        check_labels(task, dataset)
    write_rows(stages, task, dataset)
    if not run.about.exists():
        run.describe({"date": datetime.now(UTC).isoformat(timespec="seconds"), "seed": recipe.seed, "stages": names})

    def stage(name: str, stage_recipe: Any, go_on: Continue) -> Model:
        model = run_stage(Run(stages / name), stage_recipe, go_on, control)
        teacher = ", ".join(Path(folder).name for folder in recipe.teacher.folders)
        card = replace(
            model.card, base=Path(recipe.student.model).name, teacher=None if name == "pretrain" else teacher
        )
        run.save_model(replace(model.opened, card=card), model.card.metrics)
        return model

    student = recipe.student
    if "pretrain" in names:
        context = Distillation(run, recipe, teachers, device, control)
        base, fresh = begun_folder(stages, context, dataset)
        stage("pretrain", pretraining(recipe, base, fresh, teachers[0], stages), pretrain.go)
        student = StudentSection(model=str((stages / "pretrain").absolute()))
    distilling = Run(stages / "distill")
    out = str(distilling.folder.absolute())
    alone = replace(recipe, out=out, student=student, stages=replace(recipe.stages, names=("distill",)))
    model = stage("distill", alone, distill_run)
    metric = read_toml(DistillRecipe, distilling.recipe).distill.metric
    reached = [{"stage": "distill", **point_of(model, metric, len(dataset.train))}]
    if "finetune" in names:
        tuning = finetuning(recipe, name, task, stages, model, None if metric == AGREEMENT else metric)
        model = stage("finetune", tuning, finetune.go)
        reached.append({"stage": "finetune", **point_of(model, metric, sum(map(task.has_target, dataset.train)))})
    reporting.write_report(
        run,
        teachers,
        load(run.folder).to(device),
        dataset.dev,
        (time.perf_counter() - began) / 2,
        control.log,
        by_labels=dataset.labeled_dev,
        forwards=distilling.info().teacher_forwards,
        texts=len(dataset.train),
        metric=metric,
        curve=read_curve(distilling.inside / JSON),
        stages=reached,
    )
    scores = [f"{point['stage']} {point['score']:.4f}" for point in reached if point["score"] is not None]
    control.log(f"stages: {listed(scores)} ({metric})")
    return load(run.folder)


def run_stage(run: Run, recipe: Any, go_on: Continue, control: Control) -> Model:
    """One stage, from where it stands."""
    control.log(f"stage: {run.folder.name}")
    with run.held():
        run.tidy()
        if not run.recipe.exists():
            write_toml(recipe, run.recipe)
        check_unchanged(run.folder)
        model = go_on(run, read_toml(type(recipe), run.recipe), control)
        note_files(run.folder)
    return model


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


def check_labels(task: Task, dataset: Dataset[Example]) -> None:
    """Mistakes of the last stage are named before the first."""
    known = [row for row in dataset.train if task.has_target(row)]
    if not known or not dataset.labeled_dev:
        raise UserError("no row has a target, so there is nothing to fine-tune on: leave out the stage finetune")
    task.fit_labels(known, task.labels)


def write_rows(stages: Path, task: Task, dataset: Dataset[Example]) -> None:
    """The texts of the first stage and the rows of the last, without those that are held out."""
    stages.mkdir(parents=True, exist_ok=True)
    texts = (" ".join(text.split()) for row in dataset.train for text in row.texts)
    write_text(stages / "texts.txt", "".join(f"{text}\n" for text in dict.fromkeys(texts) if text))
    for name, rows in (("rows", dataset.train), ("dev", dataset.dev)):
        known = [task.to_record(row) for row in rows if task.has_target(row)]
        write_text(stages / f"{name}.jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in known))


def begun_folder(stages: Path, context: Distillation, dataset: Dataset[Example]) -> tuple[Path, bool]:
    """The student before it has learned anything, as a folder to start from; and whether its weights are fresh."""
    student, lineage = context.recipe.student, find_student(context.recipe, context.teacher, lambda _: None)
    if isinstance(lineage, Path):
        return lineage, False
    learns = {"mlm", "next"} & set(lineage.family.objectives)
    if not learns or "words" not in lineage.family.names.heads or lineage.family.reads:
        raise UserError(f"{lineage.family.name} is not pre-trained on text: leave out the stage pretrain")
    folder = stages / "start"
    if not folder.exists():
        part = replace(context, run=Run(stages / "vocabulary"))
        texts = [text for example in dataset.train for text in example.texts]
        model = begun_student(part, {"words": None}, "words", lambda: texts).opened
        card = replace(model.card, task=lineage.family.task, labels=None, thresholds={}, metrics=())
        save_folder(folder, replace(model, card=card))
        note_files(folder)
    check_unchanged(folder)
    usual = "layers" if lineage.fits and student.tokenizer is None else "scratch"
    return folder, (student.start or usual) == "scratch"


def pretraining(recipe: DistillRecipe, base: Path, fresh: bool, teacher: Teacher, stages: Path) -> Recipe:
    """The first stage: words of the text, hidden or next, as the student's family learns them."""
    opened = open_folder(base)
    family, context, there = opened.family, opened.config.context, teacher.model.card.window
    length = min(context, recipe.distill.length or (there.length if there is not None else context))
    plan = recipe.stages.pretrain
    if plan.learning_rate is None and fresh:  # from a base it would be a fifth of that
        plan = replace(plan, learning_rate=family.learning_rate * (768 / opened.config.width) ** 0.5)
    return Recipe(
        out=str((stages / "pretrain").absolute()),
        seed=recipe.seed,
        device=recipe.device,
        model={"base": str(base.absolute())},
        text=TextSection(files=(str((stages / "texts.txt").absolute()),)),
        objective=ObjectiveSection(
            name="mlm" if "mlm" in family.objectives else "next",
            length=None if family.row is not None else max(2, length),
            mask=recipe.distill.mask,
        ),
        training=plan,
    )


def finetuning(
    recipe: DistillRecipe, name: str, task: Task, stages: Path, student: Model, metric: str | None
) -> TaskRecipe:
    """The last stage: right answers alone, at a low rate."""
    plan, window = recipe.stages.finetune, student.card.window
    if plan.learning_rate is None:
        plan = replace(plan, learning_rate=GENTLE * (768 / student.config.width) ** 0.5)
    if plan.steps is None and plan.epochs is None:
        plan = replace(plan, epochs=EPOCHS)
    work: dict[str, Any] = {"name": name, "labels": task.labels, "metric": metric}
    if window is not None:
        work |= {"length": window.length, "stride": window.stride, "long": window.long}
    return TaskRecipe(
        task=TaskSection(**work),
        out=str((stages / "finetune").absolute()),
        seed=recipe.seed,
        device=recipe.device,
        model={"base": str((stages / "distill").absolute())},
        data=DataSection(
            files=(str((stages / "rows.jsonl").absolute()),),
            dev=(str((stages / "dev.jsonl").absolute()),),
        ),
        training=plan,
    )


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
    `data` and `dev` may also be rows in memory: a data frame, a Dataset, dicts or tuples (`weft.data.tables`).
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
