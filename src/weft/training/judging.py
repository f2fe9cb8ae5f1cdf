"""A run is judged by what was held out: losses, a task's own scores, and which model is kept as the best."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from weft.data.batching import every_example
from weft.data.streams import Streams
from weft.errors import UserError
from weft.objectives.carrying import CarriedToken
from weft.training.log import RunLog
from weft.training.optim import Mean
from weft.training.passes import autocast
from weft.training.setup import Setup, Verdict
from weft.training.signals import Stop
from weft.training.state import State


def total(counts: Any) -> dict[str, int]:
    """Counts of several batches added up by name."""
    found: dict[str, int] = {}
    for some in counts:
        for name, count in some.items():
            found[name] = found.get(name, 0) + count
    return found


def evaluated(s: Setup, budget: int, mean: Mean | None, stop: Stop) -> tuple[dict[str, float], Verdict | None]:
    """An evaluation, in smaller batches where memory runs out: it has no compiler to spare memory for it."""
    while True:
        try:
            return evaluate(s, budget, mean, stop)
        except torch.OutOfMemoryError:
            if budget <= s.held_out.mean:  # type: ignore[union-attr]
                raise UserError("the GPU's memory is too small to evaluate one row; try a smaller length") from None
            torch.cuda.empty_cache()
            budget //= 2


def evaluate(s: Setup, budget: int, mean: Mean | None, stop: Stop) -> tuple[dict[str, float], Verdict | None]:
    """The mean loss of each kind over all held-out text, batch by batch, and what the task says of the model."""
    assert s.held_out is not None
    counts: dict[str, int] = {}
    totals: dict[str, Tensor] = {}
    objective = s.objective
    if isinstance(objective, CarriedToken) and isinstance(s.held_out, Streams):
        objective = objective.anew(s.network, s.held_out.streams)
    if mean is not None:
        mean.swap()
    s.network.eval()
    try:
        # Never compiled: it is a small part of the work, and would be compiled for itself.
        with torch.no_grad(), autocast(s.device, s.precision):
            for batch in every_example(s.held_out, s.feed.prepare, budget):
                stop.check("during the evaluation")
                counts = total([counts, objective.counts(batch)])
                for name, value in objective.sums(s.network, batch.to(s.device)).items():
                    totals[name] = totals.get(name, 0) + value.double()
            verdict = s.judge() if s.judge is not None else None
    finally:
        s.network.train()
        if mean is not None:
            mean.swap()
    return {name: float(totals[name]) / max(1, counts[name]) for name in totals}, verdict


def keep(mean: Mean | None, keep_best: Callable[[dict[str, float]], None], found: dict[str, float]) -> None:
    if mean is not None:
        mean.swap()
    try:
        keep_best(found)
    finally:
        if mean is not None:
            mean.swap()


def judge(
    state: State,
    found: dict[str, float],
    verdict: Verdict | None,
    log: RunLog,
    keep_best: Callable[[dict[str, float]], None],
) -> None:
    """Note an evaluation, and keep the model where it is the best so far."""
    loss = sum(found.values())
    measure = loss if verdict is None else -verdict.scores[verdict.chosen]
    tied = verdict is not None and measure == state.best and state.best_loss is not None and loss < state.best_loss
    better = math.isfinite(measure) and (state.best is None or measure < state.best or tied)
    scores = dict(verdict.scores) if verdict is not None else {}
    said = {f"validation_{name}": value for name, value in {**found, **scores}.items()}
    log.record({"step": state.step, "validation_loss": loss, **said, "tokens": state.tokens})
    parts = ", ".join(f"{name} {value:.4f}" for name, value in found.items()) if len(found) > 1 else ""
    words = f", perplexity {math.exp(min(found['words'], 99)):.2f}" if "words" in found else ""
    words += "".join(f", {name} {value:.4f}" for name, value in scores.items())
    sign = 1 if verdict is None else -1
    before = "" if state.best is None else f"best {sign * state.best:.4f} at {state.best_step}"
    log.line(
        f"step {state.step:,}: held-out loss {loss:.4f}{f' ({parts})' if parts else ''}{words}; "
        f"{'best' if better else before}"
    )
    if better:
        keep_best({"loss": loss, **(found if len(found) > 1 else {}), **scores})
        state.best, state.best_loss, state.best_step, state.worse = measure, loss, state.step, 0
    else:
        state.worse += 1
    state.evaluated = state.step
