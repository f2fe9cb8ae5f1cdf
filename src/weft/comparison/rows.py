"""Rows on which models are compared: with their targets where a file has them, without where not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from weft.data.reading import read_table
from weft.data.tables import Table
from weft.errors import UserError, shown
from weft.progress import log_notes, to_logger
from weft.tasks.base import Example, Normalization, Task
from weft.tasks.inputs import Reader
from weft.text.records import Record
from weft.text.row_problems import Skipped

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True)
class ComparedRows:
    """The examples of some files, one at a time."""

    examples: Iterable[Example]
    where: str
    hash: str
    skipped: Skipped
    normalization: Normalization


def named(paths: Paths | None) -> tuple[str, ...]:
    """One path or several, as strings."""
    several = [paths] if isinstance(paths, str | os.PathLike) else list(paths or ())
    return tuple(os.fspath(each) for each in several)


def rows_of(
    task: Task,
    card_columns: Mapping[str, str],
    data: Any = None,
    *,
    source: Paths = (),
    target: Paths = (),
    columns: Mapping[str, str] | None = None,
    format: str | None = None,
    delimiter: str | None = None,
    names: Sequence[str] = (),
    on_bad_row: str = "stop",
    encoding: str | None = None,
) -> ComparedRows:
    """The rows of files as a task reads them, with or without targets."""
    sources, targets, given = named(source), named(target), columns or {}
    if bool(sources or targets) == (data is not None):
        raise UserError("rows come from a table or from files of lines: give --data, or --source and --target")
    from_text = task.parallel
    if (sources or targets) and not from_text:
        raise UserError("only models that generate from a text have a source and a target: give --data")
    if targets:
        files = Table.parallel(sources, targets, on_bad_row, encoding)
    elif sources:  # lines without targets
        files = Table(sources, {"source": "text"}, "txt", None, (), on_bad_row, encoding)
    else:
        files = Table(data, given, format, delimiter, tuple(names), on_bad_row, encoding, "test")
        first = next(files.records(Skipped()), None)
        # The columns of the training data may have other names here.
        known = {ours: theirs for ours, theirs in card_columns.items() if first and theirs in first.values}
        known |= {"source": "text"} if from_text and first and set(first.values) == {"text"} else {}
        files = replace(files, columns={**known, **given})
    skipped, normalization = Skipped(), task.normalization()
    return ComparedRows(
        _read(task, files, given, skipped, normalization), files.name, files.hash(), skipped, normalization
    )


def _read(
    task: Task, files: Table, given: Mapping[str, str], skipped: Skipped, normalization: Normalization
) -> Iterator[Example]:
    """Every row as an example; a bad one stops, or is skipped and counted."""

    def begin(record: Record) -> tuple[Mapping[str, str], Callable[[Record], Example]]:
        reader = Reader.of(task, record, files.columns, skipped.note)
        lost = [name for name in given if name not in {*reader.inputs, *reader.columns}]
        if lost:
            raise UserError(f"{files.name}: no column {shown(given[lost[0]])!r}, which --column says is {lost[0]}")

        def checked(record: Record) -> Example:
            example = reader.read(record)
            if task.has_target(example):
                task.check_format(example)
            return normalization(example)

        return reader.inputs, checked

    yield from read_table(files, begin, skipped)
    log_notes(skipped.without_bad().lines(), to_logger)
