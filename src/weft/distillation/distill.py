"""`weft.distill`: a small student learns from the outputs of a large teacher, in a run folder that can be resumed."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from weft.checkpoint.folder import open_folder, save_folder
from weft.checkpoint.locate import find_folder
from weft.config import changed, read_toml, write_toml
from weft.data.dataset import Dataset, RunRows
from weft.distillation import report as reporting
from weft.distillation.dataset import Distillation, Teacher, TeacherOutputs, augmented, gather, part_of, teacher_outputs
from weft.distillation.language import distill_language, held_texts, pretrain_student
from weft.distillation.recipe import DistillDataSection, DistillRecipe, StudentSection, recipe_of
from weft.distillation.student import begun_student, find_student, matched
from weft.errors import UserError, listed, one_of, refuse
from weft.files import Damaged, digests, read_checked, write_manifest, write_text
from weft.metrics.bootstrap import Score
from weft.progress import Log, ProgressChoice, to_logger
from weft.runs import finetune, pretrain, recipes
from weft.runs.driver import begun, check_tensorboard, device_for, drive, new_run, scratch_folder
from weft.runs.finetune import MOST_WINDOWS, Selection, decided, pairs_plan, tokenized_rows
from weft.runs.preparation import Beginning, absolute, absolute_tables, settings_of
from weft.runs.recipes import FROM_NOTHING, FinetuneTraining, overlaid
from weft.tasks.base import Example, Task
from weft.tasks.forward import framing_for, window_for
from weft.tasks.model import Model, load
from weft.tasks.registry import task_class, task_for
from weft.training.run import Run
from weft.training.signals import Control

AGREEMENT = "agreement"  # the task's own metric, with the teacher's answers as targets
SEEN = 300_000  # texts that a student with initial weights reads in all, a fresh one twice as many
NEW_HEAD = 1e-4  # learning rate of a student, 768 wide, with initial weights but without the head of its task ...
ALL_THERE = 5e-5  # ... and of one that has that, too
MIN_TEXTS = 8  # of a student on the learning curve


def open_teachers(run: Run, recipe: DistillRecipe, device: torch.device, control: Control) -> tuple[str, Distillation]:
    """The task that the teachers of a run are made for, and the run with them."""
    name, teachers = "", list[Teacher]()
    for folder in recipe.teacher.folders:
        model = load(folder, task=recipe.teacher.task)
        if teachers and model.task != name:
            raise UserError(f"{folder}: is made for {model.task}, the first teacher for {name}")
        name = model.task
        model.network.float().to(device).eval()
        teachers.append(Teacher.of(model.opened, Path(folder)))
    return name, Distillation(run, recipe, teachers, device, control)


def student_task(recipe: DistillRecipe, name: str, teachers: Sequence[Teacher]) -> Task:
    """The task of a student of these teachers, whose outputs must mean the same."""
    tasks = [task_for(teacher.model, name) for teacher in teachers]
    task = tasks[0].learning_from(recipe.distill, [teacher.model for teacher in teachers])
    for teacher, other in zip(teachers, tasks, strict=True):
        if not task.same_outputs(other):
            raise UserError(f"{teacher.folder}: has other labels than the first teacher: their mean has no meaning")
    return task


def distill_run(run: Run, recipe: DistillRecipe, control: Control) -> Model:
    """From the recipe in a run folder to the best student; from its last checkpoint on where there is one."""
    data, plan, settings = recipe.data, recipe.training, recipe.distill
    pretrain, folders = settings.pretrain, recipe.teacher.folders
    device = device_for(recipe.device, plan.threads)  # a missing one is named before anything is read
    on_cpu, not_text = device.type == "cpu" and not pretrain, not data.text or bool(data.files or data.source)
    along, alone = pretrain or bool(settings.match), "leave out training.compile"
    refuse(
        (bool(plan.compile) and on_cpu, f"on the CPU rows of a task are not compiled: {alone}"),
        (plan.watch_gradients and not pretrain, "watch_gradients is for language models: weft pretrain"),
        (bool(plan.compile) and along, f"a student whose teacher runs along is not compiled: {alone}, or match"),
        (pretrain and len(folders) > 1, f"--pretrain takes one teacher, not {len(folders)}"),
        (pretrain and not_text, "--pretrain learns from plain text alone: give --text FILE"),
        (pretrain and data.augment > 0, "--pretrain masks other words in every epoch: --augment is for tasks"),
    )
    name, context = open_teachers(run, recipe, device, control)
    if not pretrain and not task_class(name).language_model:
        return distill_task(context, student_task(recipe, name, context.teachers))
    if settings.curve:
        raise UserError("words have no learning curve by texts: --curve is for students of a task")
    began = time.perf_counter()
    student = pretrain_student(context) if pretrain else distill_language(context)
    spent = time.perf_counter() - began
    reread = [Teacher(load(folder, task=student.task).opened, Path(folder), "") for folder in folders]
    examples, forwards = held_texts(data), run.info().teacher_forwards
    reporting.write_report(replace(context, teachers=reread), student, examples, spent, forwards=forwards)
    return student


def distill_task(context: Distillation, task: Task) -> Model:
    """Train a student of a task, with its learning curve and its report."""
    run, (recipe, dataset, train, dev, selection) = context.run, prepare(context, task)
    model, metric, plan, count = selection.model, selection.metric, recipe.training, len(dataset.train)
    held = "" if dataset.held_out is None else " (drawn from the others, listed in run/split.json)"
    by, steps = "" if dataset.labeled_dev else ", by the teacher's answers", plan.steps or 1
    announcement = (
        f"{run.folder}: {count:,} texts to learn from, {sum(map(task.has_target, dataset.train)):,} of them labeled; "
        f"{len(dataset.dev):,} held out{by}{held}\n"
        f"plan: {steps:,} step{'s' * (steps != 1)} of {plan.batch}, learning rate {plan.learning_rate:.1e}, "
        f"on {recipe.device} in {plan.precision}, best model by {metric}"
    )
    objective = matched(selection.task.objective(), context.teacher, model, recipe.distill)
    same, options = context.same(dataset.hashes, model), {"capture": context.captures}
    job = selection.job(recipe, dataset, objective, (train, dev), same, options)
    about = {**job.about, "teacher_forwards": context.reads.total}
    job = replace(job, about=about, announce=lambda state: context.control.log(announcement))
    spent = drive(run, job, context.control).seconds
    trained = load(run.folder).to(context.device)
    curve = curve_of(run, recipe, count, context.control)
    if recipe.data.share == 1:
        more: dict[str, Any] = {"forwards": run.info().teacher_forwards, "texts": count, "metric": metric}
        more["curve"] = [*curve, reporting.point_of(trained, metric, count)] if curve else ()
        reporting.write_report(context, trained, selection.examples, spent, metric != AGREEMENT, **more)
    return load(run.folder)


def prepare(context: Distillation, task: Task) -> tuple[DistillRecipe, Dataset[Example], Any, Any, Selection]:
    """The recipe with every choice made, the dataset, the batches to train on and to evaluate on, and the student."""
    recipe, settings, control = context.recipe, context.recipe.distill, context.control
    find_student(recipe, context.teacher)
    dataset, copies, name = gather(task, recipe.data, control), recipe.data.augment, recipe.data.augment_by
    if copies:
        by = None if name is None else load(name).to(context.device).opened
        dataset = dataset.with_more(augmented(task, dataset.train, copies, by, recipe.seed, control))
    dataset = part_of(dataset, recipe.data.share, recipe.data.split)
    if not any(map(task.has_target, dataset.train)):  # labels do not count
        task = task.learning_from(replace(settings, hard=0.0), context.models)
    metric = decided_metric(context, task, dataset.labeled_dev)

    @cache
    def outputs() -> TeacherOutputs:
        return teacher_outputs(context, task, dataset.examples, dataset.parts)

    def texts() -> Iterable[str]:
        return task.vocabulary_texts(dataset.train, lambda: outputs().select(dataset.train_numbers))

    beginning = begun_student(context, task.objective().heads, task.head, texts)
    model, theirs, length, stride = beginning.opened, context.teacher.card.window, settings.length, settings.stride
    # The teacher's window where it can be; a network without attention reads whole texts.
    if not task.writes and theirs is not None and length is None and model.config.heads:
        length = min(theirs.length, model.config.context)
        stride = stride or max(1, min(theirs.stride, length))
    long = "windows" if task.writes or theirs is None else theirs.long
    window = window_for(model, length, stride, long, task.overlap)
    matched(task.objective(), context.teacher, model, settings)  # whether their layers can be compared
    learned, held_out = outputs().select(dataset.train_numbers), outputs().select(dataset.dev_numbers)
    held_out_rows: Sequence[Example] = dataset.dev
    if not dataset.labeled_dev:
        held_out_rows = [task.with_teacher_answer(*pair) for pair in zip(dataset.dev, held_out, strict=True)]
    windows = framing_for(model, window)
    task = task.fit_teacher(dataset.train, learned).prepare(model, dataset.train, beginning.fresh)
    train, dev = tokenized_rows(task, dataset, model, windows, control, learned, held_out)
    train = train.for_training(MOST_WINDOWS, recipe.seed, context.captures)
    dev = dev.for_training(MOST_WINDOWS, 0, False)
    plan = planned(recipe, task, train, context.device, beginning)
    settings = replace(settings, metric=metric, length=window.length, stride=window.stride)
    recipe = replace(recipe, training=plan, device=str(context.device), distill=settings)
    more: dict[str, Any] = {"window": task.card_window(window, train), "columns": dict(recipe.data.columns)}
    model = replace(model, card=context.card(task.to_card(model.card), task=task.name, **more))
    data = dataset.hashes.get("dev", dataset.hashes.get("data", dataset.hashes.get("text", "")))

    def kept(scores: Mapping[str, Score]) -> Mapping[str, Score]:
        """Where the teacher's answers are the targets, the agreement with them."""
        if dataset.labeled_dev:
            return scores
        agreement = {AGREEMENT: scores[task.default_metric]}
        return agreement if task.supervised else {**agreement, **scores}

    selection = Selection(context.run, task, model, windows, held_out_rows, metric, data, kept)
    return recipe, dataset, train, dev, selection


