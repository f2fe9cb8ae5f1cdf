"""Rows that several models are asked about: with their right answers where a file has them, without them where not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from weft.data.cells import text_in
from weft.data.columns import find_columns
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
class Asked:
    """The examples of some files, one at a time."""

    examples: Iterable[Example]
    where: str
    hash: str
    skipped: Skipped
    normalization: Normalization


def named(given: Paths | None) -> tuple[str, ...]:
    """One path or several, as words."""
    several = [given] if isinstance(given, str | os.PathLike) else list(given or ())
    return tuple(os.fspath(each) for each in several)


def asked_of(
    task: Task | None,
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
) -> Asked:
    """The rows of a task, or, where there is none (vectors, language models), texts."""
    sources, targets, told = named(source), named(target), columns or {}
    if bool(sources or targets) == (data is not None):
        raise UserError("rows come from a table or from files of lines: give --data, or --source and --target")
    parallel = task is not None and task.parallel
    if (sources or targets) and not parallel:
        raise UserError("only models that write have a source and a target: give --data")
    files: Table
    if targets:
        files = Table.parallel(sources, targets, on_bad_row, encoding)
    elif sources:  # lines of which nobody says what is right
        files = Table(sources, {"source": "text"}, "txt", None, (), on_bad_row, encoding)
    else:
        files = Table(data, told, format, delimiter, tuple(names), on_bad_row, encoding, "test")
        first = next(files.records(Skipped()), None)
        # The columns of the training data may be called otherwise here.
        known = {ours: theirs for ours, theirs in card_columns.items() if first and theirs in first.values}
        known |= {"source": "text"} if parallel and first and set(first.values) == {"text"} else {}
        files = replace(files, columns={**known, **told})
    where = files.name
    skipped, normalization = Skipped(), Normalization() if task is None else task.normalization()
    return Asked(_read(task, files, told, where, skipped, normalization), where, files.hash(), skipped, normalization)


def _read(
    task: Task | None,
    files: Table,
    told: Mapping[str, str],
    where: str,
    skipped: Skipped,
    normalization: Normalization,
) -> Iterator[Example]:
    """Every row as an example; a bad one stops, or is passed over and counted."""

    def begin(record: Record) -> tuple[Mapping[str, str], Callable[[Record], Example]]:
        columns, read = _reader(task, record, files.columns, told, where, skipped.note)

        def checked(record: Record) -> Example:
            example = read(record)
            if task is not None and task.has_target(example):
                task.check_format(example)
            return normalization(example)

        return columns, checked

    yield from read_table(files, begin, skipped)
    log_notes(skipped.without_bad().lines(), to_logger)


def _reader(
    task: Task | None,
    record: Record,
    columns: Mapping[str, str],
    told: Mapping[str, str],
    where: str,
    note: Callable[[str], None],
) -> tuple[Mapping[str, str], Callable[[Record], Example]]:
    """How a row of a file that begins with this one becomes an example."""
    if task is None:
        found = find_columns(("text",), columns, record, note)
        return found, lambda row: Example((text_in(row, found["text"]),), None, row.where)
    reader = Reader.of(task, record, columns, note)
    lost = [name for name in told if name not in {*reader.inputs, *reader.columns}]
    if lost:
        raise UserError(f"{where}: no column {shown(told[lost[0]])!r}, which --column says is {lost[0]}")
    return reader.inputs, reader.read
