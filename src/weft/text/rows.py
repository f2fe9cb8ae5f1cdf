"""What readers yield: records, and a UserError for a bad row; how long a text and how wide a table may be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.errors import UserError, did_you_mean, listed, shown
from weft.files import MEGABYTE
from weft.text.sources import LIMIT

FORMAT_SUFFIXES = {
    "txt": (".txt", ".text"),
    "csv": (".csv",),
    "tsv": (".tsv", ".tab"),
    "jsonl": (".jsonl", ".ndjson"),
    "parquet": (".parquet",),
    "arrow": (".arrow", ".feather"),
    "conll": (".conll", ".bio", ".iob"),
    "json": (".json",),
    "xlsx": (".xlsx", ".xlsm"),
}
SUFFIXES = {suffix: format for format, suffixes in FORMAT_SUFFIXES.items() for suffix in suffixes}
UNREAD = {".xls": "save it as .xlsx or csv", ".ods": "save it as .xlsx or csv", ".doc": "save it as text"}
UNREAD |= {".docx": "save it as text", ".pdf": "save it as text", ".rtf": "save it as text"}
MAX_COLUMNS = 100_000  # of a table


@dataclass(frozen=True)
class Record:
    """One row of somebody's data and the place it was read from."""

    values: dict[str, Any]
    where: str
    likely: Mapping[str, str] = field(default_factory=dict)  # of a file's first row: what its columns look like
    problem: str | None = None  # of a row that cannot be read, where such rows keep their place


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the caller knows about the files."""

    names: Sequence[str] | None = None  # of the columns of a file without a header line
    needed: Sequence[str] = ()  # columns that must be there
    header: bool = True
    delimiter: str | None = None
    documents: str = "line"  # of DOCUMENTS


Rows = Iterator[Record | UserError]


def need_columns(there: Sequence[str], options: Options, where: str) -> None:
    """Stop where a column that the caller needs is not there."""
    names = set(there) if options.needed else ()
    for name in options.needed:
        if name not in names:
            has = f"it has {listed(shown(each) for each in there)}" if there else "it has none"
            raise UserError(f"{where}: no column {shown(name)!r}; {has}{did_you_mean(name, there)}")


def too_long(where: str, what: str) -> UserError:
    return UserError(f"{where}: {what} is longer than {LIMIT // MEGABYTE} MiB")


def check_columns(count: int, where: str) -> None:
    """Stop at a table that has more columns than any."""
    if count > MAX_COLUMNS:
        raise UserError(f"{where}: {count:,} columns; at most {MAX_COLUMNS:,} are read")


def check_names(where: str, names: Sequence[str]) -> None:
    """Stop where a column has no name, or two have the same."""
    check_columns(len(names), where)
    seen = set[str]()
    for place, name in enumerate(names, start=1):
        if not name:
            raise UserError(f"{where}: column {place} has no name")
        if name in seen:
            raise UserError(f"{where}: two columns are named {shown(name)!r}")
        seen.add(name)


MAX_LENGTH = 1 << 23  # characters of one text; where places in it are asked for, half as many
PART = 1 << 16  # characters that go through a tokenizer at a time: it takes some hundred bytes for each
TOGETHER = 1 << 20  # characters of several texts that do


def length_problem(text: str | Sequence[str], max_length: int | None = None) -> str | None:
    """What is wrong with a text that is longer than any model reads; None where nothing is."""
    size = len(text) if isinstance(text, str) else sum(len(word) for word in text if isinstance(word, str))
    limit = max_length or MAX_LENGTH
    return None if size <= limit else f"a text of {size:,} characters; at most {limit:,} are read at a time: split it"


def check_length(text: str | Sequence[str], where: str) -> None:
    """Refuse a text that would take all memory when it is cut into tokens."""
    if wrong := length_problem(text):
        raise UserError(f"{where}: {wrong}")


def parts_of(text: str, size: int) -> Iterator[str]:
    """A long text in parts that the tokenizer cuts as it would the whole: a part begins at the space before a word."""
    begin = 0
    while len(text) - begin > size:
        end = text.rfind(" ", begin + 1, begin + size)
        while end > 0 and text[end + 1].isspace():
            end = text.rfind(" ", begin + 1, end)
        end = end if end > 0 else begin + size
        yield text[begin:end]
        begin = end
    yield text[begin:]
