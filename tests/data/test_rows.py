"""Documents into rows: nothing lost, nothing twice, no border crossed where none may be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from weft.data.chance import key_of, shuffled
from weft.data.masking import shift
from weft.data.rows import (
    DocumentRows,
    Feed,
    Frame,
    Framed,
    PackedRows,
    SentencePairs,
    cut_to_budget,
    every_example,
    in_two_phases,
)
from weft.data.shards import Corpus
from weft.errors import UserError


def corpus(lengths: list[int], sentences: int | None = None) -> Corpus:
    """Documents of these lengths; token n of the whole is 100 + n, so that each is known again."""
    documents = np.r_[0, np.cumsum(lengths)]
    total = int(documents[-1])
    borders = None
    if sentences is not None:
        borders = np.unique(np.r_[documents, np.arange(0, total, sentences)])
    return Corpus([np.arange(100, 100 + total, dtype=np.uint32)], documents, borders, "hash")


def rows(drawn: Any) -> list[list[int]]:
    return [row.tolist() for row in np.split(drawn.tokens, drawn.starts[1:-1])]


def every(source: Any, epoch: int = 0) -> Any:
    numbers = np.arange(source.count)
    return source.draw(np.full_like(numbers, epoch), numbers)


END, START, SEP = 1, 2, 3


def test_a_stream_reads_every_token_once_in_an_epoch() -> None:
    source = PackedRows(Framed(corpus([5, 9, 1, 18, 4]), Frame(after=(END,))), 7, 0, False, seed=5)
    assert source.framed.size == 42 and source.count == 6
    for epoch in (0, 1, 7):
        tokens = every(source, epoch).tokens
        assert sorted(tokens[tokens >= 100]) == list(range(100, 137)) and (tokens == END).sum() == 5
    assert not (every(source, 0).tokens == every(source, 1).tokens).all()  # cut at another place
    assert (every(source, 3).tokens == every(source, 3).tokens).all()


def test_a_row_and_its_labels_come_from_one_run_of_text() -> None:
    source = PackedRows(Framed(corpus([50]), Frame()), 8, 1, False, seed=None)
    batch = shift(every(source))
    assert (batch.targets["words"] == batch.tokens + 1).all()
    assert sorted(batch.targets["words"].tolist()) == list(range(101, 150))  # each but the first is said once
    assert batch.rows.starts.tolist() == [0, 8, 16, 24, 32, 40, 48, 49]  # the last row is what is left


def test_rows_apart_never_cross_a_document() -> None:
    source = PackedRows(Framed(corpus([5, 9, 1, 18, 4]), Frame((START,), (END,))), 12, 0, True, seed=5)
    for row in rows(every(source)):
        inside = [token for token in row if token >= 100]
        assert inside == list(range(inside[0], inside[0] + len(inside))) if inside else True
        assert START not in row[1:] and END not in row[:-1]
    tokens = every(source).tokens
    assert len(tokens) == source.count * 12  # and yet the rows are full


def test_pieces_are_documents() -> None:
    source = DocumentRows(Framed(corpus([3, 0, 10, 1]), Frame(row_before=(START,), row_after=(END,))), 6, 0)
    assert rows(every(source)) == [
        [START, 100, 101, 102, END],
        [START, 103, 104, 105, 106, END],
        [START, 107, 108, 109, 110, END],
        [START, 111, 112, END],
        [START, 113, END],
    ]
    assert source.lengths(np.arange(5)).tolist() == [5, 6, 6, 4, 3]


def test_pieces_for_the_next_token_say_each_token_once() -> None:
    source = DocumentRows(Framed(corpus([3, 7]), Frame((START,), (END,))), 4, 1)
    batch = shift(every(source))
    assert sorted(batch.targets["words"].tolist()) == [END, END, *range(100, 110)]
    assert batch.rows.lengths().max() <= 4


def test_shards_may_cut_a_document(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.data.shards.SHARD", 8)
    whole = corpus([5, 9, 6])
    cut = Corpus([whole.shards[0][0:8], whole.shards[0][8:16], whole.shards[0][16:20]], whole.documents, None, "hash")
    places = np.array([0, 7, 8, 15, 16, 19, 3])
    assert (cut.take(places) == places + 100).all()


PAIR = ((START,), (SEP,), (END,))


def halves(row: list[int]) -> tuple[list[int], list[int]]:
    middle = row.index(SEP)
    assert row[0] == START and row[-1] == END
    return row[1:middle], row[middle + 1 : -1]


@pytest.mark.parametrize("kind", ["next", "order"])
def test_pairs(kind: str) -> None:
    lengths = [40] * 30
    source = SentencePairs(corpus(lengths, sentences=5), PAIR, 24, kind, seed=1)
    drawn = every(source)
    assert drawn.follows is not None and drawn.segments is not None
    assert 0.3 < drawn.follows.mean() < 0.7
    for row, other, segments in zip(
        rows(drawn), drawn.follows, np.split(drawn.segments, drawn.starts[1:-1]), strict=True
    ):
        first, second = halves(row)
        assert segments.tolist() == [0] * (len(first) + 2) + [1] * (len(second) + 1)
        assert first == list(range(first[0], first[0] + len(first)))  # whole runs of the text
        assert second == list(range(second[0], second[0] + len(second)))
        follows = second[0] == first[-1] + 1
        if not other:
            assert follows
        elif kind == "order":
            assert first[0] == second[-1] + 1
        else:
            assert (second[0] - 100) // 40 != (first[0] - 100) // 40  # from another document
        if not other:
            assert (second[0] - 100) % 5 == 0  # the border between the two is one between sentences
    assert (every(source, 1).follows != drawn.follows).any()  # drawn anew in each epoch
    assert (every(source).tokens == drawn.tokens).all()


def test_where_a_second_text_begins_tells_nothing() -> None:
    """One from another document begins in the middle of it, and is as long, as one that follows does."""
    source = SentencePairs(corpus([20] * 400, sentences=4), PAIR, 24, "next", seed=1)
    drawn = every(source)
    assert drawn.follows is not None
    seconds = {0: [], 1: []}  # type: ignore[var-annotated]
    for row, other in zip(rows(drawn), drawn.follows.tolist(), strict=True):
        seconds[other].append(halves(row)[1])
    begins = {kind: [(text[0] - 100) % 20 for text in texts] for kind, texts in seconds.items()}
    lengths = {kind: np.mean([len(text) for text in texts]) for kind, texts in seconds.items()}
    assert 0 not in begins[0] and 0 not in begins[1]
    assert abs(np.mean(begins[0]) - np.mean(begins[1])) < 1.5
    assert abs(lengths[0] - lengths[1]) < 3


def test_pairs_read_every_document() -> None:
    source = SentencePairs(corpus([40, 7, 2, 90], sentences=6), PAIR, 24, "order", seed=1)
    tokens = every(source).tokens
    assert sorted(tokens[tokens >= 100]) == list(range(100, 239))
    assert np.diff(every(source).starts).max() <= 24


def test_a_single_document_has_no_other() -> None:
    source = SentencePairs(corpus([20], sentences=4), PAIR, 24, "next", seed=1)
    assert all(every(source, epoch).follows == [0] for epoch in range(8))


def test_the_order_is_arithmetic_for_any_number_of_ranks() -> None:
    source = DocumentRows(Framed(corpus([3, 9, 5, 7, 6, 2, 8] * 5), Frame(row_before=(START,))), 16, 0)
    feed = Feed(source, lambda drawn: shift(drawn), seed=9, rows=6)
    for step in (0, 3, 5, 6):  # step 5 crosses from the first epoch into the second
        alone = [batch.tokens.tolist() for batch in feed.passes(step, 20)]
        for ranks in (2, 3):
            dealt = [feed.passes(step, 20, rank, ranks) for rank in range(ranks)]
            together = [dealt[n % ranks][n // ranks].tokens.tolist() for n in range(len(alone))]
            assert together == alone
    seen = np.concatenate([feed.examples(step)[1] for step in range(35)])
    assert sorted(seen[:35]) == list(range(35)) and sorted(seen[35:70]) == list(range(35))
    assert (seen[:35] != seen[35:70]).any()  # another order in the next epoch


def test_budgets() -> None:
    source = DocumentRows(Framed(corpus([3, 9, 5, 7, 6, 2, 30, 8]), Frame()), 40, 0)
    numbers = np.arange(8)
    cuts = [numbers[cut].tolist() for cut in cut_to_budget(source, numbers, 12)]
    assert cuts == [[0, 1], [2, 3], [4, 5], [6], [7]]  # one that is larger than the budget goes alone
    full = PackedRows(Framed(corpus([500]), Frame()), 10, 0, False, seed=1)
    assert [len(numbers[cut]) for cut in cut_to_budget(full, numbers, 30)] == [2, 2, 2, 2]  # of one shape
    seen = [token for batch in every_example(source, lambda drawn: shift(drawn), 12) for token in batch.tokens.tolist()]
    assert len(seen) == 70 - 8


def test_too_little_text() -> None:
    with pytest.raises(UserError, match="only 1 tokens"):
        every(PackedRows(Framed(corpus([1]), Frame()), 8, 1, False, seed=1))
    with pytest.raises(UserError, match="no document"):
        every(DocumentRows(Framed(corpus([1, 1]), Frame()), 8, 1))
    short = PackedRows(Framed(corpus([5]), Frame()), 8, 1, False, seed=1)
    assert short.count >= 1 and len(every(short).tokens) >= 5  # shorter than a row: one short row


def test_split() -> None:
    whole = corpus([10] * 40)
    train, dev = whole.split(0.1)
    assert (train.size, dev.size) == (360, 40) and (dev.documents == np.arange(360, 401, 10)).all()
    train, dev = corpus([1000]).split(0.1)
    assert (train.size, dev.size) == (900, 100)  # a single document is cut


@pytest.mark.parametrize("kind", ["stream", "documents"])
def test_two_phases(kind: str) -> None:
    """Short rows up to the border and long ones after it, the same number of tokens in each step."""
    framed = Framed(corpus([700, 30, 900, 64, 1200] * 3), Frame(row_before=(START,)))

    def source(length: int) -> Any:
        return PackedRows(framed, length, 0, False, seed=4) if kind == "stream" else DocumentRows(framed, length, 0)

    feed = in_two_phases(Feed(source(64), lambda drawn: shift(drawn), seed=9, rows=4), source(16), border=27)
    assert feed.first is not None and feed.rows == 4
    assert feed.first.rows == (16 if kind == "stream" else round(4 * source(64).mean / source(16).mean))
    for step in (0, 26, 27, 40):
        longest = np.diff(feed.drawn(step).starts).max()
        assert longest <= 16 if step < 27 else longest > 16, step
    sizes = [sum(len(batch.tokens) for batch in feed.passes(step, 100)) for step in range(60)]
    assert 0.8 < np.mean(sizes[27:]) / np.mean(sizes[:27]) < 1.25
    if kind == "stream":
        assert {
            sum(len(batch.tokens) + len(batch.rows.starts) - 1 for batch in feed.passes(step, 100))
            for step in range(60)
        } == {256}
    # A run that goes on from any step reads what the unbroken run would have read, and no epoch comes twice.
    again = in_two_phases(Feed(source(64), lambda drawn: shift(drawn), seed=9, rows=4), source(16), border=27)
    for step in (26, 27, 28):
        assert [b.tokens.tolist() for b in again.passes(step, 100)] == [
            b.tokens.tolist() for b in feed.passes(step, 100)
        ]
    short = {int(epoch) for step in range(27) for epoch in feed.examples(step)[0]}
    assert max(short) < min(feed.examples(27)[0]) <= max(short) + 1
    numbers = np.concatenate([feed.examples(step)[1] for step in range(27, 27 + source(64).count // 4)])
    assert len(set(numbers.tolist())) == len(numbers), "an example came twice in one epoch"


@pytest.mark.parametrize("kind", ["next", "order"])
def test_pairs_fill_their_rows_across_documents(kind: str) -> None:
    """Paragraphs of 20 tokens make rows of 128, whose texts part inside a paragraph, not between two."""
    text = corpus([20] * 300, sentences=5)
    full = SentencePairs(text, PAIR, 128, kind, seed=1)
    apart = SentencePairs(text, PAIR, 128, kind, seed=1, across=False)
    assert full.mean > 0.9 * 128 and apart.mean < 30
    first, lasts = 100, np.cumsum([0] + [20] * 300)
    for epoch in range(3):
        found = every(full, epoch)
        assert found.follows is not None and found.segments is not None
        assert 0.25 < found.follows.mean() < 0.75
        segments = np.split(found.segments, found.starts[1:-1])
        for row, sides, follows in zip(rows(found), segments, found.follows, strict=True):
            places = np.array(row) - first
            one, two = (places[(sides == side) & (places >= 0)].tolist() for side in (0, 1))
            if kind == "order" and follows:
                one, two = two, one
            if kind == "order" or not follows:
                assert two[0] == one[-1] + 1 and two[0] not in lasts
            else:  # of other documents altogether
                assert not {t // 20 for t in one} & {t // 20 for t in two}
    numbers = sorted(t for row in rows(every(SentencePairs(text, PAIR, 128, "order", seed=1))) for t in row if t >= 100)
    assert numbers == list(range(100, 6100)), "every token once"


def test_steps_follow_the_order_of_their_epochs() -> None:
    """Also a step that begins in one epoch and ends in another, or reads several epochs."""
    source = DocumentRows(Framed(corpus([3] * 10), Frame()), 8, 1)
    for size, epoch in ((4, 0), (7, 2), (25, 0)):
        feed = Feed(source, shift, seed=3, rows=size, epoch=epoch)
        read = [pair for step in range(6) for pair in zip(*feed.examples(step), strict=True)]
        orders = [shuffled(key_of(3, "order", epoch + turn), np.arange(10), 10) for turn in range(16)]
        expected = [(epoch + turn, number) for turn, order in enumerate(orders) for number in order]
        assert read == expected[: len(read)]
