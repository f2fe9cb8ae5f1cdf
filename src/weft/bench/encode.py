"""`weft bench --mode encode`: the backends of a model and other libraries, compared and timed in turns."""

from __future__ import annotations

import math
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

from weft.backends.choice import (
    BACKENDS,
    PACKAGES,
    TORCH,
    Backend,
    BackendChoice,
    cpu_name,
    key_of,
    store,
    version_of,
)
from weft.backends.predictors import place_of_export
from weft.bench.agreement import fault_of, limits_for, numbers_fault
from weft.bench.memory import memory_of
from weft.bench.peers import PEERS, Peer, peers_of
from weft.bench.texts import CHECKED, Profile
from weft.checkpoint.card import record_hashes
from weft.errors import UserError, refuse, shown
from weft.exporters.export import logits_of, write_ct2
from weft.exporters.onnx_export import write_onnx
from weft.files import whole_folder
from weft.progress import Log
from weft.tasks.chosen import answering_by, measured_as
from weft.tasks.model import Model
from weft.timing import nearest_rank, turns

GAIN = 1.05  # speedup over torch that a choice needs: two runs on a busy machine differ by as much
ROUNDS = 15  # turns of each backend; fewer if they take long
TURN = 0.03  # seconds of a turn at least: short calls are repeated
PAUSE = 0.02  # seconds between turns, so that the threads of the last backend sleep: those of torch spin for 7 ms


@dataclass(frozen=True)
class Speed:
    """How long one call of a profile takes."""

    seconds: float  # median
    low: float  # quartiles
    high: float
    texts: float  # per second
    tokens: float  # per second
    peak_share: float | None = None  # of training steps: share of the device's peak FLOP/s


@dataclass
class Contestant:
    """A backend or a peer: how it is called, and what was measured."""

    name: str
    call: Callable[[list[Any]], Any]
    refused: str | None = None
    ours: bool = True
    memory: int | None = None  # peak bytes in a separate process
    speeds: dict[str, Speed] = field(default_factory=dict)


@dataclass(frozen=True)
class EncodeReport:
    """All contestants with their speeds, and the backend that was chosen."""

    model: str
    machine: dict[str, Any]
    profiles: tuple[Profile, ...]
    contestants: tuple[Contestant, ...]
    choice: BackendChoice | None
    path: Path | None  # of the stored choice
    mode: str = "encode"

    def fastest(self, profile: str, ours: bool | None = None) -> Contestant | None:
        """The fastest contestant of those that passed the gate."""
        passed = [one for one in self.contestants if one.refused is None and profile in one.speeds]
        passed = passed if ours is None else [one for one in passed if one.ours == ours]
        return min(passed, key=lambda one: one.speeds[profile].seconds, default=None)


def encode_report(
    model: Model,
    profiles: Sequence[Profile],
    *,
    backends: Sequence[str] | None = None,
    against: Sequence[str] = (),
    seconds: float = 20.0,
    memory: bool = True,
    keep: bool = True,
    log: Log = lambda line: None,
) -> EncodeReport:
    """Measure the backends that can run a model, and store the fastest that passes the gate.

    `seconds`: limit for each backend and profile. `keep`: store the choice in the cache.
    """
    able = [name for name, backend in BACKENDS.items() if backend.tolerance or name == TORCH]
    for name in backends or ():
        refuse((name not in able, f"backend {shown(name)!r} is not one of {', '.join(able)}"))
    for name in against:
        refuse((name not in PEERS, f"--against {shown(name)!r} is not one of {', '.join(PEERS)}"))
    check_model(model)
    model = model.plain()
    checked = [value for profile in profiles for value in profile.inputs[:CHECKED]]
    wanted = [name for name in able if name != TORCH and (backends is None or name in backends)]
    contestants, reference = [Contestant(TORCH, model)], logits_of(model, checked)
    for name in wanted:
        log(f"preparing {name}")
        contestants.append(_candidate(model, name, checked, reference))
    for peer in peers_of(model, against, log):
        contestants.append(_checked_peer(peer, model, checked, reference))
    racing = [contestant for contestant in contestants if contestant.refused is None]
    time_all(racing, profiles, seconds, log)
    own = [contestant for contestant in racing if contestant.ours]
    if memory and model.folder is not None:
        for contestant in own:
            contestant.memory = memory_of(model, contestant.name, profiles[-1].inputs[:32])
    choice = chosen_of(own, [profile.name for profile in profiles])
    place = keep_choice(model, choice, log) if keep else None
    return EncodeReport(str(model.folder), machine_of(), tuple(profiles), tuple(contestants), choice, place)


def keep_choice(model: Model, choice: BackendChoice, log: Log) -> Path | None:
    """Store the choice for a model; if the cache cannot be written, log a note, so that the figures are still shown."""
    if model.folder is None:
        return None
    try:
        return store(key_of(model.folder, measured_as(model)), choice)
    except UserError as error:
        log(f"note: the choice is not stored: {error}")
        return None


def check_model(model: Model) -> None:
    """Refuse a model that does not encode texts, and a folder that was exported for another engine."""
    task, opened = model.task_object, model.opened
    refuse(
        (opened.exported, f"this is a model for {model.card.backend} already; give the model it was made from"),
        (
            task.writes or opened.family.reads or opened.family.series or opened.tokenizer is None,
            f"a model for {model.task} does not encode texts: use --mode generate or --mode train",
        ),
    )


