"""What the access log, the metrics and the traces record about a request."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from threading import Event, Thread
from typing import Any

from weft.progress import to_stderr

WAIT = 0.1  # seconds for which lines are buffered, so that they are written together
HELD = 1 << 26  # characters that are buffered if standard error is not read; later lines are dropped and counted


@dataclass(slots=True)
class Call:
    """One request; its fields are filled in while it is processed."""

    id: str
    method: str
    path: str
    client: str
    begun: float = field(default_factory=time.perf_counter)
    route: str = ""  # the path of its route, without parameters: a label of metrics must have few values
    model: str = ""
    status: int = 0
    received: int = 0  # bytes of its body
    sent: int = 0
    inputs: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    batch_tokens: int = 0
    stages: dict[str, float] = field(default_factory=dict)  # seconds by stage: queue, tokenize, model, post
    reason: str = ""  # why it was refused
    texts: str | None = None  # its body, where that is logged
    asks_first: bool = False  # Expect: 100-continue
    parent: str = ""  # its header traceparent

    def server_timing(self) -> str:
        """The stages in the form of the header Server-Timing, in milliseconds."""
        total = time.perf_counter() - self.begun
        parts = [f"{name};dur={1000 * seconds:.2f}" for name, seconds in self.stages.items()]
        return ", ".join([*parts, f"total;dur={1000 * total:.2f}"])

    def line(self) -> str:
        """A line of the access log."""
        values: dict[str, Any] = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "request": self.id,
            "client": self.client,
            "method": self.method,
            "path": self.path[:200],
            "status": self.status,
            "seconds": round(time.perf_counter() - self.begun, 6),
            "received": self.received,
            "sent": self.sent,
        }
        if self.model:
            values |= {"model": self.model, "inputs": self.inputs}
        if self.stages:
            values |= {"tokens_in": self.tokens_in, "tokens_out": self.tokens_out}
            values["stages"] = {name: round(seconds, 6) for name, seconds in self.stages.items()}
        if self.reason:
            values["reason"] = self.reason
        if self.texts is not None:
            values["body"] = self.texts
        return json.dumps(values)


class LogWriter:
    """Writes lines to standard error in a thread, so that a slow reader of the log never delays a request."""

    def __init__(self, write: Callable[[str], None] = to_stderr) -> None:
        self.write = write
        self.lines: list[str] = []
        self.held = self.dropped = 0
        self.ended = False
        self.wake = Event()
        self.thread = Thread(target=self._run, name="access-log", daemon=True)
        self.thread.start()

    def add(self, line: str) -> None:
        if self.held > HELD:
            self.dropped += 1
            return
        self.lines.append(line)
        self.held += len(line)
        if not self.wake.is_set():
            self.wake.set()

    def close(self, seconds: float = 2.0) -> None:
        """Write the buffered lines and end; waits for so many seconds at most."""
        self.ended = True
        self.wake.set()
        self.thread.join(seconds)

    def _run(self) -> None:
        while True:
            self.wake.wait()
            if not self.ended:
                time.sleep(WAIT)
            self.wake.clear()
            lines, self.lines, self.held = self.lines, [], 0
            dropped, self.dropped = self.dropped, 0
            if dropped:
                lines.append(json.dumps({"dropped_lines": dropped}))
            if lines:
                self.write("\n".join(lines))
                sys.stderr.flush()
            if self.ended and not self.lines:
                return
