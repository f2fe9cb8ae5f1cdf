"""`weft predict`: labels, values, entities, answers or texts for texts, lines of standard input, or rows of a table."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.batches import as_they_come, chunked
from weft.cli.checks import check_no_data_file, check_rows, find_model, table_of
from weft.cli.inputs import from_input, load_model, models_and_texts
from weft.cli.options import Folder, Runtime, TableOptions
from weft.cli.show import one_line, progress
from weft.errors import UserError

if TYPE_CHECKING:
    from weft.data.tables import Table
    from weft.tasks.model import Model
    from weft.tasks.rows import Row

BREAKS = re.compile(r"[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]+")
PredictionFile = Annotated[
    Path | None,
    typer.Option(
        help="With --data: write the table with its predictions to this .csv, .tsv, .jsonl or .parquet file; "
        "for answers also the official SQuAD .json. An interrupted run continues."
    ),
]


def predict(
    folder: Folder,
    rows: TableOptions,
    runtime: Runtime,
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL]... [TEXT]...",
            help="Further models of an ensemble; then texts, two for a pair. Default: lines of standard input.",
        ),
    ] = None,
    out: PredictionFile = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an --out that is already there.")] = False,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="Print one JSON object per text, with the row's id.")] = False,
) -> None:
    """Predict labels, values, entities, answers or texts with a fine-tuned model.

    On standard input the two texts of a pair, or a question and its context, stand on one line with a tab between.
    Lines are answered as they come. In a pipe or file the output is tab-separated: prediction, probability, text.

    Example: weft predict runs/reviews "a gripping film"

    Example: weft predict runs/reviews --data new.csv --out predictions.csv
    """
    check_no_data_file(folder, texts)
    folders, texts = models_and_texts(texts)
    data = rows.pop("files", None)
    if texts and data:
        raise UserError("give texts or --data, not both")
    if overwrite and out is None:
        raise UserError("--overwrite is for --out: give --out FILE too")
    if out is not None:
        _check_out(out, overwrite, data, jsonl)
    check_rows(rows, data)
    for name in (folder, *folders):
        find_model(name, runtime.get("online", False))
    model, *others = [load_model(name, **runtime) for name in (folder, *folders)]
    if not model.task_object.prediction_columns:
        raise UserError(f"{folder}: is made for {model.task}; weft finetune makes a model that predicts")
    counts = _Counts()
    if not data:
        _print(model, others, _given(model, texts), counts, jsonl)
    else:
        _predict_table(
            model,
            others,
            table_of(data, rows, on_bad_row="keep", split="test"),
            counts,
            jsonl,
            out=out,
            overwrite=overwrite,
            folders=(folder, *folders),
            online=runtime.get("online", False),
        )
    counts.note(model)


def _predict_table(
    model: Model, others: Sequence[Model], rows: Table, counts: _Counts, jsonl: bool, *, out: Path | None, **more: Any
) -> None:
    """The rows of a table, to a file or to the screen; those without a prediction are counted."""
    from weft.tasks.rows import rows_of
    from weft.text.row_problems import Skipped

    skipped = Skipped()
    if out is not None:
        _write(model, others, rows, out, counts, skipped, **more)
    else:
        _print(model, others, chunked(rows_of(model, rows, skipped), 256), counts, jsonl)
    if skipped.count:
        print(f"weft: note: {_unanswered(skipped, counts.read)}", file=sys.stderr)


def _check_out(out: Path, overwrite: bool, data: list[str] | None, jsonl: bool) -> None:
    from weft.data.table_writer import check_table

    if not data:
        raise UserError("--out is for the rows of a table: give --data FILE too")
    if jsonl:
        raise UserError("--jsonl prints and --out writes a file: give one of them")
    check_table(out, None, overwrite)


def _unanswered(skipped: Any, rows: int) -> str:
    """How many rows have no prediction, and why the first of them has none."""
    has = "has" if skipped.count == 1 else "have"
    return f"{skipped.count:,} of {rows:,} rows {has} no prediction; the first: {skipped.first[0]}"


class _Counts:
    """How much was read, for the line at the end."""

    def __init__(self) -> None:
        self.read = self.windows = self.truncated = 0

    def add(self, chunk: Iterable[tuple[Row, Any]]) -> None:
        for _, answer in chunk:
            self.read += 1
            if answer is not None:
                self.windows, self.truncated = self.windows + answer.n_windows, self.truncated + answer.truncated

    def note(self, model: Model) -> None:
        """A line where texts were longer than a window."""
        if self.windows <= self.read and not self.truncated:
            return
        length = "" if model.card.window is None else f" of at most {model.card.window.length} tokens"
        read = f"{self.read:,} text{'s' * (self.read != 1)} in {self.windows:,} window{'s' * (self.windows != 1)}"
        note = f"{self.truncated:,} of the texts truncated" if self.truncated else "none truncated"
        print(f"[{read}{length}; {note}]", file=sys.stderr)


# ------------------------------------------------------------------------------------------------------- to a file


def _write(
    model: Model,
    others: Sequence[Model],
    data: Table,
    out: Path,
    counts: _Counts,
    skipped: Any,
    *,
    overwrite: bool,
    folders: Sequence[str],
    online: bool,
) -> None:
    """The table with its predictions; an interrupted run leaves a partial file that the same command continues."""
    from weft.data.table_writer import PartialTable, check_table
    from weft.tasks.model import predict_table, source_of

    check_table(out, model.task, overwrite)
    with (
        closing(PartialTable(out, source_of(folders, data, online), overwrite)) as table,
        progress("predicting", "rows") as tick,
    ):
        if table.count:
            print(f"weft: note: {table.path} has {table.count:,} rows already; continuing", file=sys.stderr)
        before = table.count

        def on_chunk(chunk: Sequence[tuple[Row, Any]]) -> None:
            counts.add(chunk)
            tick(len(chunk))

        try:
            named = predict_table(model, data, table, skipped, others, on_chunk)
        except KeyboardInterrupt:
            print(f"weft: {table.count:,} rows are in {table.path}; the same command continues", file=sys.stderr)
            raise
        counts.read += before
    for name, free in named.items():
        if name != free:
            print(f"weft: note: the data has a column {name!r}: the new one is {free!r}", file=sys.stderr)
    print(f"{out}: {table.count:,} row{'s' * (table.count != 1)}", file=sys.stderr)


# ------------------------------------------------------------------------------------------------------- to a screen


def _given(model: Model, texts: list[str] | None) -> Iterator[list[Row]]:
    """Texts, or pairs of them, from the command line, or from standard input as they come."""
    from weft.tasks.rows import Row

    task = model.task_object
    given = _pairs(texts, task.pair_order) if task.pair else from_input(texts)
    rows = (Row({}, text) for text in given)
    return chunked(rows, 256) if texts and texts != ["-"] else as_they_come(rows, 256)


def _pairs(texts: list[str] | None, what: str) -> Iterator[tuple[str, str]]:
    if texts and texts != ["-"]:
        if len(texts) % 2:
            were = "1 was" if len(texts) == 1 else f"{len(texts)} were"
            raise UserError(f"this model takes texts two by two; {were} given, where it wants {what}")
        yield from zip(texts[::2], texts[1::2], strict=True)
        return
    for number, line in enumerate(from_input(texts), 1):
        first, tab, second = line.partition("\t")
        if not tab:
            raise UserError(f"standard input line {number}: no tab between two texts: {what}")
        yield first, second


def _print(model: Model, others: Sequence[Model], chunks: Iterable[list[Row]], counts: _Counts, jsonl: bool) -> None:
    """Every answer on its line, in the order of the rows; nothing waits for the next rows."""
    from weft.tasks.model import answered

    human = sys.stdout is not None and sys.stdout.isatty()
    with progress("reading", "texts") as tick:
        for rows in chunks:
            chunk = answered(model, rows, others)
            counts.add(chunk)
            tick(len(chunk))
            for row, answer in chunk:
                if jsonl:
                    print(json.dumps(_object(row, answer), ensure_ascii=False, default=str))
                else:
                    print(_layout(row, answer) if human else _tabbed(model, row, answer))
            sys.stdout.flush()


def _object(row: Row, answer: Any) -> dict[str, Any]:
    """One answer as JSON; a row's id comes first."""
    from weft.data.table_writer import id_of

    name = id_of(row.values)
    about = {"input": row.input} if name is None else {"id": name, "input": row.input}
    return {**about, **({"error": row.problem} if answer is None else asdict(answer))}


