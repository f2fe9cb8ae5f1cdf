"""Arguments of `weft.finetune` and `weft.distill` as the settings of a recipe; rows in memory, paths made absolute."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.data.tables import RunRows, Table, is_section
from weft.errors import UserError
from weft.progress import Log
from weft.runs.recipes import overlaid

SIDES = ("source", "target", "dev_source", "dev_target")  # of files that belong together line for line
DEV = ("dev", "dev_source", "dev_target")


def settings_of(
    given: Mapping[str, Any],
    rows: RunRows,
    section: type[Any],
    tables: Mapping[str, Any],
    values: Mapping[str, Any],
    out: str | os.PathLike[str] | None,
) -> dict[str, Any]:
    """The settings of a call: `tables` of [data], `values` by `section.key`, each of which may be a whole section."""
    settings = dict(given)

    def put(name: str, key: str, value: Any) -> None:
        settings[name] = {**settings.get(name, {}), key: value}

    tables = dict(tables)
    if is_section(tables.get("files"), section):
        settings = overlaid(settings, {"data": tables.pop("files")})
    for name, value in values.items():
        if isinstance(value, Mapping):
            settings = overlaid(settings, {name.split(".")[0]: value})
    there = settings.get("data", {})
    tables |= {key: there[key] for key in SIDES if isinstance(there.get(key), str | os.PathLike)}
    for key, value in tables.items():
        if value is not None:
            put("data", key, rows.names(key, value))
    for name, value in values.items():
        if value is not None and not isinstance(value, Mapping):
            head, _, key = name.partition(".")
            put(head, key, os.fspath(value) if isinstance(value, os.PathLike) else value)
    if out is not None:
        settings["out"] = os.fspath(out)
    return settings


def absolute_tables(data: Any, keys: tuple[str, ...], rows: RunRows, out: str, log: Log) -> dict[str, Any]:
    """The files of [data] with whole paths, so that the run can be resumed from any folder."""
    values: dict[str, Any] = {**rows.paths(out)}
    for key in (*keys, "dev", *SIDES):
        if (names := vars(data)[key]) and key not in rows.tables:
            table = Table(names, format=data.format if key in ("files", "dev") else "txt")
            values[key] = table.absolute(lambda text: log(f"weft: note: {text}"))
    train, dev = (
        {name for key, names in values.items() for name in names if (key in DEV) is held_out}
        for held_out in (False, True)
    )
    if both := train & dev:
        raise UserError(f"{min(both)}: is both learned from and judged by")
    return values


def absolute(name: str) -> str:
    """A path that is the same from any folder."""
    return str(Path(name).expanduser().absolute())
