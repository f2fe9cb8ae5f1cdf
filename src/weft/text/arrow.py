"""Tables that Arrow reads: parquet, Arrow and Feather files; names of classes come from Hugging Face's metadata."""

from __future__ import annotations

import importlib
import json
import mmap
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import IO, Any

from weft.errors import UserError, shown
from weft.files import JSON_VALUES, MEGABYTE
from weft.text.rows import Options, Record, Rows, check_names, need_columns
from weft.text.sources import LIMIT, TextSource, check_ratio, need_module

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
        raise UserError(f"{name}: a {what} unpacks to {size // MEGABYTE:,} MiB; {limit}")


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
        for room in (1 << 10, MAX_HEADER):  # the statistics in a header may be long
            stream.seek(begin)
            with suppress(IndexError):
                header, used = _struct(stream.read(min(room, end - begin)), 0, 0)
                break
        else:
            raise ValueError("a page whose header is cut short")
        unpacked, packed = header.get(2), header.get(3)
        if not isinstance(unpacked, int) or not isinstance(packed, int) or unpacked < 0 or packed < 0:
            raise ValueError("a page without a size")
        largest = max(largest, unpacked)
        about = header.get(5) or header.get(8)
        count = about.get(1) if isinstance(about, dict) else 0
        values += count if isinstance(count, int) else 0
        begin += used + packed
    return largest, values


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
        root = _number(metadata, 0)
        kind = metadata[_field(metadata, root, 1)] if _field(metadata, root, 1) else 0
        if kind not in (2, 3):
            continue
        batch = _child(metadata, root, 2)
        batch = _child(metadata, batch, 1) if kind == 2 else batch  # inside of a dictionary
        size, buffers = 0, _child(metadata, batch, 2)
        if _field(metadata, batch, 3):  # they are packed
            for number in range(_number(metadata, buffers) if buffers else 0):
                offset, length = struct.unpack_from("<qq", metadata, buffers + 4 + 16 * number)
                if length >= 8 and 0 <= offset <= len(body) - 8:
                    size += max(0, _number(body, offset, "<q"))
        dictionaries += size if kind == 2 else 0
        _check_unfolded(name, dictionaries if kind == 2 else size, "dictionary" if kind == 2 else "batch")
        place = _field(metadata, batch, 0)
        rows += _number(metadata, place, "<q") if place and kind == 3 else 0
        check_rows(name, rows, len(data))


def _messages(data: memoryview) -> Iterator[tuple[memoryview, memoryview]]:
    """The metadata and the body of each message: as the footer of a file lists them, or one after the other."""
    if bytes(data[:6]) == b"ARROW1":
        footer = data[len(data) - 10 - _number(data, len(data) - 10) : len(data) - 10]
        for slot in (2, 3):
            blocks = _child(footer, _number(footer, 0), slot)
            for number in range(_number(footer, blocks) if blocks else 0):
                yield _message(data, _number(footer, blocks + 4 + 24 * number, "<q"))[:2]
        return
    at = 0
    while at + 8 <= len(data):
        metadata, body, end = _message(data, at)
        if not len(metadata):
            return
        yield metadata, body
        at = end


def _message(data: memoryview, at: int) -> tuple[memoryview, memoryview, int]:
    lead = 8 if _number(data, at) == 0xFFFFFFFF else 4  # before version 0.15 of Arrow
    size = _number(data, at + lead - 4)
    begin = at + lead + size
    metadata = data[at + lead : begin]
    place = _field(metadata, _number(metadata, 0), 3) if size else 0
    end = begin + (_number(metadata, place, "<q") if place else 0)
    return metadata, data[begin:end], max(end, at + lead)


def _number(data: memoryview, at: int, form: str = "<I") -> int:
    return struct.unpack_from(form, data, at)[0]


def _field(data: memoryview, table: int, slot: int) -> int:
    """Where a field of a table of FlatBuffers stands; 0 where it is not there."""
    about = table - _number(data, table, "<i")
    size = _number(data, about, "<H")
    offset = _number(data, about + 4 + 2 * slot, "<H") if 6 + 2 * slot <= size else 0
    return table + offset if offset else 0


