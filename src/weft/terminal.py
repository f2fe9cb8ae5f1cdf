"""Standard output and error of the command line: text from outside never steers a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from weft.errors import escaped


class EscapedStream:
    """A text stream that spells out control characters, but for line ends and tabs; all else is the stream's own."""

    def __init__(self, stream: Any) -> None:
        self.unescaped = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unescaped, name)

    def write(self, text: str) -> int:
        self.unescaped.write(escaped(text, keep="\n\t"))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)


def unescaped(stream: Any) -> Any:
    """The stream itself, for what moves the cursor on purpose, such as a progress line."""
    return stream.unescaped if isinstance(stream, EscapedStream) else stream


def open_streams() -> None:
    """Lead standard streams that were closed to nowhere; a file that is opened later would take their place."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, and so this one
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115


@contextmanager
def escaped_streams() -> Iterator[None]:
    """Escape all of standard error, and standard output where it is a terminal; a pipe or file gets every character."""
    before = sys.stdout, sys.stderr
    if sys.stderr is not None:
        sys.stderr = EscapedStream(sys.stderr)
    if sys.stdout is not None and sys.stdout.isatty():
        sys.stdout = EscapedStream(sys.stdout)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
