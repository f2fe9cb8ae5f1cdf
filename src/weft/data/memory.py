"""Rows that are in memory already: data frames, Arrow tables, Hugging Face datasets, dicts, tuples and iterators.

None of these packages is imported here: an object is recognized by its attributes.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

from weft.data.parts import ReadOptions
from weft.errors import UserError, listed, shown
from weft.files import reason
from weft.text.arrow import class_names, with_names
from weft.text.row_problems import Skipped
from weft.text.rows import Record

RowMaker = Callable[[], Iterator[dict[str, Any]]]
TUPLES = {1: ("text",), 2: ("text", "label"), 3: ("text", "pair", "label")}


@dataclass(frozen=True, eq=False)
class MemoryRows:
    """Rows in memory, which can be iterated several times."""

    name: str  # as messages call them: "DataFrame"
    rows: RowMaker

    def paths(self) -> list[Path]:
        return []

    def records(self, options: ReadOptions, skipped: Skipped) -> Iterator[Record]:
        return options.good(self._records(), self.name, skipped)

    def _records(self) -> Iterator[Record | UserError]:
        for number, values in enumerate(self.rows(), start=1):
            where = f"{self.name} row {number}"
            try:
                cells = {str(name): plain(value, f"{where}, column {name!r}") for name, value in values.items()}
                yield Record(cells, where)
            except UserError as error:
                yield error

    def lines(self) -> Iterator[bytes]:
        """The rows as lines of JSON."""
        for record in self._records():
            if isinstance(record, UserError):
                raise record
            try:
                line = json.dumps(record.values, ensure_ascii=False)
                yield f"{line}\n".encode()
            except (TypeError, ValueError) as error:
                raise UserError(f"{record.where}: cannot be written as JSON: {shown(str(error), 120)}") from None

    def digests(self) -> Iterator[bytes]:
        """The hash that a file of these rows would have."""
        whole = hashlib.sha256()
        for line in self.lines():
            whole.update(line)
        yield whole.digest()

    def write(self, path: Path) -> None:
        """Write the rows into a file, for a run that may be resumed when they are gone."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "xb") as file:
                file.writelines(self.lines())
        except OSError as error:
            raise UserError(f"{path}: cannot be written: {reason(error)}") from None


