"""Rows that go on: every stream reads the text in order, and each step's rows follow on those of the step before."""

from __future__ import annotations

import numpy as np
import pytest

from weft.data.masking import shift
from weft.data.rows import Feed, Frame, Framed, Streams, every_example, held_out
from weft.data.shards import Corpus
from weft.errors import UserError


def text(size: int) -> Framed:
    """One document whose tokens are their own places."""
    return Framed(Corpus([np.arange(size, dtype=np.uint32)], np.array([0, size]), None, "hash"), Frame())


@pytest.mark.parametrize("size, length, streams", [(100, 7, 3), (101, 10, 10), (50, 8, 20), (11, 100, 2)])
def test_each_row_goes_on_where_one_of_the_step_before_ended(size: int, length: int, streams: int) -> None:
    source = Streams(text(size), length, True, streams)
    feed = Feed(source, shift, 5, streams)
    length = min(length, size - 1)
    before = None
    for step in range(3 * size // length):
        (batch,) = feed.passes(step, 1 << 20)
        rows = batch.tokens.view(streams, length).numpy()
        assert batch.targets["streams"].tolist() == list(range(streams))
        assert (batch.targets["words"].view(streams, length).numpy() == (rows + 1) % size).all()
        assert (np.diff(rows, axis=1) % size == 1).all()
        if before is None:
            assert rows[:, 0].tolist() == [b * size // streams for b in range(streams)]
        else:
            assert ((before[:, -1] + 1) % size == rows[:, 0]).all()
        before = rows


def test_the_passes_of_a_step_have_streams_of_their_own() -> None:
    feed = Feed(Streams(text(200), 10, True, 6), shift, 0, 6)
    for budget, count in ((60, 1), (30, 2), (20, 3), (1, 6)):
        passes = feed.passes(4, budget)
        assert len(passes) == count
        assert np.concatenate([batch.targets["streams"] for batch in passes]).tolist() == list(range(6))


@pytest.mark.parametrize(
    "size, length, streams, budget", [(100, 7, 3, 1000), (100, 7, 3, 8), (43, 7, 6, 7), (2, 5, 1, 9)]
)
def test_held_out_text_is_read_once_and_in_order(size: int, length: int, streams: int, budget: int) -> None:
    source = Streams(text(size), length, False, streams)
    read: dict[int, list[int]] = {}
    for batch in every_example(source, shift, budget):
        names = batch.targets["streams"].tolist()
        assert len(set(names)) == len(names), "a stream cannot go on before it has ended"
        for row, stream in enumerate(names):
            here = slice(int(batch.rows.starts[row]), int(batch.rows.starts[row + 1]))
            assert (batch.targets["words"][here] == batch.tokens[here] + 1).all()
            read.setdefault(stream, []).extend(batch.tokens[here].tolist())
    assert [token for stream in sorted(read) for token in read[stream]] == list(range(size - 1))


def test_held_out_streams_are_long() -> None:
    assert [held_out(text(size)).streams for size in (10, 5000, 10_000, 1_000_000)] == [1, 1, 2, 16]
    with pytest.raises(UserError, match="only 1 tokens"):
        _ = Streams(text(1), 8, True).count
