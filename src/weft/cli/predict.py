"""`weft predict`, `translate`, `summarize`, `rewrite`, `describe`: answers and texts for texts, vectors or rows."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from weft.cli import inputs, late
from weft.cli.forecast import forecast
from weft.cli.inputs import one_line
from weft.cli.options import (
    GENERATION,
    READING,
    TABLE,
    Flags,
    Folder,
    Given,
    Jsonl,
    Runtime,
    TableOptions,
    argument,
    flag,
)
from weft.errors import UserError, escaped, refuse
from weft.files import whole_file, write_text
from weft.progress import live as progress
from weft.progress import log_notes, to_stderr
from weft.version import VERSION

if TYPE_CHECKING:
    from weft.data.tables import Table
    from weft.tasks.evaluate import Row
    from weft.tasks.light import LightModel
    from weft.tasks.model import Model


BREAKS = re.compile(r"[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]+")
PredictionFile = Annotated[
    Path | None,
    flag(
        "With --data: write the table with its predictions to this .csv, .tsv, .jsonl or .parquet file; "
        "for answers also the official SQuAD .json. An interrupted run continues."
    ),
]
Ensemble = "Further models of an ensemble; then {}. Default: lines of standard input."


def predict(
    folder: Folder,
    rows: TableOptions,
    runtime: Runtime,
    texts: Annotated[
        list[str] | None, argument("[MODEL]... [TEXT]...", Ensemble.format("texts, two for a pair"))
    ] = None,
    out: PredictionFile = None,
    overwrite: Annotated[bool, flag("Replace an --out that is already there.", None, "--overwrite")] = False,
    jsonl: Annotated[bool, flag("Print one JSON object per text, with the row's id.", None, "--jsonl")] = False,
) -> None:
    """Predict labels, values, entities, answers or texts with a fine-tuned model.

    On standard input the two texts of a pair, or a question and its context, stand on one line with a tab between.
    Lines are answered as they come. In a pipe or file the output is tab-separated: prediction, probability, text.

    Example: weft predict runs/reviews "a gripping film"
    Example: weft predict runs/reviews --data new.csv --out predictions.csv
    """
    _check_no_data_file(folder, texts)
    folders, texts = inputs.models_and_texts(texts)
    data = rows.pop("files", None)
    refuse(
        (bool(texts and data), "give texts or --data, not both"),
        (overwrite and out is None, "--overwrite is for --out: give --out FILE too"),
        (out is not None and not data, "--out is for the rows of a table: give --data FILE too"),
        (out is not None and jsonl, "--jsonl prints and --out writes a file: give one of them"),
    )
    if out is not None:
        late.table_writer.check_table(out, None, overwrite)
    inputs.check_rows(rows, data)
    folders = [folder, *folders]
    inputs.check_models(*folders, **runtime)
    light = inputs.open_light(folder, **runtime) if len(folders) == 1 else None
    models = [inputs.load_model(name, chosen=True, **runtime) for name in folders] if light is None else [light]
    predictions = Predictions(models, jsonl)
    task = predictions.model.task_object
    if task.reads_tables:
        files = {} if data is None else {"files": data}
        return forecast(folder, {**files, **rows}, runtime, out=out, overwrite=overwrite, jsonl=jsonl)
    if not task.prediction_columns:
        raise UserError(f"{folder}: is made for {task.name}; weft finetune makes a model that predicts")
    table = inputs.table_of(data or (), rows, on_bad_row="keep", split="test")
    if out is not None:
        predictions.write(table, out, overwrite, folders, runtime.get("online", False))
    elif data:
        predictions.print(inputs.chunked(late.evaluate.rows_of(predictions.model, table, predictions.skipped), 256))
    else:
        given = inputs.pairs_of(texts, task.pair_order) if task.pair else inputs.from_input(texts)
        predictions.print(inputs.batches((late.evaluate.Row({}, text) for text in given), 256, inputs.are_given(texts)))
    predictions.note()


def _check_no_data_file(folder: str, texts: Sequence[str] | None) -> None:
    """A file of data where texts are expected was meant as --data."""
    for text in texts or ():
        try:
            path = Path(text[:4096])
            data = len(text) < 4096 and late.sources.format_suffix(path) in late.sources.SUFFIXES and path.is_file()
        except (OSError, ValueError):
            continue
        if data:
            raise UserError(f"{text}: is a file of data, not a text; for its rows: weft predict {folder} --data {text}")


class Predictions:
    """Predictions of a model, or of an ensemble, for a screen or a file; and how much was read for them."""

    def __init__(self, models: Sequence[Model | LightModel], jsonl: bool) -> None:
        self.model, *self.others = models
        self.jsonl, self.skipped = jsonl, late.rows.Skipped()
        self.read = self.windows = self.truncated = 0

    def count(self, chunk: Iterable[tuple[Row, Any]]) -> None:
        for _, answer in chunk:
            self.read += 1
            if answer is not None:
                self.windows, self.truncated = self.windows + answer.n_windows, self.truncated + answer.truncated

    def note(self) -> None:
        """Lines on rows without a prediction, and on texts that were longer than a window."""
        if self.skipped.count:
            rows = f"{self.skipped.count:,} of {self.read:,} rows {'has' if self.skipped.count == 1 else 'have'}"
            to_stderr(f"weft: note: {rows} no prediction; the first: {self.skipped.first[0]}")
        if self.windows > self.read or self.truncated:
            window = self.model.card.window
            length = "" if window is None else f" of at most {window.length} tokens"
            read = f"{self.read:,} text{'s' * (self.read != 1)} in {self.windows:,} window{'s' * (self.windows != 1)}"
            truncated = f"{self.truncated:,} of the texts truncated" if self.truncated else "none truncated"
            to_stderr(f"[{read}{length}; {truncated}]")

    def write(self, data: Table, out: Path, overwrite: bool, folders: Sequence[str], online: bool) -> None:
        """The table with its predictions; an interrupted run leaves a partial file that the same command continues."""
        late.table_writer.check_table(out, self.model.task, overwrite)
        digests = [late.sources.folder_digest(late.locate.find_folder(name, online)) for name in folders]
        source = {"model": " ".join(digests), "data": data.hash(), "version": VERSION}  # what predictions depend on
        table = late.table_writer.PartialTable(out, source, overwrite)
        with closing(table), progress("predicting", "rows") as tick:
            if table.count:
                to_stderr(f"weft: note: {table.path} has {table.count:,} rows already; continuing")
            before, empty = table.count, dict.fromkeys(self.model.task_object.prediction_columns)
            rows = islice(late.evaluate.rows_of(self.model, data, self.skipped), before, None)
            try:
                size, begin = late.evaluate.CHUNK, time.perf_counter()
                while some := list(islice(rows, size)):
                    chunk = late.evaluate.answered(self.model, some, self.others)
                    table.add((row.values, empty if answer is None else answer.columns()) for row, answer in chunk)
                    self.count(chunk)
                    tick(len(chunk))
                    begin, before_it = time.perf_counter(), begin
                    if begin - before_it < inputs.MOMENT:  # more texts of like length go together
                        size = min(2 * size, inputs.LARGEST)
                named = table.finish()
            except KeyboardInterrupt:
                to_stderr(f"weft: {table.count:,} rows are in {table.path}; the same command continues")
                raise
            self.read += before
        for name, free in named.items():
            if name != free:
                to_stderr(f"weft: note: the data has a column {name!r}: the new one is {free!r}")
        to_stderr(f"{out}: {table.count:,} row{'s' * (table.count != 1)}")

    def print(self, chunks: Iterable[list[Row]]) -> None:
        """Every answer on its line, in the order of the rows; nothing waits for the next rows."""
        human = sys.stdout is not None and sys.stdout.isatty()
        layout = self._json if self.jsonl else _line if human else self._tabbed
        with progress("reading", "texts") as tick:
            for rows in chunks:
                chunk = late.evaluate.answered(self.model, rows, self.others)
                self.count(chunk)
                tick(len(chunk))
                print("\n".join([layout(row, answer) for row, answer in chunk]), flush=True)

    def _json(self, row: Row, answer: Any) -> str:
        """One answer as JSON; a row's id comes first."""
        name = late.table_writer.id_of(row.values)
        about = {"input": row.input} if name is None else {"id": name, "input": row.input}
        values = {**about, **({"error": row.problem} if answer is None else asdict(answer))}
        return json.dumps(values, ensure_ascii=False, default=str)

    def _tabbed(self, row: Row, answer: Any) -> str:
        """One answer for a program: the columns that --out adds, then the text; a model that writes: its text alone."""
        task = self.model.task_object
        added = dict.fromkeys(task.prediction_columns) if answer is None else answer.columns()
        unread = [""] * (1 + task.pair)  # as many cells as the other lines have
        texts = [] if task.writes else unread if row.input is None else _inputs(row)
        return "\t".join(BREAKS.sub(" ", text) for text in (*map(late.table_writer.cell, added.values()), *texts))


