"""n-grams: the textbook's numbers, chances that sum to 1, and Kneser-Ney against its formula written out."""

from __future__ import annotations

import copy
import math
from collections import Counter, defaultdict
from functools import cache
from typing import Any

import numpy
import pytest
import torch

from tests.data.test_counts import END, START, VOCABULARY, counted, some_documents
from weft.checkpoint.external import from_tables
from weft.data.counts import tables
from weft.errors import UserError
from weft.models.ngram import Ngram, NgramConfig, UnseenContext
from weft.nn.rows import Ragged

SMOOTHINGS = ["kneser-ney", "witten-bell", "add-k", "maximum-likelihood"]


def model(documents: list[list[int]], order: int, smoothing: str, **more: Any) -> Ngram:
    settings = {"vocabulary": VOCABULARY, "order": order, "smoothing": smoothing, "silent": (START,), "end": END}
    config = NgramConfig(**{**settings, **more})
    stored = tables(counted(documents, order), smoothing, config.k, config.prune, config.silent)
    return from_tables(stored, config)[1]


def chances(network: Ngram, *context: int) -> list[float]:
    scores, _ = network.start(Ragged.of([list(context)]))
    return scores[0].exp().tolist()


# students opened their | books, exams and others; a laptop was never opened, and a cat opened nothing
STUDENTS, OPENED, THEIR, BOOKS, EXAMS, OTHER, CAT = range(2, 9)
TEXTBOOK = [
    [STUDENTS, OPENED, THEIR, word] for word, often in ((BOOKS, 400), (EXAMS, 100), (OTHER, 500)) for _ in range(often)
]
TEXTBOOK += [[CAT]] * 3


def test_the_textbook_example() -> None:
    found = model(TEXTBOOK, 4, "maximum-likelihood")
    after = chances(found, STUDENTS, OPENED, THEIR)
    assert after[BOOKS] == pytest.approx(0.4, abs=1e-7) and after[EXAMS] == pytest.approx(0.1, abs=1e-7)
    assert after[CAT] == 0.0
    with pytest.raises(UnseenContext, match="never occurs in the text") as raised:
        chances(found, CAT, OPENED, THEIR)
    assert raised.value.tokens == [CAT, OPENED, THEIR]
    assert found.target_logprobs(torch.tensor([[CAT, OPENED, THEIR]]), torch.tensor([BOOKS])).item() == -math.inf


def test_the_textbook_example_under_kneser_ney() -> None:
    found = model(TEXTBOOK, 4, "kneser-ney")
    after, strange = chances(found, STUDENTS, OPENED, THEIR), chances(found, CAT, OPENED, THEIR)
    assert after[BOOKS] == pytest.approx(0.4, abs=0.01) and after[EXAMS] == pytest.approx(0.1, abs=0.01)
    assert 0.0 < after[CAT] < 0.01
    # "opened their" was seen, after one word only: all that followed on it counts alike, and far more than the rest.
    assert strange[BOOKS] == pytest.approx(strange[EXAMS]) and strange[BOOKS] > 2 * strange[CAT] > 0.0


@pytest.mark.parametrize("order", [1, 2, 4, 7])
@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_chances_sum_to_one_and_one_word_is_as_all_words_say(smoothing: str, order: int) -> None:
    documents = some_documents(1, 60)
    network = model(documents, order, smoothing, k=0.3)
    # Contexts of the text itself are known to maximum likelihood; the others are not.
    seen = smoothing == "maximum-likelihood"
    texts = [[START, *document] for document in (documents if seen else [*documents, *some_documents(2, 30)])]
    batch = Ragged.of(texts)
    hidden = network(batch.tokens, batch.rows)
    whole = network.words(hidden)
    assert whole.dtype == torch.float32
    assert torch.allclose(whole.double().exp().sum(1), torch.ones(len(hidden), dtype=torch.float64), atol=1e-5)
    assert bool((whole[:, START] < -100).all())
    for word in range(VOCABULARY):
        alone = network.target_logprobs(hidden, torch.full((len(hidden),), word))
        assert alone.dtype == torch.float64
        assert torch.allclose(alone, whole[:, word].double(), atol=1e-5), word
        single = [
            network.target_logprobs(hidden[at : at + 1], torch.tensor([word])).item() for at in range(0, len(hidden), 9)
        ]
        assert single == alone[::9].tolist()


