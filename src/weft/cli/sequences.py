"""`weft translate`, `weft summarize`, `weft rewrite`: one text written from another, line for line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.batches import as_they_come, chunked
from weft.cli.models import Online, Trust
from weft.cli.show import progress
from weft.cli.words import Device, Folder, Jsonl, from_input, opened
from weft.errors import UserError, escaped

if TYPE_CHECKING:
    from weft.tasks.model import Model

CHUNK = 128  # lines that are read, and answered, at a time
Rows = Callable[[str, Any], None]


def translate(
    folder: Folder,
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL]... [TEXT]...",
            help="Further models that write together with the first; then texts, or one per line of standard input.",
        ),
    ] = None,
    beam: Annotated[int, typer.Option(help="Beginnings that are followed at a time; 1: always the best word.")] = 5,
    n_best: Annotated[int, typer.Option(help="So many ways to write each: number, score, source and text.")] = 1,
    length_penalty: Annotated[float, typer.Option(help="Above 1 favors long answers, below 1 short ones.")] = 1.0,
    coverage: Annotated[float, typer.Option(help="How much answers are favored that look at all of the text.")] = 0.0,
    tokens: Annotated[int | None, typer.Option(help="Tokens of an answer at most; 3 times those read, and 32.")] = None,
    prefix: Annotated[str | None, typer.Option(help="Put before each text; else what the model was taught.")] = None,
    alignments: Annotated[bool, typer.Option("--alignments", help="Show what each word was written from.")] = False,
    picture: Annotated[Path | None, typer.Option(help="Draw the alignments into this .html or .svg file.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write sources and targets here, .tsv or .jsonl: rows that finetune reads.")
    ] = None,
    reverse: Annotated[
        bool, typer.Option("--reverse", help="There, what was written is the source: for back-translation.")
    ] = False,
    jsonl: Jsonl = False,
    device: Device = None,
    online: Online = False,
    trust: Trust = False,
) -> None:
    """Write each text in other words: translated, summarized, or whatever the model has learned.

    Answers come line for line. A text that is longer than the model can read goes through in pieces. Several model
    folders before the texts write together.

    Example: weft translate runs/en-de "Two dogs play in the snow." --beam 5
    """
    if reverse and out is None:
        raise UserError("--reverse says how rows are written: give --out FILE too")
    if picture is not None and picture.suffix not in (".html", ".svg"):
        raise UserError(f"{picture}: a picture is written as .html or .svg")
    if out is not None and out.suffix not in (".tsv", ".jsonl"):
        raise UserError(f"{out}: rows are written as .tsv or .jsonl")
    folders, lines = parted(texts)
    model, *others = [writing_model(name, device, online, trust) for name in (folder, *folders)]
    seen = broken = 0
    drawn: list[tuple[str, Any]] = []
    with ExitStack() as stack:
        written = None if out is None else stack.enter_context(_rows(out, reverse))
        ticked = stack.enter_context(progress("writing", "texts"))
        source = from_input(lines)
        for some in chunked(source, CHUNK) if lines and lines != ["-"] else as_they_come(source, CHUNK):
            answers: list[Any] = model(
                some, others=others, beam_size=beam, n=n_best, length_penalty=length_penalty, coverage=coverage,
                max_tokens=tokens, prefix=prefix, alignments=alignments or picture is not None,
            )  # fmt: skip
            ticked(len(some))
            for number, (text, answer) in enumerate(zip(some, answers, strict=True), seen + 1):
                broken += answer.finish_reason != "end"
                if answer.n_windows > 1:
                    print(f"[text {number} was read in {answer.n_windows} pieces]", file=sys.stderr)
                if written is not None:
                    for way in answer.best:
                        written(text, way)
                else:
                    _print(number, text, answer, n_best, alignments, jsonl)
                if picture is not None and len(drawn) < 50:
                    drawn.append((text, answer))
            seen += len(some)
            sys.stdout.flush()
    if broken:
        print(f"[{broken:,} of {seen:,} answers came to no end and were broken off; see --tokens]", file=sys.stderr)
    if out is not None:
        print(f"{out}: {seen:,} texts, {n_best} way{'s' * (n_best != 1)} each", file=sys.stderr)
    if picture is not None:
        _draw(picture, drawn)


def as_translate(verb: str, what: str) -> str:
    """The help of a verb that is `weft translate` under the name of another task."""
    return f"""{what}, as the model has learned it: weft translate under another name.

    Answers come line for line. A text that is longer than the model can read goes through in pieces.

    Example: weft {verb} runs/{verb} < texts.txt
    """


def parted(texts: list[str] | None) -> tuple[list[str], list[str]]:
    """Further model folders, and the texts after them."""
    given = list(texts or [])
    count = 0
    while count < len(given) and is_model(given[count]):
        count += 1
    if _is_path(name := "".join(given[count : count + 1])):
        raise UserError(
            f"{name!r} is not a model folder: it has no config.json (a text like this one can come on standard input)"
        )
    return given[:count], given[count:]


def _is_path(name: str) -> bool:
    """Whether a text is rather a slip in the name of a folder: one that is there, or would lie in one that is."""
    if not name.strip("/") or len(name.split()) != 1 or "/" not in name.rstrip("/"):
        return False
    try:
        return Path(name).is_dir() or (len(Path(name).parts) > 2 - (name[0] != "/") and Path(name).parent.is_dir())
    except (OSError, ValueError):
        return False


def is_model(name: str) -> bool:
    try:
        return (Path(name) / "config.json").is_file()
    except (OSError, ValueError):  # a long text is no name
        return False


def writing_model(folder: str, device: str | None, online: bool, trust: bool) -> Model:
    """A model that writes one text from another; a published one that says nothing of a task is taken for one."""
    model = opened(folder, None, device, online, trust)

    if model.opened.family.numbers:
        raise UserError(f"{folder}: writes from vectors, not from texts: weft describe")
    if not (model.task_object.writes and model.task_object.supervised):
        if not model.opened.family.reads:
            raise UserError(
                f"{folder}: {model.opened.family.name} does not read one text and write another; "
                "weft finetune --task translate makes such a model"
            )
        model.task = "translate"
    return model


def _line(text: str) -> str:
    return " ".join(text.split())


def _print(number: int, text: str, answer: Any, n_best: int, alignments: bool, jsonl: bool) -> None:
    if jsonl:
        print(json.dumps({"input": text, **asdict(answer)}, ensure_ascii=False))
        return
    if n_best > 1:
        for way in answer.best:
            print(f"{number}\t{way.score:.4f}\t{_line(text)}\t{_line(way.text)}")
    else:
        print(_line(answer.text))
    for token, line in zip(answer.target_tokens, answer.alignments or () if alignments else (), strict=False):
        best = max(range(len(line)), key=line.__getitem__)
        print(escaped(f"  {token} <- {answer.source_tokens[best]}  {line[best]:.2f}"))


@contextmanager
def _rows(out: Path, reverse: bool) -> Iterator[Rows]:
    """A table of sources and targets, whole or not at all; nothing can be learned from empty ones."""
    from weft.files import whole_file

    with whole_file(out) as file:

        def put(text: str, way: Any) -> None:
            source, target = (way.text, text) if reverse else (text, way.text)
            if not source.strip() or not target.strip():
                return
            if out.suffix == ".tsv":
                line = "\t".join((_line(source), _line(target), f"{way.score:.4f}"))
            else:
                row = {"source": source, "target": target, "score": round(way.score, 4)}
                line = json.dumps(row, ensure_ascii=False)
            file.write((line + "\n").encode())

        if out.suffix == ".tsv":
            file.write(b"source\ttarget\tscore\n")
        yield put


def _draw(picture: Path, drawn: list[tuple[str, Any]]) -> None:
    """What was written from what, as squares."""
    from weft.files import write_text
    from weft.picture import heat_map, page

    maps = [
        heat_map(_line(answer.text)[:200], answer.target_tokens, answer.source_tokens, answer.alignments)
        for _, answer in drawn
        if answer.alignments
    ]
    if not maps:
        raise UserError("there are no alignments to draw: nothing was written")
    if picture.suffix == ".svg" and len(maps) > 1:
        raise UserError(f"{picture}: {len(maps)} texts do not go into one .svg; write them as .html")
    write_text(picture, maps[0] if picture.suffix == ".svg" else page("Alignments", maps))
