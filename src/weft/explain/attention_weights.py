"""The attention of every layer behind one logit, and its gradient, for attributions by attention.

N: tokens of all windows; T: tokens of one window; H: heads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.errors import UserError
from weft.explain.scoring import Scorer
from weft.explain.seen import SeenText, sizes_of, watching


class WindowAttention(NamedTuple):
    """Attention of one window by layer, and the gradient of the logit with respect to it: (H, T, T) each."""

    weights: list[NDArray[Any]]
    gradients: list[NDArray[Any]]


def window_attention(scorer: Scorer, vectors: Tensor) -> list[WindowAttention]:
    """The attention of each window of a target, with gradients."""
    network = scorer.network
    layers, heads = sizes_of(network).get("", (0, 0))
    if not heads:
        raise UserError("this model has no attention; use integrated-gradients or leave-one-out")
    leaf = vectors[None].detach().requires_grad_()
    with torch.enable_grad(), watching(network, gradients=True) as seen:
        score = scorer.scores(leaf)
        if any(not text.stack().has("attention", layer) for text in seen for layer in range(layers)):
            raise UserError("the attention of this model is not that of tokens to tokens; use integrated-gradients")
        torch.autograd.backward(score.sum(), inputs=seen.attention_tensors())
    return [WindowAttention(arrays_of(text), arrays_of(text.gradients)) for text in seen]


def arrays_of(text: SeenText) -> list[NDArray[Any]]:
    """H T T of each layer."""
    return [weights.double().numpy() for weights in text.attention.values()]


def by_token(windows: list[NDArray[Any]], shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """N: what the tokens that the head reads have of each token; `windows` hold T T."""
    sizes = np.cumsum([0, *map(len, windows)])
    parts = [shares[first : first + len(matrix)] @ matrix for first, matrix in zip(sizes, windows, strict=False)]
    return np.concatenate(parts)
