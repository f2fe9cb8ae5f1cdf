"""ASGI middleware in front of all routes: Host, Origin and API key, security headers, errors, the access log.

Every exception of a route becomes an error reply in OpenAI's form, without internals.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import os
import re
from binascii import hexlify
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from weft.errors import shown
from weft.serve.calls import Call
from weft.serve.connections import LARGE
from weft.serve.events import log, place_of
from weft.serve.limits import HEADER_BYTES, MOST_HEADERS, ServeOptions
from weft.serve.refusals import ClientGone, Refusal

Headers = list[tuple[bytes, bytes]]
LOCAL = frozenset(("localhost", "127.0.0.1", "::1"))
OPEN = frozenset(("/", "/health", "/ready", "/docs", "/favicon.ico"))  # paths that need no key ...
OPEN_FOLDER = "/static/"  # ... and a folder whose files need none
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+?))\.?(?::\d{0,5})?")
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
GONE = 499  # in log and metrics: the client disconnected before the reply
USUAL: Headers = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
]
# For replies that are not pages: nothing may be loaded, and nothing is cached.
CLOSED: Headers = [
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
ALLOWED: Headers = [
    (b"access-control-allow-methods", b"GET, POST"),
    (b"access-control-allow-headers", b"authorization, *"),  # OpenAI's client in a page sends many of its own
    (b"access-control-max-age", b"600"),
]
EXPOSED = b"server-timing, retry-after, retry-after-ms, x-request-id"


class Guard:
    """Checks a request before any route sees it, and adds headers to its reply."""

    def __init__(
        self,
        app: ASGIApp,
        options: ServeOptions,
        key: str | None,
        done: Callable[[Call], None],
        is_draining: Callable[[], bool] = lambda: False,
    ) -> None:
        self.app, self.options, self.done, self.is_draining = app, options, done, is_draining
        self.key = None if key is None else key.encode()
        own = options.host.lower().strip("[]").rstrip(".")
        self.hosts = LOCAL | {own, *map(_bare, options.allow_host)}
        self.origins = frozenset(origin.lower() for origin in options.cors)
        self.prefix, self.count = hexlify(os.urandom(6)).decode(), 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)
        else:  # no route speaks WebSocket
            await send({"type": "websocket.close", "code": 1002})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.count += 1
        client = scope.get("client")
        call = Call(f"{self.prefix}-{self.count:x}", scope["method"], scope["path"], client[0] if client else "")
        scope.setdefault("state", {})["call"] = call
        extra: Headers = [*USUAL, (b"x-request-id", call.id.encode())]

        async def answered(message: Message) -> None:
            if message["type"] == "http.response.start":
                call.status = message["status"]
                own = message["headers"] = [*message.get("headers", ()), *extra]
                names = {name for name, _ in own}
                own += [pair for pair in CLOSED if pair[0] not in names]
                # After an error a client with Expect: 100-continue may send its body or not: the connection must end.
                last = not scope["state"].get("behind")  # no further request was sent on this connection
                if (self.is_draining() and last) or (call.status >= 400 and call.asks_first):
                    own.append((b"connection", b"close"))
            else:
                call.sent += len(message.get("body", b""))
            await send(message)

        try:
            headers = self._checked(scope, extra)
            if headers is None:
                await self.app(scope, receive, answered)
            else:
                await answered({"type": "http.response.start", "status": 204, "headers": headers})
                await answered({"type": "http.response.body"})
        except Refusal as refusal:
            call.reason = refusal.reason
            await refuse(refusal, call, answered)
        except ClientGone:
            call.reason, call.status = "client gone", GONE
        except asyncio.CancelledError:  # the time of --drain is over
            call.reason = "draining"
            ending = Refusal(503, "the server ends, and the answer was not ready in time", headers={"Retry-After": "1"})
            if not await refuse(ending, call, answered):
                raise
        except Exception as error:
            log("failure", request=call.id, error=type(error).__name__, at=place_of(error))
            call.reason = "internal_error"
            await refuse(Refusal(500, f"internal error; the log has it as request {call.id}"), call, answered)
        finally:
            self.done(call)

    def _checked(self, scope: Scope, extra: Headers) -> Headers | None:
        """Refuse a request that is not allowed; returned headers are the reply to a CORS preflight request."""
        hosts, origin, authorization, preflight = list[str](), "", b"", False
        size = len(scope["raw_path"]) + len(scope["query_string"])
        for name, value in scope["headers"]:
            size += len(name) + len(value) + 4
            if name == b"host":
                hosts.append(value.decode("latin-1").lower())
            elif name == b"origin":
                origin = value.decode("latin-1").lower()
            elif name == b"authorization":
                authorization = value
            elif name == b"expect":
                scope["state"]["call"].asks_first = True
            elif name == b"traceparent":
                scope["state"]["call"].parent = value.decode("latin-1")[:128]
            elif name == b"access-control-request-method":
                preflight = scope["method"] == "OPTIONS"
        if size > HEADER_BYTES or len(scope["headers"]) > MOST_HEADERS:
            raise LARGE
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            name = shown(hosts[0]) if hosts else ""
            raise Refusal(403, f"this server has no name {name!r} (see --allow-host)", reason="host")
        if origin:
            named = origin in self.origins
            if named:
                extra.append((b"access-control-allow-origin", origin.encode("latin-1")))
                extra.append((b"access-control-expose-headers", EXPOSED))
            if self.origins:
                extra.append((b"vary", b"origin"))
            same = origin.partition("://")[2] == hosts[0] and origin.startswith(("http://", "https://"))
            if not (named or same or (scope["method"] in SAFE_METHODS and not preflight)):
                raise Refusal(403, f"pages of {shown(origin)!r} may not send requests (see --cors)", reason="origin")
            if preflight and named:
                return ALLOWED
        self._check_key(scope, authorization)
        if CONTROL.search(scope["path"]):  # the patterns of routes would accept a newline at the end
            raise Refusal(404, "there is no such route")
        return None

    def _check_key(self, scope: Scope, authorization: bytes) -> None:
        path = scope["path"]
        if self.key is None or ((path in OPEN or path.startswith(OPEN_FOLDER)) and scope["method"] in SAFE_METHODS):
            return
        kind, _, given = authorization.partition(b" ")
        right = hmac.compare_digest(given.strip(), self.key)
        if kind.lower() != b"bearer" or not right:
            what = "wrong API key" if authorization else "no API key: send Authorization: Bearer KEY"
            raise Refusal(401, what, headers={"WWW-Authenticate": "Bearer"})

    def _is_ours(self, host: str) -> bool:
        """Whether a Host header is a name of this server; others are refused because of DNS rebinding."""
        name = _bare(host)
        if name in self.hosts:
            return True
        if self.options.is_local:
            return False
        try:  # an IP address cannot be rebound, so it need not be in the list
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _bare(host: str) -> str:
    """The name in a Host header without port, brackets and final dot; empty if the header is malformed."""
    parts = HOST.fullmatch(host.lower())
    return "" if parts is None else parts[1] or parts[2]


async def refuse(refusal: Refusal, call: Call, send: Send) -> bool:
    """Reply with an error, unless a reply has begun; returns whether it did."""
    if call.status:
        return False
    body = refusal.body()
    headers = [(name.lower().encode(), value.encode()) for name, value in refusal.headers.items()]
    headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
    return True
