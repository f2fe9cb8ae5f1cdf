"""Tables: rows of files, folders of classes, parallel files and memory, read with the same options."""

from __future__ import annotations

import hashlib
import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import Enum
from itertools import chain, groupby
from pathlib import Path
from typing import Any
from uuid import UUID

from weft.data.columns import OURS, Note, file_of
from weft.data.shards import TextFiles
from weft.errors import UserError, listed, one_of, shown
from weft.files import MEGABYTE, reason
from weft.text.arrow import class_names, with_names
from weft.text.json_rows import unnested
from weft.text.records import ON_BAD_ROW, read_records
from weft.text.rows import Problems, Record, Skipped
from weft.text.sources import (
    LIMIT,
    SUFFIXES,
    digest_of,
    format_suffix,
    known_encoding,
    name_of,
    open_sources,
    read_lines,
)
from weft.text.tables import likely_columns, whole_numbers

LOOK = 100  # rows of a file that show which column is which
CHARACTERS = 1 << 20  # and characters at most


@dataclass(frozen=True)
class Table:
    """Rows of data, and how they are read."""

    data: Any  # names of files, globs and folders; or rows in memory, as `rows_in_memory` knows them
    columns: Mapping[str, str] = field(default_factory=dict)  # what a task calls a column -> what the file calls it
    format: str | None = None
    delimiter: str | None = None
    names: Sequence[str] = ()  # of the columns of a file without a header line
    on_bad_row: str = "stop"
    encoding: str | None = None  # by the bytes of each file
    split: str = "train"  # of a folder that has several: train, or test
    target: tuple[str, ...] = ()  # files whose lines are the targets of those in `data`

    def __post_init__(self) -> None:
        for name in self.columns:
            one_of(name, OURS, "column")
        one_of(self.on_bad_row, ON_BAD_ROW, "on_bad_row")
        object.__setattr__(self, "names", tuple(self.names))
        given = [self.data] if isinstance(self.data, str | os.PathLike) else self.data
        data = tuple(os.fspath(name) for name in given) if is_names(given) else rows_in_memory(self.data)
        object.__setattr__(self, "data", data)

    @classmethod
    def parallel(
        cls, source: tuple[str, ...], target: tuple[str, ...], on_bad_row: str = "stop", encoding: str | None = None
    ) -> Table:
        """Files that belong together line for line, read as a table of two columns."""
        one_of(on_bad_row, ("stop", "skip"), "on_bad_row")
        if not (source and target):
            given, missing = ("source", "target") if source else ("target", "source")
            raise UserError(f"--{given} has nothing beside it: give --{missing} FILE too")
        return cls(source, on_bad_row=on_bad_row, encoding=encoding, target=target)

    @property
    def in_memory(self) -> bool:
        return isinstance(self.data, MemoryRows)

    @property
    def name(self) -> str:
        """What messages call it: 'a.csv, b.csv and 2 more'."""
        if self.in_memory:
            return self.data.name
        return listed([Path(name_of(path)).name for path in self.paths()], 2)

    def paths(self, note: Note = lambda text: None) -> list[Path]:
        """The files, and folders of classes; none where the rows are in memory."""
        return [path for part in self._parts(note) for path in part.paths()]

    def _parts(self, note: Note = lambda text: None) -> list[TablePart]:
        if self.in_memory:
            return [self.data]
        if self.target:
            sources, targets = TextFiles(self.data).paths(), TextFiles(self.target).paths()
            if len(sources) != len(targets):
                raise UserError(f"{len(sources)} files of sources, but {len(targets)} of targets")
            return [LinePairs(*pair) for pair in zip(sources, targets, strict=True)]
        parts = dict[TablePart, None]()
        for name in self.data:
            folder, files = _folder(name), list[Path]()
            if folder is not None and self.format is None:
                folder = chosen_split(folder, self.split, note)
                if is_class_folder(folder):
                    parts[ClassFolder(folder)] = None
                    continue
                name, files = str(folder), saved_dataset(folder)
            parts.update({TableFile(path): None for path in files or TextFiles((name,)).paths()})
        return list(parts)

    def records(self, skipped: Skipped | None = None) -> Iterator[Record]:
        """Every row, one at a time; the first row of each file knows which of its columns are likely what."""
        skipped = Skipped() if skipped is None else skipped
        if self.encoding is not None:
            known_encoding(self.encoding)
        parts = self._parts(skipped.note)  # before anything is read
        return chain.from_iterable(_with_likely(part.records(self, skipped)) for part in parts)

    def hash(self) -> str:
        """What is in the files, not what they are called; rows in memory have the hash of the file they make."""
        how = [dict(self.columns), self.format, self.delimiter, self.names]
        whole = hashlib.sha256(json.dumps(how if self.encoding is None else [*how, self.encoding]).encode())
        if self.target:
            whole = hashlib.sha256(b"parallel")
        for part in self._parts():
            for digest in part.digests():
                whole.update(digest)
        return whole.hexdigest()

    def good(self, rows: Iterator[Record | UserError], name: str, skipped: Skipped) -> Iterator[Record]:
        """The rows that can be read; others stop, all of them in one error, or are kept or counted."""
        problems = Problems()
        for row in rows:
            if isinstance(row, Record):
                if not problems.count:
                    yield row
            elif self.on_bad_row == "stop":
                problems.add(row)
                if problems.full:
                    break
            elif self.on_bad_row == "keep":
                yield Record({}, name, problem=str(row))
            else:
                skipped.add(str(row))
        problems.check()


