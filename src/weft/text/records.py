"""Records out of people's files: found by name or glob, read one at a time, each with the place it came from."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from weft.errors import UserError, did_you_mean, listed, one_of, shown
from weft.text.compressed import (
    STANDARD_INPUT,
    Source,
    find_members,
    open_sources,
    read_lines,
    telling_suffix,
    zip_and_member,
)
from weft.text.documents import DOCUMENTS, look
from weft.text.formats import (
    SUFFIXES,
    Options,
    Record,
    Rows,
    read_conll,
    read_csv,
    read_jsonl,
    read_parquet,
    read_tsv,
    read_txt,
)
from weft.text.squad import read_contexts, read_squad

__all__ = ["FORMATS", "Document", "Record", "Skipped", "find_files", "read_records", "read_texts"]

READERS: dict[str, Callable[[Source, Options], Rows]] = {
    "txt": read_txt,
    "csv": read_csv,
    "tsv": read_tsv,
    "jsonl": read_jsonl,
    "parquet": read_parquet,
    "conll": read_conll,
    "squad": read_squad,
}
FORMATS = tuple(READERS)
Patterns = str | Path | Iterable[str | Path]


class Document(NamedTuple):
    """A text and the place it was read from."""

    text: str
    where: str


@dataclass
class Skipped:
    """How many bad rows were passed over, and what was wrong with the first of them."""

    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, message: str) -> None:
        self.count += 1
        if len(self.first) < 3:
            self.first.append(message)

    def __str__(self) -> str:
        if not self.count:
            return "skipped no rows"
        return f"skipped {self.count:,} bad row{'s' * (self.count > 1)}; the first: {self.first[0]}"


def find_files(patterns: Patterns) -> list[Path]:
    """The files that names, globs and folders stand for, in order, each once; '-' is standard input.

    A folder stands for all files of a known format in it; 'corpus.zip/*.txt' for members of a zip.
    """
    if isinstance(patterns, str | Path):
        patterns = [patterns]
    found: dict[Path, None] = {}
    for pattern in patterns:
        found.update(dict.fromkeys(_matches(str(pattern))))
    return list(found)


def _matches(pattern: str) -> list[Path]:
    if not pattern or "\0" in pattern:
        raise UserError(f"{shown(pattern)!r} is not the name of a file")
    path = Path(pattern)
    if path == STANDARD_INPUT:
        return [path]
    if path.is_dir():
        return _inside(path)
    if os.path.exists(path):  # before globs: a name may hold brackets
        return [path]
    archive, member = zip_and_member(path)
    if member is not None:
        return [archive / name for name in find_members(archive, member)]
    if glob.has_magic(pattern):
        matches = sorted(Path(match) for match in glob.glob(pattern, recursive=True) if not os.path.isdir(match))
        if matches:
            return matches
        raise UserError(f"{shown(pattern, 300)}: matches no file")
    missing = path  # the first part of the path that is not there: that is where the slip is
    while not os.path.exists(missing.parent) and missing.parent != missing:
        missing = missing.parent
    try:
        beside = os.listdir(missing.parent)
    except OSError:
        beside = []
    raise UserError(f"{shown(pattern, 300)}: no such file{did_you_mean(missing.name, beside)}")


def _inside(folder: Path) -> list[Path]:
    """The files of a known format in a folder and its folders; hidden ones are left out."""

    def unreadable(error: OSError) -> None:
        raise UserError(f"{shown(str(error.filename), 300)}: cannot be read: {(error.strerror or '').lower()}")

    found = []
    for place, folders, names in os.walk(folder, onerror=unreadable):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(place, name) for name in names if not name.startswith(".")):
            if telling_suffix(path) in SUFFIXES or path.suffix.lower() == ".zip":
                found.append(path)
    if not found:
        raise UserError(f"{shown(str(folder), 300)}: holds no file of a known format ({listed(SUFFIXES, 20)})")
    return sorted(found)


def _format(name: str, suffixes: Iterable[str], otherwise: str | None) -> str:
    """The format that one of the suffixes tells."""
    for suffix in suffixes:
        if suffix in SUFFIXES:
            return SUFFIXES[suffix]
    if otherwise is None:
        raise UserError(f"{name}: its name does not tell its format; give one of {listed(FORMATS, 20)}")
    return otherwise


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
) -> Iterator[Record]:
    """Every record of the files, one at a time.

    `columns` names those of a table without a header line (`header=False`); otherwise they must be there.
    `documents` says what a document of a txt file is: a "line", a "block" between blank lines, the "file", or "auto":
    each file shows by its lines which of these it is.
    """
    options = _options(columns, () if columns is None else columns, header, delimiter, documents)
    return _read(patterns, format, None, options, False, on_bad_row, skipped)


def read_texts(
    patterns: Patterns,
    *,
    column: str = "text",
    format: str | None = None,
    columns: Sequence[str] | None = None,
    header: bool = True,
    delimiter: str | None = None,
    documents: str = "line",
    on_bad_row: str = "stop",
    skipped: Skipped | None = None,
) -> Iterator[Document]:
    """Every text of the files: documents, the named column of a table, sentences of CoNLL, contexts of SQuAD.

    A file whose name tells no format is taken for txt; blank texts are passed over.
    """
    options = _options(columns, (column,), header, delimiter, documents)
    records = _read(patterns, format, "txt", options, True, on_bad_row, skipped)
    return (Document(record.values["text"], record.where) for record in records)


def look_for_documents(paths: Iterable[Path]) -> set[str]:
    """What the documents of text files are, by their contents: line, block, file; tables have rows instead."""
    kinds = set[str]()
    for path in paths:
        for source in open_sources(path):
            if _format(source.name, source.suffixes, "txt") == "txt":
                kinds.add(look(read_lines(source))[0])
    return kinds


def read_input() -> Iterator[Document]:
    """Every line of standard input, blank ones too, for work that answers line for line."""
    for source in open_sources(STANDARD_INPUT):
        for number, text, fault in read_lines(source):
            if fault:
                raise fault
            yield Document(text, f"{source.name} line {number}")


def _options(
    names: Sequence[str] | None, needed: Sequence[str], header: bool, delimiter: str | None, documents: str
) -> Options:
    """What the caller said about the files, checked before any is opened."""
    one_of(documents, DOCUMENTS, "documents")
    if delimiter is not None and (len(delimiter) != 1 or delimiter in '"\r\n '):
        raise UserError(f"delimiter {shown(delimiter)!r} is not one character such as ',' or ';'")
    for place, name in enumerate(names or ()):
        if not name or name in (names or ())[:place]:
            raise UserError(f"columns: {shown(name)!r} is {'there twice' if name else 'not a name'}")
    return Options(names=names, needed=needed, header=header, delimiter=delimiter, documents=documents)


def _read(
    patterns: Patterns,
    format: str | None,
    otherwise: str | None,
    options: Options,
    texts: bool,
    on_bad_row: str,
    skipped: Skipped | None,
) -> Iterator[Record]:
    """Check what can be checked before anything is read, then hand out the records."""
    one_of(on_bad_row, ("stop", "skip"), "on_bad_row")
    if format is not None:
        one_of(format, FORMATS, "format")
    paths = find_files(patterns)
    for path in paths:
        if format is None and path != STANDARD_INPUT and path.suffix.lower() != ".zip":
            archive, _ = zip_and_member(path)
            _format(shown(str(path), 300), (telling_suffix(path), telling_suffix(archive)), otherwise)

    def records() -> Iterator[Record]:
        for path in paths:
            for source in open_sources(path):
                fallback = "txt" if path == STANDARD_INPUT else otherwise
                kind = format or _format(source.name, source.suffixes, fallback)
                for found in _texts(source, kind, options) if texts else READERS[kind](source, options):
                    if isinstance(found, Record):
                        yield found
                    elif on_bad_row == "stop":
                        raise found
                    elif skipped is not None:
                        skipped.add(str(found))

    return records()


def _texts(source: Source, kind: str, options: Options) -> Rows:
    """The records of a source with nothing but their text."""
    column = options.needed[0] if kind in ("csv", "tsv", "jsonl", "parquet") else "text"
    if kind in ("txt", "conll", "squad"):
        options = Options(documents=options.documents)
    reader = read_contexts if kind == "squad" else READERS[kind]
    for found in reader(source, options):
        if isinstance(found, UserError):
            yield found
            continue
        text = " ".join(found.values["words"]) if kind == "conll" else found.values[column]
        if not isinstance(text, str):
            yield UserError(f"{found.where}: column {shown(column)!r} holds {type(text).__name__}, not text")
        elif text and not text.isspace():
            yield Record({"text": text}, found.where)
