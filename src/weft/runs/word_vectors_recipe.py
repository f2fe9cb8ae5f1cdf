"""The recipe of a run that learns word vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from weft.errors import UserError
from weft.runs.recipes import Words, overlaid, read_recipe
from weft.vectors.plan import Learning


@dataclass(frozen=True, kw_only=True)
class VectorsRecipe:
    """One run that learns word vectors."""

    verb: ClassVar = "vectors learn"
    vectors: Learning
    out: str | None = None
    seed: int = 0
    device: str | None = None  # the first GPU where there is one
    text: Words = Words(holdout=0.0)

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 1 << 62:
            raise UserError(f"seed must be between 0 and {(1 << 62) - 1}, not {self.seed}")
        if self.text.dev or self.text.holdout:
            raise UserError("word vectors are judged by other data than text: none is held out")


def vectors_recipe(name: str | None, settings: Mapping[str, Any]) -> VectorsRecipe:
    """A recipe with these settings in place of its own."""
    usual: dict[str, Any] = {"vectors": {}, "text": {"holdout": 0.0}}
    return read_recipe(name, overlaid(usual, settings), VectorsRecipe)
