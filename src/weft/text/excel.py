"""Rows of an Excel workbook (.xlsx), through openpyxl."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Iterator, Sequence
from datetime import date, time
from itertools import chain, islice
from typing import IO, Any, cast

from weft.errors import UserError, listed, shown
from weft.files import MEGABYTE
from weft.text.delimited import ROWS, header_of, title_rows
from weft.text.rows import Options, Record, Rows, need_columns
from weft.text.sources import LIMIT, TextSource, check_contents, check_ratio, need_module, rewind

MAX_BYTES = 1024 * MEGABYTE  # of a workbook when it is unpacked
MAX_ROW = 1 << 20  # the last row that a sheet of Excel has
MAX_TAGS = 1 << 20  # of XML that stand between two rows of a sheet, or in a file that is no sheet
ROW = re.compile(rb"""[^>]*?\sr\s*=\s*["']0*([0-9]+)""")  # its number
MAX_STRINGS = 1 << 23  # tags in the list of texts that cells share
MAX_EMPTY = 1 << 25  # empty cells and rows before and between those that hold something, of all sheets


def read_xlsx(source: TextSource, options: Options) -> Rows:
    """The rows of the first sheet that has any; the first row names the columns."""
    openpyxl = need_module(source, "openpyxl", "excel", "Excel")
    _check_size(source)
    try:
        book = openpyxl.load_workbook(source.stream, read_only=True, data_only=True, keep_links=False)
        empty = _Empty(source.name)
        sheets = [sheet for sheet in book.worksheets if any(_cells(sheet, empty))]
        if not sheets:
            return
        if len(sheets) > 1:
            others = listed(shown(sheet.title) for sheet in sheets[1:])
            source.note(f"{source.name}: the sheet {shown(sheets[0].title)!r} is read, not {others}")
        yield from _rows(source, options, sheets[0], empty)
    except UserError:
        raise
    except Exception as error:  # a damaged workbook raises nearly anything
        words = shown(str(error).partition("\n")[0], 120) or type(error).__name__
        raise UserError(f"{source.name}: not a whole Excel workbook: {words}") from None


def _check_size(source: TextSource) -> None:
    """Refuse what would take all memory when it is unpacked, before it is."""
    try:
        check_contents(source.stream, source.name)
        with zipfile.ZipFile(cast(IO[bytes], source.stream)) as archive:
            size = sum(info.file_size for info in archive.infolist())
            if size <= MAX_BYTES:
                check_ratio(source.name, size, os.fstat(source.stream.fileno()).st_size)
                _check_tags(source, archive)
    except UserError:
        raise
    except Exception:  # a hostile table of contents raises nearly anything
        raise UserError(
            f"{source.name}: not an Excel workbook (.xlsx); save an old .xls file as .xlsx or csv first"
        ) from None
    if size > MAX_BYTES:
        raise UserError(f"{source.name}: unpacks to more than {MAX_BYTES // MEGABYTE} MiB; save it as csv")
    rewind(source)


def _check_tags(source: TextSource, archive: zipfile.ZipFile) -> None:
    """Refuse XML that would fill the memory: openpyxl holds every tag of a file, of a sheet those of a row."""
    for info in archive.infolist():
        sheet = info.filename.startswith("xl/worksheets/")
        max_tags = MAX_STRINGS if info.filename.endswith("sharedStrings.xml") else MAX_TAGS
        rows = tags = 0
        for chunk in _whole_tags(archive, info):
            first, *others = chunk.split(b"<row") if sheet else [chunk]
            tags += first.count(b"<")
            for part in others:
                if tags > max_tags:
                    break
                rows, tags = rows + 1, part.count(b"<")
                number = ROW.match(part)
                if rows > MAX_ROW or (number and len(number[1]) > 6 and int(number[1][:9]) > MAX_ROW):
                    raise UserError(f"{source.name}: {shown(info.filename)} has a row after {MAX_ROW:,}, Excel's last")
            if tags > max_tags:
                raise UserError(f"{source.name}: {shown(info.filename)} has more than {max_tags:,} tags in one piece")


def _whole_tags(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Iterator[bytes]:
    """The bytes of a file of XML, cut before a tag."""
    rest = b""
    with archive.open(info) as file:
        while chunk := file.read(MEGABYTE):
            chunk = rest + chunk
            cut = max(chunk.rfind(b"<"), 0)
            if len(chunk) - cut > LIMIT:
                raise ValueError("a text that does not end")
            yield chunk[:cut]
            rest = chunk[cut:]
    yield rest


class _Empty:
    """Counts what a workbook does not hold: openpyxl makes a cell for each gap, so a few bytes may take hours."""

    def __init__(self, name: str) -> None:
        self.name, self.count = name, 0

    def add(self, count: int) -> None:
        self.count += count
        if self.count > MAX_EMPTY:
            raise UserError(f"{self.name}: has more than {MAX_EMPTY:,} empty cells between the others; save it as csv")


def _cells(sheet: Any, empty: _Empty) -> Iterator[tuple[int, list[Any]]]:
    """The rows that have something in them, with their numbers."""
    sheet.reset_dimensions()  # what a sheet says of its own size would widen every row
    for number, row in enumerate(sheet.iter_rows(max_row=MAX_ROW, values_only=True), start=1):
        gaps = row.count(None)
        empty.add(gaps or not row)
        if gaps < len(row) and any(value is not None and str(value).strip() for value in row):
            yield number, list(row)


def _rows(source: TextSource, options: Options, sheet: Any, empty: _Empty) -> Rows:
    rows = _cells(sheet, empty)
    names = list(options.names or ())
    if options.header:
        first = list(islice(rows, ROWS))
        names, before = header_of(source, _texts(first), "row")
        rows = islice(chain(first, rows), before, None)
    need_columns(names, options, source.name)
    for number, row in rows:
        cells = [_value(cell) for cell in row[: len(names)]]
        where = f"{source.name} row {number}"
        extra = next((cell for cell in row[len(names) :] if cell is not None and str(cell).strip()), None)
        if extra is not None:
            yield UserError(f"{where}: {shown(str(extra))!r} stands in a column without a name")
        else:
            yield Record(dict(zip(names, [*cells, *[None] * (len(names) - len(cells))], strict=True)), where)


def _texts(rows: Sequence[tuple[int, list[Any]]]) -> list[tuple[int, list[str]]]:
    """The cells as text, without the empty columns at the right of the header; one inside it is named by its place."""
    texts = [(number, ["" if cell is None else str(_value(cell)) for cell in row]) for number, row in rows]
    if not texts:
        return texts
    before = title_rows([row for _, row in texts])
    header = texts[before][1]
    width = max(place for place, cell in enumerate(header, start=1) if cell.strip())
    header[:width] = [cell.strip() or f"column {place}" for place, cell in enumerate(header[:width], start=1)]
    return [(number, (row + [""] * width)[:width]) for number, row in texts]


def _value(cell: Any) -> Any:
    """A cell as JSON would have it: Excel keeps whole numbers as fractions, and dates as objects."""
    if isinstance(cell, float) and cell.is_integer():
        return int(cell)
    return cell.isoformat() if isinstance(cell, date | time) else cell
