"""One distillation: from the recipe in a run folder to the best student that was seen there."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from weft.checkpoint.card import Window
from weft.checkpoint.folder import LoadedModel
from weft.data.batching import Feed
from weft.data.examples import Examples, batch_of
from weft.data.pairs import Sequences
from weft.distillation import masked_language as pretraining
from weft.distillation import report as reporting
from weft.distillation.augment import augmented
from weft.distillation.base import Lesson
from weft.distillation.curve import curve_of, part_of
from weft.distillation.dataset import Material, gather
from weft.distillation.hidden_states import matched
from weft.distillation.language import distill_language
from weft.distillation.language_dataset import held_texts
from weft.distillation.recipe import DistillRecipe
from weft.distillation.registry import lesson_for
from weft.distillation.seq2seq import from_nothing, without_bleu
from weft.distillation.student import begun_student, find_student
from weft.distillation.teacher_cache import Teacher, TeacherReads
from weft.distillation.teacher_outputs import TeacherOutputs, teacher_outputs
from weft.errors import UserError, one_of
from weft.metrics.bootstrap import Score
from weft.objectives.base import Objective
from weft.progress import Log, Progress
from weft.runs.driver import Job, device_for, drive
from weft.runs.finetune import MOST_WINDOWS
from weft.runs.initial import Beginning
from weft.runs.plan import decided, pairs_plan
from weft.runs.recipes import FinetuneTraining
from weft.runs.selection import Selection
from weft.tasks.base import Task
from weft.tasks.forward import framing_for, window_for
from weft.tasks.model import Model, load
from weft.tasks.seq2seq import SequenceTask
from weft.tasks.translate import writer_of
from weft.training.run import Run, tokenizer_hash
from weft.training.setup import Setup
from weft.training.signals import Stop

AGREEMENT = "agreement"  # the task's own score, with the teacher's answers for right ones
SEEN = 300_000  # texts that a student which begins from weights reads in all, a fresh one twice as many
NEW_HEAD = 1e-4  # the rate of a student, 768 wide, that begins from weights without the head of its task ...
ALL_THERE = 5e-5  # ... and of one that has that, too


def open_teachers(recipe: DistillRecipe, device: torch.device) -> tuple[str, list[Teacher]]:
    """The teachers and what they are made for; all must say the same things."""
    name, found = "", list[Teacher]()
    for folder in recipe.teacher.folders:
        model = load(folder, task=recipe.teacher.task)
        if found and model.task != name:
            raise UserError(f"{folder}: is made for {model.task}, the first teacher for {name}")
        name = model.task
        model.network.float().to(device).eval()
        found.append(Teacher.of(model.opened, Path(folder)))
    return name, found


def chosen_lesson(recipe: DistillRecipe, name: str, teachers: Sequence[Teacher]) -> Lesson:
    """The lesson that all teachers give."""
    lesson = lesson_for(teachers[0].model, name, recipe, [each.model for each in teachers[1:]])
    for each in teachers[1:]:
        if not lesson.same(each.model, name):
            raise UserError(f"{each.folder}: says other labels than the first teacher: their mean has no meaning")
    return lesson


def go(run: Run, recipe: DistillRecipe, stop: Stop, log: Log, progress: Progress) -> Model:
    began = time.perf_counter()
    if recipe.distill.pretrain:
        _without_curve(recipe)
        student = pretraining.go(run, recipe, stop, log, progress)
        _report_language(run, recipe, student, time.perf_counter() - began, log)
        return student
    device = device_for(recipe.device, recipe.training.threads)
    if recipe.training.compile and device.type == "cpu":
        raise UserError("on the CPU rows of a task are not compiled: leave out training.compile")
    if recipe.training.watch_gradients:
        raise UserError("watch_gradients is for language models: weft pretrain --watch-gradients")
    if recipe.training.compile and recipe.distill.match:
        raise UserError("a student whose teacher runs along is not compiled: leave out training.compile, or match")
    name, teachers = open_teachers(recipe, device)
    if name == "complete":
        _without_curve(recipe)
        student = distill_language(run, recipe, teachers, device, stop, log, progress)
        _report_language(run, recipe, student, time.perf_counter() - began, log)
        return student
    lesson = chosen_lesson(recipe, name, teachers)
    find_student(recipe, teachers[0].model, silent_say)  # what can be wrong with it is said before anything is read
    material = _more(gather(lesson.task, recipe, log, progress, stop), recipe, device, stop, progress)
    material = part_of(material, recipe.data.share, recipe.data.split)
    metric = without_bleu(recipe.distill.metric, lesson.task, log)
    metric = decided_metric(metric, lesson.task, material.by_labels)
    opened_teachers = [each.model for each in teachers]

    reads = TeacherReads(run.inside)

    @cache
    def outputs() -> TeacherOutputs:
        return teacher_outputs(lesson, teachers, material.rows, material.parts, stop, log, progress, reads).outputs

    # All that may be wrong with a student is said before the teacher begins to read, which may take hours.
    beginning = begun_student(
        run,
        recipe,
        opened_teachers,
        lesson.objective.heads,
        lesson.task.head,
        lambda: lesson.texts(material.train, lambda: outputs().select(material.learned)),
        stop,
        log,
        progress,
    )
    opened = beginning.opened
    window = window_of(recipe, teachers[0].model, opened, lesson.task)
    framing = framing_for(opened, window)
    objective_of(recipe, lesson, opened_teachers, opened)  # whether their insides can be compared at all
    said, said_dev = outputs().select(material.learned), outputs().select(material.judged)
    judges = material.dev
    if not material.by_labels:
        judges = [lesson.answered(*each) for each in zip(material.dev, said_dev, strict=True)]
    lesson = in_units(lesson.settled(material.train, said), opened, beginning.fresh)
    task = lesson.task
    with progress("tokenizing", "texts") as told:
        train = lesson.table(material.train, said, opened, framing)
        told(len(material.train))
        stop.check("stopped while tokenizing")
        dev = lesson.table(material.dev, said_dev, opened, framing)
    for note in (*train.notes, *(f"of those to judge by: {note}" for note in dev.notes)):
        log(f"weft: note: {note}")
    capture = device.type == "cuda" and not recipe.training.compile
    train = train.for_training(MOST_WINDOWS, recipe.seed, capture)
    dev = dev.for_training(MOST_WINDOWS, 0, False)
    plan = planned(recipe, train, device, beginning)
    recipe = replace(
        recipe,
        training=plan,
        device=str(device),
        distill=replace(recipe.distill, metric=metric, length=window.length, stride=window.stride),
    )
    card = replace(
        task.to_card(opened.card),
        task=name,
        window=task.card_window(window, train),
        columns=dict(recipe.data.columns),
        base=_name_of(recipe.student.model),
        teacher=", ".join(_name_of(folder) for folder in recipe.teacher.folders),
    )
    opened = replace(opened, card=card)
    data = material.hashes.get("dev", material.hashes.get("data", material.hashes.get("text", "")))

    def scores(values: Mapping[str, Score]) -> Mapping[str, Score]:
        return kept_scores(values, task, material.by_labels)

    selection = Selection(run, task, opened, framing, judges, metric, data, scores)
    setup = Setup(
        network=opened.network,
        objective=objective_of(recipe, lesson, opened_teachers, opened),
        feed=Feed(train, batch_of, recipe.seed, plan.batch or 1),
        held_out=dev,
        plan=plan,
        device=device,
        decode=writer_of(opened).decode,
        evaluate=None if metric == "loss" else selection.evaluate,
        capture=capture,
    )
    job = Job(
        recipe=recipe,
        model=opened,
        setup=setup,
        same={"data": _hashes(material, teachers), "tokenizer": tokenizer_hash(opened)},
        about={"rows": {"train": len(material.train), "dev": len(material.dev)}, "teacher_forwards": reads.total},
        split=None if material.held is None else {"split": recipe.data.split, "held_out": material.held},
        announce=lambda state: announce(run, recipe, task, material, plan.steps or 1, log),
        save=selection.save,
        metric=metric,
    )
    state = drive(run, job, stop, log, progress)
    student = load(run.folder).to(device)
    count = len(material.train)
    curve = curve_of(run, recipe, count, go, stop, log, progress)
    if recipe.data.share == 1:
        reporting.write_report(
            run,
            teachers,
            student,
            judges,
            state.seconds,
            log,
            by_labels=metric != AGREEMENT,
            forwards=run.info().teacher_forwards,
            texts=count,
            metric=metric,
            curve=[*curve, reporting.point_of(student, metric, count)] if curve else (),
        )
    return load(run.folder)


def _report_language(run: Run, recipe: DistillRecipe, student: Model, spent: float, log: Log) -> None:
    teachers = [Teacher(load(name, task=student.task).opened, Path(name), "") for name in recipe.teacher.folders]
    forwards = run.info().teacher_forwards
    reporting.write_report(run, teachers, student, held_texts(recipe.data), spent, log, forwards=forwards)


def _without_curve(recipe: DistillRecipe) -> None:
    if recipe.distill.curve:
        raise UserError("words have no learning curve by texts: --curve is for students of a task")


def decided_metric(asked: str | None, task: Task, by_labels: bool) -> str:
    """The score that decides which student is kept."""
    if by_labels:
        return (
            task.default_metric if asked in (None, AGREEMENT) else one_of(asked, (*task.metric_names, "loss"), "metric")
        )
    if asked == "loss":
        return asked
    if asked not in (None, AGREEMENT):
        raise UserError(f"{asked} needs right answers to judge by: give --dev FILE of rows that have them")
    return AGREEMENT


def _more(material: Material, recipe: DistillRecipe, device: torch.device, stop: Stop, progress: Progress) -> Material:
    """The material with texts that come again, some of their words replaced."""
    if not recipe.data.augment:
        return material
    by = None if recipe.data.augment_by is None else load(recipe.data.augment_by).to(device).opened
    with progress("replacing words", "texts") as read:

        def heard(more: int) -> None:
            stop.check("stopped while replacing words")
            read(more)

        return material.with_more(augmented(material.train, recipe.data.augment, by, recipe.seed, heard))


def silent_say(text: str) -> None:
    """Nobody need hear this."""


def in_units(lesson: Lesson, opened: LoadedModel, fresh: bool) -> Lesson:
    """Values are learned as distances from their middle; a head that has learned to say them says them so from here."""
    task = lesson.task.prepare(opened, (), fresh)
    return lesson if task is lesson.task else replace(lesson, task=task)  # type: ignore[type-var]


def objective_of(
    recipe: DistillRecipe, lesson: Lesson, teachers: Sequence[LoadedModel], student: LoadedModel
) -> Objective:
    """What the student learns by: what the teacher says, and what is asked for of its inside."""
    return matched(lesson.objective, teachers[0], student, recipe.distill)


def planned(
    recipe: DistillRecipe, train: Examples | Sequences, device: torch.device, begun: Beginning
) -> FinetuneTraining:
    """The plan of a student: few texts are read more often, since each says more than a label would."""
    plan, opened, writes = recipe.training, begun.opened, isinstance(train, Sequences)
    # A writer of a few layers of another has lost as much as it has kept: it learns as one that begins from nothing.
    anew = begun.scratch or (writes and not Path(recipe.student.model).is_dir())
    batch, epochs = pairs_plan(train) if anew and isinstance(train, Sequences) else (32, 0.0)
    if not epochs:
        epochs = min(20.0, max(4.0, 2 * SEEN / train.count)) if anew else min(10.0, max(3.0, SEEN / train.count))
    # A narrow network takes larger steps than the large ones for which 5e-5 is usual.
    usual = opened.family.learning_rate if anew else NEW_HEAD if begun.fresh else ALL_THERE
    learning_rate = 2e-3 if opened.family.name == "vectors" else usual * (768 / opened.config.width) ** 0.5
    return decided(from_nothing(plan) if anew and writes else plan, train, device, batch, epochs, learning_rate)


def window_of(recipe: DistillRecipe, teacher: LoadedModel, student: LoadedModel, task: Task) -> Window:
    """How the student cuts long texts: as the teacher does where it can, a network without attention at its leisure."""
    length, stride = recipe.distill.length, recipe.distill.stride
    there = teacher.card.window
    if isinstance(task, SequenceTask):
        return window_for(student, length, stride, "windows", task.overlap)  # its card says how much was ever read
    if there is not None and length is None and student.config.heads:
        length = min(there.length, student.config.context)
        stride = stride or max(1, min(there.stride, length))
    long = there.long if there is not None else "windows"
    return window_for(student, length, stride, long, task.overlap)


def _name_of(name: str) -> str:
    return Path(name).name  # what lies where on this machine is nobody's business


def kept_scores(scores: Mapping[str, Score], task: Task, by_labels: bool) -> dict[str, Score]:
    """The metrics of a student: those of its task, or its agreement with the teacher where there are no labels."""
    if by_labels:
        return dict(scores)
    # Vectors are right by no label.
    return {AGREEMENT: scores[task.default_metric], **(scores if task.name == "embed" else {})}


def _hashes(material: Material, teachers: Sequence[Teacher]) -> dict[str, Any]:
    return {**material.hashes, "teacher": [each.digest for each in teachers]}


def announce(run: Run, recipe: DistillRecipe, task: Task, material: Material, steps: int, log: Log) -> None:
    """What is about to be learned, from what and how."""
    right = sum(map(task.has_target, material.train))
    held = "" if material.held is None else " (drawn from the others, noted in run/split.json)"
    by = "" if material.by_labels else ", by the teacher's answers"
    log(
        f"{run.folder}: {len(material.train):,} texts to learn from, {right:,} of them with a right answer; "
        f"{len(material.dev):,} to judge by{by}{held}\n"
        f"plan: {steps:,} step{'s' * (steps != 1)} of {recipe.training.batch}, "
        f"learning rate {recipe.training.learning_rate:.1e}, on {recipe.device} in {recipe.training.precision}, "
        f"kept by {recipe.distill.metric}"
    )
