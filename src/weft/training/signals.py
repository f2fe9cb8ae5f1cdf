"""Ctrl-C, SIGTERM and SIGHUP: the first asks to save and stop, a second Ctrl-C leaves at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType

from weft.progress import Log, Progress, silent, to_logger


class Interrupted(Exception):
    """A signal came, and what was worth keeping has been kept."""

    def __init__(self, number: int, message: str = "") -> None:
        super().__init__(message)
        self.number = number  # of the signal: the exit status is 128 and this


class Stop:
    """Whether somebody has asked to stop; asked between steps, batches and chunks, where stopping does no harm."""

    number: int | None = None  # of the signal

    def __bool__(self) -> bool:
        return self.number is not None

    def check(self, message: str = "") -> None:
        if self.number is not None:
            raise Interrupted(self.number, message)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.number is not None and number == signal.SIGINT:
            # Everything is written whole or not at all, so the process may end between any two instructions.
            os._exit(128 + number)
        self.number = number
        again = "; Ctrl-C again leaves at once" if number == signal.SIGINT else ""
        with suppress(OSError):  # nobody may be reading any more
            os.write(2, f"\nweft: stopping at the next safe point{again}\n".encode())


@dataclass(frozen=True)
class Control:
    """How a run reports what it does, and how it is stopped."""

    log: Log = to_logger
    progress: Progress = silent
    stop: Stop = field(default_factory=Stop)

    def note(self, text: str) -> None:
        self.log(f"weft: note: {text}")

    @contextmanager
    def count(self, what: str, unit: str, message: str) -> Iterator[Callable[[int], None]]:
        """A progress bar, whose count also stops the work with this message once somebody has asked to."""
        with self.progress(what, unit) as advance:

            def step(count: int) -> None:
                self.stop.check(message)
                advance(count)

            yield step


@contextmanager
def listening() -> Iterator[Stop]:
    """Signals are handled for as long as the block runs; outside the main thread Python allows nobody to listen."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    numbers = [signal.SIGINT, signal.SIGTERM]
    if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as `nohup` sets it
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, stop._receive) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
