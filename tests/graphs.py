"""CUDA graphs played on the CPU, so that what captures and replays them runs where there is no GPU."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from weft.nn.rows import Batch
from weft.training.step import Stepper

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CPU, CUDA = torch.device("cpu"), torch.device("cuda")
DEVICES = [pytest.param(CPU, id="cpu"), pytest.param(CUDA, id="cuda", marks=needs_gpu)]


def tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


class Recording(TorchDispatchMode):
    """Notes every operation; what stood in tensors from outside is put back, since capturing does nothing on a GPU."""

    # Whether all numbers that would go to a GPU or come from it are refused: attention on a CPU lays rows out by some.
    strict = False

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, list[torch.Tensor]]] = []
        self.made: set[int] = set()
        self.before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("operation not permitted when stream is capturing")
        read = func is torch.ops.aten.item.default  # in inference mode
        if self.strict and (read or (func is torch.ops.aten.lift_fresh.default and args[0].dim())):
            raise RuntimeError("operation not permitted when stream is capturing")
        # Of many a GPU sorts both, and counts how many differ.
        if func is torch.ops.aten.isin.Tensor_Tensor and args[1].numel() >= 10 * args[0].numel() ** 0.145:
            raise RuntimeError("operation not permitted when stream is capturing")
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                for tensor in tensors(value):
                    if storage(tensor) not in self.made:
                        self.before.setdefault(storage(tensor), (tensor.detach(), tensor.detach().clone()))
        result = func(*args, **kwargs)
        outside = {storage(tensor) for tensor in tensors((args, kwargs))}
        self.made |= {storage(tensor) for tensor in tensors(result)} - outside
        self.calls.append((func, args, kwargs, tensors(result)))
        return result

    def put_back(self) -> None:
        for tensor, value in self.before.values():
            tensor.copy_(value)


class CpuGraph:
    """Does again what was recorded, on the same tensors."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    @torch.no_grad()
    def replay(self) -> None:
        for func, args, kwargs, results in self.calls:
            for old, new in zip(results, tensors(func(*args, **kwargs)), strict=True):
                if storage(old) != storage(new):
                    old.copy_(new)


@contextmanager
def capturing(graph: CpuGraph, **options: Any) -> Iterator[None]:
    assert isinstance(options.pop("stream"), Stream)
    assert options == {"pool": "pool", "capture_error_mode": "thread_local"}
    with Recording() as recording:
        yield
    with torch.no_grad():
        recording.put_back()
    graph.calls = recording.calls


class Stream:
    def wait_stream(self, other: Stream) -> None:
        assert isinstance(other, Stream)


def captured(stepper: Stepper, capture: bool) -> Stepper:
    """The same with or without graphs; a rate is a tensor, as on a GPU, which a graph reads anew each time."""
    stepper.passes.capture = capture
    for group in stepper.optimizer.param_groups:
        group["lr"] = torch.as_tensor(group["lr"], device=stepper.setup.device)
    return stepper


@pytest.fixture
def graphs_anywhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Where a test's `device` is the CPU, its graphs are played there."""
    if request.getfixturevalue("device").type == "cpu":
        monkeypatch.setattr(torch.cuda, "Stream", Stream)
        monkeypatch.setattr(torch.cuda, "current_stream", Stream)
        monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
        monkeypatch.setattr(torch.cuda, "CUDAGraph", CpuGraph)
        monkeypatch.setattr(torch.cuda, "graph", capturing)
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
        # What lies on a GPU is a copy of what lies here.
        monkeypatch.setattr(Batch, "to", lambda batch, device: copy.deepcopy(batch))
    # oneDNN's LSTM gives other results where no gradient is asked for, as when it is played back.
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    yield
    torch._C._set_mkldnn_enabled(before)
