"""Which model of a run is kept: its metrics on the held-out examples, and what the best is saved with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from weft.checkpoint.card import Metric
from weft.checkpoint.folder import LoadedModel
from weft.metrics.bootstrap import Score
from weft.tasks.base import Example, Task
from weft.tasks.evaluate import EvaluationResult, evaluate_examples, evaluation_of
from weft.text.windows import Framing
from weft.training.run import Run
from weft.training.setup import HeldOutMetrics

Scores = Mapping[str, Score]


@dataclass
class Selection:
    """The model of a task in training, judged by held-out examples and saved where it is the best."""

    run: Run
    task: Task
    model: LoadedModel
    framing: Framing
    examples: Sequence[Example]
    metric: str  # which decides
    data: str  # hash of the examples
    scores: Callable[[Scores], Scores] = dict  # which metrics are kept, and under which names
    name: str | None = None  # of the task, where an evaluation page is written
    last: EvaluationResult | None = None
    best: EvaluationResult | None = None

    def evaluate(self) -> HeldOutMetrics:
        """The metrics of the model as it is, with thresholds tuned on the same examples."""
        self.last = evaluate_examples(self.task, self.model, self.framing, self.task.sample(self.examples), tune=True)
        return HeldOutMetrics({n: score.value for n, score in self.scores(self.last.scores).items()}, self.metric)

    def save(self, model: LoadedModel, losses: Mapping[str, float]) -> None:
        """Save the model with its metrics, in place of the best before it."""
        task = self.task if self.last is None else self.last.task
        scores = {} if self.last is None else self.scores(self.last.scores)
        metrics = tuple(
            Metric(data=self.data, name=n, value=s.value, low=s.low, high=s.high) for n, s in scores.items()
        )
        if self.metric == "loss" and "loss" in losses:
            metrics = (Metric(data=self.data, name="loss", value=losses["loss"]),)
        with task.saving(model.network):
            self.run.save_model(replace(model, card=task.to_card(model.card)), metrics)
        self.best = self.last
        if self.last is not None and self.name is not None:
            evaluation_of(self.last, self.name, "held-out rows", self.data).save(self.run.evaluation)
