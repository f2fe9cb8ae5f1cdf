"""The header of a table: where it stands, whether there is one, and what it calls the columns."""

from __future__ import annotations

from collections.abc import Sequence

from weft.errors import UserError, listed
from weft.text.column_names import known_name
from weft.text.rows import check_columns, check_names
from weft.text.sources import TextSource
from weft.text.table_layout import lacks_header, names_for

TWO = "text,label or --names source,target"
THREE = "text,label,... or --names text,pair,label"
TITLES = 6  # rows above a header at most

Cells = Sequence[tuple[int, Sequence[str]]]  # rows with their numbers


def title_rows(rows: Sequence[Sequence[str]]) -> int:
    """How many rows stand above the header: blank ones, and those with one cell only, such as the title of an export.

    0 where the table has one column, or where the row below is as empty.
    """
    for place, row in enumerate(rows[: TITLES + 1]):
        cells = [cell.strip() for cell in row if cell.strip()]
        if len(cells) > 1:
            return place if _is_header(row, cells, rows[place + 1 :]) else 0
        if cells and known_name(cells[0]):
            return 0
    return 0


def _is_header(row: Sequence[str], cells: Sequence[str], below: Sequence[Sequence[str]]) -> bool:
    """Whether a row names the columns of those below it, rather than being a line of text that was cut at commas."""
    alike = sum(len(other) == len(row) and sum(map(bool, map(str.strip, other))) > 1 for other in below)
    named = any(map(known_name, cells)) or (len(below) > 4 and all(len(cell.split()) < 5 for cell in cells))
    return named and len(below) > 0 and alike >= 0.8 * len(below)


def header_of(source: TextSource, rows: Cells, unit: str) -> tuple[list[str], int]:
    """The names of the columns, and how many rows come before the first one of data; `unit`: line or row."""
    blank = next((place for place, (_, cells) in enumerate(rows) if any(cell.strip() for cell in cells)), len(rows))
    skipped = title_rows([cells for _, cells in rows]) or blank
    if skipped == len(rows):
        raise UserError(f"{source.name}: empty: no header line")
    if skipped > blank:
        header = rows[skipped][0]
        source.note(f"{source.name}: {unit} {rows[blank][0]} is taken for a title, and {unit} {header} for the header")
    number, first = rows[skipped]
    table = [cells for _, cells in rows[skipped:] if cells]
    where = f"{source.name} {unit} {number}"
    check_columns(len(first), where)
    if lacks_header(table):
        names = names_for(table)
        if names is None:
            example = TWO if len(first) == 2 else THREE
            raise UserError(
                f"{where}: looks like a row, not like the names of columns; "
                f"name its {len(first)} columns, such as --names {example}"
            )
        source.note(f"{source.name}: no header line; its columns are taken for {listed(names, 12)}")
        return names, skipped
    names = [name.strip() for name in first]
    if _has_row_numbers(table):
        names.insert(0, "")
    if len(names) > 1 and not names[0]:  # pandas and R write row numbers into a first column without a name
        names[0] = "column 1"
    for place, name in enumerate(names):  # a delimiter at the end of every line makes a column of nothing
        if not name and len(table) > 1 and not any("".join(row[place : place + 1]).strip() for row in table):
            names[place] = f"column {place + 1}"
    names, given = _numbered(names), names
    check_names(where, names)
    if again := [name for name, before in zip(names, given, strict=True) if name != before]:
        source.note(f"{where}: columns have the same name; the later ones are called {listed(again, 3)}")
    return names, skipped + 1


def _has_row_numbers(table: Sequence[Sequence[str]]) -> bool:
    """Whether each row has one cell more than the header, a number of its own before the others, as R writes them."""
    rest = [row for row in table[1:] if any(cell.strip() for cell in row)]
    numbers = {row[0] for row in rest if row[0].strip().isdigit()}
    return len(rest) > 1 and len(numbers) == len(rest) and all(len(row) == len(table[0]) + 1 for row in rest)


def _numbered(names: Sequence[str]) -> list[str]:
    """Names with a number after those that come again, as pandas has them; not those that a task may look for."""
    unique, taken, numbers = list[str](), set(names), dict[str, int]()
    for name in names:
        number = numbers.get(name, 0)  # of the last one of this name
        if name and name in numbers and known_name(name) != "usual":
            number += 1
            while f"{name}.{number}" in taken:
                number += 1
        numbers[name] = number
        unique.append(f"{name}.{number}" if number else name)
        taken.add(unique[-1])
    return unique