def _inputs(row: Row) -> list[str]:
    """What a row asks: one text, or two; a list of words is one."""
    if isinstance(row.input, tuple):
        return list(row.input)
    return [row.input if isinstance(row.input, str) else " ".join(map(str, row.input or ()))]


def _line(row: Row, answer: Any) -> str:
    """One answer for people."""
    text = one_line(" | ".join(_inputs(row)))
    text = text if len(text) <= 100 else text[:97] + "..."
    return f"(no prediction)  {text}" if answer is None else answer.line(text)


CHUNK = 128  # inputs that are read, and answered, at a time
BEAM = ("beam_size", "n", "length_penalty", "max_tokens")


def translate(
    folder: Folder,
    options: Annotated[Given, Flags(GENERATION, only=(*BEAM, "coverage", "alignments"))],
    runtime: Runtime,
    texts: Annotated[list[str] | None, argument("[MODEL]... [TEXT]...", Ensemble.format("texts"))] = None,
    prefix: Annotated[str | None, flag("Text before each source. Default: as in training.")] = None,
    picture: Annotated[Path | None, flag("Draw the alignments into this .html or .svg file.")] = None,
    out: Annotated[Path | None, flag("Write sources and targets to this .tsv or .jsonl file, for finetune.")] = None,
    reverse: Annotated[bool, flag("Swap source and target in --out, for back-translation.", None, "--reverse")] = False,
    jsonl: Jsonl = False,
) -> None:
    """Translate texts, one line for each. A model of another task summarizes or rewrites them.

    Beam search with 5 hypotheses by default. --max-tokens: default 3 x source length + 32. A text that is longer than
    the context is read in pieces. With --n, a line has number, score, source and text.

    Example: weft translate runs/en-de "Two dogs play in the snow." --beam-size 5
    """
    if reverse and out is None:
        raise UserError("--reverse is for the rows of a file: give --out FILE too")
    if picture is not None and picture.suffix not in (".html", ".svg"):
        raise UserError(f"{picture}: a picture is written as .html or .svg")
    _check_out(out)
    folders, lines = inputs.models_and_texts(texts)
    model, *others = [_text_model(name, runtime) for name in (folder, *folders)]
    n, shows, count = options.get("n", 1), bool(options.get("alignments")), 0
    options = {**options, "prefix": prefix, "alignments": shows or picture is not None, "others": others}
    drawn: list[Any] = []
    with _rows(out, ("source", "target", "score")) as put:
        for count, text, answer in _written(
            model, inputs.from_input(lines), inputs.are_given(lines), lambda _: options
        ):
            if answer.n_windows > 1:
                to_stderr(f"[text {count} was read in {answer.n_windows} pieces]")
            if picture is not None and len(drawn) < 50:
                drawn.append(answer)
            for hypothesis in answer.best or [answer]:
                put((hypothesis.text, text) if reverse else (text, hypothesis.text), hypothesis.score)
            if out is None:
                _print(count, text, answer, n, shows, jsonl)
    if out is not None:
        to_stderr(f"{out}: {count:,} texts, {n} way{'s' * (n != 1)} each")
    if picture is not None:
        _draw(picture, drawn)


