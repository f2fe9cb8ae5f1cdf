"""Gaps: the published format and lengths, every way to cut as likely, nothing lost, and anew in each epoch."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.training.small import drawn, stories
from weft.data.masking import SpanCorruption, sentinels_of
from weft.data.rows import Drawn
from weft.errors import UserError
from weft.nn.rows import Batch
from weft.text.tokenizers.training import learn

PADDING, END = 0, 1
SENTINELS = np.arange(1099, 999, -1)  # <extra_id_0> is the last token


def spans(rate: float = 0.15, mean: float = 3.0, seed: int = 0, sentinels: np.ndarray = SENTINELS) -> SpanCorruption:
    return SpanCorruption(sentinels, PADDING, END, rate, mean, seed)


def sides(batch: Batch) -> list[tuple[list[int], list[int]]]:
    """Of each row: what is read, and what is to be said; as lists."""
    assert batch.source is not None
    read = torch.tensor_split(batch.source.tokens, batch.source.rows.starts[1:-1].long())
    said = torch.tensor_split(batch.targets["words"], batch.rows.starts[1:-1].long())
    return [(a.tolist(), b.tolist()) for a, b in zip(read, said, strict=True)]


def restored(read: list[int], said: list[int]) -> list[int]:
    """The text again: each sentinel of what is read stands for what follows it in what is said."""
    assert read.pop() == END and said.pop() == END and said[0] == SENTINELS[0]
    found: dict[int, list[int]] = {}
    for token in said:
        if token in SENTINELS:
            assert token == SENTINELS[len(found)], "sentinels in order, each once"
            found[token] = []
        else:
            found[list(found)[-1]].append(token)
    assert [token for token in read if token in SENTINELS] == [token for token in found if found[token]]
    return [inner for token in read for inner in found.get(token, [token])]


@settings(max_examples=150, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 90), min_size=1, max_size=6),
    rate=st.floats(0.01, 0.95),
    mean=st.floats(1.0, 12.0),
    seed=st.integers(0, 1 << 40),
    few=st.integers(1, 100),
)
def test_nothing_is_lost(lengths: list[int], rate: float, mean: float, seed: int, few: int) -> None:
    rows = drawn(lengths, vocabulary=900)
    made = spans(rate, mean, seed, SENTINELS[:few])
    batch = made.apply(rows)
    read, written = made.sizes(np.array(lengths))
    assert batch.source is not None and batch.source.rows.lengths().tolist() == read.tolist()
    assert batch.rows.lengths().tolist() == written.tolist()
    texts = np.split(rows.tokens, rows.starts[1:-1])
    for text, (source, said) in zip(texts, sides(batch), strict=True):
        assert restored(source, said) == text.tolist()
    # What is written is what is said, one place later, after the token that writing begins from.
    firsts = batch.rows.firsts()
    later = torch.ones(len(batch.tokens), dtype=torch.bool)
    later[firsts] = False
    assert (batch.tokens[firsts] == PADDING).all()
    assert batch.tokens[later].equal(batch.targets["words"][later.roll(-1)])


def test_published_lengths() -> None:
    """568 tokens of text fill a source of 512, and 114 are written: 85 tokens, 28 sentinels and the end."""
    assert spans().raw(512) == 568
    batch = spans().apply(drawn([568] * 3, vocabulary=900))
    assert batch.source is not None
    assert batch.source.rows.lengths().tolist() == [512] * 3 and batch.rows.lengths().tolist() == [114] * 3
    assert spans().wanted(np.array([568]))[1] == [28]
    # One token more of text would be too much, whatever the rate; and the written side counts too.
    for made in (spans(), spans(0.5, 3.0), spans(0.8, 5.0), spans(0.15, 3.0, 0, SENTINELS[:4])):
        for length in (8, 57, 300):
            read, written = made.sizes(np.array([made.raw(length), made.raw(length) + 1]))
            assert max(read[0], written[0]) <= length < max(read[1], written[1])


def test_a_row_begins_with_text_and_ends_with_a_gap() -> None:
    for source, said in sides(spans().apply(drawn([30] * 50, vocabulary=900))):
        assert source[0] not in SENTINELS and source[-2] in SENTINELS
        assert said[-2] not in SENTINELS


def test_every_way_to_cut_is_as_likely() -> None:
    """12 tokens, 6 of them in 2 spans: 5 ways to cut what is kept times 5 to cut what is taken."""
    seen: Counter[tuple[int, ...]] = Counter()
    for source, said in sides(spans(0.5, 3.0).apply(drawn([12] * 5000, vocabulary=900))):
        seen[source.index(SENTINELS[0]), said.index(SENTINELS[1])] += 1
    assert len(seen) == 25
    assert sum((count - 200) ** 2 / 200 for count in seen.values()) < 50  # chi-square, 24 degrees


def test_pure_and_dynamic() -> None:
    rows = drawn([50] * 10, vocabulary=900)
    first, again = spans().apply(rows), spans().apply(rows)
    assert first.source is not None and again.source is not None
    assert first.tokens.equal(again.tokens) and first.source.tokens.equal(again.source.tokens)
    epoch = Drawn(rows.tokens, rows.starts, rows.identity + np.uint64(1 << 50), rows.given)
    assert not spans().apply(epoch).tokens.equal(first.tokens)
    assert not spans(seed=1).apply(rows).tokens.equal(first.tokens)
    # What is taken out of a row does not depend on the rows beside it.
    half = Drawn(rows.tokens[:250], rows.starts[:6], rows.identity[:250], rows.given[:250])
    assert sides(spans().apply(half)) == sides(first)[:5]


def test_rows_that_are_too_short() -> None:
    """Of two tokens one is taken; one alone stays, and there is nothing to say of it."""
    (two, said), (one, nothing) = sides(spans().apply(drawn([2, 1], vocabulary=900)))
    tokens = drawn([2, 1], vocabulary=900).tokens.tolist()
    assert two == [tokens[0], SENTINELS[0], END] and said == [SENTINELS[0], tokens[1], END]
    assert one == [tokens[2], END] and nothing == [SENTINELS[0], END]
    with pytest.raises(UserError, match="rows of 2 tokens have no room for a text with a gap"):
        spans().raw(2)
    assert spans().raw(3) == 2


def test_no_more_gaps_than_sentinels() -> None:
    made = spans(sentinels=SENTINELS[:4])
    (source, said), *_ = sides(made.apply(drawn([200], vocabulary=900)))
    assert sum(token in SENTINELS for token in source) == 4
    assert len(said) == 30 + 4 + 1, "as many tokens are taken out, in longer spans"


def test_sentinels_of_a_vocabulary() -> None:
    text = stories(40).splitlines()
    roles = {"padding": "<pad>", "end": "</s>", "unknown": "<unk>"}
    extra = [f"<extra_id_{number}>" for number in reversed(range(7))]
    tokenizer = learn(text, "unigram", 200, specials=roles, extra=extra)
    assert sentinels_of(tokenizer) == list(range(tokenizer.vocabulary - 1, tokenizer.vocabulary - 8, -1))
    made = SpanCorruption.of(tokenizer, 0, 0.15, 3.0, 0)
    assert made.end == tokenizer.id("</s>") == 1 and len(made.sentinels) == 7
    with pytest.raises(UserError, match="this vocabulary has no <extra_id_0>"):
        SpanCorruption.of(learn(text, "unigram", 200), 0, 0.15, 3.0, 0)
    with pytest.raises(UserError, match="no token that ends a text"):
        SpanCorruption.of(learn(text, "wordpiece", 200, extra=extra), 0, 0.15, 3.0, 0)
