"""Cells of a row: texts, labels, numbers and lists, each checked; an error names the row, the column and the value."""

from __future__ import annotations

import ast
import json
import math
import re
from typing import Any

from weft.errors import UserError, listed, shown
from weft.text.delimited import ZERO_ONE
from weft.text.records import Record
from weft.text.rows import check_length

LARGEST_VALUE = 1e30  # of a number to learn: squares and sums of larger ones overflow


def value_in(record: Record, column: str) -> Any:
    """What a row has in a column; lines of JSON may lack what the first of them has."""
    if column not in record.values:
        has = listed([shown(each) for each in record.values], 12) or "none"
        raise UserError(f"{record.where}: no column {shown(column)!r}; it has {has}")
    return record.values[column]


def text_in(record: Record, column: str) -> str:
    value = value_in(record, column)
    if not isinstance(value, str):
        if value is None or isinstance(value, list | dict):
            raise UserError(f"{record.where}: column {shown(column)!r} holds {_kind(value)}, not text")
        value = str(value)
    if not value.strip():
        raise UserError(f"{record.where}: column {shown(column)!r} is empty")
    check_length(value, f"{record.where}: column {shown(column)!r}")
    return value


def loose_text(record: Record, column: str) -> str:
    """As `text_in`, of a row to be answered: an empty cell is an empty text."""
    value = value_in(record, column)
    if isinstance(value, dict | list):
        raise UserError(f"{record.where}: column {shown(column)!r} holds a {type(value).__name__}, not text")
    text = "" if value is None else str(value)
    check_length(text, f"{record.where}: column {shown(column)!r}")
    return text


def word_in(record: Record, column: str) -> str:
    """A label: a word, or a number taken for one."""
    value = value_in(record, column)
    if isinstance(value, list) and len(value) == 1:  # as Doccano writes it
        value = value[0]
    if isinstance(value, list) and value:
        raise UserError(
            f"{record.where}: column {shown(column)!r} holds {len(value)} labels; for several: --task multilabel"
        )
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool | int | str):
        found = str(value).strip()
        if found:
            return found
        raise UserError(f"{record.where}: column {shown(column)!r} is empty: no label")
    raise UserError(f"{record.where}: column {shown(column)!r} holds {_kind(value)}, not a label")


def is_one(record: Record, column: str) -> bool:
    """Whether a column of 0 and 1 holds 1; an empty cell is 0."""
    value = value_in(record, column)
    text = "" if is_blank(value) else str(value).strip().casefold()
    if text not in ("", *ZERO_ONE):
        raise UserError(f"{record.where}: column {shown(column)!r} holds {shown(text)!r}, not 0 or 1")
    return text in ("1", "1.0", "true")


THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:(,\d{3}){2,}|(,\d{3})+\.\d+)")  # 1,234,567 and 1,234.5
EUROPEAN = re.compile(r"[-+]?(\d{1,3}(\.\d{3})+|\d*),\d+|[-+]?\d{1,3}(\.\d{3}){2,}")  # 3,5 and 1.234,5 and 1.234.567
UNCLEAR = re.compile(r"[-+]?[1-9]\d{0,2},\d{3}")  # 1,234: as much as 1234, or a little more than 1


def number_in(record: Record, column: str) -> float:
    """A number, also with a decimal comma or with marks between thousands where that is beyond doubt."""
    value = value_in(record, column)
    text = value.strip() if isinstance(value, str) else ""
    if UNCLEAR.fullmatch(text):
        meanings = f"{text.replace(',', '')} or {text.replace(',', '.')}"
        raise UserError(
            f"{record.where}: column {shown(column)!r} holds {text!r}: {meanings}? write it without a comma"
        )
    if THOUSANDS.fullmatch(text):
        value = text.replace(",", "")
    elif EUROPEAN.fullmatch(text):
        value = text.replace(".", "").replace(",", ".")
    try:
        number = float(value) if not isinstance(value, bool) and "_" not in text else math.nan
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"{record.where}: column {shown(column)!r} holds {shown(str(value))!r}, not a number")
    if abs(number) > LARGEST_VALUE:
        raise UserError(
            f"{record.where}: column {shown(column)!r} holds {shown(str(value))!r}; values go up to {LARGEST_VALUE:g}"
        )
    return number


class DecimalMarks:
    """Refuses a file whose values have a decimal comma in one row and a point in another: 2.000 is then 2 or 2000."""

    def __init__(self) -> None:
        self.first: dict[str, tuple[str, str]] = {}  # mark -> where it came first, and in which value

    def check(self, record: Record, column: str) -> None:
        value = record.values.get(column)
        text = value.strip() if isinstance(value, str) else ""
        if not re.search(r"\d", text) or not re.search("[.,]", text):
            return
        mark = "," if EUROPEAN.fullmatch(text) else "."
        self.first.setdefault(mark, (record.where, text))
        if len(self.first) > 1:
            where, before = self.first["." if mark == "," else ","]
            raise UserError(
                f"{record.where}: column {shown(column)!r} holds {shown(text)!r}, and {shown(before)!r} in {where}: "
                "use one decimal mark in the whole column"
            )


def words_in_list(record: Record, column: str) -> tuple[str, ...]:
    """Several labels: a list, or a text cut at line breaks, '|', ';' or ','."""
    value = list_in(record, column)
    if isinstance(value, str):
        mark = next((mark for mark in "\n|;," if mark in value), None)
        value = value.split(mark) if mark else [value]
    if not isinstance(value, list) or not all(isinstance(item, str | int) for item in value):
        raise UserError(f"{record.where}: column {shown(column)!r} holds {_kind(value)}, not a list of labels")
    return tuple(dict.fromkeys(str(item).strip() for item in value if str(item).strip()))


def list_in(record: Record, column: str) -> Any:
    """What a row has in a column; a list that was written into a cell, as JSON or by Python, is read as one."""
    value = value_in(record, column)
    if not isinstance(value, str) or not re.fullmatch(r"\[.*\]|\{\s*['\"].*['\"]\s*\}", value.strip(), re.DOTALL):
        return value
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        try:
            found = ast.literal_eval(value.strip())  # reads literals, and runs nothing
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            raise UserError(f"{record.where}: column {shown(column)!r} holds no list: {shown(value)}") from None
    if isinstance(found, set):
        found = sorted(found, key=str)
    if not isinstance(found, list):
        raise UserError(f"{record.where}: column {shown(column)!r} holds no list: {shown(value)}")
    return found


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def is_blank(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip()) or value != value