def _as_translate(verb: str) -> Callable[..., None]:
    """`weft translate` under the name of another task."""

    @wraps(translate)
    def run(**options: Any) -> None:
        translate(**options)

    run.__name__ = verb
    run.__doc__ = f"""{verb.capitalize()} texts with a fine-tuned model, one line for each.

    The same as weft translate. A text that is longer than the context is read in pieces.

    Example: weft {verb} runs/{verb} < texts.txt
    """
    return run


summarize, rewrite = _as_translate("summarize"), _as_translate("rewrite")


def describe(
    folder: Folder,
    options: Annotated[Given, Flags(GENERATION, only=(*BEAM, "temperature", "top_p", "seed"))],
    table: Annotated[Given, Flags(TABLE, only=("files", *READING, "on_bad_row"))],
    runtime: Runtime,
    vectors: Annotated[
        list[str] | None, argument("[MODEL]... [VECTOR]...", Ensemble.format('vectors, "0.5 -1 3"'))
    ] = None,
    out: Annotated[Path | None, flag("Write vectors and texts to this .jsonl or .tsv file.")] = None,
    jsonl: Jsonl = False,
) -> None:
    """Write a text from each vector, such as a caption from the features of an image.

    A vector is a JSON list, or numbers with spaces between; --data reads the column vector of a table. Beam search with
    3 hypotheses by default, unless --temperature or --top-p is given.

    Example: weft describe runs/captions --data vectors.jsonl --beam-size 3
    """
    folders, given = inputs.models_and_texts(vectors)
    data = table.pop("files", None)
    n, seed, count = options.get("n", 1), options.pop("seed", 0), 0
    refuse(
        (bool(given and data), "give vectors or --data, not both"),
        (n < 1, f"--n must be 1 or more, not {n}"),
    )
    _check_out(out)
    inputs.check_rows(table, data)
    model, *others = [inputs.load_model(name, **runtime) for name in (folder, *folders)]
    family = model.opened.family
    if not family.numbers:
        raise UserError(f"{folder}: {family.name} does not write from vectors; weft finetune --task describe does")
    model.task = "describe"
    source = _table_vectors(model, data, table) if data else _given_vectors(model, given)
    keywords = {**options, "others": others}
    answers = _written(
        model, source, bool(data) or inputs.are_given(given), lambda seen: {**keywords, "seed": seed + seen}
    )
    with _rows(out, ("vector", "text", "score")) as put:
        for count, vector, answer in answers:
            for hypothesis in answer.best or [answer]:  # the digits that single precision holds
                put(([float(f"{value:.9g}") for value in vector], hypothesis.text), hypothesis.score)
            if jsonl and out is None:
                inputs.print_json(answer, input=vector)
            elif out is None:
                for hypothesis in answer.best if n > 1 else [answer]:
                    number = f"{count}\t{hypothesis.score:.4f}\t" if n > 1 else ""
                    print(number + one_line(hypothesis.text))
    if out is not None:
        to_stderr(f"{out}: {count:,} vectors, {n} text{'s' * (n != 1)} each")


