"""One distillation: from the recipe in a run folder to the best student."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from weft.checkpoint.card import Window
from weft.checkpoint.folder import LoadedModel
from weft.config import write_toml
from weft.data.batching import Feed
from weft.data.chance import key_of, shuffled
from weft.data.columns import file_of
from weft.data.examples import batch_of
from weft.data.shards import TextFiles
from weft.data.tables import FEW, Dataset, Table, read_table, split, split_whole
from weft.distillation import report as reporting
from weft.distillation.augment import augmented
from weft.distillation.language import distill_language, held_texts, pretrain_student
from weft.distillation.recipe import DistillDataSection, DistillRecipe
from weft.distillation.report import point_of
from weft.distillation.student import begun_student, find_student, matched
from weft.distillation.teacher_outputs import Distillation, Teacher, TeacherOutputs, TeacherReads, teacher_outputs
from weft.errors import UserError, listed, one_of, shown
from weft.metrics.bootstrap import Score
from weft.progress import Log, log_notes
from weft.runs.architecture import Beginning
from weft.runs.dataset import checked, normalized, table_of
from weft.runs.driver import Job, device_for, drive
from weft.runs.finetune import MOST_WINDOWS, Selection, decided, pairs_plan
from weft.runs.recipes import FROM_NOTHING, FinetuneTraining
from weft.tasks.base import Example, Task
from weft.tasks.complete import writer_of
from weft.tasks.forward import framing_for, window_for
from weft.tasks.model import Model, load
from weft.tasks.registry import task_class, task_for
from weft.tasks.rows import Reader
from weft.text.records import Record, read_texts
from weft.text.row_problems import Skipped
from weft.text.windows import Framing
from weft.training.run import Run, State, tokenizer_hash
from weft.training.signals import Control
from weft.training.step import Setup

ENOUGH = 40  # rows with targets; fewer say less about a student than its teacher does


def gather(task: Task, recipe: DistillRecipe, control: Control) -> Dataset[Example]:
    """All texts and rows of a distillation; some are held out where no others are given."""
    data = recipe.data
    examples, hashes, parts = list[Example](), dict[str, str](), list[int]()

    def add(name: str, more: list[Example], hash: str) -> None:
        examples.extend(more)
        hashes[name] = hash
        parts.append(len(more))

    if data.text:
        if task.pair:
            columns = listed(task.input_columns(Record({}, ""), {}))
            raise UserError(
                f"a teacher for {task.name} reads two texts at a time: give rows (--data FILE with the columns "
                f"{columns}), not --text"
            )
        files = TextFiles(data.text)
        add("text", read_lines(files.files, data, data.format, control), files.hash())
    if data.source or data.target:
        if not task.writes:
            raise UserError(f"a teacher for {task.name} reads no source: give --text or --data, not --source")
        if data.target:
            table = Table.parallel(data.source, data.target, data.on_bad_row, data.encoding)
            add("source", read_rows(task, table, control), table.hash())
        else:
            files = TextFiles(data.source, on_bad_row=data.on_bad_row, encoding=data.encoding)
            add("source", read_lines(data.source, data, None, control), files.hash())
    if data.files:
        table = Table(data.files, data.columns, data.format, data.delimiter, data.names, data.on_bad_row, data.encoding)
        add("data", read_known_rows(task, table, control), table.hash())
    if len(examples) < FEW:
        where = listed([*data.text, *data.source, *data.files], 2)
        raise UserError(f"{where}: {len(examples)} texts are too few to learn from; {FEW} are the least")
    if data.dev or data.dev_source or data.dev_target:
        count, table = len(examples), table_of(data, dev=True)
        rows = read_known_rows(task, table, control)
        labeled = [row for row in rows if task.has_target(row)]
        add("dev", labeled or rows, table.hash())
        numbers = range(count), range(count, len(examples))
        return Dataset(examples, *numbers, hashes, parts=tuple(parts), labeled_dev=bool(labeled))
    known = [number for number, example in enumerate(examples) if task.has_target(example)]
    by_labels = len(known) >= ENOUGH
    held = _held_out(task, examples, known if by_labels else range(len(examples)), data, by_labels)
    train = [number for number in range(len(examples)) if number not in held]
    places = [examples[number].where for number in sorted(held)]
    return Dataset(examples, train, sorted(held), hashes, places, parts=tuple(parts), labeled_dev=by_labels)


def _held_out(
    task: Task, examples: Sequence[Example], numbers: Sequence[int], data: DistillDataSection, by_labels: bool
) -> set[int]:
    """Some of these examples; none whose texts are also among the others."""
    rows = [examples[number] for number in numbers]
    if task.whole_groups:
        places = split_whole(task.groups(rows), data.holdout, data.split)[1]
    else:
        places = split(task.groups(rows) if by_labels else ["" for _ in rows], data.holdout, data.split)[1]
    held = {numbers[place] for place in places}
    learned = {example.texts for number, example in enumerate(examples) if number not in held}
    return {number for number in held if examples[number].texts not in learned} or held


def read_lines(names: Sequence[str], data: DistillDataSection, format: str | None, control: Control) -> list[Example]:
    """Unlabeled texts, one on each line of a file or in its column."""
    skipped, examples = Skipped(), list[Example]()
    texts = read_texts(
        TextFiles(tuple(names)).paths(),
        column=data.columns.get("text", "text"),
        format=format,
        delimiter=data.delimiter,
        on_bad_row=data.on_bad_row,
        skipped=skipped,
        encoding=data.encoding,
    )
    with control.count("reading the texts", "texts", "stopped while reading") as advance:
        for text in texts:
            examples.append(Example((text.text,), None, text.where))
            advance(1)
    log_notes(skipped.lines(), control.log)
    if not examples:
        raise UserError(f"{listed(names, 2)}: there is no text in it: nothing to learn from")
    return examples


def read_rows(task: Task, table: Table, control: Control) -> list[Example]:
    """All rows of a table, with or without targets."""
    skipped, names = Skipped(), set[str]()

    def begin(record: Record) -> tuple[Mapping[str, str], Callable[[Record], Example]]:
        reader = Reader.of(task, record, table.columns, skipped.note)
        names.update(reader.inputs, reader.columns)
        return reader.inputs, reader.read

    with control.count(f"reading {table.name}", "rows", "stopped while reading") as advance:
        examples = list(read_table(table, begin, skipped, advance))
    log_notes(skipped.lines(), control.log)
    if not examples:
        raise UserError(f"{table.name}: there are no rows")
    examples = normalized(examples, task.normalization(), table.name, control.log)
    lost = [name for name in table.columns if name not in names]
    if lost:
        raise UserError(f"{table.name}: no column {shown(table.columns[lost[0]])!r}, which --column says is {lost[0]}")
    return examples


def read_known_rows(task: Task, table: Table, control: Control) -> list[Example]:
    """The same, with the labels of the teacher alone."""
    examples = read_rows(task, table, control)
    labeled = [example for example in examples if task.has_target(example)]
    labels = {label for example in labeled for label in task.labels_of(example)}
    if labels and not labels & set(task.labels):
        raise UserError(
            f"{file_of(labeled[0].where)}: no common labels: its rows have "
            f"{listed([shown(label) for label in sorted(labels)], 6)}, the teacher has {listed(task.labels, 6)}"
        )
    return checked(task, examples, table.on_bad_row, control.log)


AGREEMENT = "agreement"  # the task's own metric, with the teacher's answers as targets
SEEN = 300_000  # texts that a student with initial weights reads in all, a fresh one twice as many
NEW_HEAD = 1e-4  # learning rate of a student, 768 wide, with initial weights but without the head of its task ...
ALL_THERE = 5e-5  # ... and of one that has that, too


def open_teachers(recipe: DistillRecipe, device: torch.device) -> tuple[str, list[Teacher]]:
    """The teachers and the task that they are made for."""
    name, teachers = "", list[Teacher]()
    for folder in recipe.teacher.folders:
        model = load(folder, task=recipe.teacher.task)
        if teachers and model.task != name:
            raise UserError(f"{folder}: is made for {model.task}, the first teacher for {name}")
        name = model.task
        model.network.float().to(device).eval()
        teachers.append(Teacher.of(model.opened, Path(folder)))
    return name, teachers


def student_task(recipe: DistillRecipe, name: str, teachers: Sequence[Teacher]) -> Task:
    """The task of a student of these teachers, whose outputs must mean the same."""
    tasks = [task_for(teacher.model, name) for teacher in teachers]
    task = tasks[0].learning_from(recipe.distill, [teacher.model for teacher in teachers])
    for teacher, other in zip(teachers, tasks, strict=True):
        if not task.same_outputs(other):
            raise UserError(f"{teacher.folder}: has other labels than the first teacher: their mean has no meaning")
    return task


def go(run: Run, recipe: DistillRecipe, control: Control) -> Model:
    """From the recipe in a run folder to the best student; from its last checkpoint on where there is one."""
    if recipe.distill.pretrain:
        return _language(run, recipe, control.log, lambda: pretrain_student(run, recipe, control))
    device = device_for(recipe.device, recipe.training.threads)
    if recipe.training.compile and device.type == "cpu":
        raise UserError("on the CPU rows of a task are not compiled: leave out training.compile")
    if recipe.training.watch_gradients:
        raise UserError("watch_gradients is for language models: weft pretrain --watch-gradients")
    if recipe.training.compile and recipe.distill.match:
        raise UserError("a student whose teacher runs along is not compiled: leave out training.compile, or match")
    name, teachers = open_teachers(recipe, device)
    context = Distillation(run, recipe, teachers, device, control)
    if task_class(name).language_model:
        return _language(run, recipe, control.log, lambda: distill_language(context))
    student = prepare(context, student_task(recipe, name, teachers))
    state = train(context, student)
    return _reported(context, student, state)


def _language(run: Run, recipe: DistillRecipe, log: Log, train: Callable[[], Model]) -> Model:
    """A student of words alone, and its report."""
    if recipe.distill.curve:
        raise UserError("words have no learning curve by texts: --curve is for students of a task")
    began = time.perf_counter()
    student = train()
    teachers = [Teacher(load(name, task=student.task).opened, Path(name), "") for name in recipe.teacher.folders]
    spent, forwards = time.perf_counter() - began, run.info().teacher_forwards
    reporting.write_report(run, teachers, student, held_texts(recipe.data), spent, log, forwards=forwards)
    return student


@dataclass(frozen=True)
class Student:
    """A student that is ready to learn."""

    recipe: DistillRecipe  # with every choice made
    task: Task
    model: LoadedModel
    windows: Framing
    dataset: Dataset[Example]
    train: Any  # sources of batches
    dev: Any
    judges: Sequence[Example]  # held out, with targets or else with the teacher's answers
    reads: int  # examples that teachers have read for it

    @property
    def metric(self) -> str:
        return self.recipe.distill.metric or "loss"

    def kept_scores(self, scores: Mapping[str, Score]) -> Mapping[str, Score]:
        """The metrics of the student; where the teacher's answers are the targets, its agreement with them."""
        if self.dataset.labeled_dev:
            return scores
        agreement = {AGREEMENT: scores[self.task.default_metric]}
        return agreement if self.task.supervised else {**agreement, **scores}


