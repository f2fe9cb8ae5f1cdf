"""What the cache holds: tokenized texts and what teachers have said, listed and cleared."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from weft.config import build
from weft.data.shards import COMPILED, RECORD, TEACHERS
from weft.errors import UserError
from weft.files import cache_folder, held, read_json


@dataclass(frozen=True, kw_only=True)
class TeacherRecord:
    """`corpus.json` of a teacher's outputs, for whoever looks into the cache."""

    files: tuple[str, ...]


def cached() -> list[tuple[str, int, float, str]]:
    """What the cache holds: name, bytes, when it was last of use, and which files it was made from."""
    found = []
    for folder in sorted(path for room in ("shards", TEACHERS) for path in (cache_folder() / room).glob("*")):
        if folder.is_dir():
            size = sum(path.stat().st_size for path in folder.iterdir())
            found.append((folder.name, size, folder.stat().st_mtime, _sources(folder / RECORD)))
    return found


def _sources(path: Path) -> str:
    """Which files a folder of the cache was made from, as its record says."""
    if not path.exists():
        return "(unfinished)"
    try:
        return ", ".join(build(TeacherRecord, {"files": read_json(path).get("files")}, str(path)).files)
    except UserError:
        return "(damaged)"


def clear_cache() -> int:
    """Remove compiled code, and all shards that no process is making right now; how many bytes that freed."""
    compiled = cache_folder() / COMPILED
    freed = sum(path.stat().st_size for path in compiled.rglob("*") if path.is_file())
    shutil.rmtree(compiled, ignore_errors=True)
    for name, size, _, _ in cached():
        here = [cache_folder() / room / name for room in ("shards", TEACHERS)]
        folder = next((path for path in here if path.is_dir()), here[0])
        with held(folder.with_suffix(".lock")) as ours:
            if ours:
                gone = folder.with_suffix(".gone")  # what is half removed must not look like something
                os.replace(folder, gone)
                shutil.rmtree(gone, ignore_errors=True)
                freed += size
    return freed