def plain(value: Any, where: str) -> Any:
    """A cell as JSON has it: NumPy's numbers as Python's, a missing value as None."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if type(value).__name__ in ("NAType", "NaTType"):  # of pandas
        return None
    if isinstance(value, float):
        return None if math.isnan(value) else value
    if isinstance(value, Mapping):
        return {str(name): plain(item, where) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item, where) for item in value]
    if _has(value, "tolist"):  # an array of NumPy, or one number of it
        return plain(value.tolist(), where)
    if _has(value, "to_list"):  # a Series of polars
        return plain(value.to_list(), where)
    if _has(value, "isoformat"):
        return value.isoformat()
    if type(value).__name__ == "Decimal":
        return float(value)
    if isinstance(value, os.PathLike | Enum | UUID | timedelta) or type(value).__name__ in ("Interval", "Period"):
        return str(value)  # Interval: the bins of pandas.cut
    raise UserError(f"{where}: a cell holds a {type(value).__name__}, which is neither text, number nor list")


def is_names(data: Any) -> bool:
    """Whether this is the name of a file, or several."""
    if isinstance(data, str | os.PathLike):
        return True
    return isinstance(data, list | tuple) and all(isinstance(name, str | os.PathLike) for name in data)


def _has(data: Any, *names: str) -> bool:
    """Whether an object of another package, which is not imported here, has these attributes."""
    return all(hasattr(data, name) for name in names)


def is_frame(data: Any) -> bool:
    """Whether an object is a table of another package: pandas, polars, Arrow, datasets."""
    return any(_has(data, name) for name in ("columns", "column_names", "schema"))


def unboxed(data: Any) -> Any:
    """One text in an array of NumPy as the text itself; anything else as it is."""
    return data.item() if _has(data, "ndim") and data.ndim == 0 else data


def rows_in_memory(data: Any) -> MemoryRows:
    """Rows of any kind that people hold in memory; an error that names these kinds for anything else."""
    if isinstance(data, MemoryRows):
        return data
    kind = type(data).__name__
    if isinstance(data, Mapping):
        return _by_column(data)
    if _has(data, "collect", "collect_schema"):  # a LazyFrame of polars
        data = data.collect()
    for attributes, rows_of in FRAMES:
        if _has(data, *attributes):
            return MemoryRows(kind, rows_of(data, kind))
    if _has(data, "dtype", "ndim"):  # NumPy, also with named fields
        fields = data.dtype.names or ()
        data = [dict(zip(fields, row, strict=True)) for row in data.tolist()] if fields and data.ndim == 1 else data
        data = data.tolist() if not fields and data.ndim == 2 else data
    if not isinstance(data, Iterable) or isinstance(data, str | bytes):
        raise UserError(
            f"data is a {kind}; give the name of a file, a DataFrame of pandas or polars, a Dataset, an Arrow table, "
            "a list of dicts, a dict of lists, or a list of (text, label) tuples"
        )
    items = data if isinstance(data, Sequence) else list(data)  # a generator can be iterated only once
    name = "data" if isinstance(data, list | tuple) or kind == "generator" else kind
    return MemoryRows(name, lambda: (_row(item, f"{name} row {n}") for n, item in enumerate(items, start=1)))


def _pandas(data: Any, kind: str) -> RowMaker:
    names = [str(name) for name in data.columns]
    _check_names(kind, names)
    return lambda: _zipped(names, [data.iloc[:, n].tolist() for n in range(len(names))])


def _arrow(data: Any, kind: str) -> RowMaker:
    labels = class_names(data.schema)
    _check_names(kind, data.schema.names)
    return lambda: (with_names(row, labels) for batch in data.to_batches(1024) for row in batch.to_pylist())


def _dataset(data: Any, kind: str) -> RowMaker:
    labels = {name: feature.names for name, feature in (data.features or {}).items() if _has(feature, "names")}
    rows = data if _has(data, "__len__") else list(data)
    return lambda: (with_names(dict(row), labels) for row in rows)


FRAMES: list[tuple[tuple[str, ...], Callable[[Any, str], RowMaker]]] = [
    (("iloc", "columns"), _pandas),
    (("iter_rows", "columns"), lambda data, kind: lambda: iter(data.iter_rows(named=True))),  # polars
    (("to_batches", "schema"), _arrow),
    (("features", "column_names"), _dataset),
]


def _by_column(data: Mapping[Any, Any]) -> MemoryRows:
    """A dict of lists; a dict of datasets has splits, of which one must be chosen."""
    splits = [str(name) for name, part in data.items() if _has(part, "column_names")]
    if splits:
        raise UserError(f"data is a dict of the splits {listed(splits)}: give one of them, such as data[{splits[0]!r}]")
    columns = {str(name): plain(values, "data") for name, values in data.items()}
    odd = [name for name, values in columns.items() if not isinstance(values, list)]
    if odd or not columns:
        what = f"column {shown(odd[0])!r} is no list" if odd else "it is empty"
        raise UserError(f"data is a dict, which should map names of columns to lists of their cells: {what}")
    if len({len(values) for values in columns.values()}) > 1:
        sizes = listed(f"{shown(name)} has {len(values)}" for name, values in columns.items())
        raise UserError(f"data is a dict of lists of different lengths: {sizes}")
    return MemoryRows("data", lambda: _zipped(list(columns), list(columns.values())))


def _check_names(kind: str, names: Sequence[str]) -> None:
    twice = [name for place, name in enumerate(names) if name in names[:place]]
    if twice:
        raise UserError(f"{kind}: two columns are named {shown(twice[0])!r}")


def _zipped(names: Sequence[str], columns: Sequence[Sequence[Any]]) -> Iterator[dict[str, Any]]:
    return (dict(zip(names, cells, strict=True)) for cells in zip(*columns, strict=True))


def _row(item: Any, where: str) -> dict[str, Any]:
    if isinstance(item, Mapping):
        return dict(item)
    if isinstance(item, tuple | list) and len(item) in TUPLES and isinstance(item[0], str):
        return dict(zip(TUPLES[len(item)], item, strict=True))
    if isinstance(item, str):
        return {"text": item}
    raise UserError(f"{where}: a {type(item).__name__} where a dict or a (text, label) tuple is expected")
