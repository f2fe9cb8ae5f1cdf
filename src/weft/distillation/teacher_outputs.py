"""Teachers read all examples once; what they say is kept in the cache, and every later epoch and run finds it there.

A shard is named by its teacher's files, by what is asked and by the examples in it, so that it is found again wherever
they are the same. Each is whole or absent: a process that is stopped loses no more than the one it was at.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from weft.checkpoint.folder import LoadedModel
from weft.checkpoint.tensors import save_tensors
from weft.checksums import digests, is_sound, write_manifest
from weft.data.shards import TEACHERS
from weft.distillation.base import Lesson, Said
from weft.distillation.tally import Tally
from weft.errors import UserError
from weft.files import cache_folder, check_readable, held, reason, unwritable, write_json
from weft.progress import Log, Progress
from weft.tasks.base import Example
from weft.tasks.forward import framing_for
from weft.tasks.judging import chunked
from weft.text.paths import digest_of
from weft.training.signals import Stop

FORMAT = 1
SHARD = 1024  # examples in a file
ENDS = ".ends"  # of the name under which a shard says where the arrays of each example end


def digest_of_folder(folder: Path) -> str:
    """What stands for a model: the contents of all its files, but for the record of its training."""
    whole = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and name.parts[0] != "run" and not any(part.startswith(".") for part in name.parts):
            whole.update(json.dumps(str(name)).encode())
            whole.update(digest_of(path))
    return whole.hexdigest()


@dataclass(frozen=True)
class Listened:
    """A teacher and where it lies."""

    opened: LoadedModel
    folder: Path
    digest: str


class Kept(Sequence[Said]):
    """What one teacher says of every example, in shards on disk; one of them is in memory at a time."""

    def __init__(self, paths: Sequence[Path], sizes: Sequence[int]) -> None:
        self.paths, self.starts = paths, [0, *accumulate(sizes)]
        self._number, self._arrays = -1, dict[str, NDArray[Any]]()

    def __len__(self) -> int:
        return self.starts[-1]

    @overload
    def __getitem__(self, place: int) -> Said: ...
    @overload
    def __getitem__(self, place: slice) -> Part: ...
    def __getitem__(self, place: int | slice) -> Said | Part:
        if isinstance(place, slice):
            return Part(self, range(len(self))[place])
        place = range(len(self))[place]
        number = bisect_right(self.starts, place) - 1
        if number != self._number:
            self._arrays, self._number = _read(self.paths[number]), number
        return _one(self._arrays, place - self.starts[number])


class Together(Sequence[Said]):
    """What several teachers say of every example."""

    def __init__(self, lesson: Lesson, kept: Sequence[Sequence[Said]]) -> None:
        self.lesson, self.kept = lesson, kept

    def __len__(self) -> int:
        return len(self.kept[0])

    @overload
    def __getitem__(self, place: int) -> Said: ...
    @overload
    def __getitem__(self, place: slice) -> Part: ...
    def __getitem__(self, place: int | slice) -> Said | Part:
        if isinstance(place, slice):
            return Part(self, range(len(self))[place])
        return self.lesson.mean([each[place] for each in self.kept])


class Part(Sequence[Said]):
    """What is said of some of the examples."""

    def __init__(self, whole: Sequence[Said], numbers: Sequence[int]) -> None:
        self.whole, self.numbers = whole, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, place: int) -> Said: ...
    @overload
    def __getitem__(self, place: slice) -> Part: ...
    def __getitem__(self, place: int | slice) -> Said | Part:
        if isinstance(place, slice):
            return Part(self.whole, self.numbers[place])
        return self.whole[self.numbers[place]]


@dataclass(frozen=True)
class Taught:
    """What the teachers say of all examples together, and how many examples had to be read for it."""

    said: Sequence[Said]
    forwards: int  # of all teachers: examples that one of them read anew


def taught(
    lesson: Lesson,
    teachers: Sequence[Listened],
    examples: Sequence[Example],
    parts: Sequence[int],
    stop: Stop,
    log: Log,
    progress: Progress,
    tally: Tally | None = None,
) -> Taught:
    """Ask the teachers about all examples, as far as the cache does not know what they say.

    `parts`: how many examples are of each file or kind of files; shards begin anew with each, so that the same texts
    are found again whatever stands beside them. `tally` counts for the run what is read anew.
    """
    if lesson.as_one:
        whole = hashlib.sha256(" ".join(each.digest for each in teachers).encode()).hexdigest()
        teachers = [replace(teachers[0], digest=whole)] if len(teachers) > 1 else teachers
    forwards, kept = 0, list[Sequence[Said]]()
    ends = list(accumulate(parts))
    assert ends[-1] == len(examples)
    cuts = [
        (place, min(place + SHARD, end))
        for begin, end in zip([0, *ends], ends, strict=False)
        for place in range(begin, end, SHARD)
    ]
    shards = [examples[begin:end] for begin, end in cuts]
    for number, teacher in enumerate(teachers, 1):
        name = "teacher" if len(teachers) == 1 else f"teacher {number}"
        with progress(f"{name} reads", "texts") as told:
            paths, read = _asked(lesson, teacher, shards, stop, log, told, tally or Tally())
        cached = ", all from the cache" if not read else ", the others from the cache" if read < len(examples) else ""
        log(f"{name}: {len(examples):,} texts, {read:,} read anew{cached}")
        forwards += read
        kept.append(Kept(paths, [len(some) for some in shards]))
    return Taught(kept[0] if len(kept) == 1 else Together(lesson, kept), forwards)


def _asked(
    lesson: Lesson,
    teacher: Listened,
    shards: Sequence[Sequence[Example]],
    stop: Stop,
    log: Log,
    told: Callable[[int], None],
    tally: Tally,
) -> tuple[list[Path], int]:
    """The shards of one teacher, made where they are missing; and how many examples it read for that."""
    words = [FORMAT, SHARD, teacher.digest, type(lesson).__name__, dict(lesson.settings)]
    folder = cache_folder() / TEACHERS / hashlib.sha256(json.dumps(words).encode()).hexdigest()[:32]
    about = {"files": [f"teacher {teacher.folder}"]}
    paths, read, noted = list[Path](), 0, False
    for some in shards:
        path = folder / f"{_digest(lesson, some)}.safetensors"
        record = path.with_suffix(".json")  # its hash: a shard counts as soon as that is there
        while not is_sound(record):
            with held(folder.with_suffix(".lock")) as ours:
                if ours and not is_sound(record, quiet=True):
                    with tally.shard(record, len(some)):
                        _write(path, _said(lesson, teacher.opened, some, stop, told), about)
                    read += len(some)
            if not ours:  # another process is at it: what it hears is ours too
                if not noted:
                    log("weft: note: another process asks this teacher; waiting for it")
                noted = True
                stop.check("stopped while another process asks the teacher")
                time.sleep(0.2)
        paths.append(path)
    with suppress(OSError):  # a cache may be shared and read only
        os.utime(folder)
    return paths, read


def _digest(lesson: Lesson, examples: Sequence[Example]) -> str:
    whole = hashlib.sha256()
    for example in examples:
        whole.update(json.dumps(lesson.asked(example)).encode() + b"\n")
    return whole.hexdigest()[:32]


def _said(
    lesson: Lesson, teacher: LoadedModel, examples: Sequence[Example], stop: Stop, told: Callable[[int], None]
) -> Iterator[Said]:
    framing = framing_for(teacher)
    for some in chunked(examples, lambda example: sum(map(len, example.texts))):
        stop.check("stopped while the teacher reads; what it has said is kept")
        yield from lesson.said(teacher, framing, some)
        told(len(some))


# ------------------------------------------------------------------------------------------------------------ shards


def _write(path: Path, said: Iterator[Said], about: dict[str, Any]) -> None:
    """A shard: the arrays of all its examples one after the other, and where those of each end."""
    found = list(said)
    tensors: dict[str, NDArray[Any]] = {}
    for name in dict.fromkeys(name for each in found for name in each):
        some = next(each[name] for each in found if name in each)
        empty = np.zeros((0, *some.shape[1:]), dtype=some.dtype)
        parts = [np.asarray(each.get(name, empty), dtype=some.dtype) for each in found]
        tensors[name] = np.ascontiguousarray(np.concatenate(parts))
        tensors[name + ENDS] = np.cumsum([len(part) for part in parts], dtype=np.int64)
    scratch = path.with_suffix(".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not (path.parent / "corpus.json").exists():
            write_json(path.parent / "corpus.json", about)
        save_tensors(scratch, {name: torch.from_numpy(array) for name, array in tensors.items()})
        with open(scratch, "rb") as file:
            os.fsync(file.fileno())
        os.replace(scratch, path)
        write_manifest(path.with_suffix(".json"), {}, digests(path.parent, [path.name]))
    except (OSError, SafetensorError) as error:
        raise unwritable(path, error) from None


def _read(path: Path) -> dict[str, NDArray[Any]]:
    check_readable(path)
    try:
        return load_file(path)
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"{path}: damaged ({reason(error)}); remove it and try again") from None


def _one(arrays: dict[str, NDArray[Any]], place: int) -> Said:
    """What is said of one example of a shard."""
    found = {}
    for name, values in arrays.items():
        if not name.endswith(ENDS):
            ends = arrays[name + ENDS]
            found[name] = values[ends[place - 1] if place else 0 : ends[place]]
    return found
