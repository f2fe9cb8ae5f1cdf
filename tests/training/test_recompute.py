"""Layers that are computed again in the backward pass: the same gradients, and much less kept for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from tests.graphs import CUDA
from tests.table import CASES
from tests.training.small import OBJECTIVES, batch_of, network_for
from tests.training.test_cuda import even_feed
from weft.checkpoint.families import FAMILIES, usual_heads
from weft.errors import UserError
from weft.nn.rows import Ragged
from weft.training.plan import Training
from weft.training.step import Setup, Stepper, group_of, recompute_layers

STACKED = [
    name
    for name, case in CASES.items()
    if not FAMILIES[name].counts
    and name not in ("vectors", "mlp", "cnn")  # no layers, one above the other
    and name not in ("vec2seq", "forecaster")  # which read numbers
]


@pytest.mark.parametrize("name", STACKED)
def test_gradients_are_equal_with_dropout(name: str) -> None:
    family, texts = FAMILIES[name], Ragged.of([[1, 2, 3, 4], [5, 6, 7], [8, 9, 10, 11, 12]])
    config = CASES[name].config(**{key: 0.2 for key in ("dropout", "attention_dropout") if family.config.has(key)})
    found = []
    for again in (False, True):
        torch.manual_seed(0)
        network: Any = family.network(config, usual_heads(family, config))
        network.initialize()
        network.double().train()
        if again:
            recompute_layers(network)
        torch.manual_seed(5)
        network(texts.tokens, texts.rows, **({"source": texts} if family.reads else {})).square().sum().backward()
        found.append({name: weight.grad for name, weight in network.named_parameters() if weight.grad is not None})
    assert found[0].keys() == found[1].keys() and found[0]
    assert all(torch.allclose(found[0][name], found[1][name], rtol=1e-12, atol=1e-14) for name in found[0])


def kept(objective: str, again: bool, layers: int) -> int:
    """Bytes that the forward pass of a network keeps for the backward pass."""
    network = network_for(objective, dropout=0.1, layers=layers).train()
    if again:
        recompute_layers(network)  # type: ignore[arg-type]
    weights = {weight.untyped_storage().data_ptr() for weight in network.parameters()}
    sizes: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        sums = OBJECTIVES[objective].sums(network, batch_of(objective, [40] * 8))
    assert sums
    return sum(sizes.values())


@pytest.mark.parametrize("objective", ["next", "mlm", "spans"])
def test_a_layer_keeps_a_small_part(objective: str) -> None:
    """What one more layer keeps; its input is all that is left of some twenty tensors."""
    plain, again = (kept(objective, way, 4) - kept(objective, way, 2) for way in (False, True))
    assert 0 < again < plain / 4


@pytest.mark.parametrize("objective", ["next", "mlm", "spans", "permutation"])
def test_compiled_it_is_the_same(objective: str) -> None:
    found = []
    for again in (False, True):
        network: Any = network_for(objective).train()
        sums = OBJECTIVES[objective].sums
        if again:
            recompute_layers(network)
            sums = torch.compile(sums, fullgraph=True, backend="aot_eager")
        sum(sums(network, batch_of(objective, [12] * 4)).values()).backward()  # type: ignore[union-attr]
        found.append([weight.grad for weight in network.parameters() if weight.grad is not None])
    assert len(found[0]) == len(found[1])
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(*found, strict=True))


def test_the_plan_asks_for_it() -> None:
    losses = []
    for again in (False, True):
        plan = Training(learning_rate=1e-2, checkpoint_activations=again)
        network: Any = network_for("next", dropout=0.2)
        setup = Setup(network=network, objective=OBJECTIVES["next"], feed=even_feed(8, 16), plan=plan)
        stepper = Stepper(setup)
        assert ("forward" in vars(network.layers[0])) == again
        stepper.setup = replace(setup, device=CUDA, capture=True)
        stepper.compile(False)
        assert stepper.passes.capture == (not again), "the state that layers drew from is in no graph"
        stepper.passes.capture = False
        losses.append([])
        for number in range(3):
            stepper.step(*group_of(setup, number, 1 << 20), number)
            losses[-1].append(stepper.passes.losses.item())
        assert "forward" not in network.state_dict()
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_network_without_layers_is_refused() -> None:
    config = CASES["mlp"].config()
    network: Any = FAMILIES["mlp"].network(config, {"words": config.vocabulary})
    with pytest.raises(UserError, match="checkpoint_activations is for models with layers"):
        recompute_layers(network)
