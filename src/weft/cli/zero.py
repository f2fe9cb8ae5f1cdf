"""`weft perplexity`, `choose`, `suggest`: language models measured and asked, without training for a task."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from weft.cli.inputs import check_choices, check_data, find_model, is_model, load_model, print_json
from weft.cli.options import Flags, Folder, Given, Jsonl, Runtime
from weft.cli.show import leaving_at_once, progress, table
from weft.errors import UserError, escaped, listed, refuse

if TYPE_CHECKING:
    from weft.metrics.bootstrap import Score
    from weft.tasks.answers import Chosen
    from weft.tasks.choose import Question, Suggestion, Suggestions


DocumentKind = Annotated[
    str | None,
    Option(metavar="[auto|line|block|file]", help="What one document is. Default: as in training, else file."),
]
RowKind = Annotated[
    str | None,
    Option(
        metavar="[stream|documents]",
        help="Read each document after those before it, or on its own. Default: as in training.",
    ),
]


def perplexity(
    folder: Folder,
    text: Annotated[Given, Flags("weft.runs.recipes:TextSection", only=("files", "column"))],
    runtime: Runtime,
    more: Annotated[list[str] | None, Argument(metavar="[FILE]...", help="After --text: further files.")] = None,
    length: Annotated[int | None, Option(help="Tokens per window. Default: the model's context.")] = None,
    stride: Annotated[int | None, Option(help="Tokens from one window to the next. Default: half the length.")] = None,
    detokenize: Annotated[
        str | None, Option(metavar="[wikitext|ptb]", help="Undo the tokenization of a published corpus.")
    ] = None,
    documents: DocumentKind = None,
    rows: RowKind = None,
    count_ends: Annotated[bool, Option(help="Count the end of each document as a token, as training does.")] = True,
    jsonl: Annotated[bool, Option("--jsonl", help="Print one JSON object.")] = False,
) -> None:
    """Measure the perplexity of a language model on text: per token, per word, and in bits per byte.

    The text is read like the training text, with the ends of documents as tokens, so that this is the perplexity that
    weft pretrain prints for --dev. A window slides over the text; each token is predicted once, after at least length
    - stride tokens. Words and bytes are those of the text as given, before --detokenize.

    Example: weft perplexity runs/gpt --text corpus/weaver.txt --stride 16
    """
    from weft.text.records import find_files
    from weft.text.sentences import DETOKENIZERS

    check_choices(
        ("--detokenize", detokenize, DETOKENIZERS),
        ("--documents", documents, ("auto", "line", "block", "file")),
        ("--rows", rows, ("stream", "documents")),
    )
    if "files" not in text:
        raise UserError("no text: give --text FILE")
    files = find_files([*text.pop("files"), *(more or [])])
    model = load_model(folder, "complete", **runtime)
    from weft.tasks.perplexity import perplexity as measure
    from weft.tasks.perplexity import read_documents

    trained = model.opened.card.text
    read_as = documents or (trained.documents if trained is not None else "file")
    stream = rows == "stream" or (rows is None and trained is not None and trained.rows in ("stream", "carried"))
    with progress("reading", "tokens") as tick:
        result = measure(
            model.opened,
            read_documents(files, documents=read_as, **text),
            length=length, stride=stride, detokenize=detokenize, stream=stream, count_ends=count_ends, on_progress=tick,
        )  # fmt: skip
    if jsonl:
        print(json.dumps(_finite({**asdict(result), "documents": read_as, "count_ends": count_ends})))
        return
    chosen = "as given" if documents is not None else "as in training" if trained is not None else "by default"
    _print_perplexity(result, detokenize, f"{read_as} ({chosen})")


def _print_perplexity(result: Any, detokenize: str | None, documents: str) -> None:
    read = [] if detokenize is None else [_row("bits per byte read", result.bits_per_read_byte)]
    words = [] if result.per_word is None else [_row("perplexity per word", result.per_word)]
    lines = [_row("perplexity per token", result.per_token), *words, _row("bits per byte", result.bits_per_byte), *read]
    print(table(["", "value", "95 % from", "to"], lines))
    windows = f"{result.n_windows:,} windows of {result.length} tokens, {result.stride} apart"
    if result.carried:
        windows = f"{result.n_windows:,} stream{'s' * (result.n_windows > 1)} with a carried state"
    ends = f"the {result.n_ends:,} ends of documents among them" if result.n_ends else "ends of documents not counted"
    print(
        f"{result.n_tokens:,} tokens ({ends}), {result.n_words:,} words, {result.n_bytes:,} bytes, "
        f"{result.n_documents:,} document{'s' * (result.n_documents > 1)}; {windows}"
    )
    print(f"documents: {documents}, {'each read after those before it' if result.stream else 'each read on its own'}")
    if result.impossible:
        print(f"{result.impossible:,} of the tokens had probability 0, so that the perplexity is infinite")
    if detokenize is not None:
        print(f"read as {result.n_read_bytes:,} bytes after --detokenize {detokenize}")
    if result.begin is None:
        print(f"{result.left_out:,} first tokens left out: this vocabulary has no token that begins a text")
    else:
        print(f"the first token of a document was predicted after {result.begin}")


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
    runtime: Runtime,
    prompts: Annotated[list[str] | None, Argument(metavar="PROMPT...", help="Prompts.")] = None,
    choice: Annotated[list[str] | None, Option(help="A continuation; repeatable.")] = None,
    data: Annotated[
        list[str] | None, Option(metavar="FILE", help="Evaluate instead: rows with prompt, choices and label.")
    ] = None,
    normalize: Annotated[
        str,
        Option(
            metavar="[none|token|byte|prior]",
            help="Normalize log-probabilities by length, or by the probability after --prior.",
        ),
    ] = "none",
    prior: Annotated[str, Option(help="A prompt without a question.")] = "Answer:",
    between: Annotated[
        str | None, Option(help="Text between prompt and choice. Default: a space where neither has one.")
    ] = None,
    slide: Annotated[bool, Option("--slide", help="Read the last part of a prompt that is too long.")] = False,
    jsonl: Jsonl = False,
) -> None:
    """Choose among continuations of a prompt by the probability that a language model gives to each.

    With --data the share of rows whose label was chosen is printed, with its interval; a label is one of the choices or
    its place, from 0.

    Example: weft choose runs/gpt "The weaver" --choice "sang." --choice "loom the." --normalize byte
    """
    check_choices(("--normalize", normalize, ("none", "token", "byte", "prior")))
    refuse(
        (bool(data and (prompts or choice)), "--data brings its own prompts and choices: leave the others out"),
        (not data and not prompts, "no prompt: give one after the model, or --data"),
        (not data and not choice, "no choices: give --choice at least once"),
    )
    find_model(folder, runtime.get("online", False))
    check_data(data)
    options: Given = {"normalize": normalize, "prior": prior, "between": between, "slide": slide}
    if data:
        _evaluate_choices(folder, runtime, data, options, jsonl)
        return
    model = load_model(folder, "choose", **runtime)
    given = prompts or []
    answers: list[Any] = model(given, choices=choice, **options)
    for number, (prompt, answer) in enumerate(zip(given, answers, strict=True)):
        if jsonl:
            print_json(answer, prompt=prompt)
            continue
        if len(given) > 1:
            print("\n" * (number > 0) + escaped(prompt))
        rows = [
            [o.text, f"{o.probability:.4f}", f"{o.score:.4f}", f"{o.logprob:.4f}", str(o.n_tokens)]
            for o in answer.options
        ]
        print(table(["choice", "probability", "score", "logprob", "tokens"], rows))
        if answer.truncated:
            print(f"weft: note: only the last of {answer.n_tokens} tokens of the prompt were read", file=sys.stderr)


def _evaluate_choices(folder: str, runtime: Given, data: list[str], options: Given, jsonl: bool) -> None:
    with leaving_at_once():
        from weft.tasks.choose import evaluate_choices, read_questions

    questions = list(read_questions(data))
    model = load_model(folder, "choose", **runtime)

    def on_answer(question: Question, answer: Chosen) -> None:
        tick(1)
        if jsonl:
            print_json(answer, **question._asdict())

    with progress("choosing", "questions") as tick:
        score = evaluate_choices(model.opened, questions, on_answer=on_answer, **options)
    to = sys.stderr if jsonl else sys.stdout
    print(table(["", "value", "95 % from", "to"], [_row("accuracy", score)]), file=to)
    print(f"{len(questions):,} questions, normalize: {options['normalize']}", file=to)


BAR = 8  # characters of a bar that is full
BLOCKS = " ▏▎▍▌▋▊▉█"


def suggest(
    given: Annotated[
        list[str], Argument(metavar="MODEL... TEXT", help="Model folders, and last the text to continue.")
    ],
    runtime: Runtime,
    top: Annotated[int, Option(help="Words per model.")] = 10,
    tokens: Annotated[bool, Option("--tokens", help="Show tokens of each vocabulary instead of words.")] = False,
    endings: Annotated[bool, Option("--endings", help="Also continue the last word: +s is such an ending.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the likeliest next words of a text with their probabilities, one column per model.

    A word is put together from the tokens of a model; the last word of the text is taken to be complete.

    Example: weft suggest runs/* "The weaver"
    """
    if len(given) < 2:
        raise UserError("give at least one model folder, and last the text: weft suggest MODEL... TEXT")
    *names, text = given
    if len(names) == 1 and is_model(text):
        raise UserError(f"{text}: is a model folder; the text comes last: weft suggest MODEL... TEXT")
    if len(names) == 1:
        find_model(names[0], runtime.get("online", False))
    results, families = _suggestions(names, text, runtime, top=top, tokens=tokens, endings=endings)
    if as_json:
        print(json.dumps({"text": text, "tokens": tokens, "models": _values(results, families)}, ensure_ascii=False))
        return
    print(f"{'next tokens' if tokens else 'next words'} after: {escaped(text)}")
    print(_columns(results, tokens))
    for name, result in results.items():
        if not isinstance(result, UserError) and result.truncated:
            print(f"weft: note: {name} read only the end of the text", file=sys.stderr)


