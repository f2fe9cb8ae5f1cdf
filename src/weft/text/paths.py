"""Files that names, globs and folders stand for, in time that links leading in circles do not change."""

from __future__ import annotations

import fnmatch
import glob
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from weft.errors import UserError, did_you_mean, listed, shown
from weft.files import reason
from weft.text.rows import SUFFIXES
from weft.text.sources import STANDARD_INPUT, find_members, format_suffix, zip_and_member

Patterns = str | Path | Iterable[str | Path]


def find_files(patterns: Patterns) -> list[Path]:
    """The files that names, globs, folders and 'corpus.zip/*.txt' stand for, each once; '-' is standard input."""
    each = [patterns] if isinstance(patterns, str | Path) else patterns
    return list(dict.fromkeys(path for pattern in each for path in _matches(str(pattern))))


def _matches(pattern: str) -> list[Path]:
    if not pattern or "\0" in pattern:
        raise UserError(f"{shown(pattern)!r} is not the name of a file")
    path = Path(pattern)
    if path == STANDARD_INPUT:
        return [path]
    if path.is_dir():
        return _inside(path)
    if os.path.exists(path):  # before globs: a name may hold brackets
        return [path]
    archive, member = zip_and_member(path)
    if member is not None:
        return [archive / name for name in find_members(archive, member)]
    if glob.has_magic(pattern):
        matches = sorted(path for path in _matching(pattern) if path.is_file())  # not a pipe, which may never end
        if matches:
            return matches
        raise UserError(f"{shown(pattern, 300)}: matches no file")
    missing = path  # the first part of the path that is not there: that is where the slip is
    while not os.path.exists(missing.parent) and missing.parent != missing:
        missing = missing.parent
    try:
        beside = os.listdir(missing.parent)
    except OSError:
        beside = []
    raise UserError(f"{shown(pattern, 300)}: no such file{did_you_mean(missing.name, beside)}")


def _inside(folder: Path) -> list[Path]:
    """The files of a known format in a folder and its folders; hidden ones are left out."""

    def unreadable(error: OSError) -> None:
        raise UserError(f"{shown(str(error.filename), 300)}: cannot be read: {(error.strerror or '').lower()}")

    files = []
    for place, folders, names in os.walk(folder, onerror=unreadable):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(place, name) for name in names if not name.startswith(".")):
            if (format_suffix(path) in SUFFIXES or path.suffix.lower() == ".zip") and path.is_file():
                files.append(path)  # a pipe or a device may never end
    if not files:
        raise UserError(f"{shown(str(folder), 300)}: holds no file of a known format ({listed(SUFFIXES, 20)})")
    return sorted(files)


def _matching(pattern: str) -> Iterator[Path]:
    """What a glob stands for; below '**' every folder is gone through once, however many links lead to it."""
    parts = Path(pattern).parts
    if "**" not in parts:
        yield from map(Path, glob.glob(pattern))
        return
    first = parts.index("**")
    for root in glob.glob(str(Path(*parts[:first]))) if first else ["."]:
        for path in _below(Path(root)):
            if _fits(path.relative_to(root).parts, parts[first:]):
                yield path


def _below(root: Path) -> Iterator[Path]:
    """The files in a folder and its folders; hidden folders are left out."""
    seen = set[tuple[int, int]]()
    for place, folders, names in os.walk(root, followlinks=True):
        with suppress(OSError):  # a folder that was removed meanwhile
            about = os.stat(place)
            if (about.st_dev, about.st_ino) in seen:
                folders.clear()
                continue
            seen.add((about.st_dev, about.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(place, name) for name in names)


def _fits(names: Sequence[str], parts: Sequence[str]) -> bool:
    """Whether the parts of a path are what those of a glob stand for; hidden files are those asked for only."""
    if not parts:
        return not names
    if parts[0] == "**":
        return _fits(names, parts[1:]) or (bool(names) and names[0][0] != "." and _fits(names[1:], parts))
    fits = bool(names) and fnmatch.fnmatchcase(names[0], parts[0]) and (names[0][0] != "." or parts[0][0] == ".")
    return fits and _fits(names[1:], parts[1:])


def digest_of(path: Path) -> bytes:
    """What stands for the contents of a file, or of the archive that it lies in."""
    archive, _ = zip_and_member(path)
    if archive.exists() and not archive.is_file():  # a pipe is empty the second time
        raise UserError(f"{archive}: is not a plain file, and it is read more than once: name a file")
    try:
        with open(archive, "rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        raise UserError(f"{archive}: cannot be read: {reason(error)}") from None