def decided_metric(context: Distillation, task: Task, by_labels: bool) -> str:
    """The metric that decides which student is kept; where the package that computes it is missing, the loss."""
    metric, package = context.recipe.distill.metric, task.packages.get(task.default_metric)
    if package is not None and find_spec(package) is None:
        if metric not in (None, "loss"):
            raise UserError(f"{metric} needs the package {package}: pip install 'weft[evaluate]'")
        context.control.note(f"without the package {package} the best student is chosen by its loss alone")
        return "loss"
    if by_labels:
        known = (*task.metric_names, "loss")
        return task.default_metric if metric in (None, AGREEMENT) else one_of(metric, known, "metric")
    if metric not in (None, AGREEMENT, "loss"):
        raise UserError(f"{metric} needs targets: give --dev FILE of rows that have them")
    return metric or AGREEMENT


def planned(recipe: DistillRecipe, task: Task, train: Any, device: torch.device, begun: Beginning) -> FinetuneTraining:
    """The plan of a student: few texts are read more often, since each teaches more than a label would."""
    plan, model = recipe.training, begun.opened
    # A writer of a few layers of another has lost as much as it has kept: it learns as one with fresh weights.
    fresh = begun.scratch or (task.writes and not Path(recipe.student.model).is_dir())
    # A narrow network takes larger steps than the large ones for which 5e-5 is usual.
    usual = model.family.learning_rate if fresh else NEW_HEAD if begun.fresh else ALL_THERE
    rate = 2e-3 if model.family.name == "vectors" else usual * (768 / model.config.width) ** 0.5
    batch, epochs = 32, min(10.0, max(3.0, SEEN / train.count))
    if fresh:
        epochs = min(20.0, max(4.0, 2 * SEEN / train.count))
    if fresh and task.writes:
        batch, epochs = pairs_plan(train)
        plain, given = vars(FinetuneTraining()), vars(plan)
        usual_keys: dict[str, Any] = {key: FROM_NOTHING[key] for key in FROM_NOTHING if given[key] == plain[key]}
        plan = replace(plan, **usual_keys)
    return decided(plan, train, device, batch, epochs, rate)


