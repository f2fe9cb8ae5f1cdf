"""`weft curves`, `recipes`, `cache`: what training leaves behind, and the recipes of the package."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from weft.cli.options import group
from weft.cli.show import amount, table


def curves(
    runs: Annotated[list[Path], typer.Argument(metavar="FOLDER...", help="Run folders.")],
    out: Annotated[Path, typer.Option(help="HTML page to write.")] = Path("curves.html"),
) -> None:
    """Draw the loss curves of several runs on one page.

    Example: weft curves runs/* --out curves.html
    """
    from weft.runs.curves import write_curves

    kept = [run for run in runs if (run / "run" / "metrics.jsonl").is_file()]
    for other in runs:  # runs/* may hold models that were never trained
        if kept and other not in kept:
            print(f"weft: note: {other} is left out: it has no run/metrics.jsonl", file=sys.stderr)
    write_curves(kept or runs, out)
    print(f"{out}: {len(kept)} run{'s' * (len(kept) != 1)}")


def recipes(
    name: Annotated[str | None, typer.Argument(metavar="[RECIPE]", help="Print this recipe.")] = None,
) -> None:
    """List the recipes of the package, or print one.

    Example: weft recipes shakespeare-gpt > mine.toml
    """
    from weft.runs.recipes import find_recipe, shipped

    if name is not None:
        print(find_recipe(name)[0], end="")
        return
    rows = [[key, text.splitlines()[0].lstrip("# ")] for key, text in shipped().items()]
    print(table(["recipe", "what it does"], rows))


def list_cache() -> None:
    """List what is cached, with sizes and the times of last use.

    Example: weft cache list
    """
    from weft.data.cache import cached
    from weft.files import cache_folder

    rows = [
        [name[:12], amount(size, "B"), datetime.fromtimestamp(when).strftime("%Y-%m-%d %H:%M"), files]
        for name, size, when, files in cached()
    ]
    teachers = sum(row[-1].startswith("teacher ") for row in rows)
    outputs = f" and the outputs of {teachers} teacher{'s' * (teachers > 1)}" if teachers else ""
    print(f"{cache_folder()}: {len(rows) - teachers} tokenized texts{outputs}")
    if rows:
        print(table(["name", "size", "last used", "from"], rows))


def clear_cache() -> None:
    """Remove everything that is cached; it is made again when it is needed.

    Example: weft cache clear
    """
    from weft.data.cache import clear_cache as clear

    print(f"freed {amount(clear(), 'B')}")


cache = group("List or clear what training keeps to be faster the next time.", list=list_cache, clear=clear_cache)
