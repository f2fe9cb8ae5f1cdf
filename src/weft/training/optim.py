"""AdamW with its groups and its state by name, and the running mean of the weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from weft.errors import UserError
from weft.models.base import Network
from weft.training.freezing import depth_of
from weft.training.plan import Training


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
    """AdamW (Loshchilov and Hutter, 2019) that decays matrices and tables only, with its state laid out at once.

    Each group has its `share` of the rate: all of it, less the further below the heads its layer stands, or what the
    network has in `rate_factors` for weights that begin larger than the others. `faster` has beginnings of names whose
    weights take a multiple of the rate.
    """
    named = [(name, parameter) for name, parameter in learned(network, beside).items() if parameter.requires_grad]
    parameters = [parameter for _, parameter in named]
    if not parameters:
        raise UserError("there is nothing to train: everything is frozen")
    if plan.layer_decay < 1 and not network.layer_names():
        raise UserError("layer_decay is for models with layers, one above the other; this one has none")
    sorted_out: dict[tuple[float, float], list[Tensor]] = {}
    for name, parameter in named:
        share = plan.layer_decay ** depth_of(network, name) if plan.layer_decay < 1 else 1.0
        larger = next((times for start, times in network.rate_factors.items() if name.startswith(start)), 1.0)
        share *= larger * next((times for start, times in (faster or {}).items() if name.startswith(start)), 1.0)
        decay = plan.weight_decay / larger if parameter.dim() >= 2 else 0.0  # which the rate is multiplied by
        sorted_out.setdefault((share, decay), []).append(parameter)
    groups = [{"params": some, "weight_decay": decay, "share": share} for (share, decay), some in sorted_out.items()]
    fused = all(p.is_floating_point() and p.device.type in ("cpu", "cuda", "mps") for p in parameters)
    on_gpu = all(p.device.type == "cuda" for p in parameters)
    if on_gpu:  # a rate that a CUDA graph reads anew each time
        groups = [{**group, "lr": torch.tensor(learning_rate, device=parameters[0].device)} for group in groups]
    betas = (plan.beta1, plan.beta2)
    optimizer = torch.optim.AdamW(groups, learning_rate, betas, plan.epsilon, fused=fused, capturable=on_gpu)
    for parameter in parameters:  # now rather than in the first step, so that memory cannot run out in its middle
        optimizer.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device if fused else "cpu"),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer


def set_learning_rate(optimizer: torch.optim.AdamW, learning_rate: float) -> None:
    """The rate of the next step; each group takes its share of it."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(learning_rate * group["share"])
        else:
            group["lr"] = learning_rate * group["share"]


def optimizer_tensors(
    network: nn.Module, optimizer: torch.optim.AdamW, beside: nn.Module | None = None
) -> dict[str, Tensor]:
    """The optimizer's state under the names of the weights it belongs to."""
    return {
        f"{name}:{key}": tensor
        for name, parameter in learned(network, beside).items()
        for key, tensor in optimizer.state.get(parameter, {}).items()
    }


def fill(targets: dict[str, Tensor], stored: dict[str, Tensor], what: str) -> None:
    """Copy stored tensors into those of the same names; nothing may be missing or left over."""
    differing = sorted(set(targets) ^ set(stored)) or [
        name for name, tensor in targets.items() if tensor.shape != stored[name].shape
    ]
    if differing:
        raise UserError(f"{what} does not fit this run: {differing[0]}")
    with torch.no_grad():
        for name, tensor in targets.items():
            tensor.copy_(stored[name])


class Mean:
    """A running mean of the weights (EMA): steadier than the weights themselves, and what is evaluated and kept."""

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.decay = decay
        self.parameters = [parameter.detach() for parameter in network.parameters()]
        self.names = [name for name, _ in network.named_parameters()]
        self.means = [parameter.clone() for parameter in self.parameters]

    @torch.no_grad()
    def update(self, step: int) -> None:
        # In the first steps the mean must not hold on to the weights that it began with.
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self.means, self.parameters, 1 - decay)

    @torch.no_grad()
    def swap(self) -> None:
        """The mean in the network and the weights here; a second call puts them back."""
        held = [parameter.clone() for parameter in self.parameters]
        torch._foreach_copy_(self.parameters, self.means)
        torch._foreach_copy_(self.means, held)

    def tensors(self) -> dict[str, Tensor]:
        return dict(zip(self.names, self.means, strict=True))


@contextmanager
def averaged(mean: Mean | None) -> Iterator[None]:
    """The running mean, where there is one, stands in the network for as long as the block runs."""
    if mean is None:
        yield
        return
    mean.swap()
    try:
        yield
    finally:
        mean.swap()
