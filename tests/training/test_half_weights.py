"""Copies of weights made by one kernel change nothing: losses and gradients are those of autocast alone."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.graphs import DEVICES, graphs_anywhere  # noqa: F401
from tests.nn.test_word_loss import WITH_WORDS
from tests.table import CASES
from tests.training.small import OBJECTIVES, batch_of, network_for
from weft.checkpoint.families import FAMILIES
from weft.nn.rows import Ragged
from weft.training.half_weights import HalfWeights
from weft.training.step import Passes

aten = torch.ops.aten


class Casts(TorchDispatchMode):
    """Counts the casts of weights and of their gradients, and the kernels that cast many."""

    def __init__(self, weights: list[Tensor]) -> None:
        super().__init__()
        self.shapes = {weight.shape for weight in weights}
        self.single = self.together = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.single += func is aten._to_copy.default and args[0].shape in self.shapes
        self.together += func is aten._foreach_copy_.default
        return func(*args, **(kwargs or {}))


Passed = tuple[list[Tensor], list[Tensor | None]]


def passed(network: Any, losses: Any, half_weights: AbstractContextManager[Any], kind: torch.dtype) -> Passed:
    """The losses and the gradients of a pass under autocast."""
    network.zero_grad()
    with torch.autocast("cpu", kind), half_weights:
        sums = losses(network)
    torch.stack(list(sums.values())).float().sum().backward()
    return [loss.detach() for loss in sums.values()], [weight.grad for weight in network.parameters()]


def assert_same(ours: Passed, theirs: Passed) -> None:
    """But for the order in which the gradients of a table with several uses are added up."""
    for one, two in zip([*ours[0], *ours[1]], [*theirs[0], *theirs[1]], strict=True):
        assert (one is None) == (two is None)
        if one is not None and two is not None:
            assert one.dtype == two.dtype == torch.float32
            assert (one - two).abs().max() <= 2e-6 * two.abs().max()


@pytest.mark.parametrize("name", WITH_WORDS)
def test_every_family_gets_the_gradients_of_autocast_alone(name: str) -> None:
    """Shared layers, tied tables, parts of weights, and recurrent layers among them."""
    family, config = FAMILIES[name], CASES[name].config()
    torch.manual_seed(0)
    network: Any = family.network(config, {"words": config.vocabulary})
    network.initialize()
    network.eval()  # without dropout
    texts = Ragged.of([[1, 2, 3, 4], [5, 6, 7], [8, 9, 10, 11, 12]])

    def losses(network: Any) -> dict[str, Tensor]:
        hidden = network(texts.tokens, texts.rows, **({"source": texts} if family.reads else {}))
        labels = torch.arange(len(hidden)) + 20
        return {"loss": network.word_loss(hidden, labels), "logits": network.words(hidden).float().square().sum()}

    plain = passed(network, losses, nullcontext(), torch.bfloat16)
    half_weights = HalfWeights(network.parameters(), torch.bfloat16)
    for count in range(3):
        assert_same(passed(network, losses, half_weights, torch.bfloat16), plain)
        assert not half_weights.copies and (count or half_weights.used)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("objective", ["next", "mlm", "mlm+nsp", "spans", "permutation"])
def test_every_objective_learns_the_same_by_fewer_casts(objective: str, kind: torch.dtype) -> None:
    network = network_for(objective, width=40, inner=72).train()  # sizes that no hidden states have
    batch = batch_of(objective, [17, 9, 14])
    first = next(weight for weight in network.modules() if isinstance(weight, nn.Linear))
    first.weight.requires_grad_(False)

    def losses(network: Any) -> dict[str, Tensor]:
        return OBJECTIVES[objective].sums(network, batch)

    half_weights = HalfWeights(network.parameters(), kind)
    results, counts = [], []
    for context in (nullcontext(), half_weights, half_weights):
        with Casts([weight for weight in network.parameters() if weight.dim() == 2]) as casts:
            results.append(passed(network, losses, context, kind))
        counts.append((casts.single, casts.together))
        assert_same(results[-1], results[0])
    assert first.weight.grad is None
    used = sum(weight.dim() == 2 for weight in half_weights.used.values())
    assert used >= 8 and counts[1] == counts[0]
    assert counts[2][1] == 2 and counts[2][0] <= counts[0][0] - 2 * used + 1  # the frozen one has no gradient


def test_the_gradient_of_a_weight_that_is_not_used_is_none() -> None:
    network = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
    half_weights = HalfWeights(network.parameters(), torch.bfloat16)

    def losses(count: int) -> Any:
        return lambda network: {"loss": sum(part(torch.ones(2, 4)).sum() for part in network[:count])}

    passed(network, losses(2), half_weights, torch.bfloat16)
    gradients = passed(network, losses(1), half_weights, torch.bfloat16)[1]
    assert [gradient is None for gradient in gradients] == [False, False, True, True]


def test_where_autocast_is_off_the_weights_themselves_are_used() -> None:
    network = nn.Linear(4, 4)
    half_weights = HalfWeights(network.parameters(), torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(2):
            with half_weights:
                assert network(torch.ones(1, 4)).dtype == torch.bfloat16
                with torch.autocast("cpu", enabled=False):
                    assert torch.equal(network(torch.ones(1, 4)), network.weight.sum(1)[None] + network.bias)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("compiled", [False, True])
def test_captured_steps_use_them_unless_they_are_compiled(
    compiled: bool,
    device: torch.device,
    graphs_anywhere: None,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two steps of two passes each, with an update in between, give what passes without graphs give."""
    steps = [[batch_of("mlm+nsp", [17] * 8, seed=2 * n + pair) for pair in range(2)] for n in range(2)]
    made = []
    enter = HalfWeights.__enter__
    monkeypatch.setattr(HalfWeights, "__enter__", lambda mode: made.append(len(mode.used)) or enter(mode))
    found = {}
    for capture in (False, True):
        network: Any = network_for("mlm+nsp").to(device).train()
        scaler = torch.amp.GradScaler(device.type, enabled=False)
        passes = Passes(network, OBJECTIVES["mlm+nsp"].sums, 2, device, "bf16", scaler, capture)
        passes.compiled = compiled
        found[capture] = []
        for batches in steps:
            passes.step(batches, torch.full((2,), 40.0), lambda number: number)
            gradients = [weight.grad.clone() for weight in network.parameters()]
            found[capture] += [passes.losses.clone(), *gradients]
            with torch.no_grad():
                for weight, gradient in zip(network.parameters(), gradients, strict=True):
                    weight -= 0.1 * gradient
        assert len(passes.graphs) == int(capture)
    # Three passes to try out, of which the first finds the weights, and two graphs.
    assert made == ([] if compiled else [0] + [made[-1]] * 4) and (compiled or made[-1] > 10)
    for one, two in zip(found[False], found[True], strict=True):
        assert (one - two).abs().max() <= 0.02 * one.abs().max() + 1e-6
