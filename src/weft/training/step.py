"""One step of a run: its setup, batches, forward and backward passes, and the update of the weights."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from weft.data.chance import key_of
from weft.data.rows import ExampleSource, Feed
from weft.data.shards import COMPILED
from weft.errors import UserError, refuse
from weft.files import cache_folder
from weft.models.base import Network
from weft.nn.attention import Attention
from weft.nn.graphs import REPLACED, captured, seed_generators, tried_out
from weft.nn.recurrent import Recurrent
from weft.nn.rows import Batch, Ragged, Rows
from weft.objectives.losses import Objective
from weft.training.adamw import AdamW
from weft.training.half_weights import HalfWeights
from weft.training.muon import Muon, muon_parts
from weft.training.plan import Training

UNKNOWN = 2000  # steps that a run of some minutes counts with until its speed is known


@dataclass(frozen=True)
class HeldOutMetrics:
    """The task's own metrics of the model as it is."""

    values: Mapping[str, float]
    deciding: str  # the metric that decides which model is kept, the higher the better; "": the loss


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What one run trains, on which data and how; the first three are enough for a step."""

    network: Network
    objective: Objective
    feed: Feed
    held_out: ExampleSource | None = None  # what the run is evaluated on
    plan: Training = Training()
    device: torch.device = torch.device("cpu")
    decode: Callable[[list[int]], str] = str  # tokens as text, to show what went wrong
    evaluate_first: bool = False  # also before the first step, for training that is continued
    # The task's own metrics, which decide which model is best; with a number, of so many evenly spaced rows.
    evaluate: Callable[[int | None], HeldOutMetrics] | None = None
    generated: int = 0  # rows for which an evaluation generates text; 0: it generates none, and is quick
    pace: Callable[[int], dict[str, Tensor]] | None = None  # targets that every batch of a step has besides
    faster: Mapping[str, float] = field(default_factory=dict)  # by prefix of a name: factor of the learning rate
    capture: bool = False  # batches come in few shapes, so that their passes can be captured as CUDA graphs
    may_compile: bool = False  # between two steps, unless the plan decides it

    @property
    def steps(self) -> int:
        """How many there are; a guess where minutes are given and the speed is not known yet."""
        if self.plan.minutes is None:
            return self.plan.steps or 1
        return min(UNKNOWN, self.plan.steps or UNKNOWN)

    @property
    def learning_rate(self) -> float:
        return self.plan.learning_rate or 0.0

    @property
    def precision(self) -> str:
        return "fp32" if self.plan.precision == "auto" else self.plan.precision

    @property
    def beside(self) -> nn.Module | None:
        """Weights that the objective has of its own, where there are any."""
        beside = self.objective.beside
        return None if beside is None or next(beside.parameters(), None) is None else beside

    @property
    def weights(self) -> list[nn.Parameter]:
        """All that is trained."""
        return [*self.network.parameters(), *(() if self.beside is None else self.beside.parameters())]

    def of_steps(self, steps: int) -> Setup:
        """The same run when its speed, and so its number of steps, is known."""
        plan = self.plan
        every = plan.evaluate_every or max(1, steps // 10)
        warmup = min(plan.warmup, steps // 4) if plan.warmup >= 1 else plan.warmup
        plan = replace(plan, minutes=None, steps=steps, warmup=warmup, evaluate_every=every)
        return replace(self, plan=replace(plan, save_every=plan.save_every or every))

    def due(self, every: int | None, step: int) -> bool:
        """Whether something that is done so often is done after this step; None: at the end alone."""
        return step == self.steps or (every is not None and step > 0 and step % every == 0)


def depth_of(network: Network, name: str) -> int:
    """How many layers below the heads a weight or module stands: 0 for the heads, more than the layers for tables."""
    layers = network.layer_names()  # of an encoder-decoder those of the decoder are nearer to the heads
    stacks = [(*network.TOP, "beside"), *reversed(layers)]
    inside = (depth for depth, names in enumerate(stacks) if any(f"{name}.".startswith(f"{part}.") for part in names))
    return next(inside, len(layers) + 1)


def freeze(network: Network, what: str) -> None:
    """Train no weights of a part of the network, and without dropout there: `encoder`, `all-but-K` or `tokens`."""
    if what == "tokens":
        network.get_submodule("tokens").requires_grad_(False)
        return
    whole, layers = what == "encoder", len(network.layer_names())
    count = 0 if whole else int(what.removeprefix("all-but-"))
    none = whole and network.decoder is not None and network.encoder is None
    refuse(
        (none, "freeze encoder: this model has none; freeze tokens, or all-but-K"),
        (not whole and count >= layers, f"freeze {what}: the model has only {layers} layers"),
    )
    # Of the encoder's; a table that both sides read is among it.
    reads = ["encoder", "encoder_norm", "encoder_positions", "source_tokens", "positions", "dropout"]
    reads += ["tokens"] if network.source_tokens is None else []

    def is_free(name: str) -> bool:
        if not whole:
            return depth_of(network, name) <= count
        part = name.split(".")[0]
        return part in ("heads", "pooler", "mix") if network.decoder is None else part not in reads

    for name, parameter in network.named_parameters():
        parameter.requires_grad_(is_free(name))
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise UserError(f"freeze {what}: nothing of this model would be left to train")
    for name, module in network.named_modules():
        if isinstance(module, nn.Dropout):
            module.p = module.p if is_free(name) else 0.0
        elif any(parameter.requires_grad for parameter in module.parameters()):
            continue
        elif isinstance(module, Attention):
            module.dropout = 0.0
        elif isinstance(module, Recurrent):
            module.dropout = module.weight_drop = 0.0


def recompute_layers(network: Network) -> None:
    """Keep only the input of each layer for the backward pass, which computes the rest again (Chen et al., 2016)."""
    layers = [layer for stack in network.stacks().values() for layer in stack]
    if not layers:
        raise UserError("checkpoint_activations is for models with layers, one above the other; this one has none")
    for layer in layers:
        layer.forward = partial(_recomputed, partial(type(layer).forward, layer))


def _recomputed(forward: Callable[..., Any], *given: Any, **named: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*given, **named)
    return checkpoint(forward, *given, use_reentrant=False, **named)


def learned(network: nn.Module, beside: nn.Module | None) -> dict[str, nn.Parameter]:
    """Every weight by name; those that an objective has of its own, and no model is saved with, as `beside`."""
    own = {} if beside is None else {f"beside.{name}": weight for name, weight in beside.named_parameters()}
    return {**dict(network.named_parameters()), **own}


def make_optimizer(
    network: Network,
    plan: Training,
    learning_rate: float,
    beside: nn.Module | None = None,
    faster: Mapping[str, float] | None = None,
) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter, 2019) or Muon; matrices and tables alone decay.

    Each group has its `share` of the rate: by the depth of its layer, by the network's `rate_factors`, and by `faster`,
    for beginnings of names.
    """
    named = [(name, parameter) for name, parameter in learned(network, beside).items() if parameter.requires_grad]
    parameters = [parameter for _, parameter in named]
    if not parameters:
        raise UserError("there is nothing to train: everything is frozen")
    if plan.layer_decay < 1 and not network.layer_names():
        raise UserError("layer_decay is for models with layers, one above the other; this one has none")
    muon = muon_parts(network) if plan.optimizer == "muon" else {}
    if plan.optimizer == "muon" and not muon:
        raise UserError("optimizer muon is for models with layers of matrices; this one has none: leave it out")
    by_rate: dict[tuple[float, float, int], list[Tensor]] = {}
    for name, parameter in named:
        share = plan.layer_decay ** depth_of(network, name) if plan.layer_decay < 1 else 1.0
        larger = next((times for start, times in network.rate_factors.items() if name.startswith(start)), 1.0)
        share *= larger * next((times for start, times in (faster or {}).items() if name.startswith(start)), 1.0)
        decay = plan.weight_decay / larger if parameter.dim() >= 2 else 0.0  # which the rate is multiplied by
        by_rate.setdefault((share, decay, muon.get(name, 0)), []).append(parameter)
    groups: list[dict[str, Any]] = [
        {"params": group, "weight_decay": decay, "share": share, "parts": parts}
        for (share, decay, parts), group in by_rate.items()
    ]
    fused = all(p.is_floating_point() and p.device.type in ("cpu", "cuda", "mps") for p in parameters)
    on_gpu = all(p.device.type == "cuda" for p in parameters)
    if on_gpu:  # rates that a CUDA graph reads anew each time, one for each share
        rates = {share: torch.tensor(learning_rate, device=parameters[0].device) for share, _, _ in by_rate}
        groups = [{**group, "lr": rates[group["share"]]} for group in groups]
    betas = (plan.beta1, plan.beta2)
    kind = Muon if muon else AdamW
    optimizer = kind(groups, learning_rate, betas, plan.epsilon, fused=fused, capturable=on_gpu)
    by_muon = {parameter for group in groups if group["parts"] for parameter in group["params"]}
    for parameter in parameters:  # now rather than in the first step, so that memory cannot run out in its middle
        if parameter in by_muon:
            optimizer.state[parameter] = {"momentum": torch.zeros_like(parameter)}
            continue
        optimizer.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device if fused else "cpu"),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer


