"""How long work tells what it does: a line for people, and a count of what is done."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from weft.text.records import Skipped

Say = Callable[[str], None]
Progress = Callable[[str, str], AbstractContextManager[Callable[[int], None]]]


def to_stderr(text: str) -> None:
    with suppress(OSError):  # nobody may be reading any more
        print(text, file=sys.stderr)


def tell(skipped: Skipped, say: Say) -> None:
    """Say what reading had to tell: what was found out about files, and which rows were left out."""
    for line in skipped.lines():
        say(f"weft: note: {line}")


def warn(skipped: Skipped) -> None:
    """The same as warnings, which the command line prints as notes."""
    for line in skipped.lines():
        warnings.warn(line, stacklevel=3)


@contextmanager
def silent(what: str, unit: str) -> Iterator[Callable[[int], None]]:
    yield lambda more: None