def written_out(documents: list[list[int]], order: int, vocabulary: int) -> Any:
    """Interpolated, modified Kneser-Ney (Chen and Goodman, 1998) by its recursion, with dictionaries."""
    texts = [(START, *document, END) for document in documents]
    raw = {n: Counter(t[i : i + n] for t in texts for i in range(len(t) - n + 1)) for n in range(1, order + 1)}
    adjusted: dict[int, dict[tuple[int, ...], int]] = {order: dict(raw[order])}
    for n in range(1, order):
        before: dict[tuple[int, ...], set[int]] = defaultdict(set)
        for gram in raw[n + 1]:
            before[gram[1:]].add(gram[0])
        adjusted[n] = {g: raw[n][g] if g[0] == START else len(before[g]) for g in raw[n] if g != (START,)}
    if order == 1:
        adjusted[1].pop((START,))
    discounts = {}
    for n, table in adjusted.items():
        of = Counter(table.values())
        share = of[1] / (of[1] + 2 * of[2])
        discounts[n] = [0.0, *(j - (j + 1) * share * of[j + 1] / of[j] for j in (1, 2, 3))]

    @cache
    def chance(context: tuple[int, ...], word: int) -> float:
        n = len(context) + 1
        followers = {g[-1]: c for g, c in adjusted[n].items() if g[:-1] == context}
        lower = 1 / (vocabulary - 1) if not context else chance(context[1:], word)
        if not followers:
            return lower
        total = sum(followers.values())
        left = sum(discounts[n][min(c, 3)] for c in followers.values()) / total
        mine = followers.get(word, 0)
        return (mine - discounts[n][min(mine, 3)]) / total + left * lower

    return chance


@pytest.mark.parametrize("order", [1, 2, 3])
def test_kneser_ney_is_its_formula(order: int) -> None:
    random = numpy.random.default_rng(4)
    documents = [(1 + random.zipf(1.3, 300).clip(1, 78)).tolist()[:length] for length in random.integers(1, 20, 150)]
    notes: list[str] = []
    stored = tables(counted(documents, order, 80), "kneser-ney", silent=(START,), log=notes.append)
    assert not notes  # the discounts of this text have their closed form
    network = from_tables(stored, NgramConfig(vocabulary=80, order=order, silent=(START,)))[1]
    wanted = written_out(documents, order, 80)
    for context in [(), (START,), (2,), (2, 3), (5, 2), (START, 2), (77, 77)]:
        context = context[-(order - 1) :] if order > 1 else ()
        hidden = torch.tensor([[-1] * (order - 1 - len(context)) + list(context)]).reshape(1, order - 1)
        for word in range(1, 80, 3):
            assert network.target_logprobs(hidden, torch.tensor([word])).exp().item() == pytest.approx(
                wanted(context, word)
            )


def test_a_tiny_text_falls_back_and_says_so() -> None:
    notes: list[str] = []
    tables(counted([[2, 3, 4]], 2), "kneser-ney", silent=(START,), log=notes.append)
    assert len(notes) == 2 and "order 1" in notes[0] and "0.5, 1.0, 1.5" in notes[0]


@pytest.mark.parametrize("smoothing", ["kneser-ney", "witten-bell"])
def test_pruning_leaves_less_that_still_sums_to_one(smoothing: str) -> None:
    documents = some_documents(1, 60)
    whole, pruned = model(documents, 4, smoothing), model(documents, 4, smoothing, prune=(0, 0, 1))
    assert pruned.config.entries[:2] == whole.config.entries[:2]
    assert 0 < pruned.config.entries[2] < whole.config.entries[2]
    kept = int((counted(documents, 4).orders[3].counts > 1).sum())
    assert pruned.config.entries[3] == kept
    batch = Ragged.of([[START, *document] for document in documents])
    scores = pruned.words(pruned(batch.tokens, batch.rows)).double()
    assert torch.allclose(scores.exp().sum(1), torch.ones(len(scores), dtype=torch.float64), atol=1e-5)


