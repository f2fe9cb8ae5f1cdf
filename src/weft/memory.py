"""Freed memory that a process keeps for its next pass."""

from __future__ import annotations

import os
import sys

TRIM, MMAP = -1, -3  # options of glibc's mallopt
LARGEST_MMAP, KEPT = 32 << 20, 1 << 30  # bytes: the most that glibc allows, and what it keeps at the end of its heap


def keep_freed_memory() -> None:
    """Let glibc keep what is freed, for a command that makes many passes on a CPU.

    It hands large blocks back to the system at once and gets them again, page by page and zeroed, in every layer:
    50 to 90 page faults for each short text, 6 % of the time. Whoever has set up malloc otherwise is not overruled.
    """
    chosen = any(name.startswith("MALLOC_") or name in ("GLIBC_TUNABLES", "LD_PRELOAD") for name in os.environ)
    if sys.platform != "linux" or chosen:
        return
    import ctypes  # most commands do without

    option = getattr(ctypes.CDLL(None), "mallopt", None)  # other libraries than glibc may have none
    if option is not None:
        option(MMAP, LARGEST_MMAP)
        option(TRIM, KEPT)
