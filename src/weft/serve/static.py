"""The routes of the page: its files are read once, kept in memory, and sent with an ETag."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

from starlette.requests import Request
from starlette.responses import Response

from weft.serve.pages import CONTENT_SECURITY_POLICY, page_files
from weft.serve.refusals import Refusal

DOCS, ICON = "/static/page/docs.html", "/static/page/icon.svg"
USUAL = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-cache",  # a browser may keep a file, and asks each time whether it has changed
}


@dataclass(frozen=True)
class StaticFile:
    """A file of the page."""

    content: bytes
    kind: str

    @cached_property
    def tag(self) -> str:
        return f'"{hashlib.sha256(self.content).hexdigest()[:24]}"'


class StaticFiles:
    """All files of the page, by their path in the URL."""

    def __init__(self) -> None:
        self.files = {path: StaticFile(*file) for path, file in page_files().items()}

    def reply(self, path: str, request: Request) -> Response:
        """A file, or status 304 if the browser has it already."""
        if path not in self.files:
            raise Refusal(404, "there is no such page")
        file = self.files[path]
        headers = {**USUAL, "ETag": file.tag}
        known = request.headers.get("if-none-match", "").split(",")
        if file.tag in (tag.strip().removeprefix("W/") for tag in known):
            return Response(status_code=304, headers=headers)
        return Response(file.content, headers={**headers, "Content-Type": file.kind})

    async def index(self, request: Request) -> Response:
        return self.reply("/", request)

    async def docs(self, request: Request) -> Response:
        return self.reply(DOCS, request)

    async def icon(self, request: Request) -> Response:
        return self.reply(ICON, request)

    async def file(self, request: Request) -> Response:
        return self.reply(request.scope["path"], request)
