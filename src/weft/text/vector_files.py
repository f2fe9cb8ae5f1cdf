"""Files of word vectors in and out: word2vec's text and binary formats and GloVe's text, whichever a file holds.

n: words; d: numbers of each.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from weft.errors import UserError, one_of, shown
from weft.files import memory_here, reason, whole_file
from weft.text.compressed import Source, open_sources, zip_and_member
from weft.text.limits import LONGEST_TOKEN
from weft.text.records import Skipped
from weft.text.vectors import MOST, WIDEST, Floats, WordVectors, looks_like_vectors, read_vectors

FORMATS = ("text", "binary", "glove")  # word2vec's text begins with a line of two numbers, GloVe's does not
LONGEST = LONGEST_TOKEN  # bytes of a word
ROWS = 1 << 13  # rows that are put together


def read_file(path: Path, on_bad_row: str = "stop", skipped: Skipped | None = None) -> WordVectors:
    """The vectors of a file in any of the formats, plain or compressed."""
    if _is_binary(path):
        return read_binary(path)
    return read_vectors(path, on_bad_row, skipped)


def is_file_of_vectors(path: Path) -> bool:
    """Whether a path is a file of word vectors, as its beginning tells; a folder is none."""
    return looks_like_vectors(path) or _is_binary(path)


def _is_binary(path: Path) -> bool:
    """Whether a file begins as word2vec's binary format does: two numbers, a word, and then no text."""
    if not zip_and_member(path)[0].is_file() or path.suffix.lower() == ".zip":
        return False
    with suppress(UserError, OSError, EOFError):
        for source in open_sources(path):
            line = source.stream.readline(64)
            parts = line.split()
            if len(parts) != 2 or not line.endswith(b"\n") or not all(part.isdigit() for part in parts):
                return False
            width = int(parts[1])
            start = source.stream.read(LONGEST + 4 * min(width, WIDEST))
            numbers = start.partition(b" ")[2][: 4 * min(width, WIDEST)]
            # Numbers as text are digits, points, signs and spaces; four bytes of a float hardly ever are. Where those
            # are short, the next word stands among these bytes: the first line alone tells.
            first = numbers.partition(b"\n")[0]
            numbers = first if len(first.split()) >= min(width, 2) else numbers
            return bool(numbers) and any(byte not in b"0123456789.+-eE \n\r\tnaif" for byte in numbers)
    return False


def read_binary(path: Path) -> WordVectors:
    """The vectors of word2vec's binary format; how many are told is checked against the file before memory is asked."""
    for source in open_sources(path):
        try:
            return _binary(source, path)
        except (OSError, EOFError) as error:
            raise UserError(f"{source.name}: cannot be read: {reason(error)}") from None
    raise UserError(f"{path}: holds no vector")


def _binary(source: Source, path: Path) -> WordVectors:
    name, stream = source.name, source.stream
    line = stream.readline(64)
    parts = line.split()
    if len(parts) != 2 or not line.endswith(b"\n") or not all(part.isdigit() for part in parts):
        raise UserError(f"{name}: does not begin with a line of two numbers, as word2vec's binary format does")
    count, width = int(parts[0]), int(parts[1])
    if not 1 <= count <= MOST or not 1 <= width <= WIDEST:
        raise UserError(f"{name} line 1: {count} words of {width} numbers; at most {MOST} of {WIDEST} are read")
    least = count * (4 * width + 2)  # a word has a letter and a space
    if source.plain and path.stat().st_size < least:
        size = path.stat().st_size
        raise UserError(f"{name}: {count} words of {width} numbers need {least} bytes at least; the file has {size}")
    if 4 * count * width > memory_here():
        raise UserError(f"{name}: its vectors do not fit into the {memory_here() / 1e9:.1f} GB of this machine")
    found: dict[str, None] = {}
    blocks: list[Floats] = []
    rows: list[bytes] = []
    reader = io.BufferedReader(stream, 1 << 20)
    for number in range(1, count + 1):
        word, row = _row(reader, name, number, count, 4 * width)
        if word not in found:
            found[word] = None
            rows.append(row)
        if len(rows) == ROWS or number == count:
            blocks.append(_numbers(rows, width))
            rows = []
    matrix = numpy.concatenate(blocks)
    bad = ~numpy.isfinite(matrix).all(1)
    if bad.any():
        first = int(bad.argmax())
        raise UserError(f"{name} word {first + 1}: {shown(list(found)[first], 30)!r}: holds what is not a number")
    return WordVectors(list(found), matrix, count - len(found))


def _row(reader: Any, name: str, number: int, count: int, size: int) -> tuple[str, bytes]:
    """The next word and the bytes of its numbers."""
    letters = bytearray()
    while (byte := reader.read(1)) != b" ":
        if not byte:
            raise UserError(f"{name} word {number}: the file ends here; line 1 says that there are {count} words")
        if byte == b"\n" and not letters:  # word2vec's own program ends a row so, others do not
            continue
        letters += byte
        if len(letters) > LONGEST:
            raise UserError(f"{name} word {number}: is longer than {LONGEST} bytes; the rows are not {size // 4} wide")
    if not letters:
        raise UserError(f"{name} word {number}: has no word before its numbers")
    row = reader.read(size)
    if len(row) < size:
        raise UserError(f"{name} word {number}: expected {size // 4} numbers, found {len(row) // 4}")
    try:
        return letters.decode("utf-8"), row
    except UnicodeDecodeError:
        raise UserError(
            f"{name} word {number}: is not UTF-8 text; either the file is in another encoding, or its rows are not "
            f"{size // 4} numbers wide"
        ) from None


def _numbers(rows: list[bytes], width: int) -> Floats:
    return numpy.frombuffer(b"".join(rows), "<f4").reshape(-1, width).astype(numpy.float32)


# --------------------------------------------------------------------------------------------------------- writing


def write_file(path: Path, words: Sequence[str], matrix: NDArray[Any], format: str) -> None:
    """The file whole, or what was there before."""
    one_of(format, FORMATS, "format")
    wrong = next((word for word in words if not word or any(mark.isspace() for mark in word)), None)
    if wrong is not None:
        raise UserError(f"{path}: cannot be written: {shown(wrong, 30)!r} is no word that such a file can hold")
    with whole_file(path) as file:
        for chunk in _written(words, matrix, format):
            file.write(chunk)


def _written(words: Sequence[str], matrix: NDArray[Any], format: str) -> Iterator[bytes]:
    if format != "glove":
        yield f"{len(words)} {matrix.shape[1]}\n".encode()
    for word, row in zip(words, matrix, strict=True):
        if format == "binary":
            yield word.encode() + b" " + row.astype("<f4").tobytes() + b"\n"
        else:  # the shortest numbers that are read back as the same
            yield f"{word} {' '.join(map(str, row.astype(numpy.float32)))}\n".encode()
