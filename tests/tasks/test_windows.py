"""Windows over texts and pairs: put together they give back everything, each token answered for exactly once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import UserError
from weft.tasks.pooling import own_tokens
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.windows import FlatWindows, Framing, framing_of, left_out, pieces, special_tokens

CLS, SEP = 1, 2
lengths = st.integers(0, 70)
few = settings(max_examples=150, deadline=None)


def framing(length: int, stride: int, cutting: bool = False, segments: bool = True) -> Framing:
    return Framing((CLS,), (SEP,), ((CLS,), (SEP, SEP), (SEP,)), segments, length, stride, cutting)


@few
@given(lengths, st.integers(4, 40), st.integers(1, 50))
def test_a_text_comes_back_from_its_windows(count: int, length: int, stride: int) -> None:
    text = list(range(100, 100 + count))
    back: list[int] = []
    found = pieces(framing(length, stride), text)
    for piece in found:
        assert len(piece.tokens) <= length and piece.tokens[0] == CLS and piece.tokens[-1] == SEP
        assert piece.border == len(piece.tokens)
        c = piece.cut
        assert c.start <= c.first <= c.last <= c.end
        assert piece.tokens[piece.lead : piece.lead + c.end - c.start] == text[c.start : c.end]
        back += piece.tokens[piece.lead + c.first - c.start : piece.lead + c.last - c.start]
    assert back == text
    assert len(found) == 1 or count > length - 2
    assert not left_out(framing(length, stride), found, count)


@few
@given(lengths, lengths, st.integers(6, 40), st.integers(1, 50), st.booleans())
def test_a_pair_comes_back_from_its_windows(one: int, two: int, length: int, stride: int, segments: bool) -> None:
    """The text that is cut comes back in order, the other stands in every window, or is read whole side by side."""
    first, second = list(range(100, 100 + one)), list(range(200, 200 + two))
    frame = framing(length, stride, segments=segments)
    room = length - special_tokens(frame, 2)
    found = pieces(frame, first, second)
    assert len(found) == 1 or one + two > room
    back: list[int] = []
    read: set[int] = set()
    for piece in found:
        assert len(piece.tokens) <= length
        border = piece.tokens.index(SEP) + 2
        assert piece.border == (border if segments else len(piece.tokens))
        left, right = piece.tokens[1 : border - 2], piece.tokens[border:-1]
        assert all(100 <= token < 200 for token in left) and all(token >= 200 for token in right)
        assert (one <= room // 2) <= (left == first), "a short first text stands in every window"
        assert (one > room // 2 and two <= room // 2) <= (right == second)
        read |= {*left, *right}
        c = piece.cut
        back += piece.tokens[piece.lead + c.first - c.start : piece.lead + c.last - c.start]
    assert read == {*first, *second}, "nothing is left out, whichever text is cut"
    assert back in (first, second), "of the text that is cut, each token is answered for once"
    if one + two > room:
        assert back == (second if one <= room // 2 else first if two <= room // 2 else back)


@few
@given(lengths, lengths, st.integers(6, 30), st.booleans())
def test_what_is_cut_off_is_said(one: int, two: int, length: int, pair: bool) -> None:
    frame = framing(length, length, cutting=True)
    first, second = list(range(100, 100 + one)), list(range(200, 200 + two))
    found = pieces(frame, first, second) if pair else pieces(frame, first)
    counts = (one, two) if pair else (one,)
    assert len(found) == 1 and len(found[0].tokens) <= length
    kept = [token for token in found[0].tokens if token >= 100]
    assert left_out(frame, found, *counts) == (len(kept) < sum(counts))
    assert left_out(frame, found, *counts) == (sum(counts) > length - special_tokens(frame, len(counts)))


def test_no_room() -> None:
    with pytest.raises(UserError, match="a window of 3 tokens has no room"):
        pieces(framing(3, 1), [5, 6])
    with pytest.raises(UserError, match="no separator token for pairs"):
        pieces(Framing((), (), None, False, 10, 5), [5], [6])


def test_the_frame_is_that_of_the_tokenizer(wordpiece: Tokenizer, bpe: Tokenizer) -> None:
    """Windows of what fits are what the tokenizer itself makes of a text or a pair; a model that speaks reads
    a text as it is, as the published ones do, and a pair with a token between."""
    frame = framing_of(wordpiece, False, 40, 20, True)
    one, two = "the cat is there", "a cow"
    a, b = wordpiece.ids([one, two], specials=False)
    assert pieces(frame, a)[0].tokens == wordpiece.encode(one).ids
    pair = wordpiece.encode(one, two)
    found = pieces(frame, a, b)[0]
    assert found.tokens == pair.ids and [int(n >= found.border) for n in range(len(pair))] == pair.segments
    speaks = framing_of(bpe, True, 40, 20, False)
    end = bpe.id_of("end")
    a, b = bpe.ids([one, two], specials=False)
    assert pieces(speaks, a)[0].tokens == a and pieces(speaks, a, b)[0].tokens == [*a, end, *b]
    assert pieces(speaks, [])[0].tokens == [end]


@few
@given(st.lists(lengths, min_size=1, max_size=6), st.integers(4, 40), st.integers(1, 50), st.booleans(), st.randoms())
def test_windows_as_arrays_are_the_same(
    counts: list[int], length: int, stride: int, cutting: bool, chance: Any
) -> None:
    drawn = iter(range(100, 1000))
    texts = [[next(drawn) for _ in range(count)] for count in counts]
    for frame in (framing(length, stride, cutting), Framing((), (), None, 0, length, stride, cutting, (SEP,))):
        expected = [(number, piece) for number, text in enumerate(texts) for piece in pieces(frame, text)]
        flat = FlatWindows.of(frame, texts)
        assert flat.texts.tolist() == [number for number, _ in expected]
        assert flat.lengths().tolist() == [len(piece.tokens) for _, piece in expected]
        order = chance.sample(range(len(expected)), chance.randint(1, len(expected)))
        tokens, borders, own = flat.framed(order)
        chosen = [expected[number][1] for number in order]
        assert tokens.tolist() == [token for piece in chosen for token in piece.tokens]
        assert np.diff(borders).tolist() == [len(piece.tokens) for piece in chosen] and borders[0] == 0
        marked = np.concatenate([own_tokens(piece) for piece in chosen])
        assert marked.all() if own is None else (own == marked).all()


def test_windows_as_arrays_have_room() -> None:
    with pytest.raises(UserError, match="no room"):
        FlatWindows.of(framing(3, 1), [[5]])
