"""Capturing: a capture that fails leaves nothing behind, so that work goes on without it."""

from __future__ import annotations

import gc
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.graphs import CUDA, DEVICES, needs_gpu
from weft.nn import graphs


@pytest.mark.parametrize("ended", [False, True], ids=["torch cannot end it", "torch has ended it"])
def test_what_is_done_after_a_capture_that_failed(ended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []
    generator = SimpleNamespace(clone_state=lambda: "its copy", graphsafe_set_state=done.append)

    @contextmanager
    def graph(*given: Any, **options: Any) -> Any:
        yield
        raise AssertionError("never reached")

    def end(index: int, pool: Any) -> None:
        done.append((index, pool))
        if ended:
            raise RuntimeError("not currently recording to this pool")

    def rand(count: int, device: torch.device) -> torch.Tensor:
        if not ended:
            raise RuntimeError("Offset increment outside graph capture encountered unexpectedly.")
        return torch.zeros(count)

    monkeypatch.setattr(torch, "rand", rand)
    monkeypatch.setattr(graphs, "REPLACED", [])
    monkeypatch.setattr(graphs, "on_device", lambda device: nullcontext())
    monkeypatch.setattr(graphs, "streams_of", lambda device: ("to try", "to capture"))
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "the stream before")
    monkeypatch.setattr(torch.cuda, "set_stream", done.append)
    monkeypatch.setattr(torch.cuda, "default_generators", {1: generator})
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", end, raising=False)
    with pytest.raises(RuntimeError, match="not permitted"), graphs.captured(None, torch.device("cuda", 1)):
        assert not gc.isenabled()  # it could free other graphs, which is forbidden now
        raise RuntimeError("operation not permitted when stream is capturing")
    assert gc.isenabled()
    assert done == ["the stream before", (1, "pool"), *(() if ended else ("its copy",))]
    assert len(graphs.REPLACED) == (not ended)


@pytest.mark.parametrize("device", DEVICES)
def test_seeds_are_those_of_torch(device: torch.device) -> None:
    """The same is drawn as after `torch.manual_seed`, on the CPU too."""
    drawn = []
    for seed_torch in (torch.manual_seed, lambda seed: graphs.seed_generators(seed, device)):
        for seed in (0, 5, (1 << 63) - 1):
            torch.rand(3), torch.rand(3, device=device)
            seed_torch(seed)
            kept = torch.nn.functional.dropout(torch.ones(100, device=device), 0.5)
            drawn += [torch.rand(3), kept.cpu(), torch.randn(3, device=device).cpu()]
    half = len(drawn) // 2
    assert all(ours.equal(theirs) for ours, theirs in zip(drawn[:half], drawn[half:], strict=True))


@needs_gpu
def test_after_a_capture_that_failed_work_goes_on() -> None:
    x, stream = torch.randn(1000, device=CUDA), torch.cuda.current_stream()
    with graphs.tried_out(CUDA):
        torch.nn.functional.dropout(x, 0.5).sum()
    with pytest.raises(RuntimeError), graphs.captured(torch.cuda.CUDAGraph(), CUDA):
        torch.nn.functional.dropout(x, 0.5).sum().item()
    assert torch.cuda.current_stream() == stream
    torch.manual_seed(3)
    first = torch.nn.functional.dropout(x, 0.5)
    torch.manual_seed(3)
    assert torch.equal(first, torch.nn.functional.dropout(x, 0.5))
    torch.cuda.empty_cache()
    graph = torch.cuda.CUDAGraph()
    with graphs.captured(graph, CUDA):
        second = torch.nn.functional.dropout(x, 0.5)
    drawn = []
    for seed in (3, 4, 3):
        torch.manual_seed(seed)
        graph.replay()
        drawn.append(second.clone())
    assert torch.equal(drawn[0], drawn[2]) and not torch.equal(drawn[0], drawn[1])


@needs_gpu
def test_graphs_that_are_garbage_do_not_end_a_capture() -> None:
    x = torch.ones(1000, device=CUDA)
    for _ in range(3):
        old: list[Any] = [torch.cuda.CUDAGraph()]
        old.append(old)  # only the collector frees it
        with graphs.captured(old[0], CUDA):
            x * 2
        del old
    graph, before = torch.cuda.CUDAGraph(), gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        with graphs.captured(graph, CUDA):
            made = [x * number for number in range(5)]
    finally:
        gc.set_threshold(*before)
    graph.replay()
    assert made[4].sum() == 4000
