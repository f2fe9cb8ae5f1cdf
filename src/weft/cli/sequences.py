"""`weft translate`, `summarize`, `rewrite`, `describe`: a text from another text or from a vector, line for line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.batches import as_they_come, chunked
from weft.cli.checks import check_rows, table_of
from weft.cli.inputs import from_input, is_model, load_model, models_and_texts, print_json
from weft.cli.options import GENERATION, READING, TABLE, Flags, Folder, Given, Jsonl, Runtime
from weft.cli.show import one_line, progress
from weft.errors import UserError, escaped

if TYPE_CHECKING:
    from weft.tasks.model import Model

CHUNK = 128  # inputs that are read, and answered, at a time
BEAM = ("beam_size", "n", "length_penalty", "max_tokens")
ModelsAndTexts = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[MODEL]... [TEXT]...",
        help="Further models of an ensemble; then texts. Default: one text per line of standard input.",
    ),
]


def translate(
    folder: Folder,
    options: Annotated[Given, Flags(GENERATION, only=(*BEAM, "coverage", "alignments"))],
    runtime: Runtime,
    texts: ModelsAndTexts = None,
    prefix: Annotated[str | None, typer.Option(help="Text before each source. Default: as in training.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw the alignments into this .html or .svg file.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write sources and targets to this .tsv or .jsonl file, for weft finetune.")
    ] = None,
    reverse: Annotated[
        bool, typer.Option("--reverse", help="Swap source and target in --out, for back-translation.")
    ] = False,
    jsonl: Jsonl = False,
) -> None:
    """Translate texts, one line for each. A model of another task summarizes or rewrites them.

    Beam search with 5 hypotheses by default; --max-tokens defaults to 3 times the source and 32. A text that is longer
    than the context is read in pieces. With --n, a line has number, score, source and text.

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


def as_translate(verb: str, what: str) -> str:
    """The help of a verb that is `weft translate` under the name of another task."""
    return f"""{what} with a fine-tuned model, one line for each.

    The same as weft translate. A text that is longer than the context is read in pieces.

    Example: weft {verb} runs/{verb} < texts.txt
    """


def describe(
    folder: Folder,
    options: Annotated[Given, Flags(GENERATION, only=(*BEAM, "temperature", "top_p", "seed"))],
    table: Annotated[Given, Flags(TABLE, only=("files", *READING, "on_bad_row"))],
    runtime: Runtime,
    vectors: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL]... [VECTOR]...",
            help='Further models of an ensemble; then vectors such as "0.5 -1.2 3". Default: lines of standard input.',
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write vectors and texts to this .jsonl or .tsv file.")] = None,
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
        for way in answer.best:
            print(f"{number}\t{way.score:.4f}\t{one_line(text)}\t{one_line(way.text)}")
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
    from weft.tasks.complete import check_length, numbers_of

    for number, text in enumerate(from_input(given), 1):
        where = f"vector {number}" if given and given != ["-"] else f"standard input line {number}"
        vector = numbers_of(text, where)
        check_length(len(vector), model.config.features, where)
        yield vector


def _table_vectors(model: Any, data: list[str], table: Given) -> Iterator[list[float]]:
    """The vectors of a table; its columns are called as in the training data, as --column says, or as usual."""
    from weft.data.reading import examples_of
    from weft.progress import log_notes, to_stderr
    from weft.tasks.base import Example
    from weft.tasks.complete import check_length, vector_in
    from weft.text.records import Record
    from weft.text.row_problems import Skipped

    files, skipped = table_of(data, table, split="test"), Skipped()
    first = next(files.records(Skipped()), None)
    if not files.columns and first is not None and model.card.columns.get("vector") in first.values:
        files = replace(files, columns={"vector": model.card.columns["vector"]})

    def read(record: Record, columns: Any) -> Example:
        vector = vector_in(record, columns["vector"])
        check_length(len(vector), model.config.features, record.where)
        return Example((), vector.tolist(), record.where)

    for example in examples_of(files, ("vector",), read, skipped):
        yield example.target
    log_notes(skipped.lines(), to_stderr)
