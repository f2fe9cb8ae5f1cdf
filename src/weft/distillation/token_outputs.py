"""The next tokens that teachers predict at every place of a text, cached: later epochs and runs cost the student only.

An output belongs to the place in the text and not to the row that a student reads it in: the teacher reads the text
once, in long windows, and rows may be packed anew in every epoch.

k: tokens that are kept of an output; V: vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.budget import BUDGET, by_budget
from weft.data.masking import shift
from weft.data.rows import Drawn, Framed, PackedRows
from weft.data.shards import Places
from weft.distillation.teacher_cache import Teacher, TeacherReads, cached_shards
from weft.errors import UserError
from weft.files import reason, whole_file
from weft.nn.heads import in_full
from weft.nn.rows import Batch, Ragged
from weft.objectives.soft import LOGPROBS, REST, TOKENS
from weft.progress import Log
from weft.tasks.forward import unseen_in_words

FORMAT = 2
SHARD = 1 << 15  # places in a file
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
        return [FORMAT, SHARD, digests, part, self.vocabulary, self.temperature, self.top]


@dataclass(frozen=True)
class TokenOutputs:
    """The outputs for all places of a text, and how many places a teacher had to read for that."""

    shards: Sequence[NDArray[Any]]
    forwards: int

    def take(self, places: Places) -> NDArray[Any]:
        """The outputs at these places."""
        outputs = np.empty(len(places), dtype=self.shards[0].dtype)
        numbers = places // SHARD
        for number in np.unique(numbers):
            here = numbers == number
            outputs[here] = self.shards[number][places[here] - number * SHARD]
        return outputs


def token_outputs(
    request: TokenRequest,
    progress: Callable[[int], None] = lambda more: None,
    reads: TeacherReads | None = None,
    log: Log = lambda text: None,
) -> TokenOutputs:
    """The outputs of the teachers, from the cache or made now; `progress` gets numbers of places and may raise."""
    size = request.framed.size
    shards = [(f"forecasts-{number:05d}.npy", min(SHARD, size - number * SHARD)) for number in range(-(-size // SHARD))]
    source = "forecasts of " + ", ".join(str(teacher.folder) for teacher in request.teachers)
    paths, forwards = cached_shards(
        request.key,
        source,
        shards,
        lambda number, path: _write(path, request, number, progress),
        lambda: progress(0),
        reads or TeacherReads(),
        log,
    )
    return TokenOutputs([_read(path, request) for path in paths], forwards)


def _read(path: Path, request: TokenRequest) -> NDArray[Any]:
    try:
        outputs = np.load(path, mmap_mode="r")
        if outputs.dtype != request.dtype:
            raise ValueError("of another kind")
        return outputs
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: damaged ({reason(error)}); remove it and try again") from None


def _write(path: Path, request: TokenRequest, number: int, progress: Callable[[int], None]) -> None:
    """One shard, whole or absent."""
    begin = number * SHARD
    end = min(begin + SHARD, request.framed.size)
    shard = np.empty(end - begin, dtype=request.dtype)
    for first, last, outputs in _windows(request, begin, end, progress):
        shard[first - begin : last - begin] = outputs
    with whole_file(path) as file:
        np.save(file, shard)


def _windows(
    request: TokenRequest, begin: int, end: int, progress: Callable[[int], None]
) -> Iterator[tuple[int, int, NDArray[Any]]]:
    """The outputs for these places, window by window: first and last place, and the outputs."""
    configs = [teacher.model.config for teacher in request.teachers]
    length = min(min(config.context for config in configs), LONG)
    # Each place has at least half a window before it, or as much as its teacher looks back at.
    before = min(length // 2, max(length if config.reach is None else config.reach for config in configs))
    step = max(1, length - before)
    cuts = [(max(0, first - before), first, min(first + step, end)) for first in range(begin, end, step)]
    for batch in by_budget(cuts, lambda cut: cut[2] - cut[0], BUDGET):
        progress(0)
        rows = [request.framed.read(np.arange(start, last))[0].tolist() for start, _, last in batch]
        places = [
            (row, place)
            for row, (start, first, last) in enumerate(batch)
            for place in range(first - start, last - start)
        ]
        outputs, done = _outputs(request, rows, places), 0
        for _, first, last in batch:
            yield first, last, outputs[done : done + last - first]
            done += last - first
        progress(len(outputs))


@torch.inference_mode()
def _outputs(request: TokenRequest, rows: Sequence[list[int]], places: Sequence[tuple[int, int]]) -> NDArray[Any]:
    """The mean of what the teachers predict after these places of some rows."""
    hidden = []
    for teacher in request.teachers:
        ragged = Ragged.of(list(rows), teacher.model.device)
        starts = ragged.rows.starts.tolist()
        at = torch.tensor([starts[row] + place for row, place in places], device=teacher.model.device)
        hidden.append(teacher.model.network(ragged.tokens, ragged.rows)[at])
    outputs = np.empty(len(places), dtype=request.dtype)
    size = max(1, SCORES // request.vocabulary)
    for first in range(0, len(places), size):
        here = slice(first, first + size)
        each = [
            _logprobs(request, teacher, states[here]) for teacher, states in zip(request.teachers, hidden, strict=True)
        ]
        logprobs = each[0] if len(each) == 1 else torch.stack(each).logsumexp(0) - float(np.log(len(each)))
        tokens, kept, rest = shortened(logprobs, outputs["tokens"].shape[1])
        outputs["tokens"][here] = tokens.cpu().numpy()
        outputs["logprobs"][here] = kept.cpu().numpy()
        outputs["rest"][here] = rest.cpu().numpy()
    return outputs


def _logprobs(request: TokenRequest, teacher: Teacher, states: Tensor) -> Tensor:
    network: Any = teacher.model.network
    with unseen_in_words(teacher.model):
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


# ------------------------------------------------------------------------------------------------ what a student reads


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
