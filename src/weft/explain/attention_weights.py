"""The attention of every layer behind one logit, and its gradient, for attributions by attention.

N: tokens of all windows; T: tokens of one window; H: heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.errors import UserError
from weft.explain.scoring import Scorer
from weft.nn.attention import CrossAttention, MultiHead, Sighting, SquareWeights


class WindowAttention(NamedTuple):
    """Attention of one window by layer, and the gradient of the logit with respect to it: (H, T, T) each."""

    weights: list[NDArray[Any]]
    gradients: list[NDArray[Any]]


@contextmanager
def recorded_attention(network: Any) -> Iterator[list[Sighting]]:
    """The layers of self-attention in the order in which they are computed."""
    records = list[Sighting]()
    modules = [
        each for each in network.modules() if isinstance(each, MultiHead) and not isinstance(each, CrossAttention)
    ]
    before = [module.watcher for module in modules]
    for module in modules:
        module.watcher = records.append
    try:
        yield records
    finally:
        for module, watcher in zip(modules, before, strict=True):
            module.watcher = watcher


def window_attention(scorer: Scorer, vectors: Tensor) -> list[WindowAttention]:
    """The attention of each window of a target, with gradients."""
    network, layers = scorer.network, scorer.network.config.layers
    leaf = vectors[None].detach().requires_grad_()
    with torch.enable_grad(), recorded_attention(network) as records:
        score = scorer.scores(leaf)
        if not records:
            raise UserError("this model has no attention; use integrated-gradients or leave-one-out")
        squares = [record.squares for record in records if record.squares is not None]
        if len(squares) != layers or any(len(record.value) != len(vectors) for record in records):
            raise UserError("the attention of this model is not that of tokens to tokens; use integrated-gradients")
        parts = [part for square in squares for part in square.parts]
        slopes = iter(torch.autograd.grad(score.sum(), parts))
    slope_squares = [replace(square, parts=[next(slopes) for _ in square.parts]) for square in squares]
    return [
        WindowAttention(*([array_of(layer, number, length) for layer in side] for side in (squares, slope_squares)))
        for number, length in enumerate(scorer.lengths)
    ]


def array_of(squares: SquareWeights, row: int, length: int) -> NDArray[Any]:
    """H T T of one row."""
    part, inside = squares.place(row)
    return squares.parts[part][inside, :, :length, :length].detach().double().cpu().numpy()


def by_token(windows: list[NDArray[Any]], shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """N: what the tokens that the head reads have of each token; `windows` hold T T."""
    sizes = np.cumsum([0, *map(len, windows)])
    parts = [shares[first : first + len(matrix)] @ matrix for first, matrix in zip(sizes, windows, strict=False)]
    return np.concatenate(parts)
