"""Files: read with a limit, written whole or not at all, locked, and checked by their hashes."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import shutil
import stat
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from weft.errors import UserError, shown

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

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


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        if path.exists() and not path.is_file():  # a pipe would wait for ever
            raise UserError(f"{path}: is not a plain file")
        with open(path, "rb") as file:
            yield file
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {reason(error)}") from None


def check_readable(path: Path) -> None:
    """Refuse what a library that opens files by itself would wait for, or would not say why it cannot be read."""
    with _opened(path):
        pass


def read_bytes(path: Path, most: int) -> bytes:
    """The whole file, unless it is larger than such a file may be."""
    with _opened(path) as file:
        data = file.read(most + 1)
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
    return parse_json(read_text(path, most), path, kind)


def parse_json(text: str, path: Path, kind: type[Any] = dict) -> Any:
    """What the text of a JSON file holds; see `read_json`."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
            raise UserError(f"{path}: key {shown(twice)!r} stands there twice")
        return values

    def constant(name: str) -> Any:
        raise UserError(f"{path}: {name} is not a JSON number")

    def number(text: str) -> float:
        value = float(text)
        return value if math.isfinite(value) else constant(shown(text))

    check_json_values(text, str(path), MOST_VALUES)
    try:
        values = json.loads(text, object_pairs_hook=once, parse_constant=constant, parse_float=number)
        if HALF_PAIR.search(text):  # no character: whatever takes text fails on it later
            json.dumps(values, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        raise UserError(f"{path} line {error.lineno}: not JSON: {error.msg.lower()}") from None
    except RecursionError:
        raise UserError(f"{path}: nested too deeply") from None
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise UserError(f"{path}: holds {half!r}, half of a surrogate pair and no character") from None
    except ValueError as error:  # an integer of more digits than Python converts
        raise UserError(f"{path}: {shown(str(error))}") from None
    if not isinstance(values, kind):
        wanted = "an object" if kind is dict else "a list"
        raise UserError(f"{path}: holds a JSON {type(values).__name__} where {wanted} is expected")
    return values


def write_text(path: Path, text: str) -> None:
    """As `write_bytes`, in UTF-8."""
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError:
        raise UserError(f"{path}: cannot be written: the text has an unpaired surrogate") from None
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


def check_new_folder(folder: Path, what: str = "name", ignored: str | None = None) -> None:
    """Refuse a folder that holds something, or is none, before hours of work are to go into it."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is a file, not a folder")
    if folder.is_dir():
        with os.scandir(folder) as entries:  # stops at the first: a folder may hold a million files
            if any(ignored is None or not (entry.name == ignored or is_scratch(entry.name)) for entry in entries):
                raise UserError(f"{folder}: already there and not empty; choose another {what} or remove it first")


def check_new_run(folder: Path) -> None:
    """Refuse a run folder that holds something; a process that was stopped at once leaves run/lock and nothing else."""
    inside = folder / "run"
    if (inside / "recipe.toml").exists():
        raise UserError(f"{folder}: already holds a run; continue it (weft resume {folder}) or choose another --out")
    try:
        check_new_folder(folder, "--out", "run")
        if inside.is_dir():
            check_new_folder(inside, "--out", "lock")
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
            inside = stack.enter_context(scratch_folder(folder.parent, folder.name)) / "new"
            inside.mkdir()
        except OSError as error:
            raise unwritable(folder, error) from None
        yield inside
        try:
            for path in inside.rglob("*"):
                if path.is_file():
                    sync_file(path)
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


def sync_file(path: Path) -> None:
    """Make sure that the bytes of a file are on the disk."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


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


# --------------------------------------------------------------------------------------------------- scratch files
# Each is locked by the process that uses it, and the system lets go of a lock however a process ends, so leftovers of
# a killed process can be removed. Names are recognizable, so nothing of anybody else is removed.

# `.NAME.weft-0123abcd` beside what is being written, `weft-0123abcd` in the folder for temporary files.
SCRATCH = re.compile(r"(\..+\.)?weft-[0-9a-f]{8}", re.DOTALL)
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
        path = _scratch_path(target.parent, target.name)
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
def scratch_folder(parent: Path, name: str = "") -> Iterator[Path]:
    """A new folder, named after one that is to be filled beside it; it is gone in the end."""
    sweep(parent)
    for attempt in range(TRIES):
        path = _scratch_path(parent, name)
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


@contextmanager
def temporary_folder(libraries: bool = False) -> Iterator[Path]:
    """A new folder in $TMPDIR, gone in the end; `libraries`: they put their own temporary files there meanwhile."""
    before = tempfile.tempdir
    with scratch_folder(Path(tempfile.gettempdir())) as path:
        tempfile.tempdir = str(path) if libraries else before
        try:
            yield path
        finally:
            tempfile.tempdir = before


def is_scratch(name: str) -> bool:
    """Whether a file or folder has the name of one of ours."""
    return SCRATCH.fullmatch(name) is not None


def sweep(folder: Path) -> None:
    """Remove what killed processes have left in a folder; once in a process, and never what is in use."""
    folder = folder.absolute()
    if folder in _swept or sys.platform == "win32":  # there a folder cannot be locked
        return
    _swept.add(folder)
    with suppress(OSError), os.scandir(folder) as entries:
        for path in [Path(entry.path) for entry in entries if is_scratch(entry.name)]:
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


def _scratch_path(parent: Path, name: str = "") -> Path:
    name = name.encode("utf-8", "surrogateescape")[:MAX_NAME].decode("utf-8", "ignore")
    return parent / f"{f'.{name}.' if name else ''}weft-{os.urandom(4).hex()}"


def _locked(number: int, path: Path) -> bool:
    """Lock what was just made; False where another process took it for a leftover first."""
    try:
        return lock(number) and os.fstat(number).st_ino == path.lstat().st_ino
    except OSError:
        return False


# ------------------------------------------------------------------------------------------------------- checksums
# A manifest is a JSON object with the hash of itself and of files that lie beside it. It is written last, whole or not
# at all, so what it names is complete. A file whose bytes have changed is named, and never used.

MAX_MANIFEST = 16 * MEGABYTE
OWN, BESIDE = "sha256", "hashes"  # keys of a manifest: its own hash, and those of files by name
CHANGED = "damaged: its bytes are not those that were saved"


class Damaged(UserError):
    """A file is not what was saved."""


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    try:
        if path.exists() and not path.is_file():  # a pipe would wait for ever
            raise Damaged(f"{path}: damaged: it is not a plain file")
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise Damaged(f"{path}: missing: it was saved with the files beside it") from None
    except OSError as error:
        raise Damaged(f"{path}: cannot be read: {reason(error)}") from None


def digests(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """The hashes of files in a folder, by name."""
    return {name: digest(folder / name) for name in sorted(names)}


def write_manifest(path: Path, values: Mapping[str, Any], hashes: Mapping[str, str] | None = None) -> None:
    """A JSON object with the hash of itself and of files beside it."""
    manifest = {**values, BESIDE: dict(hashes or {})}
    write_json(path, {**manifest, OWN: digest_of_values(manifest)})


def read_manifest(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The values and the hashes that were written; the files beside it are not looked at."""
    try:
        values = read_json(path, MAX_MANIFEST)
        text = read_text(path, MAX_MANIFEST)
    except UserError as error:
        raise Damaged(str(error) if "cannot be read" in str(error) else f"{path}: {CHANGED}") from None
    if OWN not in values and BESIDE not in values:
        raise Damaged(f"{path}: has no checksums")
    own, hashes = values.pop(OWN, None), values.get(BESIDE)
    # Last, as it takes long where lists are nested: of equal values too the bytes may differ, 1e-05 and 1E-05.
    same = isinstance(hashes, dict) and own == digest_of_values(values)
    if not same or text != json_text({**values, OWN: own}):
        raise Damaged(f"{path}: {CHANGED}")
    del values[BESIDE]
    return values, hashes


def read_checked(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """As `read_manifest`, and every file that it names is as it was saved."""
    values, hashes = read_manifest(path)
    for name, expected in hashes.items():
        if digest(path.parent / name) != expected:
            raise Damaged(f"{path.parent / name}: {CHANGED}")
    return values, hashes


def is_sound(path: Path, quiet: bool = False) -> bool:
    """Whether a manifest is there and all that it names is as it was saved; what is damaged is to be made again."""
    if not path.exists():
        return False
    try:
        read_checked(path)
    except Damaged as error:
        if not quiet:
            warnings.warn(f"{error}; it is made again", stacklevel=2)
        return False
    return True


def digest_of_values(values: Mapping[str, Any]) -> str:
    """The SHA-256 of what a JSON object says, however it is laid out."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
