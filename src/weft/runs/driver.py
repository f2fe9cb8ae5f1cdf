"""One driver for every training run: a verb makes a `Job` of its recipe, and `drive` records, trains and saves it."""

from __future__ import annotations

import atexit
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import torch

from weft.checkpoint.card import Card, Made, Metric
from weft.checkpoint.folder import LoadedModel
from weft.config import read_toml, values_of, write_toml
from weft.data.rows import ExampleSource, Feed
from weft.errors import UserError, refuse
from weft.files import Damaged, digest, read_text, temporary_folder, write_json
from weft.objectives.losses import Objective
from weft.progress import Log, ProgressChoice, lines_of_a_run, log_notes, progress_of, to_logger
from weft.runs.pages import write_curves
from weft.tasks.model import Model, device_of
from weft.training.log import RunLog, Watch, draw_gradients
from weft.training.loop import Exploded, Trainer, quick_arithmetic
from weft.training.plan import Training
from weft.training.run import Begun, Run, State, Unreadable
from weft.training.signals import Control, Interrupted, listening
from weft.training.step import Setup

P = TypeVar("P", bound=Training)


class Altered(UserError):
    """The data of a run has changed: resuming would fail again."""


def scratch_folder() -> Path:
    """A folder that goes away with the process."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(temporary_folder())


def new_run(recipe: Any) -> Run:
    """The folder of a run that is about to begin; nothing may be there."""
    if recipe.out is None:
        raise UserError("no folder for the run: give --out FOLDER")
    run = Run(Path(recipe.out))
    run.check_new()
    return run


@contextmanager
def held(run: Run, log: Log, progress: ProgressChoice) -> Iterator[Control]:
    """Nobody else writes in the folder of the run meanwhile; an error that stops it says how to resume."""
    hint = f"; resume with: weft resume {run.folder}"
    with listening() as stop, run.held():
        try:
            yield Control(log, progress_of(progress), stop)
        except Interrupted as interrupted:
            raise Interrupted(interrupted.number, f"{interrupted}{hint}") from None
        except (Exploded, Altered, Damaged, Unreadable):
            raise
        except UserError as error:
            raise UserError(f"{error}{hint if run.checkpoints().newest() is not None else ''}") from None


@contextmanager
def begun(run: Run, recipe: Any, log: Log, progress: ProgressChoice) -> Iterator[Control]:
    """A new run with its recipe; if it fails before it has learned anything, nothing is left."""
    with held(run, log, progress) as control:
        run.check_new()  # again: another process may have been quicker
        try:
            write_toml(recipe, run.recipe)
            yield control
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


def check_tensorboard(recipe: Any) -> None:
    if recipe.tensorboard and find_spec("tensorboard") is None:
        raise UserError("--tensorboard needs the package tensorboard: pip install 'weft[tensorboard]'")


def settled(plan: P, device: torch.device, batch: int, steps: int | None, every: int | None, learning_rate: float) -> P:
    """The plan of any run with every open choice made, so that the recipe in the run folder has them all."""
    half = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return replace(
        plan,
        steps=steps,
        epochs=None,
        batch=batch,
        pass_tokens=plan.pass_tokens or (1 << 16 if device.type == "cuda" else 1 << 14),
        learning_rate=plan.learning_rate or learning_rate,
        evaluate_every=every,
        save_every=plan.save_every or every,
        log_every=min(plan.log_every, steps or plan.log_every),
        precision=plan.precision if plan.precision != "auto" else "bf16" if half else "fp32",
        threads=plan.threads or torch.get_num_threads(),
    )


def record(run: Run, recipe: Any, device: torch.device, about: Mapping[str, Any], same: Mapping[str, Any]) -> bool:
    """Write down what a run was made with; of a resumed one, check `same` and update `about`. Whether it is new."""
    if not run.about.exists():
        write_toml(recipe, run.recipe)
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        date = datetime.now(UTC).isoformat(timespec="seconds")
        run.describe({"date": date, "seed": recipe.seed, "device": name, **about, **same})
        return True
    info = run.info()
    for key, value in same.items():
        if vars(info)[key] != value:
            what = "held-out text" if key == "held_out" else key
            raise Altered(f"{run.folder}: the {what} has changed since the run began")
    if any(vars(info)[key] != value for key, value in about.items()):
        write_json(run.about, values_of(replace(info, **about)))
    return False


def card_of(run: Run, card: Card, seed: int) -> Card:
    """The card of a model that the run makes: by which recipe, when and with which seed."""
    return replace(card, recipe=digest(run.recipe), made=Made(seed=seed, date=datetime.now(UTC).date().isoformat()))


def begin(run: Run, keep: int, pass_tokens: int, log: Log) -> Begun:
    """From the newest checkpoint that can be read, or from nothing."""
    checkpoints = run.checkpoints(keep)
    loaded = checkpoints.load()
    state, stored, notes = loaded or (State(pass_tokens=pass_tokens), None, [])
    if loaded is None and run.metrics.exists() and run.metrics.stat().st_size:
        notes = [f"{checkpoints.folder}: there is no checkpoint; training again from step 0"]
    if not state.finished:
        run.check_model()
    before, state.recipe = state.recipe, digest(run.recipe)
    if before not in (None, state.recipe):
        notes = [*notes, f"{run.recipe}: is not the one that the checkpoint was saved with"]
    log_notes(notes, log)
    return Begun(checkpoints, state, stored)


@dataclass(frozen=True, kw_only=True)
class Job:
    """One training run, ready to start: all that differs between the verbs."""

    recipe: Any  # with every open choice made; it has a seed and says whether TensorBoard is written
    model: LoadedModel  # with its card, but for recipe and date
    objective: Objective
    feed: Feed
    held_out: ExampleSource | None
    options: Mapping[str, Any] = field(default_factory=dict)  # of the setup besides
    same: Mapping[str, Any]  # of run.json: what must not change when the run is resumed
    about: Mapping[str, Any] = field(default_factory=dict)  # of run.json besides
    split: Mapping[str, Any] | None = None  # run/split.json: which rows were held out
    announce: Callable[[State], None] = lambda state: None  # logs what is about to be trained
    save: Callable[[LoadedModel, dict[str, float]], None] | None = None  # saves the best model; its losses are given
    data: str = ""  # hash of the held-out data, for the losses of a model that `drive` itself saves
    metric: str = "loss"  # which decides what is kept

    @cached_property
    def setup(self) -> Setup:
        """What the training loop is given."""
        return Setup(
            network=self.model.network,
            objective=self.objective,
            feed=self.feed,
            held_out=self.held_out,
            plan=self.recipe.training,
            device=torch.device(self.recipe.device),
            decode=str if self.model.writer is None else self.model.writer.decode,
            **self.options,
        )


def drive(run: Run, job: Job, control: Control) -> State:
    """Train to the end, or until a signal stops it; the report is written either way."""
    setup, plan = job.setup, job.setup.plan
    parameters = sum(parameter.numel() for parameter in setup.network.parameters())
    record(run, job.recipe, setup.device, {"parameters": parameters, **job.about}, job.same)
    if job.split is not None:
        write_json(run.inside / "split.json", dict(job.split))
    start = begin(run, plan.keep, plan.pass_tokens or 0, control.log)
    state = start.state
    model = replace(job.model, card=card_of(run, job.model.card, job.recipe.seed))
    job.announce(state)
    if state.finished:
        control.log(f"{run.folder}: this run has finished already")

    def save_best(losses: dict[str, float]) -> None:
        if job.save is not None:
            return job.save(model, losses)
        run.save_model(model, tuple(Metric(data=job.data, name=name, value=value) for name, value in losses.items()))

    with recording(run, state, job.recipe.tensorboard, control) as run_log:
        try:
            with quick_arithmetic(setup.device):
                watch = Watch(run.gradients, state.step) if plan.watch_gradients else None
                Trainer(setup, start, run_log, control.stop, save_best, watch).train()
        except Interrupted as interrupted:
            steps = setup.steps if plan.minutes is None else state.steps
            of = f" of {steps:,}" if steps else ""
            raise Interrupted(interrupted.number, f"stopped after step {state.step:,}{of}, all saved") from None
    best = "the last step"
    if state.best is not None:
        # A metric is kept below zero, so that less is better in every run.
        value = state.best if setup.evaluate is None else -state.best
        best = f"held-out {job.metric} {value:.4f} at step {state.best_step:,}"
    done = f"{state.step:,} step{'s' * (state.step != 1)}, {state.seconds:.0f} s of training"
    done += f" and {state.evaluating:.0f} s of evaluation" if state.evaluating >= 1 else ""
    control.log(f"{run.folder}: done after {done}; best model: {best}")
    return state


@contextmanager
def recording(run: Run, state: State, tensorboard: bool, control: Control) -> Iterator[RunLog]:
    """The record of a run, open while the block runs; the report is written however the block ends."""
    with lines_of_a_run(control.log, control.progress) as lines:
        run_log = RunLog(run.metrics, state.metrics, run.board if tensorboard else None, state.step, *lines)
        try:
            yield run_log
        finally:
            run_log.close()
            report(run, control.log)


def report(run: Run, log: Log) -> None:
    """The run's page; that it cannot be written must not hide what ended the run."""
    try:
        if run.metrics.exists() and run.metrics.stat().st_size:
            write_curves([run.folder], run.report)
        if run.gradients.exists():
            line = draw_gradients(run.gradients, run.gradients_page, run.folder.name)
            if line is not None:
                log(f"{run.gradients_page}: {line}")
    except (UserError, OSError) as error:
        log(f"weft: note: no report: {error}")


# Modules by the section that only recipes of their runs have; each is imported when such a run is resumed.
KINDS = {"distill": "weft.distillation.distill", "task": "weft.runs.finetune", "vectors": "weft.runs.pretrain"}


def resume(folder: str | os.PathLike[str], *, log: Log = to_logger, progress: ProgressChoice = None) -> Model:
    """Continue an interrupted run from its last checkpoint; returns its model."""
    run = Run(Path(folder))
    refuse((not run.recipe.is_file(), f"{str(folder)!r} is not a run folder: it has no run/recipe.toml"))
    with held(run, log, progress) as control:
        try:
            sections = set(tomllib.loads(read_text(run.recipe)))
        except (ValueError, RecursionError):
            sections = set()  # read_toml reports what is wrong with it
        refuse(("ladder" in sections, f"{folder}: is a ladder: continue it with weft.ladder(out=...)"))
        run.tidy()
        section = next((section for section in KINDS if section in sections), "")
        recipe, go = import_module(KINDS.get(section, "weft.runs.pretrain")).RUNS[section]
        model: Model = go(run, read_toml(recipe, run.recipe), control)
        return model
