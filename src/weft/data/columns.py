"""Columns and cells of a table: which column is which, and what a cell holds; errors name the row, column and value."""

from __future__ import annotations

import ast
import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from weft.errors import UserError, did_you_mean, listed, shown
from weft.text.records import Record
from weft.text.rows import check_length
from weft.text.tables import IDS, LANGUAGES, NAMES, OURS, PAIRED, PAIRS, ZERO_ONE, folded, words_of

__all__ = ["NAMES", "OURS", "PAIRED", "file_of", "find_columns", "paired_columns"]
Note = Callable[[str], None]
PLACE = re.compile(r" (line|row) \d+( question \d+)?")
PLACES = re.compile(rf"{PLACE.pattern}$| article \d+( (paragraph|question) .*)?$| text [^/]+/[^/]+$")


def file_of(where: str, before: str = "") -> str:
    """'reviews.csv line 12' -> 'reviews.csv'; `before`: that of the row before, most often the same."""
    if before and where.startswith(before) and PLACE.fullmatch(where, len(before)):
        return before
    return PLACES.sub("", where)


def find_columns(
    needed: Sequence[str], given: Mapping[str, str], record: Record, note: Note = lambda text: None, guess: bool = True
) -> dict[str, str]:
    """The file's name of each column that a task needs: as given, by a usual name, or (`guess`) by its cells."""
    there = list(record.values)
    columns: dict[str, str] = {}
    if "pair" in needed and "pair" not in given and "text" not in given:
        columns |= dict(zip(("text", "pair"), _two_texts(there), strict=False))
    if "target" in needed and "source" not in given and "target" not in given:
        columns |= dict(zip(("source", "target"), paired_columns(there) or (), strict=False))
    for name in needed:
        if name in given:
            like = _like(given[name], there)
            if len(like) != 1:
                raise _no_column(given[name], record, file_of(record.where), did_you_mean(given[name], there))
            columns[name] = like[0]
    guess = guess and ("pair" in needed or not _two_texts(there))  # two texts: not one
    chosen = dict[str, str]()
    for name in needed:
        if name in columns:
            continue
        free = [each for each in there if each not in (*columns.values(), *(given[n] for n in given if n in needed))]
        usual = _usual(name, free)
        if usual is None:
            usual = _by_word(name, free, record)
            if usual is None and guess and record.likely.get(name) in free:
                usual = record.likely[name]
            if usual is None:
                hint = _hint(name, free, record, "target" in needed)
                raise _no_column(name, record, file_of(record.where), hint)
            chosen[name] = usual
        columns[name] = usual
    if chosen:
        taken = ", ".join(f"column {shown(theirs)!r} is taken for the {ours}" for ours, theirs in chosen.items())
        note(f"{Path(file_of(record.where)).name}: {taken} ({_flag(record, next(iter(chosen)), 'NAME')} for another)")
    return columns


def _like(name: str, there: Sequence[str]) -> list[str]:
    """The column of this name, else all that differ in case, spaces, underscores and hyphens alone."""
    return [name] if name in there else [each for each in there if folded(each) == folded(name)]


def _two_texts(there: Sequence[str]) -> list[str]:
    """The columns of two texts, by their usual names; none where there are not two."""
    pairs = ([like[0] for name in names if len(like := _like(name, there)) == 1] for names in PAIRS)
    return next((pair for pair in pairs if len(pair) == 2), [])


def _usual(name: str, there: Sequence[str]) -> str | None:
    """The column that has one of the usual names."""
    return next((like[0] for usual in NAMES.get(name, (name,)) if (like := _like(usual, there))), None)


def _by_word(name: str, there: Sequence[str], record: Record) -> str | None:
    """The column in whose name a usual one is a word: 'Ticket Text', 'Category ID', 'review_text'."""
    others = {theirs for ours, theirs in record.likely.items() if ours != name and theirs != record.likely.get(name)}
    for usual in NAMES.get(name, (name,)):
        like = [each for each in there if usual in words_of(each) and each not in others]  # 'Sort of sentence': labels
        ends = (usual, "id", "name", "code") if name == "label" else (usual,)
        like = [each for each in like if words_of(each)[-1] in ends]
        if name == "text":
            like = [each for each in like if isinstance(record.values[each], str)]
        if len(like) == 1:
            return like[0]
    return None


