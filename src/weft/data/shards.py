"""Text tokenized once into memory-mapped files of the cache, looked up by a hash of text and tokenizer.

An entry of the cache under $WEFT_CACHE counts once its manifest, with the hashes of its files, is there; a damaged one
is made again. A stopped process leaves whole shards behind, and the next one continues from there.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.budget import by_budget
from weft.config import build, values_of
from weft.errors import UserError
from weft.files import (
    cache_folder,
    digests,
    held,
    is_sound,
    read_json,
    read_manifest,
    reason,
    sync_folder,
    unwritable,
    write_json,
    write_manifest,
)
from weft.text.records import document_kinds, read_texts
from weft.text.rows import PART, Skipped, parts_of
from weft.text.sentences import sentences as cut_sentences
from weft.text.sources import digest_of, find_files, zip_and_member
from weft.text.tokenizers.checked import CHECKED
from weft.text.tokenizers.tokenizer import Tokenizer

SHARDS, TEACHERS = "shards", "teachers"  # rooms of the cache: tokenized texts, and outputs of teachers
COMPILED = "compiled"  # room where torch keeps compiled code
BENCH = "bench"  # ... and of the choices of `weft bench`, with the exports that it has tried
RECORD = "corpus.json"  # in each folder: what it was made from
POLL = 0.2  # seconds between two looks at what another process is making


class CacheFolder:
    """A folder of the cache, named by a hash of `key`; one process at a time writes into it."""

    def __init__(self, room: str, key: Sequence[Any], waiting: Callable[[], None]) -> None:
        """`waiting` is called once where another process is writing an entry."""
        self.name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]
        self.path = cache_folder() / room / self.name
        self.waiting: Callable[[], None] | None = waiting

    def make(self, manifest: Path, write: Callable[[], None], poll: Callable[[], None]) -> bool:
        """Write an entry unless it is there and sound; whether this process did. `poll` may raise to stop waiting."""
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


def cached() -> list[tuple[str, int, float, str]]:
    """Each folder of the cache: name, bytes, when it was last used, and which files it was made from."""
    rows = []
    for folder in _folders():
        path, sources = folder / RECORD, "(unfinished)"
        if path.exists():
            sources = "(damaged)"
            with suppress(UserError, TypeError):
                sources = ", ".join(read_json(path).get("files", 0))
        rows.append((folder.name, _size(folder), folder.stat().st_mtime, sources))
    return rows


def _folders() -> list[Path]:
    paths = (path for room in (SHARDS, TEACHERS) for path in (cache_folder() / room).glob("*"))
    return sorted(path for path in paths if path.is_dir())


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def clear_cache() -> int:
    """Remove all that no process is writing to; bytes freed."""
    freed = 0
    for name in (COMPILED, BENCH, CHECKED):
        freed += _size(cache_folder() / name)
        shutil.rmtree(cache_folder() / name, ignore_errors=True)
    for folder in _folders():
        with held(folder.with_suffix(".lock")) as ours:
            if ours:
                size, gone = _size(folder), folder.with_suffix(".gone")  # half removed, it must not look complete
                os.replace(folder, gone)
                shutil.rmtree(gone, ignore_errors=True)
                freed += size
    return freed


FORMAT = 2
SHARD = 1 << 24  # tokens in a file; a document may lie across two
TOGETHER = 1 << 20  # characters that are tokenized at a time

Places = NDArray[np.int64]
Progress = Callable[[int], None]


@dataclass(frozen=True)
class TextFiles:
    """Which text, and how its files are read."""

    files: tuple[str, ...]
    column: str = "text"
    delimiter: str | None = None
    documents: str = "line"  # of DOCUMENTS: what a document of a text file is
    on_bad_row: str = "stop"
    encoding: str | None = None

    def paths(self) -> list[Path]:
        """The files, those that are not here looked for where $WEFT_DATA says that data lies."""
        paths, elsewhere = list[Path](), os.environ.get("WEFT_DATA")
        for name in self.files:
            try:
                paths += find_files(name)
            except UserError as error:
                if not elsewhere or os.path.isabs(name):
                    raise
                try:
                    paths += find_files(os.path.join(elsewhere, name))
                except UserError:
                    if os.path.exists(name):  # a folder without any text
                        raise error from None
                    raise UserError(f"{name}: no such file, neither here nor in {elsewhere}") from None
        if Path("-") in paths:
            raise UserError("training text is read more than once, so it cannot come from standard input: name a file")
        return list(dict.fromkeys(paths))

    def read(self, skipped: Skipped | None = None) -> Iterator[str]:
        how: dict[str, Any] = {name: value for name, value in vars(self).items() if name != "files"}
        return (document.text for document in read_texts(self.paths(), skipped=skipped, **how))

    def hash(self) -> str:
        """What is in the files, and how they are read; not what they are called."""
        kinds = document_kinds(self.paths()) or {"line"} if self.documents == "auto" else {self.documents}
        # Files of different kinds stay "auto".
        how = [self.column, self.delimiter, kinds.pop() if len(kinds) == 1 else self.documents, self.on_bad_row]
        whole = hashlib.sha256(json.dumps(how if self.encoding is None else [*how, self.encoding]).encode())
        for path in self.paths():
            whole.update(json.dumps([list(path.suffixes), zip_and_member(path)[1]]).encode())
            whole.update(digest_of(path))
        return whole.hexdigest()


@dataclass(frozen=True, kw_only=True)
class CorpusRecord:
    """`corpus.json` of a tokenized text, with the hashes of the files beside it."""

    tokens: int
    shards: int
    sentences: bool
    documents: int
    files: tuple[str, ...]  # that the text was read from
    skipped: int = 0
    skipped_first: tuple[str, ...] = ()


@dataclass(frozen=True)
class Corpus:
    """Tokens on disk, and where documents (and sentences, where they were asked for) begin among them."""

    shards: Sequence[NDArray[np.unsignedinteger]]
    documents: Places  # D+1: document d is the tokens from documents[d] to documents[d+1]
    sentences: Places | None  # S+1
    hash: str

    @property
    def begin(self) -> int:
        return int(self.documents[0])

    @property
    def size(self) -> int:
        """How many tokens."""
        return int(self.documents[-1] - self.documents[0])

    def take(self, places: Places) -> Places:
        """The tokens at these places of the whole."""
        if len(self.shards) == 1:
            return self.shards[0][places].astype(np.int64)
        tokens, numbers = np.empty(places.shape, dtype=np.int64), places // SHARD
        for number in np.unique(numbers):
            here = numbers == number
            tokens[here] = self.shards[number][places[here] - number * SHARD]
        return tokens

    def part(self, begin: int, end: int) -> Corpus:
        """The tokens from one place of this corpus up to another; documents at the edges are cut."""
        begin, end = begin + self.begin, end + self.begin
        inside = self.documents[(self.documents > begin) & (self.documents < end)]
        sentences = self.sentences
        if sentences is not None:
            sentences = np.r_[begin, sentences[(sentences > begin) & (sentences < end)], end]
        return replace(self, documents=np.r_[begin, inside, end], sentences=sentences)

    def split(self, share: float) -> tuple[Corpus, Corpus]:
        """All but the last share of the tokens, and that; whole documents where there are enough of them."""
        cut = self.size - round(self.size * share)
        if len(self.documents) > 20:
            borders = self.documents[1:-1] - self.begin
            nearest = int(borders[np.abs(borders - cut).argmin()])
            cut = nearest if abs(nearest - cut) < 0.5 * share * self.size else cut
        return self.part(0, cut), self.part(cut, self.size)


def tokenized(
    text: TextFiles,
    tokenizer: Tokenizer,
    sentences: bool = False,
    progress: Progress = lambda more: None,
    waiting: Callable[[], None] = lambda: None,
    skipped: Skipped | None = None,
) -> Corpus:
    """The tokens of a text, from the cache or made now; `progress` gets numbers of characters and may raise to stop."""
    cache = CacheFolder(SHARDS, [FORMAT, SHARD, text.hash(), tokenizer.pipeline, sentences], waiting)
    path, left_out = cache.path / RECORD, skipped or Skipped()
    build_it = partial(_build, cache.path, text, tokenizer, sentences, progress, left_out)
    made = cache.make(path, build_it, lambda: progress(0))
    cache.touch()
    record = build(CorpusRecord, read_manifest(path)[0], str(path))
    if skipped is not None and not made:  # rows that were skipped when the cache was made are missing now too
        skipped.count += record.skipped
        skipped.first += record.skipped_first
    try:
        tokens = [np.load(cache.path / f"tokens-{number:05d}.npy", mmap_mode="r") for number in range(record.shards)]
        starts = np.load(cache.path / "documents.npy", mmap_mode="r")
        sentence_starts = np.load(cache.path / "sentences.npy", mmap_mode="r") if record.sentences else None
    except (OSError, ValueError) as error:
        raise UserError(f"{cache.path}: damaged ({reason(error)}); remove it and try again") from None
    return Corpus(tokens, starts, sentence_starts, cache.name)


def _build(
    folder: Path, text: TextFiles, tokenizer: Tokenizer, sentences: bool, progress: Progress, skipped: Skipped
) -> None:
    scratch = folder.with_suffix(".partial")
    try:
        scratch.mkdir(parents=True, exist_ok=True)
        for leftover in scratch.glob(".*"):
            leftover.unlink()
        writer = _Writer(scratch, tokenizer.vocabulary, sentences)
        begun = max(0, writer.begun - 1)  # the last one may lie across the edge: it is read again
        documents = text.read(skipped)
        for passed in islice(documents, begun):
            progress(len(passed))
        again = bool(writer.begun)
        for some in by_budget(documents, len, TOGETHER):
            for pieces in _encode(some, tokenizer, sentences, progress):
                writer.add(pieces, again)
                again = False
        files = writer.finish()
        record = CorpusRecord(
            tokens=writer.total,
            shards=writer.shards,
            sentences=sentences,
            documents=writer.begun,
            files=tuple(map(str, text.paths())),
            skipped=skipped.count,
            skipped_first=tuple(skipped.first),
        )
        write_manifest(scratch / RECORD, values_of(record), digests(scratch, files))
        if folder.exists():  # what is left of one that was removed by halves
            shutil.rmtree(folder)
        os.replace(scratch, folder)
        sync_folder(folder.parent)
        for pattern in ("documents-*.npy", "sentences-*.npy", "shard-*.json"):  # all in one file now
            for path in folder.glob(pattern):
                path.unlink()
    except OSError as error:
        raise unwritable(scratch, error) from None


def _encode(
    documents: list[str], tokenizer: Tokenizer, sentences: bool, progress: Progress
) -> Iterator[list[list[int]]]:
    """The ids of each document: sentence by sentence, or in one piece."""
    cuts = [cut_sentences(document) if sentences else [document] for document in documents]
    parts = [list(parts_of(piece, PART)) for cut in cuts for piece in cut]
    ids = list[list[int]]()
    for some in by_budget((part for piece in parts for part in piece), len, TOGETHER):
        ids += tokenizer.ids(some, specials=False)
        progress(sum(map(len, some)))
    rest = iter(ids)
    pieces = ([token for _ in some for token in next(rest)] for some in parts)
    for cut in cuts:
        yield [next(pieces) for _ in cut]


class _Writer:
    """Shards of a fixed number of tokens, each whole or absent, and the places where documents and sentences begin."""

    def __init__(self, folder: Path, vocabulary: int, sentences: bool) -> None:
        self.folder = folder
        self.kind = np.dtype(np.uint16 if vocabulary <= 1 << 16 else np.uint32)
        self.shards = self.begun = self.last = 0  # begun: documents; last: where the last of them begins
        # A short shard is the last of a text: its process may have been stopped before all was in place.
        while is_sound(self._record(self.shards)) and read_manifest(self._record(self.shards))[0] == {"tokens": SHARD}:
            places = np.load(folder / f"documents-{self.shards:05d}.npy")
            self.begun += len(places)
            self.last = int(places[-1]) if len(places) else self.last
            self.shards += 1
        self.total = self.shards * SHARD
        self.with_sentences = sentences
        self.tokens, self.documents, self.sentences = array(self.kind.char), array("q"), array("q")

    def _record(self, number: int) -> Path:
        return self.folder / f"shard-{number:05d}.json"

    def add(self, pieces: list[list[int]], again: bool) -> None:
        """One more document; one that is read `again` has left its first tokens in an earlier shard."""
        if not again:
            self.last = self.total
            self.begun += 1
            self.documents.append(self.total)
        place = self.last
        for piece in pieces:
            if self.with_sentences and place >= self.total:
                self.sentences.append(place)
            new = piece[max(0, self.total - place) :] if place < self.total else piece
            place += len(piece)
            while new:
                room = (self.shards + 1) * SHARD - self.total
                self.tokens.extend(new[:room])
                self.total += len(new[:room])
                new = new[room:]
                if self.total == (self.shards + 1) * SHARD:
                    self._flush()

    def _flush(self) -> None:
        # A shard counts as soon as its record is there.
        arrays = {"documents": self.documents, "sentences": self.sentences, "tokens": self.tokens}
        files = {f"{name}-{self.shards:05d}.npy": values for name, values in arrays.items()}
        for file, values in files.items():
            self._save(file, np.array(values))
        write_manifest(self._record(self.shards), {"tokens": len(self.tokens)}, digests(self.folder, files))
        self.shards += 1
        self.tokens, self.documents, self.sentences = array(self.kind.char), array("q"), array("q")

    def _save(self, name: str, values: NDArray[np.integer]) -> None:
        with open(self.folder / f".{name}", "wb") as file:
            np.save(file, values)
            file.flush()
            os.fsync(file.fileno())
        os.replace(self.folder / f".{name}", self.folder / name)

    def finish(self) -> list[str]:
        """Write the rest; the names of the files that the corpus consists of."""
        if self.tokens or self.documents or not self.shards:
            self._flush()
        whole = ["documents", "sentences"] if self.with_sentences else ["documents"]
        for what in whole:
            parts = [np.load(self.folder / f"{what}-{number:05d}.npy") for number in range(self.shards)]
            self._save(f"{what}.npy", np.concatenate([*parts, np.array([self.total])]))
        return [*(f"tokens-{number:05d}.npy" for number in range(self.shards)), *(f"{what}.npy" for what in whole)]
