"""Connections of clients that may mean no good: limits of time and size around uvicorn's protocols.

A connection is closed where its headers take too long or are too many, where nobody reads what is sent, and where a
body goes on for too long after its request was refused. More connections than the limit get 503 at once.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from weft.serve.limits import HEADER_BYTES
from weft.serve.refusals import Refusal

LINGER = 5.0  # seconds for which the rest of a refused body is read, so that the client gets to see the reply


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


FULL = Refusal(503, "too many connections; try again later", headers={"Retry-After": "1"})
LATE = Refusal(408, "the headers of the request did not arrive in time")
LARGE = Refusal(431, f"the headers are larger than {HEADER_BYTES:,} bytes")
BROKEN = Refusal(400, "this is not HTTP")


class LimitedConnection:
    """Limits of one connection; mixed into a protocol class of uvicorn, whose attributes it reads."""

    transport: Any
    cycle: Any
    server_state: Any
    most: int  # connections
    seconds: float  # for headers, and for a client that does not read

    def __init__(self, *arguments: Any, most: int, seconds: float, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.most, self.seconds = most, seconds
        self.ahead = 0  # bytes since the last request whose headers are complete
        self.timer: asyncio.TimerHandle | None = None  # of the headers that are expected
        self.writing: asyncio.TimerHandle | None = None  # of a client that does not read
        self.lingering: asyncio.TimerHandle | None = None  # of a body that nobody wants
        self.refused = False

    def connection_made(self, transport: Any) -> None:
        parent: Any = super()
        parent.connection_made(transport)
        if len(self.server_state.connections) > self.most:
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
        if self.cycle is not before:
            self.ahead = 0
            self._forget("timer")
        elif waiting and self.ahead > HEADER_BYTES:
            self._refuse(LARGE, "Request Header Fields Too Large")
        elif waiting and self.timer is None and not self._busy():
            self._expect_headers()  # the next request of a connection that is kept
        if self.cycle is not None and self.cycle.more_body and self.cycle.response_complete and not self.lingering:
            self.lingering = self._later(LINGER, self._close)

    def connection_lost(self, error: Exception | None) -> None:
        for name in ("timer", "writing", "lingering"):
            self._forget(name)
        parent: Any = super()
        parent.connection_lost(error)

    def pause_writing(self) -> None:
        parent: Any = super()
        parent.pause_writing()
        self._forget("writing")
        self.writing = self._later(self.seconds, self._abort)

    def resume_writing(self) -> None:
        self._forget("writing")
        parent: Any = super()
        parent.resume_writing()

    def send_400_response(self, message: str) -> None:
        """What uvicorn sends where bytes are no HTTP."""
        self._refuse(BROKEN, "Bad Request")

    def _busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _expect_headers(self) -> None:
        self.timer = self._later(self.seconds, partial(self._late))

    def _late(self) -> None:
        self.timer = None
        if not self._busy():
            self._refuse(LATE, "Request Timeout") if self.ahead else self._close()

    def _refuse(self, refusal: Refusal, phrase: str) -> None:
        """Reply, unless another reply is on its way, and close."""
        self.refused = True
        if not self.transport.is_closing():
            if not self._busy():
                self.transport.write(reply_bytes(refusal, phrase))
            self._close()

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

    def _abort(self) -> None:
        """Nobody reads: what is held for this client is dropped, and its jobs end."""
        self.transport.abort()


def limited(protocol: type[Any], most: int, seconds: float) -> Any:
    """What uvicorn makes connections of: its own protocol with these limits."""
    return partial(type(f"Limited{protocol.__name__}", (LimitedConnection, protocol), {}), most=most, seconds=seconds)
