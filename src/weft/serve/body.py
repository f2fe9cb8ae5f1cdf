"""The body of a request: read within limits of size and time, and parsed as a JSON object."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from starlette.types import Message, Receive, Scope

from weft.errors import UserError
from weft.files import parse_json
from weft.serve.refusals import ClientGone, Refusal

WHAT = Path("body")  # the name of the body in error messages
NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")  # the character, not the letters after an escaped backslash
JSON_TYPES = ("application/json",)
AT_ONCE = 1 << 27  # bytes of all bodies that may be read at the same time ...
SMALL = 1 << 16  # ... except that bodies up to this size are always read
# The type that `curl -d` sends by default. A browser sends it from any page without a preflight request, but always
# with an Origin header, which curl does not send.
PLAIN_TYPES = ("application/x-www-form-urlencoded", "")


def header(scope: Scope, name: bytes) -> str:
    """A header of a request; empty if it is missing."""
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")


def check_type(scope: Scope) -> None:
    """Refuse a body whose headers say that it is not plain JSON in UTF-8."""
    kind, _, rest = header(scope, b"content-type").lower().partition(";")
    charset = rest.partition("charset=")[2].partition(";")[0].strip().strip('"')
    plain = kind.strip() in PLAIN_TYPES and not header(scope, b"origin")
    if not (kind.strip() in JSON_TYPES or plain) or charset not in ("", "utf-8", "utf8"):
        raise Refusal(415, "the body must be JSON in UTF-8: send Content-Type: application/json")
    plain = header(scope, b"transfer-encoding").lower() in ("", "chunked")
    if header(scope, b"content-encoding").lower() not in ("", "identity") or not plain:
        raise Refusal(415, "a compressed body is not read: send it as it is")


class BodyBudget:
    """A limit on the memory of all bodies that are being read."""

    def __init__(self, largest: int) -> None:
        self.largest, self.most = largest, max(AT_ONCE, 4 * largest)
        self.held = 0

    @contextmanager
    def room(self, scope: Scope) -> Iterator[None]:
        """Reserve memory for a body, by its Content-Length or the largest size; refused if too little is left."""
        announced = header(scope, b"content-length")
        size = min(int(announced[:20]), self.largest) if announced.isdigit() else self.largest
        if size > SMALL and self.held + size > self.most:
            what = "too many large requests arrive at once"
            raise Refusal(429, what, reason="bodies", headers={"Retry-After": "1"})
        self.held += size
        try:
            yield
        finally:
            self.held -= size


async def read_body(scope: Scope, receive: Receive, most: int, seconds: float) -> bytes:
    """The whole body; refused if it is too large or takes too long."""
    too_large = Refusal(413, f"the body is larger than {most:,} bytes", reason="body")
    announced = header(scope, b"content-length")
    if announced.isdigit() and int(announced[:20]) > most:
        raise too_large
    message: Message = await _in_time(receive, seconds) if announced != "0" else {"body": b""}
    body: bytes = message.get("body", b"")
    if message.get("more_body") and len(body) <= most:
        parts, size, end = [body], len(body), asyncio.get_running_loop().time() + seconds
        while message.get("more_body") and size <= most:
            message = await _in_time(receive, end - asyncio.get_running_loop().time())
            parts.append(message.get("body", b""))
            size += len(parts[-1])
        body = b"".join(parts)
    if len(body) > most:
        raise too_large
    return body


async def _in_time(receive: Receive, seconds: float) -> Message:
    try:
        async with asyncio.timeout(seconds):
            message = await receive()
    except TimeoutError:
        late = "the body of the request did not arrive in time"
        raise Refusal(408, late, headers={"Connection": "close"}) from None
    if message["type"] == "http.disconnect":
        raise ClientGone
    return message


def parse_body(body: bytes) -> dict[str, Any]:
    """The JSON object of a body; anything else is refused with status 400."""
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Refusal(400, f"the body is not UTF-8: byte {body[error.start]:#04x} at {error.start:,}") from None
    if not text.strip():
        raise Refusal(400, "the body is empty: send a JSON object")
    if "\\u0000" in text and NUL.search(text):
        raise Refusal(400, "the body has a NUL character (\\u0000), which belongs to no text")
    try:
        values: dict[str, Any] = parse_json(text, WHAT)
    except UserError as error:
        raise Refusal(400, str(error)) from None
    return values
