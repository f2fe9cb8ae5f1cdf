"""`model.evaluate(data)`: metrics with confidence intervals, tables, the worst mistakes, and a page of them."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from weft.config import build
from weft.data.columns import file_of
from weft.data.dataset import LONG, Unlabeled, begin_with, examples_of, long_note
from weft.data.tables import Table, is_frame, unboxed
from weft.errors import UserError, listed, refuse, shown
from weft.files import MEGABYTE, read_json, write_json, write_text
from weft.metrics.bootstrap import Score, WorstRows
from weft.picture import ChartLine, entries, heading, heat_map, line_chart, page, paragraph
from weft.picture import table as html_table
from weft.progress import Log, ProgressChoice, decimals, log_notes, progress_of, to_logger
from weft.tasks.base import Example, Prediction, Task
from weft.tasks.forward import chunked, framing_for
from weft.tasks.registry import task_for
from weft.text.records import Record
from weft.text.rows import Skipped
from weft.text.windows import Framing

if TYPE_CHECKING:
    from weft.checkpoint.folder import LoadedModel

MAX_EVALUATION = 256 * MEGABYTE  # bytes of evaluation.json
LOOKED_AT = 300  # rows, to see whether the two sides of pairs are swapped
CHUNK = 256  # inputs that are answered, and rows that are read, at a time
MATRIX = 40  # labels; of more, the most frequent confusions are listed instead of drawn
LISTED = 20  # confusions in that list
SHOWN = {"target": "true", "prediction": "predicted", "near": "similarity", "where": "row"}  # what mistakes hold
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
LONGEST = 100_000  # characters of one text on a page; what is longer is truncated, and the page says so


@dataclass(frozen=True)
class Evaluation:
    """What a model reaches on some data."""

    task: str
    data: str
    hash: str
    scores: dict[str, Score]
    by_label: list[dict[str, Any]]
    labels: tuple[str, ...]  # of the confusion matrix
    confusion: list[list[int]]  # how often each label (row) was predicted as each (column)
    worst: list[dict[str, str]]
    examples: int
    n_tokens: int
    n_windows: int
    n_truncated: int
    reading: str
    skipped: int = 0
    signature: str | None = None  # how BLEU was counted, in sacreBLEU's words
    by_length: list[dict[str, Any]] = field(default_factory=list)  # of what was written, by the words of its source
    points: list[list[float]] = field(default_factory=list)  # of values: true and predicted, evenly from all
    by_forecast: list[dict[str, Any]] = field(default_factory=list)  # of series: the model beside simple forecasts
    by_step: list[dict[str, Any]] = field(default_factory=list)  # by how many steps ahead

    def values(self) -> dict[str, Any]:
        """As JSON has it."""
        fields = {name: value for name, value in asdict(self).items() if value not in ([], (), None)}
        return {name: value for name, value in fields.items() if name not in ("reading", "points")}

    def save(self, path: Path) -> None:
        """All of it as one JSON file, which `read` reads; what is not finite is null, and texts have a limit."""

        def storable(value: Any) -> Any:
            if isinstance(value, str):
                return bounded(value).encode("utf-8", "backslashreplace").decode("utf-8")
            return None if isinstance(value, float) and not math.isfinite(value) else value

        write_json(path, _each(asdict(self), storable))

    @classmethod
    def read(cls, path: Path) -> Evaluation:
        """What `save` wrote."""
        values = read_json(path, MAX_EVALUATION)
        for name, empty in (("scores", {}), ("points", [])):  # what was not finite is null
            values[name] = _each(values.get(name, empty), lambda value: math.nan if value is None else value)
        evaluation = build(cls, values, str(path))
        tables = (
            evaluation.by_label,
            evaluation.by_length,
            evaluation.by_forecast,
            evaluation.by_step,
            evaluation.worst,
        )
        whole = all(row.keys() >= rows[0].keys() for rows in tables for row in rows)
        size = len(evaluation.labels)
        square = not evaluation.confusion or [len(line) for line in evaluation.confusion] == [size] * size
        if not (whole and square and all(len(point) == 2 for point in evaluation.points)):
            raise UserError(f"{path}: is not an evaluation: the rows of its tables do not fit each other")
        return evaluation

    def tables(self) -> list[tuple[str, list[str], list[list[str]]]]:
        """Title, header and rows of every table."""
        rows = [[name, *map(figure, (s.value, s.low, s.high))] for name, s in self.scores.items()]
        tables = [("Scores", ["score", "value", "95 % from", "to"], rows)]
        labels = "By type" if self.task == "tag" else "By label"
        parts = {labels: self.by_label, "By words of the source": self.by_length}
        parts |= {"By forecast": self.by_forecast, "By steps ahead": self.by_step}
        tables += [(title, *cells(part)) for title, part in parts.items() if part]
        if 2 <= len(self.labels) <= MATRIX and self.confusion:
            rows = [[name, *(f"{n:,}" for n in line)] for name, line in zip(self.labels, self.confusion, strict=True)]
            tables.append(("True label by row, predicted label by column", ["", *self.labels], rows))
        if self.worst:
            header = list(self.worst[0])
            lines = [[" ".join(row[name].split()) for name in header] for row in self.worst]
            short = [[line if len(line) <= 100 else f"{line[:97]}..." for line in row] for row in lines]
            tables.append(("Worst mistakes", header, short))
        return tables

    def _repr_html_(self) -> str:
        """What a notebook shows: every table but that of mistakes."""
        parts = [paragraph(f"{self.task} on {self.data}: {self.reading}")]
        for title, header, rows in self.tables():
            parts += [heading(title), html_table(header, rows)] if title != "Worst mistakes" else []
        return "".join(parts)

    def write(self, out: Path) -> None:
        """One self-contained page."""
        write_text(out, page(f"{self.task} on {self.data}", evaluation_parts(self)))


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    """A value as JSON has it, with every text and number in it changed."""
    if isinstance(value, dict):
        return {name: _each(item, change) for name, item in value.items()}
    return [_each(item, change) for item in value] if isinstance(value, list | tuple) else change(value)


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
    """The rows of `data`, or of the source and target files; `targets`: sources alone are not enough."""
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
    known = {ours: theirs for ours, theirs in card_columns.items() if theirs in values}  # as in the training data
    if task.parallel and not targets and set(values) == {"text"}:
        known["source"] = "text"
    return replace(table, columns={**known, **table.columns})


def inputs_in_call(
    model: Any, given: Any, columns: Mapping[str, str] | None = None, task: Task | None = None
) -> tuple[list[Any], bool]:
    """The inputs of one call, and whether it is one input rather than several; `task`: of the model, if it is there."""
    task, given = task or model.task_object, unboxed(given)
    rows, one = given, False
    if task.reads_tables and (isinstance(given, Mapping) or is_frame(given) or _are_rows(given)):
        return task.table_inputs(Table(given, columns or {})), False
    if isinstance(given, Mapping):
        cells = all(value is None or isinstance(value, str | bool | int | float) for value in given.values())
        one = cells or task.is_row(given)  # rather than columns
        rows = [given] if one else given
    elif not is_frame(given):
        if task.is_input(given):
            task.check_input("", given)
            return [given], True
        if given is None or isinstance(given, bytes | bytearray | memoryview) or not isinstance(given, Iterable):
            kind = repr(given) if given is None or isinstance(given, bool | int | float) else type(given).__name__
            raise UserError(f"a model for {task.name} is asked about {task.expected}; not about {kind}")
        rows = list(given)
        if not rows or not all(isinstance(item, Mapping) for item in rows):
            task.check_inputs(rows)
            return rows, False
    # An empty cell is asked about like an empty line of standard input.
    records = _with_columns(model, Table(rows, columns or {}), Skipped())
    return [_input(model, record, names) for record, names in records], one


def _are_rows(given: Any) -> bool:
    return isinstance(given, list | tuple) and bool(given) and all(isinstance(item, Mapping) for item in given)


@dataclass(frozen=True)
class Row:
    """A row of a table, and what a model reads of it; `problem` says why that cannot be answered."""

    values: dict[str, Any]
    input: Any
    problem: str | None = None


def answered(model: Any, rows: Iterable[Row], others: Sequence[Any] = ()) -> list[tuple[Row, Any]]:
    """Some rows with their answers; None for a row that has none."""
    rows = list(rows)
    inputs = [row.input for row in rows if row.problem is None]
    answers = iter(model(inputs, others=others) if inputs else [])
    return [(row, next(answers) if row.problem is None else None) for row in rows]


def rows_of(model: Any, table: Table, skipped: Skipped) -> Iterator[Row]:
    """Every row of a table; with `on_bad_row="keep"` one that cannot be read keeps its place, counted as skipped."""
    for record, columns in _with_columns(model, table, skipped):
        values, value, problem = {}, None, record.problem
        if problem is None:
            values = record.values
            try:
                value = _input(model, record, columns)
                named = zip(columns.values(), model.task_object.texts_of(value), strict=False)
                empty = next((name for name, text in named if not text.strip()), None)
                problem = None if empty is None else f"{record.where}: column {shown(empty)!r} is empty"
            except UserError as error:
                if table.on_bad_row == "stop":
                    raise
                problem = str(error)
        if problem is not None:
            skipped.add(problem)
        yield Row(values, value, problem)


def _with_columns(model: Any, table: Table, skipped: Skipped) -> Iterator[tuple[Record, dict[str, str]]]:
    """Each record with its columns: called as in the training data, as `table` says, or as usual."""
    columns, likely, noted = dict[str, str](), dict[str, str](), set[str]()
    before: str | None = None
    for record in table.records(skipped):
        likely = dict(record.likely) or likely
        if record.problem is None and (file := file_of(record.where, before or "")) != before:
            known = {ours: theirs for ours, theirs in model.opened.card.columns.items() if theirs in record.values}
            here, given = replace(record, likely=likely), known | dict(table.columns)
            columns, before = model.task_object.find_inputs(here, given, skipped.note), file
            log_notes(Skipped(notes={note: None for note in skipped.notes if note not in noted}).lines(), to_logger)
            noted.update(skipped.notes)
        yield record, columns


def _input(model: Any, record: Record, columns: Mapping[str, str]) -> Any:
    """What a model reads of one row; a long text is announced."""
    task = model.task_object
    value = task.row_input(record, columns)
    texts = task.texts_of(value)
    if max(map(len, texts), default=0) > LONG:
        framing = framing_for(model.opened)
        to_logger(f"weft: note: {long_note(texts, record.where, framing.stride, framing.cutting)}")
    return value


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
        try:
            return self.task.read(record, self.columns)
        except Unlabeled:
            return self.task.read_input(record, self.inputs)


@dataclass
class ReadCounts:
    """How much was read."""

    unit: str = "tokens"
    examples: int = 0
    n_tokens: int = 0
    n_windows: int = 0
    n_truncated: int = 0
    in_windows: int = 0  # texts that took more than one

    def add(self, prediction: Prediction) -> None:
        self.examples += 1
        self.n_tokens += prediction.n_tokens
        self.n_windows += prediction.n_windows
        self.n_truncated += prediction.truncated
        self.in_windows += prediction.n_windows > 1

    def __str__(self) -> str:
        windows = f"{self.n_windows:,} windows ({self.in_windows:,} took more than one)"
        truncated = f"{self.n_truncated:,} texts were truncated" if self.n_truncated else "nothing was truncated"
        return f"{self.examples:,} examples, {self.n_tokens:,} {self.unit} in {windows}; {truncated}"


@dataclass(frozen=True)
class EvaluationResult:
    """The metrics of a model on some examples."""

    task: Task  # with what was tuned
    scores: dict[str, Score]
    metrics: Any  # whose tables say more
    worst: list[dict[str, str]]
    reading: ReadCounts

    def evaluation(self, data: str, hash: str, skipped: Skipped | None = None) -> Evaluation:
        """The same with all that a page shows."""
        skipped, counts = skipped or Skipped(), {**vars(self.reading)}
        del counts["in_windows"], counts["unit"]
        return Evaluation(
            task=self.task.name,
            data=data,
            hash=hash,
            scores=self.scores,
            worst=self.worst,
            reading=str(self.reading) + (f"; {skipped}" if skipped.count else ""),
            skipped=skipped.count + skipped.empty.count + skipped.unlabeled.count,
            **{"by_label": [], "labels": (), "confusion": [], **counts, **self.task.tables(self.metrics)},
        )


def evaluate_examples(
    task: Task,
    model: LoadedModel,
    framing: Framing,
    examples: Iterable[Example],
    tune: bool = False,
    progress: Callable[[int], None] = lambda more: None,
) -> EvaluationResult:
    """Evaluate a model; with `tune`, thresholds are first chosen on these same examples, which are then all held."""
    reading, worst, metrics = ReadCounts(task.unit), WorstRows(10), None

    def predicted() -> Iterator[tuple[list[Prediction], list[Example]]]:
        for chunk in chunked(examples, lambda example: sum(map(len, example.texts))):
            yield task.predict(model, framing, [task.inputs(example) for example in chunk]), chunk
            progress(len(chunk))

    pairs: Iterable[tuple[list[Prediction], list[Example]]] = predicted()
    if tune and (held := list(pairs)):
        rows = [each for _, some in held for each in some]
        task, predictions = task.blended([each for some, _ in held for each in some], rows)
        task = task.tune(predictions, rows)
        pairs = [(predictions, rows)]
    for predictions, chunk in pairs:
        metrics = metrics or task.metrics()
        task.add(metrics, predictions, chunk)
        for prediction, example in zip(predictions, chunk, strict=True):
            reading.add(prediction)
            if (mistake := task.mistake(prediction, example)) is not None:
                worst.add(*mistake)
    if metrics is None:
        raise UserError("there are no rows to evaluate on")
    return EvaluationResult(task, metrics.result(), metrics, worst.rows(), reading)


def evaluate(
    model: LoadedModel,
    name: str,
    data: Any = None,
    *,
    beam_size: int | None = None,
    others: Sequence[LoadedModel] = (),
    origins: int | None = None,
    log: Log = to_logger,
    progress: ProgressChoice = None,
    **rows: Unpack[RowOptions],
) -> Evaluation:
    """Evaluate a model on the rows of some files, of which only those at hand are held.

    Of models that generate: `source` and `target` are files that belong together line for line; `others` join it.
    Of models that forecast: `origins`, the last points of each series from which a horizon is forecast.
    """
    task: Any = task_for(model, name)
    if origins is not None:
        refuse(
            (not task.reads_tables, f"a model for {name} forecasts no series: origins do not apply"),
            (origins < 1, f"origins must be at least 1, not {origins}"),
        )
        task = replace(task, origins=origins)
    if not task.writes and (rows.get("source") or rows.get("target") or beam_size is not None or others):
        raise UserError(f"a model for {name} generates no text: source, target, beam_size and others do not apply")
    if task.writes:
        task = replace(task, beam_size=task.beam_size if beam_size is None else beam_size, others=tuple(others))
    files = table_for(task, model.card.columns, data, rows)
    where = files.name
    task, needed = task.of_table(files)
    looked = islice(examples_of(replace(files, on_bad_row="skip"), needed, task.read, Skipped()), LOOKED_AT)
    if model.card.profiles and (note := task.swap_note(list(looked), where)):
        warnings.warn(note, stacklevel=2)
    skipped, framing, normalization = Skipped(), framing_for(model), task.normalization()

    def read(record: Record, columns: Mapping[str, str]) -> Example:
        example = task.read(record, columns)
        if note := long_note(example.texts, example.where, framing.stride, framing.cutting):
            log(f"weft: note: {note}")
        task.check_format(example)
        return normalization(example)

    with progress_of(progress)(f"evaluating on {where}", "examples") as count:
        rows_read = task.read_table(files, begin_with(files, needed, read, skipped), skipped)
        examples = task.merge_references(rows_read)
        result = evaluate_examples(task, model, framing, examples, progress=count)
    log_notes(replace(skipped, count=0).lines(), log)
    if note := normalization.note():
        log(f"weft: note: {where}: {note}")
    return result.evaluation(where, files.hash(), skipped)


def evaluation_parts(evaluation: Evaluation) -> list[str]:
    """What a page shows of an evaluation, each part a section."""
    intro = paragraph(f"{evaluation.data}: {evaluation.reading}")
    intro += paragraph(evaluation.signature) if evaluation.signature else ""
    tables = {title: html_table(header, rows) for title, header, rows in evaluation.tables()}
    parts = [heading("Scores") + intro + tables.pop("Scores")]
    if evaluation.points:
        pairs = [(true, predicted) for true, predicted in evaluation.points]
        ends = [(end, end) for end in (min(map(min, pairs)), max(map(max, pairs)))]
        equal = ChartLine("predicted = true", ends, dashed=True, faint=True)
        lines = [ChartLine("rows", pairs, joined=False), equal]
        chart = line_chart("Predicted against true values", lines, "true", "predicted")
        parts.append(heading("Predicted against true") + chart)
    if len(evaluation.labels) >= 2 and evaluation.confusion:
        parts.append(heading("Confusion") + confusion(evaluation.labels, evaluation.confusion))
    parts += [heading(title) + table for title, table in tables.items() if title.startswith("By ")]
    if evaluation.worst:
        parts.append(heading("Worst mistakes") + "".join(map(mistake, evaluation.worst)))
    return parts


def cells(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and cells of rows that are dictionaries of the same keys."""
    return list(rows[0]), [[figure(row[name]) for name in rows[0]] for row in rows]


