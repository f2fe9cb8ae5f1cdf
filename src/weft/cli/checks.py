"""Checks of the command line that need no torch, so that a mistake is reported at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.errors import UserError, one_of

if TYPE_CHECKING:
    from weft.data.tables import Table


def check_no_data_file(folder: str, texts: Sequence[str] | None) -> None:
    """A file of data where texts are expected was meant as --data."""
    from weft.text.rows import SUFFIXES
    from weft.text.sources import format_suffix

    for text in texts or ():
        try:
            data = len(text) < 4096 and format_suffix(Path(text)) in SUFFIXES and Path(text).is_file()
        except (OSError, ValueError):
            continue
        if data:
            raise UserError(f"{text}: is a file of data, not a text; for its rows: weft predict {folder} --data {text}")


def check_data(*names: Sequence[str] | None) -> None:
    """Refuse files that are not there, before a model is loaded."""
    from weft.data.shards import TextFiles

    for files in names:
        TextFiles(tuple(files or ())).paths()


def check_device(device: str | None) -> None:
    """Refuse what is no name of a device; whether it is there, torch knows."""
    if device is not None and not re.fullmatch(r"cpu|(cuda|mps)(:[0-9]+)?", device):
        raise UserError(f"device {device!r} is not cpu, cuda, cuda:NUMBER or mps")


def find_model(name: str, online: bool = False) -> Path:
    """The folder of a model, before torch is loaded."""
    from weft.checkpoint.locate import find_folder

    folder = find_folder(name, online)
    if not (folder / "config.json").is_file():
        raise UserError(f"{name!r} is not a model folder: it has no config.json")
    return folder


def check_models(names: Iterable[str], online: bool = False) -> None:
    for name in names:
        find_model(name, online)


def check_choices(*given: tuple[str, str | None, Iterable[str]]) -> None:
    """Each flag that was given has one of its values."""
    for flag, value, choices in given:
        if value is not None:
            one_of(value, choices, flag)


def check_reading(format: str | None, column: Mapping[str, str], *names: Sequence[str] | None) -> None:
    """Refuse a format that nobody reads, columns that no task has, and files that are not there."""
    from weft.data.tables import Table
    from weft.text.records import FORMATS

    check_choices(("--format", format, FORMATS))
    for files in names:
        Table(tuple(files or ()), column, format).paths()


def check_rows(given: Mapping[str, Any], *names: Sequence[str] | None) -> None:
    """As `check_reading`, for the options of a table."""
    check_reading(given.get("format"), given.get("columns", {}), *names)


def table_of(data: Sequence[str], given: Mapping[str, Any], **more: Any) -> Table:
    """A table with the options that were given."""
    from weft.data.tables import Table

    return Table(tuple(data), **{**given, "names": tuple(given.get("names", ()))}, **more)


def check_run(out: str | None, model: Mapping[str, Any], online: bool = False, several: bool = False) -> None:
    """Refuse a run without a place for it, and a model that is not there; `several` runs go into a folder together."""
    from weft.checkpoint.locate import check_name
    from weft.files import check_new_run

    if out is None:
        raise UserError("no folder for the run: give --out FOLDER")
    if not several:
        check_new_run(Path(out))
    family, base = model.get("family"), model.get("base")
    if isinstance(family, str):
        check_name(family, model.get("size"))
    if isinstance(base, str) and not Path(base).is_file():  # word vectors may come in a file
        find_model(base, online)


def check_written(folder: str, out: Path | None, online: bool = False) -> None:
    """A model folder that is there, and a place for the one that is made of it."""
    from weft.files import check_new_folder

    if out is None:
        raise UserError("no folder for the model: give --out FOLDER")
    find_model(folder, online)
    check_new_folder(out)
