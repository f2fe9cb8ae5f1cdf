"""What a table is made of: places that rows come from, each read with the same options."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from weft.errors import UserError
from weft.text.paths import digest_of
from weft.text.records import Record, read_records
from weft.text.row_problems import Problems, Skipped


@dataclass(frozen=True)
class ReadOptions:
    """How rows are read."""

    format: str | None = None
    delimiter: str | None = None
    names: tuple[str, ...] = ()  # of the columns of a file without a header line
    on_bad_row: str = "stop"
    encoding: str | None = None  # by the bytes of each file

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


class TablePart(Protocol):
    """Rows that come from one place: a file, a folder of classes, two files line for line, or memory."""

    def paths(self) -> list[Path]:
        """What stands for it in a recipe and in messages: files, or a folder; none where the rows are in memory."""

    def records(self, options: ReadOptions, skipped: Skipped) -> Iterator[Record]: ...
    def digests(self) -> Iterator[bytes]: ...


@dataclass(frozen=True)
class TableFile:
    """One file of rows, in any format."""

    path: Path

    def paths(self) -> list[Path]:
        return [self.path]

    def records(self, options: ReadOptions, skipped: Skipped) -> Iterator[Record]:
        return read_records(
            self.path,
            format=options.format,
            columns=options.names or None,
            header=not options.names,
            delimiter=options.delimiter,
            on_bad_row=options.on_bad_row,
            skipped=skipped,
            encoding=options.encoding,
        )

    def digests(self) -> Iterator[bytes]:
        yield digest_of(self.path)
