"""CUDA graphs: captured one at a time in a process, and a capture that fails leaves nothing behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

# torch captures one graph at a time, all of them on one stream; what other threads launch meanwhile is no part of it.
CAPTURING = threading.RLock()
# Of each device the streams that everything is tried out and captured on. cuBLAS holds on to memory for every stream it
# has seen, and what is captured uses that of its stream; torch's own capture stream is one of the first GPU.
STREAMS: dict[torch.device, tuple[Any, Any]] = {}
# The GPUs whose generator had to be replaced after a failed capture: graphs from before draw from the old one for ever.
REPLACED: list[int] = []


def casts_to(device: torch.device) -> torch.dtype | None:
    """What autocast computes in here; None: it is off. A graph goes on with what was so when it was captured."""
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None


def on_device(device: torch.device) -> Any:
    """Streams and kernels without a device of their own are those of this one within; another GPU captures nothing."""
    return torch.cuda.device(device if device.type == "cuda" else -1)


def streams_of(device: torch.device) -> tuple[Any, Any]:
    if device not in STREAMS:
        STREAMS[device] = torch.cuda.Stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    return STREAMS[device]


@contextmanager
def tried_out(device: torch.device) -> Iterator[None]:
    """What is to be captured runs a few times before, on a stream beside: that compiles, and sets libraries up."""
    with CAPTURING, on_device(device):
        side, _ = streams_of(device)
        side.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(side):
                yield
        finally:
            torch.cuda.current_stream().wait_stream(side)


@contextmanager
def captured(graph: Any, device: torch.device, pool: Any = None) -> Iterator[None]:
    """What runs within is captured instead; `pool`: memory that it shares with other graphs."""
    with CAPTURING, on_device(device):
        before = torch.cuda.current_stream()
        _, stream = streams_of(device)
        pool = pool or torch.cuda.graph_pool_handle()
        try:
            # Other threads, such as a loader's, ask things of the GPU that no capture of their own would allow.
            with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                yield
        except BaseException:
            if device.type == "cuda":
                _clean_up(device, before, pool)
            raise


def _clean_up(device: torch.device, stream: Any, pool: Any) -> None:
    """What torch does where it can end a capture: leave its stream and its memory, and let the generator draw again.

    Graphs from before that draw random numbers are to be captured anew, where the generator was replaced.
    """
    torch.cuda.set_stream(stream)
    index = torch.cuda.current_device() if device.index is None else device.index
    with suppress(RuntimeError):  # it has ended: torch has grown better at it, and memory that runs out ends it too
        torch._C._cuda_endAllocateToPool(index, pool)  # or no memory would ever be given back
    try:
        torch.rand(1, device=device)
    except RuntimeError:  # its state takes the capture to be going on for ever
        REPLACED.append(index)
        generator = torch.cuda.default_generators[index]
        generator.graphsafe_set_state(generator.clone_state())
