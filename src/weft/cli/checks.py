"""Checks of what the command line was given that need no torch, so that a slip is told at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from weft.errors import UserError


def check_no_data_file(folder: str, texts: Sequence[str] | None) -> None:
    """A file of data where texts are expected was meant as --data."""
    from weft.text.compressed import telling_suffix
    from weft.text.formats import SUFFIXES

    for text in texts or ():
        try:
            data = len(text) < 4096 and telling_suffix(Path(text)) in SUFFIXES and Path(text).is_file()
        except (OSError, ValueError):
            continue
        if data:
            raise UserError(f"{text}: is a file of data, not a text; for its rows: weft predict {folder} --data {text}")


def check_data(*names: Sequence[str] | None) -> None:
    """Refuse files that are not there, before a model is loaded."""
    from weft.data.shards import Text

    for files in names:
        Text(tuple(files or ())).paths()


def check_device(device: str | None) -> None:
    """Refuse what is no name of a device; whether it is there, torch knows."""
    if device is not None and not re.fullmatch(r"cpu|(cuda|mps)(:[0-9]+)?", device):
        raise UserError(f"device {device!r} is not cpu, cuda, cuda:NUMBER or mps")


def find_model(name: str, online: bool = False) -> Path:
    """The folder of a model, found before torch is loaded."""
    from weft.checkpoint.locate import find_folder

    folder = find_folder(name, online)
    if not (folder / "config.json").is_file():
        raise UserError(f"{name!r} is not a model folder: it has no config.json")
    return folder


def check_models(names: Iterable[str], online: bool = False) -> None:
    for name in names:
        find_model(name, online)
