"""Two parallel files, source and target, as rows of two columns: line n of one belongs to line n of the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from weft.data.folders import Note
from weft.data.parts import ReadOptions
from weft.errors import UserError
from weft.text.paths import digest_of
from weft.text.records import Record, Skipped
from weft.text.sources import known_encoding, open_sources, read_lines


@dataclass(frozen=True)
class LinePairs:
    """A file of sources and the file of their targets."""

    source: Path
    target: Path

    def paths(self) -> list[Path]:
        return [self.source, self.target]

    def records(self, options: ReadOptions, skipped: Skipped) -> Iterator[Record]:
        """Line for line; pairs with an empty side are left out and counted."""
        encoding = None if options.encoding is None else known_encoding(options.encoding)
        self._check_counts(encoding)
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

    def _check_counts(self, encoding: str | None) -> None:
        """Refuse two files of different lengths, and name the one that ends too early."""
        first, second = (sum(1 for _ in _lines(path, encoding, lambda text: None)) for path in self.paths())
        if first == second:
            return
        short, long = (self.source, self.target) if first < second else (self.target, self.source)
        raise UserError(
            f"{self.source} has {first:,} line{'s' * (first != 1)} and {self.target} {second:,}: "
            f"line {min(first, second) + 1:,} of {long.name} has no other in {short.name}"
        )

    def digests(self) -> Iterator[bytes]:
        return (digest_of(path) for path in self.paths())


def _lines(path: Path, encoding: str | None, note: Note) -> Iterator[tuple[str, str, UserError | None]]:
    for source in open_sources(path):
        for number, text, fault in read_lines(replace(source, encoding=encoding, note=note)):
            yield f"{source.name} line {number}", text, fault
