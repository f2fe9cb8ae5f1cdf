"""What `prune` is asked for, checked before a model is loaded."""

from __future__ import annotations

from weft.errors import UserError, one_of

BY = ("even", "importance")


def check_pruning(
    *,
    layers: int | None,
    by: str,
    heads: float | None,
    heads_each: int | None,
    vocabulary: int | None,
    max_drop: float | None,
    rows: bool,
    text: bool,
) -> None:
    """Something is to go, and there is what decides which; `rows`, `text`: whether there are any."""
    one_of(by, BY, "by")
    if layers is None and heads is None and heads_each is None and vocabulary is None:
        raise UserError("nothing to prune: give --layers, --heads or --vocabulary")
    for asked, what in (
        (heads is not None or heads_each is not None, "heads are ranked on rows with labels"),
        (layers is not None and by == "importance", "layers are ranked on rows with labels"),
        (max_drop is not None, "the loss is measured on rows with labels"),
    ):
        if asked and not rows:
            raise UserError(f"{what}: give --data FILE")
    if vocabulary is not None and not rows and not text:
        raise UserError("tokens are counted in texts: give --text FILE or --data FILE")
