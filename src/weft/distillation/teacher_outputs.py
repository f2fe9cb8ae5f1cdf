"""The cache of teacher outputs: teachers read all examples once, and every later epoch and run reads the outputs there.

A shard is named by its teacher's files, the task and its examples. Each is whole or absent.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save
from torch import Tensor

from weft.budget import BUDGET, by_budget
from weft.checkpoint.card import Card
from weft.checkpoint.folder import LoadedModel
from weft.config import read_record
from weft.data.masking import shift
from weft.data.rows import Drawn, Framed, PackedRows
from weft.data.shards import TEACHERS, CacheFolder, Places, manifest_of
from weft.distillation.recipe import DistillRecipe
from weft.errors import UserError
from weft.files import check_readable, reason, whole_file, write_json
from weft.nn.heads import in_full
from weft.nn.rows import Batch, Ragged
from weft.objectives.losses import LOGPROBS, REST, TOKENS
from weft.progress import Log, to_logger
from weft.tasks.base import Example, Task, TeacherArrays
from weft.tasks.forward import chunked, framing_for, unseen_in_words
from weft.text.sources import folder_digest
from weft.training.run import Run, tokenizer_hash
from weft.training.signals import Control

READS = "teacher_reads.json"  # in the inside of a run folder
Advance = Callable[[int], None]
Check = Callable[[], None]
WriteShard = Callable[[int, Path], None]  # the n-th


@dataclass(frozen=True)
class Teacher:
    """A teacher and its folder."""

    model: LoadedModel
    folder: Path
    digest: str  # of all its files but the record of its training

    @classmethod
    def of(cls, model: LoadedModel, folder: Path) -> Teacher:
        return cls(model, folder, folder_digest(folder))


@dataclass(frozen=True, kw_only=True)
class PendingShard:
    """A shard that a teacher is reading: how many examples, and the file that is there when it has been written."""

    shard: str
    count: int


@dataclass(frozen=True, kw_only=True)
class ReadRecord:
    """`teacher_reads.json`."""

    read: int = 0
    pending: PendingShard | None = None


class TeacherReads:
    """Examples, or places of a text, that a teacher had to read, counted over all processes of a run."""

    def __init__(self, inside: Path | None = None, log: Log = to_logger) -> None:
        self.path, self.log = None if inside is None else inside / READS, log
        record = ReadRecord() if self.path is None or not self.path.is_file() else read_record(ReadRecord, self.path)
        self.total = record.read
        # A process that was killed right after it wrote a shard had no time left to count it.
        if record.pending is not None and Path(record.pending.shard).exists():
            self.total += record.pending.count

    @contextmanager
    def shard(self, path: Path, count: int) -> Iterator[None]:
        """A teacher reads one shard; if it is not written in the end it does not count, since it is read again."""
        self._note(pending={"shard": str(path.absolute()), "count": count})
        try:
            yield
            self.total += count
        finally:
            self._note()

    def _note(self, **more: Any) -> None:
        if self.path is not None:
            write_json(self.path, {"read": self.total, **more})

    def shards(
        self, key: Sequence[Any], source: str, sizes: Sequence[tuple[str, int]], write: WriteShard, check: Check
    ) -> tuple[list[Path], int]:
        """The files of shards (name and number of examples), written where missing; how many examples that took.

        `source` is for `weft cache list`; `check` may raise to stop waiting for another process.
        """
        waiting = "weft: note: another process runs this teacher; waiting for it"
        cache = CacheFolder(TEACHERS, key, lambda: self.log(waiting))
        paths, read = [cache.path / name for name, _ in sizes], 0

        def make(number: int) -> None:
            with self.shard(manifest_of(paths[number]), sizes[number][1]):
                write(number, paths[number])
                cache.seal(paths[number], source)

        for number, (path, (_, count)) in enumerate(zip(paths, sizes, strict=True)):
            read += count if cache.make(manifest_of(path), partial(make, number), check) else 0
        cache.touch()
        return paths, read


@dataclass(frozen=True)
class Distillation:
    """A run folder and its recipe, the teachers, and whom to report to."""

    run: Run
    recipe: DistillRecipe
    teachers: Sequence[Teacher]
    device: torch.device
    control: Control

    @property
    def models(self) -> list[LoadedModel]:
        return [teacher.model for teacher in self.teachers]

    @property
    def teacher(self) -> LoadedModel:
        """The first of them, whose layers, vocabulary and window a student may take."""
        return self.teachers[0].model

    @cached_property
    def reads(self) -> TeacherReads:
        return TeacherReads(self.run.inside, self.control.log)

    @property
    def captures(self) -> bool:
        """Whether passes are played back from CUDA graphs."""
        return self.device.type == "cuda" and not self.recipe.training.compile

    def card(self, card: Card, **more: Any) -> Card:
        """The card of a student, by the names of what it was made from; where that lies stays private."""
        teacher = ", ".join(Path(folder).name for folder in self.recipe.teacher.folders)
        return replace(card, base=Path(self.recipe.student.model).name, teacher=teacher, **more)

    def same(self, hashes: Mapping[str, str], student: LoadedModel) -> dict[str, Any]:
        """What must not change when the run is resumed."""
        data = {**hashes, "teacher": [teacher.digest for teacher in self.teachers]}
        return {"data": data, "tokenizer": tokenizer_hash(student)}


FORMAT = 2
SHARD = 1024  # examples in a file
ENDS = ".ends"  # after the name of an array: where its part for each example ends


@dataclass(frozen=True, eq=False)
class TeacherOutputs(Sequence[TeacherArrays]):
    """The outputs for some examples, read one by one when they are asked for."""

    read: Callable[[int], TeacherArrays]
    numbers: Sequence[int]
    forwards: int = 0  # of all teachers: examples that one of them had to read

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, place: Any) -> Any:
        numbers = self.numbers[place]
        return TeacherOutputs(self.read, numbers) if isinstance(place, slice) else self.read(numbers)

    def select(self, numbers: Sequence[int]) -> TeacherOutputs:
        """The outputs for the examples with these numbers."""
        return TeacherOutputs(self.read, [self.numbers[number] for number in numbers])


class ShardReader:
    """The outputs of one teacher by number of the example; one shard is in memory at a time."""

    def __init__(self, paths: Sequence[Path], sizes: Iterable[int]) -> None:
        self.paths, self.starts = paths, [0, *accumulate(sizes)]
        self._number, self._arrays = -1, dict[str, NDArray[Any]]()

    def __call__(self, place: int) -> TeacherArrays:
        number = bisect_right(self.starts, place) - 1
        if number != self._number:
            self._arrays, self._number = _read(self.paths[number]), number
        place -= self.starts[number]
        outputs = {}
        for name, ends in self._arrays.items():
            if name.endswith(ENDS):
                begin = ends[place - 1] if place else 0
                outputs[name.removesuffix(ENDS)] = self._arrays[name.removesuffix(ENDS)][begin : ends[place]]
        return outputs


def teacher_outputs(
    context: Distillation, task: Task, examples: Sequence[Example], parts: Sequence[int]
) -> TeacherOutputs:
    """The outputs of the teachers for all examples, from the cache as far as it has them.

    `parts`: how many examples are of each kind of files; shards begin anew with each, so that the same texts are cached
    whatever stands beside them.
    """
    teachers, control = context.teachers, context.control
    if task.joint and len(teachers) > 1:
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
        with control.progress(f"{name} reads", "texts") as advance:
            paths, read = _cached(context, task, teacher, shards, advance)
        cached = ", all from the cache" if not read else ", the others from the cache" if read < len(examples) else ""
        control.log(f"{name}: {len(examples):,} texts, {read:,} read anew{cached}")
        forwards += read
        readers.append(ShardReader(paths, map(len, shards)))
    read_one = readers[0] if len(readers) == 1 else lambda place: task.average([read(place) for read in readers])
    return TeacherOutputs(read_one, range(len(examples)), forwards)


def _cached(
    context: Distillation, task: Task, teacher: Teacher, shards: Sequence[Sequence[Example]], advance: Advance
) -> tuple[list[Path], int]:
    """The shards of one teacher, written where they are missing; and how many examples it read for that."""
    windows, control = framing_for(teacher.model), context.control

    def outputs(examples: Sequence[Example]) -> Iterator[TeacherArrays]:
        for chunk in chunked(examples, lambda example: sum(map(len, example.texts))):
            control.stop.check("stopped while the teacher reads; its outputs so far are cached")
            yield from task.teacher_outputs(teacher.model, windows, chunk)
            advance(len(chunk))

    def name(examples: Sequence[Example]) -> str:
        keys = (json.dumps(task.teacher_key(example)) + "\n" for example in examples)
        return hashlib.sha256("".join(keys).encode()).hexdigest()[:32] + ".safetensors"

    return context.reads.shards(
        [FORMAT, SHARD, teacher.digest, task.name, task.teacher_settings],
        f"teacher {teacher.folder}",
        [(name(shard), len(shard)) for shard in shards],
        lambda number, path: _write(path, outputs(shards[number])),
        lambda: control.stop.check("stopped while another process runs the teacher"),
    )


def _write(path: Path, outputs: Iterable[TeacherArrays]) -> None:
    """A shard: the arrays of all its examples one after the other, and where those of each end."""
    rows = list(outputs)
    arrays: dict[str, NDArray[Any]] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        like = next(row[name] for row in rows if name in row)
        empty = np.zeros((0, *like.shape[1:]), dtype=like.dtype)
        parts = [np.asarray(row.get(name, empty), dtype=like.dtype) for row in rows]
        arrays[name] = np.ascontiguousarray(np.concatenate(parts))
        arrays[name + ENDS] = np.cumsum([len(part) for part in parts], dtype=np.int64)
    with whole_file(path) as file:
        file.write(save(arrays))


def _read(path: Path, load: Callable[[Path], Any] = load_file) -> Any:
    """A shard as `load` reads it; one that is damaged is named."""
    check_readable(path)
    try:
        return load(path)
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"{path}: damaged ({reason(error)}); remove it and try again") from None


TOKEN_FORMAT = 2
TOKEN_SHARD = 1 << 15  # places in a file
TOP = 32  # tokens that are kept of an output
LONG = 1024  # tokens of a window, of a teacher that reads texts of any length
SCORES = 1 << 24  # logits that are held at once


@dataclass(frozen=True)
class TokenRequest:
    """Which teachers read which text, and what of their outputs is kept."""

    teachers: Sequence[Teacher]
    framed: Framed
    vocabulary: int  # tokens that the student knows
    temperature: float = 1.0
    top: int = TOP

    @property
    def dtype(self) -> np.dtype[Any]:
        """One output: the likeliest tokens, their log-probabilities, and the probability of all others."""
        tokens = np.uint16 if self.vocabulary <= 1 << 16 else np.int32
        k = min(self.top, self.vocabulary)
        return np.dtype([("tokens", tokens, (k,)), ("logprobs", np.float16, (k,)), ("rest", np.float32)])

    @property
    def key(self) -> list[Any]:
        corpus = self.framed.corpus
        part = [corpus.hash, corpus.begin, corpus.size, *vars(self.framed.frame).values()]
        digests = sorted(teacher.digest for teacher in self.teachers)
        return [TOKEN_FORMAT, TOKEN_SHARD, digests, part, self.vocabulary, self.temperature, self.top]


@dataclass(frozen=True)
class TokenOutputs:
    """The outputs for all places of a text, and how many places a teacher had to read for that."""

    shards: Sequence[NDArray[Any]]
    forwards: int

    def take(self, places: Places) -> NDArray[Any]:
        """The outputs at these places."""
        outputs = np.empty(len(places), dtype=self.shards[0].dtype)
        numbers = places // TOKEN_SHARD
        for number in np.unique(numbers):
            here = numbers == number
            outputs[here] = self.shards[number][places[here] - number * TOKEN_SHARD]
        return outputs


def token_outputs(
    request: TokenRequest, progress: Advance = lambda more: None, context: Distillation | None = None
) -> TokenOutputs:
    """The outputs of the teachers, from the cache or made now; `progress` gets numbers of places and may raise."""
    size = request.framed.size
    shards = [
        (f"forecasts-{number:05d}.npy", min(TOKEN_SHARD, size - number * TOKEN_SHARD))
        for number in range(-(-size // TOKEN_SHARD))
    ]
    source = "forecasts of " + ", ".join(str(teacher.folder) for teacher in request.teachers)

    def read(path: Path) -> NDArray[Any]:
        outputs = np.load(path, mmap_mode="r")
        if outputs.dtype != request.dtype:
            raise ValueError("of another kind")
        return outputs

    def write(number: int, path: Path) -> None:
        shard = _shard(request, number * TOKEN_SHARD, shards[number][1], progress)
        with whole_file(path) as file:
            np.save(file, shard)

    reads = TeacherReads() if context is None else context.reads
    paths, forwards = reads.shards(request.key, source, shards, write, lambda: progress(0))
    return TokenOutputs([_read(path, read) for path in paths], forwards)


@torch.inference_mode()
def _shard(request: TokenRequest, begin: int, count: int, progress: Advance) -> NDArray[Any]:
    """The mean of what the teachers predict after each of these places, window by window."""
    models = [teacher.model for teacher in request.teachers]
    length = min(LONG, *(model.config.context for model in models))
    # Each place has at least half a window before it, or as much as its teacher looks back at.
    reach = max(length if model.config.reach is None else model.config.reach for model in models)
    before = min(length // 2, reach)
    step, end = max(1, length - before), begin + count
    cuts = [(max(0, first - before), first, min(first + step, end)) for first in range(begin, end, step)]
    shard, done = np.empty(count, dtype=request.dtype), 0
    size = max(1, SCORES // request.vocabulary)
    for batch in by_budget(cuts, lambda cut: cut[2] - cut[0], BUDGET):
        progress(0)
        rows = [request.framed.read(np.arange(start, last))[0].tolist() for start, _, last in batch]
        hidden = []
        for model in models:
            ragged = Ragged.of(rows, model.device)
            firsts = zip(ragged.rows.starts.tolist(), batch, strict=False)
            at = [row + place - start for row, (start, first, last) in firsts for place in range(first, last)]
            hidden.append(model.network(ragged.tokens, ragged.rows)[torch.tensor(at, device=model.device)])
        places = len(hidden[0])
        for chunk in range(0, places, size):
            states = [part[chunk : chunk + size] for part in hidden]
            each = [_logprobs(request, *pair) for pair in zip(models, states, strict=True)]
            logprobs = each[0] if len(each) == 1 else torch.stack(each).logsumexp(0) - float(np.log(len(each)))
            here = slice(done + chunk, min(done + places, done + chunk + size))
            parts = shortened(logprobs, shard["tokens"].shape[1])
            for name, values in zip(("tokens", "logprobs", "rest"), parts, strict=True):
                shard[name][here] = values.cpu().numpy()
        done += places
        progress(places)
    return shard


def _logprobs(request: TokenRequest, model: LoadedModel, states: Tensor) -> Tensor:
    network: Any = model.network
    with unseen_in_words(model):
        logits = network.words(states)[:, : request.vocabulary]  # some tables are longer than their vocabulary
    return (in_full(logits) / request.temperature).log_softmax(-1)


def shortened(logprobs: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """n V -> n k, n k, n: the likeliest tokens, their log-probabilities, and the probability of all others."""
    best = logprobs.topk(k)
    rest = torch.zeros_like(best.values[:, 0])
    if k < logprobs.shape[1]:
        rest = (1 - best.values.double().exp().sum(-1)).clamp(0, 1).to(logprobs.dtype)
    # A token of probability 0, of a model that counts, has none in half precision either.
    return best.indices, best.values.clamp_min(-60000.0), rest


@dataclass(frozen=True)
class PlacedRows(PackedRows):
    """Packed rows that know at which places of the text they stand."""

    def draw(self, epochs: Places, numbers: Places) -> Drawn:
        return replace(super().draw(epochs, numbers), places=self.places(epochs, numbers)[0])


@dataclass(frozen=True)
class WithTokenOutputs:
    """Each token predicts the next, with the outputs of the teachers where there are some."""

    outputs: TokenOutputs

    def __call__(self, drawn: Drawn) -> Batch:
        batch = shift(replace(drawn, places=None))
        if drawn.places is None:  # held-out text
            return batch
        inside = np.ones(len(drawn.tokens), dtype=bool)
        inside[drawn.starts[1:] - 1] = False
        outputs = self.outputs.take(drawn.places[inside])
        soft = {
            TOKENS: torch.from_numpy(outputs["tokens"].astype(np.int64)),
            LOGPROBS: torch.from_numpy(outputs["logprobs"].astype(np.float32)),
            REST: torch.from_numpy(np.ascontiguousarray(outputs["rest"])),
        }
        return replace(batch, targets={**batch.targets, **soft})
