"""The format of a file whose name does not show it, by its first bytes and lines."""

from __future__ import annotations

import json
import re
import zipfile
from itertools import islice
from typing import IO, cast

from weft.text.column_names import known_name
from weft.text.sources import TextSource, first_bytes, read_lines, rewind
from weft.text.table_layout import DELIMITERS, delimiter_of, split_rows

LINES = 500  # that are looked at
CHARACTERS = 1 << 17  # and characters at most
MAGIC = {b"PAR1": "parquet", b"ARROW1": "arrow", b"\xff\xff\xff\xff": "arrow", b"PK\x03\x04": "xlsx"}
TAG = re.compile(r"O|[BIESLUM]-\S+")


def format_of(source: TextSource, loose: bool) -> str | None:
    """The format that the content shows beyond doubt; `loose`: the name shows none, so that any table counts.

    A file named .txt is most likely text, so that only what is hardly text is taken for something else.
    """
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
    return _by_lines(lines, loose)


def _by_lines(lines: list[str], loose: bool) -> str | None:
    full = [line for line in lines if line.strip()]
    if not full:
        return None
    if re.match(r"\s*\[\s*(\{|$)", full[0]) and re.match(r"[\s\[]*\{", "".join(full[:3])):
        return "json"
    if full[0].lstrip().startswith("{"):
        return _json_lines(full)
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


def _json_lines(lines: list[str]) -> str | None:
    try:
        json.loads(lines[0])
    except RecursionError:
        return None
    except ValueError:
        return "json" if re.match(r'\s*\{\s*("|$)', lines[0]) else None
    return "jsonl"


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
