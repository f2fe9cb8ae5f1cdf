"""Limits of time and size around uvicorn's HTTP protocol, against slow and hostile clients.

A connection is closed if its headers are too slow or too large, if the client does not read replies, or if a body goes
on for too long after its request was refused. Connections above the limit get 503 at once. uvicorn's parser would hold
headers, trailers and pipelined requests without a bound; here they have one.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from weft.serve.limits import HEADER_BYTES, MOST_HEADERS
from weft.serve.refusals import Refusal

LINGER = 5.0  # seconds for which the rest of a refused body is read: a reset would keep the client from the reply
SPARE = 64  # refused connections that may be in this state at a time; others are closed without a reply
AHEAD = 128  # pipelined requests of a connection
FRAMING = (b"content-length", b"transfer-encoding")  # headers that say where a body ends


def reply_bytes(refusal: Refusal, phrase: str) -> bytes:
    """A whole reply to a request that does not reach the application."""
    body = refusal.body()
    head = [
        f"HTTP/1.1 {refusal.status} {phrase}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        "x-content-type-options: nosniff",
        "connection: close",
        *(f"{name.lower()}: {value}" for name, value in refusal.headers.items()),
    ]
    return "\r\n".join([*head, "", ""]).encode() + body


FULL = Refusal(503, "too many connections; try again later", reason="connections", headers={"Retry-After": "1"})
LATE = Refusal(408, "the headers of the request did not arrive in time", reason="timeout")
LARGE = Refusal(
    431, f"the headers are larger than {HEADER_BYTES:,} bytes, or more than {MOST_HEADERS}", reason="headers"
)
EAGER = Refusal(429, f"more than {AHEAD} requests were sent ahead of their replies", reason="pipeline")
BROKEN = Refusal(400, "this is not HTTP", reason="no HTTP")


@dataclass
class ConnectionLimits:
    """What all connections of a server share."""

    most: int  # connections
    seconds: float  # for headers, and for a client that does not read
    refused: Callable[[Refusal, str], None]  # called with the refusal and the address of the client
    leaving: int = 0  # refused connections that wait to be closed


class LimitedConnection(HttpToolsProtocol):
    """A connection of uvicorn with limits."""

    cycle: Any
    headers: Any
    parser: Any
    scope: Any
    transport: Any

    def __init__(self, *arguments: Any, limits: ConnectionLimits, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.limits, self.headers = limits, []
        self.answering: Any = None  # the request that is being answered; pipelined ones may wait behind it
        self.ahead = 0  # bytes since the last complete headers or part of a body
        self.data = self.rest = b""  # the bytes just received, and those of them that a new parser has to read again
        self.repeating = False  # the new parser reads the headers again
        self.timer: asyncio.TimerHandle | None = None  # for headers
        self.writing: asyncio.TimerHandle | None = None  # for a client that does not read
        self.lingering: asyncio.TimerHandle | None = None  # for the rest of a refused body
        self.refused = self.leaving = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.server_state.connections) > self.limits.most:
            self._refuse(FULL, "Service Unavailable")
            return
        self._expect_headers()

    def data_received(self, data: bytes) -> None:
        while data and not self.refused:
            self.data = data
            self._read(data)
            data, self.data, self.rest = self.rest, b"", b""

    def _read(self, data: bytes) -> None:
        before = self.cycle
        waiting = before is None or not before.more_body
        self.ahead += len(data)
        super().data_received(data)
        if self.refused:
            return
        if self.ahead > HEADER_BYTES or len(self.headers) > MOST_HEADERS:
            self._refuse(LARGE, "Request Header Fields Too Large")
            self.headers.clear()
        elif len(self.pipeline) > AHEAD:
            self._refuse(EAGER, "Too Many Requests")
            self.pipeline.clear()
        elif self.cycle is not before:
            self._forget("timer")
        elif waiting and self.timer is None and not self.is_busy:
            self._expect_headers()  # the next request of a connection that is kept
        self._watch_body()

    # Callbacks of the parser. When headers are read again, only what follows them is new.

    def on_message_begin(self) -> None:
        if not self.repeating:
            super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self.repeating:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.repeating:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if not self.repeating:
            self.scope["state"]["behind"] = self.pipeline
            super().on_headers_complete()
        self.ahead, self.repeating = 0, False
        self.headers = []  # trailers of a chunked body must not be added to the headers of the request

    def on_body(self, body: bytes) -> None:
        self.ahead = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self.ahead, self.cycle.more_body = 0, False  # uvicorn leaves it True if the reply is complete already
        self._forget("lingering")

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self.answering = cycle
        super()._start_asgi_task(cycle, app)

    def _unsupported_upgrade_warning(self) -> None:
        """Go on in HTTP/1.1 when a client offers to upgrade, as those of Java and `curl --http2` do.

        The parser stops after such headers, so a new one reads the body.
        """
        stopped = sys.exc_info()[1]
        if stopped is None or self.cycle.scope["method"] == "CONNECT":
            self._refuse(BROKEN, "Bad Request")
            return
        scope = self.cycle.scope
        lines = [b"%s: %s\r\n" % header for header in scope["headers"] if header[0] in FRAMING]
        head = b"POST / HTTP/%s\r\n%s\r\n" % (scope["http_version"].encode(), b"".join(lines))
        self.rest = head + self.data[stopped.args[0] :]
        self.parser, self.repeating = type(self.parser)(self), True
        self.cycle.more_body = True
        self.cycle.message_event.clear()

    def connection_lost(self, error: Exception | None) -> None:
        for name in ("timer", "writing", "lingering"):
            self._forget(name)
        if self.leaving:
            self.leaving = False
            self.limits.leaving -= 1
        if self.answering is not None:  # uvicorn only tells the last request, which may still be waiting
            self.answering.disconnected = True
            self.answering.message_event.set()
        super().connection_lost(error)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._forget("writing")
        self.writing = self._later(self.limits.seconds, self._abort)

    def resume_writing(self) -> None:
        self._forget("writing")
        self._watch_closing()
        super().resume_writing()

    # uvicorn closes a connection after the client has read what was written; here that has a time limit.

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_body()
        self._watch_closing()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._watch_closing()

    def shutdown(self) -> None:
        super().shutdown()
        self._watch_closing()

    def send_400_response(self, message: str) -> None:
        """Called by uvicorn for bytes that are not HTTP."""
        self._refuse(BROKEN, "Bad Request")

    @property
    def is_idle(self) -> bool:
        """Whether no request is in progress or partly received."""
        return not self.ahead and not self.is_busy

    @property
    def is_busy(self) -> bool:
        """Whether a request waits for its reply."""
        return self.cycle is not None and not self.cycle.response_complete

    def _expect_headers(self) -> None:
        self.timer = self._later(self.limits.seconds, self._late)

    def _late(self) -> None:
        self.timer = None
        if not self.is_busy:
            self._refuse(LATE, "Request Timeout") if self.ahead else self._close()

    def _refuse(self, refusal: Refusal, phrase: str) -> None:
        """Reply, unless another reply has begun, and close the connection a little later."""
        self.refused = True
        if self.transport.is_closing():
            return
        self.limits.refused(refusal, self.client[0] if self.client else "")
        if self.limits.leaving >= SPARE or not self._drop_request():
            self._close()
            return
        self.server_state.connections.discard(self)
        self.limits.leaving, self.leaving = self.limits.leaving + 1, True
        self.transport.write(reply_bytes(refusal, phrase))
        with suppress(OSError, NotImplementedError):  # it may have gone
            self.transport.write_eof()
        self._forget("timer")
        self._forget("lingering")
        self.lingering = self._later(min(LINGER, self.limits.seconds), self._close)

    def _drop_request(self) -> bool:
        """End the request in progress, if any; False if its reply has begun or others wait behind it."""
        if self.is_busy:
            if self.cycle.response_started or self.pipeline:
                return False
            self.cycle.disconnected = True
            self.cycle.waiting_for_100_continue = False  # or "100 Continue" would be written after the reply
            self.cycle.message_event.set()
        return True

    def _later(self, seconds: float, call: Any) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, call)

    def _forget(self, name: str) -> None:
        timer = vars(self)[name]
        if timer is not None:
            timer.cancel()
            vars(self)[name] = None

    def _close(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()
            self._watch_closing()

    def _watch_body(self) -> None:
        """Limit the time for the rest of a body whose request already has its reply."""
        if self.cycle is not None and self.cycle.more_body and self.cycle.response_complete and not self.lingering:
            self.lingering = self._later(min(LINGER, self.limits.seconds), self._close)

    def _watch_closing(self) -> None:
        if self.transport.is_closing() and self.writing is None:
            self.writing = self._later(self.limits.seconds, self._abort)

    def _abort(self) -> None:
        """The client does not read: drop what is buffered for it, and cancel its jobs."""
        self.transport.abort()