def curve_of(run: Run, recipe: DistillRecipe, texts: int, control: Control) -> list[dict[str, Any]]:
    """The metrics of students of fewer texts, each a run inside `run/curve` with as many steps as the run itself."""
    points = []
    for halvings in range(recipe.distill.curve - 1, 0, -1):
        share = 0.5**halvings
        count = max(1, round(share * texts))
        if count < MIN_TEXTS:
            continue
        folder = run.inside / "curve" / f"1-of-{2**halvings}"
        data, settings = replace(recipe.data, share=share * recipe.data.share), replace(recipe.distill, curve=0)
        smaller = replace(recipe, out=str(folder), data=data, distill=settings)
        control.log(f"curve: a student of {count:,} texts")
        model = inner_run(folder, smaller, distill_run, control)
        points.append(reporting.point_of(model, recipe.distill.metric, count))
    return points


def inner_run(folder: Path, recipe: Any, go_on: Callable[[Run, Any, Control], Model], control: Control) -> Model:
    """A run inside another one, from where it stands."""
    run = Run(folder)
    with run.held():
        run.tidy()
        if not run.recipe.exists():
            write_toml(recipe, run.recipe)
        return go_on(run, read_toml(type(recipe), run.recipe), control)


GENTLE = 1e-5  # learning rate of the last stage, at a width of 768: what was learned is not to be forgotten
EPOCHS = 2.0  # of it


