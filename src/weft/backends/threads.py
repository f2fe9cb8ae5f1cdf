"""How many threads one pass of a model has, also where torch, which decides it, is not loaded."""

from __future__ import annotations

import os
import sys
from pathlib import Path

TOPOLOGY = Path("/sys/devices/system/cpu")
# That torch with MKL reads, the first of them that holds a number.
VARIABLES = ("MKL_NUM_THREADS", "OMP_NUM_THREADS")


def thread_count() -> int:
    """Threads of one pass: those of torch where it is loaded, else as many as torch would take."""
    if "torch" in sys.modules:
        return int(sys.modules["torch"].get_num_threads())
    cores = core_count()
    asked = (os.environ.get(name, "").partition(",")[0].strip() for name in VARIABLES)
    return min(next((int(each) for each in asked if each.isdecimal() and int(each)), cores), cores)


def core_count() -> int:
    """Cores that this process may run on; two processors of one core count once."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    processors = os.sched_getaffinity(0)
    try:
        cores = {(TOPOLOGY / f"cpu{number}/topology/thread_siblings_list").read_text() for number in processors}
    except OSError:
        return len(processors)
    return len(cores)
