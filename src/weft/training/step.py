"""One step of a run: its batches, its passes, and the update of the weights."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from weft.data.chance import key_of
from weft.data.shards import COMPILED
from weft.files import cache_folder
from weft.models.base import Network
from weft.nn.multihead import Attention
from weft.nn.rows import Batch, Ragged, Rows
from weft.training.optim import make_optimizer
from weft.training.setup import Setup

KINDS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
MOST = 64  # shapes of batches that are recorded; those that come later go without
Sums = Callable[[Any, Batch], dict[str, Tensor]]


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    kind = KINDS[precision]
    return nullcontext() if kind is None else torch.autocast(device.type, kind)


def graphs_compiled() -> int:
    """How many graphs the compiler has made in this process; a number that grows in mid-run means lost minutes."""
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]


class Passes:
    """Runs the passes of a step: their gradients add up, and so do their losses."""

    def __init__(
        self,
        network: nn.Module,
        sums: Sums,
        terms: int,
        device: torch.device,
        precision: str,
        scaler: torch.amp.GradScaler,
        capture: bool = False,
        ragged: bool = False,
        finish: Callable[[], Tensor] | None = None,
        weights: Sequence[nn.Parameter] | None = None,
    ) -> None:
        self.weights = list(network.parameters()) if weights is None else list(weights)  # all that is trained
        self.network, self.sums, self.device, self.precision, self.scaler = network, sums, device, precision, scaler
        self.losses = torch.zeros(terms, device=device)  # of the step so far, each term's mean
        self.capture = capture  # where all batches have one shape: launching kernels is then what takes longest
        self.ragged = ragged  # compiled for batches of any shape at once, rather than anew for some of them
        self.finish = finish  # clips the gradients and updates the weights; how long the gradients were
        self.graphs: dict[tuple[Shapes, bool], Graphs] = {}
        self.first: Graphs | None = None  # which of them wrote the gradients of this step
        self.pool: Any = None

    def step(self, batches: Sequence[Batch], counts: Tensor, seed: Callable[[int], int]) -> Tensor | None:
        """All passes of a step; `counts` are the step's, so that each prediction weighs the same in whichever pass.

        Where a graph has also updated the weights, how long the gradients were; None: that is still to be done.
        """
        whole = self.finish is not None and len(batches) == 1
        counts = counts.to(self.device, non_blocking=True)
        self.losses.zero_()
        self.forget()
        self.first = None
        for number, batch in enumerate(batches):
            shapes = _shapes(batch), whole
            if self.capture and shapes not in self.graphs and len(self.graphs) < MOST:
                self._record(batch.to(self.device), counts, number == 0, whole)
            torch.manual_seed(seed(number))
            graphs = self.graphs.get(shapes)
            if graphs is None or (number and self.first is not graphs):  # later passes add to what the first has left
                self.run(batch.to(self.device) if self.device.type != "cpu" else batch, counts)
            else:
                graphs.play(batch, counts, number == 0)
                self.first = graphs
        return None if self.first is None else self.first.norm

    def _record(self, batch: Batch, counts: Tensor, first: bool, whole: bool) -> None:
        if not first:  # the gradients of the passes before are not to be lost
            return
        losses = self.losses.clone()
        try:
            self.graphs[_shapes(batch), whole] = Graphs(self, batch, counts, whole)
        except torch.OutOfMemoryError:
            raise  # smaller passes may do
        except RuntimeError as error:  # no graph of this is to be had: it goes without
            self.capture = False
            warnings.warn(f"passes cannot be captured: {str(error).splitlines()[0]}", stacklevel=2)
        self.forget()
        self.losses.copy_(losses)

    def forget(self) -> None:
        """The gradients of the step before."""
        for parameter in self.weights:
            parameter.grad = None

    def run(self, batch: Batch, counts: Tensor) -> None:
        """One pass."""
        if self.ragged:
            for tensor in _tensors(batch):
                torch._dynamo.maybe_mark_dynamic(tensor, 0)
        with autocast(self.device, self.precision):
            sums = self.sums(self.network, batch)
        means = torch.stack(list(sums.values())) / counts
        self.scaler.scale(means.sum()).backward()  # type: ignore[no-untyped-call]
        self.losses += means.detach()

    def release(self) -> None:
        """Let go of everything that takes memory."""
        self.graphs, self.first, self.pool = {}, None, None
        self.forget()


class Graphs:
    """A pass recorded as CUDA graphs: the first of a step writes the gradients, later ones add to them."""

    def __init__(self, passes: Passes, batch: Batch, counts: Tensor, whole: bool) -> None:
        """`whole`: the only pass of its step, with the update of the weights in the same graph."""
        self.batch, self.counts = batch, counts.clone()
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            # Compiles, and lets every library set itself up; a second shape finds that done.
            for _ in range(1 if passes.graphs else 3):
                passes.run(_anew(batch), self.counts)
                passes.forget()
        torch.cuda.current_stream().wait_stream(side)
        self.first, self.later = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        # One memory for all graphs: nothing but the gradients, which are held, outlives a replay.
        passes.pool = passes.pool or torch.cuda.graph_pool_handle()
        # The loader works in a thread of its own meanwhile: what it asks of the GPU is no part of this.
        with torch.cuda.graph(self.first, pool=passes.pool, capture_error_mode="thread_local"):
            passes.run(_anew(batch), self.counts)
            self.norm = passes.finish() if whole and passes.finish is not None else None
        self.gradients: list[tuple[nn.Parameter, Tensor | None]] = []
        if whole:  # the gradients have been used up
            return
        self.gradients = [(parameter, parameter.grad) for parameter in passes.weights]
        with torch.cuda.graph(self.later, pool=passes.pool, capture_error_mode="thread_local"):
            passes.run(_anew(batch), self.counts)

    def play(self, batch: Batch, counts: Tensor, first: bool) -> None:
        self.counts.copy_(counts)
        for ours, theirs in zip(_tensors(self.batch), _tensors(batch), strict=True):
            ours.copy_(theirs, non_blocking=True)
        (self.first if first else self.later).replay()
        for parameter, gradient in self.gradients:  # each shape has laid out its own
            parameter.grad = gradient


def _anew(batch: Batch) -> Batch:
    """The same tensors with nothing worked out from them yet: a graph must work it out each time."""
    source = batch.source
    return replace(
        batch,
        rows=Rows(batch.rows.starts, batch.rows.longest),
        source=None if source is None else Ragged(source.tokens, Rows(source.rows.starts, source.rows.longest)),
    )


Shapes = tuple[tuple[int, ...], ...]


def _shapes(batch: Batch) -> Shapes:
    source = 0 if batch.source is None else batch.source.rows.longest
    return ((batch.rows.longest, source), *(tuple(tensor.shape) for tensor in _tensors(batch)))


def _tensors(batch: Batch) -> list[Tensor]:
    segments = [] if batch.segments is None else [batch.segments]
    source = [] if batch.source is None else [batch.source.tokens, batch.source.rows.starts]
    return [batch.tokens, batch.rows.starts, *segments, *source, *batch.targets.values()]


class Operations:
    """How many products and sums a batch costs, forward and backward."""

    def __init__(self, network: Network) -> None:
        self.network = network
        inside = [module for name, module in network.named_modules() if name.startswith("layers.")]
        turns = network.config.layers / max(1, len(network.layers))  # a layer may be read again and again
        self.matrices = turns * sum(module.weight.numel() for module in inside if isinstance(module, nn.Linear))
        attentions = [module for module in inside if isinstance(module, Attention)]
        self.scores = turns * sum(a.heads * a.head_width * (0.5 if a.causal else 1.0) for a in attentions)
        self.words = network.tokens.weight.numel()

    def of(self, batch: Batch) -> float:
        if batch.source is not None:
            return 3.0 * self.network.operations(batch.source.rows, batch.rows)
        if self.network.products is not None:
            return 6.0 * self.network.products * len(batch.tokens)
        lengths = batch.rows.lengths().double()
        predicted = len(batch.targets.get("words", ()))
        matrices = 6.0 * (self.matrices * len(batch.tokens) + self.words * predicted)
        return matrices + 12.0 * self.scores * float(lengths.square().sum())


# Where the user wants torch to keep compiled code. Its own choice is a folder in the shared temporary folder, of a name
# that anyone can guess, and it runs what lies there.
COMPILER_CACHE = os.environ.get("TORCHINDUCTOR_CACHE_DIR")


@dataclass(frozen=True)
class Group:
    """The passes of one step, and how many predictions of each kind they ask for together."""

    batches: list[Batch]
    counts: Tensor  # float32, one for each term


def total(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Counts of several batches added up by name."""
    sums: dict[str, int] = {}
    for batch in counts:
        for name, count in batch.items():
            sums[name] = sums.get(name, 0) + count
    return sums


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
