"""Arrays of weights as engines store them: whether all of their numbers are finite."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

PART = 1 << 20  # numbers that are looked at together, so that no second copy of a large table is made
EXPONENTS = {2: (np.uint16, 0x7C00), 4: (np.uint32, 0x7F800000)}  # by the bytes of a float: all set where not finite


def all_finite(array: NDArray[Any]) -> bool:
    """Whether an array has no NaN and no infinity; whole numbers never have."""
    if array.dtype.kind != "f":
        return True
    flat = array.reshape(-1)
    return all(_finite(flat[first : first + PART]) for first in range(0, flat.size, PART))


def _finite(part: NDArray[Any]) -> bool:
    if part.dtype.itemsize not in EXPONENTS:
        return bool(np.isfinite(part).all())
    # By their bits: NumPy converts halves one by one to ask them.
    kind, mask = EXPONENTS[part.dtype.itemsize]
    bits = part.view(kind) & kind(mask)
    return not bool((bits == mask).any())
