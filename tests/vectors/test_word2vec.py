"""word2vec: written-out gradients are those of the loss, chance is as it says, and planted structure is found."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from weft.vectors.plan import Learning
from weft.vectors.word2vec import (
    CHUNK,
    GROUP,
    LIMIT,
    Cbow,
    Chunks,
    Push,
    SkipGram,
    Some,
    Word2Vec,
    cbow,
    kept_shares,
    loss_of,
    move,
    skip_gram,
)

CPU = torch.device("cpu")
PLAN = Learning(width=16, sample=0.0).resolved(False, 1, 10_000)


def vectors() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    shapes = ((2, 4, 5), (2, 7, 5), (2, 3, 5))
    found = [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    near = (torch.rand(2, 4, 7) < 0.4).double()
    near[0, 1] = 0  # a word without neighbors
    return found[0], found[1], found[2], near


def test_gradients_of_skip_gram_are_those_of_its_loss() -> None:
    *inputs, near = vectors()
    centers, places, noise = inputs
    loss_of(centers, centers @ places.mT, noise, near, 5).backward()
    for push, tensor in zip(skip_gram(*[x.detach() for x in inputs], near, 5), inputs, strict=True):
        assert tensor.grad is not None
        assert torch.allclose(push.rows, -tensor.grad, rtol=0, atol=1e-12)
        assert push.pairs.shape == push.rows.shape[:2]


def test_gradients_of_cbow_are_those_of_its_loss() -> None:
    torch.manual_seed(1)
    inputs = [torch.randn(2, some, 5, dtype=torch.float64, requires_grad=True) for some in (4, 4, 3)]
    there = torch.tensor([[1, 0, 1, 1], [1, 1, 1, 0]]).double()[..., None]  # some have no neighbors
    means, right, wrong = inputs
    loss_of(means, (means * right).sum(2, keepdim=True), wrong, there, 5).backward()
    given = [x.detach() for x in inputs]
    found = cbow(*given, there, 5)
    for rows, tensor in zip(found, inputs, strict=True):
        assert tensor.grad is not None
        assert torch.allclose(rows, -tensor.grad, rtol=0, atol=1e-12)
    scales = torch.rand(2, 4, 1).double(), torch.rand(2, 3, 1).double()
    scaled = cbow(*given, there, 5, scales)
    assert torch.equal(scaled[0], found[0])
    for rows, plain, scale in zip(scaled[1:], found[1:], scales, strict=True):
        assert torch.allclose(rows, plain * scale, rtol=0, atol=1e-12)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_step_of_cbow_is_its_gradient_limited_row_by_row(threads: int) -> None:
    """The gradient by autograd, each center alone and each row counted out, against bags, groups and shared counts."""
    plan = replace(PLAN, mode="cbow", window=2, batch=128, threads=threads)
    learner = Cbow(plan, np.ones(12, np.int64), 0, CPU)
    torch.manual_seed(1)
    learner.inner, learner.outer = torch.randn(12, 16), torch.randn(12, 16)
    words, documents = torch.randint(0, 12, (100,)), torch.arange(100) // 9
    (batch,) = learner._batches(words, documents, torch.Generator().manual_seed(2))
    inner, outer = (table.clone().double().requires_grad_() for table in (learner.inner, learner.outer))
    pairs = torch.zeros(2, 12).double()
    starts, noise = batch.near.starts.tolist(), batch.noise.shape[1]
    gain = inner.new_zeros(())
    for number, center in enumerate(batch.centers.flatten().tolist()):
        around = batch.near.rows[starts[number] : starts[number + 1]]
        if not len(around):
            continue
        hidden = inner[around].sum(0)  # each neighbor gets the whole gradient of the mean
        hidden = hidden - hidden.detach() * (1 - 1 / len(around))
        wrong = batch.noise[number // GROUP]
        gain = gain + torch.nn.functional.logsigmoid(hidden @ outer[center])
        gain = gain + 5 / noise * torch.nn.functional.logsigmoid(-(outer[wrong] @ hidden)).sum()
        pairs[0].index_add_(0, around, torch.full((len(around),), 6.0).double())
        pairs[1, center] += 1
        pairs[1].index_add_(0, wrong, torch.full((noise,), 5 / noise).double())
    gain.backward()
    learner._step(batch, 0.3)
    learner.close()
    for table, before, count in ((learner.inner, inner, pairs[0]), (learner.outer, outer, pairs[1])):
        assert before.grad is not None and bool((count * 0.3 > LIMIT).any())
        expected = before + before.grad * (LIMIT / count.clamp(min=LIMIT / 0.3))[:, None]
        assert (table - expected).abs().max() < 1e-4


def test_bags_of_cbow_hold_each_neighbor_within_reach_and_push_it_back() -> None:
    documents = torch.tensor([1] * 70 + [2] * 60 + [3])
    words = torch.arange(131) % 50  # a word stands in many places
    learner = Cbow(replace(PLAN, mode="cbow", window=3, batch=64), np.ones(50, np.int64), 0, CPU)
    batches = learner._batches(words, documents, torch.Generator().manual_seed(2))
    assert len(batches) == 3
    seen: Counter[tuple[int, int]] = Counter()
    for batch in batches:
        centers, near = batch.centers.reshape(-1).tolist(), batch.near.starts.tolist()
        forward = [
            (centers[i], int(word)) for i in range(64) for word in batch.near.rows[near[i] : near[i + 1]].tolist()
        ]
        assert [b - a for a, b in pairwise(near)] == batch.counts.reshape(-1).tolist()
        ends = batch.pushed.starts.tolist()
        back = [
            (centers[i], int(word))
            for place, word in enumerate(batch.words.tolist())
            for i in batch.pushed.rows[ends[place] : ends[place + 1]].tolist()
        ]
        assert sorted(forward) == sorted(back) and len(set(batch.words.tolist())) == len(batch.words)
        seen.update(forward)
    closest = [(a, a + step) for a in range(130) for step in (1,) if documents[a] == documents[a + 1]]
    for a, b in closest:  # a reach of one at least: neighbors next door see each other
        assert seen[int(words[a]), int(words[b])] and seen[int(words[b]), int(words[a])]
    # Nobody is seen from further than the window, nor over the edge of a document.
    allowed = {
        (int(words[a]), int(words[b]))
        for a in range(131)
        for b in range(max(0, a - 3), min(131, a + 4))
        if a != b and documents[a] == documents[b]
    }
    assert set(seen) <= allowed
    shares = sum(seen.values()) / (2 * sum(documents[a] == documents[a + 1] for a in range(130)))
    assert 1.6 < float(shares) < 2.3  # a reach of 2 on the mean


def test_the_loss_is_that_of_the_paper_word_by_word() -> None:
    centers, places, noise, near = (x.detach() for x in vectors())
    total = 0.0
    for n, c, j in near.nonzero().tolist():
        total -= float(torch.sigmoid(centers[n, c] @ places[n, j]).log())
        # Each neighbor has 5 words of noise; here all 3 of the chunk, weighed.
        total -= sum(5 / 3 * float(torch.sigmoid(-centers[n, c] @ word).log()) for word in noise[n])
    assert float(loss_of(centers, centers @ places.mT, noise, near, 5)) == pytest.approx(total, rel=1e-12)


def test_neighbors_are_those_within_reach_in_the_same_document() -> None:
    chunk = CHUNK
    documents = torch.tensor([1] * 20 + [2] * 30 + [3])
    words = torch.arange(51)
    learner = SkipGram(replace(PLAN, window=3), np.ones(51, np.int64), 0, CPU)
    chunks = Chunks.of(words, documents.int(), chunk, 3)
    assert len(chunks.words) == 2
    reach = torch.randint(1, 4, (2, chunk, 1))
    noise = torch.zeros(2, 4, dtype=torch.long)
    _, _, _, near, (center, around, _) = learner._gathered(Some(chunks, torch.tensor([0, 1]), reach, noise))
    found = {(int(center[n, c]), int(around[n, j])) for n, c, j in near.nonzero().tolist()}
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
    learner = SkipGram(replace(PLAN, sample=1e-2), counts, 0, CPU)
    drawn = torch.rand(200_000, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    observed = np.bincount(torch.searchsorted(learner.noise, drawn).numpy(), minlength=7)
    shares = counts**0.75 / (counts**0.75).sum()
    assert observed[6] == 0 and chi_square(observed[:6], shares[:6]) < 25.7  # 1 of 10,000 with 5 degrees of freedom
    stays = kept_shares(counts, 1e-2)
    shares = counts[:6] / counts.sum()
    assert stays[:6] == pytest.approx(np.minimum(1, np.sqrt(1e-2 / shares) + 1e-2 / shares)) and stays[6] == 0
    words = torch.from_numpy(np.repeat(np.arange(7), counts))
    chunks = learner.prepare(words, torch.zeros_like(words), 0)[0].chunks
    middle = slice(PLAN.window, PLAN.window + CHUNK)
    kept = np.bincount(chunks.words[:, middle][chunks.documents[:, middle] >= 0].numpy(), minlength=7)
    for word in range(7):  # within five deviations of a binomial
        spread = np.sqrt(counts[word] * stays[word] * (1 - stays[word]))
        assert abs(kept[word] - counts[word] * stays[word]) <= 5 * spread


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


def learned(mode: Any, threads: int = 1, seed: int = 0) -> Word2Vec[Any]:
    words, documents = planted()
    plan = replace(PLAN, mode=mode, threads=threads, epochs=3, batch=512)
    counts = np.bincount(words, minlength=51)
    learner = (SkipGram if mode == "skip-gram" else Cbow)(plan, counts, seed, CPU)
    try:
        for number in range(3):
            rates = (0.1 * (1 - number / 3), 0.1 * (1 - (number + 1) / 3) + 1e-4)
            learner.learn(learner.prepare(torch.from_numpy(words), torch.from_numpy(documents), number), rates)
    finally:
        learner.close()
    return learner


@pytest.mark.parametrize("mode", ["skip-gram", "cbow"])
def test_planted_groups_are_found_the_same_on_any_number_of_threads(mode: str) -> None:
    one, two = learned(mode), learned(mode, threads=3)
    assert group_margin(one.matrix()) > 0.2
    assert torch.equal(one.matrix(), two.matrix()) and torch.equal(one.outer, two.outer)
    assert not torch.equal(one.matrix(), learned(mode, seed=1).matrix())
