"""Tables of delimited text: csv and tsv, with any delimiter, quoted or not, with a header line or without."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from itertools import chain, dropwhile, islice

from weft.errors import UserError, shown
from weft.text.header import header_of
from weft.text.rows import Options, Record, Rows, need_columns, too_long
from weft.text.sources import LIMIT, Line, TextSource, read_lines, remembered, rewind
from weft.text.table_layout import CHARACTERS, ROWS, delimiter_of

LOOK = 1000  # lines that show the delimiter
MAX_FIELDS = 1 << 22  # delimiters in one row, those inside of quotes too
HEAD = 1 << 22  # characters of the first rows that are held together, beyond the first three


Fields = tuple[int, list[str], UserError | None]


def read_delimited(source: TextSource, options: Options, usual: str) -> Rows:
    """Rows of a table; in a tsv file the whole of it shows whether quotes are letters or stand around fields."""
    lines = read_lines(source)
    head, size = list[Line](), 0
    for line in lines:
        head.append(line)
        size += len(line[1])
        if size > CHARACTERS or len(head) >= LOOK:
            break
    texts = [text for _, text, _ in head if text]
    delimiter = options.delimiter
    given = re.fullmatch(r"sep=(.)", texts[0]) if texts else None  # a line that Excel writes and reads
    if delimiter is None:
        delimiter = given[1] if given else delimiter_of(texts, usual)
        if delimiter != usual:
            source.note(f"{source.name}: delimiter {delimiter!r}")
    if usual == "\t" and rewind(source):
        quoted = remembered(source, f"quotes {delimiter}", lambda: _has_quotes(source, delimiter))
        rewind(source)
        lines, head = read_lines(source), []
    else:
        quoted = usual != "\t"
    every = chain(head, lines)
    if quoted:
        rows = _quoted_rows(source, every, delimiter)
    else:  # rows of one line each, in which quotes are letters like any other
        rows = ((n, _split(source, n, text, delimiter), fault) for n, text, fault in every if text or fault)
    return _table(source, options, islice(rows, 1, None) if given else rows)


def _has_quotes(source: TextSource, delimiter: str) -> bool:
    """Whether quotes stand around the fields of a whole file, as pandas writes them, rather than being letters.

    They do where every field is then whole and every row as wide as the first, and where they are needed: for a line
    break or a delimiter inside, or for a quote that is doubled; or where all names of columns are quoted.
    """
    width, even, count, some, named = 0, True, 0, False, False
    for number, text, fault in read_lines(source):
        if not text and not fault:
            continue
        fields = _split(source, number, text, delimiter)
        named = named or (not count and all(len(f) > 1 and f[0] == f[-1] == '"' for f in fields))
        width, count = width or len(fields), count + 1
        even = even and len(fields) == width
        some = some or any(field.startswith('"') for field in fields)
    if not some or not rewind(source):
        return False
    needed, doubled, rows = named, False, 0
    try:
        for _, fields, fault in _quoted_rows(source, read_lines(source), delimiter):
            if fault or (rows and len(fields) != width):
                return False
            width, rows = len(fields), rows + 1
            doubled = doubled or any('"' in field for field in fields)
            needed = needed or doubled or any("\n" in field or delimiter in field for field in fields)
    except UserError:
        return False
    return needed and (not even or rows == count or doubled)


def _split(source: TextSource, number: int, text: str, delimiter: str) -> list[str]:
    """The fields of a line, unless there are so many that they would fill the memory."""
    if len(text) > MAX_FIELDS and text.count(delimiter) > MAX_FIELDS:
        raise _too_many(source, number)
    return text.split(delimiter)


def _too_many(source: TextSource, number: int) -> UserError:
    return UserError(f"{source.name} line {number}: a row of more than {MAX_FIELDS:,} fields")


class _Feed:
    """Hands lines to csv.reader and remembers where the row at hand began and what is wrong in it."""

    def __init__(self, source: TextSource, lines: Iterator[Line], delimiter: str) -> None:
        self.source, self.lines, self.delimiter = source, lines, delimiter
        self.begin()

    def begin(self) -> None:
        self.first = self.last = self.size = self.cells = 0
        self.fault: UserError | None = None

    def __iter__(self) -> _Feed:
        return self

    def __next__(self) -> str:
        self.last, text, fault = next(self.lines)
        self.first = self.first or self.last
        self.fault = self.fault or fault
        self.size += len(text) + 1
        if self.size > LIMIT:
            raise too_long(f"{self.source.name} line {self.first}", "a quote opened here is not closed, or the row")
        if self.size > MAX_FIELDS:
            self.cells += text.count(self.delimiter)
            if self.cells > MAX_FIELDS:
                raise _too_many(self.source, self.first)
        return text + "\n"


def _quoted_rows(source: TextSource, lines: Iterator[Line], delimiter: str) -> Iterator[Fields]:
    csv.field_size_limit(max(csv.field_size_limit(), LIMIT))  # one limit for the process: raised, never lowered
    feed = _Feed(source, lines, delimiter)
    reader = csv.reader(feed, delimiter=delimiter, strict=True)
    while True:
        feed.begin()
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            # A quote that is not closed runs on to the next quote or to the end, over rows that are lost: always stop.
            if feed.last > feed.first or "unexpected end" in str(error):
                raise UserError(f"{source.name} line {feed.first}: a quote opened here is not closed") from None
            words = shown(str(error), 120)
            if "expected after" in words:
                words = 'a quote inside a quoted field must be doubled ("")'
            elif "new-line" in words:
                words = "a carriage return in the middle of the row"
            yield feed.first, [], feed.fault or UserError(f"{source.name} line {feed.first}: {words}")
            continue
        if fields or feed.fault:
            yield feed.first, fields, feed.fault


def _first_rows(rows: Iterator[Fields]) -> list[Fields]:
    """Rows that show what a table is like: a few hundred, fewer where they are long."""
    first, size = list[Fields](), 0
    for row in rows:
        first.append(row)
        size += sum(map(len, row[1])) + len(row[1])
        if len(first) >= ROWS or (size > HEAD and len(first) >= 3):
            break
    return first


def _table(source: TextSource, options: Options, rows: Iterator[Fields]) -> Rows:
    """Rows of fields as records, by the names in the header line, those that the caller gave, or what they hold."""
    first = _first_rows(rows)
    rows = chain(first, rows)
    if options.names is not None and not options.header:
        names = list(options.names)
    elif not first:
        if options.header:
            raise UserError(f"{source.name}: empty: no header line")
        return
    else:
        if first[0][2]:
            raise first[0][2]
        if not options.header:
            count = len(first[0][1])
            raise UserError(f"{source.name}: a file without a header line needs names for its {count} columns")
        good = [(number, fields) for number, fields, fault in first if not fault]
        names, before = header_of(source, good, "line")
        last = good[before - 1][0] if before else 0  # line of the header
        rows = dropwhile(lambda row: row[0] <= last, rows)
    need_columns(names, options, source.name)
    for number, fields, fault in rows:
        where = f"{source.name} line {number}"
        if fault:
            yield fault
        elif len(fields) != len(names) and any(field.strip() for field in fields):
            yield UserError(f"{where}: expected {len(names)} fields, got {len(fields)}")
        else:  # a line of delimiters alone, or of spaces, is an empty row
            yield Record(dict(zip(names, [*fields, *[""] * len(names)], strict=False)), where)