def machine_of() -> dict[str, Any]:
    """The machine and the versions of libraries."""
    versions = {name: version_of(name) for name in PACKAGES}
    return {"cpu": cpu_name(), "threads": torch.get_num_threads(), **versions}


def _candidate(model: Model, name: str, checked: Sequence[Any], reference: Sequence[Any]) -> Contestant:
    """A backend, exported if it needs that, and compared with plain torch."""
    try:
        if BACKENDS[name].precision:
            prepare_export(model, name)
        candidate = answering_by(model, name)
        return Contestant(name, candidate, fault_of(model, candidate, checked, BACKENDS[name], reference))
    except UserError as error:
        return Contestant(name, model, str(error))


def prepare_export(model: Model, name: str) -> None:
    """Export a model for an engine to the cache, unless it is there already; written as a whole or not at all."""
    refuse((model.folder is None, f"backend {name} is exported by the folder of a model, and this one has none"))
    backend = BACKENDS[name]
    folder = place_of_export(name, model.opened, model.task_object)
    if folder.is_dir():
        with suppress(UserError):
            answering_by(model, name).opened.predictor.build()
            return
        shutil.rmtree(folder)  # damaged: it is made again
    with whole_folder(folder) as inside:
        write: Any = write_ct2 if backend.engine == "ctranslate2" else write_onnx
        write(inside, model.opened, model.task, backend.precision)
        record_hashes(inside)


def _checked_peer(peer: Peer, model: Model, checked: Sequence[Any], reference: Sequence[Any]) -> Contestant:
    """A peer, compared with plain torch within the tolerance of its precision."""
    limits = BACKENDS["onnx-int8" if peer.int8 else "onnx"]
    loose = Backend(peer.name, "", max(limits.tolerance, 1e-3), max(limits.angle, 1e-5), "")
    loose = limits_for(loose, model.task_object)
    if peer.refused is not None:
        return Contestant(peer.name, peer.call, peer.refused, ours=False)
    try:
        fault = numbers_fault(reference, peer.numbers(list(checked)), loose, model.task_object.embeds)
    except (RuntimeError, ValueError, TypeError, KeyError, IndexError, OSError) as error:  # of any library
        fault = f"failed: {shown(' '.join(str(error).split()), 120)}"
    return Contestant(peer.name, peer.call, fault, ours=False)


def time_all(racing: Sequence[Contestant], profiles: Sequence[Profile], seconds: float, log: Log) -> None:
    """Measure the speeds of all contestants, profile by profile."""
    calls = {contestant.name: contestant.call for contestant in racing}
    for number, profile in enumerate(profiles, 1):
        log(f"timing {profile.name} ({number} of {len(profiles)}): {', '.join(calls)}")
        speeds = race(calls, profile, seconds)
        for contestant in racing:
            contestant.speeds[profile.name] = speeds[contestant.name]


def race(calls: Mapping[str, Callable[[list[Any]], Any]], profile: Profile, seconds: float) -> dict[str, Speed]:
    """Time contestants, which have all been called before, in turns on the texts of a profile."""
    batches = profile.calls()

    def run(call: Callable[[list[Any]], Any], repeats: int, number: int) -> None:
        for count in range(repeats):
            call(batches[(number * repeats + count) % len(batches)])

    once = turns({name: partial(run, call, 1) for name, call in calls.items()}, 1, warm=0, pause=PAUSE)
    repeats = max(1, math.ceil(TURN / max(min(map(min, once.values())), 1e-6)))
    runs = {name: partial(run, call, repeats) for name, call in calls.items()}
    times = turns(runs, ROUNDS, seconds=seconds, least=2, warm=0, pause=PAUSE)
    if repeats == 1:  # long calls are not made more often than needed
        times = {name: [*once[name], *values] for name, values in times.items()}
    share = 1 / len(batches)  # of the texts and tokens that one call has on average
    speeds = {}
    for name, values in times.items():
        seconds_per_call = [value / repeats for value in values]
        median = statistics.median(seconds_per_call)
        low, high = nearest_rank(seconds_per_call, 0.25), nearest_rank(seconds_per_call, 0.75)
        texts, tokens = len(profile.inputs) * share / median, profile.tokens * share / median
        speeds[name] = Speed(median, low, high, texts, tokens)
    return speeds


def chosen_of(contestants: Sequence[Contestant], profiles: Sequence[str]) -> BackendChoice:
    """The backend with the largest gain over plain torch, as the geometric mean over all profiles."""
    plain = next(contestant for contestant in contestants if contestant.name == TORCH).speeds
    gains = {
        contestant.name: math.prod(plain[name].seconds / contestant.speeds[name].seconds for name in profiles)
        ** (1 / len(profiles))
        for contestant in contestants
    }
    best = max(gains, key=lambda name: gains[name])
    best = best if gains[best] >= GAIN else TORCH
    date = datetime.now(UTC).date().isoformat()
    measured = {name: {backend.name: backend.speeds[name].texts for backend in contestants} for name in profiles}
    return BackendChoice(best, gains[best], tuple(profiles), date, measured)
