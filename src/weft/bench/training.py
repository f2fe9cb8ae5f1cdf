"""`weft bench --mode train`: pretraining steps on random tokens, those of Weft and of peers, timed in turns."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import count, cycle
from typing import Any

import numpy as np
import torch

from weft.backends.choice import version_of
from weft.bench.encode import Contestant, EncodeReport, machine_of, race
from weft.bench.peers import published, transformers
from weft.bench.texts import Profile
from weft.checkpoint.families import usual_heads
from weft.comparison.cost import peak_of_child
from weft.data.masking import Masking, shift
from weft.data.rows import Feed, Frame, Framed, PackedRows
from weft.data.shards import Corpus
from weft.errors import UserError, refuse, shown
from weft.files import peak_memory
from weft.objectives.losses import MaskedWords, NextToken
from weft.progress import Log
from weft.tasks.chosen import load
from weft.tasks.model import Model
from weft.training.log import peak_of
from weft.training.loop import Operations
from weft.training.plan import Training
from weft.training.step import Setup, Stepper, group_of

OURS, STEPS = "weft", 2  # different batches of a training run
Step = Callable[[], Any]


def training_report(
    model: Model,
    batches: Sequence[int],
    lengths: Sequence[int],
    *,
    against: Sequence[str] = (),
    seconds: float = 10.0,
    memory: bool = True,
    log: Log = lambda line: None,
) -> EncodeReport:
    """Time steps at each batch and length, with random weights of the model's sizes; memory is that of the last."""
    for name in against:
        refuse((name not in TRAINERS, f"--against {shown(name)!r} is not one of {', '.join(TRAINERS)}"))
    model, device, precision = model.plain(), model.opened.device, precision_of(model)
    installed = [name for name in against if version_of(name) is not None]
    for name in set(against) - set(installed):
        log(f"{name} is not installed: not compared")
    contestants = [Contestant(name, lambda inputs: None, ours=name == OURS) for name in (OURS, *installed)]
    sizes = [(batch, length) for length in lengths for batch in batches]
    profiles = [
        Profile(f"train {batch} x {length}, {precision}", batch, tuple(range(batch)), batch * length)
        for batch, length in sizes
    ]
    for number, (profile, (batch, length)) in enumerate(zip(profiles, sizes, strict=True), 1):
        step, operations = training_step(model, batch, length, precision)
        calls = {OURS: _settled(step, device)}
        calls[OURS]([])  # on a GPU it is captured
        for contestant in contestants[1:]:
            try:
                calls[contestant.name] = _settled(TRAINERS[contestant.name](model, batch, length, precision), device)
                calls[contestant.name]([])
            except (UserError, ImportError, OSError, RuntimeError, ValueError, TypeError, KeyError) as error:
                contestant.refused = f"cannot run it: {shown(' '.join(str(error).split()), 160)}"
                calls.pop(contestant.name, None)
        log(f"timing {profile.name} ({number} of {len(profiles)}): {', '.join(calls)}")
        speeds, peak = race(calls, profile, seconds), peak_of(device)
        for contestant in contestants:
            if contestant.name in speeds:
                share = None if peak is None else operations / speeds[contestant.name].seconds / peak
                contestant.speeds[profile.name] = replace(speeds[contestant.name], peak_share=share)
        del step, calls  # and with them their weights and states
        gc.collect()
    for contestant in contestants if memory else []:
        contestant.memory = (
            None if contestant.refused is not None else _memory_of(model, contestant.name, *sizes[-1], precision)
        )
    machine = {**machine_of(), "device": str(device)}
    return EncodeReport(str(model.folder), machine, tuple(profiles), tuple(contestants), None, None, mode="train")


def precision_of(model: Model) -> str:
    """The precision of training steps: that of --precision, else bf16 on a GPU that has it, else fp32."""
    if model.opened.precision != "auto":
        return model.opened.precision
    on_gpu = model.opened.device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16" if on_gpu else "fp32"


