"""The body of a request: read with a limit and a time, and parsed as one JSON object."""

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

WHAT = Path("body")  # what messages call it
NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")  # the character, not the letters after an escaped backslash
JSON_TYPES = ("application/json",)
AT_ONCE = 1 << 27  # bytes of bodies that may be on their way together ...
SMALL = 1 << 16  # ... and how many one may have that is read in any case
# What `curl -d` sends unless it is told otherwise. A browser may send it from any page without asking first, but with
# an Origin header, which curl does not have.
PLAIN_TYPES = ("application/x-www-form-urlencoded", "")


def header(scope: Scope, name: bytes) -> str:
    """A header of a request; empty where there is none."""
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")


def check_type(scope: Scope) -> None:
    """Refuse a body that says it is something else than JSON."""
    kind, _, rest = header(scope, b"content-type").lower().partition(";")
    charset = rest.partition("charset=")[2].partition(";")[0].strip().strip('"')
    plain = kind.strip() in PLAIN_TYPES and not header(scope, b"origin")
    if not (kind.strip() in JSON_TYPES or plain) or charset not in ("", "utf-8", "utf8"):
        raise Refusal(415, "the body must be JSON in UTF-8: send Content-Type: application/json")
    plain = header(scope, b"transfer-encoding").lower() in ("", "chunked")
    if header(scope, b"content-encoding").lower() not in ("", "identity") or not plain:
        raise Refusal(415, "a compressed body is not read: send it as it is")


class BodyBudget:
    """Memory for large bodies that are on their way, of all connections together."""

    def __init__(self, largest: int) -> None:
        self.largest, self.most = largest, max(AT_ONCE, 4 * largest)
        self.held = 0

    @contextmanager
    def room(self, scope: Scope) -> Iterator[None]:
        """Room for the body of a request, as large as it says or may be; refused where others have taken it all."""
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
    """The whole body, unless it is too large or takes too long."""
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
    """The JSON object of a body; whatever is none is a refusal with status 400."""
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
