"""Models that tests only read are trained once, however many processes the tests run in."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The folder that `make` fills, by the first process that asks for it; nobody may change what is in it."""
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # where the folders of all workers are
    folder, done = base / f"once-{name}", base / f"once-{name}.done"
    with (base / f"once-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            folder.mkdir()
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("WEFT_CACHE", str(folder / "cache"))
                make(folder)
            done.touch()
    return folder
