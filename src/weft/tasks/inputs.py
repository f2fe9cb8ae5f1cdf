"""What a model is asked, without what is right: the text columns of a table, row by row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from weft.data.cells import value_in
from weft.data.columns import NAMES, file_of, find_columns, paired_columns
from weft.data.reading import LONG, long_note
from weft.data.tables import Table
from weft.errors import UserError, shown
from weft.progress import log_notes, to_logger
from weft.tasks.describe import vector_in
from weft.tasks.forward import framing_for
from weft.tasks.registry import FROM_TEXT
from weft.tasks.tag import words_of
from weft.tasks.understand import wants_two
from weft.text.long_texts import check_length
from weft.text.records import Record
from weft.text.row_problems import Skipped


@dataclass(frozen=True)
class Row:
    """A row of a table, and what a model reads of it; `problem` says why that cannot be answered."""

    values: dict[str, Any]
    input: Any
    problem: str | None = None


def rows_of(model: Any, table: Table, skipped: Skipped) -> Iterator[Row]:
    """Every row of a table.

    With `on_bad_row="keep"` a row that cannot be read keeps its place; it is counted as skipped, as an empty one is.
    """
    for record, found in _with_columns(model, table, skipped):
        row = _row(model, record, found, table.on_bad_row == "stop")
        if row.problem is not None:
            skipped.add(row.problem)
        yield row


def input_of_each(model: Any, table: Table) -> Iterator[Any]:
    """One input for each row; an empty cell is asked about like an empty line of standard input."""
    return (_input(model, record, found) for record, found in _with_columns(model, table, Skipped()))


def inputs_of(model: Any, columns: Mapping[str, str], data: Any, *how: Any) -> Iterator[Any]:
    """What a model reads of each row of a table that holds anything.

    `how`: format, delimiter, names of columns, what to do about a bad row and encoding, as of `Table`.
    """
    return (row.input for row in rows_of(model, Table(data, columns, *how), Skipped()) if row.problem is None)


def _with_columns(model: Any, table: Table, skipped: Skipped) -> Iterator[tuple[Record, dict[str, str]]]:
    """Each record with its columns: called as in the training data, as `table` says, or as usual."""
    found: dict[str, str] = {}
    before: str | None = None
    likely: Mapping[str, str] = {}
    noted = set[str]()
    for record in table.records(skipped):
        likely = record.likely or likely
        if record.problem is None and (file := file_of(record.where, before or "")) != before:
            found, before = _columns(model, table.columns, replace(record, likely=likely), skipped), file
            log_notes(Skipped(notes={note: None for note in skipped.notes if note not in noted}).lines(), to_logger)
            noted.update(skipped.notes)
        yield record, found


def _columns(model: Any, columns: Mapping[str, str], record: Record, skipped: Skipped) -> dict[str, str]:
    """What a file calls the columns that a model reads."""
    usual = {"answer": ("question", "context"), "describe": ("vector",)}
    known = {ours: theirs for ours, theirs in model.card.columns.items() if theirs in record.values} | dict(columns)
    if model.task == "tag" and ("words" in known or any(name in record.values for name in NAMES["words"])):
        return find_columns(("words",), known, record, skipped.note)
    if model.task in FROM_TEXT and "text" not in columns:
        both = paired_columns(list(record.values))
        known = ({"source": both[0]} if both else {}) | known
        if "source" in known or "source" in record.values:
            return find_columns(("source",), known, record, skipped.note)
    needed = usual.get(model.task, ("text", "pair")[: 1 + wants_two(model.task)])
    return find_columns(needed, known, record, skipped.note)


def _row(model: Any, record: Record, found: Mapping[str, str], stop: bool) -> Row:
    """One row as its task takes it, or why it cannot."""
    if record.problem is not None:
        return Row({}, None, record.problem)
    try:
        given = _input(model, record, found)
    except UserError as error:
        if stop:
            raise
        return Row(record.values, None, str(error))
    empty = next((name for name, text in _texts(found, given) if not text.strip()), None)
    return Row(record.values, given, None if empty is None else f"{record.where}: column {shown(empty)!r} is empty")


def _input(model: Any, record: Record, found: Mapping[str, str]) -> Any:
    """What a model reads of one row."""
    if "words" in found:
        return words_of(record, found["words"])
    if "vector" in found:
        return vector_in(record, found["vector"]).tolist()
    values = [value_in(record, column) for column in found.values()]
    for column, value in zip(found.values(), values, strict=True):
        if isinstance(value, dict | list):
            raise UserError(f"{record.where}: column {shown(column)!r} holds a {type(value).__name__}, not text")
    texts = tuple("" if value is None else str(value) for value in values)
    for column, text in zip(found.values(), texts, strict=True):
        check_length(text, f"{record.where}: column {shown(column)!r}")
    if max(map(len, texts)) > LONG:
        framing = framing_for(model.opened)
        to_logger(f"weft: note: {long_note(texts, record.where, framing.stride, framing.cutting)}")
    return texts if wants_two(model.task) else texts[0]


def _texts(found: Mapping[str, str], given: Any) -> Iterator[tuple[str, str]]:
    """Each column that is read with its text; a list of words is one text, numbers are never empty."""
    if "vector" in found:
        return iter(())
    texts = given if isinstance(given, tuple) else (" ".join(given) if isinstance(given, list) else given,)
    return zip(found.values(), texts, strict=True)
