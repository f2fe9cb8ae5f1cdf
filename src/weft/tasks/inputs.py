"""What a model is asked, without what is right: the text columns of a table, row by row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from weft.data.columns import NAMES, file_of, find_columns, paired_columns
from weft.data.tables import Table
from weft.tasks.reading import value_in
from weft.tasks.recipes import FROM_TEXT
from weft.tasks.saying import log, tell
from weft.tasks.tag import words_of
from weft.tasks.understand import wants_two
from weft.text.records import Record, Skipped


def inputs_of(model: Any, columns: Mapping[str, str], data: Any, *how: Any) -> Iterator[Any]:
    """The texts of a table; its columns are called as in the training data, as `columns` says, or as usual.

    `how`: format, delimiter, names of columns, what to do about a bad row and encoding, as of `Table`.
    """
    return input_of_each(model, Table(data, columns, *how))


def input_of_each(model: Any, table: Table) -> Iterator[Any]:
    """One input for each row; an empty cell is asked about like an empty line of standard input."""
    found: dict[str, str] = {}
    before: str | None = None
    skipped, noted = Skipped(), set[str]()
    for record in table.records(skipped):
        if (file := file_of(record.where)) != before:
            found, before = _columns(model, table.columns, record, skipped), file
            tell(Skipped(notes={note: None for note in skipped.notes if note not in noted}), log)
            noted.update(skipped.notes)
        yield _input(model.task, record, found)


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
    return find_columns(
        usual.get(model.task, ("text", "pair")[: 1 + wants_two(model.task)]), known, record, skipped.note
    )


def _input(task: str, record: Record, found: Mapping[str, str]) -> Any:
    """One row as its task takes it."""
    if "words" in found:
        return words_of(record, found["words"])
    values = [value_in(record, column) for column in found.values()]
    texts = tuple("" if value is None else str(value) for value in values)
    return texts if wants_two(task) else texts[0]
