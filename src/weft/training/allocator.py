"""Memory that tensors have freed stays with the process while it trains on a CPU.

The C library gives large blocks back to the system at once, and the next step asks for them again: the system fills
every page with zeros first, which takes 5 to 10 % of a step. Other C libraries than glibc have no such settings.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3  # of mallopt, by malloc.h
KEPT = (1 << 31) - 1  # bytes that may lie free at the end of the memory
LARGEST = 1 << 30  # bytes of a block that is taken from it
MORE = 1 << 26  # bytes that are asked for in addition


@contextmanager
def memory_kept() -> Iterator[None]:
    """Freed memory stays with the process for as long as this lasts."""
    library = None
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # musl has no mallopt
            library = ctypes.CDLL(None)
            for setting, value in ((MMAP_THRESHOLD, LARGEST), (TRIM_THRESHOLD, KEPT), (TOP_PAD, MORE)):
                library.mallopt(setting, value)
    try:
        yield
    finally:
        with suppress(OSError, AttributeError):
            if library is not None:
                library.mallopt(TRIM_THRESHOLD, MORE)
                library.mallopt(TOP_PAD, 0)
                library.malloc_trim(0)
