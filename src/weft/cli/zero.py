"""`weft perplexity` and `weft choose`: what a language model makes of text, without training it for anything."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.checks import check_data, find_model
from weft.cli.models import Online, Trust
from weft.cli.show import leaving_at_once, progress, table
from weft.cli.words import Device, Folder, Jsonl, opened
from weft.errors import UserError, escaped, one_of

if TYPE_CHECKING:
    from weft.metrics.bootstrap import Score
    from weft.tasks.answers import Chosen
    from weft.tasks.choose import Question


def perplexity(
    folder: Folder,
    text: Annotated[list[str], typer.Option(help="Files, folders or globs; more may follow without the flag.")],
    more: Annotated[list[str] | None, typer.Argument(metavar="[FILE]...", help="Further files.")] = None,
    length: Annotated[int | None, typer.Option(help="Tokens of a window; the model's context unless given.")] = None,
    stride: Annotated[int | None, typer.Option(help="Tokens from one window to the next; half the length.")] = None,
    detokenize: Annotated[
        str | None, typer.Option(help="Read a tokenized corpus as people write: wikitext or ptb.")
    ] = None,
    documents: Annotated[
        str | None, typer.Option(help="line, block, file, auto; as in the model's training, else file.")
    ] = None,
    rows: Annotated[
        str | None,
        typer.Option(help="stream: documents follow each other; documents: each from nothing; as in training."),
    ] = None,
    count_ends: Annotated[
        bool, typer.Option(help="Count the end of each document as a token, as training does.")
    ] = True,
    column: Annotated[str, typer.Option(help="The text column of csv, tsv, jsonl and parquet files.")] = "text",
    jsonl: Annotated[bool, typer.Option("--jsonl", help="Print one JSON object.")] = False,
    device: Device = None,
    online: Online = False,
    trust: Trust = False,
) -> None:
    """Say how well a language model foresees a text: per token, per word and in bits per byte.

    The text is read as the model's own training text was, and the ends of documents count as tokens, so that this is
    the perplexity that weft pretrain prints for --dev. A window slides over the text; each token is foreseen once, with
    at least length - stride tokens before it. Words and bytes are those of the text as given, before --detokenize.

    Example: weft perplexity runs/gpt --text corpus/weaver.txt --stride 16
    """
    from weft.text.detokenizers import DETOKENIZERS
    from weft.text.records import find_files

    if detokenize is not None:
        one_of(detokenize, DETOKENIZERS, "--detokenize")
    if documents is not None:
        one_of(documents, ("auto", "line", "block", "file"), "--documents")
    if rows is not None:
        one_of(rows, ("stream", "documents"), "--rows")
    files = find_files([*text, *(more or [])])
    model = opened(folder, "complete", device, online, trust)
    from weft.tasks.perplexity import perplexity as measure
    from weft.tasks.perplexity import read_documents

    trained = model.opened.card.text
    read_as = documents or (trained.documents if trained is not None else "file")
    stream = rows == "stream" or (rows is None and trained is not None and trained.rows in ("stream", "carried"))
    with progress("reading", "tokens") as heard:
        found = measure(
            model.opened,
            read_documents(files, documents=read_as, column=column),
            length=length,
            stride=stride,
            detokenize=detokenize,
            stream=stream,
            count_ends=count_ends,
            on_progress=heard,
        )
    if jsonl:
        print(json.dumps(_finite({**asdict(found), "documents": read_as, "count_ends": count_ends})))
        return
    read = [] if detokenize is None else [_row("bits per byte read", found.bits_per_read_byte)]
    words = [] if found.per_word is None else [_row("perplexity per word", found.per_word)]
    lines = [_row("perplexity per token", found.per_token), *words, _row("bits per byte", found.bits_per_byte), *read]
    print(table(["", "value", "95 % from", "to"], lines))
    windows = f"{found.n_windows:,} windows of {found.length} tokens, {found.stride} apart"
    if found.carried:
        windows = f"{found.n_windows:,} stream{'s' * (found.n_windows > 1)} with a carried state"
    ends = f"the {found.n_ends:,} ends of documents among them" if found.n_ends else "ends of documents not counted"
    print(
        f"{found.n_tokens:,} tokens ({ends}), {found.n_words:,} words, {found.n_bytes:,} bytes, "
        f"{found.n_documents:,} document{'s' * (found.n_documents > 1)}; {windows}"
    )
    chosen = "as given" if documents is not None else "as in training" if trained is not None else "by default"
    each = "each read after those before it" if found.stream else "each read from nothing"
    print(f"documents: {read_as} ({chosen}), {each}")
    if found.impossible:
        print(f"{found.impossible:,} of the tokens had chance 0, so that the perplexity is infinite")
    if detokenize is not None:
        print(f"read as {found.n_read_bytes:,} bytes after --detokenize {detokenize}")
    if found.begin is None:
        print(f"{found.left_out:,} first tokens left out: this vocabulary has no token that begins a text")
    else:
        print(f"the first token of a document was foreseen after {found.begin}")


def _row(name: str, score: Score) -> list[str]:
    # Text without spaces is one word, whose perplexity has a hundred digits.
    return [
        name,
        *(f"{value:.4f}" if value < 1e9 else f"{value:.3e}" for value in (score.value, score.low, score.high)),
    ]


def _finite(value: Any) -> Any:
    """JSON has no infinity: a number that is too large for one is null."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def choose(
    folder: Folder,
    prompts: Annotated[list[str] | None, typer.Argument(help="One or several prompts.")] = None,
    choice: Annotated[list[str] | None, typer.Option(help="A continuation; to be repeated.")] = None,
    data: Annotated[
        list[str] | None, typer.Option(help="Instead: rows with prompt, choices and label, to be judged by.")
    ] = None,
    normalize: Annotated[
        str, typer.Option(help="none; by token or byte; or prior: how much likelier than after --prior.")
    ] = "none",
    prior: Annotated[str, typer.Option(help="A prompt that asks nothing.")] = "Answer:",
    between: Annotated[
        str | None, typer.Option(help="Between prompt and choice; a space where neither has one.")
    ] = None,
    slide: Annotated[bool, typer.Option("--slide", help="Read a prompt that is too long from further on.")] = False,
    jsonl: Jsonl = False,
    device: Device = None,
    online: Online = False,
    trust: Trust = False,
) -> None:
    """Choose among continuations of a prompt by the chance that a language model gives to each.

    With --data the share of rows whose label was chosen is printed, with its interval; a label is one of the choices or
    its place, from 0.

    Example: weft choose runs/gpt "The weaver" --choice "sang." --choice "loom the." --normalize byte
    """
    one_of(normalize, ("none", "token", "byte", "prior"), "--normalize")
    if data and (prompts or choice):
        raise UserError("--data brings its own prompts and choices: leave the others out")
    if not data and not prompts:
        raise UserError("what should be continued? give a prompt after the model, or --data")
    if not data and not choice:
        raise UserError("no choices: give --choice at least once")
    find_model(folder, online)
    check_data(data)
    with leaving_at_once():
        from weft.tasks.choose import judge, read_questions

    options: dict[str, Any] = {"normalize": normalize, "prior": prior, "between": between, "slide": slide}
    questions = list(read_questions(data)) if data else []
    model = opened(folder, "choose", device, online, trust)
    if data:

        def told(question: Question, answer: Chosen) -> None:
            heard(1)
            if jsonl:
                print(json.dumps({**question._asdict(), **asdict(answer)}, ensure_ascii=False))

        with progress("choosing", "questions") as heard:
            score = judge(model.opened, questions, on_answer=told, **options)
        to = sys.stderr if jsonl else sys.stdout
        print(table(["", "value", "95 % from", "to"], [_row("accuracy", score)]), file=to)
        print(f"{len(questions):,} questions, normalize: {normalize}", file=to)
        return
    given = prompts or []
    answers: list[Any] = model(given, choices=choice, **options)
    for number, (prompt, answer) in enumerate(zip(given, answers, strict=True)):
        if jsonl:
            print(json.dumps({"prompt": prompt, **asdict(answer)}, ensure_ascii=False))
            continue
        if len(given) > 1:
            print("\n" * (number > 0) + escaped(prompt))
        rows = [
            [
                o.text,
                f"{o.probability:.4f}",
                f"{o.score:.4f}",
                f"{o.logprob:.4f}",
                str(o.n_tokens),
            ]
            for o in answer.options
        ]
        print(table(["choice", "probability", "score", "logprob", "tokens"], rows))
        if answer.truncated:
            print(f"weft: note: of {answer.n_tokens} tokens of the prompt the last were read", file=sys.stderr)