def optimizer_tensors(
    network: nn.Module, optimizer: torch.optim.AdamW, beside: nn.Module | None = None
) -> dict[str, Tensor]:
    """The optimizer's state under the names of the weights it belongs to."""
    return {
        f"{name}:{key}": tensor
        for name, parameter in learned(network, beside).items()
        for key, tensor in optimizer.state.get(parameter, {}).items()
    }


KINDS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
MOST = 64  # shapes of batches that are captured at most


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    kind = KINDS[precision]
    return nullcontext() if kind is None else torch.autocast(device.type, kind)


@dataclass(eq=False)
class Passes:
    """Runs the passes of a step: their gradients add up, and so do their losses."""

    network: nn.Module
    sums: Callable[[Any, Batch], dict[str, Tensor]]
    terms: int
    device: torch.device
    precision: str
    scaler: torch.amp.GradScaler
    capture: bool = False  # as CUDA graphs, if batches have few shapes: launching kernels then takes longest
    ragged: bool = False  # compiled once for batches of any shape
    compiled: bool = False
    finish: Callable[[], Tensor] | None = None  # clips the gradients, updates the weights and returns the gradient norm
    weights: Sequence[nn.Parameter] = ()  # all trained weights; default: those of the network

    def __post_init__(self) -> None:
        self.weights = list(self.weights or self.network.parameters())
        self.losses = torch.zeros(self.terms, device=self.device)  # the mean of each term in the step so far
        self.graphs: dict[tuple[Shapes, bool], Graphs] = {}
        self.first: Graphs | None = None  # the graphs that wrote the gradients of this step
        self.pool: Any = None
        self.replaced = len(REPLACED)

    def step(self, batches: Sequence[Batch], counts: Tensor, seed: Callable[[int], int]) -> Tensor | None:
        """Run all passes of a step; returns the gradient norm if a graph updated the weights.

        `counts`: predictions of the whole step, by which the losses are divided.
        """
        whole = self.finish is not None and len(batches) == 1
        self.losses.zero_()
        self.forget()
        self.first = None
        if self.replaced != len(REPLACED):  # dropout in older graphs draws from a generator that was replaced
            self.replaced, self.graphs = len(REPLACED), {}
        for number, batch in enumerate(batches):
            shapes = _shapes(batch), whole
            # Only in the first pass of a step: capturing clears the gradients.
            if self.capture and shapes not in self.graphs and len(self.graphs) < MOST and number == 0:
                self._record(batch.to(self.device), counts.to(self.device), whole)
            seed_generators(seed(number), self.device)
            graphs = self.graphs.get(shapes)
            if graphs is None or (number and self.first is not graphs):  # other graphs have gradients of their own
                here = batch.to(self.device) if self.device.type != "cpu" else batch
                self.run(here, counts.to(self.device, non_blocking=True))
            else:
                graphs.play(batch, counts, number == 0)
                self.first = graphs
        return None if self.first is None else self.first.norm

    def _record(self, batch: Batch, counts: Tensor, whole: bool) -> None:
        losses = self.losses.clone()
        graphs = Graphs(self, batch, counts)
        try:
            graphs.capture(self, whole)
            self.graphs[_shapes(batch), whole] = graphs
        except torch.OutOfMemoryError:
            raise  # the loop tries smaller passes
        except RuntimeError as error:  # this cannot be captured
            # Older graphs are dropped too: their random numbers would be the same in every step.
            self.capture, self.graphs = False, {}
            warnings.warn(f"passes cannot be captured: {str(error).splitlines()[0]}", stacklevel=2)
        self.forget()
        self.losses.copy_(losses)

    def forget(self) -> None:
        """Clear the gradients of the last step."""
        for parameter in self.weights:
            parameter.grad = None

    def half_weights(self) -> AbstractContextManager[Any]:
        """Copies of the weights for passes with half precision; the compiler makes its own, inside other kernels."""
        kind = KINDS[self.precision]
        return nullcontext() if self.compiled or kind is None else HalfWeights(self.weights, kind)

    def run(self, batch: Batch, counts: Tensor, half_weights: AbstractContextManager[Any] | None = None) -> None:
        """Run one forward and backward pass."""
        if self.ragged:
            for tensor in _tensors(batch):
                torch._dynamo.maybe_mark_dynamic(tensor, 0)
        with autocast(self.device, self.precision), half_weights or nullcontext():
            sums = self.sums(self.network, batch)
        means = torch.stack(list(sums.values())) / counts
        self.scaler.scale(means.sum()).backward()  # type: ignore[no-untyped-call]
        self.losses += means.detach()

    def release(self) -> None:
        """Free graphs and gradients."""
        self.graphs, self.first, self.pool = {}, None, None
        self.forget()