def _suggestions(
    names: list[str], text: str, runtime: Given, **options: Any
) -> tuple[dict[str, Suggestions | UserError], dict[str, str]]:
    """The suggestions of every language model, or its error, and the families; runs/* names all kinds of things."""
    with leaving_at_once():
        from weft.tasks.choose import suggest as next_words

    results: dict[str, Suggestions | UserError] = {}
    families, others, mute = dict[str, str](), list[str](), list[str]()
    for name in names:
        if len(names) > 1 and Path(name).exists() and not (Path(name) / "config.json").is_file():
            others.append(name)
            continue
        try:
            model = load_model(name, **runtime)
            family = model.opened.family
            if not family.speaks or family.reads or "words" not in model.opened.heads:
                mute.append(name)
            else:
                families[name] = family.name
                results[name] = next_words(model, text, **options)
        except UserError as error:  # it is shown in the column of its model; the others go on
            if len(names) == 1:
                raise
            results[name] = error
    if not results:
        raise UserError(f"{listed([*others, *mute])}: none of these is a language model")
    for what, left_out in (("no model folder", others), ("not a language model", mute)):
        if left_out:
            print(f"weft: note: left out: {listed(left_out)} ({what})", file=sys.stderr)
    return results, families


def _values(results: dict[str, Suggestions | UserError], families: dict[str, str]) -> list[dict[str, Any]]:
    rows = list[dict[str, Any]]()
    for name, result in results.items():
        about: dict[str, Any] = {"model": name, "family": families.get(name)}
        rows.append(about | ({"error": str(result)} if isinstance(result, UserError) else asdict(result)))
    return rows


