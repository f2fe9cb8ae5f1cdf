"""What may be said: as transformers' processors where they exist, and by the word for all the rest."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as some

from tests.generation.toy import Toy, exhaustive
from weft.errors import UserError
from weft.generation.generate import generate
from weft.generation.sampling import LogitsProcessor, Rules, Sampling, Tree
from weft.generation.search import Beam, Completion

END, MOST = 1, 6
SEEDS = some.integers(0, 10_000)
WORDS = some.lists(some.integers(2, 5), min_size=1, max_size=3).map(tuple)
few = settings(max_examples=25, deadline=None)
CHOICES: list[Any] = [Sampling(), Sampling(temperature=1.3, n=4), Beam(width=4, n=4), Beam(width=4, n=2, groups=2)]


def spoken_by(
    toy: Toy, rules: Rules, prompts: list[list[int]] | None = None, max_tokens: int = MOST
) -> list[list[Completion]]:
    """The answers of every kind of search to some prompts."""
    prompts = prompts or [[0], [2, 3]]
    found = [
        generate(
            toy,
            prompts,
            choice=choice,
            context=None,
            max_tokens=max_tokens,
            ends=[END],
            rules=rules,
            seeds=[5] * len(prompts),
        )
        for choice in CHOICES
    ]
    return [[each for answers in row for each in answers] for row in zip(*found, strict=True)]


def test_penalties_equal_the_peers() -> None:
    torch.manual_seed(0)
    texts = [[4, 9, 4, 9, 2], [7, 7, 7, 1, 7], [3, 3, 3, 3, 3]]
    ids, scores = torch.tensor(texts), torch.randn(3, 12) * 3
    prompts, said = [text[:2] for text in texts], [text[2:] for text in texts]
    for penalty in (0.7, 1.0, 1.8):
        processor = LogitsProcessor(Rules(repetition_penalty=penalty), [END], "cpu")
        expected = transformers.RepetitionPenaltyLogitsProcessor(penalty)(ids, scores)
        assert torch.equal(processor.penalize(scores, prompts, said), expected)
    for size in (1, 2, 3, 4, 6):
        processor = LogitsProcessor(Rules(no_repeat=size), [END], "cpu")
        expected = transformers.NoRepeatNGramLogitsProcessor(size)(ids, scores)
        assert torch.equal(processor.forbid(scores, prompts, said), expected)
    banned = [[2], [9, 2, 5], [1, 7, 4], [7, 3], [3, 3]]
    expected = transformers.NoBadWordsLogitsProcessor(banned, eos_token_id=[END])(ids, scores)
    processor = LogitsProcessor(Rules(banned=tuple(map(tuple, banned))), [END], "cpu")
    assert torch.equal(processor.forbid(scores, prompts, said), expected)
    for least in (2, 3, 4):
        expected = transformers.MinNewTokensLengthLogitsProcessor(2, least, [END])(ids, scores)
        assert torch.equal(
            LogitsProcessor(Rules(min_tokens=least), [END], "cpu").forbid(scores, prompts, said), expected
        )


def holds(text: list[int] | tuple[int, ...], words: tuple[int, ...]) -> bool:
    return any(tuple(text[n : n + len(words)]) == words for n in range(len(text)))


@few
@given(SEEDS, some.lists(WORDS, min_size=1, max_size=4))
def test_banned_words_never_come(seed: int, banned: list[tuple[int, ...]]) -> None:
    toy = Toy(7, seed)
    for prompt, row in zip([[0], [2, 3]], spoken_by(toy, Rules(banned=tuple(banned))), strict=True):
        for each in row:
            for words in banned:
                new = [*prompt[-len(words) + 1 :], *each.tokens] if len(words) > 1 else each.tokens
                assert not holds(new, words), (prompt, each.tokens, words)


@few
@given(SEEDS, some.lists(WORDS, min_size=1, max_size=4), some.integers(0, 2), some.sampled_from([(), (6,)]))
def test_allowed_words_alone_come(seed: int, allowed: list[tuple[int, ...]], least: int, forced: Any) -> None:
    toy = Toy(7, seed)
    for row in spoken_by(toy, Rules(allowed=tuple(allowed), min_tokens=least, forced=forced)):
        for each in row:
            ended = each.finish_reason == "end"
            tokens = tuple(each.tokens[:-1] if ended else each.tokens)[len(forced) :]
            assert tuple(each.tokens[: len(forced)]) == forced and each.finish_reason != "stop"
            assert made_of(tokens, allowed, whole=ended), (tokens, allowed)
            assert len(tokens) + len(forced) >= least


def made_of(tokens: tuple[int, ...], words: list[tuple[int, ...]], whole: bool) -> bool:
    """Whether a run is words one after the other; the last one may be cut where the answer was."""
    if not tokens:
        return True
    begun = [word for word in words if word[: len(tokens)] == tokens[: len(word)]]
    return any(made_of(tokens[len(word) :], words, whole) if len(word) <= len(tokens) else not whole for word in begun)


@few
@given(SEEDS, some.lists(WORDS, min_size=1, max_size=6, unique=True))
def test_a_closed_list_gives_its_members_and_the_best_of_them(seed: int, choices: list[tuple[int, ...]]) -> None:
    toy = Toy(7, seed)
    rules = Rules(choices=tuple(choices))
    for row in spoken_by(toy, rules):
        for each in row:
            assert each.finish_reason == "end" and tuple(each.tokens[:-1]) in choices
    for penalty in (0.0, 1.0):
        beam = Beam(width=8, n=8, length_penalty=penalty)
        found = generate(toy, [[2]], choice=beam, context=None, max_tokens=MOST, ends=[END], rules=rules)[0]
        scored = [(sum(toy.follow([2], [*c, END])[0]) / (len(c) + 1) ** penalty, c) for c in choices]
        expected = sorted(scored, reverse=True)
        assert [tuple(each.tokens[:-1]) for each in found] == [choice for _, choice in expected]
        assert [each.score for each in found] == pytest.approx([score for score, _ in expected])


@few
@given(SEEDS, some.lists(some.integers(2, 6), min_size=1, max_size=4))
def test_a_forced_beginning(seed: int, forced: list[int]) -> None:
    """Every answer begins with it, and a wide beam finds the best of those that do."""
    toy = Toy(7, seed)
    for row in spoken_by(toy, Rules(forced=tuple(forced), banned=((forced[0],),))):
        assert all(each.tokens[: len(forced)] == forced for each in row), "what is forced may be banned elsewhere"
    toy, begun = Toy(4, seed), tuple(min(word, 3) for word in forced[:2])
    every = [answer for answer in exhaustive(toy, [0], END, 3, 1.0) if answer[1][: len(begun)] == begun]
    rules = Rules(forced=begun)
    found = generate(toy, [[0]], choice=Beam(width=64), context=None, max_tokens=3, ends=[END], rules=rules)[0]
    assert tuple(found[0].tokens) == every[0][1] and found[0].score == pytest.approx(every[0][0])


@few
@given(SEEDS, some.integers(1, 3), some.integers(0, 5))
def test_no_run_comes_twice_and_the_least_length_holds(seed: int, size: int, least: int) -> None:
    toy = Toy(7, seed, sharp=3)
    prompts = [[0, 2, 2], [2, 3]]
    for prompt, row in zip(prompts, spoken_by(toy, Rules(no_repeat=size, min_tokens=least), prompts), strict=True):
        for each in row:
            text = [*prompt, *each.tokens]
            before = [tuple(prompt[n : n + size]) for n in range(len(prompt) - size + 1)]
            runs = [tuple(text[n : n + size]) for n in range(len(text) - size + 1)]
            assert len(set(runs)) - len(set(before)) == len(runs) - len(before), (text, size)
            assert each.finish_reason != "end" or len(each.tokens) > least


def test_where_nothing_may_be_said_the_answer_stops() -> None:
    """Every token once: then the words are used up, and what was said is not lost."""
    toy = Toy(5, 2)
    rules = Rules(no_repeat=1, banned=((END,),))
    for row in spoken_by(toy, rules, [[0], [2]], max_tokens=20):
        for each in row:
            assert each.finish_reason == "stop" and len(each.tokens) == 3
            assert END not in each.tokens


@few
@given(some.lists(WORDS, min_size=1, max_size=6), some.booleans())
def test_a_tree_knows_its_words(words: list[tuple[int, ...]], again: bool) -> None:
    tree = Tree(words, again)
    for said in itertools.chain.from_iterable(itertools.product(range(2, 6), repeat=size) for size in range(4)):
        may, done = tree.after(said)
        whole = said in words or (again and made_of(said, words, whole=True))
        assert done == whole
        if again:
            assert may == {token for token in range(2, 6) if made_of((*said, token), words, whole=False)}
        else:
            assert may == {word[len(said)] for word in words if word[: len(said)] == said and len(word) > len(said)}


@pytest.mark.parametrize(
    "options, fault",
    [
        ({"repetition_penalty": 0.0}, "repetition_penalty must be above 0"),
        ({"repetition_penalty": -1.0}, "repetition_penalty must be above 0"),
        ({"no_repeat": -1}, "no_repeat must be 0 or more"),
        ({"min_tokens": -2}, "must be 0 or more, not -2"),
        ({"banned": ((),)}, "cannot be banned"),
        ({"choices": ((2,),), "forced": (3,)}, "leaves no room for a forced beginning"),
        ({"choices": ((2,),), "allowed": ((3,),)}, "leaves no room for allowed words"),
    ],
)
def test_wrong_rules_are_named(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(UserError, match=fault):
        Rules(**options)


def test_a_list_needs_an_end() -> None:
    with pytest.raises(UserError, match="has no token to end with"):
        generate(Toy(5, 0), [[0]], choice=Sampling(), context=None, max_tokens=3, rules=Rules(choices=((2,),)))
