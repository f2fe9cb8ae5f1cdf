"""Plain text files, read as documents, and CoNLL files, read as sentences."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from weft.errors import UserError
from weft.files import MEGABYTE
from weft.text.rows import Options, Record, Rows, check_columns, need_columns
from weft.text.sources import LIMIT, Line, TextSource, read_lines

DOCUMENTS = ("auto", "line", "block", "file")
NAMES = {"line": "lines", "block": "blocks between blank lines", "file": "whole files"}
LOOKED_AT = 1 << 20  # characters at the beginning of a file that decide
NARROW, WIDE = 38, 160  # characters between which the right margin of a wrapped text lies
MIN_PAIRS = 8  # pairs of lines that can show a margin
QUOTES, ENDS = "\"'”’)»_", (".", "!", "?", "。")  # what may follow the end of a sentence, and its end
RARE = 0.01  # share of blank lines below which they separate nothing


def detect_documents(lines: Iterable[Line]) -> tuple[str, Iterator[Line]]:
    """What the documents of a file are, and its lines from the first one on."""
    rest, head, size = iter(lines), list[Line](), 0
    for line in rest:
        head.append(line)
        size += len(line[1]) + 1
        if size > LOOKED_AT:
            break
    return documents_of([text.strip() for _, text, _ in head]), chain(head, rest)


def documents_of(lines: Sequence[str]) -> str:
    """line, block or file: what the documents of a text with these lines are; blank lines are empty."""
    pairs = list(dict.fromkeys((line, after) for line, after in zip(lines, lines[1:], strict=False) if line and after))
    full = [line for line in lines if line]
    inside = [place for place in range(1, len(lines) - 1) if not lines[place]]  # not those at the edges of the file
    between = sum(1 for place in inside if lines[place - 1])
    wrapped = is_wrapped(pairs)
    if between and wrapped:
        return "block"
    if between >= RARE * len(full) and len(full) >= 1.5 * (between + 1):
        return "block"
    return "file" if wrapped else "line"


def is_wrapped(pairs: Sequence[tuple[str, str]]) -> bool:
    """Whether lines that end inside a sentence end where the first word of the next would not have fitted."""
    if len(pairs) < MIN_PAIRS:
        return False
    margin = sorted(len(line) for line, _ in pairs)[49 * len(pairs) // 50]  # but for a line that could not be wrapped
    if not NARROW <= margin <= WIDE:
        return False
    open_ones = [(line, after) for line, after in pairs if not line.rstrip(QUOTES).endswith(ENDS)]
    broken = sum(len(line) + 1 + len(after.split(maxsplit=1)[0]) > margin for line, after in open_ones)
    return 2 * len(open_ones) > len(pairs) and broken > 0.6 * len(open_ones)


def read_txt(source: TextSource, options: Options) -> Rows:
    """A document per line, per block of lines between blank ones, per file, or as the text looks."""
    need_columns(["text"], options, source.name)
    documents, lines = options.documents, read_lines(source)
    if documents == "auto":
        documents, lines = detect_documents(lines)
    if documents == "file":
        yield from _whole(source, lines)
        return
    if documents == "line":
        for number, text, fault in lines:
            if fault:
                yield fault
            elif text and not text.isspace():
                yield Record({"text": text}, f"{source.name} line {number}")
        return
    for began, block, fault in _blocks(source, lines, "this block"):
        text = "\n".join(text for _, text, _ in block)
        yield fault or Record({"text": text}, f"{source.name} line {began}")


def _whole(source: TextSource, lines: Iterable[Line]) -> Rows:
    """The whole file as one document, line ends and blank lines kept."""
    texts, size = list[str](), 0
    for _, text, fault in lines:
        if fault:
            yield fault
            return
        texts.append(text)
        size += len(text) + 64  # what Python needs for a line
        if size > LIMIT:
            raise UserError(
                f"{source.name}: as one document it has more than {LIMIT // MEGABYTE} MiB; "
                "let a document be a line or a block"
            )
    text = "\n".join(texts) + "\n"
    if not text.isspace():
        yield Record({"text": text}, f"{source.name} line 1")


def _blocks(source: TextSource, lines: Iterable[Line], what: str) -> Iterator[tuple[int, list[Line], UserError | None]]:
    """Runs of lines between blank ones: where each begins, its lines, and the first bad byte in it."""
    block, size = list[Line](), 0
    end: Line = (0, "", None)
    for line in chain(lines, [end]):
        text = line[1]
        if text and not text.isspace():
            block.append(line)
            size += len(text) + 128  # what Python needs for a line of one letter
            if size > LIMIT:
                raise UserError(f"{source.name} line {block[0][0]}: {what} takes more than {LIMIT // MEGABYTE} MiB")
        elif block:
            yield block[0][0], block, next((fault for _, _, fault in block if fault), None)
            block, size = [], 0


CONLL_HEADER = {"token", "tokens", "word", "words", "form", "tag", "tags", "ner", "ner_tag", "pos", "pos_tag", "chunk"}
CONLL_HEADER |= {"label", "labels", "lemma", "entity", "text"}


def read_conll(source: TextSource, options: Options) -> Rows:
    """Sentences of a word per line with columns beside it; the last column is the tag."""
    need_columns(["words", "tags", "columns"], options, source.name)
    shape: tuple[bool, int] | None = None  # of the row before: cut at tabs or not, number of columns
    for _, lines, fault in _blocks(source, read_lines(source), "this sentence"):
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
