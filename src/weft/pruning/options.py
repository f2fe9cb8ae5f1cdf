"""The options of `prune`, checked before a model is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from weft.config import option
from weft.errors import one_of, refuse


@dataclass(frozen=True, kw_only=True)
class PruneOptions:
    """What is removed from a model, by what, and what is measured."""

    panel: ClassVar = None
    layers: int | None = option(None, "--layers", help="Layers to keep.")
    by: Literal["even", "importance"] = option("even", "--by", help="Keep evenly spaced or the most important layers.")
    heads: float | None = option(None, "--heads", metavar="SHARE", help="Share of all heads to remove, such as 0.3.")
    heads_each: int | None = option(None, "--heads-each", help="Heads to remove from each layer.")
    vocabulary: int | None = option(None, "--vocabulary", help="Tokens to keep: those that the texts use most.")
    characters: bool = option(True, "--characters/--no-characters", help="Keep every single character, used or not.")
    text: tuple[str, ...] = option((), "--text", metavar="FILE", help="Texts to count tokens in. Default: --data.")
    max_drop: float | None = option(None, "--max-drop", metavar="POINTS", help="Write nothing if it loses more.")
    costs: bool = option(True, "--costs/--no-costs", help="Also measure size and speed.")
    seconds: float = option(5.0, "--seconds", metavar="SECONDS", help="Time limit of each speed measurement.")

    def check(self, rows: bool) -> None:
        """Refuse what cannot be done; `rows`: whether there are any."""
        one_of(self.by, ("even", "importance"), "by")
        heads = self.heads is not None or self.heads_each is not None
        ranked = heads or (self.layers is not None and self.by == "importance")
        uncounted = self.vocabulary is not None and not rows and not self.text
        asked = heads or self.layers is not None or self.vocabulary is not None
        refuse(
            (not asked, "nothing to prune: give --layers, --heads or --vocabulary"),
            (ranked and not rows, "heads and layers are ranked on rows with labels: give --data FILE"),
            (self.max_drop is not None and not rows, "the loss is measured on rows with labels: give --data FILE"),
            (uncounted, "tokens are counted in texts: give --text FILE or --data FILE"),
        )
