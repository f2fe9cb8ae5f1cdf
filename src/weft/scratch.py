"""Scratch files and folders, each locked by the process that uses it, so that leftovers of a killed one can be removed.

The system lets go of a lock however a process ends. Names are recognizable, so nothing of anybody else is removed.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

# `.NAME.weft-0123abcd` beside what is being written, `weft-0123abcd` in the folder for temporary files.
NAME = re.compile(r"(\..+\.)?weft-[0-9a-f]{8}", re.DOTALL)
MAX_NAME = 200  # bytes of the name of a file that its scratch file is named after; no system takes more than 255
TRIES = 8  # names that are tried; where files cannot be locked the last one is used as it is
FAR = 1 << 30  # place of the one byte that is locked on Windows, where nobody can read what is locked
_swept: set[Path] = set()  # folders in which this process has looked for leftovers


def lock(number: int) -> bool:
    """Lock an open file or folder, if nobody else holds it; the system releases it when the file is closed."""
    try:
        if sys.platform == "win32":
            place = os.lseek(number, 0, os.SEEK_CUR)
            os.lseek(number, FAR, os.SEEK_SET)
            try:
                msvcrt.locking(number, msvcrt.LK_NBLCK, 1)
            finally:
                os.lseek(number, place, os.SEEK_SET)
        else:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@contextmanager
def scratch_file(target: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """A new file beside a file that is to be written; it is gone, or has been renamed, in the end."""
    sweep(target.parent)
    for attempt in range(TRIES):
        path = _beside(target)
        file = open(path, "xb")  # noqa: SIM115
        if _locked(file.fileno(), path) or attempt == TRIES - 1:
            break
        file.close()
    try:
        with file:
            yield path, file
    finally:
        with suppress(OSError):
            path.unlink()


@contextmanager
def scratch_folder(target: Path) -> Iterator[Path]:
    """A new folder beside a folder that is to be filled; it is gone in the end."""
    with _folder(target.parent, lambda: _beside(target)) as path:
        yield path


@contextmanager
def temporary_folder(libraries: bool = False) -> Iterator[Path]:
    """A new folder in $TMPDIR, gone in the end; `libraries`: they put their own temporary files there meanwhile."""
    parent, before = Path(tempfile.gettempdir()), tempfile.tempdir
    with _folder(parent, lambda: parent / f"weft-{os.urandom(4).hex()}") as path:
        tempfile.tempdir = str(path) if libraries else before
        try:
            yield path
        finally:
            tempfile.tempdir = before


def is_scratch(name: str) -> bool:
    """Whether a file or folder has the name of one of ours."""
    return NAME.fullmatch(name) is not None


def sweep(folder: Path) -> None:
    """Remove what killed processes have left in a folder; once in a process, and never what is in use."""
    folder = folder.absolute()
    if folder in _swept or sys.platform == "win32":  # there a folder cannot be locked
        return
    _swept.add(folder)
    try:
        with os.scandir(folder) as entries:
            left = [Path(entry.path) for entry in entries if is_scratch(entry.name)]
    except OSError:
        return
    for path in left:
        with suppress(OSError):
            _remove(path)


def _remove(path: Path) -> None:
    about = path.lstat()
    if about.st_uid != os.geteuid() or not (stat.S_ISDIR(about.st_mode) or stat.S_ISREG(about.st_mode)):
        return
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not lock(number):  # a living process holds it
            return
        if stat.S_ISDIR(about.st_mode):
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
    finally:
        os.close(number)


def _beside(target: Path) -> Path:
    name = target.name.encode("utf-8", "surrogateescape")[:MAX_NAME].decode("utf-8", "ignore")
    return target.parent / f".{name}.weft-{os.urandom(4).hex()}"


def _locked(number: int, path: Path) -> bool:
    """Lock what was just made; False where another process took it for a leftover first."""
    try:
        return lock(number) and os.fstat(number).st_ino == path.lstat().st_ino
    except OSError:
        return False


@contextmanager
def _folder(parent: Path, named: Callable[[], Path]) -> Iterator[Path]:
    sweep(parent)
    for attempt in range(TRIES):
        path = named()
        path.mkdir(0o700)
        if sys.platform == "win32":
            break
        try:
            number = os.open(path, os.O_RDONLY)
        except FileNotFoundError:  # taken for a leftover
            if attempt == TRIES - 1:
                raise
            continue
        if _locked(number, path) or attempt == TRIES - 1:
            break
        os.close(number)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        if sys.platform != "win32":
            os.close(number)
