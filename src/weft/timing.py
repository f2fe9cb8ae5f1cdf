"""Timing on noisy machines: the contestants take turns, and medians are compared."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any


def medians(
    runs: Mapping[str, Callable[[], Any]], repeats: int, warm: int = 1, settle: Callable[[], Any] = lambda: None
) -> dict[str, float]:
    """Median seconds of each run; `settle` waits for a device that works on its own, such as a GPU."""
    for run in runs.values():
        for _ in range(warm):
            run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            settle()
            begin = time.perf_counter()
            run()
            settle()
            times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(found) for name, found in times.items()}
