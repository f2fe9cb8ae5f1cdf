"""The outputs of a teacher for one example, as the cache keeps them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Arrays by name, of at least one dimension each; a name that an example lacks comes back as an empty array where others
# of its shard have it.
TeacherArrays = Mapping[str, NDArray[Any]]


def stacked(outputs: Sequence[TeacherArrays], name: str) -> NDArray[Any]:
    """E ...: the outputs for every example under one name, where all have the same shape."""
    first = np.asarray(outputs[0][name])
    array = np.empty((len(outputs), *first.shape), dtype=first.dtype)
    for number in range(len(outputs)):
        array[number] = outputs[number][name]
    return array