def _hint(name: str, free: Sequence[str], record: Record, pairs: bool) -> str:
    """Which flag names the column, with the likeliest one."""
    inside = [each for each in free if isinstance(record.values[each], dict)]
    for each in inside:
        if _usual(name, list(record.values[each])) is not None:
            return f"; {shown(each)!r} holds an object with it: put its entries at the top of each row"
    free = [each for each in free if each not in inside]
    sizes = {each: len(str(record.values[each] or "")) for each in free}
    likely = record.likely.get(name) or (max(sizes, key=sizes.__getitem__) if name == "text" and free else None)
    rest = [each for each in free if words_of(each)[-1:] not in ([name] for name in IDS)]
    likely = likely or (rest[0] if len(rest) == 1 else None)
    flag = _flag(record, name, likely or "NAME")
    if name == "text" and (both := _two_texts(free)):
        return f"; {listed(map(shown, both))} are two texts: give --task pair, or one of them: {flag}"
    more = "".join(f",column{place}" for place in range(3, len(record.values) + 1))
    bare = f"; of a file without a header line: --names source,target{more}" if pairs else ""
    return f"; name it with {flag}{bare}"


def _flag(record: Record, name: str, column: str) -> str:
    """How a column is named: by a flag, or in Python, where the rows are no file's."""
    source = file_of(record.where)
    if "." not in source and source != "standard input" and not os.path.exists(source):
        return f'columns={{"{name}": "{column}"}}'
    shape = f'"{column}"' if " " in column else column
    return f"--column {name}={shape}"


def paired_columns(there: Sequence[str]) -> tuple[str, str] | None:
    """The columns of source and target, by their usual names; None where the names do not tell."""
    folded = {name.casefold().strip(): name for name in there}
    for names in PAIRED:
        if set(names) <= set(folded):
            return folded[names[0]], folded[names[1]]
    codes = [name for name in there if re.fullmatch(r"([a-z]{2}|[A-Z]{2})([_-][A-Za-z]{2,4})?", name)]
    codes = codes if len(codes) == 2 else [name for name in codes if name.casefold() not in IDS]
    languages = codes if len(codes) == 2 else [name for name in there if name.casefold() in LANGUAGES]
    return (languages[0], languages[1]) if len(languages) == 2 else None


def _no_column(name: str, record: Record, where: str, hint: str = "") -> UserError:
    has = listed([shown(each) for each in record.values], 12) or "none"
    return UserError(f"{where}: no column {shown(name)!r}; it has {has}{hint}")


LARGEST_VALUE = 1e30  # of a number to learn: squares and sums of larger ones overflow


def wrong_cell(record: Record, column: str, what: str) -> UserError:
    """The error for one cell: 'reviews.csv line 12: column 'stars' is empty'."""
    return UserError(f"{record.where}: column {shown(column)!r} {what}")


def value_in(record: Record, column: str) -> Any:
    """What a row has in a column; lines of JSON may lack what the first of them has."""
    if column not in record.values:
        raise _no_column(column, record, record.where)
    return record.values[column]


def text_in(record: Record, column: str, empty: bool = False) -> str:
    """The text of a cell; `empty`: of a row to be predicted, whose empty cell is an empty text."""
    value = value_in(record, column)
    if isinstance(value, list | dict) or (value is None and not empty):
        raise wrong_cell(record, column, f"holds {_kind(value)}, not text")
    text = "" if value is None else str(value)
    if not empty and not text.strip():
        raise wrong_cell(record, column, "is empty")
    check_length(text, f"{record.where}: column {shown(column)!r}")
    return text


def word_in(record: Record, column: str) -> str:
    """A label: a word, or a number taken for one."""
    value = value_in(record, column)
    if isinstance(value, list) and len(value) == 1:  # as Doccano writes it
        value = value[0]
    if isinstance(value, list) and value:
        raise wrong_cell(record, column, f"holds {len(value)} labels; for several: --task multilabel")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, bool | int | str):
        raise wrong_cell(record, column, f"holds {_kind(value)}, not a label")
    if not str(value).strip():
        raise wrong_cell(record, column, "is empty: no label")
    return str(value).strip()