def prepare(context: Distillation, task: Task) -> Student:
    """Read the data, begin a student, run its teachers, and decide what is open; mistakes are named first."""
    recipe = context.recipe
    find_student(recipe, context.teacher, lambda text: None)
    dataset = gather(task, recipe, context.control)
    dataset = part_of(_augmented(context, task, dataset), recipe.data.share, recipe.data.split)
    if not any(map(task.has_target, dataset.train)):  # labels do not count
        task = task.learning_from(replace(recipe.distill, hard=0.0), context.models)
    metric = decided_metric(context, task, dataset.labeled_dev)
    reads = TeacherReads(context.run.inside)

    @cache
    def outputs() -> TeacherOutputs:
        return teacher_outputs(task, context.teachers, dataset.examples, dataset.parts, context.control, reads)

    beginning = begun_student(
        context,
        task.objective().heads,
        task.head,
        lambda: task.vocabulary_texts(dataset.train, lambda: outputs().select(dataset.train_numbers)),
    )
    model = beginning.opened
    window = window_of(recipe, context.teacher, model, task)
    windows = framing_for(model, window)
    matched(task.objective(), context.teacher, model, recipe.distill)  # whether their layers can be compared
    learned, held_out = outputs().select(dataset.train_numbers), outputs().select(dataset.dev_numbers)
    judges: Sequence[Example] = dataset.dev
    if not dataset.labeled_dev:
        judges = [task.with_teacher_answer(*pair) for pair in zip(dataset.dev, held_out, strict=True)]
    task = task.fit_teacher(dataset.train, learned).prepare(model, dataset.train, beginning.fresh)
    with context.control.count("tokenizing", "texts", "stopped while tokenizing") as advance:
        train = task.dataset(dataset.train, model, windows, learned)
        advance(len(dataset.train))
        dev = task.dataset(dataset.dev, model, windows, held_out)
    for note in (*train.notes, *(f"of the held-out texts: {note}" for note in dev.notes)):
        context.control.note(note)
    train = train.for_training(MOST_WINDOWS, recipe.seed, _captures(context))
    dev = dev.for_training(MOST_WINDOWS, 0, False)
    plan = planned(recipe, task, train, context.device, beginning)
    settings = replace(recipe.distill, metric=metric, length=window.length, stride=window.stride)
    recipe = replace(recipe, training=plan, device=str(context.device), distill=settings)
    card = replace(
        task.to_card(model.card),
        task=task.name,
        window=task.card_window(window, train),
        columns=dict(recipe.data.columns),
        base=Path(recipe.student.model).name,  # where it lies on this machine stays private
        teacher=", ".join(Path(folder).name for folder in recipe.teacher.folders),
    )
    return Student(recipe, task, replace(model, card=card), windows, dataset, train, dev, judges, reads.total)


