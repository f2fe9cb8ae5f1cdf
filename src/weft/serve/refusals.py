"""Errors of requests: a status, and a body in OpenAI's form without internals."""

from __future__ import annotations

import json
from typing import Any

# Status: the type and the code of OpenAI's error form.
KINDS: dict[int, tuple[str, str | None]] = {
    400: ("invalid_request_error", None),
    401: ("authentication_error", "invalid_api_key"),
    403: ("permission_error", None),
    404: ("invalid_request_error", "not_found"),
    405: ("invalid_request_error", "method_not_allowed"),
    408: ("invalid_request_error", "timeout"),
    413: ("invalid_request_error", "too_large"),
    415: ("invalid_request_error", "unsupported_media_type"),
    422: ("invalid_request_error", None),
    431: ("invalid_request_error", "too_large"),
    429: ("rate_limit_error", "rate_limit_exceeded"),
    500: ("server_error", "internal_error"),
    503: ("server_error", "unavailable"),
    504: ("server_error", "deadline_exceeded"),
}


class Refusal(Exception):
    """The error reply to a request; `param` names the wrong field, `reason` is its label in the metrics."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        *,
        code: str | None = None,
        reason: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param = status, message, param
        self.kind, usual = KINDS.get(status, ("invalid_request_error" if status < 500 else "server_error", None))
        self.code = code or usual
        self.reason = reason or self.code or str(status)
        self.headers = headers or {}

    def values(self) -> dict[str, Any]:
        """The error in OpenAI's form."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error}

    def body(self) -> bytes:
        return json.dumps(self.values()).encode()


class ClientGone(Exception):
    """The client has closed its connection, so there is no reply."""
