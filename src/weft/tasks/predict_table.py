"""Predictions for the rows of a table: the columns that each kind of answer adds, and tables that can be resumed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from weft.checkpoint.locate import find_folder
from weft.data.table_writer import PartialTable
from weft.data.tables import Table
from weft.tasks import answers
from weft.tasks.inputs import Row, rows_of
from weft.tasks.model import HEADS, Model
from weft.tasks.registry import WRITES
from weft.text.paths import digest_of
from weft.text.row_problems import Skipped
from weft.version import VERSION

CHUNK = 256  # rows that are read, and answered, at a time
LABEL = ("prediction", "probability")
# The columns that predictions of a task add to a table.
COLUMNS: dict[str, tuple[str, ...]] = {
    "classify": LABEL,
    "pair": LABEL,
    "multilabel": ("prediction", "probabilities"),
    "regress": ("prediction",),
    "tag": ("prediction",),
    "answer": (*LABEL, "start", "end"),
    "embed": ("vector",),
    **dict.fromkeys(WRITES, ("prediction",)),
}
assert set(HEADS) <= set(COLUMNS)


def columns_of(answer: Any) -> dict[str, Any]:
    """What an answer adds to its row, as plain values."""
    match answer:
        case answers.Label():
            return {"prediction": answer.label, "probability": _rounded(answer.score)}
        case answers.Labels():
            probabilities = {label: _rounded(score) for label, score in answer.scores.items()}
            return {"prediction": list(answer.labels), "probabilities": probabilities}
        case answers.Value():
            return {"prediction": float(f"{answer.value:.7g}")}  # all that single precision holds
        case answers.Reply():
            place = (answer.start, answer.end) if answer.text else (None, None)
            return dict(zip(COLUMNS["answer"], (answer.text, _rounded(answer.score), *place), strict=True))
        case answers.Spans():
            return {"prediction": [_span(span) for span in spans_of(answer)]}
        case answers.Vector():
            return {"vector": [float(f"{value:.9g}") for value in answer.values]}
    return {"prediction": answer.text}


def spans_of(answer: answers.Spans) -> Sequence[answers.Span]:
    """Entities; of a model whose tags mark no spans (parts of speech), every word."""
    entities = answer.spans or all(word.label == "O" for word in answer.words)
    return answer.spans if entities else answer.words


def _span(span: answers.Span) -> dict[str, Any]:
    values = {"start": span.start, "end": span.end, "label": span.label, "text": span.text}
    return {**values, "probability": _rounded(span.score)}


def _rounded(probability: float) -> float:
    return round(probability, 6)


def answered(model: Model, rows: Iterable[Row], others: Sequence[Model] = ()) -> list[tuple[Row, Any]]:
    """Some rows with their answers; None for a row that has none."""
    rows = list(rows)
    inputs = [row.input for row in rows if row.problem is None]
    options = {"others": others} if others else {}
    found = iter(model(inputs, **options) if inputs else [])
    return [(row, next(found) if row.problem is None else None) for row in rows]


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
    empty = dict.fromkeys(COLUMNS[model.task])
    rows: Iterator[Row] = islice(rows_of(model, data, skipped), table.count, None)
    while some := list(islice(rows, CHUNK)):
        chunk = answered(model, some, others)
        table.add((row.values, empty if answer is None else columns_of(answer)) for row, answer in chunk)
        on_chunk(chunk)
    return table.finish()
