"""What a document of a text file is, by the look of the file: a line, a block between blank lines, or all of it.

A wrapped text (a book of Project Gutenberg) has line breaks that mean nothing; a corpus with one sentence or paragraph
on each line has line breaks that do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from weft.text.sources import Line

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
