"""Teachers read all examples once; their outputs are cached, and every later epoch and run reads them there.

A shard is named by its teacher's files, by the task and by the examples in it, so that it serves again wherever they
are the same. Each is whole or absent: a process that is stopped loses no more than the one it was writing.
"""

from __future__ import annotations

import hashlib
import json
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from weft.checkpoint.tensors import save_tensors
from weft.distillation.teacher_cache import Teacher, TeacherReads, cached_shards
from weft.errors import UserError
from weft.files import check_readable, reason, unwritable
from weft.progress import Log, Progress
from weft.tasks.base import Example, Task, TeacherArrays
from weft.tasks.forward import chunked, framing_for
from weft.training.signals import Stop

FORMAT = 2
SHARD = 1024  # examples in a file
ENDS = ".ends"  # after the name of an array: where its part for each example ends


class TeacherOutputs(Sequence[TeacherArrays]):
    """The outputs for some examples, read one by one when they are asked for."""

    def __init__(self, read: Callable[[int], TeacherArrays], numbers: Sequence[int]) -> None:
        self.read, self.numbers = read, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, place: int) -> TeacherArrays: ...
    @overload
    def __getitem__(self, place: slice) -> TeacherOutputs: ...
    def __getitem__(self, place: int | slice) -> TeacherArrays | TeacherOutputs:
        if isinstance(place, slice):
            return TeacherOutputs(self.read, self.numbers[place])
        return self.read(self.numbers[place])

    def select(self, numbers: Sequence[int]) -> TeacherOutputs:
        """The outputs for the examples with these numbers."""
        return TeacherOutputs(self.read, [self.numbers[number] for number in numbers])


class ShardReader:
    """The outputs of one teacher by number of the example; one shard is in memory at a time."""

    def __init__(self, paths: Sequence[Path], sizes: Sequence[int]) -> None:
        self.paths, self.starts = paths, [0, *accumulate(sizes)]
        self._number, self._arrays = -1, dict[str, NDArray[Any]]()

    def __call__(self, place: int) -> TeacherArrays:
        number = bisect_right(self.starts, place) - 1
        if number != self._number:
            self._arrays, self._number = _read(self.paths[number]), number
        place -= self.starts[number]
        outputs = {}
        for name, values in self._arrays.items():
            if not name.endswith(ENDS):
                ends = self._arrays[name + ENDS]
                outputs[name] = values[ends[place - 1] if place else 0 : ends[place]]
        return outputs


@dataclass(frozen=True)
class CachedOutputs:
    """The outputs of all teachers together, and how many examples were read for them."""

    outputs: TeacherOutputs
    forwards: int  # of all teachers: examples that one of them had to read


def teacher_outputs(
    task: Task,
    teachers: Sequence[Teacher],
    examples: Sequence[Example],
    parts: Sequence[int],
    stop: Stop,
    log: Log,
    progress: Progress,
    reads: TeacherReads | None = None,
) -> CachedOutputs:
    """The outputs of the teachers for all examples, from the cache as far as it has them.

    `parts`: how many examples are of each file or kind of files; shards begin anew with each, so that the same texts
    are cached whatever stands beside them. `reads` counts for the run what is read.
    """
    if task.joint_teachers and len(teachers) > 1:
        digest = hashlib.sha256(" ".join(teacher.digest for teacher in teachers).encode()).hexdigest()
        teachers = [replace(teachers[0], digest=digest)]
    ends = list(accumulate(parts))
    assert ends[-1] == len(examples)
    shards = [
        examples[place : min(place + SHARD, end)]
        for begin, end in zip([0, *ends], ends, strict=False)
        for place in range(begin, end, SHARD)
    ]
    forwards, readers = 0, list[ShardReader]()
    for number, teacher in enumerate(teachers, 1):
        name = "teacher" if len(teachers) == 1 else f"teacher {number}"
        with progress(f"{name} reads", "texts") as advance:
            paths, read = _cached(task, teacher, shards, stop, log, advance, reads or TeacherReads())
        cached = ", all from the cache" if not read else ", the others from the cache" if read < len(examples) else ""
        log(f"{name}: {len(examples):,} texts, {read:,} read anew{cached}")
        forwards += read
        readers.append(ShardReader(paths, [len(shard) for shard in shards]))
    read_one = readers[0] if len(readers) == 1 else lambda place: task.average([read(place) for read in readers])
    return CachedOutputs(TeacherOutputs(read_one, range(len(examples))), forwards)


def _cached(
    task: Task,
    teacher: Teacher,
    shards: Sequence[Sequence[Example]],
    stop: Stop,
    log: Log,
    advance: Callable[[int], None],
    reads: TeacherReads,
) -> tuple[list[Path], int]:
    """The shards of one teacher, written where they are missing; and how many examples it read for that."""
    return cached_shards(
        [FORMAT, SHARD, teacher.digest, task.name, task.teacher_settings],
        f"teacher {teacher.folder}",
        [(f"{_digest(task, shard)}.safetensors", len(shard)) for shard in shards],
        lambda number, path: _write(path, _outputs(task, teacher, shards[number], stop, advance)),
        lambda: stop.check("stopped while another process runs the teacher"),
        reads,
        log,
    )


def _digest(task: Task, examples: Sequence[Example]) -> str:
    whole = hashlib.sha256()
    for example in examples:
        whole.update(json.dumps(task.teacher_key(example)).encode() + b"\n")
    return whole.hexdigest()[:32]


def _outputs(
    task: Task, teacher: Teacher, examples: Sequence[Example], stop: Stop, advance: Callable[[int], None]
) -> Iterator[TeacherArrays]:
    windows = framing_for(teacher.model)
    for chunk in chunked(examples, lambda example: sum(map(len, example.texts))):
        stop.check("stopped while the teacher reads; its outputs so far are cached")
        yield from task.teacher_outputs(teacher.model, windows, chunk)
        advance(len(chunk))


def _write(path: Path, outputs: Iterator[TeacherArrays]) -> None:
    """A shard: the arrays of all its examples one after the other, and where those of each end."""
    rows = list(outputs)
    tensors: dict[str, NDArray[Any]] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        like = next(row[name] for row in rows if name in row)
        empty = np.zeros((0, *like.shape[1:]), dtype=like.dtype)
        parts = [np.asarray(row.get(name, empty), dtype=like.dtype) for row in rows]
        tensors[name] = np.ascontiguousarray(np.concatenate(parts))
        tensors[name + ENDS] = np.cumsum([len(part) for part in parts], dtype=np.int64)
    scratch = path.with_suffix(".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_tensors(scratch, {name: torch.from_numpy(array) for name, array in tensors.items()})
        with open(scratch, "rb") as file:
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except (OSError, SafetensorError) as error:
        raise unwritable(path, error) from None


def _read(path: Path) -> dict[str, NDArray[Any]]:
    check_readable(path)
    try:
        return load_file(path)
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"{path}: damaged ({reason(error)}); remove it and try again") from None
