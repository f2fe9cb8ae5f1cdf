"""The directions in which a teacher's vectors differ: what a student with shorter vectors learns of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import UserError
from weft.tasks.base import TeacherArrays
from weft.tasks.forward import stacked

TOGETHER = 1024  # vectors that are held at a time


@dataclass(frozen=True)
class Directions:
    """The principal directions of the teacher's vectors; a student with shorter vectors learns them rotated and
    truncated, so that most of all products between texts is left (Eckart and Young, 1936)."""

    basis: NDArray[np.float64]  # width width: a direction in each column, those first in which most lies
    shares: NDArray[np.float64]  # width: of the squared length
    variance: float  # the mean squared distance from their mean ...
    unit_variance: float  # ... and that of the same vectors, normalized

    @staticmethod
    def of(outputs: Sequence[TeacherArrays]) -> Directions:
        products = total = units = np.zeros(())
        count = 0  # of those that are not zero
        for first in range(0, len(outputs), TOGETHER):
            vectors = stacked(outputs[first : first + TOGETHER], "output").astype(np.float64)
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            products, total = products + vectors.T @ vectors, total + vectors.sum(0)
            units = units + (vectors / np.maximum(lengths, 1e-12)).sum(0)
            count += int((lengths > 0).sum())
        if not count:
            raise UserError("the teacher's vectors of all texts are zero: there is nothing to learn")
        values, basis = np.linalg.eigh(products)
        values, basis = values[::-1].clip(0), basis[:, ::-1]
        # Either sign is right; the same one is taken every time.
        signs = np.sign(basis[np.abs(basis).argmax(0), np.arange(basis.shape[1])])
        length, mean, unit = float(values.sum()) / count, total / count, units / count
        # Vectors that are all the same teach little, but must not divide by zero.
        variance, unit_variance = max(length - float(mean @ mean), 1e-6 * length), max(1 - float(unit @ unit), 1e-6)
        return Directions(basis * signs, values / values.sum(), variance, unit_variance)

    def fitted(self, vectors: NDArray[Any], width: int) -> NDArray[np.float32]:
        """n teacher's width -> n width: rotated and truncated, or as they are with zeros after them."""
        if vectors.shape[1] > width:
            return (vectors @ self.basis[:, :width]).astype(np.float32)
        return np.pad(vectors, ((0, 0), (0, width - vectors.shape[1]))).astype(np.float32)
