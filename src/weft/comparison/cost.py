"""What models cost on this machine, in one run in which they take turns: size, latency, texts a second, memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from weft.checkpoint.outline import measure as outlined
from weft.child import start_child
from weft.errors import UserError, shown
from weft.files import peak_memory
from weft.tasks.model import Model, load
from weft.timing import nearest_rank, turns

LONGEST = 24 * 60 * 60  # seconds of a measure of time
SECONDS = 20.0  # that each model may take for each measure
TEXTS = 256  # that are timed, at most
ROUNDS = 5  # of texts in bulk
WARM = 3  # answers that are not timed
WORDS = 32  # that a language model writes where its speed is measured
LETTERS = 400  # of a text that it goes on from
REMEMBERED = 32  # texts that are answered where memory is measured
PATIENCE = 600.0  # seconds for that
# What lies in a model folder beside its weights: words, not numbers.
WORDY = {".json", ".txt", ".md", ".model", ".spm", ".bpe", ".toml", ".html", ".jsonl"}
ASIDE = {"run", "1_Pooling", "target_tokenizer"}


@dataclass(frozen=True)
class Costs:
    """What one model costs; None where it is not known."""

    bytes: int | None  # of the files that hold the weights
    parameters: int | None
    p50: float  # milliseconds of one text, from its letters to the answer
    p95: float
    per_second: float  # texts, given in one list
    memory: int | None  # the most that a process of its own held, which loads the model and answers


@dataclass(frozen=True)
class Measured:
    """The costs of several models, and how they were measured."""

    costs: tuple[Costs, ...]
    texts: int  # timed one by one
    bulk: int  # timed together
    rounds: int
    device: str
    threads: int

    def __str__(self) -> str:
        where = f"{self.threads} CPU thread{'s' * (self.threads != 1)}" if self.device == "cpu" else self.device
        return (
            f"On {where}, all models in turns: {self.texts:,} texts one by one (p50, p95: from letters to answer), "
            f"then {self.bulk:,} in one list, {self.rounds} times (texts/s: the median). Memory: the most that a "
            "process of its own held, which loads the model and answers."
        )

    def values(self) -> dict[str, Any]:
        """As JSON has it, without the costs."""
        return {name: value for name, value in asdict(self).items() if name != "costs"}


def measure(
    models: Sequence[Model],
    inputs: Sequence[Any],
    folders: Sequence[str | os.PathLike[str] | None] = (),
    *,
    seconds: float = SECONDS,
    texts: int = TEXTS,
    memory: bool = True,
) -> Measured:
    """Measure models that answer the same inputs; of those that have a folder also its size and the memory."""
    if not models or not inputs:
        raise UserError("nothing to measure: there is no model, or no text")
    if texts < 1:
        raise UserError(f"texts must be at least 1, not {shown(str(texts))}")
    if not 0 < seconds <= LONGEST:
        raise UserError(f"seconds must be above 0 and at most {LONGEST}, not {seconds:g}")
    places = [None if folder is None else Path(folder) for folder in (folders or [None] * len(models))]
    some = evenly([asked(models[0], each) for each in inputs], texts)
    kind = models[0].opened.device.type

    def settle() -> None:
        if kind == "cuda":
            torch.cuda.synchronize()

    numbers = range(len(models))
    single = turns(
        {str(n): lambda turn, n=n: answered(models[n], some[turn]) for n in numbers},  # type: ignore[misc]
        len(some),
        seconds=seconds,
        least=min(5, len(some)),
        warm=WARM,
        settle=settle,
    )
    slowest = max(nearest_rank(times, 0.5) for times in single.values())
    bulk = some[: max(8, min(len(some), int(seconds / (ROUNDS * slowest))))]
    many = turns(
        {str(n): lambda _, n=n: answered(models[n], bulk) for n in numbers},  # type: ignore[misc]
        ROUNDS,
        seconds=seconds,
        warm=1,
        settle=settle,
    )
    found = []
    for n, (model, place) in enumerate(zip(models, places, strict=True)):
        own, together = single[str(n)], nearest_rank(many[str(n)], 0.5)
        found.append(
            Costs(
                bytes=None if place is None else weight_bytes(place),
                parameters=parameters_of(model),
                p50=1000 * nearest_rank(own, 0.5),
                p95=1000 * nearest_rank(own, 0.95),
                per_second=len(bulk) / together,
                memory=memory_of(place, model, some[:REMEMBERED]) if memory and place is not None else None,
            )
        )
    device = str(models[0].opened.device)
    return Measured(tuple(found), len(single["0"]), len(bulk), len(many["0"]), device, torch.get_num_threads())


def asked(model: Model, given: Any) -> Any:
    """One input as a call of a model takes it; of a text to go on from, the beginning."""
    if model.task_object.pair:
        return tuple(given)
    text = given if isinstance(given, str) else given[0]
    return text[:LETTERS] if model.task == "complete" else text


def answered(model: Model, given: Any) -> Any:
    """What is timed: the whole way from letters to the answer."""
    if model.task == "fill":  # the last word of each text is asked for
        mask = model.tokenizer.roles.mask if model.tokenizer is not None else None
        given = [_gapped(each, mask) for each in given] if isinstance(given, list) else _gapped(given, mask)
    if model.task == "complete":  # as many words of each model: one that ends early is no faster
        return model(given, max_tokens=WORDS, min_tokens=WORDS)
    return model(given)


def _gapped(text: str, mask: str | None) -> str:
    return f"{text.rpartition(' ')[0]} {mask}"


def evenly(items: Sequence[Any], most: int) -> list[Any]:
    """So many at most, evenly from all of them."""
    count = min(most, len(items))
    return [items[number * len(items) // count] for number in range(count)]


def weight_bytes(folder: Path) -> int:
    """The bytes of the files that hold the weights, whatever engine they are for; those of words are left out."""
    total = 0
    for path in folder.iterdir():
        if path.name in ASIDE or path.name.startswith("."):
            continue
        if path.is_dir():
            total += sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
        elif path.suffix not in WORDY:
            total += path.stat().st_size
    return total


def parameters_of(model: Model) -> int | None:
    """How many numbers a model has learned; of one that another engine runs, as its config says; of counts, entries."""
    opened = model.opened
    if opened.card.backend in (None, "torch"):
        weights = sum(parameter.numel() for parameter in opened.network.parameters())
        return weights or sum(opened.config.entries) or None
    try:
        return outlined(opened.family, opened.config, opened.heads).parameters
    except (RuntimeError, TypeError, ValueError, AttributeError, KeyError):
        return None  # an engine of something that no config describes


def memory_of(folder: Path, model: Model, inputs: Sequence[Any]) -> int | None:
    """The most bytes that a process of its own holds while it loads a model and answers; None where nobody tells."""
    if peak_memory() is None and model.opened.device.type != "cuda":
        return None
    told = {
        "folder": str(folder.resolve()),
        "task": model.task,
        "device": str(model.opened.device),
        "threads": torch.get_num_threads(),
        "inputs": list(inputs),
    }
    code, pipe = "from weft.comparison.cost import alone; alone()", subprocess.PIPE
    try:
        with start_child(code, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as child:
            try:
                output, _ = child.communicate(json.dumps(told).encode(), timeout=PATIENCE)
            except BaseException:
                child.kill()
                raise
        return int(output.split()[-1]) if not child.returncode else None
    except (subprocess.TimeoutExpired, OSError, ValueError, IndexError):
        return None


def alone() -> None:
    """In a process of its own: load a model, answer, and say how much memory that took."""
    told = json.loads(sys.stdin.buffer.read())
    torch.set_num_threads(told["threads"])
    # The process that asks has checked the folder.
    model = load(told["folder"], task=told["task"], device=told["device"], trust=True)
    inputs = [asked(model, each) for each in told["inputs"]]
    answered(model, inputs[0])
    answered(model, inputs)
    cuda = model.opened.device.type == "cuda"
    print(torch.cuda.max_memory_allocated() if cuda else peak_memory())
