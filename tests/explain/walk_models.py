"""Small models with fresh weights for the tests of walks."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch

import weft
from weft.checkpoint.families import FAMILIES
from weft.explain.walk_steps import Walk, recomputed
from weft.tasks.model import Model
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.tokenizers.training import learn

TEXT = "Thinking Machines learn to read the street"
LINES = [
    "Thinking Machines learn to read the street because it was too tired",
    "the animal did not cross the street because it was too wide",
    "a machine reads the text and a reader reads the machine",
] * 4


@cache
def tokenizer_for(name: str) -> Tokenizer:
    family = FAMILIES[name]
    size = 290 if family.tokenizer in ("bpe", "word-bytes") else 100
    return learn(LINES, family.tokenizer, size, specials=family.specials, around=family.around)


def small(name: str, *, double: bool = True, layers: int = 2, seed: int = 1, **more: Any) -> Model:
    """A model of 2 x 16; its weights are larger than usual, so that no step is near the identity."""
    settings = {"context": 40, "heads": 4, **more.pop("settings", {})}
    model = weft.new(name, tokenizer_for(name), size=f"{layers}x64", settings=settings, seed=seed, **more)
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    if double:
        model.network.double()
    return model


def check(walk: Walk, tolerance: float = 1e-9) -> int:
    """Every matrix equals the one that is made anew from what its `made_from` declares; how many were compared."""
    count = 0
    for id, matrix in walk.matrices.items():
        if matrix.made_from is None:
            continue
        again = recomputed(walk, id)
        known = ~np.isnan(again)
        assert known.any(), f"{id}: nothing can be made again"
        values = np.asarray(matrix.values, dtype=np.float64)
        both = known & np.isfinite(values)
        assert np.array_equal(values[known & ~both], again[known & ~both]), id
        scale = max(1.0, float(np.abs(values[both]).max()))
        assert np.abs(values[both] - again[both]).max() <= tolerance * scale, f"{id} ({matrix.made_from['kind']})"
        count += 1
    shown = {name for step in walk.steps for part in (step, *step.details) for name in part.matrices}
    for id, matrix in walk.matrices.items():
        assert id in shown or id.endswith("_bias"), f"{id} is on no step"
        assert len(matrix.rows) == matrix.values.shape[0] and len(matrix.columns) == matrix.values.shape[1]
    signs = {"×", "× transposed", "+", "=", "→", "|"}
    assert shown <= {*walk.matrices, *signs}, shown - {*walk.matrices, *signs}
    return count
