"""Messages of the logger `weft`, live counts, and standard streams that text from outside cannot steer."""

from __future__ import annotations

import logging
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

from weft.errors import escaped

Log = Callable[[str], None]
Progress = Callable[[str, str], AbstractContextManager[Callable[[int], None]]]
ProgressChoice = Progress | bool | None  # as a caller may ask for it: see `progress_of`

NOTE = "weft: note: "
PAUSE = 0.2  # seconds between two states of a line that is written over
logger = logging.getLogger("weft")


def decimals(value: float) -> str:
    """Four decimals; powers of ten where these would be zeros or a long row of digits."""
    return f"{value:.3e}" if 1e-12 < abs(value) < 5e-5 or 1e9 <= abs(value) < math.inf else f"{value:.4f}"


def to_logger(text: str) -> None:
    """The usual `log`: a message of the logger `weft`; a note is a warning, all else information."""
    logger.log(_level(text), text.removeprefix(NOTE))


def _level(text: str) -> int:
    return logging.WARNING if text.startswith(NOTE) else logging.INFO


def to_stderr(text: str) -> None:
    with suppress(OSError):  # nobody may be reading any more
        print(text, file=sys.stderr)


class Terminal(logging.Handler):
    """Messages as the command line prints them."""

    def emit(self, record: logging.LogRecord) -> None:
        to_stderr(NOTE * (record.levelno >= logging.WARNING) + record.getMessage())


@contextmanager
def on_terminal() -> Iterator[None]:
    """For the command line: all messages are lines of standard error meanwhile."""
    handler, level = Terminal(), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def log_notes(lines: Iterable[str], log: Log) -> None:
    """Log what reading has noted of its files: what it decided about them, and which rows it left out."""
    for line in lines:
        log(f"weft: note: {line}")


# ---------------------------------------------------------------------------------------------------------- progress


@contextmanager
def silent(what: str, unit: str) -> Iterator[Callable[[int], None]]:
    yield lambda more: None


@contextmanager
def live(what: str, unit: str) -> Iterator[Callable[[int], None]]:
    """A live count on the terminal for work whose end is not known; silent where nobody watches."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda more: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    counted = TextColumn("{task.completed:,} {task.fields[unit]}", markup=False)
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), counted, TimeElapsedColumn())
    with Progress(*columns, console=Console(file=unescaped(sys.stderr)), transient=True) as bar:
        task = bar.add_task(escaped(what), total=None, unit=unit)
        yield lambda more: bar.advance(task, more)


@contextmanager
def live_anywhere(what: str, unit: str) -> Iterator[Callable[[int], None]]:
    """A live count wherever it is asked for; in a notebook, or a file, a line that is written over."""
    if sys.stderr is not None and sys.stderr.isatty():
        with live(what, unit) as count:
            yield count
        return
    begin, line, done = time.monotonic(), Line(), 0

    def state() -> str:
        return f"{what}: {done:,} {unit}, {time.monotonic() - begin:.0f} s"

    def count_more(more: int) -> None:
        nonlocal done
        done += more
        line.write(state)

    try:
        yield count_more
    finally:
        line.end(state())


class Line:
    """A line that is written over, by nothing but a carriage return, which notebooks know too."""

    def __init__(self) -> None:
        self.width, self.due = 0, 0.0

    def write(self, text: Callable[[], str]) -> None:
        """Show a new state, unless the last one has just been shown."""
        if time.monotonic() >= self.due:
            self.due = time.monotonic() + PAUSE
            self._write(text())

    def end(self, text: str | None = None) -> None:
        """Go to the next line; what stands there stays, or `text` in its place."""
        if text is not None:
            self._write(text)
        if self.width:
            self._print("\n")
            self.width = 0

    def _write(self, text: str) -> None:
        text = escaped(text)
        self._print(f"\r{text.ljust(self.width)}")
        self.width = len(text)

    def _print(self, text: str) -> None:
        with suppress(OSError, AttributeError):  # nobody may be reading, or there may be no standard error
            unescaped(sys.stderr).write(text)
            sys.stderr.flush()


def progress_of(asked: ProgressChoice) -> Progress:
    """What a caller asked for: True for live counts, False for none, None for live counts in an interactive session."""
    if asked is None:
        asked = hasattr(sys, "ps1")  # also in notebooks
    return asked if callable(asked) else live_anywhere if asked else silent


@contextmanager
def lines_of_a_run(log: Log, progress: Progress) -> Iterator[tuple[Log | None, Log | None]]:
    """Where the lines of training go: those that stay, and the passing ones; None for both: to the terminal as ever."""
    if log is to_stderr or (log is to_logger and any(isinstance(handler, Terminal) for handler in logger.handlers)):
        yield None, None
        return
    if progress is not live_anywhere:
        yield log, None
        return
    line = Line()

    def stays(text: str) -> None:
        if log is to_logger and not logger.isEnabledFor(_level(text)):
            return  # nothing will be shown, so the live line goes on
        line.end()
        log(text)

    try:
        yield stays, lambda text: line.write(lambda: text)
    finally:
        line.end()


# --------------------------------------------------------------------------------------------------------- streams


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
