"""Checks of values from a JSON file; each error names the field, the value and what would be right."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from weft.errors import UserError, did_you_mean, listed, shown

Check = Callable[[Any, str], None]


def value_shown(value: Any) -> str:
    """A value as an error shows it."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return shown(repr(value) if isinstance(value, str) else str(value))


def _check(is_right: Callable[[Any], bool], wanted: str) -> Check:
    def check(value: Any, where: str) -> None:
        if not is_right(value):
            raise UserError(f"{where} is {value_shown(value)}, {wanted}")

    return check


an_object = _check(lambda value: isinstance(value, dict), "not an object")
a_list = _check(lambda value: isinstance(value, list), "not a list")
a_text = _check(lambda value: isinstance(value, str), "not a text")
flag = _check(lambda value: type(value) is bool, "neither true nor false")
anything = _check(lambda value: True, "")  # checked elsewhere


def whole(low: int, high: int) -> Check:
    """A whole number in a range."""
    wanted = f"not a whole number from {low} to {high}" if low < high else f"and only {low} is supported"
    return _check(lambda value: type(value) is int and low <= value <= high, wanted)


def number(low: float, high: float) -> Check:
    """A number in a range."""
    wanted = f"not a number from {low:g} to {high:g}"
    return _check(lambda value: type(value) in (int, float) and low <= value <= high, wanted)


def choice(*names: str) -> Check:
    """One of some words."""
    return _check(lambda value: value in names, f"not one of {', '.join(names)}")


def text(max_length: int, min_length: int = 0) -> Check:
    """A text of some characters."""

    def check(value: Any, where: str) -> None:
        a_text(value, where)
        if not min_length <= len(value) <= max_length:
            raise UserError(f"{where} has {len(value)} characters, not {min_length} to {max_length}")

    return check


def none_or(inner: Check) -> Check:
    """What may be null."""
    return lambda value, where: None if value is None else inner(value, where)


def few(value: Any, where: str, max_entries: int, inner: Check = anything) -> None:
    """A list of at most so many values."""
    a_list(value, where)
    if len(value) > max_entries:
        raise UserError(f"{where} has {len(value)} entries; at most {max_entries} are read")
    for place, item in enumerate(value):
        inner(item, f"{where}.{place}")


def check_fields(
    value: Any, fields: Mapping[str, Check], where: str, optional: Collection[str] = (), joint: str = "."
) -> None:
    """Check an object by the table of its fields; what is not in the table is refused."""
    an_object(value, where)
    for key in value:
        if key not in fields:
            raise UserError(f"{where}: unknown field {shown(key)!r}{did_you_mean(key, fields)}")
    missing = [key for key in fields if key not in value and key not in optional]
    if missing:
        raise UserError(f"{where} has no {listed(missing)}")
    for key, item in value.items():
        fields[key](item, f"{where}{joint}{key}")


def fields_of(fields: Mapping[str, Check], optional: Collection[str] = ()) -> Check:
    """An object with these fields and no others."""
    return lambda value, where: check_fields(value, fields, where, optional)
