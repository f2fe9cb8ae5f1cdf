"""What models cost on this machine, measured in turns: size, latency, texts a second, memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from weft.checkpoint.families import measure as outlined
from weft.child import start_child
from weft.errors import refuse, shown
from weft.files import peak_memory
from weft.tasks.model import Model, load
from weft.timing import nearest_rank, turns

LONGEST = 24 * 60 * 60  # seconds of a measure of time
SECONDS = 20.0  # that each model may take for each measure
TEXTS = 256  # that are timed, at most
ROUNDS = 5  # of texts in bulk
WARM = 3  # answers that are not timed
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
    """How the costs of several models were measured."""

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


def measure(
    models: Sequence[Model],
    inputs: Sequence[Any],
    folders: Sequence[Path | None] = (),
    memory: bool = True,
    texts: int = TEXTS,
    seconds: float = SECONDS,
) -> tuple[Measured, list[Costs]]:
    """Measure models that answer the same inputs; of those that have a folder also its size and the memory."""
    refuse(
        (not models or not inputs, "nothing to measure: there is no model, or no text"),
        (texts < 1, f"texts must be at least 1, not {shown(str(texts))}"),
        (not 0 < seconds <= LONGEST, f"seconds must be above 0 and at most {LONGEST}, not {seconds:g}"),
    )
    chosen = evenly(inputs, texts)
    asked = {str(n): timing_inputs(model, chosen) for n, model in enumerate(models)}
    settle = torch.cuda.synchronize if models[0].opened.device.type == "cuda" else lambda: None

    def call(name: str, place: int | slice) -> Any:
        model = models[int(name)]
        return model(asked[name][place], **model.task_object.timing_options)  # from texts to answers

    few = min(5, len(chosen))
    limits: dict[str, Any] = {"seconds": seconds, "settle": settle}
    single = turns({name: partial(call, name) for name in asked}, len(chosen), least=few, warm=WARM, **limits)
    slowest = max(nearest_rank(times, 0.5) for times in single.values())
    bulk = min(len(chosen), max(8, int(seconds / (ROUNDS * slowest))))
    together = {name: lambda _, name=name: call(name, slice(bulk)) for name in asked}
    many = turns(together, ROUNDS, warm=1, **limits)
    costs = [
        Costs(
            bytes=None if folder is None else weight_bytes(folder),
            parameters=parameters_of(model),
            p50=1000 * nearest_rank(single[name], 0.5),
            p95=1000 * nearest_rank(single[name], 0.95),
            per_second=bulk / nearest_rank(many[name], 0.5),
            memory=memory_of(folder, model, chosen[:REMEMBERED]) if memory and folder is not None else None,
        )
        for name, model, folder in zip(asked, models, folders or [None] * len(models), strict=True)
    ]
    device, threads = str(models[0].opened.device), torch.get_num_threads()
    return Measured(len(single["0"]), bulk, len(many["0"]), device, threads), costs


def timing_inputs(model: Model, inputs: Sequence[Any]) -> list[Any]:
    """The inputs, texts or tuples of them, as calls of a model take them."""
    task, tokenizer = model.task_object, model.tokenizer
    return [task.sample_input((each,) if isinstance(each, str) else each, tokenizer) for each in inputs]


def total_costs(costs: Sequence[Costs | None]) -> Costs | None:
    """What it costs to ask several models, one after the other."""
    known = [each for each in costs if each is not None]
    if len(known) < len(costs):
        return None

    def total(name: str) -> int | None:
        numbers = [vars(each)[name] for each in known]
        return None if None in numbers else sum(numbers)

    p50, p95 = sum(each.p50 for each in known), sum(each.p95 for each in known)
    return Costs(total("bytes"), total("parameters"), p50, p95, 1 / sum(1 / each.per_second for each in known), None)


def evenly(items: Sequence[Any], limit: int) -> list[Any]:
    """At most so many, evenly from all of them."""
    count = min(limit, len(items))
    return [items[number * len(items) // count] for number in range(count)]


def weight_bytes(folder: Path) -> int:
    """The bytes of the files that hold the weights, whatever engine they are for; those of words are left out."""
    sizes = []
    for path in folder.iterdir():
        if path.name not in ASIDE and not path.name.startswith(".") and path.suffix not in WORDY:
            sizes += [each.stat().st_size for each in (path, *path.rglob("*")) if each.is_file()]
    return sum(sizes)


def parameters_of(model: Model) -> int | None:
    """How many parameters a model has: by its config where another engine runs it; entries, where it has counted."""
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
    device, threads = str(model.opened.device), torch.get_num_threads()
    task = {"folder": str(folder.resolve()), "task": model.task, "device": device, "threads": threads}
    task["inputs"] = list(inputs)
    return peak_of_child("from weft.comparison.cost import alone; alone()", task)


def peak_of_child(code: str, given: dict[str, Any]) -> int | None:
    """Bytes that a new Python prints, which runs this code and reads `given` as JSON; None where it fails."""
    pipe = subprocess.PIPE
    try:
        with start_child(code, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as child:
            try:
                output, _ = child.communicate(json.dumps(given).encode(), timeout=PATIENCE)
            except BaseException:
                child.kill()
                raise
        return int(output.split()[-1]) if not child.returncode else None
    except (subprocess.TimeoutExpired, OSError, ValueError, IndexError):
        return None


def alone() -> None:
    """In a process of its own: load a model, answer, and say how much memory that took."""
    task = json.loads(sys.stdin.buffer.read())
    torch.set_num_threads(task["threads"])
    # The process that asks has checked the folder.
    model = load(task["folder"], task=task["task"], device=task["device"], trust=True)
    inputs = timing_inputs(model, task["inputs"])
    for asked in (inputs[0], inputs):
        model(asked, **model.task_object.timing_options)
    print(torch.cuda.max_memory_allocated() if model.opened.device.type == "cuda" else peak_memory())
