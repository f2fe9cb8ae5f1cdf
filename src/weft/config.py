"""Strict frozen dataclasses to and from TOML and JSON: every mistake is named with its file, section and key."""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
import types
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from weft.errors import UserError, did_you_mean, listed, shown
from weft.files import MEGABYTE, read_json, read_text, write_text

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Option:
    """How a setting appears on the command line."""

    flags: tuple[str, ...]
    help: str
    panel: str | None = None  # the heading in --help; by default that of its section
    metavar: str | None = None
    parse: Callable[[str], Any] | None = None  # for values that are written in another way than in TOML


def option(default: Any, *flags: str, help: str, **more: Any) -> Any:
    """A field of a dataclass that is also an option of the command line."""
    metadata = {"option": Option(flags, help, **more)}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: dict(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def keys(**options: Option) -> Any:
    """A section of free keys, some of which are options of the command line."""
    return dataclasses.field(default_factory=dict, metadata={"keys": options})


def section(default: T, *, without: tuple[str, ...] = ()) -> T:
    """A section of a recipe; its fields named in `without` are no options of the command line here."""
    return dataclasses.field(default=default, metadata={"without": without})


def comma_list(text: str) -> list[str]:
    """'a, b' as a list."""
    return [part.strip() for part in text.split(",") if part.strip()]


WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", type(None): "nothing"}


def build(kind: type[T], values: Mapping[str, Any], where: str, section: str = "") -> T:
    """A config of this kind from plain values; `where` is the file or flag that they came from."""
    assert dataclasses.is_dataclass(kind)
    place = f"{where} [{section}]" if section else where
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
    for name in values:
        if name not in fields:
            raise UserError(f"{place}: unknown key {shown(str(name))!r}{did_you_mean(str(name), fields)}")
    hints = get_type_hints(kind)
    prefix = f"{section}." if section else ""
    fitted = {name: _fit(hints[name], value, where, prefix + name) for name, value in values.items()}
    needed = [name for name, field in fields.items() if name not in fitted and field.default is field.default_factory]
    if needed:
        raise UserError(f"{place}: missing {listed(needed)}")
    try:
        return kind(**fitted)
    except UserError as error:
        raise UserError(f"{place}: {error}") from None


def _fit(hint: Any, value: Any, where: str, key: str) -> Any:
    """The value as the type of its field asks for it."""
    section, _, name = key.rpartition(".")
    place = f"{where} [{section}]: {name}" if section else f"{where}: {name}"
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in inside:
            return None
        others = [choice for choice in inside if choice is not type(None)]
        if len(others) == 1:
            return _fit(others[0], value, where, key)
        for choice in others:
            if isinstance(value, choice) and not (isinstance(value, bool) and choice is not bool):
                return value
        raise UserError(f"{place} must be {_named(hint)}, not {_shown(value)}")
    if origin is Literal:
        if value in inside and type(value) in {type(choice) for choice in inside}:
            return value
        near = did_you_mean(value, [c for c in inside if isinstance(c, str)]) if isinstance(value, str) else ""
        raise UserError(f"{place} must be one of {', '.join(map(str, inside))}, not {_shown(value)}{near}")
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_fit(inside[0], item, where, f"{key}.{number}") for number, item in enumerate(value))
    if origin is list and isinstance(value, list):
        return [_fit(inside[0], item, where, f"{key}.{number}") for number, item in enumerate(value)]
    if origin is dict and isinstance(value, Mapping):
        return {str(name): _fit(inside[1], item, where, f"{key}.{shown(str(name))}") for name, item in value.items()}
    if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        return build(hint, value, where, key)  # type: ignore[arg-type]
    if hint is Any:
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 1000:
        return float(value)
    if isinstance(hint, type) and isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    raise UserError(f"{place} must be {_named(hint)}, not {_shown(value)}")


def _named(hint: Any) -> str:
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_named(choice) for choice in inside)
    if origin in (tuple, list):
        return f"a list, each {_named(inside[0])}"
    if origin is dict or dataclasses.is_dataclass(hint):
        return "a section of keys and values"
    return WORDS.get(hint, str(hint))


def _shown(value: Any) -> str:
    return shown(json.dumps(value, default=str, ensure_ascii=False))


def values_of(config: Any) -> dict[str, Any]:
    """A config as plain values, ready for JSON or TOML; what is None is left out."""
    values = {field.name: vars(config)[field.name] for field in dataclasses.fields(config)}
    return {name: _plain(value) for name, value in values.items() if value is not None}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return values_of(value)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return value


def settings_of(settings: Iterable[str]) -> dict[str, Any]:
    """What a row of `--set a.b=value` says, as nested values; a value that is not TOML is taken as text."""
    values: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        parts = key.strip().split(".")
        if not equals or not all(re.fullmatch(r"[A-Za-z0-9_-]+", part) for part in parts):
            raise UserError(f"--set {shown(setting)}: write it as key=value or section.key=value")
        section = values
        for part in parts[:-1]:
            section = section.setdefault(part, {})
            if not isinstance(section, dict):
                raise UserError(f"--set {shown(setting)}: {part!r} was already set to a value")
        try:
            value = tomllib.loads(f"value = {text.strip()}")
        except (ValueError, RecursionError):  # not TOML, or a number of more digits than Python converts
            value = {}
        section[parts[-1]] = value["value"] if len(value) == 1 else text.strip()
    return values


def changed(config: T, values: Mapping[str, Any], where: str = "--set") -> T:
    """The config with these values in place of its own; sections are changed key by key."""
    return build(type(config), merged(values_of(config), values), where)


def merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Plain values with new ones in place of old; sections are changed key by key."""
    values = dict(old)
    for name, value in new.items():
        both = isinstance(value, Mapping) and isinstance(values.get(name), Mapping)
        values[name] = merged(values[name], value) if both else value
    return values


def toml_values(text: str, where: object) -> dict[str, Any]:
    """The values of a TOML text; `where`: the file, for messages."""
    try:
        return tomllib.loads(text)
    except ValueError as error:
        raise UserError(f"{where}: not TOML: {shown(str(error), 120)}") from None
    except RecursionError:
        raise UserError(f"{where}: nested too deeply") from None


def read_toml(kind: type[T], path: Path) -> T:
    """A config from a TOML file."""
    return build(kind, toml_values(read_text(path), path), path.name)


def read_record(kind: type[T], path: Path, most: int = 64 * MEGABYTE) -> T:
    """What a JSON file of ours holds, every value of its type and no key unknown."""
    return build(kind, read_json(path, most), str(path))


def write_toml(config: Any, path: Path) -> None:
    """A config as a TOML file that `read_toml` gives back equal."""
    write_text(path, "\n".join(_toml_lines(values_of(config), ())) + "\n")


def _toml_lines(values: Mapping[str, Any], section: tuple[str, ...]) -> list[str]:
    # Plain values come first: in TOML a key after a [section] line would belong to that section.
    lines = [f"{_key(name)} = {_toml(value)}" for name, value in values.items() if not isinstance(value, Mapping)]
    if section and (lines or not values):
        lines.insert(0, f"[{'.'.join(map(_key, section))}]")
    for name, value in values.items():
        if isinstance(value, Mapping):
            lines += ([""] if lines else []) + _toml_lines(value, (*section, name))
    return lines


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml(name)


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_key(name)} = {_toml(item)}' for name, item in value.items())}}}"
    if isinstance(value, float):
        return repr(value) if value == value and abs(value) != float("inf") else str(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
