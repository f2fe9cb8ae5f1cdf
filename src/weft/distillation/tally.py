"""How much teachers have read for one run, counted over all processes that it took."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.config import read_record
from weft.files import write_json

NAME = "heard.json"


@dataclass(frozen=True, kw_only=True)
class Asking:
    """A shard that a teacher is reading: how many examples, and the file that is there when it has been written."""

    shard: str
    count: int


@dataclass(frozen=True, kw_only=True)
class TallyRecord:
    """`heard.json`."""

    read: int = 0
    asking: Asking | None = None


class Tally:
    """Examples, or places of a text, that a teacher had to read; kept inside of a run folder where there is one."""

    def __init__(self, inside: Path | None = None) -> None:
        self.path = None if inside is None else inside / NAME
        there = self.path is not None and self.path.is_file()
        record = read_record(TallyRecord, self.path) if there and self.path is not None else TallyRecord()
        self.total = record.read
        # A process that was killed right after it wrote a shard had no time left to count it.
        if record.asking is not None and Path(record.asking.shard).exists():
            self.total += record.asking.count

    @contextmanager
    def shard(self, path: Path, count: int) -> Iterator[None]:
        """A teacher reads one shard; what is not written in the end does not count, since it is read again."""
        self._note(asking={"shard": str(path.absolute()), "count": count})
        try:
            yield
            self.total += count
        finally:
            self._note()

    def _note(self, **more: Any) -> None:
        if self.path is not None:
            write_json(self.path, {"read": self.total, **more})
