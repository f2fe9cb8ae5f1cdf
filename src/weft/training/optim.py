"""AdamW with its groups and its state by name, and the running mean of the weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from weft.errors import UserError
from weft.training.plan import Training


def make_optimizer(network: nn.Module, plan: Training, rate: float) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter, 2019) that decays matrices and tables only, with its state laid out at once."""
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": plan.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    fused = all(p.is_floating_point() and p.device.type in ("cpu", "cuda", "mps") for p in parameters)
    optimizer = torch.optim.AdamW(groups, rate, (plan.beta1, plan.beta2), plan.epsilon, fused=fused)
    for parameter in parameters:  # now rather than in the first step, so that memory cannot run out in its middle
        optimizer.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device if fused else "cpu"),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer


def optimizer_tensors(network: nn.Module, optimizer: torch.optim.AdamW) -> dict[str, Tensor]:
    """The optimizer's state under the names of the weights it belongs to."""
    return {
        f"{name}:{key}": tensor
        for name, parameter in network.named_parameters()
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
