"""Timing on noisy machines: the contestants take turns, and medians are compared."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping
from typing import Any


def turns(
    runs: Mapping[str, Callable[[int], Any]],
    rounds: int,
    *,
    seconds: float = math.inf,
    least: int = 1,
    warm: int = 1,
    settle: Callable[[], Any] = lambda: None,
    pause: float = 0.0,
) -> dict[str, list[float]]:
    """The seconds of each run in every round; a run gets the number of the round.

    Each round has an order of its own, so that no run always suffers from what another leaves behind. The rounds end
    early, after `least` of them, when one of the runs has taken `seconds`: each has had as many turns. `pause`: seconds
    before each turn, in which threads that the one before has left waiting go to sleep.
    """
    for run in runs.values():
        for number in range(warm):
            run(number % rounds)
    names = list(runs)
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        for name in random.Random(number).sample(names, len(names)):
            settle()
            if pause:
                time.sleep(pause)
            begin = time.perf_counter()
            runs[name](number)
            settle()
            times[name].append(time.perf_counter() - begin)
        if number + 1 >= least and max(map(sum, times.values())) >= seconds:
            break
    return times


def nearest_rank(values: list[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed: 0.95 of 20 is the 19th."""
    return sorted(values)[max(0, math.ceil(share * len(values) - 1e-9) - 1)]
