"""One model while it is compared with others: its predictions, what is counted of them, and what may be wrong."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weft.comparison.comparison import LESS
from weft.errors import NotFinite
from weft.metrics.bootstrap import Replicates
from weft.metrics.worst_rows import WorstRows
from weft.tasks.base import Example, Prediction, Task
from weft.tasks.forward import evaluating, framing_for
from weft.tasks.model import Model

MAX_SHOWN = 10  # texts that are shown where two models disagree most
TENTH = 0.1  # of the first model's metric: a model that generates and keeps less is damaged
MIN_ROWS = 20  # answers, of which not all should be the same
ROUNDING = 1e-6  # a smaller difference is none
NOT_FINITE = "its outputs are not numbers (NaN or infinite)"


@dataclass
class Participant:
    """One model while it is compared."""

    name: str
    model: Model
    folder: Path | None
    own: Task  # as the model has it
    task: Task  # with the labels of all models, in one order
    members: tuple[Participant, ...] = ()  # of an ensemble: the models that it consists of
    metrics: Any = None
    agreement: Any = None
    worst: WorstRows = field(
        default_factory=lambda: WorstRows(20 * MAX_SHOWN)
    )  # the same text may come again and again
    keys: set[Hashable] = field(default_factory=set)  # a few of its answers: two are enough to tell that they differ
    target_counts: Counter[Hashable] = field(default_factory=Counter)
    labeled: int = 0
    damaged: str | None = None
    sampled: dict[str, Replicates] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.agreement = self.task.agreement()

    @property
    def averages(self) -> bool:
        """Whether its predictions are the mean of those of its members."""
        return bool(self.members) and self.task.averages

    @property
    def chance_level(self) -> float:
        return self.task.chance_level(self.target_counts, self.labeled)

    def break_off(self) -> None:
        """Its outputs are not numbers: nothing more is asked of it."""
        self.damaged, self.metrics, self.agreement = NOT_FINITE, None, None

    def predict(self, examples: Sequence[Example]) -> list[Prediction] | None:
        """A prediction for each example; None of a model whose outputs are not numbers."""
        if self.damaged == NOT_FINITE:
            return None
        opened, inputs = self.model.opened, [self.own.inputs(each) for each in examples]
        try:
            with evaluating(opened.network):
                predictions = self.own.predict(opened, framing_for(opened), inputs)
        except NotFinite:
            predictions = None
        if predictions is None or not all(map(self.own.is_finite, predictions)):
            self.break_off()
            return None
        return [self.task.reorder(each, self.own.labels) for each in predictions]

    def average(self, predictions: Sequence[list[Prediction] | None]) -> list[Prediction] | None:
        """The mean of what its members predict."""
        known = [each for each in predictions if each is not None]
        if len(known) < len(predictions):
            self.break_off()
            return None
        tasks = [member.task for member in self.members]
        return [self.task.mean_prediction(each, tasks) for each in zip(*known, strict=True)]

    def evaluate(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> None:
        """Add predictions of examples with targets to the metrics."""
        self.labeled += len(examples)
        self.target_counts.update(part for example in examples for part in self.task.target_parts(example))
        self.metrics = self.metrics or self.task.metrics()
        self.task.add(self.metrics, predictions, examples)

    def compare(
        self,
        first: Participant,
        predictions: Sequence[Prediction],
        references: Sequence[Prediction],
        examples: Sequence[Example],
    ) -> None:
        """Count where it agrees with the first model, and keep where it does so least."""
        task = self.task
        for prediction, reference, example in zip(predictions, references, examples, strict=True):
            task.agree(self.agreement, prediction, reference, example, first.task)
            distance = task.distance(prediction, reference, example, first.task)
            if not distance > ROUNDING:
                continue
            row = {
                "target": task.describe_target(example) if task.has_target(example) else "",
                first.name: first.task.describe(reference, prediction, example),
                self.name: task.describe(prediction, reference, example),
                "where": example.where,
                "text": " | ".join(example.texts),
            }
            self.worst.add(distance, row)

    def disagreements(self) -> list[dict[str, str]]:
        """The rows where it agrees least, each text once; a column that is empty is left out."""
        rows = list({row["text"]: row for row in reversed(self.worst.rows())}.values())[::-1][:MAX_SHOWN]
        return [{name: cell for name, cell in row.items() if any(each[name] for each in rows)} for row in rows]


def fault(model: Participant, first: Participant, varied: bool, rows: int) -> str | None:
    """Why a model cannot be used, as far as these rows show it; `varied`: their targets differ."""
    other = model is not first and len(first.keys) > 1
    if rows >= MIN_ROWS and len(model.keys) == 1 and (varied or other):
        return f"it gives all {rows:,} texts the same answer"
    if not model.sampled or not first.sampled:
        return None
    name, level, metric = model.task.chance_metric, model.chance_level, model.task.default_metric
    if name is None:
        if model is first:
            return None
        kept = model.sampled[metric].over(first.sampled[metric])
        few = math.isfinite(kept.high) and kept.high < TENTH
        return f"it keeps {100 * kept.value:.1f} % of the {metric} of {first.name}" if few else None
    score = model.sampled[name].score()
    if name in LESS:
        return f"its {name} of {score.value:.2f} is no better than {level:g}" if score.low >= level else None
    if model is first:  # nothing stands beside it, so it must be worse than chance, not just no better
        worse = rows >= 2 * MIN_ROWS and score.high < level  # of few rows it may be bad luck
        return f"its {name} of {score.value:.3f} is worse than chance, {level:.3f}" if worse else None
    reference = first.sampled[name]
    if score.low <= level < reference.score().low and model.sampled[name].minus(reference).high < 0:
        return f"its {name} of {score.value:.3f} is no better than chance, {level:.3f}"
    return None


def below_card(model: Participant, hash: str) -> str | None:
    """The metric that a model's own card has for these very rows, where it no longer reaches it."""
    name = model.task.default_metric
    if not hash or name in LESS or name not in model.sampled or model.task.writes:  # writers: of a sample
        return None
    value = model.sampled[name].score().value
    for metric in model.model.card.metrics:
        if metric.data == hash and metric.name == name and metric.low is not None and value < metric.low:
            return f"its {name} of {value:.3f} is not the {metric.value:.3f} that its card has for the same rows"
    return None
