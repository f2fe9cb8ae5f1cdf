"""word2vec: written-out gradients are those of the loss, chance is as it says, and planted structure is found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from weft.vectors.plan import Learning
from weft.vectors.word2vec import CHUNKS, LIMIT, Chunks, Push, Word2Vec, cbow, kept_chances, loss_of, move, skip_gram

CPU = torch.device("cpu")
PLAN = Learning(width=16, sample=0.0).resolved(False, 1, 10_000)


def vectors() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    shapes = ((2, 4, 5), (2, 7, 5), (2, 3, 5))
    found = [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    near = (torch.rand(2, 4, 7) < 0.4).double()
    near[0, 1] = 0  # a word without neighbours
    return found[0], found[1], found[2], near


def test_gradients_of_skip_gram_are_those_of_its_loss() -> None:
    *inputs, near = vectors()
    loss_of("skip-gram", *inputs, near, 5).backward()
    for push, tensor in zip(skip_gram(*[x.detach() for x in inputs], near, 5), inputs, strict=True):
        assert tensor.grad is not None
        assert torch.allclose(push.rows, -tensor.grad, rtol=0, atol=1e-12)
        assert push.pairs.shape == push.rows.shape[:2]


def test_gradients_of_cbow_are_those_of_its_loss_with_the_whole_push_for_each_neighbour() -> None:
    centres, places, noise, near = vectors()
    loss_of("cbow", centres, places, noise, near, 5).backward()
    found = cbow(centres.detach(), places.detach(), noise.detach(), near, 5)
    assert centres.grad is not None and noise.grad is not None and places.grad is not None
    assert torch.allclose(found.centres.rows, -centres.grad, rtol=0, atol=1e-12)
    assert torch.allclose(found.noise.rows, -noise.grad, rtol=0, atol=1e-12)
    # One centre alone: each of its m neighbours gets m times its share.
    alone = torch.zeros_like(near)
    alone[0, 0, :3] = 1
    places.grad = None
    loss_of("cbow", centres, places, noise, alone, 5).backward()
    found = cbow(centres.detach(), places.detach(), noise.detach(), alone, 5)
    assert torch.allclose(found.places.rows, -3 * places.grad, rtol=0, atol=1e-12)


def test_the_loss_is_that_of_the_paper_word_by_word() -> None:
    centres, places, noise, near = (x.detach() for x in vectors())
    total = 0.0
    for n, c, j in near.nonzero().tolist():
        total -= float(torch.sigmoid(centres[n, c] @ places[n, j]).log())
        # Each neighbour has 5 words of noise; here all 3 of the chunk, weighed.
        total -= sum(5 / 3 * float(torch.sigmoid(-centres[n, c] @ word).log()) for word in noise[n])
    assert float(loss_of("skip-gram", centres, places, noise, near, 5)) == pytest.approx(total, rel=1e-12)


def test_neighbours_are_those_within_reach_in_the_same_document() -> None:
    chunk = CHUNKS["skip-gram"][0]
    documents = torch.tensor([1] * 20 + [2] * 30 + [3])
    words = torch.arange(51)
    learner = Word2Vec(replace(PLAN, window=3), np.ones(51, np.int64), 0, CPU)
    chunks = Chunks.of(words, documents.int(), chunk, 3)
    assert len(chunks.words) == 2
    reach = torch.randint(1, 4, (2, chunk, 1))
    noise = torch.zeros(2, 4, dtype=torch.long)
    _, _, _, near, (centre, around, _) = learner._gathered(chunks, torch.tensor([0, 1]), reach, noise)
    found = {(int(centre[n, c]), int(around[n, j])) for n, c, j in near.nonzero().tolist()}
    reaches = reach.reshape(-1).tolist()
    expected = {
        (a, b)
        for a in range(51)
        for b in range(51)
        if a != b and abs(a - b) <= reaches[a] and documents[a] == documents[b]
    }
    assert found == expected


def chi_square(observed: np.ndarray[Any, Any], shares: np.ndarray[Any, Any]) -> float:
    expected = observed.sum() * shares
    return float(((observed - expected) ** 2 / expected).sum())


def test_noise_and_thinning_follow_their_distributions() -> None:
    counts = np.array([5000, 2000, 900, 400, 100, 50, 0])
    learner = Word2Vec(replace(PLAN, sample=1e-2), counts, 0, CPU)
    drawn = torch.rand(200_000, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    observed = np.bincount(torch.searchsorted(learner.noise, drawn).numpy(), minlength=7)
    shares = counts**0.75 / (counts**0.75).sum()
    assert observed[6] == 0 and chi_square(observed[:6], shares[:6]) < 25.7  # 1 of 10,000 with 5 degrees of freedom
    stays = kept_chances(counts, 1e-2)
    shares = counts[:6] / counts.sum()
    assert stays[:6] == pytest.approx(np.minimum(1, np.sqrt(1e-2 / shares) + 1e-2 / shares)) and stays[6] == 0
    seen: list[Tensor] = []
    learner._step = lambda chunks, *rest: seen.append(chunks.words[chunks.documents >= 0])  # type: ignore[method-assign]
    words = torch.from_numpy(np.repeat(np.arange(7), counts))
    learner.learn(words, torch.zeros_like(words), 0, (0.1, 0.1))
    kept = np.bincount(seen[0].numpy(), minlength=7)
    for word in range(7):  # within five deviations of a binomial
        spread = np.sqrt(counts[word] * stays[word] * (1 - stays[word]))
        # A word stands in one chunk as a centre and in others around it: at the edges twice.
        assert abs(kept[word] - counts[word] * stays[word]) <= 5 * spread + 0.35 * counts[word] * stays[word] + 1


def test_a_row_moves_by_the_rate_times_its_pushes_up_to_the_limit() -> None:
    table = torch.zeros(3, 2)
    rows = torch.ones(1, 402, 2)
    numbers = torch.tensor([[0, 1] + [2] * 400])
    move(table, [(numbers, Push(rows, torch.ones(1, 402)))], 0.1)
    assert torch.allclose(table[0], torch.tensor([0.1, 0.1]))
    assert torch.allclose(table[2], torch.full((2,), LIMIT))  # not 40: 400 pushes of 1 have a mean of 1


def planted(seed: int = 0) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Sentences of words from one of 4 groups of 10, with 10 words that stand anywhere."""
    draw = np.random.default_rng(seed)
    groups = draw.integers(0, 4, 3000)
    words = groups[:, None] * 10 + draw.integers(0, 10, (3000, 8))
    words = np.where(draw.random(words.shape) < 0.2, 40 + draw.integers(0, 10, words.shape), words)
    return words.reshape(-1), np.repeat(np.arange(3000), 8)