def staged(run: Run, recipe: DistillRecipe, control: Control) -> Model:
    """All stages of a student, one after the other; the last one's model is the run's."""
    began = time.perf_counter()
    device = device_for(recipe.device, recipe.training.threads)
    task_name, context = open_teachers(run, recipe, device, control)
    task = student_task(recipe, task_name, context.teachers)
    find_student(recipe, context.teacher)  # mistakes in it are named before anything else
    dataset = gather(task, recipe.data, control)
    stages, names = run.inside / "stages", recipe.stages.names
    labeled = [row for row in dataset.train if task.has_target(row)]
    if "finetune" in names:
        if not labeled or not dataset.labeled_dev:
            raise UserError("no row has a target, so there is nothing to fine-tune on: leave out the stage finetune")
        task.fit_labels(labeled, task.labels)
    stages.mkdir(parents=True, exist_ok=True)
    texts = dict.fromkeys(" ".join(text.split()) for row in dataset.train for text in row.texts)
    write_text(stages / "texts.txt", "".join(f"{text}\n" for text in texts if text))
    for name, rows in (("rows", dataset.train), ("dev", dataset.dev)):
        records = [json.dumps(task.to_record(row), ensure_ascii=False) for row in rows if task.has_target(row)]
        write_text(stages / f"{name}.jsonl", "".join(f"{record}\n" for record in records))
    if not run.about.exists():
        run.describe({"date": datetime.now(UTC).isoformat(timespec="seconds"), "seed": recipe.seed, "stages": names})

    def stage(name: str, stage_recipe: Any, go_on: Callable[[Run, Any, Control], Model]) -> Model:
        """One stage, from where it stands; its model is the run's until the next one ends."""
        control.log(f"stage: {name}")
        check_unchanged(stages / name)
        shared = {"out": str((stages / name).absolute()), "seed": recipe.seed, "device": recipe.device}
        model = inner_run(stages / name, replace(stage_recipe, **shared), go_on, control)
        note_files(stages / name)
        card = context.card(model.card) if name != "pretrain" else replace(context.card(model.card), teacher=None)
        run.save_model(replace(model.opened, card=card), model.card.metrics)
        return model

    student = recipe.student
    if "pretrain" in names:
        stage("pretrain", pretraining(context, dataset, stages), pretrain.go)
        student = StudentSection(model=str((stages / "pretrain").absolute()))
    distilling = Run(stages / "distill")
    alone = replace(recipe.stages, names=("distill",))
    model = stage("distill", replace(recipe, student=student, stages=alone), distill_run)
    metric = read_toml(DistillRecipe, distilling.recipe).distill.metric
    reached = [{"stage": "distill", **reporting.point_of(model, metric, len(dataset.train))}]
    if "finetune" in names:
        model = stage("finetune", finetuning(recipe, task_name, task, stages, model, metric), finetune.go)
        reached.append({"stage": "finetune", **reporting.point_of(model, metric, len(labeled))})
    report, forwards = reporting.read_report(distilling.folder), distilling.info().teacher_forwards
    curve = [asdict(point) for point in report.curve] if report is not None else []
    more = {"forwards": forwards, "texts": len(dataset.train), "metric": metric, "curve": curve, "stages": reached}
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


