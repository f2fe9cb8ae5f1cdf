"""What verbs take from the command line: models, texts and lines of standard input."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.cli.checks import check_device, find_model
from weft.cli.show import leaving_at_once
from weft.errors import UserError

if TYPE_CHECKING:
    from weft.tasks.model import Model


def load_model(
    folder: str, task: str | None = None, device: str | None = None, online: bool = False, trust: bool = False
) -> Model:
    """The model for a verb, on the device asked for or on the best there is."""
    find_model(folder, online)
    check_device(device)
    with leaving_at_once():
        from weft.tasks.model import load

    model = load(folder, task=task, online=online, trust=trust)
    return model.to(device or ("cpu" if model.opened.exported else best_device()))


def best_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def from_input(texts: list[str] | None) -> Iterator[str]:
    """The texts given, or one per line of standard input, blank ones too: answers come line for line."""
    if texts and texts != ["-"]:
        yield from texts
        return
    from weft.text.records import read_input

    if sys.stdin is None or sys.stdin.isatty():
        raise UserError("no text: give texts after the model, or one per line on standard input")
    for document in read_input():
        yield document.text


def models_and_texts(texts: list[str] | None) -> tuple[list[str], list[str]]:
    """Further model folders of an ensemble, and the texts after them."""
    given = list(texts or [])
    count = next((place for place, name in enumerate(given) if not is_model(name)), len(given))
    if _is_path(name := "".join(given[count : count + 1])):
        raise UserError(
            f"{name!r} is not a model folder: it has no config.json (a text like this one can come on standard input)"
        )
    return given[:count], given[count:]


def is_model(name: str) -> bool:
    try:
        return (Path(name) / "config.json").is_file()
    except (OSError, ValueError):  # a long text is no name
        return False


def _is_path(name: str) -> bool:
    """Whether a text is rather a slip in the name of a folder: one that is there, or would lie in one that is."""
    if not name.strip("/") or len(name.split()) != 1 or "/" not in name.rstrip("/"):
        return False
    try:
        return Path(name).is_dir() or (len(Path(name).parts) > 2 - (name[0] != "/") and Path(name).parent.is_dir())
    except (OSError, ValueError):
        return False


def print_json(answer: Any, **more: Any) -> None:
    """One answer as a line of JSON, after what it is the answer to."""
    print(json.dumps({**more, **asdict(answer)}, ensure_ascii=False))
