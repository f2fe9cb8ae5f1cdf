"""The table that models are evaluated and compared on: rows, or parallel files of source and target."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypedDict

from weft.checkpoint.folder import LoadedModel
from weft.data.columns import file_of
from weft.data.dataset import LONG, long_note
from weft.data.tables import Table, is_frame, unboxed
from weft.errors import UserError, listed, shown
from weft.progress import Log, log_notes, to_logger
from weft.tasks.base import Example, Task
from weft.tasks.forward import framing_for
from weft.text.records import Record
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


class Asked(Protocol):
    """What has to be known of a model to ask it."""

    opened: LoadedModel

    @property
    def task_object(self) -> Task: ...


def inputs_in_call(model: Asked, given: Any, columns: Mapping[str, str] | None = None) -> tuple[list[Any], bool]:
    """The inputs of one call, and whether it is one input rather than several."""
    task, given = model.task_object, unboxed(given)
    if isinstance(given, Mapping):
        cells = all(value is None or isinstance(value, str | bool | int | float) for value in given.values())
        one = cells or task.is_row(given)  # rather than columns
        return list(input_of_each(model, Table([given] if one else given, columns or {}))), one
    if is_frame(given):
        return list(input_of_each(model, Table(given, columns or {}))), False
    if task.is_input(given):
        return [given], True
    if given is None or isinstance(given, bytes | bytearray | memoryview) or not isinstance(given, Iterable):
        raise UserError(f"a model for {task.name} is asked about {task.expected}; not about {kind_of(given)}")
    several = list(given)
    if several and all(isinstance(item, Mapping) for item in several):
        return list(input_of_each(model, Table(several, columns or {}))), False
    for number, item in enumerate(several, 1):
        task.check_item(number, item)
    return several, False


def kind_of(given: Any) -> str:
    """What a user gave, in a few words."""
    if given is None or isinstance(given, bool | int | float):
        return repr(given)
    return f"{type(given).__name__} {shown(repr(given), 40)}" if isinstance(given, bytes) else type(given).__name__


# ------------------------------------------------------------------------------------------------------ rows of tables


@dataclass(frozen=True)
class Row:
    """A row of a table, and what a model reads of it; `problem` says why that cannot be answered."""

    values: dict[str, Any]
    input: Any
    problem: str | None = None


def rows_of(model: Asked, table: Table, skipped: Skipped) -> Iterator[Row]:
    """Every row of a table; with `on_bad_row="keep"` one that cannot be read keeps its place, counted as skipped."""
    for record, columns in _with_columns(model, table, skipped):
        row = _row(model, record, columns, table.on_bad_row == "stop")
        if row.problem is not None:
            skipped.add(row.problem)
        yield row


def input_of_each(model: Asked, table: Table) -> Iterator[Any]:
    """One input for each row; an empty cell is asked about like an empty line of standard input."""
    return (_input(model, record, columns) for record, columns in _with_columns(model, table, Skipped()))


def _with_columns(model: Asked, table: Table, skipped: Skipped) -> Iterator[tuple[Record, dict[str, str]]]:
    """Each record with its columns: called as in the training data, as `table` says, or as usual."""
    columns: dict[str, str] = {}
    before: str | None = None
    likely: Mapping[str, str] = {}
    noted = set[str]()
    task = model.task_object
    for record in table.records(skipped):
        likely = record.likely or likely
        if record.problem is None and (file := file_of(record.where, before or "")) != before:
            known = {ours: theirs for ours, theirs in model.opened.card.columns.items() if theirs in record.values}
            given = known | dict(table.columns)
            columns, before = task.find_inputs(replace(record, likely=likely), given, skipped.note), file
            log_notes(Skipped(notes={note: None for note in skipped.notes if note not in noted}).lines(), to_logger)
            noted.update(skipped.notes)
        yield record, columns


def _row(model: Asked, record: Record, columns: Mapping[str, str], stop: bool) -> Row:
    """One row as its task takes it, or why it cannot."""
    if record.problem is not None:
        return Row({}, None, record.problem)
    try:
        value = _input(model, record, columns)
    except UserError as error:
        if stop:
            raise
        return Row(record.values, None, str(error))
    texts = model.task_object.texts_of(value)
    empty = next((name for name, text in zip(columns.values(), texts, strict=False) if not text.strip()), None)
    return Row(record.values, value, None if empty is None else f"{record.where}: column {shown(empty)!r} is empty")


def _input(model: Asked, record: Record, columns: Mapping[str, str]) -> Any:
    """What a model reads of one row; a long text is announced."""
    task = model.task_object
    value = task.row_input(record, columns)
    texts = task.texts_of(value)
    if max(map(len, texts), default=0) > LONG:
        framing = framing_for(model.opened)
        to_logger(f"weft: note: {long_note(texts, record.where, framing.stride, framing.cutting)}")
    return value


# -------------------------------------------------------------------------------------- rows with or without targets


@dataclass(frozen=True)
class Reader:
    """How the rows of one file are read: those with a target as the task reads them, the others without."""

    task: Task
    inputs: dict[str, str]  # columns that a model reads: what the task calls each, and what the file calls it
    columns: dict[str, str]  # the same with those of targets; empty where the file has none

    @classmethod
    def of(cls, task: Task, record: Record, given: Mapping[str, str], note: Log = lambda text: None) -> Reader:
        """By the columns that a file has."""
        names = task.input_columns(record, given)
        there = {name.casefold() for name in record.values}
        if names == ("text",) and not given and "text" not in there and {"context", "question"} <= there:
            raise UserError(  # a question is a text too, but hardly the one that is meant
                f"{file_of(record.where)}: has context and question, as rows of the task answer have; the teacher's "
                f"task is {task.name}: say which of its columns is the text: --column text=NAME"
            )
        try:
            return cls(*task.partial_columns(record, given, note))
        except UserError as error:
            raise UserError(f"{error} (the teacher's task is {task.name}: its rows have {listed(names)})") from None

    def read(self, record: Record) -> Example:
        cells = [record.values.get(theirs) for ours, theirs in self.columns.items() if ours not in self.inputs]
        empty = [value is None or (value == "" and not self.task.empty_targets) for value in cells]
        untagged = "tags" in self.columns and cells == [[]]  # a file of words alone, as CoNLL has them
        if not cells or untagged or any(empty):
            return self.task.read_input(record, self.inputs)
        return self.task.read(record, self.columns)
