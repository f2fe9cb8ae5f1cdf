"""Files of teacher outputs in the cache, made once; and how much a teacher has read for one run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from weft.checkpoint.folder import LoadedModel
from weft.config import read_record
from weft.data.shards import TEACHERS, CacheFolder, manifest_of
from weft.files import write_json
from weft.progress import Log
from weft.text.paths import digest_of

READS = "teacher_reads.json"  # in the inside of a run folder


@dataclass(frozen=True)
class Teacher:
    """A teacher and its folder."""

    model: LoadedModel
    folder: Path
    digest: str

    @classmethod
    def of(cls, model: LoadedModel, folder: Path) -> Teacher:
        return cls(model, folder, digest_of_folder(folder))


def digest_of_folder(folder: Path) -> str:
    """A hash of a model: of all its files but the record of its training."""
    whole = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and name.parts[0] != "run" and not any(part.startswith(".") for part in name.parts):
            whole.update(json.dumps(str(name)).encode())
            whole.update(digest_of(path))
    return whole.hexdigest()


@dataclass(frozen=True, kw_only=True)
class PendingShard:
    """A shard that a teacher is reading: how many examples, and the file that is there when it has been written."""

    shard: str
    count: int


@dataclass(frozen=True, kw_only=True)
class ReadRecord:
    """`teacher_reads.json`."""

    read: int = 0
    pending: PendingShard | None = None


class TeacherReads:
    """Examples, or places of a text, that a teacher had to read, counted over all processes of a run."""

    def __init__(self, inside: Path | None = None) -> None:
        self.path = None if inside is None else inside / READS
        known = self.path is not None and self.path.is_file()
        record = read_record(ReadRecord, self.path) if known and self.path is not None else ReadRecord()
        self.total = record.read
        # A process that was killed right after it wrote a shard had no time left to count it.
        if record.pending is not None and Path(record.pending.shard).exists():
            self.total += record.pending.count

    @contextmanager
    def shard(self, path: Path, count: int) -> Iterator[None]:
        """A teacher reads one shard; if it is not written in the end it does not count, since it is read again."""
        self._note(pending={"shard": str(path.absolute()), "count": count})
        try:
            yield
            self.total += count
        finally:
            self._note()

    def _note(self, **more: Any) -> None:
        if self.path is not None:
            write_json(self.path, {"read": self.total, **more})


def cached_shards(
    key: Sequence[Any],
    source: str,
    shards: Sequence[tuple[str, int]],
    write: Callable[[int, Path], None],
    check: Callable[[], None],
    reads: TeacherReads,
    log: Log,
) -> tuple[list[Path], int]:
    """The files of these shards (name and number of examples), and how many examples were read to write missing ones.

    `write` writes the n-th; `source` is for `weft cache list`; `check` may raise to stop waiting for another process.
    """
    cache = CacheFolder(TEACHERS, key, lambda: log("weft: note: another process runs this teacher; waiting for it"))
    paths, read = [cache.path / name for name, _ in shards], 0

    def make(number: int) -> None:
        with reads.shard(manifest_of(paths[number]), shards[number][1]):
            write(number, paths[number])
            cache.seal(paths[number], source)

    for number, (path, (_, count)) in enumerate(zip(paths, shards, strict=True)):
        read += count if cache.make(manifest_of(path), partial(make, number), check) else 0
    cache.touch()
    return paths, read
