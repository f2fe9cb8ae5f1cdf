"""How much a parquet or Arrow file unfolds to, read from the headers of its parts before any part is unpacked."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import IO, Any

from weft.errors import UserError
from weft.files import MEGABYTE

MAX_UNFOLDED = 1024 * MEGABYTE  # of one page of parquet, or one batch of Arrow
BUDGET = 256 * MEGABYTE  # of the rows that are unfolded together
MAX_NESTED_VALUES = 1 << 26  # values in a column of lists in one row group
MAX_HEADER = 16 * MEGABYTE  # of the header of a page, as Arrow limits it
LEAST_ROWS, ROWS_PER_BYTE = 1 << 20, 16  # rows of any file, and of a larger one for each of its bytes


def check_rows(name: str, rows: int, size: int) -> None:
    """Refuse a file that claims far more rows than it has bytes."""
    if rows > max(LEAST_ROWS, ROWS_PER_BYTE * size):
        words = f"at most {ROWS_PER_BYTE} a byte are read; if it is sound, give it as csv"
        raise UserError(f"{name}: {size:,} bytes claim to hold {rows:,} rows; {words}")


def _check_unfolded(name: str, size: int, what: str) -> None:
    if size > MAX_UNFOLDED:
        limit = f"at most {MAX_UNFOLDED // MEGABYTE:,} are read: write it in smaller ones"
        raise UserError(f"{name}: a {what} unfolds to {size // MEGABYTE:,} MiB; {limit}")


def parquet_rows(metadata: Any, stream: IO[bytes], name: str, size: int, max_rows: int) -> list[int]:
    """How many rows of each row group may be unfolded together: no value is larger than the page that it is in."""
    # pyarrow's own objects for row groups and columns end the process where a footer is damaged, so it is read here.
    stream.seek(max(0, size - 8))
    length = int.from_bytes(stream.read(4), "little")
    stream.seek(max(0, size - 8 - length))
    groups = _struct(stream.read(length), 0, 0)[0].get(4) or []
    check_rows(name, sum(group[3] for group in groups), size)
    nested = [metadata.schema.column(place).max_repetition_level > 0 for place in range(metadata.num_columns)]
    row_counts = []
    for group in groups:
        width = 1
        for place, chunk in enumerate(group[1]):
            column = chunk[3]
            begin = min(offset for offset in (column[9], column.get(11)) if offset)
            largest, values = _pages(stream, begin, min(column[7], size - begin))
            _check_unfolded(name, largest, "page")
            if nested[place] and values > MAX_NESTED_VALUES:
                words = f"at most {MAX_NESTED_VALUES:,} are read: write it with smaller row groups"
                raise UserError(f"{name}: a column of lists has {values:,} values in one row group; {words}")
            width += largest
        row_counts.append(max(1, min(max_rows, BUDGET // width)))
    return row_counts


def _pages(stream: IO[bytes], begin: int, length: int) -> tuple[int, int]:
    """The largest page of a column when it is unpacked, and how many values all of its pages have."""
    end, largest, values = begin + length, 0, 0
    while begin < end:
        header, used = _page_header(stream, begin, end)
        unpacked, packed = header.get(2), header.get(3)
        if not isinstance(unpacked, int) or not isinstance(packed, int) or unpacked < 0 or packed < 0:
            raise ValueError("a page without a size")
        largest = max(largest, unpacked)
        about = header.get(5) or header.get(8)
        count = about.get(1) if isinstance(about, dict) else 0
        values += count if isinstance(count, int) else 0
        begin += used + packed
    return largest, values


def _page_header(stream: IO[bytes], begin: int, end: int) -> tuple[dict[int, Any], int]:
    for room in (1 << 10, MAX_HEADER):  # the statistics in it may be long
        stream.seek(begin)
        data = stream.read(min(room, end - begin))
        try:
            return _struct(data, 0, 0)
        except IndexError:
            continue
    raise ValueError("a page whose header is cut short")


def _struct(data: bytes, at: int, depth: int) -> tuple[dict[int, Any], int]:
    """The fields of a struct in Thrift's compact form by their numbers, and where it ends."""
    fields, number = dict[int, Any](), 0
    if depth > 16:
        raise ValueError("nested too deeply")
    while data[at]:
        kind, step = data[at] & 15, data[at] >> 4
        at += 1
        if step:
            number += step
        else:
            number, at = _zigzag(data, at)
        fields[number], at = _value(data, at, kind, depth)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (1, 2):  # true, false
        return kind == 1, at
    if kind in (4, 5, 6):
        return _zigzag(data, at)
    if kind == 12:
        return _struct(data, at, depth + 1)
    if kind == 8:
        size, at = _varint(data, at)
        if at + size > len(data):
            raise IndexError
        return None, at + size
    if kind in (3, 7):
        return None, at + (1 if kind == 3 else 8)
    if kind in (9, 10):
        count, inner = data[at] >> 4, data[at] & 15
        at += 1
        if count == 15:
            count, at = _varint(data, at)
        values = []
        for _ in range(count):
            value, at = _value(data, at, inner, depth + 1) if inner > 2 else (None, at + 1)
            if at > len(data):
                raise IndexError
            values.append(value)
        return values, at
    raise ValueError("a header of an unknown form")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number, at
        if shift > 63:
            raise ValueError("a number of too many bytes")


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    number, at = _varint(data, at)
    return (number >> 1) ^ -(number & 1), at


