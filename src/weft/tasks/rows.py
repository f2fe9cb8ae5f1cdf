"""The table that models are evaluated and compared on: rows, or parallel files of source and target."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from weft.data.parts import ReadOptions
from weft.data.tables import Table
from weft.errors import UserError
from weft.tasks.base import Task
from weft.text.row_problems import Skipped

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def named(paths: Paths | None) -> tuple[str, ...]:
    """One path or several, as strings."""
    several = [paths] if isinstance(paths, str | os.PathLike) else list(paths or ())
    return tuple(os.fspath(path) for path in several)


def table_for(
    task: Task,
    card_columns: Mapping[str, str],
    data: Any,
    source: Paths,
    target: Paths,
    columns: Mapping[str, str] | None,
    reading: Mapping[str, Any],
    targets: bool = True,
) -> Table:
    """The rows of `data`, or of `source` and `target`, read with these options of `Table`.

    `card_columns` are the names of columns in the training data, which count where this data has them too. `targets`:
    they are needed, so lines of sources alone will not do.
    """
    sources, target_files = named(source), named(target)
    if bool(sources or target_files) == (data is not None):
        raise UserError("rows come from a table or from files of lines: give --data, or --source and --target")
    if (sources or target_files) and not task.parallel:
        raise UserError("only models that generate from a text have a source and a target: give --data")
    options = ReadOptions(**reading)
    if sources and not target_files and not targets:
        return Table(sources, {"source": "text"}, "txt", on_bad_row=options.on_bad_row, encoding=options.encoding)
    if data is None:
        return Table.parallel(sources, target_files, options.on_bad_row, options.encoding)
    table = Table(data, columns or {}, **vars(options), split="test")
    first = next(table.records(Skipped()), None)
    values = {} if first is None else first.values
    known = {ours: theirs for ours, theirs in card_columns.items() if theirs in values}
    if task.parallel and not targets and set(values) == {"text"}:
        known["source"] = "text"
    return replace(table, columns={**known, **(columns or {})})