def training_step(model: Model, batch: int, length: int, precision: str) -> tuple[Step, float]:
    """A step of `weft pretrain`, and its floating-point operations."""
    family, config, device = model.opened.family, model.opened.config, model.opened.device
    heads = usual_heads(family, config)
    if "words" not in heads or family.reads:
        raise UserError(f"--mode train measures language models and masked language models, not {family.name}")
    refuse((length > config.context, f"--lengths: {length} tokens are more than the model's context, {config.context}"))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = family.network(config, {"words": config.vocabulary})
        network.initialize()
    ids = np.random.default_rng(0).integers(5, config.vocabulary, STEPS * batch * length).astype(np.uint32)
    text = Framed(Corpus([ids], np.array([0, len(ids)]), None, "random"), Frame())
    causal = family.generates
    rows = PackedRows(text, length, 1 if causal else 0, False, 0)
    change: Any = shift if causal else Masking(4, np.arange(5, config.vocabulary), None, 0.15, 0).apply
    objective: Any = NextToken() if causal else MaskedWords()
    plan = Training(learning_rate=1e-4, precision=precision)  # type: ignore[arg-type]
    feed = Feed(rows, change, 0, batch)
    setup = Setup(network=network, objective=objective, feed=feed, plan=plan, device=device, capture=rows.even)
    stepper = Stepper(setup)
    groups = [group_of(setup, step, 1 << 20) for step in range(max(1, STEPS - causal))]
    turn, numbers = cycle(groups), count()
    operations = Operations(network)
    for batches, _ in groups:
        for each in batches:
            operations.add(each)
    return lambda: stepper.step(*next(turn), next(numbers)), operations.total() / len(groups)


def transformers_step(model: Model, batch: int, length: int, precision: str) -> Step:
    """A step of a model of the same sizes in transformers, on as many tokens, with AdamW (fused on a GPU)."""
    refuse((precision not in ("fp32", "bf16"), f"steps of transformers are measured in fp32 or bf16, not {precision}"))
    library, device = transformers(), model.opened.device
    options = {"local_files_only": True, "trust_remote_code": False}
    config = library.AutoConfig.from_pretrained(published(model), **options)
    causal = model.opened.family.generates
    kind = library.AutoModelForCausalLM if causal else library.AutoModelForMaskedLM
    network = kind.from_config(config).to(device).train()
    optimizer = torch.optim.AdamW(network.parameters(), 1e-4, fused=device.type == "cuda")
    ids = torch.from_numpy(np.random.default_rng(0).integers(5, config.vocab_size, (batch, length))).to(device)
    chosen = torch.from_numpy(np.random.default_rng(1).random((batch, length)) < 0.15).to(device)
    labels = ids if causal else torch.where(chosen, ids, -100)

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext():
            loss = network(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


TRAINERS: dict[str, Callable[[Model, int, int, str], Step]] = {"transformers": transformers_step}


def _step_of(name: str, model: Model, batch: int, length: int, precision: str) -> Step:
    return (
        training_step(model, batch, length, precision)[0]
        if name == OURS
        else TRAINERS[name](model, batch, length, precision)
    )


def _settled(step: Step, device: torch.device) -> Callable[[list[Any]], Any]:
    """A call that takes a step and waits for the device."""

    def call(inputs: list[Any]) -> None:
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return call


def _memory_of(model: Model, name: str, batch: int, length: int, precision: str) -> int | None:
    """Peak bytes of two steps: on a GPU those of its tensors, else those of a separate process."""
    device = model.opened.device
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        step = _step_of(name, model, batch, length, precision)
        step()
        step()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    if model.folder is None or peak_memory() is None:
        return None
    given = {"folder": str(model.folder.resolve()), "task": model.task, "threads": torch.get_num_threads()}
    given |= {"step": [name, batch, length, precision]}
    return peak_of_child("from weft.bench.training import alone; alone()", given)


def alone() -> None:
    """The code of that process: take two steps, and print the peak memory."""
    given = json.loads(sys.stdin.buffer.read())
    torch.set_num_threads(given["threads"])
    name, *sizes = given["step"]
    model = load(given["folder"], task=given["task"], backend="torch", device="cpu")
    step = _step_of(name, model, *sizes)
    step()
    step()
    print(peak_memory())
