"""How long work tells what it does: a line for people, and a count of what is done."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

Say = Callable[[str], None]
Progress = Callable[[str, str], AbstractContextManager[Callable[[int], None]]]


def to_stderr(text: str) -> None:
    with suppress(OSError):  # nobody may be reading any more
        print(text, file=sys.stderr)


@contextmanager
def silent(what: str, unit: str) -> Iterator[Callable[[int], None]]:
    yield lambda more: None
