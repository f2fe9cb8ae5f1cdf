"""Arrays of weights as engines store them: whether all of their numbers are finite."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

PART = 1 << 16  # numbers that are looked at together, so that they stay in a processor's cache
ZEROS = np.zeros(PART, np.float32)
HALF = 0x7C00  # bits of the exponent of a half: all are set where it is not finite


def all_finite(array: NDArray[Any]) -> bool:
    """Whether an array has no NaN and no infinity; whole numbers never have."""
    if array.dtype.kind != "f":
        return True
    flat = array.reshape(-1)
    return all(_finite(flat[first : first + PART]) for first in range(0, flat.size, PART))


def _finite(part: NDArray[Any]) -> bool:
    if part.dtype == np.float32:  # 0 times anything is 0, unless it is not finite; no way is quicker
        with np.errstate(invalid="ignore"):
            return bool(np.dot(part, ZEROS[: part.size]) == 0)
    if part.dtype == np.float16:  # by its bits: NumPy would convert each half to ask it
        return not bool(((part.view(np.uint16) & np.uint16(HALF)) == HALF).any())
    return bool(np.isfinite(part).all())
