"""Reading with a limit and writing whole or not at all."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from weft.errors import UserError, shown
from weft.scratch import is_scratch, lock, scratch_file, scratch_folder

MEGABYTE = 1 << 20
JSON_VALUES = 1 << 22  # of one row of JSON: in memory each takes ten times the room that it takes in the file
SPECIAL = {stat.S_ISCHR: "a device", stat.S_ISBLK: "a device", stat.S_ISSOCK: "a socket"}
MOST_VALUES = 16_000_000  # of a whole JSON file
HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")  # one half of a surrogate pair, as JSON spells it


def reason(error: Exception) -> str:
    """The system's words for what went wrong, in lower case: 'permission denied'."""
    words = (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()
    # NumPy counts what it could not write instead.
    return "no space left on device" if re.fullmatch(r"\d+ requested and \d+ written", words) else words


def unwritable(path: Path, error: Exception) -> UserError:
    """Why a file or folder cannot be written; of the cache, whose disk is full, also what can be done about it."""
    full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "no space left" in reason(error)
    if full and path.absolute().is_relative_to(cache_folder().absolute()):
        return UserError(
            f"{path}: cannot be written: the disk of the cache, {cache_folder()}, is full ({reason(error)}); free some "
            "space (weft cache clear), or set WEFT_CACHE to a folder on another disk"
        )
    return UserError(f"{path}: cannot be written: {reason(error)}")


def special_kind(path: Path) -> str | None:
    """ "a device" or "a socket" for a path that no text is read from; None for files, folders, pipes and nothing."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return None
    return next((kind for test, kind in SPECIAL.items() if test(mode)), None)


def check_json_values(text: str, where: str, most: int) -> None:
    """Refuse a JSON text of so many values that it would fill the memory, before it is read."""
    values = sum(map(text.count, ",[{")) if len(text) > most else 0
    if values > most:
        raise UserError(f"{where}: holds up to {values} values; at most {most} are read")


def check_readable(path: Path) -> None:
    """Refuse what a library that opens files by itself would wait for, or would not say why it cannot be read."""
    try:
        if path.exists() and not path.is_file():  # a pipe would wait for ever
            raise UserError(f"{path}: is not a plain file")
        with open(path, "rb"):
            pass
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {reason(error)}") from None


def read_bytes(path: Path, most: int) -> bytes:
    """The whole file, unless it is larger than such a file may be."""
    check_readable(path)
    try:
        with open(path, "rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {reason(error)}") from None
    if len(data) > most:
        raise UserError(f"{path}: larger than {most // MEGABYTE} MiB, which no such file is")
    return data


def read_text(path: Path, most: int = 64 * MEGABYTE) -> str:
    """The whole file as UTF-8, a byte-order mark dropped."""
    data = read_bytes(path, most)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path} line {line}: byte {data[error.start]:#04x} is not UTF-8 text") from None


def read_json(path: Path, most: int = 64 * MEGABYTE, kind: type[Any] = dict) -> Any:
    """A JSON object, or list; NaN, duplicate keys and anything of another kind are refused."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
            raise UserError(f"{path}: key {shown(twice)!r} stands there twice")
        return found

    def constant(name: str) -> Any:
        raise UserError(f"{path}: {name} is not a JSON number")

    def number(text: str) -> float:
        found = float(text)
        return found if math.isfinite(found) else constant(shown(text))

    text = read_text(path, most)
    check_json_values(text, str(path), MOST_VALUES)
    try:
        found = json.loads(text, object_pairs_hook=once, parse_constant=constant, parse_float=number)
    except json.JSONDecodeError as error:
        raise UserError(f"{path} line {error.lineno}: not JSON: {error.msg.lower()}") from None
    except RecursionError:
        raise UserError(f"{path}: nested too deeply") from None
    except ValueError as error:  # an integer of more digits than Python converts
        raise UserError(f"{path}: {shown(str(error))}") from None
    if HALF_PAIR.search(text):
        _check_characters(found, path)
    if not isinstance(found, kind):
        wanted = "an object" if kind is dict else "a list"
        raise UserError(f"{path}: holds a JSON {type(found).__name__} where {wanted} is expected")
    return found


def _check_characters(value: Any, path: Path) -> None:
    """Refuse half of a surrogate pair: it is no character, and whatever takes text fails on it later."""
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise UserError(f"{path}: holds {half!r}, half of a surrogate pair and no character") from None
    except RecursionError:
        raise UserError(f"{path}: nested too deeply") from None


def write_text(path: Path, text: str) -> None:
    """As `write_bytes`, in UTF-8."""
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError:
        raise UserError(f"{path}: cannot be written: half of a surrogate pair is no character") from None
    write_bytes(path, data)


def write_bytes(path: Path, data: bytes) -> None:
    """Write the file whole or leave what was there."""
    with whole_file(path) as file:
        file.write(data)


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file that appears whole or leaves what was there: temporary file, fsync, rename."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with scratch_file(path) as (scratch, file):
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(scratch, path)
    except OSError as error:
        raise unwritable(path, error) from None


def json_text(values: Any) -> str:
    """What `write_json` writes: indented, in the order given."""
    return json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_json(path: Path, values: dict[str, Any]) -> None:
    """A JSON object, indented, in the order given."""
    write_text(path, json_text(values))


def check_new_folder(folder: Path) -> None:
    """Refuse a folder that holds something, or is none, before hours of work are to go into it."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is a file, not a folder")
    if folder.is_dir():
        with os.scandir(folder) as entries:  # one entry is enough to know
            if next(entries, None) is not None:
                raise UserError(f"{folder}: already there and not empty; choose another name or remove it first")


def check_new_run(folder: Path) -> None:
    """Refuse a run folder that holds something; a process that was stopped at once leaves run/lock and nothing else."""
    inside = folder / "run"
    if (inside / "recipe.toml").exists():
        raise UserError(f"{folder}: already holds a run; continue it (weft resume {folder}) or choose another --out")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is a file, not a folder")
    try:
        for path, alone in ((folder, "run"), (inside, "lock")):
            if not path.is_dir():
                continue
            with os.scandir(path) as entries:  # stops at the first: a folder may hold a million files
                if any(entry.name != alone and not is_scratch(entry.name) for entry in entries):
                    raise UserError(f"{folder}: already there and not empty; choose another --out or remove it first")
    except OSError as error:
        raise UserError(f"{folder}: cannot be read: {reason(error)}") from None


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A folder that appears with all its files or not at all: fill the one that is handed out.

    An existing folder that holds something is refused.
    """
    try:
        folder = folder.resolve()  # a link stays a link, and what it leads to is filled
        check_new_folder(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:
        raise unwritable(folder, error) from None
    with ExitStack() as stack:
        try:
            inside = stack.enter_context(scratch_folder(folder)) / "new"
            inside.mkdir()
        except OSError as error:
            raise unwritable(folder, error) from None
        yield inside
        try:
            for path in inside.rglob("*"):
                if path.is_file():
                    with open(path, "rb") as file:
                        os.fsync(file.fileno())
            sync_folder(inside)
            os.replace(inside, folder)  # an empty folder of that name gives way
            sync_folder(folder.parent)
        except OSError as error:
            raise unwritable(folder, error) from None


def no_link(path: str, flags: int) -> int:
    """Opens a file, but not through a link that somebody else may have laid."""
    return os.open(path, flags if sys.platform == "win32" else flags | os.O_NOFOLLOW, 0o666)


@contextmanager
def held(path: Path) -> Iterator[bool]:
    """Hold a lock file for as long as the block runs; False: another process, named in the file, holds it.

    The system lets go of it when a process ends, however it ends. A child that a killed process was about to start
    keeps it for some milliseconds more: a lock whose process is gone is waited for.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "a+", encoding="ascii", opener=no_link)  # noqa: SIM115
    except OSError as error:
        raise unwritable(path, error) from None
    with file:
        end = time.monotonic() + 2
        while not lock(file.fileno()):
            if time.monotonic() > end or _at_work(path):
                yield False
                return
            time.sleep(0.01)
        try:
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
        except OSError as error:
            raise unwritable(path, error) from None
        yield True


def _at_work(path: Path) -> bool:
    """Whether the process that a lock file names is there."""
    try:
        os.kill(int(path.read_text(encoding="ascii")), 0)
    except ProcessLookupError:
        return False
    except (ValueError, OverflowError, OSError):  # no name yet, or a process of someone else
        return True
    return True


def sync_folder(folder: Path) -> None:
    """Make sure that the names in a folder are on the disk too."""
    if sys.platform == "win32":  # which opens no folder
        return
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def cache_folder() -> Path:
    """Where work that can be done again is kept: $WEFT_CACHE, else $XDG_CACHE_HOME/weft, else ~/.cache/weft."""
    if os.environ.get("WEFT_CACHE"):
        return Path(os.environ["WEFT_CACHE"]).expanduser()
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "weft"


def memory_here() -> int:
    """Bytes of memory that this machine has; no limit is known on Windows."""
    if sys.platform == "win32":
        return sys.maxsize
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def peak_memory() -> int | None:
    """The most bytes that this process has held at once; None where the system does not tell.

    What getrusage says begins with the size of the process that started this one, so it is no answer.
    """
    try:
        return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024
    except (OSError, IndexError, ValueError):
        return None