def _folder(name: str) -> Path | None:
    """The folder of this name, here or where $WEFT_DATA says that data lies."""
    elsewhere = os.environ.get("WEFT_DATA")
    places = [Path(name), *([Path(elsewhere) / name] if elsewhere and not os.path.isabs(name) else [])]
    return next((path for path in places if "\0" not in name and path.is_dir()), None)


def _with_likely(records: Iterator[Record]) -> Iterator[Record]:
    name = ""

    def file(record: Record) -> str:
        nonlocal name
        name = file_of(record.where, name)
        return name

    for _, rest in groupby(records, file):
        first, size = list[Record](), 0
        for record in rest:
            first.append(record)
            size += sum(len(value) for value in record.values.values() if isinstance(value, str))
            if len(first) >= LOOK or size > CHARACTERS:
                break
        rows = [record.values for record in first]
        yield replace(first[0], likely=likely_columns(rows), ranges=whole_numbers(rows))
        yield from first[1:]
        yield from rest  # noqa: B031  (what the loop above has left)


class TablePart(ABC):
    """Rows that come from one place: a file, a folder of classes, two files line for line, or memory."""

    def paths(self) -> list[Path]:
        """What stands for it in a recipe and in messages: files, or a folder; none where the rows are in memory."""
        return []

    @abstractmethod
    def records(self, options: Table, skipped: Skipped) -> Iterator[Record]: ...

    def digests(self) -> Iterator[bytes]:
        return (digest_of(path) for path in self.paths())


@dataclass(frozen=True)
class TableFile(TablePart):
    """One file of rows, in any format."""

    path: Path

    def paths(self) -> list[Path]:
        return [self.path]

    def records(self, options: Table, skipped: Skipped) -> Iterator[Record]:
        how: dict[str, Any] = {name: vars(options)[name] for name in ("format", "delimiter", "on_bad_row", "encoding")}
        names = options.names or None
        return read_records(self.path, columns=names, header=names is None, skipped=skipped, **how)


TEXTS = ("", ".txt", ".text")
UNLABELED = ("unsup", "unlabeled", "unlabelled", "unsupervised")  # names of folders of unlabeled texts
SPLITS = {"train": ("train", "training"), "test": ("test", "testing", "validation", "valid", "val", "dev", "eval")}