def pretraining(context: Distillation, dataset: Dataset[Example], stages: Path) -> recipes.Recipe:
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
    return recipes.Recipe(
        model={"base": str(base.absolute())},
        text=recipes.PretrainText(files=(str((stages / "texts.txt").absolute()),)),
        objective=recipes.ObjectiveSection(
            name="mlm" if "mlm" in opened.family.objectives else "next",
            length=None if opened.row < room else max(2, length),
            mask=recipe.distill.mask,
        ),
        training=plan,
    )


def finetuning(
    recipe: DistillRecipe, name: str, task: Task, stages: Path, student: Model, metric: str | None
) -> recipes.TaskRecipe:
    """The last stage: labels alone, at a low learning rate."""
    plan, window, here = recipe.stages.finetune, student.card.window, stages.absolute()
    if plan.learning_rate is None:
        plan = replace(plan, learning_rate=GENTLE * (768 / student.config.width) ** 0.5)
    if plan.steps is None and plan.epochs is None:
        plan = replace(plan, epochs=EPOCHS)
    work: dict[str, Any] = {"name": name, "labels": task.labels, "metric": None if metric == AGREEMENT else metric}
    return recipes.TaskRecipe(
        task=recipes.TaskSection(**work, **(asdict(window) if window is not None else {})),
        model={"base": str(here / "distill")},
        data=recipes.DataSection(files=(str(here / "rows.jsonl"),), dev=(str(here / "dev.jsonl"),)),
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

    `weft.distill("runs/reviews", text="unlabeled.txt", student="3x256")`. Any section of the recipe may be given, such
    as `distill={"temperature": 4}`. `data` and `dev` may be rows in memory: a data frame, a Dataset, dicts or tuples.
    """
    rows = RunRows()
    if not isinstance(recipe, DistillRecipe):
        tables = {"text": text, "files": data, "dev": dev}
        several: Any = teacher if teacher is None or isinstance(teacher, list | tuple) else [teacher]
        for name in several or ():
            if not isinstance(name, str | os.PathLike):
                kind = type(name).__name__
                raise UserError(f"a teacher is the name of a folder, not a {kind}; model.save(FOLDER) writes one")
        folders = None if several is None else [os.fspath(name) for name in several]
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
