"""Drawing words: what may be drawn is what transformers would draw from, and draws fall as their chances say."""

from __future__ import annotations

from typing import Any

import pytest
import scipy.stats
import torch
import transformers

from tests.generation.toy import Toy
from weft.errors import UserError
from weft.generation.generate import generate
from weft.generation.sampling import RandomDraws, Sampling, choose, likely

WARPERS = {
    "temperature": transformers.TemperatureLogitsWarper,
    "top_k": transformers.TopKLogitsWarper,
    "top_p": transformers.TopPLogitsWarper,
    "min_p": transformers.MinPLogitsWarper,
    "typical": transformers.TypicalLogitsWarper,
}
FILTERS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7},
    {"top_k": 7},
    {"top_p": 0.6},
    {"min_p": 0.1},
    {"typical": 0.5},
    {"typical": 0.9},
    {"temperature": 1.5, "top_k": 20, "top_p": 0.8},
    {"temperature": 1.2, "top_k": 40, "top_p": 0.95, "min_p": 0.02, "typical": 0.8},
]


@pytest.mark.parametrize("options", FILTERS, ids=str)
def test_sampling_has_the_peers_distribution(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    scores = torch.randn(3, 60) * 2
    scores[:, 50:] = -torch.inf  # what rules have forbidden stays so
    expected = scores.clone()
    for name, value in options.items():
        expected = WARPERS[name](value)(torch.zeros(3, 1).long(), expected)
    sampling = Sampling(**{"temperature": 1.0, **options})
    assert torch.allclose(likely(scores, sampling).float().softmax(-1), expected.softmax(-1), atol=1e-6)
    chances = expected.softmax(-1)[0]
    many = 4000
    draws = choose(scores[:1].expand(many, -1), sampling, RandomDraws(range(many)).draw(range(many)))
    counts = torch.bincount(draws, minlength=60)
    assert counts[chances == 0].sum() == 0
    assert fits(counts.double(), chances.double() * many)


def fits(counts: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether counts may come from what was expected; the test wants five in each bin, so the rest make one."""
    kept = expected >= 5
    observed = [*counts[kept].tolist(), float(counts[~kept].sum())]
    wanted = [*expected[kept].tolist(), float(expected[~kept].sum())]
    if wanted[-1] < 1e-9:
        assert observed[-1] == 0
        observed, wanted = observed[:-1], wanted[:-1]
    scale = sum(observed) / sum(wanted)
    return len(wanted) == 1 or bool(scipy.stats.chisquare(observed, [value * scale for value in wanted]).pvalue > 1e-6)


def test_samples_of_one_prompt_have_the_models_chances() -> None:
    """Two tokens deep: every pair as often as the model says, and the log-probabilities that it says."""
    toy, many = Toy(5, 3), 3000
    spoken = generate(toy, [[2]], choice=Sampling(temperature=1.0, n=many), context=None, max_tokens=2, seeds=[7])[0]
    counts, expected = torch.zeros(25, dtype=torch.float64), torch.zeros(25, dtype=torch.float64)
    for each in spoken:
        counts[each.tokens[0] * 5 + each.tokens[1]] += 1
    for pair in range(25):
        logs, _ = toy.follow([2], [pair // 5, pair % 5])
        expected[pair] = many * torch.tensor(sum(logs)).exp()
    assert fits(counts, expected)
    for each in spoken[:5]:
        assert each.logprob == pytest.approx(sum(toy.follow([2], each.tokens)[0]))
        assert each.score == pytest.approx(each.logprob / 2)


def test_batch_equals_single_and_seeds_belong_to_rows() -> None:
    toy = Toy(30, 1)
    prompts, seeds = [[5, 9, 2], [8], [3, 3, 4, 12], [6, 2]], [11, 12, 13, 14]
    options: dict[str, Any] = {
        "choice": Sampling(temperature=0.9, top_p=0.95), "context": 100, "max_tokens": 80, "ends": [4],
    }  # fmt: skip
    together = generate(toy, prompts, seeds=seeds, **options)
    assert together == generate(toy, prompts[::-1], seeds=seeds[::-1], **options)[::-1]
    for prompt, seed, spoken in zip(prompts, seeds, together, strict=True):
        assert generate(toy, [prompt], seeds=[seed], **options)[0] == spoken
    assert generate(toy, prompts, seeds=[1, 2, 3, 4], **options) != together
    several = generate(toy, prompts, seeds=seeds, **{**options, "choice": Sampling(temperature=0.9, top_p=0.95, n=3)})
    assert [row[:1] for row in several] == together, "the first of several samples is the one sample"
    assert len({tuple(each.tokens) for row in several for each in row}) > 9


@pytest.mark.parametrize(
    "options, fault",
    [
        ({"temperature": -1.0}, "temperature must be 0 or more"),
        ({"temperature": float("nan")}, "temperature must be 0 or more"),
        ({"top_k": 0}, "top_k must be at least 1"),
        ({"top_p": 0.0}, "top_p must be above 0"),
        ({"top_p": 1.5}, "at most 1"),
        ({"min_p": -0.1}, "min_p must be above 0"),
        ({"typical": 0.0}, "typical must be above 0"),
        ({"n": 0}, "must be at least 1, not 0"),
        ({"n": 2}, "greedy search gives one text, not 2"),
        ({"n": 2, "temperature": 0.0}, "greedy search gives one text, not 2"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(UserError, match=fault):
        Sampling(**options)


def test_draws_are_new_at_every_step() -> None:
    chances = RandomDraws([3, 4])
    first = [chances.draw([0, 1]).tolist() for _ in range(150)]
    assert len({value for both in first for value in both}) == 300
    alone = RandomDraws([4])
    assert [alone.draw([0]).item() for _ in range(150)] == [both[1] for both in first]


@pytest.mark.parametrize("temperature", [1e-45, 1e-38, 1e-9])
def test_near_zero_the_best_token_is_taken(temperature: float) -> None:
    scores = torch.tensor([[5.0, 1.0, -3.0, 2.0]])
    for top_p in (None, 0.9):
        sampling = Sampling(temperature=temperature, top_p=top_p)
        assert choose(scores, sampling, RandomDraws([0]).draw([0])).tolist() == [0]
