"""Tables: how people name columns, which delimiter and header a file has, and the rows of csv and tsv files."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, dropwhile, islice
from typing import Any

from weft.errors import UserError, listed, shown
from weft.text.rows import Options, Record, Rows, check_columns, check_names, need_columns, too_long
from weft.text.sources import LIMIT, Line, TextSource, read_lines, remembered, rewind

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
}
PAIRS = (
    ("text", "pair"),
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("text1", "text2"),
    ("#1 String", "#2 String"),
    ("query", "passage"),
    ("query", "text"),
    ("question", "sentence"),
    ("question", "context"),
)
# What is read and what is written from it, in small letters; columns named by two languages are known too.
PAIRED = (
    ("source", "target"),
    ("src", "tgt"),
    ("src", "trg"),
    ("article", "summary"),
    ("article", "highlights"),
    ("document", "summary"),
    ("dialogue", "summary"),
    ("text", "summary"),
    ("input", "output"),
    ("text", "paraphrase"),
    ("sentence", "paraphrase"),
)
LANGUAGES = (
    *("english", "german", "french", "spanish", "italian", "portuguese", "dutch", "danish", "swedish", "norwegian"),
    *("finnish", "polish", "czech", "russian", "ukrainian", "greek", "turkish", "arabic", "hebrew", "hindi", "chinese"),
    *("japanese", "korean", "vietnamese", "indonesian", "romanian", "hungarian", "latin", "esperanto"),
    *("deutsch", "français", "francais", "español", "espanol", "italiano", "português", "nederlands", "polski"),
)
OURS = (*NAMES, "pair", "source", "target")  # what tasks call columns
IDS = ("id", "ids", "index", "idx", "uid", "uuid", "guid", "key", "nr", "no", "number", "column1", "rowid")


@lru_cache(maxsize=1 << 17)
def folded(name: str) -> str:
    """A name without case, spaces, underscores and hyphens: 'Ticket Text' is 'ticket_text' is 'TicketText'."""
    return re.sub(r"[\s_.\-]+", "", name.casefold())


def words_of(name: str) -> list[str]:
    """The words of a name: 'Category ID', 'review_text', 'ticketText'."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
    return [word for word in re.split(r"[\W_]+", apart.casefold()) if word]


USUAL = {folded(name) for names in NAMES.values() for name in names} | {
    folded(name) for pair in (*PAIRS, *PAIRED) for name in pair
}


def known_name(name: str) -> str:
    """What a name stands for where people use it for columns: 'id', 'usual', or nothing where it is any word."""
    if folded(name) in IDS or "id" in words_of(name)[-1:]:
        return "id"
    words = words_of(name)
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
    cells = [cell.strip() for cell in first if cell.strip()]
    if len(cells) >= len(first) - 1 and cells == [str(number) for number in range(len(cells))]:
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


TWO = "text,label or --names source,target"
THREE = "text,label,... or --names text,pair,label"
TITLES = 6  # rows above a header at most

Cells = Sequence[tuple[int, Sequence[str]]]  # rows with their numbers


def title_rows(rows: Sequence[Sequence[str]]) -> int:
    """How many rows stand above the header: blank ones and titles of one cell; 0 where the table has one column."""
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
