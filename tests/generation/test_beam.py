"""Beam search: as wide as all there is it finds the best of all; it stops early and loses nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from tests.generation.toy import Toy, exhaustive
from weft.errors import UserError
from weft.generation.generate import generate
from weft.generation.sampling import Sampling
from weft.generation.search import Beam, Completion, Ensemble, Searcher, best_tokens

END = 1
SEEDS = some.integers(0, 10_000)
PENALTIES = some.sampled_from([-0.7, 0.0, 0.4, 1.0, 2.5])
few = settings(max_examples=20, deadline=None)


def said(spoken: list[Completion]) -> list[tuple[int, ...]]:
    return [tuple(each.tokens) for each in spoken]


@few
@given(SEEDS, PENALTIES, some.integers(2, 4), some.integers(1, 3), some.integers(1, 4))
def test_full_width_is_exhaustive_search(seed: int, penalty: float, vocabulary: int, most: int, n: int) -> None:
    toy = Toy(vocabulary, seed)
    expected = exhaustive(toy, [0], END, most, penalty)
    beam = Beam(width=max(n, vocabulary**most), length_penalty=penalty, n=n)
    found = generate(toy, [[0]], choice=beam, context=None, max_tokens=most, ends=[END])[0]
    assert [score for score, _ in expected[:n]] == pytest.approx([each.score for each in found])
    assert said(found) == [tokens for _, tokens in expected[:n]]
    for each in found:
        assert each.finish_reason == ("end" if each.tokens[-1] == END else "length")
        assert each.logprob == pytest.approx(sum(toy.follow([0], each.tokens)[0]))


@few
@given(SEEDS, PENALTIES, some.sampled_from([0.3, 2.0]), some.lists(some.integers(0, 10), min_size=1, max_size=4))
def test_full_width_with_coverage(seed: int, penalty: float, weight: float, source: list[int]) -> None:
    toy = Toy(3, seed)
    expected = exhaustive(toy, [0], END, 3, penalty, source, weight)
    beam = Beam(width=27, length_penalty=penalty, n=3, coverage=weight)
    # A longer neighbor: what only fills the row up must not count.
    found = generate(
        toy, [[0], [2]], choice=beam, context=None, max_tokens=3, ends=[END], sources=[source, [1, 2, 3, 4, 5, 6]]
    )
    assert said(found[0]) == [tokens for _, tokens in expected[:3]]
    assert [each.score for each in found[0]] == pytest.approx([score for score, _ in expected[:3]], abs=1e-5)


@few
@given(SEEDS, PENALTIES, some.integers(2, 6), some.data())
def test_an_early_stop_changes_nothing(seed: int, penalty: float, width: int, data: Any) -> None:
    toy = Toy(7, seed, sharp=2.5)
    n = data.draw(some.integers(1, width))
    groups = data.draw(some.sampled_from([g for g in (1, 2, 3) if width % g == 0]))
    apart = {"groups": groups, "diversity": 0.8} if groups > 1 else {}
    coverage = data.draw(some.sampled_from([0.0, 0.5]))
    options: dict[str, Any] = {
        "choice": Beam(width=width, length_penalty=penalty, n=n, coverage=coverage, **apart),
        "context": None, "max_tokens": 12, "ends": [END], "sources": [[4, 7], [3, 1, 9]],
    }  # fmt: skip
    early = generate(toy, [[0], [3, 4]], **options)
    steps, toy.steps = toy.steps, 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Searcher, "_settled", lambda self, search: not any(search.alive))
        late = generate(toy, [[0], [3, 4]], **options)
    assert early == late
    assert steps <= toy.steps


def test_a_search_goes_on_while_a_longer_answer_may_win() -> None:
    """One token costs much and all that follow cost nothing: by length that is the best, and only at the limit."""
    toy = Toy(4, 0)
    toy.table[:] = -40.0
    toy.table[:, :, 2] = 0.0
    toy.table[0, 0] = torch.tensor([-40.0, 1.0, 0.0, -40.0])
    found = generate(toy, [[0, 0]], choice=Beam(width=2), context=None, max_tokens=12, ends=[END])[0]
    assert found[0].tokens == [2] * 12 and found[0].score == pytest.approx(found[0].logprob / 12)
    bare = generate(toy, [[0, 0]], choice=Beam(width=2, length_penalty=0.0), context=None, max_tokens=12, ends=[END])[0]
    assert bare[0].tokens == [END]


def test_a_search_stops_early() -> None:
    """Where an end is likely, most searches are over long before their limit."""
    toy = Toy(9, 3)
    toy.table[:, :, END] += 4
    generate(toy, [[0], [2], [5]], choice=Beam(width=4), context=None, max_tokens=60, ends=[END])
    assert toy.steps < 59
    toy.steps = 0
    generate(toy, [[0], [2], [5]], choice=Beam(width=4, length_penalty=0.0), context=None, max_tokens=60, ends=[END])
    assert toy.steps < 12


@few
@given(SEEDS, PENALTIES)
def test_width_one_is_greedy(seed: int, penalty: float) -> None:
    toy = Toy(8, seed, sharp=3)
    options: dict[str, Any] = {"context": None, "max_tokens": 9, "ends": [END]}
    greedy = generate(toy, [[0], [2, 3]], choice=Sampling(), **options)
    one = generate(toy, [[0], [2, 3]], choice=Beam(width=1, length_penalty=penalty), **options)
    for (ours,), (theirs,) in zip(one, greedy, strict=True):
        assert ours.tokens == theirs.tokens and ours.logprob == theirs.logprob
        assert ours.score == pytest.approx(ours.logprob / len(ours.tokens) ** penalty)
    alone = generate(toy, [[0]], choice=Beam(width=3, groups=3, n=3, length_penalty=penalty), **options)
    assert said(alone[0]) == said(greedy[0]), "groups of one that do not mind each other all say the same"


@few
@given(SEEDS, some.integers(2, 6), some.sampled_from([1, 2]), some.booleans())
def test_a_batch_is_its_rows(seed: int, width: int, groups: int, reads: bool) -> None:
    toy = Toy(9, seed, sharp=2)
    groups = groups if width % groups == 0 else 1
    beam = Beam(width=width, n=2, groups=groups, diversity=0.5 * (groups > 1), coverage=0.2 * reads)
    prompts, most = [[0], [5, 2, 3], [4], [8, 8]], [3, 12, 1, 7]
    sources = [[1], [2, 3, 4, 4], [5], [9, 8]] if reads else None
    options: dict[str, Any] = {"choice": beam, "context": 14, "ends": [END], "alternatives": 2, "attention": reads}
    together = generate(toy, prompts, max_tokens=most, sources=sources, **options)
    for row, prompt in enumerate(prompts):
        source = None if sources is None else [sources[row]]
        alone = generate(toy, [prompt], max_tokens=most[row], sources=source, **options)[0]
        assert said(alone) == said(together[row])
        for one, two in zip(alone, together[row], strict=True):
            assert one.finish_reason == two.finish_reason and one.score == pytest.approx(two.score, abs=1e-6)
            assert one.alternatives is None or [len(each) for each in one.alternatives] == [2] * len(one.tokens)
            assert sum(one.logprobs or []) == pytest.approx(one.logprob)
            if reads and one.tokens and sources is not None:
                assert one.attention is not None and two.attention is not None
                assert torch.allclose(one.attention, two.attention) and one.attention.shape[1] == len(sources[row])
                assert torch.allclose(one.attention.sum(1), torch.ones(len(one.tokens)))


def test_groups_keep_apart() -> None:
    """A free group says what a narrow beam says; a large penalty makes every group begin with a word of its own."""
    toy = Toy(12, 4, sharp=2)
    options: dict[str, Any] = {"context": None, "max_tokens": 6, "ends": [END]}
    apart = generate(toy, [[0]], choice=Beam(width=6, groups=3, n=6, diversity=100.0), **options)[0]
    assert len({each.tokens[0] for each in apart}) >= 3
    assert [each.score for each in apart] == sorted((each.score for each in apart), reverse=True)
    narrow = generate(toy, [[0]], choice=Beam(width=2, n=2), **options)[0]
    assert set(said(narrow)) <= set(said(apart)), "the first group pays nothing"
    together = generate(toy, [[0]], choice=Beam(width=6, groups=3, n=6), **options)[0]
    assert said(together) == said(narrow), "groups that pay nothing all say the same, and it counts once"
    for each in apart:  # scores are the model's own, whatever a group paid
        assert each.logprob == pytest.approx(sum(toy.follow([0], each.tokens)[0]))


@few
@given(SEEDS, some.integers(1, 300), some.integers(1, 12))
def test_best_tokens_are_the_best(seed: int, vocabulary: int, count: int) -> None:
    scores = torch.randn(5, vocabulary, generator=torch.Generator().manual_seed(seed))
    found = best_tokens(scores, count)
    assert torch.equal(scores.gather(1, found), scores.topk(min(count, vocabulary)).values)


def test_rows_that_stay_are_not_moved() -> None:
    """Four beginnings that each have one way on: after the first step nothing has to be laid out anew."""
    toy = Toy(200, 0)
    toy.table[:] = -30.0
    for token in range(200):
        toy.table[:, token, token] = 10.0  # everything repeats itself
    toy.table[2, 3, :6] = torch.tensor([5.0, -9.0, 4.0, 3.0, 2.0, 1.0])
    toy.table[:, 0] = 0.0  # what began best falls back, so that the order changes, but goes on itself
    toy.table[:, 0, 0] = 2.0
    states = []
    start = toy.start

    def watched(*arguments: Any, **options: Any) -> Any:
        scores, state = start(*arguments, **options)
        states.append(state)
        return scores, state

    toy.start = watched  # type: ignore[method-assign]
    generate(toy, [[2, 3]], choice=Beam(width=4, n=4), context=None, max_tokens=10)
    assert states[0].picks == 1 and toy.steps == 9


@few
@given(SEEDS)
def test_an_ensemble(seed: int) -> None:
    one, two = Toy(9, seed), Toy(9, seed + 1)
    options: dict[str, Any] = {
        "choice": Beam(width=3, n=3), "context": None, "max_tokens": 6, "ends": [END], "sources": [[1, 2], [3]],
        "attention": True,
    }  # fmt: skip
    prompts = [[0], [4]]
    alone = generate(one, prompts, **options)
    assert generate(Ensemble([one]), prompts, **options) == alone
    twice = generate(Ensemble([one, one]), prompts, **options)
    # Not the tokens: ways whose steps are the same in another order score alike, and rounding decides between them.
    for one_row, other_row in zip(alone, twice, strict=True):
        assert [each.score for each in other_row] == pytest.approx([each.score for each in one_row], abs=1e-5)
    both = generate(Ensemble([one, two]), prompts, **options)
    best = both[0][0]
    scores = []
    for toy in (one, two):
        logs, _ = toy.follow([0], best.tokens, [1, 2])
        scores.append(torch.tensor(logs))
    assert best.logprob == pytest.approx(float(torch.stack(scores).exp().mean(0).log().sum()), abs=1e-5)
    assert best.attention is not None and torch.allclose(best.attention.sum(1), torch.ones(len(best.tokens)))


def test_an_ensemble_needs_one_vocabulary() -> None:
    with pytest.raises(UserError, match="need one vocabulary, not 5, 6 tokens"):
        generate(Ensemble([Toy(5, 0), Toy(6, 0)]), [[0]], choice=Beam(), context=None, max_tokens=2)
    with pytest.raises(UserError, match="at least one model"):
        Ensemble([])


@pytest.mark.parametrize(
    "options, fault",
    [
        ({"width": 0}, "beam_size must be at least 1, not 0"),
        ({"width": 3, "n": 4}, "a beam of 3 gives 1 to 3 texts, not 4"),
        ({"n": 0}, "not 0"),
        ({"width": 4, "groups": 3}, "cannot be divided into 3 equal groups"),
        ({"groups": 0}, "cannot be divided into 0"),
        ({"coverage": -1.0}, "coverage must be 0 or more"),
        ({"diversity": -1.0, "groups": 2}, "diversity must be 0 or more"),
        ({"diversity": 1.0}, "diversity needs more than one group"),
        ({"length_penalty": float("nan")}, "length_penalty must be between -30 and 30, not nan"),
    ],
)
def test_wrong_beams_are_named(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(UserError, match=fault):
        Beam(**options)


def test_what_needs_a_source() -> None:
    for options in ({"choice": Beam(coverage=0.1)}, {"choice": Beam(), "attention": True}):
        with pytest.raises(UserError, match="looks at no source"):
            generate(Toy(5, 0), [[0]], context=None, max_tokens=2, **options)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="1 sources for 2 prompts"):
        generate(Toy(5, 0), [[0], [0]], choice=Beam(), context=None, max_tokens=2, sources=[[1]])
    with pytest.raises(UserError, match="no length limit"):
        generate(Toy(5, 0), [[0]], choice=Beam(), context=None)
