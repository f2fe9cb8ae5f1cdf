"""Contexts that a counted text does not have, told in words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from weft.checkpoint.folder import LoadedModel
from weft.errors import UserError, shown
from weft.models.ngram import UNSEEN, UnseenContext


@contextmanager
def unseen_in_words(opened: LoadedModel) -> Iterator[None]:
    """An error about tokens becomes one about words."""
    try:
        yield
    except UnseenContext as error:
        tokenizer = opened.tokenizer
        words = None if tokenizer is None else " ".join(tokenizer.token(token) or "?" for token in error.tokens)
        raise UserError(str(error) if words is None else f"the context {shown(words, 200)!r} {UNSEEN}") from None
