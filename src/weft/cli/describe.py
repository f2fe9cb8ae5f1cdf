"""`weft describe`: a text written from each vector, such as captions from the features of images."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from weft.cli.batches import as_they_come, chunked
from weft.cli.checks import check_reading
from weft.cli.models import Online, Trust
from weft.cli.sequences import is_model
from weft.cli.show import progress
from weft.cli.tasks import Columns, Delimiter, Encoding, Format, Names, OnBadRow, columns_of
from weft.cli.words import Device, Folder, Jsonl, from_input, opened
from weft.errors import UserError

CHUNK = 256  # vectors that are read, and answered, at a time
Put = Callable[[list[float], Any], None]


def describe(
    folder: Folder,
    vectors: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL]... [VECTOR]...",
            help='Further models that write together with the first; then vectors such as "0.5 -1.2 3"; '
            "else one per line of standard input.",
        ),
    ] = None,
    data: Annotated[list[str] | None, typer.Option(help="Rows of a table instead: its column vector is read.")] = None,
    column: Columns = None,
    names: Names = None,
    format: Format = None,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    on_bad_row: OnBadRow = None,
    beam: Annotated[int | None, typer.Option(help="Beginnings that are followed at a time; 3, unless drawn.")] = None,
    n_best: Annotated[int, typer.Option(help="So many texts for each: number, score and text.")] = 1,
    length_penalty: Annotated[float | None, typer.Option(help="Above 1 favors long texts, below 1 short ones.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Draw the words: 1 by the model's own chances.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw among the fewest that together have this chance.")] = None,
    seed: Annotated[int, typer.Option(help="Vector n draws from seed + n.")] = 0,
    tokens: Annotated[
        int | None, typer.Option(help="Tokens of a text at most; twice the longest learned from.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write vectors and texts here, .jsonl or .tsv.")] = None,
    jsonl: Jsonl = False,
    device: Device = None,
    online: Online = False,
    trust: Trust = False,
) -> None:
    """Write a text from each vector, as the model has learned it.

    Texts come line for line. Vectors are lists as JSON has them, or numbers with spaces between.

    Example: weft describe runs/captions --data vectors.jsonl --beam 3
    """
    given = list(vectors or [])
    count = next((place for place, name in enumerate(given) if not is_model(name)), len(given))
    folders, given = given[:count], given[count:]
    if given and data:
        raise UserError("vectors or --data: give one of them")
    if out is not None and out.suffix not in (".tsv", ".jsonl"):
        raise UserError(f"{out}: rows are written as .tsv or .jsonl")
    check_reading(format, columns_of(column), data)
    if n_best < 1:
        raise UserError(f"--n-best must be 1 or more, not {n_best}")
    model, *others = [opened(name, None, device, online, trust) for name in (folder, *folders)]
    if not model.opened.family.numbers:
        raise UserError(
            f"{folder}: {model.opened.family.name} does not write from vectors; "
            "weft finetune --task describe makes such a model"
        )
    model.task = "describe"
    how = (
        columns_of(column),
        format,
        delimiter,
        encoding,
        tuple(name.strip() for name in (names or "").split(",") if name.strip()),
        on_bad_row or "stop",
    )
    source = _rows(model, tuple(data), *how) if data else _lines(model, given)
    options: dict[str, Any] = {"temperature": temperature, "top_p": top_p, "length_penalty": length_penalty}
    if n_best > 1 and beam is None and temperature is None and top_p is None:
        beam = max(3, n_best)
    broken = seen = 0
    with ExitStack() as stack:
        written = None if out is None else stack.enter_context(_table(out))
        ticked = stack.enter_context(progress("writing", "texts"))
        for some in chunked(source, CHUNK) if data or given not in ([], ["-"]) else as_they_come(source, CHUNK):
            drawn = {"seed": seed + seen, "n": n_best, "max_tokens": tokens, "beam_size": beam}
            answers: list[Any] = model(some, others=others, **drawn, **options)
            ticked(len(some))
            for number, (vector, answer) in enumerate(zip(some, answers, strict=True), seen + 1):
                broken += answer.finish_reason != "end"
                if written is not None:
                    for way in answer.best or [answer]:
                        written(vector, way)
                elif jsonl:
                    print(json.dumps({"input": vector, **asdict(answer)}, ensure_ascii=False))
                elif n_best > 1:
                    for way in answer.best:
                        print(f"{number}\t{way.score:.4f}\t{_line(way.text)}")
                else:
                    print(_line(answer.text))
            seen += len(some)
            sys.stdout.flush()
    if broken:
        print(f"[{broken:,} of {seen:,} texts came to no end and were broken off; see --tokens]", file=sys.stderr)
    if out is not None:
        print(f"{out}: {seen:,} vectors, {n_best} text{'s' * (n_best != 1)} each", file=sys.stderr)


def _line(text: str) -> str:
    return " ".join(text.split())


def _lines(model: Any, given: list[str]) -> Iterator[list[float]]:
    """Vectors from the command line or from standard input."""
    from weft.tasks.vector_inputs import check_length, numbers_of

    for number, text in enumerate(from_input(given), 1):
        where = f"vector {number}" if given and given != ["-"] else f"standard input line {number}"
        vector = numbers_of(text, where)
        check_length(len(vector), model.config.features, where)
        yield vector


def _rows(
    model: Any,
    data: tuple[str, ...],
    columns: dict[str, str],
    format: str | None,
    delimiter: str | None,
    encoding: str | None,
    names: tuple[str, ...],
    on_bad_row: str,
) -> Iterator[list[float]]:
    """The vectors of a table; its columns are called as in the training data, as --column says, or as usual."""
    from weft.data.reading import examples_of
    from weft.data.tables import Table
    from weft.progress import log_notes, to_stderr
    from weft.tasks.base import Example
    from weft.tasks.vector_inputs import check_length, vector_in
    from weft.text.records import Record
    from weft.text.row_problems import Skipped

    files, skipped = Table(data, columns, format, delimiter, names, on_bad_row, encoding, "test"), Skipped()
    first = next(files.records(Skipped()), None)
    if not columns and first is not None and model.card.columns.get("vector") in first.values:
        files = replace(files, columns={"vector": model.card.columns["vector"]})

    def read(record: Record, found: Any) -> Example:
        vector = vector_in(record, found["vector"])
        check_length(len(vector), model.config.features, record.where)
        return Example((), vector.tolist(), record.where)

    for example in examples_of(files, ("vector",), read, skipped):
        yield example.target
    log_notes(skipped.lines(), to_stderr)


@contextmanager
def _table(out: Path) -> Iterator[Put]:
    """A table of vectors and texts, whole or not at all: rows that finetune reads."""
    from weft.files import whole_file

    with whole_file(out) as file:

        def put(vector: list[float], way: Any) -> None:
            if not way.text.strip():
                return
            numbers = [float(f"{number:.9g}") for number in vector]  # all that single precision holds
            if out.suffix == ".tsv":
                line = "\t".join((json.dumps(numbers), _line(way.text), f"{way.score:.4f}"))
            else:
                row = {"vector": numbers, "text": way.text, "score": round(way.score, 4)}
                line = json.dumps(row, ensure_ascii=False)
            file.write((line + "\n").encode())

        if out.suffix == ".tsv":
            file.write(b"vector\ttext\tscore\n")
        yield put
