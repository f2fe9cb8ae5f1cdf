"""The number of held-out rows for which a run generates text, so that evaluations stay a small share of its time.

It is decided once, before the first evaluation, from the time that a few rows take. All evaluations then generate text
for the same rows, so that their scores can be compared. If the share does not allow `FEWEST` rows each time, the first
evaluations report only the loss, and only the later ones choose the best model.
"""

from __future__ import annotations

import time

from weft.training.log import RunLog
from weft.training.run import State
from weft.training.step import HeldOutMetrics, Setup

FEWEST = 100  # rows, if there are as many: the score of fewer is too noisy
TRIED = 50  # rows for measuring how long one takes
CHOICES = 2  # last evaluations, which generate text however long that takes
ALLOWED = 5.0  # seconds that all evaluations of a run may take, however short the run is


class EvaluationShare:
    """The metrics of a task during a run."""

    def __init__(self, setup: Setup, state: State, log: RunLog) -> None:
        self.setup, self.state, self.log = setup, state, log

    def metrics(self, seconds: float, loss: float) -> HeldOutMetrics | None:
        """The metrics of the model now; None if the task has none besides the loss.

        `seconds`: of training so far; `loss`: seconds that the held-out loss of this evaluation took.
        """
        s, state = self.setup, self.state
        if s.evaluate is None:
            return None
        if not s.generated or s.plan.evaluation_share == 1 or not state.step:
            return s.evaluate(None)
        if state.evaluated_rows is None:
            begin = time.perf_counter()
            tried = min(s.generated, TRIED)
            metrics = s.evaluate(tried)
            spent = time.perf_counter() - begin
            state.evaluated_rows, state.evaluated_from = self._planned(seconds, loss, tried, spent)
            if tried == state.evaluated_rows and state.step >= state.evaluated_from:
                return metrics
        if state.step < state.evaluated_from:
            return HeldOutMetrics({}, "postponed")
        return s.evaluate(state.evaluated_rows)

    def _planned(self, seconds: float, loss: float, tried: int, spent: float) -> tuple[int, int]:
        """The rows of each evaluation, and the step of the first evaluation that generates text."""
        s, state, whole = self.setup, self.state, self.setup.generated
        left = [step for step in range(state.step, s.steps + 1) if s.due(s.plan.evaluate_every, step)]
        budget = max(ALLOWED, s.plan.evaluation_share * seconds / state.step * s.steps - loss * len(left))
        already = 0 if tried == whole else spent  # if all rows were tried, that was the first evaluation
        rows = int((budget - already) / (spent / tried) / len(left))  # per evaluation
        fewest = min(whole, FEWEST)
        if rows >= whole:
            return whole, 0
        share = f"{100 * s.plan.evaluation_share:g} % of the run"
        if rows >= fewest:
            self.log.line(f"evaluations generate {rows:,} of {whole:,} held-out rows, so that they take {share}")
            return rows, 0
        fitting = int((budget - already) / (spent / tried) / fewest)
        count = min(len(left), max(CHOICES, fitting))
        of = f"the last {count} of {len(left)} evaluations" if count < len(left) else "evaluations"
        aim = f"so that they take {share}" if fitting >= count else f"and take more than {share}"
        self.log.line(f"{of} generate {fewest:,} of {whole:,} held-out rows, {aim}")
        return fewest, left[-count]
