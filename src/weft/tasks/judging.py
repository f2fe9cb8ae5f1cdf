"""A model judged on somebody's data, streaming: scores with intervals, tables, and the worst mistakes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from weft.checkpoint.folder import LoadedModel
from weft.errors import UserError
from weft.metrics.bootstrap import Score
from weft.metrics.worst_rows import WorstRows
from weft.tasks.base import Example, Prediction, Task
from weft.tasks.forward import chunked
from weft.text.windows import Framing


@dataclass
class Reading:
    """How much was read."""

    examples: int = 0
    tokens: int = 0
    windows: int = 0
    in_windows: int = 0  # texts that took more than one
    truncated: int = 0

    def add(self, found: Prediction) -> None:
        self.examples += 1
        self.tokens += found.n_tokens
        self.windows += found.n_windows
        self.in_windows += found.n_windows > 1
        self.truncated += found.truncated

    def __str__(self) -> str:
        cut = f"{self.truncated:,} texts were cut" if self.truncated else "nothing was cut"
        return (
            f"{self.examples:,} examples, {self.tokens:,} tokens in {self.windows:,} windows "
            f"({self.in_windows:,} took more than one); {cut}"
        )


@dataclass(frozen=True)
class Judgement:
    """What came of it."""

    task: Task  # with what was tuned
    scores: dict[str, Score]
    metrics: Any  # whose tables say more
    worst: list[dict[str, str]]
    reading: Reading


def judged(
    task: Task,
    opened: LoadedModel,
    framing: Framing,
    examples: Iterable[Example],
    tune: bool = False,
    progress: Callable[[int], None] = lambda more: None,
) -> Judgement:
    """Judge a model; with `tune`, thresholds are first chosen on these very examples, which are then all held."""
    reading, worst = Reading(), WorstRows(10)
    held: list[tuple[list[Prediction], list[Example]]] = []
    metrics: Any = None
    for some in chunked(examples, lambda example: sum(map(len, example.texts))):
        found = task.predict(opened, framing, [task.inputs(example) for example in some])
        progress(len(some))
        for each in found:
            reading.add(each)
        if tune:
            held.append((found, some))
            continue
        metrics = metrics or task.metrics()
        _add(task, metrics, worst, found, some)
    if tune and held:
        task = task.tune([each for found, _ in held for each in found], [each for _, some in held for each in some])
        metrics = task.metrics()
        for found, some in held:
            _add(task, metrics, worst, found, some)
    if metrics is None:
        raise UserError("there are no rows to judge by")
    return Judgement(task, metrics.result(), metrics, worst.rows(), reading)


def _add(task: Task, metrics: Any, worst: WorstRows, found: list[Prediction], some: list[Example]) -> None:
    task.add(metrics, found, some)
    for each, example in zip(found, some, strict=True):
        mistake = task.mistake(each, example)
        if mistake is not None:
            worst.add(*mistake)
