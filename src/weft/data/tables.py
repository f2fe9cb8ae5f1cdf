"""The one reader of tables: rows out of people's files, folders and objects in memory, each with its place."""

from __future__ import annotations

import glob
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from weft.data.columns import OURS, file_of
from weft.data.folders import ClassFolder, Note, chosen_split, is_class_folder, saved_dataset
from weft.data.memory import MemoryRows, is_names, rows_in_memory
from weft.data.parallel import LinePairs
from weft.data.parts import ReadOptions, TableFile, TablePart
from weft.data.shards import TextFiles
from weft.errors import UserError, listed, one_of
from weft.text.delimited import likely_columns
from weft.text.records import ON_BAD_ROW
from weft.text.row_problems import Skipped
from weft.text.rows import Record
from weft.text.sources import known_encoding, name_of

LOOK = 100  # rows of a file that show which column is which
CHARACTERS = 1 << 20  # and characters at most


@dataclass(frozen=True)
class Table:
    """Rows of data, and how they are read.

    `data`: names of files, globs and folders; or rows in memory, as `weft.data.memory` knows them.
    """

    data: Any
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
        data = self.data
        if is_names(data):
            data = tuple(os.fspath(name) for name in ([data] if isinstance(data, str | os.PathLike) else data))
        else:
            data = rows_in_memory(data)
        object.__setattr__(self, "data", data)

    @classmethod
    def parallel(
        cls, source: tuple[str, ...], target: tuple[str, ...], on_bad_row: str = "stop", encoding: str | None = None
    ) -> Table:
        """Files that belong together line for line, read as a table of two columns."""
        one_of(on_bad_row, ("stop", "skip"), "on_bad_row")
        for given, missing, names in (("source", "target", target), ("target", "source", source)):
            if not names:
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

    def absolute(self, note: Note) -> list[str]:
        """Names that mean the same from any folder; a folder of classes stays one name."""
        return [str(path.absolute()) for path in self.paths(note)]

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
            folder = _folder(name)
            if folder is not None and self.format is None:
                folder = chosen_split(folder, self.split, note)
                if is_class_folder(folder):
                    parts[ClassFolder(folder)] = None
                    continue
                if files := saved_dataset(folder):
                    parts.update({TableFile(path): None for path in files})
                    continue
                name = str(folder)
            parts.update({TableFile(path): None for path in TextFiles((name,)).paths()})
        return list(parts)

    def records(self, skipped: Skipped | None = None) -> Iterator[Record]:
        """Every row, one at a time; a bad one stops, or is passed over and counted.

        The first row of each file says which columns are likely what, by the rows after it.
        """
        skipped = Skipped() if skipped is None else skipped
        if self.encoding is not None:
            known_encoding(self.encoding)
        parts = self._parts(skipped.note)  # before anything is read
        options = ReadOptions(self.format, self.delimiter, tuple(self.names), self.on_bad_row, self.encoding)
        return chain.from_iterable(_with_likely(part.records(options, skipped)) for part in parts)

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


def _folder(name: str) -> Path | None:
    """The folder of this name, here or where $WEFT_DATA says that data lies."""
    elsewhere = os.environ.get("WEFT_DATA")
    places = [Path(name), *([Path(elsewhere) / name] if elsewhere and not os.path.isabs(name) else [])]
    return next((path for path in places if "\0" not in name and path.is_dir()), None)


def _with_likely(records: Iterator[Record]) -> Iterator[Record]:
    """The same records; the first of each file knows what its columns look like."""
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
        yield replace(first[0], likely=likely_columns([record.values for record in first]))
        yield from first[1:]
        yield from rest  # noqa: B031  (what the loop above has left)


class RunRows:
    """Rows in memory that a run is given: they are written into its folder, where `weft resume` finds them again."""

    FILES = {"files": "train", "dev": "dev", "text": "text"}  # key in [data] -> name of the file

    def __init__(self) -> None:
        self.tables: dict[str, Table] = {}

    def names(self, key: str, data: Any) -> list[str]:
        """What a recipe says for this key: names of files as they are given, or where the rows will be."""
        table = Table(data)
        if not table.in_memory:
            return list(table.data)
        self.tables[key] = table
        return [f"run/data/{self.FILES[key]}.jsonl"]

    def paths(self, out: str) -> dict[str, list[str]]:
        """Where the rows will be, by key."""
        return {key: [str(self._path(out, key))] for key in self.tables}

    def write(self, out: str) -> None:
        for key, table in self.tables.items():
            table.data.write(self._path(out, key))

    def _path(self, out: str, key: str) -> Path:
        return Path(out).absolute() / "run" / "data" / f"{self.FILES[key]}.jsonl"


def is_section(data: Any, kind: type[Any]) -> bool:
    """Whether a dict is a section of a recipe, `{"files": [...], "holdout": 0.2}`, rather than columns of rows."""
    if not isinstance(data, Mapping) or not set(data) <= {entry.name for entry in fields(kind)}:
        return False
    # Two lists, of texts to read and of texts to write, have the names of two keys that stand for files.
    sides = [
        side for side in (data.get("source"), data.get("target")) if isinstance(side, list | tuple) and len(side) > 3
    ]
    texts = len(data) == len(sides) == 2 and not any(os.path.exists(str(side[0])) for side in sides)
    return not (texts and not any(glob.has_magic(str(side[0])) for side in sides))