def check_arrow(data: memoryview, name: str) -> None:
    """Refuse an Arrow file or stream of which a batch, or all dictionaries, unfold to more than memory should hold."""
    dictionaries = rows = 0
    for metadata, body in _messages(data):
        root = _u32(metadata, 0)
        kind = metadata[_field(metadata, root, 1)] if _field(metadata, root, 1) else 0
        if kind not in (2, 3):
            continue
        batch = _child(metadata, root, 2)
        batch = _child(metadata, batch, 1) if kind == 2 else batch  # inside of a dictionary
        size = _unfolded(metadata, batch, body)
        dictionaries += size if kind == 2 else 0
        _check_unfolded(name, dictionaries if kind == 2 else size, "dictionary" if kind == 2 else "batch")
        place = _field(metadata, batch, 0)
        rows += _i64(metadata, place) if place and kind == 3 else 0
        check_rows(name, rows, len(data))


def _messages(data: memoryview) -> Iterator[tuple[memoryview, memoryview]]:
    """The metadata and the body of each message: as the footer of a file lists them, or one after the other."""
    if bytes(data[:6]) == b"ARROW1":
        footer = data[len(data) - 10 - _u32(data, len(data) - 10) : len(data) - 10]
        for slot in (2, 3):
            blocks = _child(footer, _u32(footer, 0), slot)
            for number in range(_u32(footer, blocks) if blocks else 0):
                yield _message(data, _i64(footer, blocks + 4 + 24 * number))[:2]
        return
    at = 0
    while at + 8 <= len(data):
        metadata, body, end = _message(data, at)
        if not len(metadata):
            return
        yield metadata, body
        at = end


def _message(data: memoryview, at: int) -> tuple[memoryview, memoryview, int]:
    lead = 8 if _u32(data, at) == 0xFFFFFFFF else 4  # before version 0.15 of Arrow
    size = _u32(data, at + lead - 4)
    begin = at + lead + size
    metadata = data[at + lead : begin]
    place = _field(metadata, _u32(metadata, 0), 3) if size else 0
    end = begin + (_i64(metadata, place) if place else 0)
    return metadata, data[begin:end], max(end, at + lead)


def _unfolded(metadata: memoryview, batch: int, body: memoryview) -> int:
    """What the buffers of a batch have when they are unpacked; 0 where they lie in the file as they are."""
    buffers = _child(metadata, batch, 2)
    if not buffers or not _field(metadata, batch, 3):
        return 0
    total = 0
    for number in range(_u32(metadata, buffers)):
        offset, length = struct.unpack_from("<qq", metadata, buffers + 4 + 16 * number)
        if length >= 8 and 0 <= offset <= len(body) - 8:
            total += max(0, _i64(body, offset))
    return total


def _u32(data: memoryview, at: int) -> int:
    return struct.unpack_from("<I", data, at)[0]


def _i64(data: memoryview, at: int) -> int:
    return struct.unpack_from("<q", data, at)[0]


def _field(data: memoryview, table: int, slot: int) -> int:
    """Where a field of a table of FlatBuffers stands; 0 where it is not there."""
    about = table - struct.unpack_from("<i", data, table)[0]
    size = struct.unpack_from("<H", data, about)[0]
    offset = struct.unpack_from("<H", data, about + 4 + 2 * slot)[0] if 6 + 2 * slot <= size else 0
    return table + offset if offset else 0


def _child(data: memoryview, table: int, slot: int) -> int:
    """Where the table or vector begins that a field refers to; 0 where it is not there."""
    place = _field(data, table, slot)
    return place + _u32(data, place) if place else 0
