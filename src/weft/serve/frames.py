"""Frames between the server and its workers: a length in four bytes, big-endian, and a JSON object of that length.

Nothing else is sent: no pickle, no file descriptors. A frame that is too long or is not a JSON object raises
`BadFrame`, after which the connection must be closed.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from weft.errors import UserError, shown

MOST = 64 << 20  # bytes of a frame
HEADER = struct.Struct(">I")
CHUNK = 1 << 18  # bytes of one read

Message = dict[str, Any]


class BadFrame(UserError):
    """Bytes that are not a frame."""


def _no_number(name: str) -> Any:
    raise BadFrame(f"a frame holds {name}, which is no JSON number")


def packed(message: Message) -> bytes:
    """A message as a frame. Text is escaped to ASCII, so that lone surrogates can be sent."""
    try:
        data = json.dumps(message, separators=(",", ":"), allow_nan=False).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise BadFrame(f"a message cannot be written as JSON: {shown(str(error), 160)}") from None
    if len(data) > MOST:
        raise BadFrame(f"a message of {len(data):,} bytes is longer than a frame of {MOST:,}")
    return HEADER.pack(len(data)) + data


def unpacked(data: bytes | bytearray | memoryview) -> Message:
    """The message in a frame, which is given without its length."""
    try:
        message = json.loads(bytes(data), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:  # also what is not UTF-8, and numbers of too many digits
        raise BadFrame(f"a frame is no JSON: {shown(str(error), 160)}") from None
    if not isinstance(message, dict):
        raise BadFrame(f"a frame holds a {type(message).__name__} where an object is expected")
    return message


class FrameBuffer:
    """Splits a stream of bytes into frames."""

    def __init__(self) -> None:
        self.held = bytearray()
        self.wanted = -1  # length of the next frame; -1: not received yet

    def take(self, data: bytes) -> Iterator[Message]:
        """The messages that are complete with these bytes."""
        held = self.held
        held += data
        place = 0
        try:
            while True:
                if self.wanted < 0:
                    if len(held) - place < HEADER.size:
                        return
                    (self.wanted,) = HEADER.unpack_from(held, place)
                    place += HEADER.size
                    if self.wanted > MOST:
                        raise BadFrame(f"a frame of {self.wanted:,} bytes is longer than {MOST:,}")
                if len(held) - place < self.wanted:
                    return
                body = bytes(memoryview(held)[place : place + self.wanted])
                place, self.wanted = place + self.wanted, -1
                yield unpacked(body)
        finally:
            del held[:place]


class FrameChannel:
    """The worker's end of a connection, which blocks: one thread reads, any thread writes."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.lock = threading.Lock()
        self.buffer = FrameBuffer()

    def messages(self) -> Iterator[Message]:
        """The messages of the other side, until it closes the connection."""
        while data := self._received():
            yield from self.buffer.take(data)

    def _received(self) -> bytes:
        try:
            return self.connection.recv(CHUNK)
        except ConnectionError:  # it was killed
            return b""

    def write(self, messages: Sequence[Message]) -> None:
        """Send messages in one call."""
        self.send(b"".join(map(packed, messages)))

    def send(self, data: bytes) -> None:
        """Send packed frames; a closed connection is ignored, since the server has gone."""
        with self.lock:
            try:
                self.connection.sendall(data)
            except OSError:
                return


class FrameProtocol(asyncio.Protocol):
    """The server's end of a connection: `received` gets each message, `closed` the reason when it ends."""

    def __init__(self, received: Callable[[Message], None], closed: Callable[[Exception | None], None]) -> None:
        self.received, self.closed = received, closed
        self.buffer = FrameBuffer()
        self.transport: Any = None  # uvloop's is not a subclass of asyncio's
        self.fault: Exception | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            for message in self.buffer.take(data):
                self.received(message)
        except BadFrame as error:
            self.fault = error
            if self.transport is not None:
                self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.closed(self.fault or exc)

    def write(self, message: Message) -> None:
        """Send a message, if the connection is open."""
        self.send(packed(message))

    def send(self, data: bytes) -> None:
        """Send a packed frame, if the connection is open."""
        if self.transport is not None:
            self.transport.write(data)