class Graphs:
    """A pass captured as two CUDA graphs: the first of a step writes the gradients, later ones add to them."""

    def __init__(self, passes: Passes, batch: Batch, counts: Tensor) -> None:
        """Warm up with the pass, which compiles it; an error here would also occur without a graph."""
        self.batch, self.counts = batch, counts.clone()
        self.half_weights = passes.half_weights()  # of those that the first pass uses
        with tried_out(passes.device):  # after the first shape, libraries are initialized
            for _ in range(1 if passes.graphs else 3):
                passes.run(_anew(batch), self.counts, self.half_weights)
                passes.forget()

    def capture(self, passes: Passes, whole: bool) -> None:
        """`whole`: it is the only pass of its step, and the update of the weights is in the same graph."""
        batch = self.batch
        self.first, self.later = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        # All graphs share one memory pool: only the gradients, which are referenced, are needed after a replay.
        passes.pool = passes.pool or torch.cuda.graph_pool_handle()
        with captured(self.first, passes.device, passes.pool):
            passes.run(_anew(batch), self.counts, self.half_weights)
            self.norm = passes.finish() if whole and passes.finish is not None else None
        # After a whole step the gradients are not needed any more.
        self.gradients = [] if whole else [(parameter, parameter.grad) for parameter in passes.weights]
        if not whole:
            with captured(self.later, passes.device, passes.pool):
                passes.run(_anew(batch), self.counts, self.half_weights)

    def play(self, batch: Batch, counts: Tensor, first: bool) -> None:
        self.counts.copy_(counts, non_blocking=True)
        if self.batch.memory is not None and batch.memory is not None:  # all tensors in one copy
            self.batch.memory.copy_(batch.memory, non_blocking=True)
        else:
            for ours, theirs in zip(_tensors(self.batch), _tensors(batch), strict=True):
                ours.copy_(theirs, non_blocking=True)
        (self.first if first else self.later).replay()
        for parameter, gradient in self.gradients:  # the graphs of each shape write to their own tensors
            parameter.grad = gradient


