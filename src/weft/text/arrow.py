"""Tables that Arrow reads: parquet, Arrow and Feather files; names of classes come from Hugging Face's metadata."""

from __future__ import annotations

import importlib
import json
import mmap
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from weft.errors import UserError, shown
from weft.files import JSON_VALUES, MEGABYTE
from weft.text.arrow_sizes import check_arrow, parquet_rows
from weft.text.rows import Options, Record, Rows, check_names, need_columns
from weft.text.sources import LIMIT, TextSource, check_ratio, need_module

BATCH = 256  # rows that are held at a time
DAMAGED = (OSError, ValueError, OverflowError, MemoryError, struct.error, LookupError, TypeError)


def read_parquet(source: TextSource, options: Options) -> Rows:
    """Rows of a parquet file, some hundred at a time."""
    parquet = need_module(source, "pyarrow.parquet", "data", "parquet")
    return _rows(source, options, "parquet", lambda: _parquet(parquet, source))


def read_arrow(source: TextSource, options: Options) -> Rows:
    """Rows of an Arrow file or stream (Feather is such a file), some hundred at a time."""
    ipc = need_module(source, "pyarrow.ipc", "data", "Arrow")
    return _rows(source, options, "Arrow", lambda: _arrow(ipc, source))


def _parquet(parquet: Any, source: TextSource) -> tuple[Any, Iterator[Any]]:
    file = parquet.ParquetFile(source.stream)
    size = os.fstat(source.stream.fileno()).st_size
    with open(str(source.path), "rb") as stream:
        together = parquet_rows(file.metadata, stream, source.name, size, BATCH)

    def batches() -> Iterator[Any]:
        for group, count in enumerate(together):
            yield from file.iter_batches(batch_size=count, row_groups=[group])

    return file.schema_arrow, batches()


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


def _rows(source: TextSource, options: Options, kind: str, opened: Any) -> Rows:
    pyarrow = importlib.import_module("pyarrow")
    number = unfolded = 0
    size = os.fstat(source.stream.fileno()).st_size
    try:
        schema, batches = opened()
        check_names(source.name, schema.names)
        need_columns(schema.names, options, source.name)
        labels = class_names(schema) or _beside(source)
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
    """Bytes of the entries of an array of texts, or of some, each as often as it is named; None: no texts.

    They are read where the array has them: to look through a whole dictionary for every few rows would take long.
    """
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


def class_names(schema: Any) -> dict[str, list[str]]:
    """The names of the classes in columns of numbers, where Hugging Face's datasets has left them in a schema."""
    text = (schema.metadata or {}).get(b"huggingface")
    try:
        return _class_names(json.loads(text)["info"]["features"]) if text else {}
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}


def _beside(source: TextSource) -> dict[str, list[str]]:
    """The same from the dataset_info.json beside the files of a saved dataset."""
    assert source.path is not None
    path = source.path.parent / "dataset_info.json"
    try:
        return _class_names(json.loads(path.read_bytes())["features"]) if path.stat().st_size <= 1 << 24 else {}
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return {}


def _class_names(features: Any) -> dict[str, list[str]]:
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
