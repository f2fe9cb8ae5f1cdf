"""Decides whether compiling pays off in a run: the time that it would save, against the time that it takes.

A run on a GPU without `--compile` or `--no-compile` begins uncompiled. As soon as its speed is known it is compiled
between two steps, if it is then expected to end sooner. The time of compiling is stored in the cache with the code.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from weft.config import values_of
from weft.data.shards import COMPILED
from weft.errors import UserError, shown
from weft.files import cache_folder, read_json, write_json
from weft.nn.rows import Batch
from weft.training.log import RunLog
from weft.training.run import State
from weft.training.signals import Interrupted
from weft.training.step import Setup, Stepper

SAVED = 0.25  # share of a step's time that compiling saves: 0.2 to 0.35 for Transformers on an H200
WHOLE, LAYER = 15.0, 3.0  # seconds for compiling the first time: of any network, and for each of its layers
AGAIN = 0.25  # share of that time if the code is in the cache, until it has been measured
STEPS, SECONDS = 20, 5.0  # of training after which the speed of a run is known


def code_key(s: Setup) -> str:
    """A hash of what the compiled code depends on: network, objective, precision, GPU and compiler."""
    gpu = torch.cuda.get_device_name(s.device) if s.device.type == "cuda" else s.device.type
    network = [type(s.network).__name__, values_of(s.network.config), s.feed.source.even]
    what = [network, type(s.objective).__name__, s.precision, s.plan.checkpoint_activations, gpu, torch.__version__]
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:32]


class CompileTimes:
    """`times.json` in the folder of compiled code: the first and the latest time of compiling."""

    def __init__(self) -> None:
        self.path = cache_folder() / COMPILED / "times.json"

    def all(self) -> dict[str, list[float]]:
        try:
            return {
                str(key): [float(seconds) for seconds in both] for key, both in read_json(self.path).items() if both
            }
        except (UserError, OSError, TypeError, ValueError):  # missing or damaged: the times are only for estimates
            return {}

    def expected(self, key: str, layers: int) -> tuple[float, bool]:
        """Seconds that compiling will take, and whether the code is in the cache."""
        known = self.all().get(key)
        if known is None:
            return WHOLE + LAYER * layers, False
        return (known[1] if len(known) > 1 else AGAIN * known[0]), True

    def note(self, key: str, seconds: float) -> None:
        """Store a measured time; a run goes on if it cannot be written."""
        times = self.all()
        first = times.pop(key, [])[:1]
        times = {**dict(list(times.items())[-999:]), key: [*first, round(seconds, 2)]}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.path, times)
        except (UserError, OSError):
            return


class CompileChoice:
    """Decides once in a run whether to compile; if the first compiled step fails, goes on uncompiled."""

    def __init__(self, stepper: Stepper, log: RunLog) -> None:
        s = stepper.setup
        self.stepper, self.log = stepper, log
        self.asked = bool(s.plan.compile)  # by --compile: then a failure is an error
        self.open = s.plan.compile is None and s.may_compile and s.device.type == "cuda" and s.network.COMPILES
        self.waiting = self.asked  # for the first compiled step
        self.begin: tuple[int, float] | None = None

    def decide(self, state: State, steps: int | None, minutes: float | None) -> None:
        """Decide, after a line of the log; `steps`: of the whole run, None if it ends after `minutes`."""
        if not self.open:
            return
        if self.begin is None:  # the time before the first line includes the initialization of libraries
            self.begin = (state.step, state.seconds)
            return
        done, seconds = state.step - self.begin[0], state.seconds - self.begin[1]
        if done < STEPS and seconds < SECONDS:
            return
        self.open = False
        left = seconds / done * (steps - state.step) if steps is not None else 60 * (minutes or 0) - state.seconds
        takes, cached = CompileTimes().expected(code_key(self.stepper.setup), self.stepper.setup.network.config.layers)
        takes_about = f"take about {takes:.0f} s{' with the code in the cache' * cached}"
        saves = f"save {SAVED * left:.0f} of the {left:.0f} s left"
        if SAVED * left <= takes:
            self.log.line(f"not compiled: that would {takes_about} and {saves}; --compile compiles anyway")
            return
        self.log.line(f"compiling, which should {takes_about} and {saves}")
        self.stepper.compile(True)
        self.waiting = True

    def step(self, batches: Sequence[Batch], counts: Tensor, number: int) -> Tensor:
        """Take a step; returns the gradient norm."""
        if not self.waiting:
            return self.stepper.step(batches, counts, number)
        begin = time.perf_counter()
        try:
            norm = self.stepper.step(batches, counts, number)
        except (torch.OutOfMemoryError, UserError, Interrupted):
            raise  # the loop tries smaller passes, or ends
        except Exception as error:
            # For example without a C compiler. No weight has changed, since the update comes last.
            message = " ".join(str(error).split()).partition(" Set TORCHDYNAMO_VERBOSE")[0]  # advice for developers
            reason = shown(message or type(error).__name__, 200)
            if self.asked:
                from torch._dynamo.exc import TorchDynamoException

                if isinstance(error, TorchDynamoException):
                    raise UserError(f"the network cannot be compiled: {reason}; leave out --compile") from error
                raise
            self.log.line(f"cannot be compiled, and goes on without: {reason}")
            self.waiting = False
            self.stepper.compile(False)
            return self.stepper.step(batches, counts, number)
        self.waiting, seconds = False, time.perf_counter() - begin
        CompileTimes().note(code_key(self.stepper.setup), seconds)
        if not self.asked:
            self.log.line(f"compiled in {seconds:.0f} s")
        return norm
