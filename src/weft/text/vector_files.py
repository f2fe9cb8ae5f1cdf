"""Files of word vectors in and out: word2vec's text and binary formats and GloVe's text, whichever a file holds."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from weft.budget import by_budget
from weft.errors import UserError, listed, one_of, shown
from weft.files import memory_here, whole_file
from weft.text.rows import Skipped
from weft.text.sources import Line, TextSource, find_members, open_sources, read_lines, readable, zip_and_member
from weft.text.tokenizers.schema import MAX_TOKEN_LENGTH

FORMATS = ("text", "binary", "glove")  # word2vec's text begins with a line of two numbers, GloVe's does not
MAX_WORD_BYTES = MAX_TOKEN_LENGTH  # bytes of a word
ROWS = 1 << 13  # rows that are put together
MAX_WIDTH = 1 << 16  # numbers of a word; far above any that is published
MAX_WORDS = 1 << 26  # words
LOOK = 64  # lines that show the width of a file
MAX_LINE_LENGTH = MAX_TOKEN_LENGTH + 32 * MAX_WIDTH  # characters
BLOCK = 1 << 22  # characters that are turned into numbers at once

Floats = NDArray[numpy.float32]


@dataclass(frozen=True)
class WordVectors:
    """Words and their vectors, in the order of the file."""

    words: list[str]
    matrix: Floats  # words numbers
    repeated: int = 0  # lines left out, since their word stood there before


def read_file(path: Path, on_bad_row: str = "stop", skipped: Skipped | None = None) -> WordVectors:
    """The vectors of a file in any of the formats, plain or compressed."""
    return read_binary(path) if _is_binary(path) else read_vectors(path, on_bad_row, skipped)


def is_file_of_vectors(path: Path) -> bool:
    """Whether a path is a file of word vectors, as its beginning tells; a folder or a pipe is none."""
    if not zip_and_member(path)[0].is_file():
        return False
    with suppress(UserError):  # words with equally many numbers after each
        return any(True for _ in _opened(path))
    return _is_binary(path)


def _is_binary(path: Path) -> bool:
    """Whether a file begins as word2vec's binary format does: two numbers, a word, and then no text."""
    if not zip_and_member(path)[0].is_file() or path.suffix.lower() == ".zip":
        return False
    with suppress(UserError, OSError, EOFError):
        for source in open_sources(path):
            header = _binary_header(source)
            if header is None:
                return False
            width = header[1]
            start = source.stream.read(MAX_WORD_BYTES + 4 * min(width, MAX_WIDTH))
            numbers = start.partition(b" ")[2][: 4 * min(width, MAX_WIDTH)]
            # Numbers as text are digits, points, signs and spaces; four bytes of a float hardly ever are. Where those
            # are short, the next word stands among these bytes: the first line alone tells.
            first = numbers.partition(b"\n")[0]
            numbers = first if len(first.split()) >= min(width, 2) else numbers
            return bool(numbers) and any(byte not in b"0123456789.+-eE \n\r\tnaif" for byte in numbers)
    return False


def _binary_header(source: TextSource) -> tuple[int, int] | None:
    """The count of words and their width in the first line; None where it is another line."""
    line = source.stream.readline(64)
    parts = line.split()
    if len(parts) != 2 or not line.endswith(b"\n") or not all(part.isdigit() for part in parts):
        return None
    return int(parts[0]), int(parts[1])


def _check_claim(name: str, words: int, width: int) -> None:
    if not 1 <= words <= MAX_WORDS or not 1 <= width <= MAX_WIDTH:
        raise UserError(f"{name} line 1: {words} words of {width} numbers; at most {MAX_WORDS} of {MAX_WIDTH} are read")


def _check_memory(name: str, size: int) -> None:
    if size > memory_here():
        raise UserError(f"{name}: its vectors do not fit into the {memory_here() / 1e9:.1f} GB of this machine")


def read_binary(path: Path) -> WordVectors:
    """The vectors of word2vec's binary format; its claimed size is checked before memory is taken."""
    for source in open_sources(path):
        with readable(source.name):
            return _binary(source, path)
    raise UserError(f"{path}: holds no vector")


