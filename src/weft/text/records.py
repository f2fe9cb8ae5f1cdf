"""Rows and texts of users' files, read one at a time, each with the place it came from."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from weft.errors import UserError, listed, one_of, shown
from weft.text.arrow import read_arrow
from weft.text.delimited import DELIMITERS, delimiter_of, known_name, read_delimited, split_rows
from weft.text.excel import read_xlsx
from weft.text.json_rows import json_kind, read_contexts, read_json, read_jsonl, read_squad
from weft.text.paths import Patterns, find_files
from weft.text.plain_text import DOCUMENTS, detect_documents, read_conll, read_txt
from weft.text.row_problems import Problems, Skipped
from weft.text.rows import SUFFIXES, UNREAD, Options, Record, Rows, check_length
from weft.text.sources import (
    STANDARD_INPUT,
    BadBytes,
    TextSource,
    first_bytes,
    format_suffix,
    known_encoding,
    open_sources,
    read_lines,
    rewind,
    zip_and_member,
)

LINES = 500  # that are looked at
CHARACTERS = 1 << 17  # and characters at most
MAGIC = {b"PAR1": "parquet", b"ARROW1": "arrow", b"\xff\xff\xff\xff": "arrow", b"PK\x03\x04": "xlsx"}
TAG = re.compile(r"O|[BIESLUM]-\S+")


def format_of(source: TextSource, loose: bool) -> str | None:
    """The format that the content shows beyond doubt; `loose`: the name is not .txt, so that any table counts."""
    if not rewind(source):
        return None
    magic = first_bytes(source)
    for first, format in MAGIC.items():
        if magic.startswith(first):
            return format if format != "xlsx" or _is_workbook(source) else None
    lines, size = list[str](), 0
    for _, text, _ in islice(read_lines(source), LINES):
        lines.append(text)
        size += len(text)
        if size > CHARACTERS:
            break
    rewind(source)
    full = [line for line in lines if line.strip()]
    if not full:
        return None
    if re.match(r"\s*\[\s*(\{|$)", full[0]) and re.match(r"[\s\[]*\{", "".join(full[:3])):
        return "json"
    if full[0].lstrip().startswith("{"):
        try:
            json.loads(full[0])
        except RecursionError:
            return None
        except ValueError:
            return "json" if re.match(r'\s*\{\s*("|$)', full[0]) else None
        return "jsonl"
    if is_conll(lines):
        return "conll"
    if "\t" in full[0] and len(full) > 1 and len({line.count("\t") for line in full}) == 1:
        return "tsv"
    delimiter = delimiter_of(full, ",")
    if delimiter not in full[0]:
        return None
    rows, _ = split_rows(full, delimiter)
    if sum(bool(known_name(name)) for name in rows[0]) >= min(2, len(rows[0])) or (
        (loose or delimiter in ("|", ";"))  # which no running text has as often in every line
        and len(rows) > 4
        and len({len(row) for row in rows}) == 1
        and delimiter in DELIMITERS
    ):
        return "tsv" if delimiter == "\t" else "csv"
    return None


def is_conll(lines: list[str]) -> bool:
    """Whether these are words, one on each line, with tags in the last column and blank lines between sentences."""
    rows, blank = list[list[str]](), 0
    for line in lines:
        if not line.strip():
            blank += 1
        elif not line.startswith(("-DOCSTART-", "# ", "#begin document", "#end document")):
            rows.append(line.split("\t") if "\t" in line else line.split())
    if len(rows) < 2 or len(rows[0]) < 2 or len({len(row) for row in rows}) > 1:
        return False
    last = [row[-1] for row in rows]
    if all(TAG.fullmatch(tag) for tag in last) and any(tag != "O" for tag in last):
        return len(rows[0]) > 2 or blank > 0 or len(rows) < LINES
    # Parts of speech: many words, few tags, and a blank line now and then.
    return blank > 1 and len(rows) >= 20 and len(set(last)) <= min(60, len(rows) // 3) and len(rows) / blank < 100


def _is_workbook(source: TextSource) -> bool:
    try:
        with zipfile.ZipFile(cast(IO[bytes], source.stream)) as archive:
            workbook = "xl/workbook.xml" in archive.namelist()
    except Exception:  # a hostile table of contents raises nearly anything
        return False
    rewind(source)
    return workbook


__all__ = ["FORMATS", "Document", "Record", "Skipped", "find_files", "read_records", "read_texts"]

READERS: dict[str, Callable[[TextSource, Options], Rows]] = {
    "txt": read_txt,
    "csv": partial(read_delimited, usual=","),
    "tsv": partial(read_delimited, usual="\t"),
    "jsonl": read_jsonl,
    "parquet": partial(read_arrow, kind="parquet"),
    "arrow": read_arrow,
    "conll": read_conll,
    "squad": read_squad,
    "json": read_json,
    "xlsx": read_xlsx,
}
FORMATS = tuple(READERS)
ON_BAD_ROW = ("stop", "skip", "keep")  # keep: as a record with its problem
MAX_DAMAGED = 0.05  # share of rows that may be skipped for their bytes


class Document(NamedTuple):
    """A text and the place it was read from."""

    text: str
    where: str


def _format(source: TextSource, otherwise: str | None) -> str:
    """The format that a source's name shows, or its content."""
    known = next((SUFFIXES[suffix] for suffix in source.suffixes if suffix in SUFFIXES), None)
    if known is not None and (known != "txt" or otherwise is not None):
        return known
    if otherwise is not None:
        return otherwise
    by_content = format_of(source, loose=known is None) or known
    if by_content is None:
        for suffix in source.suffixes:
            if suffix in UNREAD:
                raise UserError(f"{source.name}: {suffix} files are not read: {UNREAD[suffix]}")
        words = "neither its name nor its content shows its format; give --format"
        raise UserError(f"{source.name}: {words}: one of {listed(FORMATS, 20)}")
    if by_content != known:
        source.note(f"{source.name}: read as {by_content}")
    return by_content