def _child(data: memoryview, table: int, slot: int) -> int:
    """Where the table or vector begins that a field refers to; 0 where it is not there."""
    place = _field(data, table, slot)
    return place + _number(data, place) if place else 0


BATCH = 256  # rows that are held at a time
DAMAGED = (OSError, ValueError, OverflowError, MemoryError, struct.error, LookupError, TypeError)


def _arrow(ipc: Any, source: TextSource) -> tuple[Any, Iterator[Any]]:
    # Mapped, a length that a damaged file gives is checked against its size, before anything is allocated.
    with open(str(source.path), "rb") as file:
        check_arrow(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)), source.name)
    mapped = importlib.import_module("pyarrow").memory_map(str(source.path))
    if mapped.read(6) == b"ARROW1":
        file = ipc.open_file(mapped)
        return file.schema, (_valid(file.get_batch(number)) for number in range(file.num_record_batches))
    mapped.seek(0)
    stream = ipc.open_stream(mapped)  # as datasets writes it
    return stream.schema, map(_valid, stream)


def _valid(batch: Any) -> Any:
    """A batch of which every place was checked: a damaged one would have Arrow read outside of its memory."""
    pyarrow = importlib.import_module("pyarrow")
    try:
        batch.validate(full=True)
    except pyarrow.ArrowInvalid as error:
        if "UTF8" not in str(error):
            raise
        plain = {pyarrow.string(): pyarrow.binary(), pyarrow.large_string(): pyarrow.large_binary()}
        plain[pyarrow.string_view()] = pyarrow.binary_view()
        for column in batch.columns:  # bad bytes spoil but their own row; the rest must be sound
            (column.view(plain[column.type]) if column.type in plain else column).validate(full=True)
    return batch


def read_arrow(source: TextSource, options: Options, kind: str = "Arrow") -> Rows:
    """Rows of a parquet file, or of an Arrow file or stream (Feather is such a file), some hundred at a time."""
    library = need_module(source, "pyarrow.parquet" if kind == "parquet" else "pyarrow.ipc", "data", kind)
    pyarrow = importlib.import_module("pyarrow")
    number = unfolded = 0
    size = os.fstat(source.stream.fileno()).st_size
    try:
        if kind != "parquet":
            schema, batches = _arrow(library, source)
        else:
            file = library.ParquetFile(source.stream)
            with open(str(source.path), "rb") as stream:
                together = enumerate(parquet_rows(file.metadata, stream, source.name, size, BATCH))
            groups = (file.iter_batches(batch_size=count, row_groups=[group]) for group, count in together)
            schema, batches = file.schema_arrow, chain.from_iterable(groups)
        check_names(source.name, schema.names)
        need_columns(schema.names, options, source.name)
        assert source.path is not None
        labels = class_names(schema) or class_names(schema, source.path.parent / "dataset_info.json")
        for batch in batches:
            for begin in range(0, batch.num_rows, BATCH):
                for part, weight in _parts(batch.slice(begin, BATCH)):
                    unfolded += weight
                    check_ratio(source.name, unfolded, size)
                    if weight > LIMIT:  # a single row
                        number += 1
                        limit = f"{LIMIT // MEGABYTE} MiB or {JSON_VALUES:,} values"
                        yield UserError(f"{source.name} row {number}: has more than {limit}")
                        continue
                    for values in _values(part):
                        number += 1
                        where = f"{source.name} row {number}"
                        if values is None:
                            yield UserError(f"{where}: bytes that are not UTF-8 text")
                        else:
                            yield Record(with_names(values, labels), where)
    except (pyarrow.ArrowException, *DAMAGED) as error:
        words = shown(str(error).partition("\n")[0], 120) or "it asks for more memory than there is"
        after = f" after row {number}" if number else ""
        raise UserError(f"{source.name}: not a whole {kind} file{after}: {words}") from None


def _parts(batch: Any) -> Iterator[tuple[Any, int]]:
    """A batch in parts that are not too much to hold as Python's values, each with its size."""
    weight, values = (sum(sizes) for sizes in zip((0, 0), *map(_weight, batch.columns), strict=True))
    if weight <= LIMIT and values <= JSON_VALUES:
        yield batch, weight
    elif batch.num_rows == 1:
        yield batch, max(weight, LIMIT + 1)
    else:
        half = batch.num_rows // 2
        yield from _parts(batch.slice(0, half))
        yield from _parts(batch.slice(half))


