"""`weft ladder` and `weft suggest`: language models side by side, on one text and on one beginning of a sentence."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.checks import check_data, check_device, find_model
from weft.cli.models import Online, Trust
from weft.cli.sequences import is_model
from weft.cli.show import leaving_at_once, progress, sections_of, table
from weft.cli.words import Device, opened
from weft.errors import UserError, escaped, listed

if TYPE_CHECKING:
    from weft.tasks.suggest import Suggestion, Suggestions

BAR = 8  # characters of a bar that is full
BLOCKS = " ▏▎▍▌▋▊▉█"


def suggest(
    given: Annotated[
        list[str], typer.Argument(metavar="MODEL... TEXT", help="Model folders, and last the text to go on from.")
    ],
    most: Annotated[int, typer.Option(help="So many words of each model.")] = 10,
    tokens: Annotated[bool, typer.Option("--tokens", help="Tokens of each model's own vocabulary, not words.")] = False,
    endings: Annotated[
        bool, typer.Option("--endings", help="The last word may also go on: +s is such an end.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    device: Device = None,
    online: Online = False,
    trust: Trust = False,
) -> None:
    """Show the likeliest next words of a text with their chances, a column for each model.

    A word is put together from a model's tokens, whatever these are; the last word of the text is taken to be complete.

    Example: weft suggest runs/* "The weaver"
    """
    if len(given) < 2:
        raise UserError("give at least one model folder, and last the text: weft suggest MODEL... TEXT")
    *names, text = given
    if len(names) == 1 and is_model(text):
        raise UserError(f"{text}: is a model folder; the text comes last: weft suggest MODEL... TEXT")
    if len(names) == 1:
        find_model(names[0], online)
    with leaving_at_once():
        from weft.tasks.suggest import suggest as foresee

    found: dict[str, Suggestions | UserError] = {}
    families, others, silent = dict[str, str](), list[str](), list[str]()
    for name in names:
        if len(names) > 1 and Path(name).exists() and not (Path(name) / "config.json").is_file():
            others.append(name)  # runs/* finds all kinds of things
            continue
        try:
            model = opened(name, None, device, online, trust)
            if not model.opened.family.speaks or model.opened.family.reads or "words" not in model.opened.heads:
                silent.append(name)
            else:
                families[name] = model.opened.family.name
                found[name] = foresee(model, text, top=most, tokens=tokens, endings=endings)
        except UserError as error:  # one that cannot is told of in its column; the others go on
            if len(names) == 1:
                raise
            found[name] = error
    if not found:
        raise UserError(f"{listed([*others, *silent])}: none of these is a model that foresees words")
    for what, some in (("no model folder", others), ("does not foresee words", silent)):
        if some:
            print(f"weft: note: left out: {listed(some)} ({what})", file=sys.stderr)
    if as_json:
        print(json.dumps({"text": text, "tokens": tokens, "models": _values(found, families)}, ensure_ascii=False))
        return
    print(f"{'next tokens' if tokens else 'next words'} after: {escaped(text)}")
    print(_columns(found, tokens))
    for name, each in found.items():
        if not isinstance(each, UserError) and each.truncated:
            print(f"weft: note: {name} read only the end of the text", file=sys.stderr)


def _values(found: dict[str, Suggestions | UserError], families: dict[str, str]) -> list[dict[str, Any]]:
    rows = list[dict[str, Any]]()
    for name, each in found.items():
        about: dict[str, Any] = {"model": name, "family": families.get(name)}
        rows.append(about | ({"error": str(each)} if isinstance(each, UserError) else asdict(each)))
    return rows


def _columns(found: dict[str, Suggestions | UserError], tokens: bool) -> str:
    """Models beside each other, as many as the terminal has room for, the others below them."""
    blocks, width = list[list[str]](), shutil.get_terminal_size().columns
    parents = {os.path.dirname(os.path.normpath(name)) for name in found}
    short = len(found) > 1 and len(parents) == 1  # runs/*: what they have in common need not be said with each
    for name, each in found.items():
        title = os.path.basename(os.path.normpath(name)) if short else name
        if isinstance(each, UserError):
            blocks.append([title, *_wrapped(str(each), 30)])
            continue
        words = [_word(word, tokens) for word in each.words]
        wide = max(map(len, words), default=0)
        lines = [
            f"{word.ljust(wide)} {100 * s.probability:6.2f} % {_bar(s.probability)}"
            for word, s in zip(words, each.words, strict=True)
        ]
        blocks.append([title, *lines])
    together, said = list[list[str]](), list[str]()
    for block in blocks:
        used = sum(max(map(len, other)) + 3 for other in together)
        if together and used + max(map(len, block)) > width:
            said.append(_beside(together))
            together = []
        together.append(block)
    return "\n\n".join([*said, _beside(together)])


def _word(word: Suggestion, tokens: bool) -> str:
    if tokens:
        return repr(word.text)[:24]
    text = escaped(word.text) or "(end of the text)"
    return ("+" if word.joined else "") + (text if len(text) <= 24 else f"{text[:23]}…")


def _bar(share: float) -> str:
    eighths = round(share * BAR * 8)
    return (BLOCKS[8] * (eighths // 8) + BLOCKS[eighths % 8]).strip()


def _wrapped(text: str, width: int) -> list[str]:
    import textwrap

    return textwrap.wrap(text, width)


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


def ladder(
    given: Annotated[
        list[str] | None, typer.Argument(metavar="[RECIPE] [FILE]...", help="A TOML recipe; after --text, more files.")
    ] = None,
    text: Annotated[list[str] | None, typer.Option(help="Files, folders or globs to learn from.")] = None,
    out: Annotated[
        str | None, typer.Option(help="The folder of the ladder; one that is there is gone on with.")
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="Of training, for each model; 3.")] = None,
    tokens: Annotated[str | None, typer.Option(help="Or: tokens that each model reads, such as 20M.")] = None,
    models: Annotated[
        str | None, typer.Option(help="Some of the rungs, with commas: ngram-2,lstm,transformer; all of them.")
    ] = None,
    vocabulary: Annotated[
        str | None, typer.Option(help="characters, or the size of a sub-word vocabulary; by the size of the text.")
    ] = None,
    size: Annotated[str | None, typer.Option(help="tiny, small or large; small on a CPU, large on a GPU.")] = None,
    prompt: Annotated[str | None, typer.Option(help="What the samples begin with.")] = None,
    parallel: Annotated[
        int | None,
        typer.Option(help="Models that are trained at once, each in a process of its own; 1. 0: in this process."),
    ] = None,
    column: Annotated[str | None, typer.Option(help="The text column of csv, tsv, jsonl and parquet files.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:1; the first GPU when there is one.")] = None,
    seed: Annotated[int | None, typer.Option(help="Decides weights, order and samples; 0.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="RUNG.SECTION.KEY=VALUE, such as lstm.model.width=512.")
    ] = None,
    only: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Train every language model of the line on one text with equal budgets, and compare them.

    Uniform, unigram, n-grams of order 2 to 5, MLP, RNN, GRU, LSTM, two-layer LSTM, Transformer: a table, ladder.json
    and one page (index.html) in the folder. Each rung is a run folder. Ctrl-C saves; the same --out goes on.

    Example: weft ladder --text corpus.txt --minutes 3 --out ladder

    Example: weft ladder --out ladder --models wide --set wide.model.family=gru --set wide.model.width=1024
    """
    from weft.config import merged, settings_of
    from weft.runs.rungs import RUNGS

    if only is not None:
        _only(Path(out or ""), only)
        return
    names = list(given or [])
    recipe = names.pop(0) if names and (text is None or names[0].endswith(".toml")) else None
    if names and text is None:
        raise UserError(f"{names[0]}: one recipe is enough; text is named by --text")
    said: dict[str, Any] = {}
    for key, value in settings_of(settings or []).items():
        known = key in ("ladder", "text", "rungs", "seed", "device", "out")
        said = merged(said, {key: value} if known else {"rungs": {key: value}})
        if not known and key not in RUNGS and not isinstance(value, dict):
            raise UserError(f"--set {key}: write it as RUNG.SECTION.KEY=VALUE, such as lstm.model.width=512")
    flags: dict[str, dict[str, Any]] = {
        "": {"out": out, "device": device, "seed": seed},
        "text": {"files": None if text is None else [*text, *names], "column": column},
        "ladder": {
            "minutes": minutes,
            "tokens": None if tokens is None else _number(tokens),
            "models": None if models is None else [name.strip() for name in models.split(",") if name.strip()],
            "vocabulary": vocabulary,
            "size": size,
            "prompt": prompt,
            "parallel": parallel,
        },
    }
    check_data(text)
    check_device(device)
    with leaving_at_once():
        from weft.runs.ladder import ladder as climb
        from weft.runs.ladder_page import HEADER, failures, rows_of, verdict

    found = climb(recipe, merged(said, sections_of(flags)), progress=progress)
    print(table(list(HEADER), rows_of(found)))
    for failure in failures(found):
        print(failure)
    print(verdict(found))
    failed = [rung["name"] for rung in found["rungs"] if "failed" in rung]
    if len(failed) == len(found["rungs"]):
        raise UserError(f"every rung failed: {listed(failed, 20)}; the reasons stand above and in {out}/ladder.json")


def _number(text: str) -> int:
    """20M -> 20,000,000."""
    letters = {"k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9}
    plain = text.strip().lower().replace(",", "").replace("_", "")
    by = letters.get(plain[-1:], 1)
    try:
        return round(float(plain[:-1] if by > 1 else plain) * by)
    except (ValueError, OverflowError):
        raise UserError(f"--tokens {text}: a number is expected, such as 20M") from None


def _only(folder: Path, name: str) -> None:
    """One rung, in the process that `weft ladder` has started for it."""
    from weft.runs.ladder import here
    from weft.runs.rung_run import Place

    place = Place(folder)
    parent = os.getppid()
    lock = place.run.inside / "lock"
    if not lock.is_file() or lock.read_text(encoding="ascii", errors="replace").strip() != str(parent):
        raise typer.Exit(2)  # the ladder was killed meanwhile, and another may have begun this rung

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        import signal

        os.kill(os.getpid(), signal.SIGTERM)  # whoever wanted this rung is gone: save it and end

    threading.Thread(target=watch, daemon=True).start()
    from weft.progress import to_stderr

    here(place, name, to_stderr, progress)
    if place.failure(name).is_file():
        raise typer.Exit(2)
