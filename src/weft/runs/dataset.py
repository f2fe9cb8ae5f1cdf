"""The rows of a fine-tuning run: read, checked, and parted into those to learn from and those to judge by."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from weft.data.reading import check_rows, examples_of, long_note, split, split_whole
from weft.data.tables import Table
from weft.errors import UserError
from weft.progress import Log, Progress, log_notes
from weft.runs.recipes import TaskRecipe
from weft.tasks.base import Example, Normalization, Task
from weft.tasks.registry import task_class
from weft.text.column_names import USUAL, folded
from weft.text.row_problems import Problems, Skipped
from weft.text.windows import Framing
from weft.training.signals import Stop


def fresh_task(recipe: TaskRecipe) -> Task:
    """The task of a recipe, before its rows are read."""
    return task_class(recipe.task.name).from_recipe(recipe.task, recipe.data)


def files_of(recipe: TaskRecipe, dev: bool = False) -> Table:
    """Where the rows stand, to learn from or to judge by: in a table, or in two files line for line."""
    d = recipe.data
    source, target = (d.dev_source, d.dev_target) if dev else (d.source, d.target)
    names = d.dev if dev else d.files
    if source or target:
        if names:
            raise UserError(
                f"rows come from a table or from two files line for line: {names[0]} and {(source or target)[0]}"
            )
        return Table.parallel(source, target, d.on_bad_row, d.encoding)
    return Table(tuple(names), d.columns, d.format, d.delimiter, d.names, d.on_bad_row, d.encoding)


def read_examples(
    task: Task, files: Table, skipped: Skipped, log: Log, progress: Progress, stop: Stop | None = None
) -> tuple[Task, list[Example]]:
    """All rows of some files; what they hold may decide what kind of task it is."""
    first = next(files.records(Skipped()), None)
    where = files.name
    if first is None:
        raise UserError(f"{where}: there are no rows")
    task, needed = task.columns(first, files.columns)
    if note := task.column_note(needed):
        log(f"weft: note: {where}: {note}")
    with progress(f"reading {where}", "rows") as read:

        def heard(more: int) -> None:
            if stop is not None:
                stop.check("stopped while reading")
            read(more)

        examples = list(examples_of(files, needed, task.read, skipped, heard))
    log_notes(skipped.lines(), log)
    return task, examples


@dataclass(frozen=True)
class Material:
    """What a run learns from and is judged by."""

    task: Task
    train: list[Example]
    dev: list[Example]
    hashes: dict[str, str]
    held: list[str] | None  # where the held-out rows stand, where they were drawn from the others
    columns: Mapping[str, str]  # what the file calls those that have no usual name


def gather(recipe: TaskRecipe, log: Log, progress: Progress, stop: Stop) -> Material:
    """The rows of a run, read and checked; some are held out where no others are given."""
    files = files_of(recipe)
    skipped = Skipped()
    task, rows = read_examples(fresh_task(recipe), files, skipped, log, progress, stop)
    # What no name tells is remembered with the model.
    columns = {ours: theirs for ours, theirs in skipped.columns.items() if folded(theirs) not in USUAL}
    where = files.name
    check_rows(len(rows), where)
    hashes = {"data": files.hash()}
    normalization = task.normalization(rows, recipe.task.labels)
    rows = normalized(rows, normalization, where, log)
    rows = task.select(rows, lambda note: log(f"weft: note: {where}: {note}"))
    check_rows(len(rows), where)
    if recipe.data.dev or recipe.data.dev_source or recipe.data.dev_target:
        other = files_of(recipe, dev=True)
        _, dev = read_examples(task, other, Skipped(), log, progress, stop)
        dev = normalized(dev, normalization.renewed(), other.name, log)
        task = _learned(task, rows, recipe, where, log)
        rows, dev = checked(task, rows, files, log), checked(task, dev, other, log)
        check_rows(len(rows), where)
        check_dev(len(dev), other)
        if note := task.swap_note(dev, other.name):
            log(f"weft: note: {note}")
        return Material(task, rows, dev, {**hashes, "dev": other.hash()}, None, columns)
    task = _learned(task, rows, recipe, where, log)
    rows = checked(task, rows, files, log)
    check_rows(len(rows), where)
    groups = task.groups(rows)
    if task.whole_groups:
        kept, held = split_whole(groups, recipe.data.holdout, recipe.data.split)
    else:
        kept, held = split(groups, recipe.data.holdout, recipe.data.split)
        learned = {rows[number].texts for number in kept}  # a row that is there twice must not be on both sides
        twice = {number for number in held if rows[number].texts in learned}
        if len(twice) < len(held):
            kept, held = sorted({*kept, *twice}), [number for number in held if number not in twice]
    dev = [rows[number] for number in held]
    return Material(task, [rows[number] for number in kept], dev, hashes, [row.where for row in dev], columns)


def _learned(task: Task, rows: list[Example], recipe: TaskRecipe, where: str, log: Log) -> Task:
    """The task with what its rows say; a note where labels look like one that is written in several ways."""
    task = task.fit_labels(rows, recipe.task.labels)
    if note := task.label_note():
        log(f"weft: note: {where}: {note}")
    return task


def normalized(rows: list[Example], normalization: Normalization, where: str, log: Log) -> list[Example]:
    """The rows with their targets in one form, and a note where they had another."""
    rows = [normalization(row) for row in rows]
    if note := normalization.note():
        log(f"weft: note: {where}: {note}")
    return rows


def announce_long(material: Material, framing: Framing, log: Log) -> None:
    """A note on each of the first texts that will take long."""
    how = framing.stride, framing.cutting
    notes = [note for row in (*material.train, *material.dev) if (note := long_note(row.texts, row.where, *how))]
    for note in [*notes[:3], *([f"and {len(notes) - 3:,} more such texts"] if len(notes) > 3 else [])]:
        log(f"weft: note: {note}")


def checked(task: Task, rows: list[Example], files: Table, log: Log) -> list[Example]:
    """The rows whose labels the task knows; others stop, all told at once, or are passed over and counted."""
    skipped, problems = Skipped(), Problems()
    with suppress(UserError):  # most often all is well
        task.check_targets(rows)
        return rows
    kept = []
    for row in rows:
        try:
            task.check_targets([row])
            kept.append(row)
        except UserError as error:
            if files.on_bad_row == "stop":
                problems.add(error)
            else:
                skipped.add(str(error))
    problems.check()
    log_notes(skipped.lines(), log)
    return kept


def check_dev(count: int, files: Table) -> None:
    if not count:
        raise UserError(f"{files.name}: there are no rows")