def _anew(batch: Batch) -> Batch:
    """The same tensors in new objects without cached values, so that a graph computes these at each replay."""
    source, asked = (
        None if ragged is None else Ragged(ragged.tokens, Rows(ragged.rows.starts, ragged.rows.longest))
        for ragged in (batch.source, batch.asked)
    )
    return replace(batch, rows=Rows(batch.rows.starts, batch.rows.longest), source=source, asked=asked)


Shapes = tuple[tuple[int, ...], ...]


def _shapes(batch: Batch) -> Shapes:
    longest = (0 if ragged is None else ragged.rows.longest for ragged in (batch.source, batch.asked))
    return ((batch.rows.longest, *longest), *(tuple(tensor.shape) for tensor in _tensors(batch)))


def _tensors(batch: Batch) -> list[Tensor]:
    by_token = [each for each in (batch.segments, batch.positions) if each is not None]
    ragged = [part for part in (batch.source, batch.asked) if part is not None]
    both = [tensor for part in ragged for tensor in (part.tokens, part.rows.starts)]
    return [batch.tokens, batch.rows.starts, *by_token, *both, *batch.targets.values()]


# The user's folder for compiled code, if any. torch's default is a folder with a predictable name in the shared
# temporary folder, and torch runs the code that it finds there.
COMPILER_CACHE = os.environ.get("TORCHINDUCTOR_CACHE_DIR")

