"""The cache of teacher outputs, in shards named by their teacher, task and examples; each is whole or absent."""

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
from weft.text.sources import digest_of
from weft.training.run import Run, tokenizer_hash
from weft.training.signals import Control

READS = "teacher_reads.json"  # in the inside of a run folder
Advance = Callable[[int], None]
Shard = tuple[str, Sequence[Any]]  # the name of its file, and its examples


@dataclass(frozen=True)
class Teacher:
    """A teacher and its folder."""

    model: LoadedModel
    folder: Path
    digest: str  # of all its files but the record of its training

    @classmethod
    def of(cls, model: LoadedModel, folder: Path) -> Teacher:
        whole = hashlib.sha256()
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder)
            if path.is_file() and name.parts[0] != "run" and not any(part.startswith(".") for part in name.parts):
                whole.update(json.dumps(str(name)).encode() + digest_of(path))
        return cls(model, folder, whole.hexdigest())


@dataclass(frozen=True, kw_only=True)
class ReadRecord:
    """`teacher_reads.json`."""

    read: int = 0
    shard: str | None = None  # that a teacher is reading: the file that is there when it has been written ...
    count: int = 0  # ... and its number of examples


class TeacherReads:
    """Examples, or places of a text, that a teacher had to read, counted over all processes of a run."""

    def __init__(self, inside: Path | None = None, log: Log = to_logger) -> None:
        self.path, self.log = None if inside is None else inside / READS, log
        record = ReadRecord() if self.path is None or not self.path.is_file() else read_record(ReadRecord, self.path)
        self.total = record.read
        # A process that was killed right after it wrote a shard had no time left to count it.
        if record.shard is not None and Path(record.shard).exists():
            self.total += record.count

    @contextmanager
    def shard(self, path: Path, count: int) -> Iterator[None]:
        """A teacher reads one shard; if it is not written in the end it does not count, since it is read again."""
        self._note(shard=str(path.absolute()), count=count)
        try:
            yield
            self.total += count
        finally:
            self._note()

    def _note(self, **more: Any) -> None:
        if self.path is not None:
            write_json(self.path, {"read": self.total, **more})

    def shards(
        self, key: list[Any], source: str, shards: Sequence[Shard], write: Callable[[Path, Any], None], advance: Advance
    ) -> tuple[list[Path], int]:
        """The files of these shards, written where missing, and how many examples that took; `advance` may raise."""
        waiting = "weft: note: another process runs this teacher; waiting for it"
        cache, paths, read = CacheFolder(TEACHERS, key, lambda: self.log(waiting)), list[Path](), 0

        def make(path: Path, examples: Sequence[Any]) -> None:
            with self.shard(manifest_of(path), len(examples)):
                write(path, examples)
                cache.seal(path, source)

        for name, examples in shards:
            paths.append(cache.path / name)
            write_it = partial(make, paths[-1], examples)
            read += len(examples) if cache.make(manifest_of(paths[-1]), write_it, lambda: advance(0)) else 0
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
    """The outputs of the teachers for all examples, from the cache as far as it has them."""
    teachers, control = context.teachers, context.control
    if task.joint_teachers and len(teachers) > 1:
        digest = hashlib.sha256(" ".join(teacher.digest for teacher in teachers).encode()).hexdigest()
        teachers = [replace(teachers[0], digest=digest)]
    ends, shards = list(accumulate(parts)), list[Shard]()
    assert ends[-1] == len(examples)
    for begin, end in zip([0, *ends], ends, strict=False):  # each part anew: it is cached whatever stands beside it
        for place in range(begin, end, SHARD):
            shard = examples[place : min(place + SHARD, end)]
            keys = "".join(json.dumps(task.teacher_key(example)) + "\n" for example in shard)
            shards.append((f"{hashlib.sha256(keys.encode()).hexdigest()[:32]}.safetensors", shard))
    message = "stopped while the teacher reads; its outputs so far are cached"
    forwards, readers = 0, list[ShardReader]()
    for number, teacher in enumerate(teachers, 1):
        name = "teacher" if len(teachers) == 1 else f"teacher {number}"
        with control.count(f"{name} reads", "texts", message) as advance:
            paths, read = _cached(context, task, teacher, shards, advance)
        cached = ", all from the cache" if not read else ", the others from the cache" if read < len(examples) else ""
        control.log(f"{name}: {len(examples):,} texts, {read:,} read anew{cached}")
        forwards += read
        readers.append(ShardReader(paths, [len(shard) for _, shard in shards]))
    read_one = readers[0] if len(readers) == 1 else lambda place: task.average([read(place) for read in readers])
    return TeacherOutputs(read_one, range(len(examples)), forwards)