def read_records(
    patterns: Patterns,
    *,
    format: str | None = None,
    columns: Sequence[str] | None = None,
    header: bool = True,
    delimiter: str | None = None,
    documents: str = "line",
    on_bad_row: str = "stop",
    skipped: Skipped | None = None,
    encoding: str | None = None,
    text_column: str | None = None,
) -> Iterator[Record]:
    """Every record of the files, one at a time; arguments are checked before any file is read.

    columns: names for a table without a header line (`header=False`), otherwise columns that must be there.
    documents: what a document of a txt file is: a "line", a "block" between blank lines, the "file", or "auto".
    text_column: only the texts, as `read_texts` gives them. Detected delimiters and encodings are noted in `skipped`.
    """
    one_of(documents, DOCUMENTS, "documents")
    if delimiter is not None and (len(delimiter) != 1 or delimiter in '"\r\n '):
        raise UserError(f"delimiter {shown(delimiter)!r} is not one character such as ',' or ';'")
    names = [] if columns is None else list(columns)
    for place, name in enumerate(names):
        if not name or name in names[:place]:
            raise UserError(f"columns: {shown(name)!r} is {'there twice' if name else 'not a name'}")
    needed = names if text_column is None else [text_column]
    options = Options(names=columns, needed=needed, header=header, delimiter=delimiter, documents=documents)
    one_of(on_bad_row, ON_BAD_ROW, "on_bad_row")
    if format is not None:
        one_of(format, FORMATS, "format")
    encoding = None if encoding is None else known_encoding(encoding)
    log = Skipped() if skipped is None else skipped

    def sources(path: Path) -> Iterator[tuple[TextSource, str]]:
        otherwise = "txt" if path == STANDARD_INPUT or text_column is not None else None
        for source in open_sources(path):
            source = replace(source, encoding=encoding, note=lambda text: log.note(short(text, path)))
            yield source, format or _format(source, otherwise)

    paths = find_files(patterns)
    for path in paths:
        # A file whose name shows no format is looked at before anything is read; a name in a zip, in its turn.
        suffixes = {path.suffix.lower(), format_suffix(path), format_suffix(zip_and_member(path)[0])}
        if format is None and path != STANDARD_INPUT and not suffixes & {".zip", *SUFFIXES}:
            next(sources(path), None)

    def records() -> Iterator[Record]:
        for path in paths:
            for source, kind in sources(path):
                rows = READERS[kind](source, options) if text_column is None else _texts(source, kind, options)
                yield from _good(source, rows, on_bad_row, log)

    return records()


def read_texts(patterns: Patterns, *, column: str = "text", **options: Any) -> Iterator[Document]:
    """Every text that is not blank: documents, a column of a table, sentences of CoNLL, contexts of SQuAD."""
    records = read_records(patterns, text_column=column, **options)
    return (Document(record.values["text"], record.where) for record in records)


def document_kinds(paths: Iterable[Path]) -> set[str]:
    """What the documents of text files are, by their contents: line, block, file; tables have rows instead."""
    kinds = set[str]()
    for path in paths:
        for source in open_sources(path):
            if _format(source, "txt") == "txt":
                kinds.add(detect_documents(read_lines(source))[0])
    return kinds


def read_input() -> Iterator[Document]:
    """Every line of standard input, blank ones too, for work that answers line for line."""
    for source in open_sources(STANDARD_INPUT):
        for number, text, fault in read_lines(source):
            if fault:
                raise fault
            check_length(text, f"{source.name} line {number}")
            yield Document(text, f"{source.name} line {number}")


def short(text: str, path: Path) -> str:
    """A note with the name of a file in place of its whole path."""
    return text.replace(shown(str(path), 300), shown(path.name, 300), 1)


def _good(source: TextSource, rows: Rows, on_bad_row: str, skipped: Skipped) -> Iterator[Record]:
    """The rows of a source that can be read; bad ones are skipped, kept or reported together."""
    problems, count, damaged = Problems(), 0, 0
    while True:
        try:
            row = next(rows)
        except StopIteration:
            break
        except UserError as error:  # what spoils the whole file
            problems.add(error)
            break
        count += 1
        if isinstance(row, Record):
            if not problems.count:
                yield row
            continue
        damaged += isinstance(row, BadBytes)
        if on_bad_row == "stop":
            problems.add(row)
            if problems.full:
                break
        elif on_bad_row == "keep":
            yield Record({}, source.name, problem=str(row))
        else:
            skipped.add(str(row))
    if damaged > MAX_DAMAGED * count and damaged > 2:
        many = ", too many to skip" if on_bad_row == "skip" else ""
        raise UserError(
            f"{source.name}: {damaged:,} of {count:,} rows are not UTF-8{many}: "
            "it looks like another encoding; give --encoding NAME, such as cp1252"
        )
    problems.check()


def _texts(source: TextSource, kind: str, options: Options) -> Rows:
    """The records of a source with nothing but their text."""
    if kind == "json" and json_kind(source) == "squad":
        kind = "squad"
    column = options.needed[0]
    if kind in ("txt", "conll", "squad"):
        column, options = "text", Options(documents=options.documents)
    reader = read_contexts if kind == "squad" else READERS[kind]
    for row in reader(source, options):
        if isinstance(row, UserError):
            yield row
            continue
        text = " ".join(row.values["words"]) if kind == "conll" else row.values[column]
        if not isinstance(text, str):
            yield UserError(f"{row.where}: column {shown(column)!r} holds {type(text).__name__}, not text")
        elif text and not text.isspace():
            yield Record({"text": text}, row.where)
