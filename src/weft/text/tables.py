"""Tables: how people name columns, which delimiter and header a file has, and the rows of csv, tsv and xlsx files."""

from __future__ import annotations

import csv
import os
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, time
from functools import lru_cache
from itertools import chain, dropwhile, islice
from typing import Any

from weft.errors import UserError, listed, shown
from weft.files import MEGABYTE
from weft.text import sources
from weft.text.rows import Options, Record, Rows, check_columns, check_names, need_columns
from weft.text.sources import LIMIT, Line, TextSource, head_of, need_module, read_lines, too_long

# What people call the columns, likeliest first; a pair's two names belong together.
NAMES = {
    "text": (
        *("text", "sentence", "review", "content", "message", "comment", "document", "body", "question"),
        *("caption", "description", "tweet", "utterance", "feedback", "abstract"),
    ),
    "vector": ("vector", "features", "embedding", "numbers"),
    "label": ("label", "class", "category", "sentiment", "intent", "target", "topic", "emotion"),
    "labels": ("labels", "label", "tags", "classes", "categories"),
    "value": ("value", "score", "rating", "label", "target", "stars"),
    "context": ("context", "paragraph", "passage", "document"),
    "question": ("question", "query"),
    "answer": ("answer", "answers", "answer_text"),
    "words": ("words", "tokens"),
    "tags": ("tags", "ner_tags", "pos_tags", "labels"),
    "spans": ("spans", "entities", "label", "labels"),
    "prompt": (
        *("prompt", "context", "premise", "passage", "paragraph", "article", "sent1", "startphrase", "ctx", "goal"),
    ),
    "options": ("options", "choices", "endings", "candidates", "entities"),
}
PAIRS = (
    *(("text", "pair"), ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2")),
    *(("text1", "text2"), ("#1 String", "#2 String"), ("query", "passage"), ("query", "text")),
    *(("question", "sentence"), ("question", "context"), ("question", "passage")),
)
# What is read and what is written from it, in small letters; columns named by two languages are known too.
PAIRED = (
    *(("source", "target"), ("src", "tgt"), ("src", "trg"), ("article", "summary"), ("article", "highlights")),
    *(("document", "summary"), ("dialogue", "summary"), ("text", "summary"), ("input", "output")),
    *(("text", "paraphrase"), ("sentence", "paraphrase")),
)
LANGUAGES = (
    *("english", "german", "french", "spanish", "italian", "portuguese", "dutch", "danish", "swedish", "norwegian"),
    *("finnish", "polish", "czech", "russian", "ukrainian", "greek", "turkish", "arabic", "hebrew", "hindi", "chinese"),
    *("japanese", "korean", "vietnamese", "indonesian", "romanian", "hungarian", "latin", "esperanto"),
    *("deutsch", "français", "francais", "español", "espanol", "italiano", "português", "nederlands", "polski"),
)
OURS = (*NAMES, "pair", "source", "target", "time", "series", "features")  # what tasks call columns
IDS = ("id", "ids", "index", "idx", "uid", "uuid", "guid", "key", "nr", "no", "number", "column1", "rowid")


@lru_cache(maxsize=1 << 17)
def folded(name: str) -> str:
    """A name without case, spaces, underscores and hyphens: 'Ticket Text' is 'ticket_text' is 'TicketText'."""
    return re.sub(r"[\s_.\-]+", "", name.casefold())


def words_of(name: str) -> list[str]:
    """The words of a name: 'Category ID', 'review_text', 'ticketText'."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
    return [word for word in re.split(r"[\W_]+", apart.casefold()) if word]


USUAL = {folded(name) for names in (*NAMES.values(), *PAIRS, *PAIRED) for name in names}


def known_name(name: str) -> str:
    """What a name stands for where people use it for columns: 'id', 'usual', or nothing where it is any word."""
    words = words_of(name)
    if folded(name) in IDS or "id" in words[-1:]:
        return "id"
    known = folded(name) in USUAL or (len(words) <= 3 and any(word in USUAL for word in words[-1:]))
    return "usual" if known else ""


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
    best, even = usual, 0.0
    for place in range(max(1, min(5, len(lines) - 3))):  # a title may stand above the header
        below, more = _evenest(lines[place:], usual)
        best, even = (below, more) if not place or more > 0.9 else (best, even)
        if even >= 0.5:
            break
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
    cells = [cell.strip() for cell in first if cell.strip()]
    if len(cells) >= len(first) - 1 and cells == [str(number) for number in range(len(cells))]:
        return False  # pandas numbers columns that have no name
    years = [int(cell) for cell in cells if re.fullmatch("[12][0-9]{3}", cell)]
    if len(years) > 7 and years == list(range(years[0], years[0] + len(years))):
        return False  # a row for each country, a column for each year
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
    lengths = {}  # of the columns of running text
    for name, cells in columns.items():
        words = sum(len(cell.split()) for cell in cells) / len(cells)
        different = len(set(cells)) / len(cells)
        if words >= 2 and different > 0.5 and not all(NUMBER.fullmatch(cell) for cell in cells):
            lengths[name] = sum(map(len, cells)) / len(cells)
    order = sorted(lengths, key=lambda name: -lengths[name])
    if order and (len(order) == 1 or lengths[order[0]] >= 3 * lengths[order[1]]):  # far longer than any other
        likely["text"] = order[0]
    labels, values = [], []
    for name, cells in columns.items():
        if name == likely.get("text") or folded(name) in IDS:
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


def whole_numbers(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, int]]:
    """The least and the largest value of each column that holds whole numbers alone."""
    columns: dict[str, list[str]] = {}
    for row in rows:
        for name, value in row.items():
            text = str(value).strip()
            if text and value is not None:
                columns.setdefault(name, []).append(text.removesuffix(".0"))
    whole = {name: cells for name, cells in columns.items() if all(re.fullmatch(r"-?\d{1,9}", cell) for cell in cells)}
    return {name: (min(map(int, cells)), max(map(int, cells))) for name, cells in whole.items()}


TWO = "text,label or --names source,target"
THREE = "text,label,... or --names text,pair,label"
TITLES = 6  # rows above a header at most

Cells = Sequence[tuple[int, Sequence[str]]]  # rows with their numbers


def title_rows(rows: Sequence[Sequence[str]]) -> int:
    """How many rows stand above the header: blank ones and titles of one cell; 0 where the table has one column."""
    for place, row in enumerate(rows[: TITLES + 1]):
        cells = [cell.strip() for cell in row if cell.strip()]
        if len(cells) > 1:  # the names of the columns below, or a line of text that was cut at commas
            below = rows[place + 1 :]
            alike = sum(len(other) == len(row) and sum(map(bool, map(str.strip, other))) > 1 for other in below)
            named = any(map(known_name, cells)) or (len(below) > 4 and all(len(cell.split()) < 5 for cell in cells))
            return place if named and below and alike >= 0.8 * len(below) else 0
        if cells and (known_name(cells[0]) or cells[0] == "0"):  # pandas calls a column without a name so
            return 0
    return 0


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
    if lacks_header(table):  # its cells may show which column is the text, and which the label
        places = [f"place {place}" for place in range(len(first))]
        likely = likely_columns([dict(zip(places, row, strict=True)) for row in table if len(row) == len(first)])
        if "text" not in likely or (len(first) > 1 and "label" not in likely):
            example = TWO if len(first) == 2 else THREE
            raise UserError(f"{where}: looks like data, not column names; name its columns, such as --names {example}")
        ours = {likely["text"]: "text", likely.get("label", ""): "label"}
        names = [ours.get(place, f"column {number}") for number, place in enumerate(places, start=1)]
        source.note(f"{source.name}: no header line; its columns are taken for {listed(names, 12)}")
        return names, skipped
    names = [name.strip() for name in first]
    rest = [row for row in table[1:] if any(cell.strip() for cell in row)]
    numbers = {row[0] for row in rest if row[0].strip().isdigit()}
    # R puts a number before the cells of each row, and no name above it.
    if len(rest) > 1 and len(numbers) == len(rest) and all(len(row) == len(first) + 1 for row in rest):
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


LOOK = 1000  # lines that show the delimiter
MAX_FIELDS = 1 << 22  # delimiters in one row, those inside of quotes too
HEAD = 1 << 22  # characters of the first rows that are held together, beyond the first three

Fields = tuple[int, list[str], UserError | None]


def read_delimited(source: TextSource, options: Options, usual: str) -> Rows:
    """Rows of a table; in a tsv file the whole of it shows whether quotes are letters or stand around fields."""
    lines = read_lines(source)
    head = head_of(lines, lambda line: len(line[1]), CHARACTERS, LOOK)
    texts = [text for _, text, _ in head if text]
    delimiter = options.delimiter
    given = re.fullmatch(r"sep=(.)", texts[0]) if texts else None  # a line that Excel writes and reads
    if delimiter is None:
        delimiter = given[1] if given else delimiter_of(texts, usual)
        if delimiter != usual:
            source.note(f"{source.name}: delimiter {delimiter!r}")
    if usual == "\t" and source.path is not None:
        quoted = sources.remembered(source, f"quotes {delimiter}", lambda: _has_quotes(source, delimiter))
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
    """Whether quotes stand around the fields of a whole file, as pandas writes them, rather than being letters."""
    # They do where every row is then as wide as the first, and where a field needs them or all names have them.
    width, even, count, some, named = 0, True, 0, False, False
    for number, text, fault in read_lines(source):
        if not text and not fault:
            continue
        fields = _split(source, number, text, delimiter)
        named = named or (not count and all(len(f) > 1 and f[0] == f[-1] == '"' for f in fields))
        width, count = width or len(fields), count + 1
        even = even and len(fields) == width
        some = some or any(field.startswith('"') for field in fields)
    if not some:
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
        raise UserError(f"{source.name} line {number}: a row of more than {MAX_FIELDS:,} fields")
    return text.split(delimiter)


def _quoted_rows(source: TextSource, lines: Iterator[Line], delimiter: str) -> Iterator[Fields]:
    csv.field_size_limit(max(csv.field_size_limit(), LIMIT))  # one limit for the process: raised, never lowered
    first = last = size = cells = 0  # of the row at hand: its lines, characters and delimiters
    fault: UserError | None = None

    def feed() -> Iterator[str]:
        nonlocal first, last, size, cells, fault
        for last, text, bad in lines:
            first, fault = first or last, fault or bad
            size += len(text) + 1
            if size > LIMIT:
                raise too_long(f"{source.name} line {first}", "a quote opened here is not closed, or the row")
            if size > MAX_FIELDS:
                cells += text.count(delimiter)
                if cells > MAX_FIELDS:
                    raise UserError(f"{source.name} line {first}: a row of more than {MAX_FIELDS:,} fields")
            yield text + "\n"

    reader = csv.reader(feed(), delimiter=delimiter, strict=True)
    while True:
        first = last = size = cells = 0
        fault = None
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            # A quote that is not closed runs on to the next quote or to the end, over rows that are lost: always stop.
            if last > first or "unexpected end" in str(error):
                raise UserError(f"{source.name} line {first}: a quote opened here is not closed") from None
            words = shown(str(error), 120)
            if "expected after" in words:
                words = 'a quote inside a quoted field must be doubled ("")'
            elif "new-line" in words:
                words = "a carriage return in the middle of the row"
            yield first, [], fault or UserError(f"{source.name} line {first}: {words}")
            continue
        if fields or fault:
            yield first, fields, fault


def _table(source: TextSource, options: Options, rows: Iterator[Fields]) -> Rows:
    """Rows of fields as records, by the names in the header line, those that the caller gave, or what they hold."""
    first = head_of(rows, lambda row: sum(map(len, row[1])) + len(row[1]), HEAD, ROWS, min_items=3)
    rows = chain(first, rows)
    if options.columns is not None and not options.header:
        names = list(options.columns)
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
    empty = 0  # openpyxl makes a cell for each gap, so a few bytes may take hours

    def full_rows(sheet: Any) -> Iterator[tuple[int, list[Any]]]:
        """The rows that have something in them, with their numbers."""
        nonlocal empty
        sheet.reset_dimensions()  # what a sheet says of its own size would widen every row
        for number, row in enumerate(sheet.iter_rows(max_row=MAX_ROW, values_only=True), start=1):
            gaps = row.count(None)
            empty += gaps or not row
            if empty > MAX_EMPTY:
                many = f"{MAX_EMPTY:,} empty cells between the others"
                raise UserError(f"{source.name}: has more than {many}; save it as csv")
            if gaps < len(row) and any(value is not None and str(value).strip() for value in row):
                yield number, list(row)

    try:
        book = openpyxl.load_workbook(source.stream, read_only=True, data_only=True, keep_links=False)
        sheets = [sheet for sheet in book.worksheets if any(full_rows(sheet))]
        if not sheets:
            return
        if len(sheets) > 1:
            others = listed(shown(sheet.title) for sheet in sheets[1:])
            source.note(f"{source.name}: the sheet {shown(sheets[0].title)!r} is read, not {others}")
        rows, names = full_rows(sheets[0]), list(options.columns or ())
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
    except UserError:
        raise
    except Exception as error:  # a damaged workbook raises nearly anything
        words = shown(str(error).partition("\n")[0], 120) or type(error).__name__
        raise UserError(f"{source.name}: not a whole Excel workbook: {words}") from None


def _check_size(source: TextSource) -> None:
    """Refuse what would take all memory when it is unpacked, before it is."""
    try:
        with sources.zip_file(source.stream, source.name) as archive:
            size = sum(info.file_size for info in archive.infolist())
            if size <= MAX_BYTES:
                sources.check_ratio(source.name, size, os.fstat(source.stream.fileno()).st_size)
                _check_tags(source, archive)
    except UserError:
        raise
    except Exception:  # a hostile table of contents raises nearly anything
        raise UserError(f"{source.name}: not an Excel workbook (.xlsx); save an .xls file as .xlsx first") from None
    if size > MAX_BYTES:
        raise UserError(f"{source.name}: unpacks to more than {MAX_BYTES // MEGABYTE} MiB; save it as csv")


def _check_tags(source: TextSource, archive: zipfile.ZipFile) -> None:
    """Refuse XML that would fill the memory: openpyxl holds every tag of a file, of a sheet those of a row."""
    for info in archive.infolist():
        sheet, name = info.filename.startswith("xl/worksheets/"), f"{source.name}: {shown(info.filename)}"
        max_tags = MAX_STRINGS if info.filename.endswith("sharedStrings.xml") else MAX_TAGS
        rows, tags, rest, chunk = 0, 0, b"", b"<"
        with archive.open(info) as file:
            while chunk:
                chunk = file.read(MEGABYTE)
                data = rest + chunk
                end = max(data.rfind(b"<"), 0) if chunk else len(data)  # before a tag
                if len(data) - end > LIMIT:
                    raise ValueError("a text that does not end")
                first, *others = data[:end].split(b"<row") if sheet else [data[:end]]
                rest = data[end:]
                tags += first.count(b"<")
                for part in others:
                    if tags > max_tags:
                        break
                    rows, tags = rows + 1, part.count(b"<")
                    number = ROW.match(part)
                    if rows > MAX_ROW or (number and len(number[1]) > 6 and int(number[1][:9]) > MAX_ROW):
                        raise UserError(f"{name} has a row after {MAX_ROW:,}, Excel's last")
                if tags > max_tags:
                    raise UserError(f"{name} has more than {max_tags:,} tags in one piece")


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