def is_one(record: Record, column: str) -> bool:
    """Whether a column of 0 and 1 holds 1; an empty cell is 0."""
    value = value_in(record, column)
    text = "" if is_blank(value) else str(value).strip().casefold()
    if text not in ("", *ZERO_ONE):
        raise wrong_cell(record, column, f"holds {shown(text)!r}, not 0 or 1")
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
        raise wrong_cell(record, column, f"holds {text!r}: {meanings}? write it without a comma")
    if THOUSANDS.fullmatch(text):
        value = text.replace(",", "")
    elif EUROPEAN.fullmatch(text):
        value = text.replace(".", "").replace(",", ".")
    try:
        number = float(value) if not isinstance(value, bool) and "_" not in text else math.nan
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise wrong_cell(record, column, f"holds {shown(str(value))!r}, not a number")
    if abs(number) > LARGEST_VALUE:
        raise wrong_cell(record, column, f"holds {shown(str(value))!r}; values go up to {LARGEST_VALUE:g}")
    return number


def check_decimal_mark(marks: dict[str, tuple[str, str]], record: Record, column: str) -> None:
    """Refuse a file whose values have a decimal comma in one row and a point in another: 2.000 is then 2 or 2000."""
    value = record.values.get(column)
    text = value.strip() if isinstance(value, str) else ""
    if not re.search(r"\d", text) or not re.search("[.,]", text):
        return
    mark = "," if EUROPEAN.fullmatch(text) else "."
    marks.setdefault(mark, (record.where, text))
    if len(marks) > 1:
        where, before = marks["." if mark == "," else ","]
        both = f"holds {shown(text)!r}, and {shown(before)!r} in {where}"
        raise wrong_cell(record, column, f"{both}: use one decimal mark in the whole column")


def words_in_list(record: Record, column: str) -> tuple[str, ...]:
    """Several labels: a list, or a text cut at line breaks, '|', ';' or ','."""
    value = list_in(record, column)
    if isinstance(value, str):
        mark = next((mark for mark in "\n|;," if mark in value), None)
        value = value.split(mark) if mark else [value]
    if not isinstance(value, list) or not all(isinstance(item, str | int) for item in value):
        raise wrong_cell(record, column, f"holds {_kind(value)}, not a list of labels")
    return tuple(dict.fromkeys(str(item).strip() for item in value if str(item).strip()))


def list_in(record: Record, column: str) -> Any:
    """What a row has in a column; a list or object that JSON or Python wrote into a cell is read as one."""
    value = value_in(record, column)
    if not isinstance(value, str) or not re.fullmatch(r"\[.*\]|\{\s*['\"].*\}", value.strip(), re.DOTALL):
        return value
    items: Any = None
    with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
        try:
            items = json.loads(value)
        except (ValueError, RecursionError):
            items = ast.literal_eval(value.strip())  # reads literals, and runs nothing
    if isinstance(items, set):
        items = sorted(items, key=str)
    if not isinstance(items, list | dict):
        raise wrong_cell(record, column, f"holds no list: {shown(value)}")
    return items


def numbers_of(value: Any, where: str, features: int | None = None) -> list[float]:
    """A vector as numbers: a list, an array, or a text of numbers, as JSON has them or parted by spaces or commas."""
    if isinstance(value, str):
        text = value.strip()
        if text.startswith("{"):
            raise UserError(f"{where}: a row, not a vector; rows of a file are read by --data")
        try:
            value = json.loads(text) if text.startswith("[") else re.split(r"[\s,;]+", text) if text else []
        except (ValueError, RecursionError):
            raise UserError(f"{where}: {shown(value)!r} is no list of numbers") from None
    elif hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, list | tuple):
        raise UserError(f"{where}: {shown(str(value))!r} is no list of numbers")
    if not value:
        raise UserError(f"{where}: there are no numbers")
    numbers = []
    for place, each in enumerate(value, 1):
        try:
            number = float(each) if isinstance(each, int | float | str) and not isinstance(each, bool) else math.nan
        except (ValueError, OverflowError):
            number = math.nan
        if not abs(number) <= 3e38:  # single precision holds no more; NaN is neither
            raise UserError(f"{where}: {shown(str(each))!r}, number {place} of {len(value)}, is no number")
        numbers.append(number)
    check_features(len(numbers), features, where)
    return numbers


def check_features(numbers: int, features: int | None, where: str) -> None:
    """Refuse a vector of another length than the one expected, if any is."""
    if features is not None and numbers != features:
        raise UserError(f"{where}: a vector of {numbers} number{'s' * (numbers != 1)}, where {features} are expected")


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def is_blank(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip()) or value != value