def _written(
    model: Model, source: Iterable[Any], given: bool, options: Callable[[int], Given]
) -> Iterator[tuple[int, Any, Any]]:
    """Every input with its number, from 1, and its answer; in batches when all are `given`, else as they come."""
    seen = unfinished = 0
    with progress("generating", "texts") as tick:
        for batch in inputs.batches(source, CHUNK, given):
            answers: list[Any] = model(batch, **options(seen))
            tick(len(batch))
            for number, (one, answer) in enumerate(zip(batch, answers, strict=True), seen + 1):
                unfinished += answer.finish_reason != "end"
                yield number, one, answer
            seen += len(batch)
            sys.stdout.flush()
    if unfinished:
        to_stderr(f"[{unfinished:,} of {seen:,} texts did not end and were stopped; see --max-tokens]")


def _check_out(out: Path | None) -> None:
    if out is not None and out.suffix not in (".tsv", ".jsonl"):
        raise UserError(f"{out}: rows are written as .tsv or .jsonl")


def _text_model(folder: str, runtime: Given) -> Model:
    """A model that writes one text from another; a published one whose card has no task is taken for one."""
    model = inputs.load_model(folder, chosen=True, **runtime)
    family = model.opened.family
    if family.numbers:
        raise UserError(f"{folder}: writes from vectors, not from texts: weft describe")
    if not (model.task_object.writes and model.task_object.supervised):
        if not family.reads:
            raise UserError(
                f"{folder}: {family.name} does not read one text and write another; weft finetune --task translate does"
            )
        model.task = "translate"
    return model


