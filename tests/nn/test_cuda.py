"""The paths that only a GPU has: the ragged kernels, with and without dropout, against attention written out.

On a CPU the same tests drive its own kernels, and the calls of the GPU's kernels are checked on tensors without data.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.contracts.test_families import TEXTS, check_cache, close, network_of
from tests.graphs import CPU, DEVICES
from tests.table import ATTENTIVE, SPEAKERS
from weft.nn import attention
from weft.nn.attention import attend
from weft.nn.rows import Ragged, Rows

pytestmark = pytest.mark.parametrize("device", DEVICES)
LENGTHS = [3, 1, 70, 2, 7, 300, 4]


def tensors(dtype: torch.dtype, device: torch.device) -> tuple[Any, Any, Any, Rows]:
    torch.manual_seed(0)
    query, key, value = torch.randn(3, sum(LENGTHS), 4, 64, device=device, dtype=torch.float64).to(dtype)
    return query, key, value, Rows.of(LENGTHS, device)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 2e-2), (torch.float16, 3e-3), (torch.float32, 1e-5)])
def test_kernels_equal_the_written_out_path(
    dtype: torch.dtype, tolerance: float, causal: bool, device: torch.device
) -> None:
    query, key, value, rows = tensors(dtype, device)
    found, weights = attend(query, key, value, rows, causal=causal)
    assert weights is None
    expected, _ = attend(query.double(), key.double(), value.double(), rows, causal=causal, want_weights=True)
    assert (found.double() - expected).abs().max() <= tolerance


def test_gradients_of_the_ragged_kernel(device: torch.device) -> None:
    query, key, value, rows = tensors(torch.bfloat16, device)
    gradients = []
    for kind in (torch.bfloat16, torch.float64):
        inputs = [x.detach().clone().to(kind).requires_grad_() for x in (query, key, value)]
        attend(*inputs, rows, want_weights=kind == torch.float64)[0].square().sum().backward()
        gradients.append([x.grad.double() for x in inputs])
    for fused, written in zip(*gradients, strict=True):
        assert (fused - written).norm() / written.norm() < 2e-2


def test_dropout_of_the_ragged_kernel_in_the_mean(device: torch.device) -> None:
    """Its random numbers are its own, so the mean over many seeds must be what it is without dropout."""
    query, key, value, rows = tensors(torch.bfloat16, device)
    plain, _ = attend(query, key, value, rows)
    total, many = torch.zeros_like(plain, dtype=torch.float64), 20 if device == CPU else 400
    spread = []
    for seed in range(many):
        torch.manual_seed(seed)
        dropped, _ = attend(query, key, value, rows, dropout=0.3)
        spread.append((dropped - plain).abs().mean().item())
        total += dropped.double()
    assert min(spread) > 0.01, "nothing was dropped"
    written = torch.zeros_like(total)
    for seed in range(many):
        torch.manual_seed(seed)
        written += attend(query, key, value, rows, dropout=0.3, want_weights=True)[0].double()
    error = (total / many - plain.double()).norm() / plain.double().norm()
    reference = (written / many - plain.double()).norm() / plain.double().norm()
    assert error < 1.5 * reference + 1e-2


@pytest.mark.parametrize("name", ATTENTIVE)
def test_families_on_the_gpu(name: str, device: torch.device) -> None:
    network = network_of(name, torch.float32)  # heads are 16 wide
    batch = Ragged.of(TEXTS)
    with torch.inference_mode():
        expected = network(batch.tokens, batch.rows)
        there = batch.map(lambda tensor: tensor.to(device))
        network.to(device)
        assert close(network(there.tokens, there.rows).cpu(), expected, 1e-4)
        found = network.to(torch.bfloat16)(there.tokens, there.rows)
        assert (found.float().cpu() - expected).norm() / expected.norm() < 3e-2


@pytest.mark.parametrize("name", SPEAKERS)
def test_cache_on_the_gpu(name: str, device: torch.device) -> None:
    check_cache(network_of(name).to(device), 1e-9)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("lengths", [[5, 5, 5], [5, 2, 7], [1, 1]])  # cuDNN refuses keys of one place
def test_calls_of_the_gpu_kernels(
    lengths: list[int], dropout: float, causal: bool, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each operator takes what it is called with: rows of equal length go to one kernel, ragged ones to another."""
    monkeypatch.setattr(attention, "_has_ragged_kernel", lambda query: True)
    monkeypatch.setattr(attention, "_has_even_kernel", lambda query: True)
    called = []
    for name in ("_even", "_ragged"):
        kernel = getattr(attention, name)
        monkeypatch.setattr(attention, name, lambda *given, kernel=kernel: called.append(kernel) or kernel(*given))
    query, key, value = torch.empty(3, sum(lengths), 4, 64, device="meta", dtype=torch.bfloat16)
    mixed, _ = attend(query, key, value, Rows.of(lengths, "meta"), causal=causal, dropout=dropout)
    assert mixed.shape == query.shape and mixed.dtype == query.dtype
    assert [kernel.__name__ for kernel in called] == ["_even" if lengths == [5, 5, 5] else "_ragged"]
