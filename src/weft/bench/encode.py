"""Backends of one model, measured in turns on this machine: which are right, and which is the fastest."""

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

GAIN = 1.05  # times: what two runs on a busy machine differ by is no gain
ROUNDS = 15  # turns of each backend, fewer where they take long
TURN = 0.03  # seconds of a turn at least: short calls are repeated
PAUSE = 0.02  # seconds between turns, until the threads of the one before sleep: those of torch wait for 7 ms


@dataclass(frozen=True)
class Speed:
    """How long one call of a profile takes."""

    seconds: float  # median
    low: float  # quartiles
    high: float
    texts: float  # a second
    tokens: float  # a second
    peak_share: float | None = None  # of what the device's maker states; of training steps


@dataclass
class Contestant:
    """A backend or a peer: how it answers, and what was measured."""

    name: str
    call: Callable[[list[Any]], Any]
    refused: str | None = None
    ours: bool = True
    memory: int | None = None  # bytes of a process of its own, at most
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
        passed = [each for each in self.contestants if each.refused is None and profile in each.speeds]
        passed = passed if ours is None else [each for each in passed if each.ours == ours]
        return min(passed, key=lambda each: each.speeds[profile].seconds, default=None)


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

    `seconds`: for each backend and profile, at most. `keep`: store the choice in the cache.
    """
    able = [name for name, each in BACKENDS.items() if each.tolerance or name == TORCH]
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
    racing = [each for each in contestants if each.refused is None]
    time_all(racing, profiles, seconds, log)
    if memory and model.folder is not None:
        for each in racing:
            each.memory = memory_of(model, each.name, profiles[-1].inputs[:32]) if each.ours else None
    choice = chosen_of([each for each in racing if each.ours], [each.name for each in profiles])
    place = keep_choice(model, choice, log) if keep else None
    return EncodeReport(str(model.folder), machine_of(), tuple(profiles), tuple(contestants), choice, place)


def keep_choice(model: Model, choice: BackendChoice, log: Log) -> Path | None:
    """Store the choice for a model; where the cache cannot be written, what was measured is still shown."""
    if model.folder is None:
        return None
    try:
        return store(key_of(model.folder, measured_as(model)), choice)
    except UserError as error:
        log(f"note: the choice is not stored: {error}")
        return None


def check_model(model: Model) -> None:
    """Refuse a model that reads no texts, or that another engine runs already."""
    task, opened = model.task_object, model.opened
    refuse(
        (opened.exported, f"this is a model for {model.card.backend} already; give the model it was made from"),
        (
            task.writes or opened.family.reads or opened.family.series or opened.tokenizer is None,
            f"a model for {model.task} does not encode texts: use --mode generate or --mode train",
        ),
    )


def machine_of() -> dict[str, Any]:
    """What the figures were measured on."""
    versions = {name: version_of(name) for name in PACKAGES}
    return {"cpu": cpu_name(), "threads": torch.get_num_threads(), **versions}


def _candidate(model: Model, name: str, checked: Sequence[Any], reference: Sequence[Any]) -> Contestant:
    """A backend, made ready and compared with plain torch."""
    try:
        if BACKENDS[name].precision:
            prepare_export(model, name)
        candidate = answering_by(model, name)
        return Contestant(name, candidate, fault_of(model, candidate, checked, BACKENDS[name], reference))
    except UserError as error:
        return Contestant(name, model, str(error))


def prepare_export(model: Model, name: str) -> None:
    """The form of a model for an engine in the cache, by what it is made from; written whole, or not at all."""
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
    """A peer, compared with plain torch by the tolerance of its precision."""
    limits = BACKENDS["onnx-int8" if peer.int8 else "onnx"]
    loose = Backend(peer.name, "", max(limits.tolerance, 1e-3), max(limits.angle, 1e-5), "")
    loose = limits_for(loose, model.task_object)
    if peer.refused is not None:
        return Contestant(peer.name, peer.call, peer.refused, ours=False)
    try:
        fault = numbers_fault(reference, peer.numbers(list(checked)), loose, model.task_object.embeds)
    except (RuntimeError, ValueError, TypeError, KeyError, IndexError, OSError) as error:  # of whatever library
        fault = f"failed: {shown(' '.join(str(error).split()), 120)}"
    return Contestant(peer.name, peer.call, fault, ours=False)


def time_all(racing: Sequence[Contestant], profiles: Sequence[Profile], seconds: float, log: Log) -> None:
    """Give every contestant its speeds, profile by profile."""
    for number, profile in enumerate(profiles, 1):
        log(f"timing {profile.name} ({number} of {len(profiles)}): {', '.join(each.name for each in racing)}")
        speeds = race({each.name: each.call for each in racing}, profile, seconds)
        for each in racing:
            each.speeds[profile.name] = speeds[each.name]


def race(calls: Mapping[str, Callable[[list[Any]], Any]], profile: Profile, seconds: float) -> dict[str, Speed]:
    """Each contestant in turns on the texts of a profile, which it has answered before: medians with quartiles."""
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
    share = 1 / len(batches)  # of the texts and tokens, that one call has on average
    speeds = {}
    for name, values in times.items():
        each = [value / repeats for value in values]
        median = statistics.median(each)
        texts, tokens = len(profile.inputs) * share / median, profile.tokens * share / median
        speeds[name] = Speed(median, nearest_rank(each, 0.25), nearest_rank(each, 0.75), texts, tokens)
    return speeds


def chosen_of(contestants: Sequence[Contestant], profiles: Sequence[str]) -> BackendChoice:
    """The backend with the largest gain over plain torch, as the geometric mean of all profiles."""
    torchs = next(each for each in contestants if each.name == TORCH).speeds
    gains = {
        each.name: math.prod(torchs[name].seconds / each.speeds[name].seconds for name in profiles)
        ** (1 / len(profiles))
        for each in contestants
    }
    best = max(gains, key=lambda name: gains[name])
    best = best if gains[best] >= GAIN else TORCH
    date = datetime.now(UTC).date().isoformat()
    measured = {name: {each.name: each.speeds[name].texts for each in contestants} for name in profiles}
    return BackendChoice(best, gains[best], tuple(profiles), date, measured)
