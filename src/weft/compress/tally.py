"""How much teachers have read for one run, counted over all processes that it took."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from weft.files import read_json, write_json

NAME = "heard.json"


class Tally:
    """Examples, or places of a text, that a teacher had to read; kept inside of a run folder where there is one."""

    def __init__(self, inside: Path | None = None) -> None:
        self.path = None if inside is None else inside / NAME
        found: dict[str, Any] = read_json(self.path) if self.path is not None and self.path.is_file() else {}
        self.total = int(found.get("read", 0))
        # A process that was killed right after it wrote a shard had no time left to count it.
        if (asking := found.get("asking")) is not None and Path(asking["shard"]).exists():
            self.total += int(asking["count"])

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
