"""Counts in sorted arrays, against the same counted with dictionaries."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from weft.data import counts as module
from weft.data.counts import NgramCounts, count
from weft.data.rows import Frame, Framed
from weft.data.shards import Corpus

START, END, VOCABULARY = 0, 1, 9


def corpus_of(documents: list[list[int]]) -> Corpus:
    tokens = np.array([token for document in documents for token in document], dtype=np.uint16)
    return Corpus([tokens], np.cumsum([0, *map(len, documents)]), None, "made up")


def some_documents(seed: int = 0, number: int = 40) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [random.integers(2, VOCABULARY, random.integers(0, 12)).tolist() for _ in range(number)]


def framed_of(documents: list[list[int]]) -> Framed:
    return Framed(corpus_of(documents), Frame((START,), (END,)))


def counted(documents: list[list[int]], order: int, vocabulary: int = VOCABULARY) -> NgramCounts:
    return count(framed_of(documents), order, vocabulary, START)


def spelled(found: NgramCounts, order: int) -> list[tuple[int, ...]]:
    """The n-grams of an order as their words, in the order in which they are stored."""
    if order == 1:
        return [(int(key),) for key in found.orders[0].keys]
    below = spelled(found, order - 1)
    keys = found.orders[order - 1].keys.tolist()
    return [(*below[key // VOCABULARY], key % VOCABULARY) for key in keys]


def by_dictionary(documents: list[list[int]], order: int) -> Counter[tuple[int, ...]]:
    texts = [(START, *document, END) for document in documents]
    return Counter(text[place : place + order] for text in texts for place in range(len(text) - order + 1))


@pytest.mark.parametrize("chunk", [1 << 21, 5, 64])
def test_counts_are_those_of_a_dictionary(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", chunk)
    documents = some_documents()
    found = counted(documents, 5)
    for order in range(2, 6):
        wanted, grams = by_dictionary(documents, order), found.orders[order - 1]
        names = spelled(found, order)
        assert dict(zip(names, grams.counts.tolist(), strict=True)) == wanted
        assert (np.diff(grams.keys) > 0).all()
        below = spelled(found, order - 1)
        assert [below[place] for place in grams.suffixes] == [name[1:] for name in names]
        assert grams.opening.tolist() == [name[0] == START for name in names]
    words = by_dictionary(documents, 1)
    del words[(START,)]  # it is given, not foreseen
    assert {(word,): number for word, number in enumerate(found.orders[0].counts.tolist()) if number} == words
    assert found.tokens == sum(words.values())


def test_adjusted_counts_are_different_words_before() -> None:
    documents = some_documents(3)
    found = counted(documents, 4)
    for order in (1, 2, 3):
        before = Counter(name[1:] for name in by_dictionary(documents, order + 1))
        occurs = by_dictionary(documents, order)
        for name, number in zip(spelled(found, order), found.adjusted(order).tolist(), strict=True):
            assert number == (occurs[name] if name[0] == START and order > 1 else before[name])
    assert found.adjusted(4).tolist() == found.orders[3].counts.tolist()


def test_no_ngram_lies_across_documents() -> None:
    found = counted([[2, 3], [], [4, 5]], 3)
    assert spelled(found, 3) == [(0, 2, 3), (0, 4, 5), (2, 3, 1), (4, 5, 1)]


def test_whoever_listens_may_stop_it() -> None:
    def stop(more: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        count(framed_of(some_documents()), 3, VOCABULARY, START, stop)