def _captures(context: Distillation) -> bool:
    return context.device.type == "cuda" and not context.recipe.training.compile


def _augmented(context: Distillation, task: Task, dataset: Dataset[Example]) -> Dataset[Example]:
    """The dataset with copies of its texts, some of their words replaced."""
    data = context.recipe.data
    if not data.augment:
        return dataset
    by = None if data.augment_by is None else load(data.augment_by).to(context.device).opened
    with context.control.count("replacing words", "texts", "stopped while replacing words") as advance:
        copies = augmented(task, dataset.train, data.augment, by, context.recipe.seed, advance)
    return dataset.with_more(copies)


def decided_metric(context: Distillation, task: Task, by_labels: bool) -> str:
    """The metric that decides which student is kept; where the package that computes it is missing, the loss."""
    metric, package = context.recipe.distill.metric, task.metric_package(task.default_metric)
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
    """The plan of a student: few texts are read more often, since each says more than a label would."""
    plan, model = recipe.training, begun.opened
    # A writer of a few layers of another has lost as much as it has kept: it learns as one with fresh weights.
    fresh = begun.scratch or (task.writes and not Path(recipe.student.model).is_dir())
    batch, epochs = pairs_plan(train) if fresh and task.writes else (32, 0.0)
    if not epochs:
        epochs = min(20.0, max(4.0, 2 * SEEN / train.count)) if fresh else min(10.0, max(3.0, SEEN / train.count))
    # A narrow network takes larger steps than the large ones for which 5e-5 is usual.
    usual = model.family.learning_rate if fresh else NEW_HEAD if begun.fresh else ALL_THERE
    rate = 2e-3 if model.family.name == "vectors" else usual * (768 / model.config.width) ** 0.5
    if fresh and task.writes:
        plain = vars(FinetuneTraining())
        usual_keys: dict[str, Any] = {key: FROM_NOTHING[key] for key in FROM_NOTHING if vars(plan)[key] == plain[key]}
        plan = replace(plan, **usual_keys)
    return decided(plan, train, device, batch, epochs, rate)


