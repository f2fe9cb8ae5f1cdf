"""`weft generate`, `weft fill`, `weft embed`: words and vectors out of a model folder."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.checks import check_choices, check_device, find_model
from weft.cli.models import Online, Trust
from weft.cli.show import Ticker, leaving_at_once, progress
from weft.errors import UserError, escaped

if TYPE_CHECKING:
    from weft.tasks.generation import Stream
    from weft.tasks.model import Model

Folder = Annotated[str, typer.Argument(metavar="MODEL", help="A model folder, or a name in the local cache.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:1; the first GPU when there is one.")]
Jsonl = Annotated[bool, typer.Option("--jsonl", help="Print one JSON object per text.")]


def opened(folder: str, task: str | None, device: str | None, online: bool, trust: bool) -> Model:
    """The model for a verb, on the device asked for or on the best there is."""
    find_model(folder, online)
    check_device(device)
    with leaving_at_once():
        import torch

        from weft.tasks.model import load

    model = load(folder, task=task, online=online, trust=trust)
    best = "cuda" if torch.cuda.is_available() and not model.opened.exported else "cpu"
    return model.to(device or best)


def from_input(texts: list[str] | None) -> Iterator[str]:
    """The texts given, or one per line of standard input, blank ones too: answers come line for line."""
    if texts and texts != ["-"]:
        yield from texts
        return
    from weft.text.records import read_input

    if sys.stdin is None or sys.stdin.isatty():
        raise UserError("no text: give some after the model, or one per line on standard input")
    for document in read_input():
        yield document.text


def generate(
    folder: Folder,
    prompts: Annotated[
        list[str] | None, typer.Argument(help="One or several; - reads lines; none starts from nothing.")
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            help="New tokens at most; else until the text ends itself or its context is full; 256 without a context."
        ),
    ] = None,
    least: Annotated[int, typer.Option(help="New tokens at least, before the text may end itself.")] = 0,
    temperature: Annotated[
        float | None, typer.Option(help="0: always the best token; 1: the model's own chances, and beside a filter.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Choose among the k likeliest tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Choose among the fewest that together have this chance.")] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Choose among those with at least this part of the best one's chance.")
    ] = None,
    typical: Annotated[
        float | None, typer.Option(help="Choose among the most typical that together have this chance.")
    ] = None,
    beam: Annotated[int | None, typer.Option(help="Search for the best whole answer, so many side by side.")] = None,
    n: Annotated[int, typer.Option("--n", help="Answers per prompt: of a beam the best, else drawn.")] = 1,
    length_penalty: Annotated[
        float | None,
        typer.Option(help="A beam divides log-probabilities by length to this power; 1 unless given."),
    ] = None,
    groups: Annotated[
        int | None, typer.Option(help="So many groups of the beam, kept apart by --diversity; 1.")
    ] = None,
    diversity: Annotated[
        float | None, typer.Option(help="What a group pays for each earlier one that says the same token; 0.")
    ] = None,
    repetition_penalty: Annotated[float, typer.Option(help="Above 1: less of what the text holds already.")] = 1.0,
    no_repeat: Annotated[int, typer.Option(help="No run of so many tokens comes twice.")] = 0,
    ban: Annotated[list[str] | None, typer.Option(help="A word that may not come; may be repeated.")] = None,
    allow: Annotated[list[str] | None, typer.Option(help="Only these words may come; may be repeated.")] = None,
    choice: Annotated[list[str] | None, typer.Option(help="Only these answers may come; may be repeated.")] = None,
    force: Annotated[str, typer.Option(help="What every answer begins with.")] = "",
    stop: Annotated[list[str] | None, typer.Option(help="End before this string; may be repeated.")] = None,
    template: Annotated[
        str | None,
        typer.Option(help="Put the prompts into translate, summarize, answer, or a text of yours with {text} in it."),
    ] = None,
    example: Annotated[
        list[str] | None, typer.Option(help='Shown in the template before: "text=>answer"; may be repeated.')
    ] = None,
    context: Annotated[str | None, typer.Option(help="The text that the questions of a template are about.")] = None,
    seed: Annotated[int, typer.Option(help="Prompt n draws from seed + n.")] = 0,
    slide: Annotated[
        bool, typer.Option("--slide", help="Read the last part of a text that is longer than the context.")
    ] = False,
    logprobs: Annotated[
        int | None, typer.Option(help="Also each token's log-probability and so many alternatives, as JSON.")
    ] = None,
    stream: Annotated[bool, typer.Option("--stream", help="Print the text as it is written.")] = False,
    jsonl: Jsonl = False,
    device: Device = None,
    online: Online = False,
    trust: Trust = False,
) -> None:
    """Write on from a prompt; a model that reads one text and writes another writes what it makes of it.

    Without --beam, or one of the options that draw (--temperature, --top-k, --top-p, --min-p, --typical), the best
    token is taken, always.

    Example: weft generate runs/gpt "The weaver said" --tokens 40 --top-p 0.9
    """
    given = list(from_input(prompts)) if prompts else [""]
    if stream and template is not None:
        raise UserError("what comes of a template is known when it is whole: leave out --stream")
    if stream and len(given) != 1:
        raise UserError(f"--stream prints one text as it is written, not {len(given)}")
    if stream and jsonl:
        raise UserError("--stream prints a text in pieces, --jsonl an object when it is whole: give one of them")
    if logprobs is not None and not jsonl:
        raise UserError("--logprobs are printed as JSON: give --jsonl too")
    if template is None and (example or context is not None):
        raise UserError("--example and --context are parts of a --template: say which")
    model = opened(folder, "complete", device, online, trust)
    found = None
    if template is not None:
        from weft.tasks.templates import example_of, prompt_of, template_of

        found, shots = template_of(template), [example_of(each) for each in example or []]
        given = [prompt_of(found, text, context=context, examples=shots) for text in given]
    options: dict[str, Any] = {
        "max_tokens": tokens, "min_tokens": least,
        "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p,
        "typical": typical, "beam_size": beam, "n": n, "length_penalty": length_penalty, "groups": groups,
        "diversity": diversity, "repetition_penalty": repetition_penalty, "no_repeat": no_repeat, "ban": ban or (),
        "allow": allow or (), "choices": choice or (), "force": force, "stop": stop or (), "seed": seed,
        "slide": slide, "logprobs": logprobs,
    }  # fmt: skip
    if found is not None:  # as the template's paper decodes, where nothing else is said
        options |= {name: value for name, value in found.decoding.items() if not options[name]}
    if stream:
        _print_stream(model.stream(given[0], **options), "" if model.opened.family.reads else given[0])
        return
    with progress("writing", "tokens") as heard:
        answers: list[Any] = model(given, on_progress=heard, **options)
    finish = found.finish if found is not None else str
    shown = [""] * len(given) if found is not None or model.opened.family.reads else given
    for prompt, before, answer in zip(given, shown, answers, strict=True):
        if jsonl:
            print(json.dumps({"prompt": prompt, **asdict(answer)}, ensure_ascii=False))
            continue
        for written in answer.best or [answer]:
            print(f"{before}{finish(written.text)}")
            score = f", score: {written.score:.4f}" if answer.best else ""
            print(f"[{len(written.tokens)} tokens, finish_reason: {written.finish_reason}{score}]", file=sys.stderr)


def _print_stream(pieces: Stream, prompt: str) -> None:
    """Print a text as it is written; a mistake is found before anything is printed."""
    first = True
    for piece in pieces:
        print(f"{prompt}{piece}" if first else piece, end="", flush=True)
        first = False
    print("" if not first else prompt)
    answer = pieces.answer
    print(f"[{len(answer.tokens)} tokens, finish_reason: {answer.finish_reason}]", file=sys.stderr)


def fill(
    folder: Folder,
    texts: Annotated[
        list[str] | None, typer.Argument(help='Texts with gaps: "the [MASK] of the loom"; for T5 <extra_id_0>.')
    ] = None,
    top: Annotated[int, typer.Option(help="How many words for each gap; of a T5 the best alone.")] = 5,
    jsonl: Jsonl = False,
    device: Device = None,
    online: Online = False,
    trust: Trust = False,
) -> None:
    """Fill the gaps of a text with the likeliest words.

    Example: weft fill runs/bert "the [MASK] of the loom"

    Example: weft fill runs/t5 "The <extra_id_0> of the <extra_id_1> was old."
    """
    model = opened(folder, "fill", device, online, trust)
    for text in from_input(texts):
        answer: Any = model(text, top=top)
        if jsonl:
            print(json.dumps({"input": text, **asdict(answer)}, ensure_ascii=False))
            continue
        print(answer.text)
        for number, gap in enumerate(answer.gaps, 1):
            print(f"  gap {number}: " + escaped(", ".join(f"{word.word} {word.probability:.3f}" for word in gap)))


def embed(
    folder: Folder,
    texts: Annotated[
        list[str] | None, typer.Argument(help="Texts; without any, one per line of standard input.")
    ] = None,
    pooling: Annotated[str | None, typer.Option(help="mean, first or max; as the folder says unless given.")] = None,
    layers: Annotated[
        str, typer.Option(help="last, a number (0: the embeddings), last4-sum, last4-mean, last4-concat, all-mean.")
    ] = "last",
    normalize: Annotated[
        bool | None, typer.Option(help="Vectors of length 1; as the folder says unless given.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write a .npy array here instead of JSON lines.")] = None,
    device: Device = None,
    online: Online = False,
    trust: Trust = False,
) -> None:
    """Turn texts into vectors.

    A text of any length goes in whole, through windows.

    Example: weft embed all-MiniLM-L6-v2 --out vectors.npy < texts.txt
    """
    if out is not None and out.suffix != ".npy":
        raise UserError(f"{out}: an array is written as .npy")
    check_choices(("--pooling", pooling, ("mean", "first", "max")))
    model = opened(folder, "embed", device, online, trust)
    from weft.tasks.embed import Embedder

    embedder = Embedder(model.opened, pooling=pooling, normalize=normalize, layers=layers)
    windows = 0

    def vectors(read: Ticker) -> Iterator[Any]:
        nonlocal windows
        for some in embedder.chunks(from_input(texts)):
            read(len(some.vectors))
            windows += sum(some.n_windows)
            if out is None:
                for answer in some.answers():
                    print(json.dumps(asdict(answer)))
            yield some.vectors.numpy()

    with progress("embedding", "texts") as read:
        if out is not None:
            count = save_array(out, vectors(read), embedder.width)
            print(f"{out}: {count} vectors of {embedder.width} numbers, {windows} windows", file=sys.stderr)
            return
        for _ in vectors(read):
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
