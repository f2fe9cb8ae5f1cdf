"""Attention followed through all layers: rollout, and attention weighted by its gradient.

L: layers; H: heads; T: tokens, which read (rows) and are read (columns).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import UserError

Matrix = NDArray[np.float64]


def by_layer(attention: Sequence[Any] | NDArray[Any], name: str = "attention") -> list[Matrix]:
    """Self-attention of one text, an array (H, T, T) of each layer; layers may differ in heads, not in tokens."""
    layers = [np.asarray(layer, dtype=np.float64) for layer in attention]
    shapes = [layer.shape for layer in layers]
    if not layers:
        raise UserError(f"{name}: there are no layers")
    if any(len(shape) != 3 or shape[1:] != (shapes[0][-1],) * 2 for shape in shapes):
        raise UserError(f"{name}: each layer must have the shape (heads, tokens, tokens), not {sorted(set(shapes))}")
    return layers


def rollout(attention: Sequence[Any] | NDArray[Any], residual: float = 0.5) -> Matrix:
    """How much of each input token reaches each token of the last layer (Abnar and Zuidema, 2020); rows sum to 1.

    `attention`: of each layer an array (H, T, T). `residual`: the share of a layer's residual connection; 0.5 is the
    paper's identity matrix added to the mean of the heads.
    """
    if not 0 <= residual < 1:
        raise UserError(f"residual must be at least 0 and below 1, not {residual}")
    layers = [layer.mean(0) for layer in by_layer(attention)]  # T T each
    identity = np.eye(len(layers[0]))
    product = identity
    for layer in layers:
        mixed = (1 - residual) * layer + residual * identity
        product = mixed / mixed.sum(-1, keepdims=True) @ product
    return product


def gradient_weighted(attention: NDArray[Any], gradient: NDArray[Any]) -> Matrix:
    """T T: attention of one layer times the gradient of a logit, its positive part, mean over heads."""
    if np.shape(attention) != np.shape(gradient):
        raise UserError(f"attention {np.shape(attention)} and its gradient {np.shape(gradient)} differ in shape")
    weights = np.asarray(attention, dtype=np.float64) * np.asarray(gradient, dtype=np.float64)
    return np.maximum(weights, 0.0).mean(0)


def gradient_rollout(attention: Sequence[Any] | NDArray[Any], gradients: Sequence[Any] | NDArray[Any]) -> Matrix:
    """Relevance of each input token for each token of the last layer (Chefer et al., 2021), beside its residual path.

    R = I, and R <- R + A R in every layer, where A is its gradient-weighted attention.
    """
    layers, slopes = by_layer(attention), by_layer(gradients, "gradients")
    if len(layers) != len(slopes):
        raise UserError(f"attention of {len(layers)} layers and gradients of {len(slopes)} differ in shape")
    relevance = np.eye(layers[0].shape[-1])
    for layer, slope in zip(layers, slopes, strict=True):
        relevance = relevance + gradient_weighted(layer, slope) @ relevance
    return relevance