def _binary(source: TextSource, path: Path) -> WordVectors:
    name, header = source.name, _binary_header(source)
    if header is None:
        raise UserError(f"{name}: does not begin with a line of two numbers, as word2vec's binary format does")
    count, width = header
    _check_claim(name, count, width)
    min_bytes = count * (4 * width + 2)  # a word has a letter and a space
    if source.plain and path.stat().st_size < min_bytes:
        needed = f"{count} words of {width} numbers need {min_bytes} bytes at least"
        raise UserError(f"{name}: {needed}; the file has {path.stat().st_size}")
    _check_memory(name, 4 * count * width)
    words: dict[str, None] = {}  # an ordered set
    blocks: list[Floats] = []
    rows: list[bytes] = []
    reader: Any = io.BufferedReader(source.stream, 1 << 20)
    for number in range(1, count + 1):
        word, row = _row(reader, name, number, count, 4 * width)
        if word not in words:
            words[word] = None
            rows.append(row)
        if len(rows) == ROWS or number == count:
            blocks.append(numpy.frombuffer(b"".join(rows), "<f4").reshape(-1, width).astype(numpy.float32))
            rows = []
    matrix = numpy.concatenate(blocks)
    bad = ~numpy.isfinite(matrix).all(1)
    if bad.any():
        first = int(bad.argmax())
        raise UserError(f"{name} word {first + 1}: {shown(list(words)[first], 30)!r}: holds what is not a number")
    return WordVectors(list(words), matrix, count - len(words))


def _row(reader: Any, name: str, number: int, count: int, size: int) -> tuple[str, bytes]:
    letters = bytearray()
    while (byte := reader.read(1)) != b" ":
        if not byte:
            raise UserError(f"{name} word {number}: the file ends here; line 1 says that there are {count} words")
        if byte == b"\n" and not letters:  # word2vec's own program ends a row so, others do not
            continue
        letters += byte
        if len(letters) > MAX_WORD_BYTES:
            long = f"is longer than {MAX_WORD_BYTES} bytes"
            raise UserError(f"{name} word {number}: {long}; the rows are not {size // 4} wide")
    if not letters:
        raise UserError(f"{name} word {number}: has no word before its numbers")
    row = reader.read(size)
    if len(row) < size:
        raise UserError(f"{name} word {number}: expected {size // 4} numbers, got {len(row) // 4}")
    try:
        return letters.decode("utf-8"), row
    except UnicodeDecodeError:
        why = f"either the file is in another encoding, or its rows are not {size // 4} numbers wide"
        raise UserError(f"{name} word {number}: is not UTF-8 text; {why}") from None


def write_file(path: Path, words: Sequence[str], matrix: NDArray[Any], format: str) -> None:
    """The file whole, or what was there before."""
    one_of(format, FORMATS, "format")
    wrong = next((word for word in words if not word or any(mark.isspace() for mark in word)), None)
    if wrong is not None:
        raise UserError(f"{path}: cannot be written: {shown(wrong, 30)!r} is no word that such a file can hold")
    with whole_file(path) as file:
        if format != "glove":
            file.write(f"{len(words)} {matrix.shape[1]}\n".encode())
        for word, row in zip(words, matrix, strict=True):
            if format == "binary":
                file.write(word.encode() + b" " + row.astype("<f4").tobytes() + b"\n")
            else:  # the shortest numbers that are read back as the same
                file.write(f"{word} {' '.join(map(str, row.astype(numpy.float32)))}\n".encode())


def read_vectors(path: Path, on_bad_row: str = "stop", skipped: Skipped | None = None) -> WordVectors:
    """The vectors of a GloVe or word2vec text file, plain or compressed, with or without word2vec's first line."""
    one_of(on_bad_row, ("stop", "skip"), "on_bad_row")
    known: dict[str, None] = {}  # an ordered set
    blocks: list[Floats] = []
    lines_read = size = bad = 0
    for name, width, claimed, lines in _opened(path):
        full = (line for line in lines if line[1] and not line[1].isspace())
        for block in by_budget(full, lambda line: len(line[1]), BLOCK):
            lines_read += len(block)
            if lines_read > MAX_WORDS:
                raise UserError(f"{name} line {block[-1][0]}: more than {MAX_WORDS} words")
            words, matrix, faults = _parsed(block, name, width)
            for fault in faults:
                if on_bad_row == "stop":
                    raise fault
                bad += 1
                if skipped is not None:
                    skipped.add(str(fault))
            new = [place for place, word in enumerate(words) if word not in known and known.setdefault(word) is None]
            blocks.append(matrix if len(new) == len(words) else matrix[new])
            size += 2 * blocks[-1].nbytes  # twice: the blocks are put together at the end
            _check_memory(name, size)
        if claimed is not None and claimed != lines_read:
            raise UserError(f"{name}: line 1 says that {claimed} words follow, but there are {lines_read}")
        if not known:
            raise UserError(f"{name}: holds no vector")
    return WordVectors(list(known), numpy.concatenate(blocks), lines_read - bad - len(known))


