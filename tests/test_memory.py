"""A command keeps freed memory for its next pass, unless somebody has set up malloc otherwise."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from weft import memory


@pytest.mark.parametrize("variable", [None, "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD"])
def test_freed_memory_is_kept_unless_malloc_is_set_up(variable: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[tuple[int, int]]()
    library: Any = SimpleNamespace(mallopt=lambda name, value: calls.append((name, value)))
    monkeypatch.setattr("ctypes.CDLL", lambda name: library)
    monkeypatch.setattr(sys, "platform", "linux")
    for name in [name for name in os.environ if name.startswith("MALLOC_") or name in ("GLIBC_TUNABLES", "LD_PRELOAD")]:
        monkeypatch.delenv(name)
    if variable is not None:
        monkeypatch.setenv(variable, "1")
    memory.keep_freed_memory()
    assert calls == ([(memory.MMAP, 32 << 20), (memory.TRIM, 1 << 30)] if variable is None else [])


def test_a_library_without_options_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda name: SimpleNamespace())
    memory.keep_freed_memory()
