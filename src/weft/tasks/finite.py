"""What a model puts out, checked before it becomes an answer: a number, or one line that names the model's folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from weft.checkpoint.folder import LoadedModel
from weft.errors import NotFinite


def check_finite(opened: LoadedModel, values: Tensor) -> Tensor:
    """The logits, vectors or log-probabilities themselves, if none of them is NaN or infinite."""
    if not bool(values.isfinite().all()):
        raise NotFinite(opened.folder)
    return values


def check_numbers(opened: LoadedModel, values: Tensor) -> Tensor:
    """As `check_finite`, for a model that may rule a token out: infinity is then an answer, and NaN is none."""
    if bool(values.isnan().any()):
        raise NotFinite(opened.folder)
    return values


@contextmanager
def naming(folder: Path | None) -> Iterator[None]:
    """Name the folder of the model whose search has met what is not a number."""
    try:
        yield
    except NotFinite:
        raise NotFinite(folder) from None
