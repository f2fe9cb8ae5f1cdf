"""Families and tasks of other distributions, through entry points. A plug-in is imported when its name is asked for."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from weft.errors import UserError, listed, shown

FAMILIES, TASKS = "weft.families", "weft.tasks"  # the groups


def sources(group: str) -> dict[str, str]:
    """The names in a group, sorted, and the package of each, without importing anything."""
    return {entry.name: _source(entry) for entry in sorted(entry_points(group=group), key=lambda entry: entry.name)}


def load_plugin(group: str, name: str) -> Any:
    """What the entry point of this name stands for; None where there is none.

    A caller looks among its built-in names first, so no plug-in can take one of those.
    """
    entries = list(entry_points(group=group, name=name))
    if not entries:
        return None
    if len({entry.value for entry in entries}) > 1:
        raise UserError(f"{group}: {name!r} is claimed by several packages: {listed(map(_source, entries))}")
    try:
        return entries[0].load()
    except Exception as error:  # whatever another package's module raises
        reason = str(error).strip().splitlines()
        what = f"{type(error).__name__}{': ' + shown(reason[0], 160) if reason else ''}"
        raise broken(group, name, f"cannot be imported: {what}") from error


def broken(group: str, name: str, fault: str) -> UserError:
    """An error that names the package of a plug-in."""
    packages = listed(map(_source, entry_points(group=group, name=name)))
    return UserError(f"{group}: plug-in {name!r} of {packages} {fault}")


def _source(entry: EntryPoint) -> str:
    return f"{entry.dist.name if entry.dist else 'an unknown package'} ({entry.value})"
