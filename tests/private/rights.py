"""What a file without permission looks like, also to root, whom no permission stops."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

OVERRIDE = 0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH: to open what nobody may
VERSION = 0x20080522  # of linux/capability.h


@contextmanager
def without_override() -> Iterator[None]:
    """As somebody whom permissions stop, in this thread; skips the test where the system does not allow that."""
    if os.geteuid() != 0:
        yield
        return
    library = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(VERSION, 0)
    before = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable, twice
    if not hasattr(library, "capget") or library.capget(header, before):
        pytest.skip("capabilities cannot be read here")
    changed = (ctypes.c_uint32 * 6)(*before)
    changed[0] &= ~OVERRIDE
    if library.capset(header, changed):
        pytest.skip("capabilities cannot be changed here")
    try:
        yield
    finally:
        assert library.capset(header, before) == 0
