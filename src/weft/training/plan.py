"""How a run is trained: the section `[training]` of a recipe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import cos, pi, sqrt
from typing import ClassVar, Literal

from weft.config import option
from weft.errors import UserError

Schedule = Literal["cosine", "linear", "inverse-square-root", "stable", "constant"]
Precision = Literal["auto", "fp32", "bf16", "fp16"]


# What no machine of today could do anything with.
RATE = 100.0  # the highest learning rate; rates that train anything are below 1
LIMITS = {
    **dict.fromkeys(("steps", "evaluate_every", "save_every"), 1 << 40),
    **dict.fromkeys(("batch", "keep"), 1 << 20),
    "pass_tokens": 1 << 30,
    "log_every": 1 << 16,
    "threads": 1 << 10,
}
POSITIVE = ("epochs", "minutes", "epsilon", "clip", "explode")


@dataclass(frozen=True, kw_only=True)
class Training:
    """Steps, rates and habits of a training run."""

    panel: ClassVar = "Training"
    steps: int | None = option(None, "--steps", help="Optimizer steps.")
    epochs: float | None = option(None, "--epochs", help="Default: 3, and at least 1000 steps.", metavar="N")
    minutes: float | None = option(None, "--minutes", help="Train as many steps as fit into this time.", metavar="N")
    batch: int | None = option(None, "--batch", help="Examples per step. Default: about 8192 tokens.")
    pass_tokens: int | None = None  # tokens that go through the network at once; a larger step is accumulated
    learning_rate: float | None = option(None, "--learning-rate", "--lr", help="Peak learning rate.", metavar="RATE")
    optimizer: Literal["adamw", "muon"] = option(
        "adamw", "--optimizer", help="muon: for the matrices of the layers; AdamW for the rest."
    )
    schedule: Schedule = "cosine"
    warmup: float = 0.05  # steps in which the rate rises; below 1: a share of all steps
    decay: float = 0.2  # share of the steps in which `stable` falls at the end
    floor: float = 0.1  # the last rate as a share of the highest (cosine, linear, stable)
    weight_decay: float = 0.1  # of matrices and tables, not of biases and norms
    beta1: float = 0.9
    beta2: float = 0.98
    epsilon: float = 1e-8
    layer_decay: float = 1.0  # the rate of each layer as a share of the one above it
    clip: float | None = 1.0  # largest gradient norm
    precision: Precision = option("auto", "--precision", help="auto: bf16 on a GPU that supports it, else fp32.")
    compile: bool | None = option(
        None, "--compile/--no-compile", help="Compile the network. Default: in long runs on a GPU."
    )
    # Of each layer only the input is kept for the backward pass, which computes the rest again.
    checkpoint_activations: bool = option(
        False, "--checkpoint-activations", help="Use less memory and more time: layers are computed twice."
    )
    ema: float | None = option(None, "--ema", help="Keep a moving average of the weights: 0.999.", metavar="DECAY")
    evaluate_every: int | None = None  # steps; without it, ten times in a run
    evaluation_share: float = 0.1  # of the run's time that may go into generating held-out rows; 1: no limit
    save_every: int | None = None  # steps; without it, with each evaluation
    log_every: int = 10
    keep: int = 2  # checkpoints, beside the best model
    patience: int | None = option(None, "--patience", help="Stop after this many evaluations without improvement.")
    explode: float = 3.0  # a loss this many times the first one stops the run
    watch_gradients: bool = option(False, "--watch-gradients", help="Log how far back gradients go (rnn, lstm, gru).")
    threads: int | None = None  # of the CPU; without it, as many as torch takes

    def __post_init__(self) -> None:
        if self.steps is not None and self.epochs is not None:
            raise UserError("steps and epochs cannot both be given")
        bounds: list[tuple[tuple[str, ...], Callable[[float], bool], str]] = [
            (("learning_rate",), lambda value: 0 < value <= RATE, f"above 0 and at most {RATE:g}"),
            (POSITIVE, lambda value: 0 < value < 1e12, "above 0 and below 1e12"),
            (("layer_decay",), lambda value: 0 < value <= 1, "above 0 and at most 1"),
            (("evaluation_share",), lambda value: 0 < value <= 1, "above 0 and at most 1"),
            (("decay", "floor"), lambda value: 0 <= value <= 1, "between 0 and 1"),
            (("beta1", "beta2", "ema"), lambda value: 0 <= value < 1, "at least 0 and below 1"),
            (("warmup",), lambda value: 0 <= value < 1 << 40, "at least 0"),
            (("weight_decay",), lambda value: 0 <= value < 1e6, "at least 0"),
            (("patience",), lambda value: value >= 1, "at least 1"),
        ]
        for names, fits, what in bounds:
            for name in names:
                if (value := vars(self)[name]) is not None and not fits(value):
                    raise UserError(f"{name} must be {what}, not {value:g}")
        for name, limit in LIMITS.items():
            if (value := vars(self)[name]) is not None and not 1 <= value <= limit:
                raise UserError(f"{name} must be between 1 and {limit}, not {value}")


def learning_rate_at(step: int, plan: Training, learning_rate: float, steps: int) -> float:
    """The learning rate of the step with this number, from 0."""
    warmup = round(plan.warmup * steps) if plan.warmup < 1 else int(plan.warmup)
    if step < warmup:
        return learning_rate * (step + 1) / warmup
    done = (step - warmup + 1) / max(1, steps - warmup)  # share of what comes after the warm-up
    match plan.schedule:
        case "constant":
            return learning_rate
        case "inverse-square-root":
            return learning_rate * sqrt(max(1, warmup) / max(1, step + 1))
        case "linear":
            share = 1 - done
        case "cosine":
            share = 0.5 * (1 + cos(pi * done))
        case "stable":
            falling = plan.decay * steps / max(1, steps - warmup)
            share = min(1.0, (1 - done) / falling) if falling > 0 else 1.0
    return learning_rate * (plan.floor + (1 - plan.floor) * share)