def _cached(
    context: Distillation, task: Task, teacher: Teacher, shards: Sequence[Shard], advance: Advance
) -> tuple[list[Path], int]:
    """The shards of one teacher, written where they are missing; and how many examples it read for that."""
    windows = framing_for(teacher.model)

    def outputs(examples: Sequence[Example]) -> Iterator[TeacherArrays]:
        for chunk in chunked(examples, lambda example: sum(map(len, example.texts))):
            advance(len(chunk))
            yield from task.teacher_outputs(teacher.model, windows, chunk)

    def write(path: Path, examples: Sequence[Example]) -> None:
        _write(path, outputs(examples))

    key = [FORMAT, SHARD, teacher.digest, task.name, task.teacher_settings]
    return context.reads.shards(key, f"teacher {teacher.folder}", shards, write, advance)


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

    def batch(self, drawn: Drawn) -> Batch:
        """Each token predicts the next, with the outputs of the teachers where the rows are placed."""
        batch = shift(replace(drawn, places=None))
        if drawn.places is None:  # held-out text
            return batch
        inside = np.ones(len(drawn.tokens), dtype=bool)
        inside[drawn.starts[1:] - 1] = False
        outputs = self.take(drawn.places[inside])
        soft = {
            TOKENS: torch.from_numpy(outputs["tokens"].astype(np.int64)),
            LOGPROBS: torch.from_numpy(outputs["logprobs"].astype(np.float32)),
            REST: torch.from_numpy(np.ascontiguousarray(outputs["rest"])),
        }
        return replace(batch, targets={**batch.targets, **soft})


def token_outputs(
    request: TokenRequest, progress: Advance = lambda more: None, context: Distillation | None = None
) -> TokenOutputs:
    """The outputs of the teachers, from the cache or made now; `progress` gets numbers of places and may raise."""
    corpus, places = request.framed.corpus, range(request.framed.size)
    part = [corpus.hash, corpus.begin, corpus.size, *vars(request.framed.frame).values()]
    digests = sorted(teacher.digest for teacher in request.teachers)
    key = [TOKEN_FORMAT, TOKEN_SHARD, digests, part, request.vocabulary, request.temperature, request.top]
    parts = [places[begin : begin + TOKEN_SHARD] for begin in places[::TOKEN_SHARD]]
    shards = [(f"forecasts-{number:05d}.npy", part) for number, part in enumerate(parts)]
    source = "forecasts of " + ", ".join(str(teacher.folder) for teacher in request.teachers)

    def read(path: Path) -> NDArray[Any]:
        outputs = np.load(path, mmap_mode="r")
        if outputs.dtype != request.dtype:
            raise ValueError("of another kind")
        return outputs

    def write(path: Path, places: range) -> None:
        shard = _shard(request, places, progress)
        with whole_file(path) as file:
            np.save(file, shard)

    reads = TeacherReads() if context is None else context.reads
    paths, forwards = reads.shards(key, source, shards, write, progress)
    return TokenOutputs([_read(path, read) for path in paths], forwards)


@torch.inference_mode()
def _shard(request: TokenRequest, places: range, progress: Advance) -> NDArray[Any]:
    """The mean of what the teachers predict after each of these places, window by window."""
    models = [teacher.model for teacher in request.teachers]
    length = min(LONG, *(model.config.context for model in models))
    # Each place has at least half a window before it, or as much as its teacher looks back at.
    reach = max(length if model.config.reach is None else model.config.reach for model in models)
    before = min(length // 2, reach)
    step = max(1, length - before)
    cuts = [(max(0, first - before), first, min(first + step, places.stop)) for first in places[::step]]
    shard, done = np.empty(len(places), dtype=request.dtype), 0
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
        count = len(hidden[0])
        for chunk in range(0, count, size):
            each = list[Tensor]()
            for model, states in zip(models, hidden, strict=True):
                with unseen_in_words(model):  # some tables are longer than their vocabulary
                    logits = model.network.words(states[chunk : chunk + size])[:, : request.vocabulary]
                each.append((in_full(logits) / request.temperature).log_softmax(-1))
            logprobs = each[0] if len(each) == 1 else torch.stack(each).logsumexp(0) - float(np.log(len(each)))
            here = slice(done + chunk, min(done + count, done + chunk + size))
            parts = shortened(logprobs, shard["tokens"].shape[1])
            for name, values in zip(("tokens", "logprobs", "rest"), parts, strict=True):
                shard[name][here] = values.cpu().numpy()
        done += count
        progress(count)
    return shard


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
