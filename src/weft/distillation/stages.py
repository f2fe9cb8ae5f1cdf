"""Pre-trained distillation: the student first learns the language of the text, then from the teacher, then from labels.

Turc et al. (2019): a small model that was pre-trained learns far more from the same teacher. Each stage is a run of its
own under `run/stages`, and is gone on with when the whole is.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from weft.checkpoint.folder import open_folder
from weft.checkpoint.save import save_folder
from weft.checksums import Damaged, digests, read_checked, write_manifest
from weft.config import read_toml, write_toml
from weft.data.tables import Dataset
from weft.distillation import report as reporting
from weft.distillation.context import Distillation
from weft.distillation.dataset import gather
from weft.distillation.recipe import DistillRecipe, StudentSection
from weft.distillation.report import JSON, point_of, read_curve
from weft.distillation.run import AGREEMENT, go, open_teachers, student_task
from weft.distillation.student import begun_student, find_student
from weft.distillation.teacher_cache import Teacher
from weft.errors import UserError, listed
from weft.files import write_text
from weft.progress import Log, Progress
from weft.runs import finetune, pretrain
from weft.runs.driver import device_for
from weft.runs.recipes import DataSection, ObjectiveSection, Recipe, TaskRecipe, TaskSection
from weft.runs.sections import TextSection
from weft.tasks.base import Example, Task
from weft.tasks.model import Model, load
from weft.training.run import Run
from weft.training.signals import Stop

GENTLE = 1e-5  # the rate of fine-tuning at last, at a width of 768: what was learned is not to be forgotten
EPOCHS = 2.0  # of it
Continue = Callable[[Run, Any, Stop, Log, Progress], Model]


def staged(run: Run, recipe: DistillRecipe, stop: Stop, log: Log, progress: Progress) -> Model:
    """All stages of a student, one after the other; the last one's model is the run's."""
    began = time.perf_counter()
    device = device_for(recipe.device, recipe.training.threads)
    name, teachers = open_teachers(recipe, device)
    task = student_task(recipe, name, teachers)
    find_student(recipe, teachers[0].model, lambda _: None)  # mistakes in it are named before anything else
    dataset = gather(task, recipe, log, progress, stop)
    stages, names = run.inside / "stages", recipe.stages.names
    if "finetune" in names:
        check_labels(task, dataset)
    write_rows(stages, task, dataset)
    if not run.about.exists():
        run.describe({"date": datetime.now(UTC).isoformat(timespec="seconds"), "seed": recipe.seed, "stages": names})

    def stage(name: str, stage_recipe: Any, go_on: Continue) -> Model:
        model = run_stage(Run(stages / name), stage_recipe, go_on, stop, log, progress)
        teacher = ", ".join(Path(folder).name for folder in recipe.teacher.folders)
        card = replace(
            model.card, base=Path(recipe.student.model).name, teacher=None if name == "pretrain" else teacher
        )
        run.save_model(replace(model.opened, card=card), model.card.metrics)
        return model

    student = recipe.student
    if "pretrain" in names:
        context = Distillation(run, recipe, teachers, device, stop, log, progress)
        base, fresh = begun_folder(stages, context, dataset)
        stage("pretrain", pretraining(recipe, base, fresh, teachers[0], stages), pretrain.go)
        student = StudentSection(model=str((stages / "pretrain").absolute()))
    distilling = Run(stages / "distill")
    out = str(distilling.folder.absolute())
    alone = replace(recipe, out=out, student=student, stages=replace(recipe.stages, names=("distill",)))
    model = stage("distill", alone, go)
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
        log,
        by_labels=dataset.labeled_dev,
        forwards=distilling.info().teacher_forwards,
        texts=len(dataset.train),
        metric=metric,
        curve=read_curve(distilling.inside / JSON),
        stages=reached,
    )
    scores = [f"{point['stage']} {point['score']:.4f}" for point in reached if point["score"] is not None]
    log(f"stages: {listed(scores)} ({metric})")
    return load(run.folder)


def run_stage(run: Run, recipe: Any, go_on: Continue, stop: Stop, log: Log, progress: Progress) -> Model:
    """One stage, from where it stands."""
    log(f"stage: {run.folder.name}")
    with run.held():
        run.tidy()
        if not run.recipe.exists():
            write_toml(recipe, run.recipe)
        check_unchanged(run.folder)
        model = go_on(run, read_toml(type(recipe), run.recipe), stop, log, progress)
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


# ------------------------------------------------------------------------------------------------- rows of each stage


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


# ---------------------------------------------------------------------------------------------------- their recipes


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