def _tabbed(model: Model, row: Row, answer: Any) -> str:
    """One answer for a program: the columns that --out adds, then the text; of a model that writes its text alone."""
    from weft.data.table_writer import cell

    task = model.task_object
    added = dict.fromkeys(task.prediction_columns) if answer is None else answer.columns()
    unread = [""] * (1 + task.pair)  # as many cells as the other lines have
    texts = [] if task.writes else unread if row.input is None else _inputs(row)
    return "\t".join(BREAKS.sub(" ", text) for text in (*map(cell, added.values()), *texts))


def _inputs(row: Row) -> list[str]:
    """What a row asks: one text, or two; a list of words is one."""
    if isinstance(row.input, tuple):
        return list(row.input)
    return [row.input if isinstance(row.input, str) else " ".join(map(str, row.input or ()))]


def _layout(row: Row, answer: Any) -> str:
    """One answer for people."""
    text = one_line(" | ".join(_inputs(row)))
    text = text if len(text) <= 100 else text[:97] + "..."
    match type(answer).__name__:
        case "NoneType":
            return f"(no prediction)  {text}"
        case "Label":
            return f"{answer.label}  {answer.score:.4f}  {text}"
        case "Labels":
            labels = ", ".join(f"{label} {answer.scores[label]:.4f}" for label in answer.labels)
            return f"{labels or '(none)'}  {text}"
        case "Translation" | "Text":
            return one_line(answer.text)
        case "Value":
            return f"{answer.value:.4f}  {text}"
        case "Reply":
            return f"{one_line(answer.text) or '(no answer)'}  {answer.score:.4f}  {text}"
        case "Vector":
            return f"{json.dumps([round(value, 4) for value in answer.values])}  {text}"
    spans = answer.tagged
    if spans is answer.words:
        return " ".join(f"{word.text}/{word.label}" for word in answer.words)
    lines = [f"  {s.label}  {s.score:.4f}  {s.start}-{s.end}  {s.text}" for s in spans]
    return "\n".join([text, *(lines or ["  (none)"])])