def _opened(path: Path) -> Iterator[tuple[str, int, int | None, Iterator[Line]]]:
    """The one text that a path stands for: its name, its width, the count of words in its first line, its lines."""
    file, member = zip_and_member(path)
    inside = find_members(file, "*") if file.suffix.lower() == ".zip" and member is None and file.is_file() else []
    if len(inside) > 1:
        raise UserError(f"{path}: holds {listed(inside)}; name one of them, as {path.name}/{inside[0]}")
    for source in open_sources(path):
        lines = _short(read_lines(source), source.name)
        first = list(islice(lines, LOOK))
        width, count = _width(first, source.name)
        yield source.name, width, count, chain(first[1:] if count is not None else first, lines)


def _short(lines: Iterator[Line], name: str) -> Iterator[Line]:
    """The lines, as long as none is longer than the widest vector."""
    for line in lines:
        if len(line[1]) > MAX_LINE_LENGTH:
            raise UserError(f"{name} line {line[0]}: {len(line[1])} characters; at most {MAX_LINE_LENGTH} are read")
        yield line


def _width(first: Sequence[Line], name: str) -> tuple[int, int | None]:
    """How many numbers each word has, and how many words there are where the first line says it ("400000 300")."""
    counts = Counter(_numbers_at_the_end(text) for _, text, _ in first if text and not text.isspace())
    header = first[0][1].split() if first else []
    if len(header) == 2 and all(part.isascii() and part.isdecimal() and len(part) < 10 for part in header):
        words, width = int(header[0]), int(header[1])
        counts[1] -= 1
        if width >= 1 and (counts[width] > 0 or not counts.total()):
            _check_claim(name, words, width)
            return width, words
        counts[1] += 1
    # A word of several parts may end in a number, so the most frequent count is the width, not the first.
    width, lines = counts.most_common(1)[0] if counts else (0, 0)
    if width < 1 or 2 * lines <= counts.total():
        raise UserError(f"{name}: not a file of word vectors: its lines are not words with equally many numbers after")
    if width > MAX_WIDTH:
        raise UserError(f"{name}: {width} numbers a word; at most {MAX_WIDTH} are read")
    return width, None


def _numbers_at_the_end(text: str) -> int:
    """How many fields of a line are numbers, counted from its end; the first is the word, whatever it is."""
    fields = text.rstrip(" ").split(" ")
    count = 0
    while count < len(fields) - 1 and _number(fields[-1 - count]) is not None:
        count += 1
    return count


def _number(field: str) -> float | None:
    """A field as a number; None where it is none, or no finite one."""
    try:
        number = float(field)
    except ValueError:
        return None
    return number if abs(number) <= 3.4e38 and "_" not in field and field.strip() == field else None


def _parsed(block: Sequence[Line], name: str, width: int) -> tuple[list[str], Floats, list[UserError]]:
    """The words and numbers of some lines, and what is wrong with the others."""
    sound: list[tuple[str, str]] = []
    for _, text, fault in block:
        text = text.rstrip(" ")  # word2vec ends its lines with a space
        word, _, numbers = text.partition(" ")
        if text.count(" ") != width:  # a word that holds spaces itself, or a mistake
            parts = text.rsplit(" ", width)
            word, numbers = parts[0], " ".join(parts[1:])
        if fault is not None or not 1 <= len(word) <= MAX_TOKEN_LENGTH or _ends_in_a_number(word):
            break
        sound.append((word, numbers))
    else:
        with suppress(ValueError):  # numpy's reader is the quickest way that takes nothing but a number for a number
            lines = [numbers for _, numbers in sound]
            matrix: Floats = numpy.loadtxt(lines, numpy.float32, comments=None, delimiter=" ", ndmin=2)
            if matrix.shape == (len(lines), width) and numpy.isfinite(matrix).all():
                return [word for word, _ in sound], matrix, []
    words, rows, faults = list[str](), list[list[float | None]](), list[UserError]()
    for number, text, fault in block:
        wrong = ""
        word, *fields = text.rstrip(" ").rsplit(" ", width)
        values = [_number(field) for field in fields]
        if len(fields) < width or _ends_in_a_number(word):
            wrong = f"{shown(word, 30)!r}: expected {width} numbers, got {_numbers_at_the_end(text)}"
        elif None in values:
            wrong = f"{shown(word, 30)!r}: {shown(fields[values.index(None)], 30)!r} is not a number"
        elif not word:
            wrong = "has no word before its numbers"
        elif len(word) > MAX_TOKEN_LENGTH:
            wrong = f"a word of {len(word)} characters; at most {MAX_TOKEN_LENGTH} are read"
        elif fault is None:
            words.append(word)
            rows.append(values)
            continue
        faults.append(fault or UserError(f"{name} line {number}: {wrong}"))
    return words, numpy.array(rows, numpy.float32).reshape(-1, width), faults


def _ends_in_a_number(word: str) -> bool:
    """Whether a word of several parts holds what is rather one number too many."""
    return " " in word and _number(word.rpartition(" ")[2]) is not None
