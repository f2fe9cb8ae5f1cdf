"""`weft bench --mode train`: tokens a second of training steps."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count, cycle
from typing import Any

import numpy as np
import torch

from weft.checkpoint.families import usual_heads
from weft.data.masking import Masking, shift
from weft.data.rows import Feed, Frame, Framed, PackedRows
from weft.data.shards import Corpus
from weft.errors import UserError, refuse
from weft.objectives.losses import MaskedWords, NextToken
from weft.tasks.model import Model
from weft.timing import nearest_rank, turns
from weft.training.log import memory_used, peak_of
from weft.training.loop import Operations
from weft.training.plan import Training
from weft.training.step import Setup, Stepper, group_of

STEPS = 2  # different batches of a training run


@dataclass(frozen=True)
class WorkSpeed:
    """One line of the table: a batch, and how fast it went."""

    name: str
    tokens: float  # a second, by the median
    low: float  # quartiles
    high: float
    seconds: float  # median of a call or a step
    memory: int  # bytes
    peak_share: float | None = None  # of what the device's maker states


def precision_of(model: Model) -> str:
    """The precision of training steps: as `--precision` says, else bf16 on a GPU that has it."""
    if model.opened.precision != "auto":
        return model.opened.precision
    on_gpu = model.opened.device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16" if on_gpu else "fp32"


def train_speeds(
    model: Model, batches: Sequence[int], lengths: Sequence[int], precision: str, seconds: float, repeats: int = 5
) -> list[WorkSpeed]:
    """Steps of pre-training at each batch and length, on random tokens and fresh weights of the model's sizes."""
    speeds, device = [], model.opened.device
    for length in lengths:
        for batch in batches:
            step, operations = training_step(model, batch, length, precision)
            times = turns({"step": step}, repeats, seconds=seconds, least=2, warm=2, settle=settle_on(device))["step"]
            peak, median = peak_of(device), statistics.median(times)
            share = None if peak is None else operations / median / peak
            name = f"train {batch} x {length}, {precision}"
            speeds.append(_speed(name, batch * length, times, memory_used(device), share))
            del step
            gc.collect()
    return speeds


def training_step(model: Model, batch: int, length: int, precision: str) -> tuple[Callable[[int], Any], float]:
    """A step as `weft pretrain` takes it, and the products and sums that it needs."""
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
    setup = Setup(network=network, objective=objective, feed=Feed(rows, change, 0, batch), plan=plan, device=device)
    stepper = Stepper(setup)
    groups = [group_of(setup, step, 1 << 20) for step in range(max(1, STEPS - causal))]
    turn, number = cycle(groups), count()
    operations = Operations(network)
    needed = statistics.mean(sum(map(operations.of, group[0])) for group in groups)
    return lambda _: stepper.step(*next(turn), next(number)), needed


def settle_on(device: torch.device) -> Callable[[], Any]:
    """What waits until a device has done its work."""
    return torch.cuda.synchronize if device.type == "cuda" else lambda: None


def _speed(name: str, tokens: int, times: Sequence[float], memory: int, share: float | None = None) -> WorkSpeed:
    median, values = statistics.median(times), list(times)
    low, high = tokens / nearest_rank(values, 0.75), tokens / nearest_rank(values, 0.25)
    return WorkSpeed(name, tokens / median, low, high, median, memory, share)
