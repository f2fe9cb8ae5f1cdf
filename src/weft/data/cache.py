"""The cache under $WEFT_CACHE: folders named by a hash of what decides their contents, each entry whole or absent.

Tokenized texts and the outputs of teachers are kept here. An entry counts once its manifest, with the hashes of its
files, is there; a damaged one is made again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.checksums import digests, is_sound, write_manifest
from weft.config import build
from weft.errors import UserError
from weft.files import cache_folder, held, read_json, write_json

SHARDS, TEACHERS = "shards", "teachers"  # rooms of the cache: tokenized texts, and outputs of teachers
COMPILED = "compiled"  # room where torch keeps compiled code
RECORD = "corpus.json"  # in each folder: what it was made from
POLL = 0.2  # seconds between two looks at what another process is making


def nothing() -> None:
    """Do nothing: the default of a callback without arguments."""


class CacheFolder:
    """A folder of the cache, named by a hash of `key`; one process at a time writes into it.

    `waiting` is called once where another process is writing an entry.
    """

    def __init__(self, room: str, key: Sequence[Any], waiting: Callable[[], None] = nothing) -> None:
        self.name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]
        self.path = cache_folder() / room / self.name
        self.waiting: Callable[[], None] | None = waiting

    def make(self, manifest: Path, write: Callable[[], None], poll: Callable[[], None] = nothing) -> bool:
        """Write an entry unless it is there and sound; whether this process wrote it.

        `poll` is called again and again while another process writes, and may raise to stop waiting.
        """
        made = False
        while not is_sound(manifest):
            with held(self.path.with_suffix(".lock")) as ours:
                if ours and not is_sound(manifest, quiet=True):
                    write()
                    made = True
            if not ours:  # what the other process makes serves this one too
                if self.waiting is not None:
                    self.waiting()
                self.waiting = None
                poll()
                time.sleep(POLL)
        return made

    def seal(self, path: Path, source: str) -> None:
        """Declare a file of this folder complete; `source`: what it was made from, for `weft cache list`."""
        if not (self.path / RECORD).exists():
            write_json(self.path / RECORD, {"files": [source]})
        write_manifest(manifest_of(path), {}, digests(path.parent, [path.name]))

    def touch(self) -> None:
        """Note that the folder was of use now; a cache may be shared and read only."""
        with suppress(OSError):
            os.utime(self.path)


def manifest_of(path: Path) -> Path:
    """The manifest of an entry that is one file."""
    return path.with_suffix(".json")


@dataclass(frozen=True, kw_only=True)
class CacheRecord:
    """The part of `corpus.json` that every folder of the cache has."""

    files: tuple[str, ...]


def cached() -> list[tuple[str, int, float, str]]:
    """Each folder of the cache: name, bytes, when it was last used, and which files it was made from."""
    return [(path.name, _size(path), path.stat().st_mtime, _sources(path / RECORD)) for path in _folders()]


def _folders() -> list[Path]:
    paths = (path for room in (SHARDS, TEACHERS) for path in (cache_folder() / room).glob("*"))
    return sorted(path for path in paths if path.is_dir())


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _sources(path: Path) -> str:
    """Which files a folder of the cache was made from, by its record."""
    if not path.exists():
        return "(unfinished)"
    try:
        return ", ".join(build(CacheRecord, {"files": read_json(path).get("files")}, str(path)).files)
    except UserError:
        return "(damaged)"


def clear_cache() -> int:
    """Remove compiled code, and all folders that no process is writing to; how many bytes that freed."""
    compiled = cache_folder() / COMPILED
    freed = _size(compiled)
    shutil.rmtree(compiled, ignore_errors=True)
    for folder in _folders():
        with held(folder.with_suffix(".lock")) as ours:
            if ours:
                size, gone = _size(folder), folder.with_suffix(".gone")  # half removed, it must not look complete
                os.replace(folder, gone)
                shutil.rmtree(gone, ignore_errors=True)
                freed += size
    return freed
