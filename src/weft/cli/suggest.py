"""`weft suggest`: the likeliest next words of several models, side by side."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.checks import find_model
from weft.cli.inputs import is_model, load_model
from weft.cli.options import Given, Runtime
from weft.cli.show import leaving_at_once
from weft.errors import UserError, escaped, listed

if TYPE_CHECKING:
    from weft.tasks.suggest import Suggestion, Suggestions

BAR = 8  # characters of a bar that is full
BLOCKS = " ▏▎▍▌▋▊▉█"


def suggest(
    given: Annotated[
        list[str], typer.Argument(metavar="MODEL... TEXT", help="Model folders, and last the text to continue.")
    ],
    runtime: Runtime,
    top: Annotated[int, typer.Option(help="Words per model.")] = 10,
    tokens: Annotated[bool, typer.Option("--tokens", help="Show tokens of each vocabulary instead of words.")] = False,
    endings: Annotated[
        bool, typer.Option("--endings", help="Also continue the last word: +s is such an ending.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
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
        from weft.tasks.suggest import suggest as next_words

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
        lines = [
            f"{word.ljust(wide)} {100 * s.probability:6.2f} % {_bar(s.probability)}"
            for word, s in zip(words, result.words, strict=True)
        ]
        blocks.append([title, *lines])
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


def _bar(share: float) -> str:
    eighths = round(share * BAR * 8)
    return (BLOCKS[8] * (eighths // 8) + BLOCKS[eighths % 8]).strip()


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