def _print(number: int, text: str, answer: Any, n: int, alignments: bool, jsonl: bool) -> None:
    if jsonl:
        inputs.print_json(answer, input=text)
        return
    if n > 1:
        for hypothesis in answer.best:
            print(f"{number}\t{hypothesis.score:.4f}\t{one_line(text)}\t{one_line(hypothesis.text)}")
    else:
        print(one_line(answer.text))
    for token, line in zip(answer.target_tokens, answer.alignments or () if alignments else (), strict=False):
        best = max(range(len(line)), key=line.__getitem__)
        print(escaped(f"  {token} <- {answer.source_tokens[best]}  {line[best]:.2f}"))


@contextmanager
def _rows(out: Path | None, columns: tuple[str, ...]) -> Iterator[Callable[[tuple[Any, ...], float], None]]:
    """A table of examples, whole or not at all; empty texts are left out, since nothing can be learned from them."""
    if out is None:
        yield lambda row, score: None
        return
    with whole_file(out) as file:

        def put(row: tuple[Any, ...], score: float) -> None:
            if not all(value.strip() for value in row if isinstance(value, str)):
                return
            if out.suffix == ".jsonl":
                values = dict(zip(columns, (*row, round(score, 4)), strict=True))
                line = json.dumps(values, ensure_ascii=False)
            else:
                cells = (one_line(value) if isinstance(value, str) else json.dumps(value) for value in row)
                line = "\t".join((*cells, f"{score:.4f}"))
            file.write((line + "\n").encode())

        if out.suffix == ".tsv":
            file.write(("\t".join(columns) + "\n").encode())
        yield put


def _draw(picture: Path, answers: list[Any]) -> None:
    """What was written from what, as squares."""
    maps = []
    for a in answers:
        if a.alignments:
            title = one_line(a.text)[:200]
            maps.append(late.picture.heat_map(title, a.target_tokens, a.source_tokens, a.alignments))
    if not maps:
        raise UserError("there are no alignments to draw: nothing was written")
    if picture.suffix == ".svg" and len(maps) > 1:
        raise UserError(f"{picture}: {len(maps)} texts do not go into one .svg; write them as .html")
    write_text(picture, maps[0] if picture.suffix == ".svg" else late.picture.page("Alignments", maps))


def _given_vectors(model: Any, given: list[str]) -> Iterator[list[float]]:
    """Vectors from the command line or from standard input."""
    for number, text in enumerate(inputs.from_input(given), 1):
        where = f"vector {number}" if inputs.are_given(given) else f"standard input line {number}"
        yield late.columns.numbers_of(text, where, model.config.features)


def _table_vectors(model: Any, data: list[str], table: Given) -> Iterator[list[float]]:
    """The vectors of a table; its columns are called as in the training data, as --column says, or as usual."""
    files, skipped = inputs.table_of(data, table, split="test"), late.rows.Skipped()
    first = next(files.records(late.rows.Skipped()), None)
    if not files.columns and first is not None and model.card.columns.get("vector") in first.values:
        files = replace(files, columns={"vector": model.card.columns["vector"]})

    def read(record: late.records.Record, columns: Any) -> late.base.Example:
        vector = late.complete.vector_in(record, columns["vector"], model.config.features)
        return late.base.Example((), vector.tolist(), record.where)

    for example in late.dataset.examples_of(files, ("vector",), read, skipped):
        yield example.target
    log_notes(skipped.lines(), to_stderr)
