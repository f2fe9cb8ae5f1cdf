"""Large pages for weights that every decoding step reads: with small ones a processor waits for addresses too."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

LARGE = 1 << 21  # bytes of a large page on x86
COLLAPSE = 25  # MADV_COLLAPSE, since Linux 6.1: at once, also where large pages are only for those who ask


@cache
def _advise() -> Any:
    """madvise of the C library; None on another system."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        function = ctypes.CDLL(None, use_errno=True).madvise
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return function


def in_large_pages(address: int, size: int) -> bool:
    """Put memory into large pages as far as it fills them, where the system can; what it holds stays the same."""
    advise = _advise()
    begin, end = -(-address // LARGE) * LARGE, (address + size) // LARGE * LARGE
    return advise is not None and end > begin and advise(begin, end - begin, COLLAPSE) == 0