def window_of(recipe: DistillRecipe, teacher: LoadedModel, student: LoadedModel, task: Task) -> Window:
    """The window of the student: the teacher's where it can be; a network without attention reads whole texts."""
    length, stride = recipe.distill.length, recipe.distill.stride
    window = teacher.card.window
    if task.writes:
        return window_for(student, length, stride, "windows", task.overlap)
    if window is not None and length is None and student.config.heads:
        length = min(window.length, student.config.context)
        stride = stride or max(1, min(window.stride, length))
    long = window.long if window is not None else "windows"
    return window_for(student, length, stride, long, task.overlap)


def train(context: Distillation, student: Student) -> State:
    """Train a prepared student to the end, or until somebody stops it."""
    run, recipe, model, dataset = context.run, student.recipe, student.model, student.dataset
    data = dataset.hashes.get("dev", dataset.hashes.get("data", dataset.hashes.get("text", "")))
    selection = Selection(
        run, student.task, model, student.windows, student.judges, student.metric, data, student.kept_scores
    )

    setup = Setup(
        network=model.network,
        objective=matched(student.task.objective(), context.teacher, model, recipe.distill),
        feed=Feed(student.train, batch_of, recipe.seed, recipe.training.batch or 1),
        held_out=student.dev,
        plan=recipe.training,
        device=context.device,
        decode=writer_of(model).decode,
        evaluate=None if student.metric == "loss" else selection.evaluate,
        capture=_captures(context),
    )
    hashes = {**dataset.hashes, "teacher": [teacher.digest for teacher in context.teachers]}
    job = Job(
        recipe=recipe,
        model=model,
        setup=setup,
        same={"data": hashes, "tokenizer": tokenizer_hash(model)},
        about={"rows": {"train": len(dataset.train), "dev": len(dataset.dev)}, "teacher_forwards": student.reads},
        split=None if dataset.held_out is None else {"split": recipe.data.split, "held_out": dataset.held_out},
        announce=lambda state: announce(context, student, recipe.training.steps or 1),
        save=selection.save,
        metric=student.metric,
    )
    return drive(run, job, context.control)


