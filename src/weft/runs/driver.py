"""What every training run does around its loop: where it begins, what it leaves behind, and its last words."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from weft.checksums import Damaged, digest
from weft.config import write_toml
from weft.errors import UserError
from weft.progress import Log, Progress, lines_of_a_run, silent
from weft.runs.curves import write_curves
from weft.scratch import temporary_folder
from weft.tasks.model import device_of
from weft.training.log import RunLog
from weft.training.loop import Exploded, quick_arithmetic, train
from weft.training.run import Run
from weft.training.setup import Setup
from weft.training.signals import Interrupted, Stop, listening
from weft.training.state import Checkpoints, State, Unreadable
from weft.training.watching import Watch, draw_gradients


class Altered(UserError):
    """What a run began with is no longer there: to go on would end here again."""


def scratch_folder() -> Path:
    """A folder that goes away with the process."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(temporary_folder())


@contextmanager
def resumable(run: Run) -> Iterator[None]:
    """Whatever stops a run, its last words say how to go on."""
    words = f"; go on with: weft resume {run.folder}"
    try:
        yield
    except Interrupted as interrupted:
        raise Interrupted(interrupted.number, f"{interrupted}{words}") from None
    except (Exploded, Altered, Damaged, Unreadable):
        raise
    except UserError as error:
        raise UserError(f"{error}{words if run.checkpoints().newest() is not None else ''}") from None


@contextmanager
def begun(run: Run, recipe: Any) -> Iterator[Stop]:
    """A new run: nobody else writes there, its recipe is kept, and of one that learned nothing, nothing is left."""
    with listening() as stop, run.held(), resumable(run):
        run.check_new()  # again: somebody may have been quicker
        try:
            write_toml(recipe, run.recipe)
            yield stop
        except UserError:
            if run.checkpoints().newest() is None and not (run.folder / "model.safetensors").exists():
                run.discard()
            raise


def device_for(name: str | None, threads: int | None) -> torch.device:
    """The device asked for, or the first GPU where there is one; and as many threads as a run began with."""
    device = device_of(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cuda":
        device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
        torch.cuda.set_device(device)  # graphs are captured on the current one
    if threads is not None:
        torch.set_num_threads(threads)
    return device


def half_precision(device: torch.device) -> Literal["bf16", "fp32"]:
    """What `auto` stands for on this device."""
    half = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16" if half else "fp32"


def pass_tokens(device: torch.device) -> int:
    """Tokens that go through the network at once unless said."""
    return 1 << 16 if device.type == "cuda" else 1 << 14


@dataclass(frozen=True)
class Begun:
    """Where a run stands when a process takes it up."""

    checkpoints: Checkpoints
    state: State
    stored: Mapping[str, dict[str, Tensor]] | None


def begin(run: Run, keep: int, pass_tokens: int, log: Log) -> Begun:
    """From the newest checkpoint that can be read, or from nothing."""
    checkpoints = run.checkpoints(keep)
    found = checkpoints.load()
    state, stored, notes = found if found is not None else (State(pass_tokens=pass_tokens), None, [])
    if found is None and run.metrics.exists() and run.metrics.stat().st_size:
        notes = [f"{checkpoints.folder}: there is no checkpoint; training again from step 0"]
    if not state.finished:
        run.check_model()
    recipe = digest(run.recipe)
    if found is not None and state.recipe not in (None, recipe):
        notes = [*notes, f"{run.recipe}: is not the one that the checkpoint was saved with"]
    state.recipe = recipe
    for note in notes:
        log(f"weft: note: {note}")
    return Begun(checkpoints, state, stored)


def drive(
    run: Run,
    setup: Setup,
    begun: Begun,
    tensorboard: bool,
    keep_best: Callable[[dict[str, float]], None],
    stop: Stop,
    log: Log,
    measure: str = "loss",
    progress: Progress = silent,
) -> State:
    """Train to the end, or until somebody stops it; the report is written either way."""
    state = begun.state
    with lines_of_a_run(log, progress) as lines:
        run_log = RunLog(run.metrics, state.metrics, run.board if tensorboard else None, state.step, *lines)
        try:
            with quick_arithmetic(setup.device):
                watch = Watch(run.gradients, state.step) if setup.plan.watch_gradients else None
                state = train(setup, state, begun.stored, begun.checkpoints, run_log, stop, keep_best, watch)
        except Interrupted as interrupted:
            of = f" of {state.steps or setup.steps:,}" if setup.minutes is None or state.steps else ""
            message = f"stopped after step {state.step:,}{of}, all saved"
            raise Interrupted(interrupted.number, message) from None
        finally:
            run_log.close()
            report(run, log)
    best = "the last step"
    if state.best is not None:
        # A score is kept below zero, so that less is better in every run.
        value = state.best if setup.judge is None else -state.best
        best = f"held-out {measure} {value:.4f} at step {state.best_step:,}"
    done = f"{state.step:,} step{'s' * (state.step != 1)}, {state.seconds:.0f} s of training"
    log(f"{run.folder}: done after {done}; kept: {best}")
    return state


def report(run: Run, log: Log) -> None:
    """The run's page; that it cannot be written must not hide what ended the run."""
    try:
        if run.metrics.exists() and run.metrics.stat().st_size:
            write_curves([run.folder], run.report)
        if run.gradients.exists():
            found = draw_gradients(run.gradients, run.gradients_page, run.folder.name)
            if found is not None:
                log(f"{run.gradients_page}: {found}")
    except (UserError, OSError) as error:
        log(f"weft: note: no report: {error}")