@dataclass(frozen=True)
class ClassFolder(TableFile):
    """A folder whose folders are named after classes, each with files of one text."""

    def files(self) -> Iterator[tuple[str, Path]]:
        """Label and file, in the order of their names."""
        for folder in sorted(_folders(self.path)):
            if folder.name.casefold() not in UNLABELED:
                entries = [entry for entry in _entries(folder) if entry.is_file() and _is_text(entry.name)]
                for path in sorted(Path(entry.path) for entry in entries):
                    yield folder.name, path

    def records(self, options: Table, skipped: Skipped) -> Iterator[Record]:
        """Each file as a row."""
        lost = [folder.name for folder in _folders(self.path) if folder.name.casefold() in UNLABELED]
        if lost:
            skipped.note(f"{self.path.name}: texts in {listed(lost)} have no label and are left out")
        rows = (self._row(label, path, options.encoding, skipped.note) for label, path in self.files())
        yield from options.good(rows, self.path.name, skipped)

    def _row(self, label: str, path: Path, encoding: str | None, note: Note) -> Record | UserError:
        def once(text: str) -> None:  # not for each of a thousand files
            note(f"{self.path.name}: some files are {text.partition(': ')[2]}")

        lines, size = list[str](), 0
        for source in open_sources(path):
            for _, text, fault in read_lines(replace(source, encoding=encoding, note=once)):
                if fault:
                    return fault
                lines.append(text)
                size += len(text)
                if size > LIMIT:
                    return UserError(f"{source.name}: longer than {LIMIT // MEGABYTE} MiB")
        values = {"text": "\n".join(lines).strip(), "label": label, "file": path.name}
        return Record(values, f"{self.path} text {label}/{path.name}")

    def digests(self) -> Iterator[bytes]:
        for label, path in self.files():
            yield label.encode() + b"\0" + digest_of(path)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        return [entry for entry in os.scandir(folder) if not entry.name.startswith((".", "__MACOSX"))]
    except OSError as error:
        raise UserError(f"{shown(str(folder), 300)}: cannot be read: {reason(error)}") from None


def _folders(folder: Path) -> list[Path]:
    return [Path(entry.path) for entry in _entries(folder) if entry.is_dir()]


def _is_text(name: str) -> bool:
    suffix = format_suffix(Path(name))
    return suffix in TEXTS or suffix[1:].isdigit()


def is_class_folder(folder: Path) -> bool:
    """Whether a folder has at least two folders with texts and nothing else in them, and no tables beside them."""
    entries, folders = _entries(folder), _folders(folder)
    tables = any(e.is_file() and SUFFIXES.get(format_suffix(Path(e.name)), "txt") != "txt" for e in entries)
    if tables or len(folders) < 2 or any(_split(path.name) for path in folders):
        return False
    inside = map(_entries, folders)
    return all(texts and all(text.is_file() and _is_text(text.name) for text in texts) for texts in inside)


def _split(name: str) -> str | None:
    """The split that the name of a folder stands for."""
    return next((split for split, names in SPLITS.items() if name.casefold() in names), None)


def chosen_split(folder: Path, split: str, note: Note) -> Path:
    """The folder itself, or where it holds splits the one that is asked for."""
    inside = {path.name: path for path in _folders(folder) if (path / "state.json").is_file()}
    if not ((folder / "dataset_dict.json").is_file() and inside):
        inside = {path.name: path for path in _folders(folder) if _split(path.name) and is_class_folder(path)}
    if not inside:
        return folder
    wanted = list(inside) if len(inside) == 1 else [name for name in SPLITS[split] if name in inside]
    if not wanted:
        paths = listed(str(inside[name]) for name in sorted(inside))
        raise UserError(f"{folder}: holds the splits {listed(sorted(inside))}; name one of them: {paths}")
    if len(inside) > 1:
        others = listed(str(inside[name]) for name in sorted(inside) if name != wanted[0])
        note(f"{folder}: its split {wanted[0]} is read; the others are {others}")
    return inside[wanted[0]]


def saved_dataset(folder: Path) -> list[Path]:
    """The Arrow files of a dataset as datasets.save_to_disk writes it; none for any other folder."""
    state, names = folder / "state.json", list[Any]()
    with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        if state.is_file() and state.stat().st_size <= 16 * MEGABYTE:
            names = [entry["filename"] for entry in json.loads(state.read_bytes())["_data_files"]]
    for name in names:
        if not isinstance(name, str) or name != Path(name).name:
            raise UserError(f"{state}: {shown(str(name))!r} is not the name of a file beside it")
    return [folder / name for name in names]


