"""The loop: trains any network on any objective, and goes on from a checkpoint as the unbroken run would have."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from weft.data.rows import Ahead, every_example
from weft.errors import UserError, shown
from weft.models.base import Network
from weft.nn.attention import Attention, slots_of
from weft.nn.halved import weights_changed
from weft.nn.rows import Batch, Rows
from weft.progress import decimals
from weft.training.compiling import CompileChoice
from weft.training.evaluation_share import EvaluationShare
from weft.training.log import COLUMNS, RunLog, Watch, memory_used, peak_of, time_left
from weft.training.plan import learning_rate_at
from weft.training.run import Begun, State
from weft.training.signals import Interrupted, Stop
from weft.training.step import Group, HeldOutMetrics, Setup, Stepper, autocast, group_of, optimizer_tensors, total

Save = Callable[[dict[str, float]], None]  # of a model as the best so far, with its losses


def set_learning_rate(optimizer: torch.optim.AdamW, learning_rate: float) -> None:
    """The rate of the next step; each group takes its share of it."""
    written = set[int]()
    for group in optimizer.param_groups:
        if not isinstance(group["lr"], Tensor):
            group["lr"] = learning_rate * group["share"]
        elif id(group["lr"]) not in written:  # groups of one share have it in one tensor
            group["lr"].fill_(learning_rate * group["share"])
            written.add(id(group["lr"]))


def fill(targets: dict[str, Tensor], stored: dict[str, Tensor], what: str) -> None:
    """Copy stored tensors into those of the same names; nothing may be missing or left over."""
    differing = sorted(set(targets) ^ set(stored)) or [
        name for name, tensor in targets.items() if tensor.shape != stored[name].shape
    ]
    if differing:
        raise UserError(f"{what} does not fit this run: {differing[0]}")
    with torch.no_grad():
        for name, tensor in targets.items():
            tensor.copy_(stored[name])


class Mean:
    """A running mean of the weights (EMA): steadier than the weights themselves, and what is evaluated and kept."""

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.decay = decay
        self.parameters = [parameter.detach() for parameter in network.parameters()]
        self.tensors = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
        self.means = list(self.tensors.values())

    @torch.no_grad()
    def update(self, step: int) -> None:
        # In the first steps the mean must not hold on to the weights that it began with.
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self.means, self.parameters, 1 - decay)

    @torch.no_grad()
    def swap(self) -> None:
        """The mean in the network and the weights here; a second call puts them back."""
        held = [parameter.clone() for parameter in self.parameters]
        torch._foreach_copy_(self.parameters, self.means)
        torch._foreach_copy_(self.means, held)


@contextmanager
def averaged(mean: Mean | None) -> Iterator[None]:
    """The running mean, where there is one, stands in the network for as long as the block runs."""
    if mean is None:
        yield
        return
    mean.swap()
    try:
        yield
    finally:
        mean.swap()


def evaluate(
    s: Setup, budget: int, mean: Mean | None, stop: Stop, judge: Callable[[], HeldOutMetrics | None] = lambda: None
) -> tuple[dict[str, float], HeldOutMetrics | None]:
    """The mean loss of each kind over all held-out data, and the task's metrics; in smaller batches if need be.

    Of data that is a mixture the metrics are the losses of its parts.
    """
    assert s.held_out is not None
    while True:
        counts, sums, parts = dict[str, int](), dict[str, Tensor](), dict[str, float]()
        objective = s.objective.for_evaluation(s.network, s.held_out)
        s.network.eval()
        try:
            # Never compiled: it is a small part of the work, and would be compiled for itself.
            with averaged(mean), torch.no_grad(), autocast(s.device, s.precision):
                for part, source in (s.held_out.parts or {"": s.held_out}).items():
                    here, of_part = dict[str, int](), dict[str, Tensor]()
                    for batch in every_example(source, s.feed.prepare, budget):
                        stop.check("during the evaluation")
                        here = total([here, objective.counts(batch)])
                        for name, value in objective.sums(s.network, batch.to(s.device)).items():
                            of_part[name] = of_part.get(name, 0) + value.double()
                    counts, sums = (
                        total([counts, here]),
                        sums | {name: sums.get(name, 0) + of_part[name] for name in of_part},
                    )
                    parts[part] = sum(float(of_part[name]) / max(1, here[name]) for name in of_part)
                metrics = judge() or (HeldOutMetrics(parts, "") if s.held_out.parts else None)
            return {name: float(sums[name]) / max(1, counts[name]) for name in sums}, metrics
        except torch.OutOfMemoryError:
            if budget <= s.held_out.mean:
                raise UserError("the GPU's memory is too small to evaluate one row; try a smaller length") from None
            torch.cuda.empty_cache()
            budget //= 2
        finally:
            s.network.train()


def record_evaluation(
    state: State, losses: Mapping[str, float], metrics: HeldOutMetrics | None, log: RunLog, save_best: Save
) -> None:
    """Note an evaluation, and keep the model where it is the best so far."""
    loss = sum(losses.values())
    values = dict(metrics.values) if metrics is not None else {}
    deciding = metrics.deciding if metrics is not None else ""
    postponed = bool(deciding) and deciding not in values  # the loss alone, which chooses no model
    measure = math.nan if postponed else -values[deciding] if deciding else loss
    tied = bool(deciding) and measure == state.best and state.best_loss is not None and loss < state.best_loss
    better = math.isfinite(measure) and (state.best is None or measure < state.best or tied)
    by_name = {f"validation_{name}": value for name, value in {**losses, **values}.items()}
    log.record({"step": state.step, "validation_loss": loss, **by_name, "tokens": state.tokens})
    line = f"step {state.step:,}: held-out loss {loss:.4f}"
    if len(losses) > 1:
        line += f" ({', '.join(f'{name} {value:.4f}' for name, value in losses.items())})"
    if "words" in losses:
        line += f", perplexity {math.exp(min(losses['words'], 99)):.2f}"
    line += "".join(f", {name} {decimals(value)}" for name, value in values.items())
    sign = -1 if deciding else 1
    before = "" if state.best is None else f"best {sign * state.best:.4f} at {state.best_step}"
    log.line(line if postponed else f"{line}; {'best' if better else before}")
    if better:
        save_best({"loss": loss, **(losses if len(losses) > 1 else {}), **values})
        state.best, state.best_loss, state.best_step, state.worse = measure, loss, state.step, 0
    elif not postponed:
        state.worse += 1
    state.evaluated = state.step


MEASURED = 200  # steps after which a run's speed is known, if not before


class Exploded(UserError):
    """A loss that is no number or far too large: to go on from the last checkpoint would end here again."""


@dataclass
class Moment:
    """What the live line shows, summed since the last one."""

    tokens: int = 0
    waited: float = 0.0  # seconds for the next batch
    paused: float = 0.0  # seconds of evaluations and checkpoints
    begin: float = field(default_factory=time.perf_counter)


@dataclass
class Pace:
    """How fast a run is, from lines of its record; the first is left out, since it includes compiling and capturing."""

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


def graphs_compiled() -> int:
    """How many graphs the compiler has made in this process; a number that grows in mid-run means lost minutes."""
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]


Lengths = NDArray[np.int32]


class Operations:
    """How many products and sums batches cost, forward and backward."""

    def __init__(self, network: Network) -> None:
        self.network = network
        inside = [module for name, module in network.named_modules() if name.startswith("layers.")]
        turns = network.config.layers / max(1, len(network.layers))  # a layer may be read again and again
        self.matrices = turns * sum(module.weight.numel() for module in inside if isinstance(module, nn.Linear))
        attentions = [module for module in inside if isinstance(module, Attention)]
        self.scores = turns * sum(a.heads * a.head_width * (0.5 if a.causal else 1.0) for a in attentions)
        self.words = network.tokens.weight.numel() if network.products is None else 0

        self._start()

    def _start(self) -> None:
        self.read, self.written, self.predicted = list[Lengths](), list[Lengths](), 0

    def add(self, batch: Batch) -> None:
        """Note the lengths of a batch that is on the CPU: all else is worked out later, of many batches together."""
        self.written.append(np.diff(batch.rows.starts.numpy()))
        if batch.source is not None:
            self.read.append(np.diff(batch.source.rows.starts.numpy()))
        self.predicted += len(batch.targets.get("words", ()))

    def total(self) -> float:
        """Of all batches since the last call."""
        if not self.written:
            return 0.0
        read, written, predicted = self.read, self.written, self.predicted
        self._start()
        if read:
            return 3.0 * self.network.operations(_rows(read), _rows(written))
        lengths = np.concatenate(written).astype(np.float64)
        if self.network.products is not None:
            return 6.0 * self.network.products * float(lengths.sum())
        matrices = 6.0 * (self.matrices * float(lengths.sum()) + self.words * predicted)
        return matrices + 12.0 * self.scores * float(lengths @ lengths)


def _rows(lengths: list[Lengths]) -> Rows:
    return Rows.of(np.concatenate(lengths).tolist())


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


class Trainer:
    """A run in training: its tensors, where it stands, and what a step, an evaluation and a checkpoint do."""

    def __init__(
        self, setup: Setup, start: Begun, log: RunLog, stop: Stop, save: Save, watch: Watch | None = None
    ) -> None:
        self.state, self.checkpoints, state = start.state, start.checkpoints, start.state
        self.setup = s = setup if state.steps is None else setup.of_steps(state.steps)
        self.log, self.stop, self.watch, self._save_best = log, stop, watch, save
        self.stepper = stepper = Stepper(s, state.scale, state.steady)
        network, beside = stepper.network, stepper.beside
        self.mean = Mean(network, s.plan.ema) if s.plan.ema is not None else None
        # The losses of the steps since the last line stay on the device: reading them would make it wait.
        self.history = torch.zeros(s.plan.log_every, len(s.objective.terms) + 1, device=s.device)
        self.slots = [[row[:-1], row[-1]] for row in self.history]
        self.tensors = {
            "model": dict(network.state_dict()),
            "optimizer": optimizer_tensors(network, stepper.optimizer, beside),
            "history": {"history": self.history},
        }
        optional = {
            "beside": dict(beside.state_dict()) if beside is not None else {},
            "ema": self.mean.tensors if self.mean is not None else {},
            "carried": s.objective.carried(network),
        }
        self.tensors |= {name: tensors for name, tensors in optional.items() if tensors}
        if start.stored is not None:
            for name, tensors in self.tensors.items():
                fill(tensors, start.stored.get(name, {}), f"the checkpoint's {name}")
        self.operations, self.peak = Operations(network), peak_of(s.device)
        # The kernels of a GPU know ragged rows; on the CPU rows of similar length share a square of attention.
        self.pads = s.device.type == "cpu" and any(isinstance(module, Attention) for module in network.modules())
        self.moment, self.pace = Moment(), Pace()
        self.choice = CompileChoice(stepper, log)
        self._read_on()

    def train(self) -> None:
        """Train until the steps are done, the patience is over, or somebody asks to stop (`Interrupted`, all saved)."""
        state = self.state
        try:
            while not state.finished:
                s, plan = self.setup, self.setup.plan
                if s.held_out is None:
                    if s.due(plan.save_every, state.step):
                        self.check_losses()  # the last update may have spoiled what no loss has seen yet
                        if not all(bool(parameter.isfinite().all()) for parameter in self.stepper.network.parameters()):
                            raise self._exploded(f"weights are no longer finite numbers after step {state.step}")
                        self.save_best({})
                elif state.evaluated < state.step and (
                    s.due(plan.evaluate_every, state.step) or (state.step == 0 and s.evaluate_first)
                ):
                    self.evaluate()
                state.finished = state.step >= s.steps or (plan.patience is not None and state.worse >= plan.patience)
                if state.finished and s.held_out is not None and state.best is None:  # no score of it was a number
                    self.save_best({})
                if state.finished or s.due(plan.save_every, state.step) or self.stop:
                    self.save()
                if not state.finished:
                    self.stop.check(f"saved {self.checkpoints.path(state.step)}")
                    self.step()
        finally:
            self.feed.close()

    def _read_on(self) -> None:
        """Read ahead from the step where the run stands."""
        s, state = self.setup, self.state
        self.feed = Ahead[Group](lambda step: group_of(s, step, state.pass_tokens), state.step, s.steps)
        self.groups = iter(self.feed)

    @contextmanager
    def _paused(self) -> Iterator[None]:
        """What is done in here is not counted as training time."""
        begin = time.perf_counter()
        yield
        seconds = time.perf_counter() - begin
        self.moment.begin += seconds
        self.moment.paused += seconds

    def save_best(self, values: dict[str, float]) -> None:
        """Keep the model, or the running mean of its weights, as the best so far."""
        with averaged(self.mean):
            self._save_best(values)

    def save(self) -> None:
        """Write a checkpoint."""
        with self._paused():
            state, scaler = self.state, self.stepper.scaler
            self.check_losses()
            state.metrics = self.log.kept()
            if scaler.is_enabled():
                state.scale, state.steady = scaler.get_scale(), scaler.state_dict()["_growth_tracker"]
            self.checkpoints.save(state, self.tensors)
            if (
                self.stop and state.best is None
            ):  # whoever stops a run before its first evaluation wants to see the model
                self.save_best({})

    def evaluate(self) -> None:
        """Judge the model by the held-out data, and keep it where it is the best so far."""
        self.check_losses()
        state = self.state
        trained = state.seconds + time.perf_counter() - self.moment.begin
        with self._paused():
            begin = time.perf_counter()
            share = EvaluationShare(self.setup, state, self.log)

            def judge() -> HeldOutMetrics | None:
                return share.metrics(trained, time.perf_counter() - begin)

            try:
                losses, metrics = evaluate(self.setup, state.pass_tokens, self.mean, self.stop, judge)
            except Interrupted:
                self.save()  # without the evaluation: it comes first when the run goes on
                raise
            loss = sum(losses.values())
            if not math.isfinite(loss):
                raise self._exploded(f"the held-out loss of step {state.step} is {loss:.4g}")
            state.evaluating += time.perf_counter() - begin
            record_evaluation(state, losses, metrics, self.log, self.save_best)

    def step(self) -> None:
        """Take one step; where memory runs out, none, and smaller passes from here on."""
        s, state, stepper = self.setup, self.state, self.stepper
        begin = time.perf_counter()
        batches, counts = next(self.groups)
        self.moment.waited += time.perf_counter() - begin
        if self.watch is not None and state.step == 0:
            self.watch.look(0, stepper.network, batches[0].to(s.device))
        set_learning_rate(stepper.optimizer, learning_rate_at(state.step, s.plan, s.learning_rate, s.steps))
        if state.step == s.feed.border:  # other rows from here on: what was captured before is of no use
            stepper.passes.release()
        try:
            norm = self.choice.step(batches, counts, state.step)
        except torch.OutOfMemoryError:  # the same step again in passes of half the size
            stepper.passes.release()
            self.feed.close()
            torch.cuda.empty_cache()
            largest = max(batch.size for batch in batches)
            if len(batches) >= s.feed.at(state.step)[0].rows:
                raise UserError(f"the GPU's memory is too small for a single row of {largest} tokens") from None
            state.pass_tokens = max(1, min(state.pass_tokens, largest) // 2)
            self.log.line(f"memory ran out: passes of {state.pass_tokens:,} tokens from here on, twice as many")
            self._read_on()
            return
        torch._foreach_copy_(self.slots[state.step % s.plan.log_every], [stepper.passes.losses, norm])
        state.step += 1
        s.objective.settle()
        weights_changed(stepper.network)
        if self.mean is not None:
            self.mean.update(state.step)
        tokens = sum(batch.size for batch in batches)
        state.tokens += tokens
        state.slots += sum(map(_slots, batches)) if self.pads else tokens
        self.moment.tokens += tokens
        if self.peak is not None:
            for batch in batches:
                self.operations.add(batch)
        if state.step % s.plan.log_every == 0 or state.step == s.steps:
            begin = time.perf_counter()
            losses = self.check_losses()  # waits for what the GPU still has to do
            self._record(losses, time.perf_counter() - begin)
            if self.watch is not None:
                self.watch.look(state.step, stepper.network, batches[0].to(s.device))
            minutes, limit = s.plan.minutes, s.plan.steps
            self.choice.decide(state, s.steps if minutes is None else None, minutes)
            # Of a run of some minutes the speed counts that most of its steps will have.
            waits = self.choice.open or self.choice.waiting
            if minutes is not None and not waits and (steps := self.pace.steps(state, minutes)):
                # The speed of a run of some minutes is known, and with it how many steps there are.
                state.steps = min(steps, limit or steps)
                self.setup = s.of_steps(state.steps)
                enough = " are enough, and" if state.steps == limit else ""
                time_given = f"{minutes:g} minute{'s' * (minutes != 1)}"
                self.log.line(f"{state.steps:,} steps{enough} fit into {time_given} at this speed")
                self.feed.close()
                self._read_on()
            self.moment = Moment()

    def check_losses(self) -> list[list[float]]:
        """The losses since the last line; a run whose loss is no number or has exploded ends here, before any save."""
        s, state = self.setup, self.state
        done = state.step % s.plan.log_every or (s.plan.log_every if state.step else 0)
        history = self.history[:done].tolist()
        for place, losses in enumerate(history):
            loss, norm, step = sum(losses[:-1]), losses[-1], state.step - done + place
            if state.first_loss is None:
                state.first_loss = loss
            # In fp16 a gradient that is no number is a sign that the loss was scaled too far: that step was left out.
            lost = not math.isfinite(norm) and s.precision != "fp16"
            if lost or not math.isfinite(loss) or loss > s.plan.explode * max(state.first_loss, 1e-3):
                drawn = s.feed.drawn(step)
                rows = np.split(drawn.tokens, drawn.starts[1:-1])
                texts = " | ".join(s.decode(row.tolist()) for row in rows[:8])
                first = f"the first loss was {state.first_loss:.4g}, and training.explode allows {s.plan.explode:g}"
                what = f"the loss of step {step + 1} is {loss:.4g}, the gradient norm {norm:.4g} ({first} times that)"
                raise self._exploded(what, f"; the step read: {shown(texts, 400)}")
        return history

    def _exploded(self, what: str, more: str = "") -> Exploded:
        good = self.checkpoints.last_good()
        return Exploded(f"{what}; {good}; try a lower training.learning_rate or more warmup{more}")

    def _record(self, losses: list[list[float]], behind: float) -> None:
        """The live line and its record; `behind`: seconds that the GPU took longer than launching its work."""
        s, state = self.setup, self.state
        seconds = max(1e-9, time.perf_counter() - self.moment.begin)
        state.seconds += seconds
        *by_term, norm = [sum(column) / len(losses) for column in zip(*losses, strict=True)]
        values: dict[str, Any] = {"step": state.step, "loss": sum(by_term)}
        values |= dict(zip(s.objective.terms, by_term, strict=True)) if len(by_term) > 1 else {}
        values |= {
            "learning_rate": learning_rate_at(state.step - 1, s.plan, s.learning_rate, s.steps),
            "norm": norm if math.isfinite(norm) else None,
            "tokens": state.tokens,
            "padding": 1 - state.tokens / state.slots,
            "seconds": round(state.seconds, 3),
            "tokens_per_second": round(self.moment.tokens / seconds),
            "memory": memory_used(s.device),
        }
        values["waiting"] = round(self.moment.waited / seconds, 3)
        if self.peak is not None:
            values["mfu"] = round(self.operations.total() / seconds / self.peak, 4)
        if self.stepper.compiled:
            values["graphs"] = graphs_compiled()
        self.log.record(values)
        total: int | None = s.steps
        left = seconds / len(losses) * (s.steps - state.step)
        if s.plan.minutes is not None and state.steps is None:  # how many steps there are is not known yet
            left, total = min(left, max(0.0, 60 * s.plan.minutes - state.seconds)), None
        values["limit"] = limit_of(self.moment, seconds, behind, s.device)
        self.log.line(live_line(values, total, time_left(left)), passing=True)


def _slots(batch: Batch) -> int:
    sides = [(batch.rows, batch.tokens), *([(batch.source.rows, batch.source.tokens)] if batch.source else [])]
    return sum(slots_of(rows, len(tokens)) for rows, tokens in sides)


AHEAD = 0.01  # share of its time that a loop waits at the end for a GPU that sets the pace


def limit_of(moment: Moment, seconds: float, behind: float, device: torch.device) -> str:
    """What a faster run would have to be quicker at; the processor itself is only named where there is a GPU."""
    shares = {"data": moment.waited / seconds, "evaluation": moment.paused / (moment.paused + seconds)}
    name, share = max(shares.items(), key=lambda pair: pair[1])
    if share > 0.1:
        return f"{name} {100 * share:.0f} %"
    if device.type != "cuda":
        return "computation"
    return "GPU" if behind > AHEAD * seconds else "launching kernels"


def live_line(values: Mapping[str, Any], steps: int | None, left: str) -> str:
    """One line for people, in 80 columns; the number of all steps and the share of the peak where they are known."""
    total = "" if steps is None else f"/{steps:,}"
    parts = [
        *(f"step {values['step']:,}{total}", f"{left} left", f"loss {values['loss']:.4f}"),
        f"{values['tokens_per_second']:,} tokens/s",
        *([f"{100 * values['mfu']:.0f} % of peak"] if "mfu" in values else []),
        *([f"limit: {values['limit']}"] if values.get("limit", "computation") != "computation" else []),
        *(f"rate {values['learning_rate']:.1e}", f"{values['memory'] / 1e9:.1f} GB"),
    ]
    line = ""
    for part in parts:  # the most important first
        longer = f"{line}  {part}" if line else part
        line = longer if len(longer) < COLUMNS else line
    return line
