"""Rows and texts of users' files, read one at a time, each with the place it came from; plain text and CoNLL."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from weft.errors import UserError, listed, one_of, refuse, shown
from weft.text import sources
from weft.text.arrow import read_arrow
from weft.text.json_rows import json_kind, read_json, read_jsonl, read_squad
from weft.text.rows import Options, Problems, Record, Rows, Skipped, check_columns, check_length, need_columns
from weft.text.sources import BadBytes, Line, Patterns, TextSource, find_files, head_of, open_sources, read_lines
from weft.text.tables import delimiter_of, known_name, read_delimited, read_xlsx, split_rows

LINES = 500  # that are looked at
CHARACTERS = 1 << 17  # and characters at most
MAGIC = {b"PAR1": "parquet", b"ARROW1": "arrow", b"\xff\xff\xff\xff": "arrow"}
UNREAD = {
    **dict.fromkeys((".xls", ".ods"), "save it as .xlsx or csv"),
    **dict.fromkeys((".doc", ".docx", ".pdf", ".rtf"), "save it as text"),
}
TAG = re.compile(r"O|[BIESLUM]-\S+")


def format_of(source: TextSource, loose: bool) -> str | None:
    """The format that the content shows beyond doubt; `loose`: the name is not .txt, so that any table counts."""
    if source.path is None:  # it can be read but once
        return None
    magic = next(sources.read_chunks(source), b"")[:8]
    for first, format in MAGIC.items():
        if magic.startswith(first):
            return format
    if magic.startswith(b"PK\x03\x04"):
        with suppress(Exception), sources.zip_file(source.stream, source.name) as archive:  # hostile: raises anything
            if "xl/workbook.xml" in archive.namelist():
                return "xlsx"
        return None
    lines = [text for _, text, _ in head_of(read_lines(source), lambda line: len(line[1]), CHARACTERS, LINES)]
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
    rows = split_rows(full, delimiter)[0] if delimiter in full[0] else []
    if not rows:
        return None
    named = sum(bool(known_name(name)) for name in rows[0])
    even = len(rows) > 4 and len({len(row) for row in rows}) == 1
    # No running text has | or ; as often in every line.
    if named >= min(2, len(rows[0])) or (even and (loose or delimiter in ("|", ";"))):
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


DOCUMENTS = ("auto", "line", "block", "file")
NAMES = {"line": "lines", "block": "blocks between blank lines", "file": "whole files"}
LOOKED_AT = 1 << 20  # characters at the beginning of a file that decide
NARROW, WIDE = 38, 160  # characters between which the right margin of a wrapped text lies
MIN_PAIRS = 8  # pairs of lines that can show a margin
QUOTES, ENDS = "\"'”’)»_", (".", "!", "?", "。")  # what may follow the end of a sentence, and its end
RARE = 0.01  # share of blank lines below which they separate nothing


def detect_documents(lines: Iterable[Line]) -> tuple[str, Iterator[Line]]:
    """What the documents of a file are, and its lines from the first one on."""
    rest = iter(lines)
    head = head_of(rest, lambda line: len(line[1]) + 1, LOOKED_AT)
    return documents_of([text.strip() for _, text, _ in head]), chain(head, rest)


def documents_of(lines: Sequence[str]) -> str:
    """line, block or file: what the documents of a text with these lines are; blank lines are empty."""
    pairs = list(dict.fromkeys((line, after) for line, after in zip(lines, lines[1:], strict=False) if line and after))
    full = [line for line in lines if line]
    inside = [place for place in range(1, len(lines) - 1) if not lines[place]]  # not those at the edges of the file
    between = sum(1 for place in inside if lines[place - 1])
    wrapped = False  # whether lines that end inside a sentence end where the first word of the next would not fit
    if len(pairs) >= MIN_PAIRS:
        margin = sorted(len(line) for line, _ in pairs)[49 * len(pairs) // 50]  # but for one that could not be wrapped
        unended = [(line, after) for line, after in pairs if not line.rstrip(QUOTES).endswith(ENDS)]
        broken = sum(len(line) + 1 + len(after.split(maxsplit=1)[0]) > margin for line, after in unended)
        many = 2 * len(unended) > len(pairs) and broken > 0.6 * len(unended)
        wrapped = NARROW <= margin <= WIDE and many
    if between and (wrapped or (between >= RARE * len(full) and len(full) >= 1.5 * (between + 1))):
        return "block"
    return "file" if wrapped else "line"


def read_txt(source: TextSource, options: Options) -> Rows:
    """A document per line, per block of lines between blank ones, per file, or as the text looks."""
    need_columns(["text"], options, source.name)
    documents, lines = options.documents, read_lines(source)
    if documents == "auto":
        documents, lines = detect_documents(lines)
    if documents == "line":
        for number, text, fault in lines:
            if fault:
                yield fault
            elif text and not text.isspace():
                yield Record({"text": text}, f"{source.name} line {number}")
        return
    if documents == "block":
        for block, fault in _blocks(source, lines, "this block"):
            text = "\n".join(text for _, text, _ in block)
            yield fault or Record({"text": text}, f"{source.name} line {block[0][0]}")
        return
    texts, size = list[str](), 0
    for _, text, fault in lines:
        if fault:
            yield fault
            return
        texts.append(text)
        size += len(text) + 64  # what Python needs for a line
        if size > sources.LIMIT:
            problem = sources.too_long(source.name, "as one document it")
            raise UserError(f"{problem}; let a document be a line or a block")
    text = "\n".join(texts) + "\n"  # line ends and blank lines are kept
    if not text.isspace():
        yield Record({"text": text}, f"{source.name} line 1")


def _blocks(source: TextSource, lines: Iterable[Line], what: str) -> Iterator[tuple[list[Line], UserError | None]]:
    """Runs of lines between blank ones, and the first bad byte in each."""
    block, size = list[Line](), 0
    for line in chain(lines, [(0, "", None)]):
        text = line[1]
        if text and not text.isspace():
            block.append(line)
            size += len(text) + 128  # what Python needs for a line of one letter
            if size > sources.LIMIT:
                raise sources.too_long(f"{source.name} line {block[0][0]}", what)
        elif block:
            yield block, next((fault for _, _, fault in block if fault), None)
            block, size = [], 0


CONLL_HEADER = {"token", "tokens", "word", "words", "form", "tag", "tags", "ner", "ner_tag", "pos", "pos_tag", "chunk"}
CONLL_HEADER |= {"label", "labels", "lemma", "entity", "text"}


def read_conll(source: TextSource, options: Options) -> Rows:
    """Sentences of a word per line with columns beside it; the last column is the tag."""
    need_columns(["words", "tags", "columns"], options, source.name)
    shape: tuple[bool, int] | None = None  # of the row before: cut at tabs or not, number of columns
    for lines, fault in _blocks(source, read_lines(source), "this sentence"):
        began, rows = 0, list[list[str]]()
        for number, text, _ in lines:
            check_columns(1 + text.count(" ") + text.count("\t"), f"{source.name} line {number}")
            tabbed = "\t" in text
            row = text.split("\t") if tabbed else re.split(" +", text.strip(" "))
            if row[0] == "-DOCSTART-" or text.startswith(("#begin document", "#end document")):
                continue
            # A comment of CoNLL-U stands before its sentence. In a file cut at spaces '# # B-NP' is a token (a pound
            # sign, in CoNLL-2000): it looks like the rows before it.
            if not rows and text.startswith("# ") and shape != (tabbed, len(row)):
                continue
            if shape is None and not rows and {cell.casefold() for cell in row} <= CONLL_HEADER:
                source.note(f"{source.name}: line {number} is taken for the names of the columns")
                continue
            began = began or number
            if rows and len(row) != len(rows[0]):
                words = f"expected {len(rows[0])} columns, as in line {began}, got {len(row)}"
                fault = fault or UserError(f"{source.name} line {number}: {words}")
                break
            shape = (tabbed, len(row))
            rows.append(row)
        if fault:
            yield fault
        elif rows:
            columns = [list(column) for column in zip(*rows, strict=True)]
            tags = columns[-1] if len(columns) > 1 else []
            yield Record({"words": columns[0], "tags": tags, "columns": columns}, f"{source.name} line {began}")


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
    known = next((sources.SUFFIXES[suffix] for suffix in source.suffixes if suffix in sources.SUFFIXES), None)
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


def read_records(patterns: Patterns, **given: Any) -> Iterator[Record]:
    """Every record of the files, one at a time, read as `Options` say; these are checked before any file is read."""
    options = Options(**given)
    one_of(options.documents, DOCUMENTS, "documents")
    mark, names = options.delimiter, list(options.columns or ())
    if mark is not None and (len(mark) != 1 or mark in '"\r\n '):
        raise UserError(f"delimiter {shown(mark)!r} is not one character such as ',' or ';'")
    for place, name in enumerate(names):
        wrong = "there twice" if name else "not a name"
        refuse((not name or name in names[:place], f"columns: {shown(name)!r} is {wrong}"))
    one_of(options.on_bad_row, ON_BAD_ROW, "on_bad_row")
    if options.format is not None:
        one_of(options.format, FORMATS, "format")
    encoding = None if options.encoding is None else sources.known_encoding(options.encoding)
    skipped = options.skipped or Skipped()

    def opened(path: Path) -> Iterator[tuple[TextSource, str]]:
        def note(text: str) -> None:  # with the name of the file in place of its whole path
            skipped.note(text.replace(shown(str(path), 300), shown(path.name, 300), 1))

        otherwise = "txt" if path == sources.STANDARD_INPUT or options.text_column is not None else None
        for source in open_sources(path):
            source = replace(source, encoding=encoding, note=note)
            yield source, options.format or _format(source, otherwise)

    paths = find_files(patterns)
    for path in paths:
        # A file whose name shows no format is looked at before anything is read; a name in a zip, in its turn.
        archive, suffix = sources.zip_and_member(path)[0], sources.format_suffix
        suffixes = {path.suffix.lower(), suffix(path), suffix(archive)}
        if options.format is None and path != sources.STANDARD_INPUT and not suffixes & {".zip", *sources.SUFFIXES}:
            next(opened(path), None)

    def records() -> Iterator[Record]:
        for path in paths:
            for source, kind in opened(path):
                read = READERS[kind] if options.text_column is None else partial(_texts, kind=kind)
                yield from good_rows(source, read(source, options), options.on_bad_row, skipped)

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
    for source in open_sources(sources.STANDARD_INPUT):
        for number, text, fault in read_lines(source):
            if fault:
                raise fault
            check_length(text, f"{source.name} line {number}")
            yield Document(text, f"{source.name} line {number}")


def good_rows(source: TextSource, rows: Rows, on_bad_row: str, skipped: Skipped) -> Iterator[Record]:
    """The rows of a source that can be read; bad ones are skipped, kept or reported together."""
    problems, count, damaged = Problems(), 0, 0
    try:
        for row in rows:
            count += 1
            damaged += isinstance(row, BadBytes)
            if isinstance(row, Record):
                if not problems.count:
                    yield row
            elif on_bad_row == "keep":
                yield Record({}, source.name, problem=str(row))
            elif on_bad_row == "skip":
                skipped.add(str(row))
            else:
                problems.add(row)
                if problems.full:
                    break
    except UserError as error:  # what spoils the whole file
        problems.add(error)
    if damaged > MAX_DAMAGED * count and damaged > 2:
        many = ", too many to skip" if on_bad_row == "skip" else ""
        rows_are = f"{damaged:,} of {count:,} rows are not UTF-8{many}"
        raise UserError(f"{source.name}: {rows_are}; give --encoding NAME, such as cp1252")
    problems.check()


def _texts(source: TextSource, options: Options, kind: str) -> Rows:
    if kind == "json" and json_kind(source) == "squad":
        kind = "squad"
    column = options.text_column or ""
    if kind in ("txt", "conll", "squad"):
        column, options = "text", Options(documents=options.documents)
    reader = partial(read_squad, contexts=True) if kind == "squad" else READERS[kind]
    for row in reader(source, options):
        if isinstance(row, UserError):
            yield row
            continue
        text = " ".join(row.values["words"]) if kind == "conll" else row.values[column]
        if not isinstance(text, str):
            yield UserError(f"{row.where}: column {shown(column)!r} holds {type(text).__name__}, not text")
        elif text and not text.isspace():
            yield Record({"text": text}, row.where)
