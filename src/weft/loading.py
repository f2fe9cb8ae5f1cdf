"""Python's garbage collector pauses while modules and models are loaded: all that they make is there to stay.

Importing torch makes 250,000 objects, and each full collection after that goes through all of them (0.1 s).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """No collection inside; afterwards the collector is as it was."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()
