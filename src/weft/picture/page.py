"""One self-contained HTML file from parts: the stylesheet, the components it needs and their data are all inside.

A component is an ES module in `components/`. Its function (named after the file: `point-map.js` has `pointMap`) fills
an element from JSON. A page holds one script: the modules that it needs, joined. Its Content-Security-Policy names the
hash of that script, so nothing else can run, and nothing can be fetched.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from weft.picture.charts import DARK, LIGHT, paragraph, safe

IMPORT = re.compile(r'^import \{[^}]*\} from "\./([\w-]+)\.js";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(async )?function|const|class|let)", re.MULTILINE)
MARK = re.compile(r'data-component="([\w-]+)"')
ALWAYS = "shell"  # the module that every page has: the theme, and the start of the components


@cache
def source(name: str) -> str:
    """A file of `components/`; empty where there is none of that name."""
    path = files("weft.picture") / "components" / name
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def modules_of(names: Sequence[str]) -> list[str]:
    """These modules and those that they import, each after what it needs."""
    order: list[str] = []

    def add(name: str) -> None:
        assert source(f"{name}.js"), f"there is no component {name}"
        for needed in IMPORT.findall(source(f"{name}.js")):
            if needed not in order:
                add(needed)
        if name not in order:
            order.append(name)

    for name in names:
        add(name)
    return order


def function_of(name: str) -> str:
    """The function of a component: pointMap of point-map."""
    return re.sub(r"-(\w)", lambda match: match[1].upper(), name)


def script_of(names: Sequence[str]) -> str:
    """The modules joined into one script, which starts the components; names at their top level are unique."""
    order = modules_of([*names, ALWAYS])
    joined = "\n".join(EXPORT.sub("", IMPORT.sub("", source(f"{name}.js"))) for name in order)
    table = ", ".join(f'"{name}": {function_of(name)}' for name in names)
    return f"//<![CDATA[\n{joined}\nstartPage({{{table}}});\n//]]>"  # so that a page is XML too


def finite(data: Any) -> Any:
    """The same values, with null for numbers that are not finite, which JSON does not have."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {name: finite(value) for name, value in data.items()}
    return [finite(value) for value in data] if isinstance(data, list | tuple) else data


def json_text(data: Any) -> str:
    """JSON that may stand inside of a script element, whatever its strings hold; numbers that are not finite: null."""
    text = json.dumps(finite(data), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def component(name: str, data: Any) -> str:
    """An element that the component `name` fills from the data."""
    return (
        f'<div data-component="{safe(name)}">'
        f'<script type="application/json">{json_text(data)}</script>'
        "<noscript>This part needs JavaScript.</noscript></div>"
    )


def packed(array: Any) -> dict[str, Any]:
    """A numpy array of float16, float32, int8, uint8, uint16 or int32 as JSON, which `unpack` of base.js reads."""
    name = str(array.dtype)
    assert name in ("float16", "float32", "int8", "uint8", "uint16", "int32"), name
    data = base64.b64encode(array.astype(array.dtype.newbyteorder("<")).tobytes()).decode("ascii")
    return {"shape": list(array.shape), "type": name, "data": data}


def style_of(names: Sequence[str]) -> str:
    """The stylesheet of all pages, and those of the components."""
    light, dark = (" ".join(f"--line-{n}: {color};" for n, color in enumerate(colors)) for colors in (LIGHT, DARK))
    shared = source("style.css").replace("/* LIGHT LINES */", light).replace("/* DARK LINES */", dark)
    return shared + "".join(source(f"{name}.css") for name in modules_of(names))


def page(title: str, parts: Sequence[str], intro: str = "") -> str:
    """One whole HTML document; `parts` are what the functions of this package return, and are not escaped again."""
    sections = [f"<section>{part}</section>" for part in parts]
    names = sorted({name for part in parts for name in MARK.findall(part)})
    body = "\n".join([f"<h1>{safe(title)}</h1>", *([paragraph(intro)] if intro else []), *sections])
    script = script_of(names)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    compiled = " 'wasm-unsafe-eval'" if "live" in names else ""  # WebAssembly, which live pages compute with
    rules = (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; script-src 'sha256-{digest}'{compiled}"
    )
    head = (
        '<meta charset="utf-8"/>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{rules}"/>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        f"<title>{safe(title)}</title>\n<style>{style_of(names)}</style>\n"
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n{head}</head>\n<body>\n<main>\n{body}\n</main>\n'
        f'<script type="module">{script}</script>\n</body>\n</html>\n'
    )


def framed(document: str, height: int = 720) -> str:
    """A page inside of a notebook: a frame that can run its script and reach nothing else."""
    return (
        f'<iframe srcdoc="{html.escape(document)}" sandbox="allow-scripts" '
        f'style="width: 100%; height: {height}px; border: 0"></iframe>'
    )
