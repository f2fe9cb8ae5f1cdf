"""The table that models are evaluated and compared on: rows, or parallel files of source and target."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypedDict

from weft.data.tables import Table
from weft.errors import UserError
from weft.tasks.base import Task
from weft.text.row_problems import Skipped

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def named(paths: Paths | None) -> tuple[str, ...]:
    """One path or several, as strings."""
    several = [paths] if isinstance(paths, str | os.PathLike) else list(paths or ())
    return tuple(os.fspath(path) for path in several)


class RowOptions(TypedDict, total=False):
    """Where rows come from beside `data`, and how files are read."""

    source: Paths  # of a model that generates: files of lines, and those with their targets
    target: Paths
    columns: Mapping[str, str] | None  # the names of columns in the file, by what the task calls them
    format: str | None
    delimiter: str | None
    encoding: str | None
    names: Sequence[str]  # of the columns of a file without a header line
    on_bad_row: str


def table_of(data: Any, options: RowOptions) -> Table:
    """The files of `data`, or its rows, read as the options say."""
    reading: dict[str, Any] = {key: value for key, value in options.items() if key not in ("source", "target")}
    return Table(data, reading.pop("columns", None) or {}, **reading, split="test")


def table_for(
    task: Task, card_columns: Mapping[str, str], data: Any, options: RowOptions, targets: bool = True
) -> Table:
    """The rows of `data`, or of the source and target files among the options.

    `card_columns` are the names of columns in the training data, which count where this data has them too. `targets`:
    they are needed, so lines of sources alone will not do.
    """
    sources, target_files = named(options.get("source")), named(options.get("target"))
    if bool(sources or target_files) == (data is not None):
        raise UserError("rows come from a table or from files of lines: give --data, or --source and --target")
    if (sources or target_files) and not task.parallel:
        raise UserError("only models that generate from a text have a source and a target: give --data")
    table = table_of(sources if data is None else data, options)
    if data is None and (target_files or targets):
        return Table.parallel(sources, target_files, table.on_bad_row, table.encoding)
    if data is None:
        return Table(sources, {"source": "text"}, "txt", on_bad_row=table.on_bad_row, encoding=table.encoding)
    first = next(table.records(Skipped()), None)
    values = {} if first is None else first.values
    known = {ours: theirs for ours, theirs in card_columns.items() if theirs in values}
    if task.parallel and not targets and set(values) == {"text"}:
        known["source"] = "text"
    return replace(table, columns={**known, **table.columns})
