"""Norms, activations and feed-forward networks against their formulas, number by number."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
from torch import Tensor

from weft.nn.layers import Activation, FeedForward, norm

FORMULAS = {
    "relu": lambda x: max(x, 0.0),
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "gelu-tanh": lambda x: x * 0.5 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "tanh": math.tanh,
}


@pytest.mark.parametrize("activation", get_args(Activation))
def test_feedforward(activation: Activation) -> None:
    torch.manual_seed(0)
    network = FeedForward(6, 5, activation).double()
    x = 3 * torch.randn(4, 6, dtype=torch.float64)
    formula = FORMULAS[activation.removeprefix("gated-")]

    def bent(values: Tensor) -> Tensor:
        return torch.tensor([[formula(value) for value in row] for row in values.tolist()], dtype=torch.float64)

    up = x @ network.up.weight.T + network.up.bias
    inner = bent(up[:, :5]) * up[:, 5:] if activation.startswith("gated-") else bent(up)
    assert up.shape[1] == (10 if activation.startswith("gated-") else 5)
    expected = inner @ network.down.weight.T + network.down.bias
    assert (network(x) - expected).abs().max() < 1e-12


def test_norms() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(3, 8, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    for kind in ("layer", "rms"):
        found = norm(kind, 8, 0.1).double()
        found.weight.data.copy_(weight)
        centered = x - x.mean(-1, keepdim=True) if kind == "layer" else x
        expected = centered / (centered.square().mean(-1, keepdim=True) + 0.1).sqrt() * weight
        assert (found(x) - expected).abs().max() < 1e-12
