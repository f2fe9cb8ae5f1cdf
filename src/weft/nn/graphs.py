"""Capture of CUDA graphs: one at a time in a process, and with cleanup after a capture that fails."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

# torch captures one graph at a time. What other threads launch in the meantime is not part of it.
CAPTURING = threading.RLock()
# For each device the streams for warm-up and capture. They are reused, since cuBLAS keeps memory for every stream that
# it has seen, which captured graphs go on using. torch's own capture stream is on the first GPU only.
STREAMS: dict[torch.device, tuple[Any, Any]] = {}
# The GPUs whose generator was replaced after a failed capture. Graphs captured before keep drawing from the old one.
REPLACED: list[int] = []


def seed_generators(seed: int, device: torch.device) -> None:
    """What is drawn on the CPU and on this device is as after `torch.manual_seed`, which is too slow for every step.

    It takes 0.6 ms and some memory for backends that are not there: it keeps a stack trace for each, for later.
    """
    if device.type not in ("cpu", "cuda"):
        torch.manual_seed(seed)
        return
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":  # asked for anew each time, since a failed capture replaces it
        index = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[index].manual_seed(seed)


def casts_to(device: torch.device) -> torch.dtype | None:
    """The dtype of autocast, None if it is off: part of the key of a graph, which keeps the dtype of its capture."""
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None


def on_device(device: torch.device) -> Any:
    """Make this the current GPU: streams and kernels that name no device must be on the GPU that captures."""
    return torch.cuda.device(device if device.type == "cuda" else -1)


def streams_of(device: torch.device) -> tuple[Any, Any]:
    if device not in STREAMS:
        STREAMS[device] = torch.cuda.Stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    return STREAMS[device]


@contextmanager
def tried_out(device: torch.device) -> Iterator[None]:
    """Run something a few times on a side stream before it is captured: that compiles it and initializes libraries."""
    with CAPTURING, on_device(device):
        side, _ = streams_of(device)
        side.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(side):
                yield
        finally:
            torch.cuda.current_stream().wait_stream(side)


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """A graph that is freed while another one is captured ends the capture: freeing is forbidden then."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def captured(graph: Any, device: torch.device, pool: Any = None) -> Iterator[None]:
    """Capture what runs within the context; `pool`: memory that the graph shares with others."""
    with CAPTURING, on_device(device), without_garbage_collection():
        before = torch.cuda.current_stream()
        _, stream = streams_of(device)
        pool = pool or torch.cuda.graph_pool_handle()
        try:
            # thread_local: other threads, such as a loader's, make calls that are forbidden while they capture.
            with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                yield
        except BaseException:
            if device.type == "cuda":
                _clean_up(device, before, pool)
            raise


def _clean_up(device: torch.device, stream: Any, pool: Any) -> None:
    """After a failed capture, leave its stream and memory, and make the random generator usable again.

    torch does this only if it can end the capture. If the generator is replaced, graphs that draw random numbers must
    be captured again.
    """
    torch.cuda.set_stream(stream)
    index = torch.cuda.current_device() if device.index is None else device.index
    with suppress(RuntimeError):  # it has ended already: in newer versions of torch, and after OutOfMemoryError
        torch._C._cuda_endAllocateToPool(index, pool)  # otherwise no memory would ever be freed
    try:
        torch.rand(1, device=device)
    except RuntimeError:  # its state still says that a capture is going on
        REPLACED.append(index)
        generator = torch.cuda.default_generators[index]
        generator.graphsafe_set_state(generator.clone_state())