def test_add_k_is_its_formula() -> None:
    network = model([[2, 3], [2, 4], [2, 3]], 2, "add-k", k=0.5)
    after = chances(network, 2)
    assert after[3] == pytest.approx((2 + 0.5) / (3 + 0.5 * 8)) and after[7] == pytest.approx(0.5 / (3 + 0.5 * 8))
    assert chances(network, 8)[5] == pytest.approx(1 / 8)  # never seen: all alike, but what begins a text


def test_witten_bell_is_its_formula() -> None:
    after = chances(model([[2, 3], [2, 4], [2, 3]], 2, "witten-bell"), 2)
    words = Counter([2, 3, END, 2, 4, END, 2, 3, END])
    lower = {word: (words[word] + 4 / 8) / (9 + 4) for word in range(1, VOCABULARY)}
    assert after[3] == pytest.approx((2 + 2 * lower[3]) / 5) and after[7] == pytest.approx(2 * lower[7] / 5)


def test_steps_look_back_as_far_as_the_order() -> None:
    network = model(some_documents(1, 60), 3, "kneser-ney")
    scores, state = network.start(Ragged.of([[START, 4], [START]]))
    scores = network.step(torch.tensor([5, 6]), state)
    state.pick(torch.tensor([1, 1, 0]))
    scores = network.step(torch.tensor([7, 8, 2]), state)
    batch = Ragged.of([[START, 6, 7], [START, 6, 8], [START, 4, 5, 2]])
    assert torch.equal(scores, network.words(network(batch.tokens, batch.rows)[batch.rows.lasts()]))


def test_where_nothing_ever_followed_the_text_ends() -> None:
    network = model([[2, 3], [4, 5]], 3, "maximum-likelihood")
    _, state = network.start(Ragged.of([[START, 2]]))
    scores = network.step(torch.tensor([5]), state)[0]  # as a beam might, though 5 has no chance there
    assert scores[END].item() == 0.0 and bool(scores[torch.arange(VOCABULARY) != END].isinf().all())


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"order": 9}, "order must be between 1 and 7, not 9"),
        ({"order": 0}, "order must be between 1 and 7, not 0"),
        ({"k": 0.0}, "k must be above 0"),
        ({"prune": (0, 2, 1)}, "none is below the one before"),
        ({"prune": (1,)}, "single words are never left out"),
        ({"prune": (0, 1), "smoothing": "add-k"}, "prune fits smoothings that back off"),
        ({"entries": (8000, 3)}, "entries has a number for each order"),
        ({"entries": (1, 2, 3, 4, 5)}, "the first that of the vocabulary"),
        ({"silent": (8000,)}, "must be tokens of the vocabulary"),
    ],
)
def test_sizes_that_cannot_be(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        NgramConfig(**settings)


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
@pytest.mark.parametrize("order", [1, 2, 4])
def test_one_word_without_tensors_has_the_chance_it_has_among_many(smoothing: str, order: int) -> None:
    found = model(some_documents(), order, smoothing)
    contexts = [[], [START], [START, 3], [3, 2, 5], [2, 2, 2, 2, 2, 4], [5, 5, 5]]
    for context in contexts:
        for word in range(VOCABULARY):
            tail = context[-(order - 1) :] if order > 1 else []
            row = [-1] * (order - 1 - len(tail)) + tail
            many = found.target_logprobs(
                torch.tensor([row] * 9, dtype=torch.long).view(9, -1), torch.tensor([word] * 9)
            )
            assert found.logprob(context, word) == pytest.approx(many[0].item(), rel=1e-12)
    found.get_buffer("chances_1").zero_()  # views see what is written in place; a copy, and tables that were replaced,
    other = copy.deepcopy(found)
    assert found.logprob([], 4) == other.logprob([], 4) == 0.0
    other.load_state_dict(
        {name: table + 1.0 for name, table in other.state_dict().items()}, assign=True
    )  # have new ones
    assert other.logprob([], 4) == 1.0 and found.logprob([], 4) == 0.0