# The passes of one step, and their predictions for each term of the loss, in float32.
Group = tuple[list[Batch], Tensor]


def total(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Counts of several batches added up by name."""
    sums = Counter[str]()
    for batch in counts:
        sums.update(batch)
    return dict(sums)


def group_of(s: Setup, step: int, pass_tokens: int) -> Group:
    """The batches of a step, in passes of at most `pass_tokens` tokens; in pinned memory if they go to a GPU."""
    targets = s.pace(step) if s.pace is not None else {}
    batches = [replace(batch, targets={**batch.targets, **targets}) for batch in s.feed.passes(step, pass_tokens)]
    predictions = total(map(s.objective.counts, batches)).values()
    counts = torch.tensor([max(1, count) for count in predictions], dtype=torch.float32)
    if s.device.type == "cuda":
        return [batch.pinned() for batch in batches], counts.pin_memory()
    return batches, counts


def seed_of(seed: int, step: int) -> Callable[[int], int]:
    """The seed of dropout for each pass of a step."""
    return lambda number: key_of(seed, "dropout", step, number) >> 1


def keep_compiled_code_private() -> None:
    """Let torch's compiler keep its code in the user's own cache, where other users cannot write."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = COMPILER_CACHE or str(cache_folder() / COMPILED)
    from torch._inductor import config

    if hasattr(config, "cpp_cache_precompile_headers"):  # precompiled headers would be in the temporary folder
        config.cpp_cache_precompile_headers = False


class Stepper:
    """Takes the steps of a run, for the training loop, tests and benchmarks."""

    def __init__(self, setup: Setup, scale: float = 65536.0, steady: int = 0) -> None:
        """`scale`: of the loss in fp16; `steady`: the steps since it has changed."""
        s, plan, device = setup, setup.plan, setup.device
        self.setup = s
        self.network = s.network.to(device).train()
        self.beside = None if s.beside is None else s.beside.to(device)
        if plan.checkpoint_activations:
            recompute_layers(self.network)
        self.optimizer = make_optimizer(self.network, plan, s.learning_rate, self.beside, s.faster)
        self.scaler = torch.amp.GradScaler(device.type, init_scale=scale, enabled=s.precision == "fp16")
        if self.scaler.is_enabled():
            self.scaler.load_state_dict({**self.scaler.state_dict(), "scale": scale, "_growth_tracker": steady})
        self.passes = Passes(
            self.network,
            s.objective.sums,
            len(s.objective.terms),
            device,
            s.precision,
            self.scaler,
            finish=None if self.scaler.is_enabled() else self.update,
            weights=s.weights,
        )
        self.compile(bool(plan.compile))

    def compile(self, wanted: bool) -> None:
        """Compile the passes from the next one on, or stop doing so; captured graphs are dropped."""
        s, passes = self.setup, self.passes
        even = s.feed.source.even
        if wanted:
            keep_compiled_code_private()
        passes.release()
        passes.sums = torch.compile(s.objective.sums, fullgraph=True) if wanted else s.objective.sums
        regular = s.capture or (wanted and even)
        # Recomputed layers restore the state of the random generator, which a graph cannot capture.
        plain = not s.plan.checkpoint_activations
        passes.capture = s.device.type == "cuda" and s.network.COMPILES and regular and plain
        passes.ragged = wanted and not even
        passes.compiled = self.compiled = wanted

    def step(self, batches: Sequence[Batch], counts: Tensor, number: int) -> Tensor:
        """Take one step; returns the gradient norm."""
        norm = self.passes.step(batches, counts, seed_of(self.setup.feed.seed, number))
        return self.update() if norm is None else norm

    def update(self) -> Tensor:
        """Clip the gradients and update the weights; returns the gradient norm."""
        self.scaler.unscale_(self.optimizer)
        moved = [parameter for parameter in self.setup.weights if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in moved if parameter.grad is not None])
        if self.setup.plan.clip is not None:
            torch.nn.utils.clip_grads_with_norm_(moved, self.setup.plan.clip, norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return norm