def _weight(array: Any) -> tuple[int, int]:
    """Bytes and values that an array has when each of its rows is written out."""
    types = importlib.import_module("pyarrow").types
    kind, count = array.type, len(array)
    if types.is_dictionary(kind):
        entries, places = array.dictionary, array.indices.drop_null().to_numpy(zero_copy_only=False)
        if (size := _text_sizes(entries, places)) is None:
            size = count * (entries.type.byte_width if types.is_primitive(entries.type) else entries.nbytes)
        return size, count
    inner: list[Any] | None = None
    if types.is_map(kind):
        first, last = (array.offsets[place].as_py() for place in (0, count))
        inner = [part.slice(first, last - first) for part in (array.keys, array.items)]
    elif types.is_struct(kind) or types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner = array.flatten() if types.is_struct(kind) else [array.flatten()]
    if inner is not None:
        sizes = [_weight(part) for part in inner]
        return sum(size for size, _ in sizes), count + sum(values for _, values in sizes)
    plain = types.is_primitive(kind) or types.is_null(kind) or types.is_boolean(kind) or types.is_decimal(kind)
    if plain or types.is_fixed_size_binary(kind):
        return array.nbytes, count
    if (size := _text_sizes(array)) is not None:
        return 4 * count + size, count
    # Other views, unions and runs may show the same bytes in every row.
    return count * array.get_total_buffer_size(), count


def _text_sizes(array: Any, places: Any = None) -> int | None:
    """Bytes of an array of texts, or of its entries at these places, read where the array has them; None: no texts."""
    np = importlib.import_module("numpy")  # here: `weft --help` has no use for it
    types = importlib.import_module("pyarrow").types
    kind, places = array.type, np.arange(len(array)) if places is None else places
    views = types.is_string_view(kind) or types.is_binary_view(kind)  # as Polars writes: 4 numbers each, a length first
    large = types.is_large_string(kind) or types.is_large_binary(kind)
    if not (views or large or types.is_string(kind) or types.is_binary(kind)):
        return None
    if not len(places):
        return 0
    count, width = array.offset + len(array), 4 if views else 1
    numbers = np.frombuffer(array.buffers()[1], np.int64 if large else np.int32, width * count + 1 - views)
    first = width * (array.offset + places.astype(np.int64))
    sizes = numbers[first].astype(np.int64) if views else numbers[first + 1] - numbers[first]
    return int(sizes.sum(dtype=np.int64))


def _values(batch: Any) -> Iterator[dict[str, Any] | None]:
    """The rows of a batch; None for one that holds bad bytes."""
    try:
        yield from batch.to_pylist()
    except UnicodeDecodeError:  # some row is bad: look at each by itself
        for place in range(batch.num_rows):
            try:
                yield batch.slice(place, 1).to_pylist()[0]
            except UnicodeDecodeError:
                yield None


def class_names(schema: Any, beside: Path | None = None) -> dict[str, list[str]]:
    """The names of the classes in columns of numbers, as Hugging Face's datasets leaves them in a schema or a file."""
    features: Any = {}
    with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        if beside is None:
            features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        elif beside.stat().st_size <= 1 << 24:
            features = json.loads(beside.read_bytes())["features"]
    labels = {}
    for name, feature in features.items() if isinstance(features, dict) else ():
        while isinstance(feature, dict | list) and "names" not in feature:  # a list of classes, as tags are
            feature = next(iter(feature), None) if isinstance(feature, list) else feature.get("feature")
        names = feature.get("names") if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" else None
        if isinstance(names, list) and all(isinstance(label, str) for label in names):
            labels[name] = names
    return labels


def with_names(row: Mapping[str, Any], labels: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """A row with the names of its classes in place of their numbers."""
    return {name: _label(value, labels[name]) if name in labels else value for name, value in row.items()}


def _label(value: Any, names: Sequence[str]) -> Any:
    """The name of a class, or of each in a list; None for -1, by which Hugging Face marks a row without a label."""
    if isinstance(value, list):
        return [_label(item, names) for item in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return names[value] if 0 <= value < len(names) else None
    return value
