"""Rows on which models are compared: with their targets where a file has them, without where not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Unpack

from weft.data.tables import Table, read_table
from weft.errors import UserError, shown
from weft.progress import log_notes, to_logger
from weft.tasks.base import Example, Normalization, Task
from weft.tasks.inputs import Reader
from weft.tasks.rows import RowOptions, table_for
from weft.text.records import Record
from weft.text.row_problems import Skipped


@dataclass(frozen=True)
class ComparedRows:
    """The examples of some files, one at a time."""

    examples: Iterable[Example]
    where: str
    hash: str
    skipped: Skipped
    normalization: Normalization


def rows_of(
    task: Task, card_columns: Mapping[str, str], data: Any = None, **options: Unpack[RowOptions]
) -> ComparedRows:
    """The rows of files as a task reads them, with or without targets."""
    files = table_for(task, card_columns, data, options, targets=False)
    skipped, normalization = Skipped(), task.normalization()
    examples = _read(task, files, options.get("columns") or {}, skipped, normalization)
    return ComparedRows(examples, files.name, files.hash(), skipped, normalization)


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
