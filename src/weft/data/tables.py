"""The one reader of tables: rows out of people's files, folders and objects in memory, each with its place."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from weft.data.columns import OURS
from weft.data.memory import MemoryRows, is_names, rows_in_memory
from weft.data.shards import Text, digest_of
from weft.errors import listed, one_of
from weft.text.records import Record, Skipped, read_records


@dataclass(frozen=True)
class Table:
    """Rows of data, and how they are read.

    `data`: names of files, globs and folders; or rows in memory, as `weft.data.memory` knows them.
    """

    data: Any
    columns: Mapping[str, str] = field(default_factory=dict)  # what a task calls a column -> what the file calls it
    format: str | None = None
    delimiter: str | None = None
    names: tuple[str, ...] = ()  # of the columns of a file without a header line
    on_bad_row: str = "stop"
    encoding: str | None = None

    def __post_init__(self) -> None:
        for name in self.columns:
            one_of(name, OURS, "column")
        one_of(self.on_bad_row, ("stop", "skip"), "on_bad_row")
        data = self.data
        if is_names(data):
            data = tuple(os.fspath(name) for name in ([data] if isinstance(data, str | os.PathLike) else data))
        else:
            data = rows_in_memory(data)
        object.__setattr__(self, "data", data)

    @property
    def in_memory(self) -> bool:
        return isinstance(self.data, MemoryRows)

    @property
    def name(self) -> str:
        """What messages call it: 'a.csv, b.csv and 2 more'."""
        return self.data.name if self.in_memory else listed([path.name for path in self.paths()], 2)

    def paths(self) -> list[Path]:
        """The files; none where the rows are in memory."""
        return [] if self.in_memory else Text(self.data).paths()

    def records(self, skipped: Skipped | None = None) -> Iterator[Record]:
        """Every row, one at a time; a bad one stops, or is passed over and counted."""
        if self.in_memory:
            return self._in_memory(skipped)
        return read_records(
            self.paths(),
            format=self.format,
            columns=self.names or None,
            header=not self.names,
            delimiter=self.delimiter,
            on_bad_row=self.on_bad_row,
            skipped=skipped,
        )

    def _in_memory(self, skipped: Skipped | None) -> Iterator[Record]:
        for record in self.data.records():
            if isinstance(record, Record):
                yield record
            elif self.on_bad_row == "stop":
                raise record
            elif skipped is not None:
                skipped.add(str(record))

    def hash(self) -> str:
        """What is in the files, not what they are called; rows in memory have the hash of the file they make."""
        whole = hashlib.sha256(json.dumps([dict(self.columns), self.format, self.delimiter, self.names]).encode())
        if self.in_memory:
            whole.update(self.data.digest())
        for path in self.paths():
            whole.update(digest_of(path))
        return whole.hexdigest()


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
    return isinstance(data, Mapping) and set(data) <= {entry.name for entry in fields(kind)}