@dataclass(frozen=True)
class LinePairs(TablePart):
    """A file of sources and the file of their targets."""

    source: Path
    target: Path

    def paths(self) -> list[Path]:
        return [self.source, self.target]

    def records(self, options: Table, skipped: Skipped) -> Iterator[Record]:
        """Line for line; pairs with an empty side are left out and counted."""
        encoding = None if options.encoding is None else known_encoding(options.encoding)
        first, second = (sum(1 for _ in _lines(path, encoding, lambda text: None)) for path in self.paths())
        if first != second:
            short, long = (self.source, self.target) if first < second else (self.target, self.source)
            raise UserError(
                f"{self.source} has {first:,} line{'s' * (first != 1)} and {self.target} {second:,}: "
                f"line {min(first, second) + 1:,} of {long.name} has no other in {short.name}"
            )
        sources, targets = (_lines(path, encoding, skipped.note) for path in self.paths())
        for (where, source, fault), (target_where, target, target_fault) in zip(sources, targets, strict=True):
            fault = fault or target_fault
            if fault is not None and options.on_bad_row == "stop":
                raise fault
            if fault is None and not (source.strip() and target.strip()):
                fault = UserError(f"{target_where if source.strip() else where} is empty")
            if fault is None:
                yield Record({"source": source, "target": target}, where)
            else:
                skipped.add(str(fault))


def _lines(path: Path, encoding: str | None, note: Note) -> Iterator[tuple[str, str, UserError | None]]:
    for source in open_sources(path):
        for number, text, fault in read_lines(replace(source, encoding=encoding, note=note)):
            yield f"{source.name} line {number}", text, fault


RowMaker = Callable[[], Iterator[dict[str, Any]]]
TUPLES = {1: ("text",), 2: ("text", "label"), 3: ("text", "pair", "label")}


@dataclass(frozen=True, eq=False)
class MemoryRows(TablePart):
    """Rows in memory, which can be iterated several times."""

    name: str  # as messages call them: "DataFrame"
    rows: RowMaker

    def records(self, options: Table, skipped: Skipped) -> Iterator[Record]:
        return options.good(self._records(), self.name, skipped)

    def _records(self) -> Iterator[Record | UserError]:
        for number, values in enumerate(self.rows(), start=1):
            where = f"{self.name} row {number}"
            try:
                cells = {str(name): plain(value, f"{where}, column {name!r}") for name, value in values.items()}
            except UserError as error:
                yield error
                continue
            rows = unnested(cells)
            for place, row in enumerate(rows, start=1):
                yield Record(row, f"{where} question {place}" if len(rows) > 1 else where)

    def lines(self) -> Iterator[bytes]:
        """The rows as lines of JSON."""
        for record in self._records():
            if isinstance(record, UserError):
                raise record
            try:
                yield json.dumps(record.values, ensure_ascii=False).encode() + b"\n"
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
    plain = isinstance(data, list | tuple | str)  # mostly
    return not plain and any(_has(data, name) for name in ("columns", "column_names", "schema"))


def unboxed(data: Any) -> Any:
    """One text in an array of NumPy as the text itself; anything else as it is."""
    return data.item() if hasattr(data, "ndim") and data.ndim == 0 else data


def rows_in_memory(data: Any) -> MemoryRows:
    """Rows of any kind that people hold in memory; an error that names these kinds for anything else."""
    if isinstance(data, MemoryRows):
        return data
    kind = type(data).__name__
    if isinstance(data, Mapping):
        return _by_column(data)
    if _has(data, "collect", "collect_schema"):  # a LazyFrame of polars
        data = data.collect()
    if _has(data, "iloc", "index") and _has(data.index, "year"):  # a series or frame of pandas, whose index is of times
        data = (data if data.ndim == 2 else data.to_frame(data.name or "value")).rename_axis(data.index.name or "time")
        data = data.reset_index()
    if rows := _frame_rows(data, kind):
        return MemoryRows(kind, rows)
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


def _frame_rows(data: Any, kind: str) -> RowMaker | None:
    """The rows of a table of pandas, polars, Arrow or datasets; None for anything else."""
    if _has(data, "iloc", "columns"):  # pandas
        names = [str(name) for name in data.columns]
        _check_names(kind, names)
        return lambda: _zipped(names, [data.iloc[:, n].tolist() for n in range(len(names))])
    if _has(data, "iter_rows", "columns"):  # polars
        return lambda: iter(data.iter_rows(named=True))
    if _has(data, "to_batches", "schema"):  # Arrow
        classes = class_names(data.schema)
        _check_names(kind, data.schema.names)
        return lambda: (with_names(row, classes) for batch in data.to_batches(1024) for row in batch.to_pylist())
    if _has(data, "features", "column_names"):  # datasets
        labels = {name: feature.names for name, feature in (data.features or {}).items() if _has(feature, "names")}
        rows = data if _has(data, "__len__") else list(data)
        return lambda: (with_names(dict(row), labels) for row in rows)
    return None


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
