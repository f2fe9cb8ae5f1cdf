"""What a table shows by itself: its delimiter, whether its first line names the columns, and which column is which."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from typing import Any

from weft.text.column_names import IDS, folded, known_name

DELIMITERS = (",", ";", "\t", "|")
ROWS = 200  # rows that are looked at
CHARACTERS = 1 << 18  # and characters at most
NUMBER = re.compile(r"\s*[-+]?(\d+([.,]\d*)?|[.,]\d+)([eE][-+]?\d+)?\s*%?\s*")
ZERO_ONE = ("0", "1", "0.0", "1.0", "true", "false")  # in small letters
FEW_VALUES = 50  # a column of more different values is hardly one of labels


def split_rows(lines: Sequence[str], delimiter: str) -> tuple[list[list[str]], bool]:
    """The first rows of lines with quoted fields, and whether they could be read; the last may be cut off."""
    rows = list[list[str]]()
    reader = csv.reader((line + "\n" for line in lines), delimiter=delimiter, strict=True)
    try:
        for row in reader:
            if row:
                rows.append(row)
            if len(rows) >= ROWS:
                break
    except csv.Error as error:
        return rows, "unexpected end" in str(error)
    return rows, True


def delimiter_of(lines: Sequence[str], usual: str) -> str:
    """The delimiter that parts the lines of a table most evenly; the usual one where nothing is clearly better."""
    best, even = _evenest(lines, usual)
    for place in range(1, min(5, len(lines) - 3)):  # a title may stand above the header
        if even >= 0.5:
            break
        below, more = _evenest(lines[place:], usual)
        best, even = (below, more) if more > 0.9 else (best, even)
    return best


def _evenest(lines: Sequence[str], usual: str) -> tuple[str, float]:
    """The delimiter with the largest share of lines that have as many fields as the first, and that share."""
    best, evenness = usual, 0.0
    for delimiter in (usual, *(each for each in DELIMITERS if each != usual)):
        if not lines or delimiter not in lines[0]:
            continue
        rows, whole = split_rows(lines, delimiter)
        if not rows or len(rows[0]) < 2:
            continue
        even = sum(len(row) == len(rows[0]) for row in rows) / len(rows)
        even -= 0 if whole else 0.5  # quotes that do not close speak against it
        if even > evenness + 0.02:
            best, evenness = delimiter, even
    return best, evenness


def lacks_header(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row looks like the others rather than like the names of columns."""
    first, rest = rows[0], [row for row in rows[1:] if len(row) == len(rows[0])]
    # A name that comes again in its column is a label which happens to be called so: question, comment.
    named = [known_name(name) and all(row[place] != name for row in rest) for place, name in enumerate(first)]
    if any(named) or all(not cell.strip() for cell in first[1:]):
        return False
    if [cell.strip() for cell in first if cell.strip()] in (numbers(len(first)), numbers(len(first) - 1)):
        return False  # pandas numbers columns that have no name
    if any(len(cell) > 80 and len(cell.split()) > 9 for cell in first):
        return True
    for place, cell in enumerate(first):
        column = [row[place] for row in rest]
        if not cell.strip() or len(column) < 2:
            continue
        if NUMBER.fullmatch(cell) and all(NUMBER.fullmatch(each) for each in column):
            return True
        if cell in column and len(set(column)) <= max(2, len(column) // 2):
            return True
    return False


def numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def names_for(rows: Sequence[Sequence[str]]) -> list[str] | None:
    """Names for the columns of a table without a header line; None where nothing shows which of them is the text."""
    width = len(rows[0])
    places = [f"place {place}" for place in range(width)]
    likely = likely_columns([dict(zip(places, row, strict=True)) for row in rows if len(row) == width])
    if "text" not in likely or (width > 1 and "label" not in likely):
        return None
    ours = {likely["text"]: "text", likely.get("label", ""): "label"}
    return [ours.get(place, f"column {number}") for number, place in enumerate(places, start=1)]


def likely_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Which column is the text, and which the label or the value, where the cells leave no doubt."""
    columns: dict[str, list[str]] = {}
    for row in rows:
        for name, value in row.items():
            if value is not None and not isinstance(value, list | dict) and str(value).strip():
                columns.setdefault(name, []).append(str(value).strip())
    likely: dict[str, str] = {}
    flags = [name for name, cells in columns.items() if {cell.casefold() for cell in cells} <= set(ZERO_ONE)]
    if len(flags) > 1:  # a label each, of rows that may have several
        likely["indicators"] = "\t".join(flags)
    text = _text(columns)
    if text is not None:
        likely["text"] = text
    labels, values = [], []
    for name, cells in columns.items():
        if name == text or folded(name) in IDS:
            continue
        kinds = len(set(cells))
        numeric = all(NUMBER.fullmatch(cell) for cell in cells)
        whole = all(re.fullmatch(r"-?\d+", cell) for cell in cells)
        if 2 <= kinds <= min(FEW_VALUES, len(cells) // 2) and max(map(len, cells)) <= 60 and (whole or not numeric):
            labels.append(name)
        if numeric and kinds > 2:
            values.append(name)
    likely |= {"label": labels[0]} if len(labels) == 1 else {}
    likely |= {"value": values[0]} if len(values) == 1 else {}
    return likely


def _text(columns: Mapping[str, Sequence[str]]) -> str | None:
    """The only column of running text, or the one with far longer texts than any other."""
    lengths = {}
    for name, cells in columns.items():
        words = sum(len(cell.split()) for cell in cells) / len(cells)
        different = len(set(cells)) / len(cells)
        if words >= 2 and different > 0.5 and not all(NUMBER.fullmatch(cell) for cell in cells):
            lengths[name] = sum(map(len, cells)) / len(cells)
    order = sorted(lengths, key=lambda name: -lengths[name])
    if not order or (len(order) > 1 and lengths[order[0]] < 3 * lengths[order[1]]):
        return None
    return order[0]
