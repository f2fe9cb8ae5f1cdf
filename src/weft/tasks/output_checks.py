"""Outputs of a network, checked before they become answers; an error is one line that a user understands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from weft.checkpoint.folder import LoadedModel
from weft.errors import NotFinite, UserError, shown
from weft.models.ngram import UNSEEN, UnseenContext


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


@contextmanager
def unseen_in_words(opened: LoadedModel) -> Iterator[None]:
    """An error about tokens becomes one about words."""
    try:
        yield
    except UnseenContext as error:
        tokenizer = opened.tokenizer
        words = None if tokenizer is None else " ".join(tokenizer.token(token) or "?" for token in error.tokens)
        raise UserError(str(error) if words is None else f"the context {shown(words, 200)!r} {UNSEEN}") from None
