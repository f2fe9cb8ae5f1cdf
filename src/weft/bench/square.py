"""Texts as a padded rectangle of tokens, for engines without ragged rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from weft.tasks.forward import tokenizer_of
from weft.tasks.model import Model


def rectangle(model: Model, texts: Sequence[str], longest: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """b t token ids with special tokens, padded to the longest text, and the attention mask, b t."""
    rows = [ids[:longest] for ids in tokenizer_of(model.opened).ids(list(texts))]
    ids = np.zeros((len(rows), max(map(len, rows))), np.int64)
    mask = np.zeros_like(ids)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = row
        mask[number, : len(row)] = 1
    return ids, mask
