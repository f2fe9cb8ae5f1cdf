"""What the command line prints: tables, numbers and progress."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from weft.errors import escaped
from weft.progress import live as progress
from weft.training.signals import stop_signals

__all__ = ["Ticker", "amount", "leaving_at_once", "number", "one_line", "print_rows", "progress", "table"]

Ticker = Callable[[int], None]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns under their names, numbers to the right; never cut, whatever the width of the terminal."""
    cells = [[escaped(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    numeric = [all(row[column].lstrip("-")[:1].isdigit() for row in cells[1:]) for column in range(len(header))]
    lines = []
    for row in cells:
        parts = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ]
        lines.append("  ".join(parts).rstrip())
    return "\n".join(lines)


def amount(number: float, unit: str = "") -> str:
    """1234567 -> '1.23 M': three digits and a thousand's letter."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {letter}{unit}"
    return f"{number:.3g} {unit}".rstrip()


@contextmanager
def leaving_at_once() -> Iterator[None]:
    """For imports: a signal ends the process there and then.

    Libraries catch what is raised while they are imported, and an interrupt would leave them half there. Nothing has
    been begun yet, so nothing is lost.
    """

    def leave(number: int, frame: object) -> None:
        with suppress(OSError):  # of a terminal that was closed
            os.write(2, b"weft: interrupted\n")
        os._exit(128 + number)

    before = {number: signal.signal(number, leave) for number in stop_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def one_line(text: str) -> str:
    """A text with its line breaks and runs of spaces as single spaces."""
    return " ".join(text.split())


def print_rows(rows: Sequence[Mapping[str, Any]], jsonl: bool) -> None:
    """Rows of figures as a table, or as lines of JSON."""
    if jsonl:
        for row in rows:
            print(json.dumps(row, ensure_ascii=False))
    elif rows:
        cells = [[f"{value:.4f}" if isinstance(value, float) else str(value) for value in row.values()] for row in rows]
        print(table(list(rows[0]), cells))


def number(value: float | None) -> str:
    """A score in a table; nothing where there is none."""
    return "" if value is None else f"{value:.4f}"
