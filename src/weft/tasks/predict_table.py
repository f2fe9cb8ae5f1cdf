"""Predictions for the rows of a table, in a file that an interrupted run continues."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from weft.checkpoint.locate import find_folder
from weft.data.table_writer import PartialTable
from weft.data.tables import Table
from weft.tasks.inputs import Row, rows_of
from weft.tasks.model import Model
from weft.text.paths import digest_of
from weft.text.row_problems import Skipped
from weft.version import VERSION

CHUNK = 256  # rows that are read, and answered, at a time


def answered(model: Model, rows: Iterable[Row], others: Sequence[Model] = ()) -> list[tuple[Row, Any]]:
    """Some rows with their answers; None for a row that has none."""
    rows = list(rows)
    inputs = [row.input for row in rows if row.problem is None]
    options = {"others": others} if others else {}
    answers = iter(model(inputs, **options) if inputs else [])
    return [(row, next(answers) if row.problem is None else None) for row in rows]


def source_of(folders: Sequence[str], data: Table, online: bool = False) -> dict[str, str]:
    """What predictions depend on, for a partial table to be continued: models, data and version."""
    models = hashlib.sha256()
    for name in folders:
        folder = find_folder(name, online)
        paths = [path for path in folder.rglob("*") if "run" not in path.relative_to(folder).parts and path.is_file()]
        for path in sorted(paths):
            models.update(json.dumps(str(path.relative_to(folder))).encode() + digest_of(path))
    return {"model": models.hexdigest(), "data": data.hash(), "version": VERSION}


def predict_table(
    model: Model,
    data: Table,
    table: PartialTable,
    skipped: Skipped,
    others: Sequence[Model] = (),
    on_chunk: Callable[[Sequence[tuple[Row, Any]]], None] = lambda chunk: None,
) -> dict[str, str]:
    """Write all rows with their predictions, after those that the partial table has; names of the added columns."""
    empty = dict.fromkeys(model.task_object.prediction_columns)
    rows: Iterator[Row] = islice(rows_of(model, data, skipped), table.count, None)
    while some := list(islice(rows, CHUNK)):
        chunk = answered(model, some, others)
        table.add((row.values, empty if answer is None else answer.columns()) for row, answer in chunk)
        on_chunk(chunk)
    return table.finish()
