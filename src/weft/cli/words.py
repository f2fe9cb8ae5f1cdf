"""`weft generate`, `fill`, `answer`, `embed`: texts, words, answers and vectors out of a model folder."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.checks import check_choices
from weft.cli.inputs import from_input, load_model, print_json
from weft.cli.options import GENERATION, Flags, Folder, Given, Jsonl, Runtime, Texts
from weft.cli.show import Ticker, one_line, progress
from weft.errors import UserError, escaped

if TYPE_CHECKING:
    from weft.tasks.generation import Stream

POOLINGS = ("mean", "first", "max")
Pooling = Annotated[
    str | None,
    typer.Option(metavar="[mean|first|max]", help="How token vectors become one. Default: as the folder says."),
]
Layers = Annotated[
    str,
    typer.Option(
        metavar="LAYERS", help="last, a number (0: the embeddings), last4-sum, last4-mean, last4-concat or all-mean."
    ),
]


def generate(
    folder: Folder,
    options: Annotated[Given, Flags(GENERATION, without=("coverage", "alignments"))],
    runtime: Runtime,
    prompts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PROMPT]...", help="Prompts; - reads lines of standard input. Default: an empty one."),
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Template of the prompts: translate, summarize, answer, or a text with {text}."
        ),
    ] = None,
    example: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT=>ANSWER", help="An example that the template shows before; repeatable."),
    ] = None,
    context: Annotated[str | None, typer.Option(help="The text that the questions of a template are about.")] = None,
    stream: Annotated[bool, typer.Option("--stream", help="Print the text while it is generated.")] = False,
    jsonl: Jsonl = False,
) -> None:
    """Continue prompts with a language model. An encoder-decoder prints its output for the prompt.

    Without --beam-size or a sampling option (--temperature, --top-k, --top-p, --min-p, --typical) decoding is greedy.
    Without --max-tokens a text goes on until it ends or the context is full; 256 tokens where the context has no end.

    Example: weft generate runs/gpt "The weaver said" --max-tokens 40 --top-p 0.9
    """
    given = list(from_input(prompts)) if prompts else [""]
    _check_generate(given, options, template, bool(example) or context is not None, stream, jsonl)
    model = load_model(folder, "complete", **runtime)
    chosen = None
    if template is not None:
        from weft.tasks.templates import example_of, prompt_of, template_of

        chosen, shots = template_of(template), [example_of(text) for text in example or []]
        given = [prompt_of(chosen, text, context=context, examples=shots) for text in given]
        options = {**chosen.decoding, **options}  # as the template's paper decodes
    if stream:
        _print_stream(model.stream(given[0], **options), "" if model.opened.family.reads else given[0])
        return
    with progress("generating", "tokens") as tick:
        answers: list[Any] = model(given, on_progress=tick, **options)
    finish = chosen.finish if chosen is not None else str
    prefixes = [""] * len(given) if chosen is not None or model.opened.family.reads else given
    for prompt, prefix, answer in zip(given, prefixes, answers, strict=True):
        if jsonl:
            print_json(answer, prompt=prompt)
            continue
        for text in answer.best or [answer]:
            print(f"{prefix}{finish(text.text)}")
            score = f", score: {text.score:.4f}" if answer.best else ""
            print(f"[{len(text.tokens)} tokens, finish_reason: {text.finish_reason}{score}]", file=sys.stderr)


def _check_generate(
    given: list[str], options: Given, template: str | None, parts: bool, stream: bool, jsonl: bool
) -> None:
    if stream and template is not None:
        raise UserError("--stream does not go with --template: its answer is known when the text is complete")
    if stream and len(given) != 1:
        raise UserError(f"--stream takes one prompt, not {len(given)}")
    if stream and jsonl:
        raise UserError("--stream prints a text in pieces, --jsonl a whole object: give one of them")
    if "logprobs" in options and not jsonl:
        raise UserError("--logprobs are printed as JSON: give --jsonl too")
    if template is None and parts:
        raise UserError("--example and --context are parts of a --template: give --template too")


def _print_stream(pieces: Stream, prompt: str) -> None:
    """Print a text while it is generated; a mistake is raised before anything is printed."""
    first = True
    for piece in pieces:
        print(f"{prompt}{piece}" if first else piece, end="", flush=True)
        first = False
    print("" if not first else prompt)
    answer = pieces.answer
    print(f"[{len(answer.tokens)} tokens, finish_reason: {answer.finish_reason}]", file=sys.stderr)


def fill(
    folder: Folder,
    runtime: Runtime,
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TEXT]...", help='Texts with gaps: "the [MASK] of the loom"; for T5 <extra_id_0>.'),
    ] = None,
    top: Annotated[int, typer.Option(help="Words per gap; T5 gives only the best.")] = 5,
    jsonl: Jsonl = False,
) -> None:
    """Fill the gaps of a text with the likeliest words.

    Example: weft fill runs/bert "the [MASK] of the loom"

    Example: weft fill runs/t5 "The <extra_id_0> of the <extra_id_1> was old."
    """
    model = load_model(folder, "fill", **runtime)
    for text in from_input(texts):
        answer: Any = model(text, top=top)
        if jsonl:
            print_json(answer, input=text)
            continue
        print(answer.text)
        for number, gap in enumerate(answer.gaps, 1):
            print(f"  gap {number}: " + escaped(", ".join(f"{word.word} {word.probability:.3f}" for word in gap)))


def answer(
    folder: Folder,
    runtime: Runtime,
    questions: Annotated[list[str] | None, typer.Argument(metavar="QUESTION...", help="Questions.")] = None,
    context: Annotated[
        Path | None, typer.Option(help="File with the text to search, of any length; - reads standard input.")
    ] = None,
    top: Annotated[int, typer.Option(help="Candidate answers to show.")] = 3,
    jsonl: Jsonl = False,
) -> None:
    """Answer questions from a text, or report that it holds no answer.

    Example: weft answer runs/qa --context contract.txt "When does it end?"
    """
    from weft.files import MEGABYTE, read_text

    if not questions or not all(question.strip() for question in questions):
        raise UserError("no question: give one or more after the model")
    if context is None:
        raise UserError("no text to search: give --context FILE, or - for standard input")
    if not 1 <= top <= 20:
        raise UserError(f"--top must be between 1 and 20, not {top}")
    text = sys.stdin.read() if str(context) == "-" else read_text(context, 256 * MEGABYTE)
    if not text.strip():
        raise UserError(f"{context}: holds no text")
    model = load_model(folder, "answer", **runtime)
    replies: list[Any] = model([(question, text) for question in questions], top=top)
    for question, reply in zip(questions, replies, strict=True):
        if jsonl:
            print_json(reply, question=question)
            continue
        line = f"{one_line(reply.text) or '(no answer)'}  {reply.score:.4f}"
        print(escaped(line + (f"  at {reply.start}-{reply.end}" if reply.text else "")))
        for choice in reply.best:
            print(escaped(f"  {choice.score:.4f}  {choice.start}-{choice.end}  {one_line(choice.text)}"))
        windows = f"{reply.n_windows:,} window{'s' * (reply.n_windows > 1)}"
        truncated = "the text was truncated" if reply.truncated else "nothing was truncated"
        print(f"[{reply.n_tokens:,} tokens in {windows}; {truncated}]", file=sys.stderr)


def embed(
    folder: Folder,
    runtime: Runtime,
    texts: Texts = None,
    pooling: Pooling = None,
    layers: Layers = "last",
    normalize: Annotated[
        bool | None, typer.Option(help="Scale vectors to length 1. Default: as the folder says.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write a .npy array instead of JSON lines.")] = None,
) -> None:
    """Turn texts into vectors.

    A text of any length is read completely, in windows.

    Example: weft embed all-MiniLM-L6-v2 --out vectors.npy < texts.txt
    """
    if out is not None and out.suffix != ".npy":
        raise UserError(f"{out}: an array is written as .npy")
    check_choices(("--pooling", pooling, POOLINGS))
    model = load_model(folder, "embed", **runtime)
    from weft.tasks.embed import Embedder

    embedder = Embedder(model.opened, pooling=pooling, normalize=normalize, layers=layers)
    windows = 0

    def vectors(tick: Ticker) -> Iterator[Any]:
        nonlocal windows
        for chunk in embedder.chunks(from_input(texts)):
            tick(len(chunk.vectors))
            windows += sum(chunk.n_windows)
            if out is None:
                for vector in chunk.answers():
                    print(json.dumps(asdict(vector)))
            yield chunk.vectors.numpy()

    with progress("embedding", "texts") as tick:
        if out is not None:
            count = save_array(out, vectors(tick), embedder.width)
            print(f"{out}: {count} vectors of {embedder.width} numbers, {windows} windows", file=sys.stderr)
            return
        for _ in vectors(tick):
            pass


def save_array(path: Path, blocks: Iterable[Any], width: int) -> int:
    """A float32 array from blocks of rows, written whole or not at all, never held whole; how many rows it has."""
    from numpy.lib import format

    from weft.files import whole_file

    count = 0
    with whole_file(path) as file:

        def header() -> None:
            file.seek(0)  # numpy leaves room for the number of rows to grow
            format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (count, width)})

        header()
        begin = file.tell()
        for block in blocks:
            file.write(block.astype("<f4").tobytes())
            count += len(block)
        header()
        assert file.tell() == begin
    return count
