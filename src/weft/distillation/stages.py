"""Pre-trained distillation: the student first learns the language of the text, then from the teacher, then from labels.

Turc et al. (2019): a small model that was pre-trained learns far more from the same teacher. Each stage is a run of its
own under `run/stages`, and is gone on with when the whole is.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from weft.checkpoint.folder import open_folder
from weft.checkpoint.save import save_folder
from weft.checksums import Damaged, digests, read_checked, write_manifest
from weft.config import read_toml, write_toml
from weft.distillation import report as reporting
from weft.distillation.dataset import Material, gather
from weft.distillation.recipe import DistillRecipe, StudentSection
from weft.distillation.report import JSON, point_of, read_curve
from weft.distillation.run import AGREEMENT, chosen_lesson, go, open_teachers
from weft.distillation.student import begun_student, find_student
from weft.distillation.teacher_cache import Teacher
from weft.errors import UserError, listed
from weft.files import write_text
from weft.progress import Log, Progress
from weft.runs import finetune, pretrain
from weft.runs.driver import device_for
from weft.runs.recipes import DataSection, ObjectiveSection, Recipe, TaskRecipe, TaskSection
from weft.runs.sections import TextSection
from weft.tasks.base import Task
from weft.tasks.model import Model, load
from weft.training.run import Run
from weft.training.signals import Stop

GENTLE = 1e-5  # the rate of fine-tuning at last, at a width of 768: what was learned is not to be forgotten
EPOCHS = 2.0  # of it


def staged(run: Run, recipe: DistillRecipe, stop: Stop, log: Log, progress: Progress) -> Model:
    """All stages of a student, one after the other; the last one's model is the run's."""
    began = time.perf_counter()
    device = device_for(recipe.device, recipe.training.threads)
    name, teachers = open_teachers(recipe, device)
    lesson = chosen_lesson(recipe, name, teachers)
    find_student(recipe, teachers[0].model, lambda _: None)  # what can be wrong with it is said before anything else
    material = gather(lesson.task, recipe, log, progress, stop)
    stages, names, task = run.inside / "stages", recipe.stages.names, lesson.task
    if "finetune" in names:
        check_labels(task, material)
    write_rows(stages, task, material)
    if not run.about.exists():
        run.describe({"date": datetime.now(UTC).isoformat(timespec="seconds"), "seed": recipe.seed, "stages": names})

    def went(stage: str, told: Any, how: Callable[..., Model]) -> Model:
        """One stage, from where it stands; its model is the run's until a later one has come to its end."""
        part = Run(stages / stage)
        log(f"stage: {stage}")
        with part.held():
            part.tidy()
            if not part.recipe.exists():
                write_toml(told, part.recipe)
            check_unchanged(part.folder)
            found = how(part, read_toml(type(told), part.recipe), stop, log, progress)
            note_files(part.folder)
        base = Path(recipe.student.model).name
        teacher = ", ".join(Path(folder).name for folder in recipe.teacher.folders)
        card = replace(found.card, base=base, teacher=teacher if stage != "pretrain" else None)
        run.save_model(replace(found.opened, card=card), found.card.metrics)
        return found

    student = recipe.student
    if "pretrain" in names:
        base, fresh = begun_folder(stages, recipe, teachers, material, stop, log, progress)
        went("pretrain", pretraining(recipe, base, fresh, teachers[0], stages), pretrain.go)
        student = StudentSection(model=str((stages / "pretrain").absolute()))
    taught = replace(
        recipe,
        out=str((stages / "distill").absolute()),
        student=student,
        stages=replace(recipe.stages, names=("distill",)),
    )
    found = went("distill", taught, go)
    metric = read_toml(DistillRecipe, Run(stages / "distill").recipe).distill.metric
    reached = [{"stage": "distill", **point_of(found, metric, len(material.train))}]
    if "finetune" in names:
        told = finetuning(recipe, name, task, stages, found, None if metric == AGREEMENT else metric)
        found = went("finetune", told, finetune.go)
        reached.append({"stage": "finetune", **point_of(found, metric, sum(map(task.has_target, material.train)))})
    taught_by = Run(stages / "distill")
    reporting.write_report(
        run,
        teachers,
        load(run.folder).to(device),
        material.dev,
        (time.perf_counter() - began) / 2,
        log,
        by_labels=material.by_labels,
        forwards=taught_by.info().teacher_forwards,
        texts=len(material.train),
        metric=metric,
        curve=read_curve(taught_by.inside / JSON),
        stages=reached,
    )
    scores = [f"{point['stage']} {point['score']:.4f}" for point in reached if point["score"] is not None]
    log(f"stages: {listed(scores)} ({metric})")
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


# ------------------------------------------------------------------------------------------------- rows of each stage


def check_labels(task: Task, material: Material) -> None:
    """What could go wrong with the last stage is said before the first."""
    known = [row for row in material.train if task.has_target(row)]
    if not known or not material.by_labels:
        raise UserError("no row says what is right, so there is nothing to fine-tune on: leave out the stage finetune")
    task.fit_labels(known, task.labels)


def write_rows(stages: Path, task: Task, material: Material) -> None:
    """The texts of the first stage and the rows of the last, without those that are held out."""
    stages.mkdir(parents=True, exist_ok=True)
    texts = (" ".join(text.split()) for row in material.train for text in row.texts)
    write_text(stages / "texts.txt", "".join(f"{text}\n" for text in dict.fromkeys(texts) if text))
    for name, rows in (("rows", material.train), ("dev", material.dev)):
        known = [task.to_record(row) for row in rows if task.has_target(row)]
        write_text(stages / f"{name}.jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in known))


# ---------------------------------------------------------------------------------------------------- their recipes


def begun_folder(
    stages: Path,
    recipe: DistillRecipe,
    teachers: Sequence[Teacher],
    material: Material,
    stop: Stop,
    log: Log,
    progress: Progress,
) -> tuple[Path, bool]:
    """The student before it has learned anything, as a folder to go on from; and whether its weights are fresh."""
    found = find_student(recipe, teachers[0].model, lambda _: None)
    if isinstance(found, Path):
        return found, False
    learns = {"mlm", "next"} & set(found.family.objectives)
    if not learns or "words" not in found.family.names.heads or found.family.reads:
        raise UserError(f"{found.family.name} is not pre-trained on text: leave out the stage pretrain")
    folder = stages / "start"
    if not folder.exists():
        begun = begun_student(
            Run(stages / "vocabulary"),
            recipe,
            [each.model for each in teachers],
            {"words": None},
            "words",
            lambda: (text for row in material.train for text in row.texts),
            stop,
            log,
            progress,
        )
        card = replace(begun.opened.card, task=found.family.task, labels=None, thresholds={}, metrics=())
        save_folder(folder, replace(begun.opened, card=card))
        note_files(folder)
    check_unchanged(folder)
    usual = "layers" if found.fits and recipe.student.tokenizer is None else "scratch"
    return folder, (recipe.student.start or usual) == "scratch"


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
