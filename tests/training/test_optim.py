"""Schedules against transformers' own, decay groups, and the running mean against its formula."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from transformers import optimization

from tests.training.small import network_for
from weft.checkpoint.families import FAMILIES
from weft.errors import UserError
from weft.models.base import Network
from weft.training.loop import Mean, fill, set_learning_rate
from weft.training.plan import Training, learning_rate_at
from weft.training.step import make_optimizer, optimizer_tensors

STEPS = 100
PEERS = {
    "linear": lambda o: optimization.get_linear_schedule_with_warmup(o, 10, STEPS),
    "cosine": lambda o: optimization.get_cosine_schedule_with_warmup(o, 10, STEPS),
    "constant": lambda o: optimization.get_constant_schedule_with_warmup(o, 10),
    "inverse-square-root": lambda o: optimization.get_inverse_sqrt_schedule(o, 10),
    "stable": lambda o: optimization.get_wsd_schedule(o, 10, 20, num_training_steps=STEPS, decay_type="linear"),
}


@pytest.mark.parametrize("schedule", PEERS)
def test_schedules_are_the_peers(schedule: str) -> None:
    """Theirs begins with a rate of 0, a step that does nothing; ours is theirs, one step earlier."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    peer = PEERS[schedule](optimizer)
    plan = Training(schedule=schedule, warmup=10, floor=0.0, decay=0.2)
    for step in range(STEPS - 1):
        optimizer.step()
        peer.step()
        assert learning_rate_at(step, plan, 0.5, STEPS) == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-9), (
            step
        )


@pytest.mark.parametrize("schedule", ["linear", "cosine", "stable"])
def test_the_floor(schedule: str) -> None:
    plan = Training(schedule=schedule, warmup=0.1, floor=0.1)
    rates = [learning_rate_at(step, plan, 1.0, STEPS) for step in range(STEPS)]
    assert rates[0] == pytest.approx(0.1) and max(rates) == pytest.approx(1.0) and rates[-1] == pytest.approx(0.1)


def test_only_matrices_and_tables_decay() -> None:
    network = network_for("mlm+nsp")
    optimizer = make_optimizer(network, Training(weight_decay=0.3), 1e-3)
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in network.named_parameters():
        assert decay[id(parameter)] == (0.0 if name.endswith("bias") or "norm" in name else 0.3), name


def test_the_optimizer_is_plain_adamw() -> None:
    """With its state laid out beforehand it takes the same steps, to the last bit."""
    ours, peer = Network(None), torch.nn.Linear(5, 3)
    ours.layers = torch.nn.ModuleList([torch.nn.Linear(5, 3)])
    linear = ours.layers[0]
    peer.load_state_dict(linear.state_dict())
    mine = make_optimizer(ours, Training(weight_decay=0.0, beta1=0.9, beta2=0.98), 1e-2)
    theirs = torch.optim.AdamW(peer.parameters(), 1e-2, (0.9, 0.98), weight_decay=0.0, fused=True)
    for step in range(4):
        for network, optimizer in ((linear, mine), (peer, theirs)):
            torch.manual_seed(step)
            optimizer.zero_grad()
            network(torch.randn(7, 5)).square().sum().backward()
            optimizer.step()
    assert linear.weight.equal(peer.weight) and linear.bias.equal(peer.bias)
    names = set(optimizer_tensors(ours, mine))
    assert names == {f"layers.0.{w}:{k}" for w in ("weight", "bias") for k in ("step", "exp_avg", "exp_avg_sq")}


def test_training_does_not_load_the_compiler() -> None:
    """torch's own AdamW does, when it is made and again in its first step: seconds at the beginning of a run."""
    code = """
import sys, torch
from weft.models.base import Network
from weft.training.plan import Training
from weft.training.step import make_optimizer

for kind in ("adamw", "muon"):
    network = Network(None)
    network.layers = torch.nn.ModuleList([torch.nn.Sequential(torch.nn.Linear(5, 3))])
    optimizer = make_optimizer(network, Training(optimizer=kind), 1e-2)
    network.layers[0](torch.ones(2, 5)).sum().backward()
    optimizer.step()
assert "torch._dynamo" not in sys.modules and "sympy" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_groups_of_one_share_have_one_rate() -> None:
    network = network_for("mlm+nsp")
    optimizer = make_optimizer(network, Training(layer_decay=0.5), 1e-3)
    rates = {group["share"]: torch.zeros(()) for group in optimizer.param_groups}
    assert 1 < len(rates) < len(optimizer.param_groups)
    for group in optimizer.param_groups:
        group["lr"] = rates[group["share"]]  # as on a GPU
    set_learning_rate(optimizer, 0.25)
    for group in optimizer.param_groups:
        assert float(group["lr"]) == pytest.approx(0.25 * group["share"])


def test_the_mean() -> None:
    network = torch.nn.Linear(2, 2)
    mean = Mean(network, 0.8)
    expected = network.weight.detach().clone()
    for step in range(1, 60):
        with torch.no_grad():
            network.weight += 1.0
        decay = min(0.8, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * network.weight.detach()
        mean.update(step)
    assert torch.allclose(mean.tensors["weight"], expected, atol=1e-5)
    weights = network.weight.detach().clone()
    mean.swap()
    assert torch.allclose(network.weight, expected, atol=1e-5)
    mean.swap()
    assert network.weight.equal(weights)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(UserError, match="does not fit this run: b"):
        fill({"a": torch.zeros(2)}, {"a": torch.zeros(2), "b": torch.zeros(1)}, "the checkpoint")
    with pytest.raises(UserError, match="does not fit this run: a"):
        fill({"a": torch.zeros(2)}, {"a": torch.zeros(3)}, "the checkpoint")


@pytest.mark.parametrize(
    "values, message",
    [
        ({"steps": 5, "epochs": 2.0}, "cannot both"),
        ({"steps": 0}, "steps must be between 1 and"),
        ({"learning_rate": 0.0}, "rate must be above 0"),
        ({"ema": 1.0}, "ema must be"),
        ({"patience": 0}, "patience"),
        ({"floor": 2.0}, "floor must be between"),
    ],
)
def test_plans_that_cannot_be(values: dict[str, float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Training(**values)  # type: ignore[arg-type]


def test_weights_that_begin_larger_take_larger_steps_and_decay_no_faster() -> None:
    """T5's tables begin larger than its matrices by the root of the width."""
    config = FAMILIES["t5"].config(vocabulary=20, width=16, layers=1, heads=2, head_width=8, inner=32)
    network = FAMILIES["t5"].network(config, {"words": 20})
    optimizer = make_optimizer(network, Training(weight_decay=0.1), 1e-3)
    set_learning_rate(optimizer, 2e-3)
    found = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    table, matrix = found[id(network.tokens.weight)], found[id(network.encoder[0].attention.qkv.weight)]
    assert float(table["lr"]) == pytest.approx(4 * 2e-3) and float(matrix["lr"]) == pytest.approx(2e-3)
    assert float(table["lr"]) * table["weight_decay"] == pytest.approx(float(matrix["lr"]) * matrix["weight_decay"])
