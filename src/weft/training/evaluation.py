"""Evaluation on held-out data: losses, a task's own metrics, and which model is kept as the best."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from weft.data.batching import every_example
from weft.errors import UserError
from weft.training.log import RunLog
from weft.training.optim import Mean, averaged
from weft.training.setup import HeldOutMetrics, Setup
from weft.training.signals import Stop
from weft.training.state import State
from weft.training.step import autocast, total

Results = tuple[dict[str, float], HeldOutMetrics | None]


def evaluate(s: Setup, budget: int, mean: Mean | None, stop: Stop) -> Results:
    """The mean loss of each kind over all held-out data, and the task's metrics; in smaller batches if need be."""
    assert s.held_out is not None
    while True:
        counts: dict[str, int] = {}
        sums: dict[str, Tensor] = {}
        objective = s.objective.for_evaluation(s.network, s.held_out)
        s.network.eval()
        try:
            # Never compiled: it is a small part of the work, and would be compiled for itself.
            with averaged(mean), torch.no_grad(), autocast(s.device, s.precision):
                for batch in every_example(s.held_out, s.feed.prepare, budget):
                    stop.check("during the evaluation")
                    counts = total([counts, objective.counts(batch)])
                    for name, value in objective.sums(s.network, batch.to(s.device)).items():
                        sums[name] = sums.get(name, 0) + value.double()
                metrics = s.evaluate() if s.evaluate is not None else None
            return {name: float(sums[name]) / max(1, counts[name]) for name in sums}, metrics
        except torch.OutOfMemoryError:
            if budget <= s.held_out.mean:
                raise UserError("the GPU's memory is too small to evaluate one row; try a smaller length") from None
            torch.cuda.empty_cache()
            budget //= 2
        finally:
            s.network.train()


def record_evaluation(
    state: State,
    losses: Mapping[str, float],
    metrics: HeldOutMetrics | None,
    log: RunLog,
    save_best: Callable[[dict[str, float]], None],
) -> None:
    """Note an evaluation, and keep the model where it is the best so far."""
    loss = sum(losses.values())
    values = dict(metrics.values) if metrics is not None else {}
    measure = loss if metrics is None else -values[metrics.deciding]
    tied = metrics is not None and measure == state.best and state.best_loss is not None and loss < state.best_loss
    better = math.isfinite(measure) and (state.best is None or measure < state.best or tied)
    by_name = {f"validation_{name}": value for name, value in {**losses, **values}.items()}
    log.record({"step": state.step, "validation_loss": loss, **by_name, "tokens": state.tokens})
    line = f"step {state.step:,}: held-out loss {loss:.4f}"
    if len(losses) > 1:
        line += f" ({', '.join(f'{name} {value:.4f}' for name, value in losses.items())})"
    if "words" in losses:
        line += f", perplexity {math.exp(min(losses['words'], 99)):.2f}"
    line += "".join(f", {name} {value:.4f}" for name, value in values.items())
    sign = 1 if metrics is None else -1
    before = "" if state.best is None else f"best {sign * state.best:.4f} at {state.best_step}"
    log.line(f"{line}; {'best' if better else before}")
    if better:
        save_best({"loss": loss, **(losses if len(losses) > 1 else {}), **values})
        state.best, state.best_loss, state.best_step, state.worse = measure, loss, state.step, 0
    else:
        state.worse += 1
    state.evaluated = state.step
