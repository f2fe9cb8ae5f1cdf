"""What a model is asked, without what is right: the text columns of a table, row by row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from weft.errors import UserError, shown
from weft.tasks.describe import vector_in
from weft.tasks.reading import NAMES, Files, file_of, find_columns, paired_columns, value_in
from weft.tasks.recipes import FROM_TEXT
from weft.tasks.tag import words_of
from weft.tasks.understand import wants_two
from weft.text.records import Record, Skipped


@dataclass(frozen=True)
class Row:
    """A row of a table, and what a model reads of it; `problem` says why that cannot be answered."""

    values: dict[str, Any]
    input: Any
    problem: str | None = None


@dataclass
class Unanswered(Skipped):
    """Rows without an answer; those that the reader could not read wait for their turn, so that each keeps its line."""

    waiting: list[str] = field(default_factory=list)

    def add(self, message: str) -> None:
        super().add(message)
        self.waiting.append(message)

    def rows(self) -> Iterator[Row]:
        """The rows that could not be read since the last call."""
        while self.waiting:
            yield Row({}, None, self.waiting.pop(0))

    def row(self, values: dict[str, Any], given: Any, problem: str) -> Row:
        super().add(problem)
        return Row(values, given, problem)


def rows_of(model: Any, files: Files, unanswered: Unanswered) -> Iterator[Row]:
    """Every row of a table; its columns are called as in the training data, as `files` says, or as usual."""
    found: dict[str, str] = {}
    before: str | None = None
    for record in files.records(unanswered):
        yield from unanswered.rows()
        if (file := file_of(record.where)) != before:
            found, before = _columns(model, files.columns, record), file
        try:
            given = _input(model.task, record, found)
        except UserError as error:
            if files.on_bad_row == "stop":
                raise
            yield unanswered.row(record.values, None, str(error))
            continue
        empty = next((name for name, text in _texts(found, given) if not text.strip()), None)
        if empty is None:
            yield Row(record.values, given)
        else:
            yield unanswered.row(record.values, given, f"{record.where}: column {shown(empty)!r} is empty")
    yield from unanswered.rows()


def inputs_of(model: Any, columns: Mapping[str, str], data: tuple[str, ...]) -> Iterator[Any]:
    """What a model reads of each row of a table that holds anything."""
    return (row.input for row in rows_of(model, Files(data, columns), Unanswered()) if row.problem is None)


def _columns(model: Any, columns: Mapping[str, str], record: Record) -> dict[str, str]:
    """What a file calls the columns that a model reads."""
    usual = {"answer": ("question", "context"), "describe": ("vector",)}
    known = {ours: theirs for ours, theirs in model.card.columns.items() if theirs in record.values} | dict(columns)
    if model.task == "tag" and ("words" in known or any(name in record.values for name in NAMES["words"])):
        return find_columns(("words",), known, record)
    if model.task in FROM_TEXT and "text" not in columns:
        both = paired_columns(list(record.values))
        known = ({"source": both[0]} if both else {}) | known
        if "source" in known or "source" in record.values:
            return find_columns(("source",), known, record)
    return find_columns(usual.get(model.task, ("text", "pair")[: 1 + wants_two(model.task)]), known, record)


def _input(task: str, record: Record, found: Mapping[str, str]) -> Any:
    """One row as its task takes it."""
    if "words" in found:
        return words_of(record, found["words"])
    if "vector" in found:
        return vector_in(record, found["vector"]).tolist()
    values = [value_in(record, column) for column in found.values()]
    texts = tuple("" if value is None else str(value) for value in values)
    return texts if wants_two(task) else texts[0]


def _texts(found: Mapping[str, str], given: Any) -> Iterator[tuple[str, str]]:
    """Each column that is read with its text; a list of words is one text, numbers are never empty."""
    if "vector" in found:
        return iter(())
    texts = given if isinstance(given, tuple) else (" ".join(given) if isinstance(given, list) else given,)
    return zip(found.values(), texts, strict=True)
