"""What the command line prints: tables, numbers and progress."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from weft.errors import escaped
from weft.progress import live as progress
from weft.training.signals import stop_signals

__all__ = ["Ticker", "amount", "leaving_at_once", "progress", "sections_of", "table"]

Ticker = Callable[[int], None]

DOCUMENTS = "What a document of a txt file is: line, block, file; auto: as the file looks."


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


def sections_of(flags: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What flags say, as the sections of a recipe; '' is its top, and a flag that was not given says nothing."""
    said: dict[str, Any] = {}
    for section, values in flags.items():
        some = {key: value for key, value in values.items() if value is not None}
        said |= some if not section else {section: some} if some else {}
    return said
