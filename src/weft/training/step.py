"""One step of a run: its batches, its passes, and the update of the weights."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from weft.data.chance import key_of
from weft.data.shards import COMPILED
from weft.files import cache_folder
from weft.nn.rows import Batch
from weft.training.evaluation import total
from weft.training.optim import make_optimizer
from weft.training.passes import Passes
from weft.training.setup import Setup

# Where the user wants torch to keep compiled code. Its own choice is a folder in the shared temporary folder, of a name
# that anyone can guess, and it runs what lies there.
COMPILER_CACHE = os.environ.get("TORCHINDUCTOR_CACHE_DIR")


@dataclass(frozen=True)
class Group:
    """The passes of one step, and how many predictions of each kind they ask for together."""

    batches: list[Batch]
    counts: Tensor  # float32, one for each term


def group_of(s: Setup, step: int, pass_tokens: int) -> Group:
    """The batches of a step, in passes of so many tokens at most; in pinned memory where they go to a GPU."""
    targets = s.pace(step) if s.pace is not None else {}
    batches = [replace(batch, targets={**batch.targets, **targets}) for batch in s.feed.passes(step, pass_tokens)]
    counts = torch.tensor([max(1, count) for count in total(map(s.objective.counts, batches)).values()]).float()
    if s.device.type == "cuda":
        return Group([batch.pinned() for batch in batches], counts.pin_memory())
    return Group(batches, counts)


def seed_of(seed: int, step: int) -> Callable[[int], int]:
    """What dropout follows from in each pass of a step."""
    return lambda number: key_of(seed, "dropout", step, number) >> 1


def keep_compiled_code_private() -> None:
    """Let torch's compiler keep its code in the user's own cache rather than where others could put theirs."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = COMPILER_CACHE or str(cache_folder() / COMPILED)
    from torch._inductor import config

    if hasattr(config, "cpp_cache_precompile_headers"):  # these are always in the temporary folder
        config.cpp_cache_precompile_headers = False


class Stepper:
    """Takes the steps of a run: what the loop repeats, and what tests and benchmarks look at."""

    def __init__(self, setup: Setup, scale: float = 65536.0, steady: int = 0) -> None:
        """`scale` and `steady`: of the loss in fp16, and for how many steps it has been so."""
        s, plan, device = setup, setup.plan, setup.device
        if plan.compile:
            keep_compiled_code_private()
        self.setup = s
        self.network = s.network.to(device).train()
        self.beside = None if s.beside is None else s.beside.to(device)
        self.optimizer = make_optimizer(self.network, plan, s.learning_rate, self.beside, s.faster)
        self.scaler = torch.amp.GradScaler(device.type, init_scale=scale, enabled=s.precision == "fp16")
        if self.scaler.is_enabled():
            self.scaler.load_state_dict({**self.scaler.state_dict(), "scale": scale, "_growth_tracker": steady})
        even = s.feed.source.even
        self.passes = Passes(
            self.network,
            torch.compile(s.objective.sums, fullgraph=True) if plan.compile else s.objective.sums,
            len(s.objective.terms),
            device,
            s.precision,
            self.scaler,
            capture=device.type == "cuda" and (s.capture or (plan.compile and even)),
            ragged=plan.compile and not even,
            finish=None if self.scaler.is_enabled() else self.update,
            weights=s.weights,
        )

    @property
    def losses(self) -> Tensor:
        """The mean of each term over the step before."""
        return self.passes.losses

    def step(self, batches: Sequence[Batch], counts: Tensor, number: int) -> Tensor:
        """Take one step; how long its gradients were."""
        norm = self.passes.step(batches, counts, seed_of(self.setup.feed.seed, number))
        return self.update() if norm is None else norm

    def update(self) -> Tensor:
        """Clip the gradients that the passes have left and take one step along them; how long they were."""
        self.scaler.unscale_(self.optimizer)
        moved = [parameter for parameter in self.setup.weights if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in moved if parameter.grad is not None])
        if self.setup.plan.clip is not None:
            torch.nn.utils.clip_grads_with_norm_(moved, self.setup.plan.clip, norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return norm
