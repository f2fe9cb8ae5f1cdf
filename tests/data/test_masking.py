"""Masks: as many as asked for, 80 / 10 / 10, never on special tokens, whole words where asked, anew in each epoch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.training.small import OBJECTIVES, drawn, network_for, stories
from weft.data.masking import NOTHING, Masking, inside_words, shift
from weft.data.rows import Drawn
from weft.errors import UserError
from weft.text.tokenizers.training import learn

MASK = 4


def masking(inside: np.ndarray | None = None, rate: float = 0.15, seed: int = 0) -> Masking:
    return Masking(MASK, np.arange(1000, 2000), inside, rate, seed)


def test_shares() -> None:
    rows = drawn([400] * 100, vocabulary=900)
    batch = masking().apply(rows)
    places, labels = batch.targets["places"], batch.targets["words"]
    assert (labels == torch.from_numpy(rows.tokens)[places]).all()
    per_row = torch.bincount(places // 400)
    assert (per_row == 60).all()  # exactly 15 % of each row
    seen = batch.tokens[places]
    masked, kept = (seen == MASK).float().mean(), (seen == labels).float().mean()
    other = ((seen >= 1000) & (seen < 2000)).float().mean()
    assert abs(masked - 0.8) < 0.02 and abs(kept - 0.1) < 0.02 and abs(other - 0.1) < 0.02
    rest = torch.ones(len(batch.tokens), dtype=torch.bool)
    rest[places] = False
    assert (batch.tokens[rest] == torch.from_numpy(rows.tokens)[rest]).all()


def test_filled_up_to_one_shape() -> None:
    """For a compiled network: as many places whatever is masked; those that were added say nothing."""
    rows = drawn([20] * 10)
    given = np.zeros(200, dtype=bool)
    given[[3, 50, 51, 52, 120]] = True
    some, none = (Drawn(rows.tokens, rows.starts, rows.identity, mask) for mask in (given, np.zeros_like(given)))
    plain, filled = masking().apply(some), masking().apply(some, filled=True)
    assert filled.targets["places"].shape == masking().apply(none, filled=True).targets["places"].shape
    real = filled.targets["words"] != NOTHING
    assert filled.targets["places"][real].equal(plain.targets["places"]) and not real.all()
    assert OBJECTIVES["mlm"].counts(filled) == OBJECTIVES["mlm"].counts(plain)
    network = network_for("mlm", vocabulary=2000).eval()
    sums = [OBJECTIVES["mlm"].sums(network, batch)["words"] for batch in (plain, filled)]
    assert torch.allclose(sums[0], sums[1])


def test_words_that_are_longer_than_the_share_of_their_row_need_no_filling() -> None:
    rows, whole = drawn([20] * 10), masking(inside=np.ones(2000, dtype=bool))
    plain, filled = whole.apply(rows), whole.apply(rows, filled=True)
    assert len(plain.targets["places"]) == 200, "each row is one word"
    assert filled.targets["places"].equal(plain.targets["places"])


def test_places_are_even() -> None:
    places = masking().apply(drawn([100] * 2000)).targets["places"] % 100
    counts = torch.bincount(places, minlength=100).double()
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 160  # chi-square, 99 degrees


def test_special_tokens_are_left_alone() -> None:
    rows = drawn([20] * 50)
    given = np.zeros(1000, dtype=bool)
    given[::20] = given[19::20] = True
    found = masking().apply(Drawn(rows.tokens, rows.starts, rows.identity, given))
    assert not given[found.targets["places"].numpy()].any()
    assert (torch.bincount(found.targets["places"] // 20) == 3).all()  # 15 % of 18


def test_a_short_row_has_one_mask() -> None:
    assert len(masking().apply(drawn([1, 2, 3])).targets["places"]) == 3


def test_dynamic_and_pure() -> None:
    rows = drawn([50] * 10)
    first, again = masking().apply(rows), masking().apply(rows)
    assert first.tokens.equal(again.tokens)
    epoch = Drawn(rows.tokens, rows.starts, rows.identity + np.uint64(1 << 50), rows.given)
    assert not masking().apply(epoch).tokens.equal(first.tokens)
    assert not masking(seed=1).apply(rows).tokens.equal(first.tokens)
    # What is masked in a row does not depend on the rows beside it.
    half = Drawn(rows.tokens[:250], rows.starts[:6], rows.identity[:250], rows.given[:250])
    assert masking().apply(half).tokens.equal(first.tokens[:250])


def test_whole_words() -> None:
    inside = np.zeros(60, dtype=bool)
    inside[30:] = True  # tokens from 30 on continue a word
    rows = drawn([60] * 40)
    found = masking(inside, 0.3).apply(rows)
    chosen = np.zeros(2400, dtype=bool)
    chosen[found.targets["places"].numpy()] = True
    begins = ~inside[rows.tokens]
    begins[rows.starts[:-1]] = True
    words = begins.cumsum()
    for word in np.unique(words):
        assert chosen[words == word].all() or not chosen[words == word].any()
    share = torch.bincount(found.targets["places"] // 60, minlength=40)
    assert (share <= 18).all() and share.float().mean() > 14  # never more than asked for, and near it


def test_words_of_real_vocabularies() -> None:
    text = stories(40).splitlines()
    pieces = learn(text, "wordpiece", 120)
    inside = inside_words(pieces)
    assert all(inside[n] == str(pieces.token(n)).startswith("##") for n in range(pieces.vocabulary))
    codes = learn(text, "bpe", 300)
    marks = inside_words(codes)
    ids = codes.encode("weavers sang").ids
    assert not marks[ids[[str(codes.token(n)).startswith("Ġ") for n in ids].index(True)]]


def test_no_mask_token() -> None:
    with pytest.raises(UserError, match="no mask token"):
        Masking.of(learn(["a b c"] * 3, "bpe", 270), 0.15, False, 0)


def test_choices_leave_out_special_tokens() -> None:
    tokenizer = learn(stories(20).splitlines(), "wordpiece", 200)
    found = Masking.of(tokenizer, 0.15, False, 0)
    special = {tokenizer.id_of(role) for role in ("padding", "unknown", "start", "separator", "mask")}
    assert found.mask == tokenizer.id_of("mask") and not special & set(found.choices.tolist())
    assert len(found.choices) == tokenizer.vocabulary - 5


def test_shift() -> None:
    batch = shift(drawn([4, 1, 3]))
    assert batch.rows.starts.tolist() == [0, 3, 5]  # a row of one token says nothing
    tokens = drawn([4, 1, 3]).tokens
    assert batch.tokens.tolist() == tokens[[0, 1, 2, 5, 6]].tolist()
    assert batch.targets["words"].tolist() == tokens[[1, 2, 3, 6, 7]].tolist()
