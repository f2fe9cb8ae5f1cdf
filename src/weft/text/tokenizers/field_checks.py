"""Checks of single values from a JSON file; each error names the field, the value and what would be right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from weft.errors import UserError, did_you_mean, listed, shown

Check = Callable[[Any, str], None]


def value_shown(value: Any) -> str:
    """A value as an error shows it."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return shown(repr(value) if isinstance(value, str) else str(value))


def whole(least: int, most: int) -> Check:
    """A whole number in a range."""

    def check(value: Any, where: str) -> None:
        if type(value) is not int or not least <= value <= most:
            wanted = f"not a whole number from {least} to {most}" if least < most else f"and only {least} is supported"
            raise UserError(f"{where} is {value_shown(value)}, {wanted}")

    return check


def text(most: int, least: int = 0) -> Check:
    """A text of some characters."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, str):
            raise UserError(f"{where} is {value_shown(value)}, not a text")
        if not least <= len(value) <= most:
            raise UserError(f"{where} has {len(value)} characters, not {least} to {most}")

    return check


def choice(*names: str) -> Check:
    """One of some words."""

    def check(value: Any, where: str) -> None:
        if value not in names:
            raise UserError(f"{where} is {value_shown(value)}, not one of {', '.join(names)}")

    return check


def flag(value: Any, where: str) -> None:
    """True or false."""
    if type(value) is not bool:
        raise UserError(f"{where} is {value_shown(value)}, neither true nor false")


def number(least: float, most: float) -> Check:
    """A number in a range."""

    def check(value: Any, where: str) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise UserError(f"{where} is {value_shown(value)}, not a number from {least:g} to {most:g}")

    return check


def none_or(inner: Check) -> Check:
    """What may be null."""
    return lambda value, where: None if value is None else inner(value, where)


def anything(value: Any, where: str) -> None:
    """Checked elsewhere."""


def few(value: Any, where: str, most: int) -> None:
    if not isinstance(value, list):
        raise UserError(f"{where} is {value_shown(value)}, not a list")
    if len(value) > most:
        raise UserError(f"{where} has {len(value)} entries; at most {most} are read")


def check_fields(value: Any, fields: Mapping[str, Check], optional: tuple[str, ...], where: str) -> None:
    """Check an object by the table of its fields."""
    if not isinstance(value, dict):
        raise UserError(f"{where} is {value_shown(value)}, not an object")
    for key in value:
        if key not in fields:
            raise UserError(f"{where}: unknown field {shown(key)!r}{did_you_mean(key, fields)}")
    missing = [key for key in fields if key not in value and key not in optional]
    if missing:
        raise UserError(f"{where} has no {listed(missing)}")
    for key, item in value.items():
        fields[key](item, f"{where}.{key}")
