"""GloVe: counts are what a plain loop counts, the loss is the formula, and planted structure is found."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.vectors.test_word2vec import CPU, group_margin, planted
from weft.vectors.glove import CooccurrenceCounts, Glove, count_together, parts_of, pushes
from weft.vectors.plan import Learning

PLAN = Learning(kind="glove", width=6, window=4, ceiling=5.0).resolved(False, 1, 1000)


def text() -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    draw = np.random.default_rng(2)
    return draw.integers(0, 12, 600), np.sort(draw.integers(0, 30, 600))


def plain(words: np.ndarray, documents: np.ndarray, window: int) -> dict[tuple[int, int], float]:  # type: ignore[type-arg]
    found: dict[tuple[int, int], float] = defaultdict(float)
    for a in range(len(words)):
        for b in range(len(words)):
            if a != b and abs(a - b) <= window and documents[a] == documents[b]:
                found[int(words[a]), int(words[b])] += 1 / abs(a - b)
    return found


def test_counts_are_those_of_a_plain_loop_however_the_text_is_cut_into_blocks() -> None:
    words, documents = text()
    whole = count_together([(words, documents)], 12, 4)
    borders = np.flatnonzero(np.diff(documents))[::3] + 1
    blocks = list(zip(np.split(words, borders), np.split(documents, borders), strict=True))
    cut = count_together(blocks, 12, 4)
    assert len(blocks) > 5 and np.array_equal(whole.keys, cut.keys) and (np.diff(whole.keys) > 0).all()
    assert whole.values == pytest.approx(cut.values)
    expected = plain(words, documents, 4)
    for part in parts_of(whole, 12, replace(PLAN, batch=1 << 20), 0, CPU):
        rows = np.repeat(np.arange(12), np.diff(part.starts.numpy()))
        found = dict(zip(zip(rows.tolist(), part.columns.tolist(), strict=True), part.logs.exp().tolist(), strict=True))
        assert found == pytest.approx(dict(expected), rel=1e-5)


def test_parts_share_out_all_pairs_and_each_is_symmetric() -> None:
    counts = count_together([text()], 12, 4)
    parts = parts_of(counts, 12, replace(PLAN, batch=30), 0, CPU)
    assert len(parts) > 3
    assert sum(len(part.logs) for part in parts) == 2 * len(counts.keys) - int((counts.keys % 13 == 0).sum())
    for part in parts:
        dense = part.matrix(part.logs).to_dense()
        assert torch.equal(dense, dense.T)
        marks = torch.arange(len(part.logs), dtype=torch.float32) + 1
        assert torch.equal(part.matrix(marks).to_dense().T, part.matrix(marks[part.other]).to_dense())


def test_the_loss_is_the_formula_and_its_gradients_are_right() -> None:
    parts = parts_of(count_together([text()], 12, 4), 12, replace(PLAN, batch=60, ceiling=20.0), 0, CPU)
    part = replace(parts[1], logs=parts[1].logs.double(), weights=parts[1].weights.double())
    torch.manual_seed(0)
    inner, outer = torch.randn(2, 12, 8, dtype=torch.float64).unbind(0)
    inner[:, -1] = outer[:, -2] = 1
    loss, first, second = pushes(part, inner, outer)
    words, bias = inner[:, :-2].clone().requires_grad_(), inner[:, -2].clone().requires_grad_()
    contexts, other = outer[:, :-2].clone().requires_grad_(), outer[:, -1].clone().requires_grad_()
    rows = torch.repeat_interleave(torch.arange(12), part.starts.diff())
    apart = (words[rows] * contexts[part.columns]).sum(1) + bias[rows] + other[part.columns] - part.logs
    # The weight of a count: (count / ceiling) ** power, 1 at most.
    weight = torch.clamp((part.logs.exp() / 20.0) ** 0.75, max=1)
    assert weight.min() < 0.9 and weight.max() == 1
    formula = 0.5 * (weight * apart**2).sum()
    assert float(loss) == pytest.approx(float(formula.detach()), rel=1e-6)
    formula.backward()
    for found, wanted in (
        (first[:, :-2], words),
        (first[:, -2], bias),
        (second[:, :-2], contexts),
        (second[:, -1], other),
    ):
        assert wanted.grad is not None
        assert torch.allclose(found, wanted.grad, rtol=1e-6, atol=1e-5)  # weights are floats of 32 bits
    assert not first[:, -1].any() and not second[:, -2].any()


def test_a_step_is_shortened_by_the_squares_of_the_steps_before() -> None:
    words, documents = text()
    parts = parts_of(count_together([(words, documents)], 13, 4), 13, replace(PLAN, batch=1 << 20), 0, CPU)
    glove = Glove(PLAN, 13, parts, 0, CPU)
    learning_rate, table, squares = PLAN.learning_rate, glove.inner.clone(), torch.ones_like(glove.inner)
    assert len(parts) == 1 and learning_rate is not None
    for number in range(3):
        _, gradient, _ = pushes(parts[0], glove.inner, glove.outer)
        glove.learn(number)
        squares += (learning_rate * gradient) ** 2
        table -= learning_rate * gradient / squares.sqrt()
    assert squares.max() > 1.1  # or it would be the same whatever was added up
    assert torch.allclose(glove.inner, table, rtol=0, atol=1e-6)


def test_planted_groups_are_found() -> None:
    words, documents = planted()
    plan = Learning(kind="glove", width=16, window=5).resolved(False, 1, len(words))
    parts = parts_of(count_together([(words, documents)], 51, 5), 51, replace(plan, batch=500), 0, CPU)
    glove = Glove(plan, 51, parts, 0, CPU)
    losses = [glove.learn(number) for number in range(25 * len(parts))]
    assert np.mean(losses[-len(parts) :]) < 0.5 * np.mean(losses[: len(parts)])
    assert group_margin(glove.matrix()) > 0.2


def test_nothing_together_is_no_counts() -> None:
    found = count_together([(np.array([1, 2]), np.array([0, 1]))], 3, 5)
    assert isinstance(found, CooccurrenceCounts) and not len(found.keys)
    assert not len(count_together([], 3, 5).keys)
