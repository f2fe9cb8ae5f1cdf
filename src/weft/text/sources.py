"""Files that names, globs and folders stand for, and their numbered lines of text, one held at a time."""

from __future__ import annotations

import codecs
import fnmatch
import glob
import gzip
import hashlib
import importlib
import io
import json
import lzma
import os
import re
import sys
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path, PurePath
from typing import IO, Any, TypeVar, cast

from weft.errors import UserError, did_you_mean, listed, shown
from weft.files import MEGABYTE, reason, special_kind

BYTE_ORDER_MARKS = (  # the longer first: UTF-32's begins with UTF-16's
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
WIDE = re.compile(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")
HIGH = re.compile(rb"[\x80-\xff]+")
LAST = re.compile(rb"[\xc0-\xff][\x80-\xbf]{0,3}\Z")  # a character that may go on in the next chunk
UNDEFINED = re.compile(rb"[\x81\x8d\x8f\x90\x9d]")  # in cp1252
# Signs of cp1252 that people write: the euro, quotes, dashes, dots, a non-breaking space, money, degrees, fractions and
# Latin letters. Left out is what damage looks like: the last letters of the table, and the bytes with which most
# characters of UTF-8 begin (0xc2, 0xc3).
USUAL = re.compile(rb"[\x80\x82\x84\x85\x8a\x8c\x8e\x91-\x97\x99\x9a\x9c\x9e\xa0-\xc1\xc4-\xfd]")


@dataclass(frozen=True)
class Encoding:
    """How a file is decoded."""

    name: str
    mac: bool = False  # lines end with a carriage return alone
    note: str = ""  # a line for the user where the encoding is not UTF-8


def known_encoding(name: str) -> str:
    """The usual name of an encoding that a user gives."""
    try:
        "".encode(name)
        codec = codecs.lookup(name).name
    except (LookupError, ValueError, TypeError):
        raise UserError(f"encoding {shown(name)!r} is not known; give a name such as utf-8, cp1252 or utf-16") from None
    if codec in ("idna", "punycode", "unicode-escape", "raw-unicode-escape", "undefined", "mbcs", "oem"):
        raise UserError(f"encoding {shown(name)!r} is no encoding of files")
    return "utf-8" if codec in ("utf-8-sig", "ascii") else codec


T = TypeVar("T")
LIMIT = 64 * MEGABYTE  # the longest line, row or article: a hostile or broken file must not exhaust the memory
CHUNK = 64 * 1024
SEEN = 256 * MEGABYTE  # how much of a file is looked through for its encoding
MAX_UNPACKED, RATIO = 256 * MEGABYTE, 200  # a file may unpack to so much, and beyond that to so many times its size
MAX_CONTENTS = 64 * MEGABYTE  # of a zip's table of contents; an entry of 46 bytes takes some hundred in memory
PACKED = (".gz", ".xz", ".zip")
SUFFIXES = {f".{name}": name for name in ("txt", "csv", "tsv", "jsonl", "parquet", "arrow", "conll", "json", "xlsx")}
SUFFIXES |= {".text": "txt", ".tab": "tsv", ".ndjson": "jsonl", ".feather": "arrow", ".xlsm": "xlsx"}
SUFFIXES |= dict.fromkeys((".bio", ".iob"), "conll")
STANDARD_INPUT = Path("-")
RUN_ROWS = {"train": "data", "dev": "dev data", "text": "text data"}  # rows in memory -> their name in messages
MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
DAMAGED = (gzip.BadGzipFile, zlib.error, lzma.LZMAError, zipfile.BadZipFile)


@dataclass(frozen=True)
class TextSource:
    """One open text: a file, a member of a zip, or standard input."""

    name: str  # as messages call it: "corpus.zip/a.txt"
    stream: io.BufferedIOBase
    suffixes: tuple[str, ...]  # those that may tell the format, the most telling first
    plain: bool = False  # a file on disk, neither compressed nor a stream: one may seek in it
    path: Path | None = None  # of the file, or of the archive that it lies in; None: it can be read but once
    packed: int | None = None  # bytes that it takes compressed
    encoding: str | None = None  # as the caller says; else the bytes show it
    note: Callable[[str], None] = lambda text: None  # takes a line on how the file is read


class BadBytes(UserError):
    """A row whose bytes are not text in the file's encoding."""


Line = tuple[int, str, UserError | None]  # number, text, and what is wrong with its bytes


def format_suffix(path: PurePath) -> str:
    """The suffix that tells what is in a file: '.csv' of 'Reviews.CSV.gz'."""
    suffix = path.suffix.lower()
    return PurePath(path.stem).suffix.lower() if suffix in PACKED else suffix


def zip_and_member(path: Path) -> tuple[Path, str | None]:
    """'corpus.zip/a.txt' as the zip file and the member's name; any other path as itself and None."""
    for parent in path.parents:
        if parent.suffix.lower() == ".zip" and parent.is_file():
            return parent, path.relative_to(parent).as_posix()
    return path, None


def find_members(path: Path, pattern: str) -> list[str]:
    """The names inside a zip that a name or a glob stands for, sorted."""
    name = shown(str(path), 300)
    with ExitStack() as stack:
        names = [info.filename for info in _open_zip(_open(path, name, stack), name, stack)[1]]
    matches = [pattern] if pattern in names else fnmatch.filter(names, pattern)
    if not matches:
        hint = did_you_mean(pattern, names) or f"; it holds {listed(shown(each) for each in names) or 'no file'}"
        raise UserError(f"{name}: no member {shown(pattern, 200)!r}{hint}")
    return matches


def name_of(path: Path) -> str:
    """What messages call a file; rows in memory that a run wrote into its folder are no file that the user knows."""
    if path.parts[-3:-1] == ("run", "data") and path.suffix == ".jsonl" and (path.parents[1] / "recipe.toml").exists():
        return RUN_ROWS.get(path.stem, str(path))
    return str(path)


def open_sources(path: Path) -> Iterator[TextSource]:
    """Open the texts that a path stands for, one after the other; each is closed when the next is asked for."""
    file, member = zip_and_member(path)
    name, suffix = shown(name_of(file), 300), format_suffix(file)
    with ExitStack() as stack:
        if path == STANDARD_INPUT:
            try:  # a reader of its own: Python cannot end while a thread waits for the one of sys.stdin
                typed: Any = stack.enter_context(open(os.dup(sys.stdin.fileno()), "rb"))
            except (OSError, ValueError, AttributeError):  # not a file, in a test or a notebook
                typed = sys.stdin.buffer
            yield TextSource("standard input", typed, ())
            return
        stream = _open(file, name, stack)
        size = os.fstat(stream.fileno()).st_size if stream.seekable() else None
        place = file if stream.seekable() else None  # a named pipe is read once
        packing = file.suffix.lower()
        if packing == ".zip":
            yield from _open_members(stream, file, member, stack)
        elif packing in (".gz", ".xz"):
            with readable(name):
                if packing == ".gz" and not stream.peek(1):  # which gzip takes for a whole file
                    raise EOFError
            opener = gzip.open if packing == ".gz" else lzma.open
            unpacked = cast(io.BufferedIOBase, stack.enter_context(opener(stream)))
            yield TextSource(name, unpacked, (suffix,), path=place, packed=size)
        else:
            yield TextSource(name, stream, (suffix,), plain=True, path=place)


@contextmanager
def readable(name: str) -> Iterator[None]:
    """Turn the errors of reading a file, plain or compressed, into one line."""
    try:
        yield
    except EOFError:
        raise UserError(f"{name}: cut short: the compressed data ends too early") from None
    except DAMAGED as error:
        raise UserError(f"{name}: damaged: {_words(error)}") from None
    except MemoryError:  # the dictionary of an .xz file may be of any size
        raise UserError(f"{name}: unpacking it takes more memory than there is") from None
    except (OSError, ValueError, NotImplementedError) as error:  # ValueError: a NUL in the name
        raise UserError(f"{name}: cannot be read: {_words(error)}") from None


def _open(path: Path, name: str, stack: ExitStack) -> io.BufferedReader:
    if path.is_dir():
        raise UserError(f"{name}: is a folder, not a file")
    if kind := special_kind(path):  # which may never end
        raise UserError(f"{name}: is {kind}, not a file; for standard input give -")
    with readable(name):
        return stack.enter_context(open(path, "rb"))


def _open_zip(stream: io.BufferedReader, name: str, stack: ExitStack) -> tuple[zipfile.ZipFile, list[zipfile.ZipInfo]]:
    """A zip file and its members in the order of their names, without what a Mac or an editor left there."""
    try:
        archive = stack.enter_context(zip_file(stream, name))
    except UserError:
        raise
    except Exception as error:  # a hostile table of contents raises nearly anything: struct.error, ValueError, OSError
        raise UserError(f"{name}: damaged or cut short: {_words(error)}") from None
    files = (info for info in archive.infolist() if not info.is_dir() and not info.filename.startswith("__MACOSX/"))
    shown_files = (info for info in files if not PurePath(info.filename).name.startswith("."))
    return archive, sorted(shown_files, key=lambda info: info.filename)


def zip_file(stream: IO[bytes] | io.BufferedIOBase, name: str) -> zipfile.ZipFile:
    """A zip file, refused before its table of contents is read where that would fill the memory."""
    end = zipfile._EndRecData(stream)  # type: ignore[attr-defined]  # what ZipFile itself reads first
    if end and end[5] > MAX_CONTENTS:
        limit = f"{MAX_CONTENTS // MEGABYTE} MiB"
        raise UserError(f"{name}: its table of contents has more than {limit}: too many files in it")
    return zipfile.ZipFile(cast(IO[bytes], stream))


def check_ratio(name: str, unpacked: int, packed: int) -> None:
    """Refuse what unpacks to far more than any text does: a file of some kilobytes can hold any number of gigabytes."""
    if unpacked > max(MAX_UNPACKED, RATIO * packed):
        size = f"{unpacked // MEGABYTE:,} MiB, over {RATIO} times as much"
        raise UserError(f"{name}: {packed:,} bytes unpack to more than {size}; if the file is sound, give it unpacked")


def _open_members(stream: io.BufferedReader, path: Path, member: str | None, stack: ExitStack) -> Iterator[TextSource]:
    name, suffix = shown(str(path), 300), format_suffix(path)
    archive, members = _open_zip(stream, name, stack)
    members = [info for info in members if member in (None, info.filename)]
    if not members:
        raise UserError(f"{name}: holds no file" + (f" {shown(member, 200)!r}" if member else ""))
    # Members may lie over each other in the file, so that all of them together unpack to more than each says.
    check_ratio(name, sum(info.file_size for info in members), os.fstat(stream.fileno()).st_size)
    for info in members:
        inner = f"{name}/{shown(info.filename, 200)}"
        own = PurePath(info.filename).suffix.lower()
        if own in PACKED:
            raise UserError(f"{inner}: compressed inside the zip; unpack the zip first")
        if info.flag_bits & 1:
            raise UserError(f"{inner}: encrypted; unpack it with its password first")
        try:
            file = archive.open(info)
        except Exception as error:  # as for the table of contents, and NotImplementedError for rare compressions
            raise UserError(f"{inner}: cannot be read: {_words(error)}") from None
        with file:
            yield TextSource(inner, cast(io.BufferedIOBase, file), (own, suffix), path=path, packed=info.compress_size)


def _words(error: Exception) -> str:
    """What an exception of the standard library says, fit for one line."""
    if isinstance(error, OSError) and error.strerror:
        return reason(error)
    return shown(str(error), 120) or type(error).__name__


def read_chunks(source: TextSource) -> Iterator[bytes]:
    """The bytes of a source from its beginning; what is damaged or cut short is one clear line."""
    size = 0
    if source.path is not None:
        with readable(source.name):
            source.stream.seek(0)
    while True:
        with readable(source.name):
            chunk = source.stream.read1(CHUNK)  # read1: a line typed at the terminal is there at once
        if not chunk:
            return
        size += len(chunk)
        if source.packed is not None:
            check_ratio(source.name, size, source.packed)
        yield chunk


def need_module(source: TextSource, name: str, extra: str, kind: str) -> Any:
    """The library that reads a format which is compressed inside already, so that it takes a plain file only."""
    package = name.partition(".")[0]
    try:
        importlib.import_module(package)
        module = importlib.import_module(name)
    except ImportError:
        raise UserError(f"reading {kind} needs {package}: pip install 'weft[{extra}]'") from None
    if not source.plain or source.path is None:
        raise UserError(f"{source.name}: {kind} is read from a plain file only; it is compressed inside already")
    return module


KNOWN: dict[tuple[Any, ...], Any] = {}  # results of looks through files, so that each is looked through once


def remembered(source: TextSource, what: str, look: Callable[[], T]) -> T:
    """The result of a look through this file, remembered as long as the file stays the same."""
    try:
        about = source.path.stat() if source.path is not None else None
    except OSError:
        about = None
    if source.path is None or about is None:
        return look()
    key = (what, source.path.absolute(), source.name, about.st_size, about.st_mtime_ns, about.st_ino)
    if key not in KNOWN:
        if len(KNOWN) > 10_000:
            KNOWN.clear()
        KNOWN[key] = look()
    return KNOWN[key]


def _byte_counts(source: TextSource) -> tuple[bytes, Counter[str]]:
    """What the bytes of a file show: the first of them, and counts."""
    # wide: whole characters of several bytes, as UTF-8 has them; stray: other bytes above 127; runs: runs of those;
    # usual: those that cp1252 has and people write.
    head, rest, counts, left = b"", b"", Counter[str](), SEEN if source.plain else SEEN // 4
    for chunk in chain(read_chunks(source), [b""]):
        left -= len(chunk)
        data = rest + chunk
        last = LAST.search(data, max(0, len(data) - 4)) if chunk else None
        end = last.start() if last else len(data)
        data, rest = data[:end], data[end:]
        head += data[: 4096 - len(head)] if len(head) < 4096 else b""
        counts.update(newlines=data.count(b"\n"), returns=data.count(b"\r"))
        try:
            data.decode("utf-8")
            counts["wide"] += not data.isascii()  # at least one
        except UnicodeDecodeError:
            others, wide = WIDE.subn(b"", data)
            strays, undefined = HIGH.findall(others), UNDEFINED.findall(others)
            counts.update(wide=wide, stray=sum(map(len, strays)), runs=len(strays), undefined=len(undefined))
            counts["usual"] += len(USUAL.findall(others))
        if left <= 0:
            break
    return head, counts


def encoding_of(source: TextSource) -> Encoding:
    """The encoding that the bytes of a file show; UTF-8 unless there is good evidence of another."""
    head, counts = _byte_counts(source)
    mac = counts["returns"] > 0 and not counts["newlines"]
    for mark, encoding in BYTE_ORDER_MARKS:
        if head.startswith(mark):
            utf8 = encoding == "utf-8"
            return Encoding(encoding, mac and utf8, "" if utf8 else f"read as {encoding.upper()}")
    pairs = len(head) // 2
    even, odd = (head[first : 2 * pairs : 2].count(0) for first in (0, 1))
    for encoding, zeros, others in (("utf-16-le", odd, even), ("utf-16-be", even, odd)):
        if pairs >= 4 and zeros > 0.6 * pairs and others < 0.02 * pairs:  # UTF-16 of Latin text, without a mark
            return Encoding(encoding, note=f"read as {encoding.upper()}, by its zero bytes")
    # Where there is about as much UTF-8 as not, it is a damaged file of UTF-8: whole characters of several bytes hardly
    # ever come about by chance in other encodings.
    # A zero byte: no text at all, which its lines will show.
    if not counts["stray"] or 10 * counts["wide"] >= counts["stray"] or b"\0" in head:
        return Encoding("utf-8", mac)
    if counts["stray"] > 2.5 * counts["runs"] and counts["stray"] >= 20:
        hint = "give --encoding NAME, such as cp1251, gb18030, shift_jis or euc_kr"
        raise UserError(f"{source.name}: not UTF-8, and not a Latin script; {hint}")
    if counts["usual"] < 0.7 * counts["stray"]:
        return Encoding("utf-8", mac)
    encoding = "latin-1" if counts["undefined"] else "cp1252"
    return Encoding(encoding, mac, f"not UTF-8; read as {encoding} (--encoding NAME for another)")


def _text_chunks(source: TextSource) -> Iterator[tuple[int, bytes]]:
    """The bytes as UTF-8 without a byte-order mark, each chunk with the number of the line it begins in."""
    # Only what is not UTF-8 is decoded here, so that a bad byte of UTF-8 spoils nothing but its own line.
    encoding = Encoding(source.encoding or "utf-8")
    if source.encoding is None and source.path is not None:  # what can be read but once is UTF-8
        encoding = remembered(source, "encoding", lambda: encoding_of(source))
        if encoding.note:
            source.note(f"{source.name}: {encoding.note}")
    decoder = None if encoding.name == "utf-8" else codecs.getincrementaldecoder(encoding.name)()
    line = 1
    head = b""
    chunks = read_chunks(source)
    for chunk in chunks:  # a pipe may hand out single bytes: wait for the rest of what may be a byte-order mark
        head += chunk
        if len(head) >= 3 or not any(mark.startswith(head) for mark in MARKS):
            break
    chunk = head.removeprefix(codecs.BOM_UTF8) or next(chunks, b"")  # the mark may come alone
    while chunk:
        if decoder is not None:
            try:
                chunk = decoder.decode(chunk).encode()
            except UnicodeError as error:
                where = f"{source.name} line {line} or after"
                raise UserError(f"{where}: is not {encoding.name} text: {_words(error)}") from None
        if encoding.mac:
            chunk = chunk.replace(b"\r", b"\n")
        nul = chunk.find(b"\0")
        if nul >= 0:
            line += chunk.count(b"\n", 0, nul)
            raise UserError(f"{source.name} line {line}: holds a NUL byte: a binary file, not text")
        yield line, chunk
        line += chunk.count(b"\n")
        chunk = next(chunks, b"")
    if decoder is not None and decoder.getstate()[0]:
        raise UserError(f"{source.name} line {line}: ends in the middle of a character")


def read_lines(source: TextSource) -> Iterator[Line]:
    r"""The lines of a text without their ends (\n, \r\n, or \r where there is nothing else), numbered from 1."""
    number, pieces, size = 1, list[bytes](), 0  # pieces: of a line that began in an earlier chunk
    for _, chunk in _text_chunks(source):
        *whole, rest = chunk.split(b"\n")
        for data in whole:
            if pieces:
                data = b"".join((*pieces, data))
                pieces, size = [], 0
            yield _decoded(source, number, data)
            number += 1
        if rest:
            pieces.append(rest)
            size += len(rest)
        if size > LIMIT:
            raise too_long(f"{source.name} line {number}", "this line")
    if pieces:
        yield _decoded(source, number, b"".join(pieces))


def too_long(where: str, what: str) -> UserError:
    return UserError(f"{where}: {what} is longer than {LIMIT // MEGABYTE} MiB")


def head_of(
    items: Iterator[T], size: Callable[[T], int], max_size: int, max_items: int | None = None, min_items: int = 1
) -> list[T]:
    """The first items, until they are larger than `max_size` together, or so many."""
    head, held = list[T](), 0
    for item in islice(items, max_items):
        head.append(item)
        held += size(item)
        if held > max_size and len(head) >= min_items:
            break
    return head


def _decoded(source: TextSource, number: int, data: bytes) -> Line:
    """One line as text, and the error of a bad byte beside it, so that a reader can skip the row."""
    if data.endswith(b"\r"):
        data = data[:-1]
    try:
        return number, data.decode("utf-8"), None
    except UnicodeDecodeError as error:
        words = f"byte {data[error.start]:#04x} is not UTF-8 text"
        return number, data.decode("utf-8", "replace"), BadBytes(f"{source.name} line {number}: {words}")


def read_pieces(source: TextSource) -> Iterator[str]:
    """The text in pieces that end anywhere: for JSON files, which are often one single line."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    line, chunk = 1, b""
    for line, chunk in _text_chunks(source):
        try:
            yield decoder.decode(chunk)
        except UnicodeDecodeError as error:
            line += error.object.count(b"\n", 0, error.start)
            words = f"byte {error.object[error.start]:#04x} is not UTF-8 text"
            raise UserError(f"{source.name} line {line}: {words}") from None
    if decoder.getstate()[0]:  # bytes that wait for the rest of their character
        line += chunk.count(b"\n")
        raise UserError(f"{source.name} line {line}: ends in the middle of a character")


Patterns = str | Path | Iterable[str | Path]


def find_files(patterns: Patterns) -> list[Path]:
    """The files that names, globs, folders and 'corpus.zip/*.txt' stand for, each once; '-' is standard input."""
    each = [patterns] if isinstance(patterns, str | Path) else patterns
    return list(dict.fromkeys(path for pattern in each for path in _matches(str(pattern))))


def _matches(pattern: str) -> list[Path]:
    if not pattern or "\0" in pattern:
        raise UserError(f"{shown(pattern)!r} is not the name of a file")
    path, name = Path(pattern), shown(pattern, 300)
    if path == STANDARD_INPUT or (os.path.exists(path) and not path.is_dir()):  # before globs: a name may hold brackets
        return [path]
    if path.is_dir():
        inside = (file for file in _below(path, links=False) if not file.name.startswith("."))
        known = (file for file in inside if format_suffix(file) in SUFFIXES or file.suffix.lower() == ".zip")
        if files := sorted(file for file in known if file.is_file()):  # a pipe or a device may never end
            return files
        raise UserError(f"{name}: holds no file of a known format ({listed(SUFFIXES, 20)})")
    archive, member = zip_and_member(path)
    if member is not None:
        return [archive / name for name in find_members(archive, member)]
    if glob.has_magic(pattern):
        if "**" in path.parts:  # below it every folder is gone through once, however many links lead to it
            first = path.parts.index("**")
            roots = glob.glob(str(Path(*path.parts[:first]))) if first else ["."]
            below = ((root, file) for root in roots for file in _below(Path(root), links=True))
            matches = [file for root, file in below if _fits(file.relative_to(root).parts, path.parts[first:])]
        else:
            matches = [Path(match) for match in glob.glob(pattern)]
        if files := sorted(file for file in matches if file.is_file()):
            return files
        raise UserError(f"{name}: matches no file")
    missing = path  # the first part of the path that is not there: that is where the slip is
    while not os.path.exists(missing.parent) and missing.parent != missing:
        missing = missing.parent
    beside = list[str]()
    with suppress(OSError):
        beside = os.listdir(missing.parent)
    raise UserError(f"{name}: no such file{did_you_mean(missing.name, beside)}")


def _below(root: Path, links: bool) -> Iterator[Path]:
    """The files in a folder and its folders, those that links lead to included or not; hidden folders are left out."""

    def unreadable(error: OSError) -> None:
        raise UserError(f"{shown(str(error.filename), 300)}: cannot be read: {(error.strerror or '').lower()}")

    seen = set[tuple[int, int]]()
    for place, folders, names in os.walk(root, onerror=None if links else unreadable, followlinks=links):
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
    with readable(str(archive)), open(archive, "rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def folder_digest(folder: Path) -> str:
    """What stands for all files of a model folder but hidden ones and the record of its training."""
    whole = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and name.parts[0] != "run" and not any(part.startswith(".") for part in name.parts):
            whole.update(json.dumps(str(name)).encode() + digest_of(path))
    return whole.hexdigest()
