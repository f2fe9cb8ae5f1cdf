"""Attention followed through layers: exact cases that can be worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from weft.errors import UserError
from weft.explain.rollout import gradient_rollout, gradient_weighted, rollout


def attention(layers: int = 3, heads: int = 4, tokens: int = 5, seed: int = 0) -> np.ndarray:
    scores = np.exp(np.random.default_rng(seed).normal(size=(layers, heads, tokens, tokens)))
    return scores / scores.sum(-1, keepdims=True)


def test_tokens_that_look_at_themselves_keep_their_own() -> None:
    assert np.array_equal(rollout(np.tile(np.eye(4), (6, 2, 1, 1))), np.eye(4))


def test_rollout_is_the_product_of_the_layers() -> None:
    weights = attention()
    expected = np.eye(5)
    for layer in weights:  # the later layer stands left
        expected = (layer.mean(0) + np.eye(5)) / 2 @ expected
    assert np.abs(rollout(list(weights)) - expected).max() < 1e-12
    assert np.abs(rollout(weights).sum(-1) - 1).max() < 1e-12


def test_rollout_order_of_layers_matters() -> None:
    # Layer 0: token 1 reads token 0. Layer 1: token 2 reads token 1. So token 2 has read token 0, not the other way.
    first, second = np.eye(3)[None], np.eye(3)[None]
    first, second = first.copy(), second.copy()
    first[0, 1] = [1, 0, 0]
    second[0, 2] = [0, 1, 0]
    assert rollout([first, second])[2].tolist() == [0.25, 0.25, 0.5]
    assert rollout([second, first])[2].tolist() == [0, 0.5, 0.5]


def test_causal_attention_stays_causal() -> None:
    weights = np.tril(attention())
    assert np.array_equal(np.triu(rollout(weights / weights.sum(-1, keepdims=True)), 1), np.zeros((5, 5)))


def test_permuted_tokens_permute_the_rollout() -> None:
    weights, order = attention(), np.array([3, 1, 4, 0, 2])
    permuted = weights[:, :, order][:, :, :, order]
    assert np.abs(rollout(permuted) - rollout(weights)[order][:, order]).max() < 1e-12


def test_gradient_weights_drop_what_lowers_the_logit() -> None:
    weights = attention(1)[0]
    slopes = np.ones_like(weights)
    slopes[:, :, 2] = -1
    result = gradient_weighted(weights, slopes)
    assert (result[:, 2] == 0).all() and np.abs(np.delete(result - weights.mean(0), 2, 1)).max() < 1e-12


def test_gradient_rollout_adds_the_residual_path() -> None:
    weights = attention(2)
    first, second = (np.maximum(layer, 0).mean(0) for layer in weights)
    expected = (np.eye(5) + second) @ (np.eye(5) + first)
    assert np.abs(gradient_rollout(weights, np.ones_like(weights)) - expected).max() < 1e-12
    assert np.array_equal(gradient_rollout(weights, np.zeros_like(weights)), np.eye(5))


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(UserError, match=r"attention: each layer must have the shape \(heads, tokens, tokens\)"):
        rollout([np.ones((2, 3, 4))])
    with pytest.raises(UserError, match="no layers"):
        rollout([])
    with pytest.raises(UserError, match="residual must be"):
        rollout(attention(), residual=1.0)
    with pytest.raises(UserError, match="differ in shape"):
        gradient_rollout(attention(2), attention(3))
