"""Connections of clients that may mean no good: limits of time and size around uvicorn's protocols.

A connection is closed where its headers take too long or are too many, where nobody reads what is sent, and where a
body goes on for too long after its request was refused. More connections than the limit get 503 at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from weft.serve.limits import HEADER_BYTES
from weft.serve.refusals import Refusal

LINGER = 5.0  # seconds for which the rest of a refused body is read, so that the client gets to see the reply
SPARE = 64  # refused connections for which that is done at once; others are closed without a word


def reply_bytes(refusal: Refusal, phrase: str) -> bytes:
    """A whole reply, for a request that no application sees."""
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
LARGE = Refusal(431, f"the headers are larger than {HEADER_BYTES:,} bytes", reason="headers")
BROKEN = Refusal(400, "this is not HTTP", reason="no HTTP")


@dataclass
class ConnectionLimits:
    """What all connections of a server share."""

    most: int  # connections
    seconds: float  # for headers, and for a client that does not read
    refused: Callable[[Refusal, str], None]  # is told why, and the address of the client
    leaving: int = 0  # connections that were refused, and are closed in a moment


class LimitedConnection:
    """Limits of one connection; mixed into a protocol class of uvicorn, whose attributes it reads."""

    transport: Any
    cycle: Any
    client: Any
    server_state: Any

    def __init__(self, *arguments: Any, limits: ConnectionLimits, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.limits = limits
        self.ahead = 0  # bytes since the last request whose headers are complete
        self.timer: asyncio.TimerHandle | None = None  # of the headers that are expected
        self.writing: asyncio.TimerHandle | None = None  # of a client that does not read
        self.lingering: asyncio.TimerHandle | None = None  # of a body that nobody wants
        self.refused = self.leaving = False

    def connection_made(self, transport: Any) -> None:
        parent: Any = super()
        parent.connection_made(transport)
        if len(self.server_state.connections) > self.limits.most:
            self._refuse(FULL, "Service Unavailable")
            return
        self._expect_headers()

    def data_received(self, data: bytes) -> None:
        if self.refused:
            return
        before = self.cycle
        waiting = before is None or not before.more_body
        if waiting:
            self.ahead += len(data)
        parent: Any = super()
        parent.data_received(data)
        if self.refused:
            return
        if self.cycle is not before:
            self.ahead = 0
            self._forget("timer")
            self._forget("lingering")  # the body that nobody wanted has come to its end
        elif waiting and self.ahead > HEADER_BYTES:
            self._refuse(LARGE, "Request Header Fields Too Large")
        elif waiting and self.timer is None and not self.is_busy:
            self._expect_headers()  # the next request of a connection that is kept
        self._watch_body()

    def connection_lost(self, error: Exception | None) -> None:
        for name in ("timer", "writing", "lingering"):
            self._forget(name)
        if self.leaving:
            self.leaving = False
            self.limits.leaving -= 1
        parent: Any = super()
        parent.connection_lost(error)

    def pause_writing(self) -> None:
        parent: Any = super()
        parent.pause_writing()
        self._forget("writing")
        self.writing = self._later(self.limits.seconds, self._abort)

    def resume_writing(self) -> None:
        self._forget("writing")
        self._watch_closing()
        parent: Any = super()
        parent.resume_writing()

    # Whatever closes a connection waits until the client has read what is held for it, but not for ever.

    def on_response_complete(self) -> None:
        parent: Any = super()
        parent.on_response_complete()
        self._watch_body()
        self._watch_closing()

    def timeout_keep_alive_handler(self) -> None:
        parent: Any = super()
        parent.timeout_keep_alive_handler()
        self._watch_closing()

    def shutdown(self) -> None:
        parent: Any = super()
        parent.shutdown()
        self._watch_closing()

    def send_400_response(self, message: str) -> None:
        """What uvicorn sends where bytes are no HTTP."""
        self._refuse(BROKEN, "Bad Request")

    @property
    def is_idle(self) -> bool:
        """Whether no request is on its way here, as far as it is known."""
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
        """Reply, unless another reply is on its way, and close once the client can have read it."""
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
        """End the request whose body is broken, if there is one; not where its reply has begun or others wait."""
        if self.is_busy:
            if self.cycle.response_started or vars(self).get("pipeline"):
                return False
            self.cycle.disconnected = True
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
        """What is left of a body whose request has its reply may not come for ever."""
        if self.cycle is not None and self.cycle.more_body and self.cycle.response_complete and not self.lingering:
            self.lingering = self._later(min(LINGER, self.limits.seconds), self._close)

    def _watch_closing(self) -> None:
        if self.transport.is_closing() and self.writing is None:
            self.writing = self._later(self.limits.seconds, self._abort)

    def _abort(self) -> None:
        """Nobody reads: what is held for this client is dropped, and its jobs end."""
        self.transport.abort()


def limited(protocol: type[Any], limits: ConnectionLimits) -> Any:
    """What uvicorn makes connections of: its own protocol with these limits."""
    return partial(type(f"Limited{protocol.__name__}", (LimitedConnection, protocol), {}), limits=limits)