def announce(context: Distillation, student: Student, steps: int) -> None:
    """What is about to be learned, from what and how."""
    dataset, recipe = student.dataset, student.recipe
    labeled = sum(map(student.task.has_target, dataset.train))
    held = "" if dataset.held_out is None else " (drawn from the others, noted in run/split.json)"
    by = "" if dataset.labeled_dev else ", by the teacher's answers"
    context.control.log(
        f"{context.run.folder}: {len(dataset.train):,} texts to learn from, {labeled:,} of them labeled; "
        f"{len(dataset.dev):,} held out{by}{held}\n"
        f"plan: {steps:,} step{'s' * (steps != 1)} of {recipe.training.batch}, "
        f"learning rate {recipe.training.learning_rate:.1e}, on "
        f"{recipe.device} in {recipe.training.precision}, kept by {student.metric}"
    )


def _reported(context: Distillation, student: Student, state: State) -> Model:
    """The trained student, with its learning curve and its report."""
    run, count, metric = context.run, len(student.dataset.train), student.metric
    model = load(run.folder).to(context.device)
    curve = curve_of(run, student.recipe, count, context.control)
    if student.recipe.data.share == 1:
        reporting.write_report(
            run,
            context.teachers,
            model,
            student.judges,
            state.seconds,
            context.control.log,
            by_labels=metric != AGREEMENT,
            forwards=run.info().teacher_forwards,
            texts=count,
            metric=metric,
            curve=[*curve, reporting.point_of(model, metric, count)] if curve else (),
        )
    return load(run.folder)


MIN_TEXTS = 8


def part_of(dataset: Dataset[Example], share: float, seed: int) -> Dataset[Example]:
    """The dataset with a share of its examples to learn from; a greater share holds every smaller one."""
    if share >= 1:
        return dataset
    numbers = dataset.train_numbers
    count = max(1, round(share * len(numbers)))
    order = shuffled(key_of(seed, "curve"), np.arange(len(numbers)), len(numbers))
    return replace(dataset, train_numbers=sorted(numbers[place] for place in order[:count].tolist()))


def curve_of(run: Run, recipe: DistillRecipe, texts: int, control: Control) -> list[dict[str, Any]]:
    """The metrics of students of fewer texts, each a run inside `run/curve` with as many steps as the run itself."""
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
            control.log(f"curve: a student of {count:,} texts")
            model = go(part, smaller, control)
        points.append(point_of(model, recipe.distill.metric, count))
    return points