def group_margin(matrix: Tensor) -> float:
    """How much nearer words are to their own group than to the others, by the cosine."""
    rows = torch.nn.functional.normalize(matrix[:40])
    cosines = rows @ rows.T
    same = torch.arange(40)[:, None] // 10 == torch.arange(40)[None] // 10
    own = same & ~torch.eye(40, dtype=torch.bool)
    return float(cosines[own].mean() - cosines[~same].mean())


def learned(mode: Any, threads: int = 1, seed: int = 0) -> Word2Vec:
    words, documents = planted()
    plan = replace(PLAN, mode=mode, threads=threads, epochs=3, batch=512)
    counts = np.bincount(words, minlength=51)
    learner = Word2Vec(plan, counts, seed, CPU)
    try:
        for number in range(3):
            rates = (0.1 * (1 - number / 3), 0.1 * (1 - (number + 1) / 3) + 1e-4)
            learner.learn(torch.from_numpy(words), torch.from_numpy(documents), number, rates)
    finally:
        learner.close()
    return learner


@pytest.mark.parametrize("mode", ["skip-gram", "cbow"])
def test_planted_groups_are_found_the_same_on_any_number_of_threads(mode: str) -> None:
    one, two = learned(mode), learned(mode, threads=2)
    assert group_margin(one.matrix()) > 0.4
    assert torch.equal(one.matrix(), two.matrix()) and torch.equal(one.outer, two.outer)
    assert not torch.equal(one.matrix(), learned(mode, seed=1).matrix())
