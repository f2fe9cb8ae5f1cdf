"""The attention of every layer behind one logit, and its gradient, for attributions by attention.

N: tokens of all windows; T: tokens of one window; H: heads; D: width of a head.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.errors import UserError
from weft.explain.scoring import Scorer
from weft.nn.attention import CrossAttention, MultiHead, Sighting


class LayerAttention(NamedTuple):
    """What one layer computed in a forward pass."""

    sighting: Sighting
    mixed: Tensor  # N H*D: the values mixed by the weights, before the output projection


class WindowAttention(NamedTuple):
    """Attention of one window by layer, and the gradient of the logit with respect to it: (H, T, T) each."""

    weights: list[NDArray[Any]]
    gradients: list[NDArray[Any]]


@contextmanager
def recorded_attention(network: Any) -> Iterator[list[LayerAttention]]:
    """The layers of self-attention in the order in which they are computed."""
    sightings, records = list[Sighting](), list[LayerAttention]()
    modules = [
        each for each in network.modules() if isinstance(each, MultiHead) and not isinstance(each, CrossAttention)
    ]
    before = [module.watcher for module in modules]

    def record(module: Any, inputs: tuple[Tensor]) -> None:  # of the output projection
        if sightings:
            records.append(LayerAttention(sightings.pop(), inputs[0]))

    handles = [module.output.register_forward_pre_hook(record) for module in modules]
    for module in modules:
        module.watcher = sightings.append
    try:
        yield records
    finally:
        for handle in handles:
            handle.remove()
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
        if len(records) != layers or any(len(record.sighting.value) != len(vectors) for record in records):
            raise UserError("the attention of this model is not that of tokens to tokens; use integrated-gradients")
        slopes = torch.autograd.grad(score.sum(), [record.mixed for record in records])
    windows: list[WindowAttention] = []
    for number, length in enumerate(scorer.lengths):
        part = slice(scorer.starts[number], scorer.starts[number + 1])
        weights, gradients = list[NDArray[Any]](), list[NDArray[Any]]()
        for record, slope in zip(records, slopes, strict=True):
            value = record.sighting.value[part].double()  # T H D
            own = slope[part].reshape(value.shape).double()
            # The output is the weights times the values, so its gradient times the values is that of the weights.
            gradients.append(torch.einsum("thd,shd->hts", own, value).detach().cpu().numpy())
            weights.append(record.sighting.weights[number, :, :length, :length].detach().double().cpu().numpy())
        windows.append(WindowAttention(weights, gradients))
    return windows


def by_token(windows: list[NDArray[Any]], shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """N: what the tokens that the head reads have of each token; `windows` hold T T."""
    sizes = np.cumsum([0, *map(len, windows)])
    parts = [shares[first : first + len(matrix)] @ matrix for first, matrix in zip(sizes, windows, strict=False)]
    return np.concatenate(parts)