def figure(value: Any) -> str:
    """A value in few characters: errors of values in the thousands need no four decimals."""
    if isinstance(value, float):
        return f"{value:,.1f}" if 1000 <= abs(value) < 1e9 else decimals(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def confusion(labels: Sequence[str], counts: Sequence[Sequence[int]]) -> str:
    """How often each label was predicted for each: a heat map, shaded by the share of the true label's rows."""
    if len(labels) > MATRIX:
        lines = zip(labels, counts, strict=True)
        places = ((n, right, taken) for right, line in lines for taken, n in zip(labels, line, strict=True))
        pairs = sorted((pair for pair in places if pair[0] and pair[1] != pair[2]), key=lambda pair: -pair[0])
        rows = [[right, predicted, f"{n:,}"] for n, right, predicted in pairs[:LISTED]]
        header = ["true label", "predicted", "rows"]
        return paragraph(f"The most frequent of {len(pairs):,}:") + html_table(header, rows)
    shares = [[n / max(1, sum(line)) for n in line] for line in counts]
    cells = [[f"{n:,}" for n in line] for line in counts]
    return heat_map("True label by row, predicted label by column", labels, labels, shares, cells)


def mistake(row: dict[str, str]) -> str:
    """One mistake with its whole text."""
    return entries({SHOWN.get(name, name): bounded(text) for name, text in row.items()})


def bounded(text: str) -> str:
    """A text of at most LONGEST characters; a longer one is truncated, and says so."""
    rest = len(text) - LONGEST
    return text if rest <= 0 else f"{text[:LONGEST]} … ({rest:,} more characters)"
