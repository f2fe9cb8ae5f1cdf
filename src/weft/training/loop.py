"""The loop: one plain function that trains any network on any objective, and can be broken off at any moment.

Each step's examples, masks and dropout follow from the seed and the step's number, so a run that goes on from a
checkpoint does what the unbroken run would have done.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from weft.data.batching import Ahead
from weft.errors import UserError, shown
from weft.nn.attention import slots_of
from weft.nn.multihead import Attention
from weft.nn.rows import Batch
from weft.objectives.carrying import CarriedToken
from weft.training.judging import evaluated, judge, keep
from weft.training.log import RunLog, fitted, memory_used, peak_of, time_left
from weft.training.optim import Mean, fill, optimizer_tensors, set_learning_rate
from weft.training.passes import graphs_compiled
from weft.training.plan import learning_rate_at
from weft.training.setup import Setup
from weft.training.signals import Interrupted, Stop
from weft.training.state import Checkpoints, State
from weft.training.step import Group, Stepper, group_of
from weft.training.watching import Watch
from weft.training.work import Work

MEASURED = 200  # steps after which a run's speed is known, if not before
UNKNOWN = 2000  # steps that a run counts with until then


class Exploded(UserError):
    """A loss that is no number or far too large: to go on from the last checkpoint would end here again."""


@dataclass
class Moment:
    """What the live line tells, summed since the last one."""

    tokens: int = 0
    operations: float = 0.0
    begin: float = field(default_factory=time.perf_counter)


@dataclass
class Pace:
    """How fast a run is, from lines of its record; the first tells of compiling and capturing, and is left out."""

    begin: tuple[int, float] | None = None  # step and seconds at the end of the first line

    def steps(self, state: State, minutes: float) -> int | None:
        """How many steps fit into so many minutes; None until enough has been seen."""
        if self.begin is None:
            self.begin = (state.step, state.seconds)
            return None
        done, seconds = state.step - self.begin[0], state.seconds - self.begin[1]
        if done < MEASURED and seconds < min(10.0, 6 * minutes):
            return None
        return max(state.step + 1, self.begin[0] + round(60 * minutes * done / max(1e-9, seconds)))


@contextmanager
def quick_arithmetic(device: torch.device) -> Iterator[None]:
    """While it trains: no numbers so near zero that they cost a CPU a hundred times as much, and TF32 on a GPU."""
    before = torch.get_float32_matmul_precision()
    torch.set_flush_denormal(True)
    torch.set_float32_matmul_precision("high" if device.type == "cuda" else before)
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_float32_matmul_precision(before)


def train(
    setup: Setup,
    state: State,
    stored: Mapping[str, dict[str, Tensor]] | None,
    checkpoints: Checkpoints,
    log: RunLog,
    stop: Stop,
    keep_best: Callable[[dict[str, float]], None],
    watch: Watch | None = None,
) -> State:
    """Train until the steps are done, the patience is over, or somebody asks to stop (`Interrupted`, all saved)."""
    s, plan, device = setup if state.steps is None else setup.of_steps(state.steps), setup.plan, setup.device
    stepper = Stepper(s, state.scale, state.steady)
    network, beside, optimizer, scaler = stepper.network, stepper.beside, stepper.optimizer, stepper.scaler
    mean = Mean(network, plan.ema) if plan.ema is not None else None
    # The losses of the steps since the last line stay on the device: reading them would make it wait.
    terms = s.objective.terms
    history = torch.zeros(plan.log_every, len(terms) + 1, device=device)
    tensors = {"model": dict(network.state_dict()), "optimizer": optimizer_tensors(network, optimizer, beside)}
    tensors |= {"beside": dict(beside.state_dict())} if beside is not None else {}
    tensors |= {"ema": mean.tensors()} if mean is not None else {}
    tensors["history"] = {"history": history}
    memory = s.objective.memory.lay_out(network) if isinstance(s.objective, CarriedToken) else None
    tensors |= {"carried": memory.tensors()} if memory is not None else {}
    if stored is not None:
        for name in tensors:
            fill(tensors[name], stored.get(name, {}), f"the checkpoint's {name}")
    work, peak = Work(network), peak_of(device)
    # The kernels of a GPU know ragged rows; on the CPU rows of similar length share a square of attention.
    pads = device.type == "cpu" and any(isinstance(module, Attention) for module in network.modules())
    feed = _feed(s, state)
    groups = iter(feed)
    moment, pace = Moment(), Pace()

    def save() -> None:
        _check(s, state, history, checkpoints)
        state.metrics = log.kept()
        if scaler.is_enabled():
            state.scale, state.steady = scaler.get_scale(), scaler.state_dict()["_growth_tracker"]
        checkpoints.save(state, tensors)
        if stop and state.best is None:  # whoever stops a run before it was judged wants to see what it has become
            keep(mean, keep_best, {})

    try:
        while not state.finished:
            first = state.step == 0 and s.evaluate_first
            if (
                s.held_out is not None
                and state.evaluated < state.step
                and (first or s.due(s.evaluate_every, state.step))
            ):
                _check(s, state, history, checkpoints)
                begin = time.perf_counter()
                try:
                    found, verdict = evaluated(s, state.pass_tokens, mean, stop)
                except Interrupted:
                    save()  # without the evaluation: it comes first when the run goes on
                    raise
                _check_held_out(state, found, checkpoints)
                judge(state, found, verdict, log, lambda found: keep(mean, keep_best, found))
                moment.begin += time.perf_counter() - begin
            elif s.held_out is None and s.due(s.save_every, state.step):
                _check(s, state, history, checkpoints)
                _check_weights(state, network, checkpoints)
                keep(mean, keep_best, {})
            state.finished = state.step >= s.steps or (plan.patience is not None and state.worse >= plan.patience)
            if state.finished and s.held_out is not None and state.best is None:  # no score of it was a number
                keep(mean, keep_best, {})
            if state.finished or s.due(s.save_every, state.step) or stop:
                begin = time.perf_counter()
                save()
                moment.begin += time.perf_counter() - begin
            if state.finished:
                break
            stop.check(f"saved {checkpoints.path(state.step)}")
            group = next(groups)
            if watch is not None and state.step == 0:
                watch.look(0, network, group.batches[0].to(device))
            set_learning_rate(optimizer, learning_rate_at(state.step, s.plan, s.learning_rate, s.steps))
            slot = state.step % plan.log_every
            if (
                state.step == s.feed.border
            ):  # other rows from here on: what was captured for the ones before is of no use
                stepper.passes.release()
            try:
                norm = stepper.step(group.batches, group.counts, state.step)
            except torch.OutOfMemoryError:
                stepper.passes.release()
                feed.close()
                _halve(s, state, group.batches, log)
                feed = _feed(s, state)
                groups = iter(feed)
                continue
            history[slot, :-1] = stepper.losses
            history[slot, -1] = norm
            state.step += 1
            if memory is not None:
                memory.settle()
            if mean is not None:
                mean.update(state.step)
            read = sum(batch.size for batch in group.batches)
            state.tokens += read
            state.slots += sum(map(_slots, group.batches)) if pads else read
            moment.tokens += read
            moment.operations += sum(work.of(batch) for batch in group.batches)
            if state.step % plan.log_every == 0 or state.step == s.steps:
                losses = _check(s, state, history, checkpoints)
                _say(s, state, terms, losses, moment, peak, log)
                if watch is not None:
                    watch.look(state.step, network, group.batches[0].to(device))
                if s.minutes is not None and state.steps is None and (steps := pace.steps(state, s.minutes)):
                    steps = min(steps, s.most or steps)
                    state.steps, s = steps, s.of_steps(steps)
                    enough = " are enough, and" if steps == s.most else ""
                    log.line(f"{steps:,} steps{enough} fit into {s.minutes:g} minutes at this speed")
                    feed.close()
                    feed = _feed(s, state)
                    groups = iter(feed)
                moment = Moment()
    finally:
        feed.close()
    return state


def _feed(s: Setup, state: State) -> Ahead[Group]:
    return Ahead(lambda step: group_of(s, step, state.pass_tokens), state.step, s.steps)


def _slots(batch: Batch) -> int:
    sides = [(batch.rows, batch.tokens), *([(batch.source.rows, batch.source.tokens)] if batch.source else [])]
    return sum(slots_of(rows, len(tokens)) for rows, tokens in sides)


def _check(s: Setup, state: State, history: Tensor, checkpoints: Checkpoints) -> list[list[float]]:
    """The losses since the last line; a run whose loss is no number or has exploded ends here, before any save."""
    done = state.step % s.plan.log_every or (s.plan.log_every if state.step else 0)
    found = history[:done].tolist()
    for place, losses in enumerate(found):
        loss = sum(losses[:-1])
        step = state.step - done + place
        if state.first_loss is None:
            state.first_loss = loss
        # In fp16 a gradient that is no number is a sign that the loss was scaled too far: that step was left out.
        lost = not math.isfinite(losses[-1]) and s.precision != "fp16"
        if lost or not math.isfinite(loss) or loss > s.plan.explode * max(state.first_loss, 1e-3):
            good = checkpoints.newest()
            drawn = s.feed.drawn(step)
            rows = np.split(drawn.tokens, drawn.starts[1:-1])
            texts = [s.words_of(row.tolist()) for row in rows[:8]]
            raise Exploded(
                f"the loss of step {step + 1} is {loss:.4g}, its gradient {losses[-1]:.4g} long (the first loss was "
                f"{state.first_loss:.4g}, and training.explode allows {s.plan.explode:g} times that); "
                + (f"the last good checkpoint is {good}" if good else "there is no checkpoint before it")
                + f"; try a lower training.learning_rate or more warmup; the step read: {shown(' | '.join(texts), 400)}"
            )
    return found


def _check_held_out(state: State, found: Mapping[str, float], checkpoints: Checkpoints) -> None:
    """A held-out loss that is no number ends a run before such weights are saved."""
    loss = sum(found.values())
    if not math.isfinite(loss):
        raise _lost(state, f"the held-out loss of step {state.step} is {loss:.4g}", checkpoints)


def _check_weights(state: State, network: nn.Module, checkpoints: Checkpoints) -> None:
    """The same where nothing is held out: the last update may have spoiled what no loss has seen yet."""
    if not all(bool(parameter.isfinite().all()) for parameter in network.parameters()):
        raise _lost(state, f"weights are no longer finite numbers after step {state.step}", checkpoints)


def _lost(state: State, what: str, checkpoints: Checkpoints) -> Exploded:
    good = checkpoints.newest()
    where = f"the last good checkpoint is {good}" if good else "there is no checkpoint before it"
    return Exploded(f"{what}; {where}; try a lower training.learning_rate or more warmup")


def _halve(s: Setup, state: State, passes: list[Batch], log: RunLog) -> None:
    """After the GPU's memory ran out: the same step again in passes of half the size."""
    torch.cuda.empty_cache()
    largest = max(batch.size for batch in passes)
    if len(passes) >= s.feed.at(state.step)[0].rows:
        raise UserError(f"the GPU's memory is too small for a single row of {largest} tokens; try a smaller length")
    state.pass_tokens = max(1, min(state.pass_tokens, largest) // 2)
    log.line(f"memory ran out: passes of {state.pass_tokens:,} tokens from here on, twice as many")


def _say(
    s: Setup,
    state: State,
    terms: tuple[str, ...],
    losses: list[list[float]],
    moment: Moment,
    peak: float | None,
    log: RunLog,
) -> None:
    """The live line and its record."""
    seconds = max(1e-9, time.perf_counter() - moment.begin)
    state.seconds += seconds
    means = [sum(column) / len(losses) for column in zip(*losses, strict=True)]
    *by_term, norm = means
    speed = moment.tokens / seconds
    learning_rate = learning_rate_at(state.step - 1, s.plan, s.learning_rate, s.steps)
    values: dict[str, Any] = {"step": state.step, "loss": sum(by_term)}
    values |= dict(zip(terms, by_term, strict=True)) if len(terms) > 1 else {}
    values |= {"learning_rate": learning_rate, "norm": norm if math.isfinite(norm) else None, "tokens": state.tokens}
    values["padding"] = 1 - state.tokens / state.slots
    memory = memory_used(s.device)
    values |= {"seconds": round(state.seconds, 3), "tokens_per_second": round(speed), "memory": memory}
    if peak is not None:
        values["mfu"] = round(moment.operations / seconds / peak, 4)
    if s.plan.compile:
        values["graphs"] = graphs_compiled()
    log.record(values)
    left = time_left(seconds / len(losses) * (s.steps - state.step))
    log.line(live_line(values, s.steps, left), passing=True)


def live_line(values: Mapping[str, Any], steps: int, left: str) -> str:
    """One line for people, in 80 columns; the share of the peak where that is known."""
    parts = [
        f"step {values['step']:,}/{steps:,}",
        f"{left} left",
        f"loss {values['loss']:.4f}",
        f"{values['tokens_per_second']:,} tokens/s",
    ]
    if "mfu" in values:
        parts.append(f"{100 * values['mfu']:.0f} % of peak")
    parts.append(f"rate {values['learning_rate']:.1e}")
    parts.append(f"{values['memory'] / 1e9:.1f} GB")
    return fitted(parts)
