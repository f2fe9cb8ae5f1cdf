"""What teachers foresee at every place of a text, kept on disk: later epochs and later runs cost the student only.

A forecast hangs on the place in the text and not on the row that a student happens to read it in: the teacher reads the
text once, in long windows, and rows may be cut anew in every epoch.

k: words that are kept of a forecast; V: vocabulary.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.budget import BUDGET, by_budget
from weft.checkpoint.folder import LoadedModel
from weft.checksums import digests, is_sound, write_manifest
from weft.data.masking import shift
from weft.data.rows import Drawn, Framed, Packed
from weft.data.shards import TEACHERS, Places
from weft.distillation.tally import Tally
from weft.errors import UserError
from weft.files import cache_folder, held, reason, whole_file, write_json
from weft.nn.heads import in_full
from weft.nn.rows import Batch, Ragged
from weft.objectives.distill_words import CHANCES, REST, WORDS
from weft.tasks.unseen import unseen_in_words

FORMAT = 1
SHARD = 1 << 15  # places in a file
TOP = 32  # words that are kept of a forecast
LONG = 1024  # tokens of a window, of a teacher that reads texts of any length
SCORES = 1 << 24  # scores of words that are held at once


@dataclass(frozen=True)
class Asked:
    """What is asked of teachers, and of whom."""

    teachers: Sequence[LoadedModel]
    digests: Sequence[str]  # of their folders
    framed: Framed
    vocabulary: int  # words that the student can say
    temperature: float = 1.0
    top: int = TOP
    named: str = "a teacher"  # for whoever looks into the cache

    @property
    def kind(self) -> np.dtype[Any]:
        """One forecast: its likeliest words, the logarithms of their chances, and what is left for all others."""
        words = np.uint16 if self.vocabulary <= 1 << 16 else np.int32
        k = min(self.top, self.vocabulary)
        return np.dtype([("words", words, (k,)), ("chances", np.float16, (k,)), ("rest", np.float32)])

    @property
    def key(self) -> str:
        corpus = self.framed.corpus
        part = [corpus.hash, corpus.begin, corpus.size, *vars(self.framed.frame).values()]
        words = [FORMAT, SHARD, sorted(self.digests), part, self.vocabulary, self.temperature, self.top]
        return hashlib.sha256(json.dumps(words).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Forecasts:
    """The forecasts of all places of a text, and how many of them a teacher had to make for that."""

    shards: Sequence[NDArray[Any]]
    forwards: int

    def take(self, places: Places) -> NDArray[Any]:
        """Of these places: what comes next."""
        found = np.empty(len(places), dtype=self.shards[0].dtype)
        numbers = places // SHARD
        for number in np.unique(numbers):
            here = numbers == number
            found[here] = self.shards[number][places[here] - number * SHARD]
        return found


def forecasts(
    asked: Asked,
    told: Callable[[int], None] = lambda more: None,
    waiting: Callable[[], None] = lambda: None,
    tally: Tally | None = None,
) -> Forecasts:
    """What the teachers foresee, from the cache or made now; `told` is told of places and may raise to stop."""
    folder = cache_folder() / TEACHERS / asked.key
    count = -(-asked.framed.size // SHARD)
    forwards, noted, tally = 0, False, tally or Tally()
    for number in range(count):
        path = folder / f"forecasts-{number:05d}.npy"
        record = path.with_suffix(".json")  # its hash: a shard counts as soon as that is there
        while not is_sound(record):
            with held(folder.with_suffix(".lock")) as ours:
                if ours and not is_sound(record, quiet=True):
                    size = min(SHARD, asked.framed.size - number * SHARD)
                    with tally.shard(record, size):
                        _write(path, asked, number, told)
                    forwards += size
            if not ours:  # another process is at it: what it hears is ours too
                if not noted:
                    waiting()
                noted = True
                told(0)
                time.sleep(0.2)
    with suppress(OSError):  # a cache may be shared and read only
        os.utime(folder)
    return Forecasts([_read(folder / f"forecasts-{number:05d}.npy", asked) for number in range(count)], forwards)


def _read(path: Path, asked: Asked) -> NDArray[Any]:
    try:
        found = np.load(path, mmap_mode="r")
        if found.dtype != asked.kind:
            raise ValueError("of another kind")
        return found
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: damaged ({reason(error)}); remove it and try again") from None


def _write(path: Path, asked: Asked, number: int, told: Callable[[int], None]) -> None:
    """One shard, whole or absent."""
    begin = number * SHARD
    end = min(begin + SHARD, asked.framed.size)
    found = np.empty(end - begin, dtype=asked.kind)
    for first, last, some in windows(asked, begin, end, told):
        found[first - begin : last - begin] = some
    if not (path.parent / "corpus.json").exists():
        write_json(path.parent / "corpus.json", {"files": [f"forecasts of {asked.named}"]})
    with whole_file(path) as file:
        np.save(file, found)
    write_manifest(path.with_suffix(".json"), {}, digests(path.parent, [path.name]))


@dataclass(frozen=True)
class Window:
    """Places that are read at once, and those of them of which something is kept."""

    start: int
    first: int
    last: int


def windows(asked: Asked, begin: int, end: int, told: Callable[[int], None]) -> Iterator[tuple[int, int, NDArray[Any]]]:
    """Forecasts of these places, run by run: where it begins and ends, and what was foreseen there."""
    length = min(min(each.config.context for each in asked.teachers), LONG)
    # Each place has at least half a window before it, or as much as its teacher looks back at.
    before = min(
        length // 2, max(length if each.config.reach is None else each.config.reach for each in asked.teachers)
    )
    step = max(1, length - before)
    cuts = [Window(max(0, first - before), first, min(first + step, end)) for first in range(begin, end, step)]
    for some in by_budget(cuts, lambda cut: cut.last - cut.start, BUDGET):
        told(0)
        rows = [asked.framed.read(np.arange(cut.start, cut.last))[0].tolist() for cut in some]
        kept = [
            (row, place) for row, cut in enumerate(some) for place in range(cut.first - cut.start, cut.last - cut.start)
        ]
        found = foreseen(asked, rows, kept)
        done = 0
        for cut in some:
            size = cut.last - cut.first
            yield cut.first, cut.last, found[done : done + size]
            done += size
        told(len(found))


@torch.inference_mode()
def foreseen(asked: Asked, rows: Sequence[Sequence[int]], kept: Sequence[tuple[int, int]]) -> NDArray[Any]:
    """What comes after these places of some rows: the mean of what the teachers say."""
    hidden = []
    for teacher in asked.teachers:
        ragged = Ragged.of([list(row) for row in rows], teacher.device)
        starts = ragged.rows.starts.tolist()
        at = torch.tensor([starts[row] + place for row, place in kept], device=teacher.device)
        hidden.append(teacher.network(ragged.tokens, ragged.rows)[at])
    found = np.empty(len(kept), dtype=asked.kind)
    most = max(1, SCORES // asked.vocabulary)
    for first in range(0, len(kept), most):
        some = slice(first, first + most)
        said = [
            (in_full(_words(teacher, states[some], asked.vocabulary)) / asked.temperature).log_softmax(-1)
            for teacher, states in zip(asked.teachers, hidden, strict=True)
        ]
        logs = said[0] if len(said) == 1 else torch.stack(said).logsumexp(0) - float(np.log(len(said)))
        words, chances, rest = shortened(logs, found["words"].shape[1])
        found["words"][some] = words.cpu().numpy()
        found["chances"][some] = chances.cpu().numpy()
        found["rest"][some] = rest.cpu().numpy()
    return found


def _words(teacher: LoadedModel, states: Tensor, vocabulary: int) -> Tensor:
    network: Any = teacher.network
    with unseen_in_words(teacher):
        return network.words(states)[:, :vocabulary]  # some tables are longer than their vocabulary


def shortened(logs: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """n V -> n k, n k, n: the likeliest words, the logarithms of their chances, and the chance of all others."""
    best = logs.topk(k)
    rest = torch.zeros_like(best.values[:, 0])
    if k < logs.shape[1]:
        rest = (1 - best.values.double().exp().sum(-1)).clamp(0, 1).to(logs.dtype)
    # A word of no chance at all, of a model that counts, has none in half precision either.
    return best.indices, best.values.clamp_min(-60000.0), rest


# ------------------------------------------------------------------------------------------------ what a student reads


@dataclass(frozen=True)
class Foreseen:
    """Packed rows that know at which places of the text they stand."""

    rows: Packed

    @property
    def count(self) -> int:
        return self.rows.count

    @property
    def mean(self) -> float:
        return self.rows.mean

    @property
    def even(self) -> bool:
        return self.rows.even

    def lengths(self, numbers: Places) -> Places:
        return self.rows.lengths(numbers)

    def draw(self, epochs: Places, numbers: Places) -> Drawn:
        return replace(self.rows.draw(epochs, numbers), examples=self.rows.places(epochs, numbers)[0])


@dataclass(frozen=True)
class Prepared:
    """Each token is to say the next, as the teachers foresee it where that is known."""

    known: Forecasts

    def __call__(self, drawn: Drawn) -> Batch:
        batch = shift(replace(drawn, examples=None))
        if drawn.examples is None:  # held-out text
            return batch
        keep = np.ones(len(drawn.tokens), dtype=bool)
        keep[drawn.starts[1:] - 1] = False
        said = self.known.take(drawn.examples[keep])
        taught = {
            WORDS: torch.from_numpy(said["words"].astype(np.int64)),
            CHANCES: torch.from_numpy(said["chances"].astype(np.float32)),
            REST: torch.from_numpy(np.ascontiguousarray(said["rest"])),
        }
        return replace(batch, targets={**batch.targets, **taught})
