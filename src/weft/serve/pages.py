"""The files of the page by URL path, and their Content-Security-Policy. It imports no torch."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from weft.picture.page import modules_of, source, style_of

# Everything is loaded from this server, and no text can run as code: no inline script or style, no eval.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
COMPONENTS = (
    "attention",
    "attribution",
    "lens",
    "line-chart",
    "text-windows",
    "token-strips",
    "walk",
    "word-bars",
)  # that tabs show
TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}


@cache
def page_files() -> dict[str, tuple[bytes, str]]:
    """Each file of the page: its content and media type, by URL path; the page itself is "/"."""
    contents = {f"/static/picture/{name}.js": source(f"{name}.js") for name in modules_of([*COMPONENTS, "shell"])}
    contents["/static/picture/style.css"] = style_of(COMPONENTS)
    for path in sorted((files("weft.serve") / "page").iterdir(), key=lambda path: path.name):
        name = "/" if path.name == "index.html" else f"/static/page/{path.name}"
        if path.name.rpartition(".")[2] in TYPES:
            contents[name] = path.read_text(encoding="utf-8")
    return {
        name: (text.encode(), TYPES[name.rpartition(".")[2] if name != "/" else "html"])
        for name, text in contents.items()
    }
