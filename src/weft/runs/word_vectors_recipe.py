"""The recipe of a run that learns word vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from weft.config import section
from weft.errors import UserError
from weft.runs.recipes import overlaid, read_recipe
from weft.runs.sections import RunRecipe, TextSection
from weft.vectors.plan import Learning


@dataclass(frozen=True, kw_only=True)
class VectorsRecipe(RunRecipe):
    """One run that learns word vectors."""

    verb: ClassVar = "vectors learn"
    vectors: Learning
    text: TextSection = section(TextSection(holdout=0.0), without=("dev",))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.text.dev or self.text.holdout:
            raise UserError("word vectors are judged by other data than text: none is held out")


def vectors_recipe(name: str | None, settings: Mapping[str, Any]) -> VectorsRecipe:
    """A recipe with these settings in place of its own."""
    usual: dict[str, Any] = {"vectors": {}, "text": {"holdout": 0.0}}
    return read_recipe(name, overlaid(usual, settings), VectorsRecipe)
