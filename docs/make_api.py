"""Write the API reference, one page per public name, from signatures and docstrings.

python docs/make_api.py
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import weft

FOLDER = Path(__file__).parent / "api"
WIDTH = 100  # of a signature on one line


def signature(name: str, member: Any) -> str:
    """A call as it is written, one parameter per line where it is long."""
    given = inspect.signature(member)
    parameters = [plain(value) for key, value in given.parameters.items() if key != "self"]
    whole = inspect.Signature(parameters, return_annotation=given.return_annotation)
    text = f"{name}{whole}".replace("'", "")
    if len(text) <= WIDTH:
        return text
    lines, keyword_only = [], False
    for value in parameters:
        if value.kind is inspect.Parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            lines.append("    *,")
        lines.append(f"    {value},".replace("'", ""))
    result = "" if whole.return_annotation is inspect.Signature.empty else f" -> {whole.return_annotation}"
    return "\n".join([f"{name}(", *lines, f"){result}"])


def plain(parameter: inspect.Parameter) -> inspect.Parameter:
    """A default that is a function is shown by its name, not by its address."""
    return parameter.replace(default=Named(parameter.default)) if inspect.isfunction(parameter.default) else parameter


class Named:
    """A function whose text is its name."""

    def __init__(self, function: Any) -> None:
        self.name = f"{function.__module__}.{function.__name__}"

    def __repr__(self) -> str:
        return self.name


def docstring(member: Any) -> str:
    text = inspect.getdoc(member)
    assert text, f"{member} has no docstring"
    return text


def members(kind: type[Any]) -> list[tuple[str, Any]]:
    """The public methods and properties that a class defines itself; `__call__` first."""
    own = [(name, value) for name, value in vars(kind).items() if not name.startswith("_") or name == "__call__"]
    shown = [(name, value) for name, value in own if callable(value) or isinstance(value, property | classmethod)]
    return sorted(shown, key=lambda item: item[0] != "__call__")


def page(name: str) -> str:
    """The page of one public name."""
    value = getattr(weft, name)
    if not inspect.isclass(value):
        return f"# weft.{name}\n\n```text\n{signature(f'weft.{name}', value)}\n```\n\n{docstring(value)}\n"
    parts = [f"# weft.{name}\n\n{docstring(value)}\n"]
    variable = name.lower()
    for member, given in members(value):
        function = given.__func__ if isinstance(given, classmethod) else given
        if isinstance(given, property):
            parts.append(f"## {member}\n\n{docstring(given)}\n")
            continue
        call = variable if member == "__call__" else f"{variable}.{member}"
        parts.append(f"## {member}\n\n```text\n{signature(call, function)}\n```\n\n{docstring(function)}\n")
    return "\n".join(parts)


def pages() -> dict[str, str]:
    """Every page by its file name."""
    names = [name for name in weft.__all__ if not name.startswith("_")]
    rows = [f"| [`weft.{name}`]({name}.md) | {docstring(getattr(weft, name)).splitlines()[0]} |" for name in names]
    index = "\n".join(["# Python API", "", "| name | what it is for |", "|---|---|", *rows, ""])
    return {"README.md": index, **{f"{name}.md": page(name) for name in names}}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
