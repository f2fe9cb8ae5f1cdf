"""The number of threads of a pass, as torch chooses it, also for processes that do not load torch."""

from __future__ import annotations

import os
import sys
from pathlib import Path

TOPOLOGY = Path("/sys/devices/system/cpu")
# Environment variables that torch with MKL reads; the first that holds a number counts.
VARIABLES = ("MKL_NUM_THREADS", "OMP_NUM_THREADS")


def thread_count() -> int:
    """Threads of one pass: those of torch if it is loaded, else as many as torch would use."""
    if "torch" in sys.modules:
        return int(sys.modules["torch"].get_num_threads())
    cores = core_count()
    values = (os.environ.get(name, "").partition(",")[0].strip() for name in VARIABLES)
    return min(next((int(value) for value in values if value.isdecimal() and int(value)), cores), cores)


def core_count() -> int:
    """Cores that this process may run on; two hardware threads of a core count once."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    processors = os.sched_getaffinity(0)
    try:
        cores = {(TOPOLOGY / f"cpu{number}/topology/thread_siblings_list").read_text() for number in processors}
    except OSError:
        return len(processors)
    return len(cores)
