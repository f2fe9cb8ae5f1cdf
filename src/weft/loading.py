"""Python's garbage collector pauses while modules and models are loaded: all that they make is there to stay.

Importing torch makes 250,000 objects, and each full collection after that goes through all of them (0.1 s).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """No collection inside; afterwards the collector is as it was, and takes what was made for old objects."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running and not gc.get_freeze_count():  # a program that has frozen objects keeps them so
            gc.freeze()
            gc.unfreeze()  # into the oldest generation, in which nothing is looked for until it has grown by a quarter
        if running:
            gc.enable()
