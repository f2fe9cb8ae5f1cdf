"""Whether weights are numbers: every stored tensor is read once for it, before anything is computed with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

PART = 1 << 16  # numbers that are looked at together, so that they stay in a processor's cache
ZEROS = np.zeros(PART, np.float32)
# Bits of the exponent of a half and of a bfloat16: all are set where it is not finite.
HALF, BRAIN = np.uint16(0x7C00), np.uint16(0x7F80)


def all_finite(array: NDArray[Any], bits: np.uint16 = HALF) -> bool:
    """Whether an array has no NaN and no infinity; whole numbers never have. `bits`: of an exponent of 16-bit floats"""
    if array.dtype.kind != "f":
        return True

    def finite(part: NDArray[Any]) -> bool:
        if part.dtype == np.float32:  # 0 times anything is 0, unless it is not finite; no way is quicker
            with np.errstate(invalid="ignore"):
                return bool(np.dot(part, ZEROS[: part.size]) == 0)
        if part.dtype == np.float16:  # by its bits: NumPy would convert each half to ask it
            return not bool(((part.view(np.uint16) & bits) == bits).any())
        return bool(np.isfinite(part).all())

    flat = array.ravel(order="K")  # in the order of the memory: a transposed table is not copied
    return all(finite(flat[first : first + PART]) for first in range(0, flat.size, PART))


def tensor_is_finite(tensor: Tensor) -> bool:
    """The same for a tensor of stored weights, on the CPU; several times as fast as asking each number by torch."""
    import torch

    if tensor.dtype == torch.bfloat16:  # NumPy has no such type
        return all_finite(tensor.view(torch.float16).numpy(), BRAIN)
    return all_finite(tensor.numpy())
