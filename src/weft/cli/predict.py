"""`weft predict`, `translate`, `summarize`, `rewrite`, `describe`: answers and texts for texts, vectors or rows."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from weft.cli.inputs import (
    as_they_come,
    check_models,
    check_no_data_file,
    check_rows,
    chunked,
    from_input,
    is_model,
    load_model,
    models_and_texts,
    print_json,
    table_of,
)
from weft.cli.options import GENERATION, READING, TABLE, Flags, Folder, Given, Jsonl, Runtime, TableOptions
from weft.cli.show import one_line, progress
from weft.errors import UserError, escaped

if TYPE_CHECKING:
    from weft.data.tables import Table
    from weft.tasks.evaluate import Row
    from weft.tasks.model import Model


BREAKS = re.compile(r"[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]+")
PredictionFile = Annotated[
    Path | None,
    Option(
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
        Argument(
            metavar="[MODEL]... [TEXT]...",
            help="Further models of an ensemble; then texts, two for a pair. Default: lines of standard input.",
        ),
    ] = None,
    out: PredictionFile = None,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace an --out that is already there.")] = False,
    jsonl: Annotated[bool, Option("--jsonl", help="Print one JSON object per text, with the row's id.")] = False,
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
        from weft.data.table_writer import check_table

        if not data:
            raise UserError("--out is for the rows of a table: give --data FILE too")
        if jsonl:
            raise UserError("--jsonl prints and --out writes a file: give one of them")
        check_table(out, None, overwrite)
    check_rows(rows, data)
    online = runtime.get("online", False)
    check_models((folder, *folders), online)
    predictions = Predictions([load_model(name, **runtime) for name in (folder, *folders)], jsonl)
    model = predictions.model
    if not model.task_object.prediction_columns:
        raise UserError(f"{folder}: is made for {model.task}; weft finetune makes a model that predicts")
    table = table_of(data or (), rows, on_bad_row="keep", split="test")
    if not data:
        predictions.print(_given(model, texts))
    elif out is None:
        predictions.print_table(table)
    else:
        predictions.write(table, out, overwrite, (folder, *folders), online)
    predictions.note()


class Predictions:
    """Predictions of a model, or of an ensemble, for a screen or a file; and how much was read for them."""

    def __init__(self, models: Sequence[Model], jsonl: bool) -> None:
        from weft.text.rows import Skipped

        self.model, *self.others = models
        self.jsonl, self.skipped = jsonl, Skipped()
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
            print(f"weft: note: {rows} no prediction; the first: {self.skipped.first[0]}", file=sys.stderr)
        if self.windows <= self.read and not self.truncated:
            return
        window = self.model.card.window
        length = "" if window is None else f" of at most {window.length} tokens"
        read = f"{self.read:,} text{'s' * (self.read != 1)} in {self.windows:,} window{'s' * (self.windows != 1)}"
        note = f"{self.truncated:,} of the texts truncated" if self.truncated else "none truncated"
        print(f"[{read}{length}; {note}]", file=sys.stderr)

    def write(self, data: Table, out: Path, overwrite: bool, folders: Sequence[str], online: bool) -> None:
        """The table with its predictions; an interrupted run leaves a partial file that the same command continues."""
        from weft.data.table_writer import PartialTable, check_table
        from weft.tasks.model import predict_table, source_of

        check_table(out, self.model.task, overwrite)
        with (
            closing(PartialTable(out, source_of(folders, data, online), overwrite)) as table,
            progress("predicting", "rows") as tick,
        ):
            if table.count:
                print(f"weft: note: {table.path} has {table.count:,} rows already; continuing", file=sys.stderr)
            before = table.count

            def on_chunk(chunk: Sequence[tuple[Row, Any]]) -> None:
                self.count(chunk)
                tick(len(chunk))

            try:
                named = predict_table(self.model, data, table, self.skipped, self.others, on_chunk)
            except KeyboardInterrupt:
                print(f"weft: {table.count:,} rows are in {table.path}; the same command continues", file=sys.stderr)
                raise
            self.read += before
        for name, free in named.items():
            if name != free:
                print(f"weft: note: the data has a column {name!r}: the new one is {free!r}", file=sys.stderr)
        print(f"{out}: {table.count:,} row{'s' * (table.count != 1)}", file=sys.stderr)

    def print_table(self, data: Table) -> None:
        from weft.tasks.evaluate import rows_of

        self.print(chunked(rows_of(self.model, data, self.skipped), 256))

    def print(self, chunks: Iterable[list[Row]]) -> None:
        """Every answer on its line, in the order of the rows; nothing waits for the next rows."""
        from weft.tasks.model import answered

        human = sys.stdout is not None and sys.stdout.isatty()
        with progress("reading", "texts") as tick:
            for rows in chunks:
                chunk = answered(self.model, rows, self.others)
                self.count(chunk)
                tick(len(chunk))
                for row, answer in chunk:
                    if self.jsonl:
                        print(json.dumps(_object(row, answer), ensure_ascii=False, default=str))
                    else:
                        print(_layout(row, answer) if human else _tabbed(self.model, row, answer))
                sys.stdout.flush()


def _given(model: Model, texts: list[str] | None) -> Iterator[list[Row]]:
    """Texts, or pairs of them, from the command line, or from standard input as they come."""
    from weft.tasks.evaluate import Row

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


CHUNK = 128  # inputs that are read, and answered, at a time
BEAM = ("beam_size", "n", "length_penalty", "max_tokens")
ModelsAndTexts = Annotated[
    list[str] | None,
    Argument(
        metavar="[MODEL]... [TEXT]...",
        help="Further models of an ensemble; then texts. Default: one text per line of standard input.",
    ),
]


def translate(
    folder: Folder,
    options: Annotated[Given, Flags(GENERATION, only=(*BEAM, "coverage", "alignments"))],
    runtime: Runtime,
    texts: ModelsAndTexts = None,
    prefix: Annotated[str | None, Option(help="Text before each source. Default: as in training.")] = None,
    picture: Annotated[Path | None, Option(help="Draw the alignments into this .html or .svg file.")] = None,
    out: Annotated[
        Path | None, Option(help="Write sources and targets to this .tsv or .jsonl file, for weft finetune.")
    ] = None,
    reverse: Annotated[
        bool, Option("--reverse", help="Swap source and target in --out, for back-translation.")
    ] = False,
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
    folders, lines = models_and_texts(texts)
    model, *others = [_text_model(name, runtime) for name in (folder, *folders)]
    n, shows = options.get("n", 1), bool(options.get("alignments"))
    options = {**options, "prefix": prefix, "alignments": shows or picture is not None, "others": others}
    drawn: list[Any] = []

    def row(text: str, way: Any) -> tuple[Any, ...]:
        return (way.text, text) if reverse else (text, way.text)

    def show(number: int, text: str, answer: Any) -> None:
        if answer.n_windows > 1:
            print(f"[text {number} was read in {answer.n_windows} pieces]", file=sys.stderr)
        if picture is not None and len(drawn) < 50:
            drawn.append(answer)
        if out is None:
            _print(number, text, answer, n, shows, jsonl)

    source = from_input(lines)
    whole, columns = bool(lines) and lines != ["-"], ("source", "target", "score")
    count = _answer_all(model, source, whole, lambda _: options, out, columns, row, show)
    if out is not None:
        print(f"{out}: {count:,} texts, {n} way{'s' * (n != 1)} each", file=sys.stderr)
    if picture is not None:
        _draw(picture, drawn)


def _as_translate(verb: str) -> Callable[..., None]:
    """`weft translate` under the name of another task."""

    @wraps(translate)
    def run(**options: Any) -> None:
        translate(**options)

    run.__name__, run.__doc__ = (
        verb,
        f"""{verb.capitalize()} texts with a fine-tuned model, one line for each.

    The same as weft translate. A text that is longer than the context is read in pieces.

    Example: weft {verb} runs/{verb} < texts.txt
    """,
    )
    return run


summarize, rewrite = _as_translate("summarize"), _as_translate("rewrite")


def describe(
    folder: Folder,
    options: Annotated[Given, Flags(GENERATION, only=(*BEAM, "temperature", "top_p", "seed"))],
    table: Annotated[Given, Flags(TABLE, only=("files", *READING, "on_bad_row"))],
    runtime: Runtime,
    vectors: Annotated[
        list[str] | None,
        Argument(
            metavar="[MODEL]... [VECTOR]...",
            help='Further models of an ensemble; then vectors such as "0.5 -1.2 3". Default: lines of standard input.',
        ),
    ] = None,
    out: Annotated[Path | None, Option(help="Write vectors and texts to this .jsonl or .tsv file.")] = None,
    jsonl: Jsonl = False,
) -> None:
    """Write a text from each vector, such as a caption from the features of an image.

    A vector is a JSON list, or numbers with spaces between; --data reads the column vector of a table. Beam search with
    3 hypotheses by default, unless --temperature or --top-p is given.

    Example: weft describe runs/captions --data vectors.jsonl --beam-size 3
    """
    given = list(vectors or [])
    count = next((place for place, name in enumerate(given) if not is_model(name)), len(given))
    folders, given = given[:count], given[count:]
    data = table.pop("files", None)
    if given and data:
        raise UserError("give vectors or --data, not both")
    _check_out(out)
    check_rows(table, data)
    n, seed = options.get("n", 1), options.pop("seed", 0)
    if n < 1:
        raise UserError(f"--n must be 1 or more, not {n}")
    model, *others = [load_model(name, **runtime) for name in (folder, *folders)]
    family = model.opened.family
    if not family.numbers:
        raise UserError(f"{folder}: {family.name} does not write from vectors; weft finetune --task describe does")
    model.task = "describe"

    def row(vector: list[float], way: Any) -> tuple[Any, ...]:
        return [float(f"{value:.9g}") for value in vector], way.text  # all that single precision holds

    def show(number: int, vector: list[float], answer: Any) -> None:
        if jsonl and out is None:
            print_json(answer, input=vector)
        elif out is None:
            for way in answer.best if n > 1 else [answer]:
                print(f"{number}\t{way.score:.4f}\t{one_line(way.text)}" if n > 1 else one_line(way.text))

    source = _table_vectors(model, data, table) if data else _given_vectors(model, given)
    keywords = {**options, "others": others}
    whole, columns = bool(data) or given not in ([], ["-"]), ("vector", "text", "score")
    count = _answer_all(model, source, whole, lambda seen: {**keywords, "seed": seed + seen}, out, columns, row, show)
    if out is not None:
        print(f"{out}: {count:,} vectors, {n} text{'s' * (n != 1)} each", file=sys.stderr)


def _answer_all(
    model: Model,
    source: Iterable[Any],
    whole: bool,
    options: Callable[[int], Given],
    out: Path | None,
    columns: tuple[str, ...],
    row: Callable[[Any, Any], tuple[Any, ...]],
    show: Callable[[int, Any, Any], None],
) -> int:
    """Answer every input, in chunks when they are `whole`, else as they come; how many there were."""
    seen = unfinished = 0
    with ExitStack() as stack:
        put = None if out is None else stack.enter_context(_rows(out, columns))
        tick = stack.enter_context(progress("generating", "texts"))
        for chunk in chunked(source, CHUNK) if whole else as_they_come(source, CHUNK):
            answers: list[Any] = model(chunk, **options(seen))
            tick(len(chunk))
            for number, (given, answer) in enumerate(zip(chunk, answers, strict=True), seen + 1):
                unfinished += answer.finish_reason != "end"
                for way in answer.best or [answer] if put is not None else ():
                    put(row(given, way), way.score)  # type: ignore[misc]
                show(number, given, answer)
            seen += len(chunk)
            sys.stdout.flush()
    if unfinished:
        print(f"[{unfinished:,} of {seen:,} texts did not end and were stopped; see --max-tokens]", file=sys.stderr)
    return seen


def _check_out(out: Path | None) -> None:
    if out is not None and out.suffix not in (".tsv", ".jsonl"):
        raise UserError(f"{out}: rows are written as .tsv or .jsonl")


def _text_model(folder: str, runtime: Given) -> Model:
    """A model that writes one text from another; a published one whose card has no task is taken for one."""
    model = load_model(folder, **runtime)
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
        print_json(answer, input=text)
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
def _rows(out: Path, columns: tuple[str, ...]) -> Iterator[Callable[[tuple[Any, ...], float], None]]:
    """A table of examples, whole or not at all; empty texts are left out, since nothing can be learned from them."""
    from weft.files import whole_file

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
    from weft.files import write_text
    from weft.picture import heat_map, page

    maps = [
        heat_map(one_line(answer.text)[:200], answer.target_tokens, answer.source_tokens, answer.alignments)
        for answer in answers
        if answer.alignments
    ]
    if not maps:
        raise UserError("there are no alignments to draw: nothing was written")
    if picture.suffix == ".svg" and len(maps) > 1:
        raise UserError(f"{picture}: {len(maps)} texts do not go into one .svg; write them as .html")
    write_text(picture, maps[0] if picture.suffix == ".svg" else page("Alignments", maps))


def _given_vectors(model: Any, given: list[str]) -> Iterator[list[float]]:
    """Vectors from the command line or from standard input."""
    from weft.tasks.complete import numbers_of

    for number, text in enumerate(from_input(given), 1):
        where = f"vector {number}" if given and given != ["-"] else f"standard input line {number}"
        yield numbers_of(text, where, model.config.features)


def _table_vectors(model: Any, data: list[str], table: Given) -> Iterator[list[float]]:
    """The vectors of a table; its columns are called as in the training data, as --column says, or as usual."""
    from weft.data.tables import examples_of
    from weft.progress import log_notes, to_stderr
    from weft.tasks.base import Example
    from weft.tasks.complete import vector_in
    from weft.text.records import Record
    from weft.text.rows import Skipped

    files, skipped = table_of(data, table, split="test"), Skipped()
    first = next(files.records(Skipped()), None)
    if not files.columns and first is not None and model.card.columns.get("vector") in first.values:
        files = replace(files, columns={"vector": model.card.columns["vector"]})

    def read(record: Record, columns: Any) -> Example:
        return Example((), vector_in(record, columns["vector"], model.config.features).tolist(), record.where)

    for example in examples_of(files, ("vector",), read, skipped):
        yield example.target
    log_notes(skipped.lines(), to_stderr)
