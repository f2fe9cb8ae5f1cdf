"""The dataset of a fine-tuning run: files that a call names, read, checked, and split for training and evaluation."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from weft.data.dataset import Dataset, RunRows, check_rows, examples_of, is_section, long_note, split, split_whole
from weft.data.tables import Table
from weft.errors import UserError
from weft.progress import Log, log_notes
from weft.runs.recipes import TableSection, TaskRecipe, overlaid
from weft.tasks.base import Example, Normalization, Task
from weft.tasks.registry import task_class
from weft.text.delimited import USUAL, folded
from weft.text.row_problems import Problems, Skipped
from weft.text.windows import Framing
from weft.training.signals import Control

SIDES = ("source", "target", "dev_source", "dev_target")  # of files that belong together line for line
DEV = ("dev", "dev_source", "dev_target")


def settings_of(
    given: Mapping[str, Any],
    rows: RunRows,
    section: type[Any],
    tables: Mapping[str, Any],
    values: Mapping[str, Any],
    out: str | os.PathLike[str] | None,
) -> dict[str, Any]:
    """The settings of a call: `tables` of [data], `values` by `section.key`, each of which may be a whole section."""
    settings = dict(given)

    def put(name: str, key: str, value: Any) -> None:
        settings[name] = {**settings.get(name, {}), key: value}

    tables = dict(tables)
    if is_section(tables.get("files"), section):
        settings = overlaid(settings, {"data": tables.pop("files")})
    for name, value in values.items():
        if isinstance(value, Mapping):
            settings = overlaid(settings, {name.split(".")[0]: value})
    there = settings.get("data", {})
    tables |= {key: there[key] for key in SIDES if isinstance(there.get(key), str | os.PathLike)}
    for key, value in tables.items():
        if value is not None:
            put("data", key, rows.names(key, value))
    for name, value in values.items():
        if value is not None and not isinstance(value, Mapping):
            head, _, key = name.partition(".")
            put(head, key, os.fspath(value) if isinstance(value, os.PathLike) else value)
    if out is not None:
        settings["out"] = os.fspath(out)
    return settings


def absolute_tables(data: Any, keys: tuple[str, ...], rows: RunRows, out: str, log: Log) -> dict[str, Any]:
    """The files of [data] with whole paths, so that the run can be resumed from any folder."""
    values: dict[str, Any] = {**rows.paths(out)}
    for key in (*keys, "dev", *SIDES):
        if (names := vars(data)[key]) and key not in rows.tables:
            table = Table(names, format=data.format if key in ("files", "dev") else "txt")
            paths = table.paths(lambda text: log(f"weft: note: {text}"))
            values[key] = [str(path.absolute()) for path in paths]  # a folder of classes stays one name
    train, dev = (
        {name for key, names in values.items() for name in names if (key in DEV) is held_out}
        for held_out in (False, True)
    )
    if both := train & dev:
        raise UserError(f"{min(both)}: is both learned from and judged by")
    return values


def absolute(name: str) -> str:
    """A path that is the same from any folder."""
    return str(Path(name).expanduser().absolute())


def table_of(data: TableSection, dev: bool = False) -> Table:
    """The rows to learn from, or to evaluate on: in a table, or in two files line for line."""
    source, target = (data.dev_source, data.dev_target) if dev else (data.source, data.target)
    names = data.dev if dev else data.files
    if not (source or target):
        return Table(names, data.columns, data.format, data.delimiter, data.names, data.on_bad_row, data.encoding)
    if names:
        raise UserError(
            f"rows come from a table or from two files line for line: {names[0]} and {(source or target)[0]}"
        )
    return Table.parallel(source, target, data.on_bad_row, data.encoding)


def read_examples(task: Task, table: Table, skipped: Skipped, control: Control) -> tuple[Task, list[Example]]:
    """All rows of a table; the first of them may decide what kind of task it is."""
    first = next(table.records(Skipped()), None)
    where = table.name
    if first is None:
        raise UserError(f"{where}: there are no rows")
    task, needed = task.columns(first, table.columns)
    if note := task.column_note(needed):
        control.note(f"{where}: {note}")
    with control.count(f"reading {where}", "rows", "stopped while reading") as watched:
        examples = list(examples_of(table, needed, task.read, skipped, watched))
    log_notes(skipped.lines(), control.log)
    return task, examples


def gather(recipe: TaskRecipe, control: Control) -> tuple[Task, Dataset[Example]]:
    """The task and the dataset of a run; some rows are held out where no others are given to evaluate on."""
    data, table, skipped = recipe.data, table_of(recipe.data), Skipped()
    fresh = task_class(recipe.task.name).from_recipe(recipe.task, recipe.data)
    task, examples = read_examples(fresh, table, skipped, control)
    # Names that no other file would be expected to use are remembered with the model.
    columns = {ours: theirs for ours, theirs in skipped.columns.items() if folded(theirs) not in USUAL}
    where = table.name
    check_rows(len(examples), where)
    hashes = {"data": table.hash()}
    normalization = task.normalization(examples, recipe.task.labels)
    examples = normalized(examples, normalization, where, control.log)
    examples = task.select(examples, lambda note: control.note(f"{where}: {note}"))
    check_rows(len(examples), where)
    dev, dev_table = list[Example](), None
    if data.dev or data.dev_source or data.dev_target:
        dev_table = table_of(data, dev=True)
        _, dev = read_examples(task, dev_table, Skipped(), control)
        dev = normalized(dev, normalization.renewed(), dev_table.name, control.log)
    task = task.fit_labels(examples, recipe.task.labels)
    if note := task.label_note():
        control.note(f"{where}: {note}")
    examples = checked(task, examples, data.on_bad_row, control.log)
    if dev_table is None:
        check_rows(len(examples), where)
        train, held = _held_out(task, examples, data)
        places = [examples[number].where for number in held]
        return task, Dataset(examples, train, held, hashes, places, columns)
    dev = checked(task, dev, data.on_bad_row, control.log)
    check_rows(len(examples), where)
    if not dev:
        raise UserError(f"{dev_table.name}: there are no rows")
    if note := task.swap_note(dev, dev_table.name):
        control.note(f"{note}")
    count = len(examples)
    hashes["dev"] = dev_table.hash()
    return task, Dataset([*examples, *dev], range(count), range(count, count + len(dev)), hashes, columns=columns)


def _held_out(task: Task, examples: Sequence[Example], data: TableSection) -> tuple[list[int], list[int]]:
    """Numbers of the examples to learn from, and of those held out."""
    groups = task.groups(examples)
    if task.whole_groups:
        return split_whole(groups, data.holdout, data.split)
    train, held = split(groups, data.holdout, data.split)
    learned = {examples[number].texts for number in train}  # a row that is there twice must not be on both sides
    twice = {number for number in held if examples[number].texts in learned}
    if len(twice) == len(held):
        return train, held
    return sorted({*train, *twice}), [number for number in held if number not in twice]


def normalized(examples: list[Example], normalization: Normalization, where: str, log: Log) -> list[Example]:
    """The examples with their targets in one form, and a note where they had another."""
    examples = [normalization(example) for example in examples]
    if note := normalization.note():
        log(f"weft: note: {where}: {note}")
    return examples


def announce_long(examples: Sequence[Example], framing: Framing, log: Log) -> None:
    """A note on each of the first texts that will take long."""
    how = framing.stride, framing.cutting
    notes = [note for example in examples if (note := long_note(example.texts, example.where, *how))]
    for note in [*notes[:3], *([f"and {len(notes) - 3:,} more such texts"] if len(notes) > 3 else [])]:
        log(f"weft: note: {note}")


def checked(task: Task, examples: list[Example], on_bad_row: str, log: Log) -> list[Example]:
    """The examples without a target, or with one that the task knows; others stop in one error, or are counted."""
    skipped, problems, kept = Skipped(), Problems(), list[Example]()
    with suppress(UserError):  # most often all is well
        task.check_targets([example for example in examples if task.has_target(example)])
        return examples
    for example in examples:
        try:
            if task.has_target(example):
                task.check_targets([example])
            kept.append(example)
        except UserError as error:
            if on_bad_row == "stop":
                problems.add(error)
            else:
                skipped.add(str(error))
    problems.check()
    log_notes(skipped.lines(), log)
    return kept