def _columns(results: dict[str, Suggestions | UserError], tokens: bool) -> str:
    """Models beside each other, as many as the terminal has room for, the others below them."""
    blocks, width = list[list[str]](), shutil.get_terminal_size().columns
    parents = {os.path.dirname(os.path.normpath(name)) for name in results}
    short = len(results) > 1 and len(parents) == 1  # runs/*: their common folder is left out
    for name, result in results.items():
        title = os.path.basename(os.path.normpath(name)) if short else name
        if isinstance(result, UserError):
            blocks.append([title, *textwrap.wrap(str(result), 30)])
            continue
        words = [_word(word, tokens) for word in result.words]
        wide = max(map(len, words), default=0)
        block = [title]
        for word, suggestion in zip(words, result.words, strict=True):
            eighths = round(suggestion.probability * BAR * 8)
            bar = (BLOCKS[8] * (eighths // 8) + BLOCKS[eighths % 8]).strip()
            block.append(f"{word.ljust(wide)} {100 * suggestion.probability:6.2f} % {bar}")
        blocks.append(block)
    together, lines_of = list[list[str]](), list[str]()
    for block in blocks:
        used = sum(max(map(len, other)) + 3 for other in together)
        if together and used + max(map(len, block)) > width:
            lines_of.append(_beside(together))
            together = []
        together.append(block)
    return "\n\n".join([*lines_of, _beside(together)])


def _word(word: Suggestion, tokens: bool) -> str:
    if tokens:
        return repr(word.text)[:24]
    text = escaped(word.text) or "(end of the text)"
    return ("+" if word.joined else "") + (text if len(text) <= 24 else f"{text[:23]}…")


def _beside(blocks: list[list[str]]) -> str:
    height = max(map(len, blocks))
    widths = [max(map(len, block)) for block in blocks]
    rows = [
        "   ".join(
            (block[row] if row < len(block) else "").ljust(width) for block, width in zip(blocks, widths, strict=True)
        ).rstrip()
        for row in range(height)
    ]
    return "\n".join(rows)
