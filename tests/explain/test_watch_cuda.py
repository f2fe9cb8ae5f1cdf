"""`weft.watch` beside the kernels of a GPU: unwatched layers keep them. On a CPU the tests drive its own kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import weft
from tests.contracts.test_families import TEXTS, close, network_of
from tests.graphs import CPU, DEVICES
from weft.nn import attention
from weft.nn.rows import Ragged

pytestmark = pytest.mark.parametrize("device", DEVICES)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_unwatched_layers_keep_the_ragged_kernel(
    name: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = network_of(name, torch.bfloat16, layers=3).to(device)
    batch = Ragged.of(TEXTS, device)
    kernels = list[str]()
    for kernel in ("_ragged", "_written_out"):
        inner = getattr(attention, kernel)
        record = lambda *given, kernel=kernel, inner=inner: kernels.append(kernel) or inner(*given)  # noqa: E731
        monkeypatch.setattr(attention, kernel, record)
    with torch.inference_mode():
        expected = network(batch.tokens, batch.rows).float()
        fused = list(kernels)
        with weft.watch(network, layers=1) as seen:
            hidden = network(batch.tokens, batch.rows).float()
    assert "_written_out" not in fused and fused == ["_ragged"] * (0 if device == CPU else 3)
    watched = kernels[len(fused) :]
    assert watched.count("_ragged") == (0 if device == CPU else 2) and "_written_out" in watched
    assert (hidden - expected).norm() / expected.norm() < 3e-2
    weights = seen[4].attention[1]
    assert weights.dtype == torch.float32 and weights.device == CPU
    assert (weights.sum(-1) - 1).abs().max() < 2e-2


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_recurrent_layers_on_the_gpu(name: str, device: torch.device) -> None:
    """Rows of one length go through all layers in one kernel there, but for a watched network."""
    network = network_of(name, torch.float32).to(device)
    batch = Ragged.of([[5, 9, 2, 31], [3, 3, 4, 12]], device)
    with torch.inference_mode():
        expected = network(batch.tokens, batch.rows)
        with weft.watch(network) as seen:
            hidden = network(batch.tokens, batch.rows)
        again = network(batch.tokens, batch.rows)
    assert close(hidden, expected, 1e-4) and torch.equal(again, expected)
    assert close(torch.cat([own.hidden[1] for own in seen]), expected.cpu(), 1e-4)
    assert seen[0].gates[0]["forget" if name == "lstm" else "update"].device == CPU


def test_patches_and_gradients_on_the_gpu(device: torch.device) -> None:
    network: Any = network_of("bert", torch.float32).to(device)
    batch = Ragged.of([[5, 9, 2, 31]], device)
    with weft.watch(network, gradients=True) as seen:
        expected = network(batch.tokens, batch.rows)
        expected.square().sum().backward()
    assert seen.gradients.attention[1].shape == (3, 4, 4)
    patch = {0: seen.hidden[0], (1, 0): seen.head_outputs[1][0]}  # on the CPU, as they are handed out
    with weft.watch(network, layers=[], patch=patch):
        assert close(network(batch.tokens, batch.rows), expected, 1e-4)
