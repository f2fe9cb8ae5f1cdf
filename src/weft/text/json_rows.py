"""Rows in a .json file: an array of objects, such an array inside an object, columns, lines of JSON, or SQuAD."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from weft.errors import UserError, listed, shown
from weft.files import JSON_VALUES, check_json_values
from weft.text.json_text import HALF, JsonText, half_character, json_words
from weft.text.rows import Options, Record, Rows, check_columns, need_columns
from weft.text.sources import RUN_ROWS, TextSource, read_lines, rewind
from weft.text.squad import read_squad

HOLDERS = ("data", "rows", "examples", "items", "records")  # keys of an object under which people put the rows


def read_json(source: TextSource, options: Options) -> Rows:
    """Rows of a JSON file, one at a time; its content shows how they are kept."""
    kind = json_kind(source)
    if kind in ("squad", "lines"):
        return (read_squad if kind == "squad" else read_jsonl)(source, options)
    return _checked(source, options, _columns(source) if kind == "columns" else _objects(source, kind))


def json_kind(source: TextSource) -> str:
    """array, squad, lines, columns, or the key of the object that holds the rows; '' where the file is empty."""
    kind = _kind(JsonText(source))
    rewind(source)
    return kind


def _kind(text: JsonText) -> str:
    name = text.source.name
    first = text.peek()
    if first in ("", "["):
        return "array" if first else ""
    if first != "{":
        raise UserError(f"{name}: {shown(first)!r} where a JSON array of objects, or an object, is expected")
    keys, lists = list[str](), True
    for key in text.members():
        keys.append(key)
        if key not in HOLDERS or text.peek() != "[":
            lists = isinstance(text.value(), list | dict) and lists
            continue
        entries = text.entries("row")
        _, first_entry = next(entries, (0, {}))
        if isinstance(first_entry, dict):
            return "squad" if key == "data" and (not first_entry or "paragraphs" in first_entry) else key
        for _ in entries:
            pass
    if text.peek() == "{":
        return "lines"
    if keys and lists and not text.peek():
        return "columns"
    raise UserError(
        f"{name}: no rows: give an array of objects, an object with such an array under {listed(HOLDERS[:2])}, "
        f'SQuAD\'s "data" list, or lines of JSON (--format jsonl); it has {listed(map(shown, keys)) or "nothing"}'
    )


def _objects(source: TextSource, holder: str) -> Iterator[tuple[int, Any]]:
    """The entries of an array, numbered from 1."""
    text = JsonText(source)
    if holder == "array":
        yield from text.entries("row")
        return
    for key in text.members() if text.peek() else ():
        if key == holder:
            yield from text.entries("row")
            return
        text.value()


def _columns(source: TextSource) -> Iterator[tuple[int, Any]]:
    """The rows of an object of columns: lists, or objects by the number of the row, as pandas writes them."""
    text = JsonText(source)
    columns: dict[str, list[Any]] = {}
    for key in text.members():
        value = text.value(f" column {shown(key)}")
        columns[key] = list(value.values()) if isinstance(value, dict) else value
    if len({len(cells) for cells in columns.values()}) > 1:
        sizes = listed(f"{shown(name)} has {len(cells)}" for name, cells in columns.items())
        raise UserError(f"{source.name}: its columns are of different lengths: {sizes}")
    for number, cells in enumerate(zip(*columns.values(), strict=True), start=1):
        yield number, dict(zip(columns, cells, strict=True))


def _checked(source: TextSource, options: Options, entries: Iterator[tuple[int, Any]]) -> Rows:
    for number, values in entries:
        where = f"{source.name} row {number}"
        try:
            record = _record(values, where, options)
        except UserError as error:
            yield error
        else:
            yield record


def _record(values: Any, where: str, options: Options, escapes: bool = True) -> Record:
    """A JSON value as a row; `escapes`: it may spell half of a character."""
    if not isinstance(values, dict):
        raise UserError(f"{where}: a JSON {type(values).__name__} where an object is expected")
    check_nesting(values, where)
    values = unwrapped(values)
    check_columns(len(values), where)
    need_columns(list(values), options, where)
    if escapes and half_character(values):
        raise UserError(f"{where}: {HALF}")
    return Record(values, where)


MAX_NESTING = 100  # lists and objects inside of each other in a row


def check_nesting(values: dict[str, Any], where: str) -> None:
    """Refuse a row of lists in lists without end: whoever walks through it later would run out of stack."""
    level: list[Any] = [values]
    for _ in range(MAX_NESTING):
        inside = [inner for each in level for inner in (each.values() if isinstance(each, dict) else each)]
        level = [each for each in inside if isinstance(each, dict | list)]
        if not level:
            return
    raise UserError(f"{where}: nested deeper than {MAX_NESTING} levels")


def unwrapped(values: dict[str, Any]) -> dict[str, Any]:
    """The columns of a row that stands inside another object: {"translation": {"en": ..., "de": ...}}."""
    if "row_idx" in values and isinstance(values.get("row"), dict):
        return values["row"]  # as the viewer of Hugging Face hands rows out
    if isinstance(values.get("data"), dict) and isinstance(values.get("annotations"), list):
        return _label_studio(values)
    inner = next(iter(values.values()), None)
    return inner if len(values) == 1 and isinstance(inner, dict) else values


def _label_studio(values: dict[str, Any]) -> dict[str, Any]:
    """A task that Label Studio exports: its data, and spans, labels or a rating out of its first annotation."""
    row = {**({"id": values["id"]} if "id" in values else {}), **values["data"]}
    done = [each for each in values["annotations"] if isinstance(each, dict) and not each.get("was_cancelled")]
    results = done[0].get("result") if done else None
    if not isinstance(results, list):
        return row
    spans, labels = [], list[Any]()
    for result in results:
        value = result.get("value") if isinstance(result, dict) else None
        if isinstance(value, dict) and "start" in value:
            spans.append({name: value.get(name) for name in ("start", "end", "labels")})
        elif isinstance(value, dict):
            row |= {"value": value["rating"]} if "rating" in value else {}
            labels += value.get("choices") or []
    return {**row, **({"label": labels} if labels else {"spans": spans})}


def read_jsonl(source: TextSource, options: Options) -> Rows:
    """A JSON object per line."""
    unit = "row" if source.name in RUN_ROWS.values() else "line"
    for number, text, fault in read_lines(source):
        where = f"{source.name} {unit} {number}"
        if fault:
            yield fault
            continue
        if not text or text.isspace():
            continue
        try:
            check_json_values(text, where, JSON_VALUES)
            record = _record(json.loads(text), where, options, "\\u" in text)
        except UserError as error:
            yield error
        except (ValueError, RecursionError) as error:
            column = f" (column {error.colno})" if isinstance(error, json.JSONDecodeError) else ""
            yield UserError(f"{where}: {json_words(error)}{column}")
        else:
            yield record
