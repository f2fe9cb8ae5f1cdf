"""Text in several languages: shares, sentence pairs in one row, and rows of all languages mixed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.data.languages import (
    InLanguage,
    Mixture,
    PairFiles,
    PairFrame,
    TranslationPairs,
    borders_of,
    language_shares,
    sampled_texts,
    split_pairs,
)
from weft.data.masking import Masking
from weft.data.rows import DocumentRows, Feed, Frame, Framed, every_example
from weft.data.shards import Corpus
from weft.errors import UserError
from weft.text.rows import Skipped


def corpus_of(*documents: list[int]) -> Corpus:
    tokens = np.array([token for document in documents for token in document], dtype=np.uint16)
    return Corpus([tokens], np.r_[0, np.cumsum([len(document) for document in documents])], None, str(len(tokens)))


def test_a_rare_language_is_read_more_often_than_its_share() -> None:
    sizes = {"en": 900.0, "de": 90.0, "sw": 10.0}
    shares = language_shares(sizes, 0.7)
    powers = {name: (size / 1000) ** 0.7 for name, size in sizes.items()}
    assert shares == pytest.approx({name: power / sum(powers.values()) for name, power in powers.items()})
    assert shares["sw"] > 0.01 and shares["en"] < 0.9 and sum(shares.values()) == pytest.approx(1)
    assert language_shares(sizes, 1.0) == pytest.approx({"en": 0.9, "de": 0.09, "sw": 0.01})
    assert language_shares(sizes, 0.0) == pytest.approx(dict.fromkeys(sizes, 1 / 3))


def test_a_vocabulary_is_learned_from_texts_by_their_shares() -> None:
    texts = {"en": ["aaaa"] * 90, "de": ["bbbb"] * 10}
    count = Counter(sampled_texts({name: lambda name=name: iter(texts[name]) for name in texts}, 0.5))  # type: ignore[misc]
    shares = language_shares({"en": 360, "de": 40}, 0.5)
    assert abs(count["aaaa"] - 100 * shares["en"]) <= 1 and abs(count["bbbb"] - 100 * shares["de"]) <= 1


PAIRS = [([11, 12, 13], [21, 22]), ([14], [23, 24, 25, 26]), ([15, 16], [27])]
RESET = PairFrame([1], [2, 1], [2], 1)  # <s> a </s> <s> b </s>


def pairs_of(length: int = 40, **more: Any) -> TranslationPairs:
    corpus = corpus_of(*(side for pair in PAIRS for side in pair))
    return TranslationPairs(corpus, **{"frame": RESET, "length": length, "segments": (0, 1), "resets": True, **more})


def test_translations_stand_in_one_row_each_counted_from_0() -> None:
    drawn = pairs_of().draw(np.zeros(2, dtype=np.int64), np.array([1, 0]))
    assert drawn.tokens.tolist() == [1, 14, 2, 1, 23, 24, 25, 26, 2, 1, 11, 12, 13, 2, 1, 21, 22, 2]
    assert drawn.starts.tolist() == [0, 9, 18]
    assert drawn.positions is not None and drawn.segments is not None
    assert drawn.positions.tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 0, 1, 2, 3]
    assert drawn.segments.tolist() == [0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 1, 1, 1, 1]
    assert drawn.tokens[~drawn.given].tolist() == [14, 23, 24, 25, 26, 11, 12, 13, 21, 22]
    assert pairs_of().lengths(np.array([1, 0])).tolist() == [9, 9]


def test_a_frame_of_pairs_where_positions_go_on() -> None:
    frame = PairFrame([1], [2, 2], [2], 2)  # RoBERTa's: the tokens between are of the first text
    drawn = pairs_of(frame=frame, resets=False).draw(np.zeros(1, dtype=np.int64), np.array([2]))
    assert drawn.tokens.tolist() == [1, 15, 16, 2, 2, 27, 2] and drawn.positions is None
    assert drawn.segments is not None and drawn.segments.tolist() == [0, 0, 0, 0, 0, 1, 1]
    assert pairs_of(segments=None).draw(np.zeros(1, dtype=np.int64), np.array([2])).segments is None


def test_pairs_that_are_too_long_lose_the_end_of_the_longer_text() -> None:
    pairs = pairs_of(length=8)  # room for four tokens
    assert pairs.truncated == 2 and pairs.lengths(np.arange(3)).tolist() == [8, 8, 7]
    drawn = pairs.draw(np.zeros(3, dtype=np.int64), np.arange(3))
    assert drawn.tokens[~drawn.given].tolist() == [11, 12, 21, 22, 14, 23, 24, 25, 15, 16, 27]
    with pytest.raises(UserError, match="no room for a pair"):
        _ = pairs_of(length=5).count


def test_a_pair_that_is_empty_on_one_side_is_left_out() -> None:
    corpus = corpus_of([5, 6], [], [7], [8])
    pairs = TranslationPairs(corpus, RESET, 20, None, True)
    assert pairs.count == 1 and pairs.draw(np.array([0]), np.array([0])).tokens.tolist() == [1, 7, 2, 1, 8, 2]


def test_whole_pairs_are_held_out() -> None:
    corpus = corpus_of(*([number] for number in range(40)))
    train, held = split_pairs(corpus, 0.1)
    assert (len(train.documents) - 1, len(held.documents) - 1) == (36, 4)
    assert held.take(np.arange(held.begin, held.begin + held.size)).tolist() == [36, 37, 38, 39]
    together = borders_of([train, held])
    assert together.size == 40 and len(together.documents) == 41 and together.hash != borders_of([held]).hash


def rows_of(first: int, count: int, length: int = 3) -> DocumentRows:
    documents = [[first + number] * length for number in range(count)]
    return DocumentRows(Framed(corpus_of(*documents), Frame()), 8, 0)


def mixture(shares: dict[str, float] | None = None) -> Mixture:
    return Mixture(
        {"en": InLanguage(rows_of(100, 30), 0), "de": InLanguage(rows_of(200, 6), 1), "en-de": pairs_of()}, shares
    )


def test_in_training_each_source_has_its_share_of_the_tokens() -> None:
    shares = {"en": 0.5, "de": 0.3, "en-de": 0.2}
    source = mixture(shares)
    tokens = Counter[str]()
    for epoch in range(4):
        drawn = source.draw(np.full(source.count, epoch), np.arange(source.count))
        for row in np.split(drawn.tokens, drawn.starts[1:-1]):
            tokens["en" if row[0] >= 100 and row[0] < 200 else "de" if row[0] >= 200 else "en-de"] += len(row)
    for name, share in shares.items():
        assert tokens[name] / tokens.total() == pytest.approx(share, abs=0.03)
    assert source.mean == pytest.approx(tokens.total() / (4 * source.count), rel=0.05)


def test_a_source_is_read_through_before_it_is_read_again() -> None:
    source, seen = mixture({"en": 0.4, "de": 0.4, "en-de": 0.2}), Counter[int]()
    for epoch in range(3):
        drawn = source.draw(np.full(source.count, epoch), np.arange(source.count))
        seen.update(drawn.tokens[drawn.starts[:-1]].tolist())
    for numbers in (range(100, 130), range(200, 206)):
        counts = [seen[number] for number in numbers]
        assert max(counts) - min(counts) <= 1 and min(counts) >= 1


def test_every_token_knows_its_language_and_its_place() -> None:
    source = mixture({"en": 0.4, "de": 0.4, "en-de": 0.2})
    drawn = source.draw(np.zeros(source.count, dtype=np.int64), np.arange(source.count))
    assert drawn.segments is not None and drawn.positions is not None
    assert (drawn.segments[drawn.tokens >= 200] == 1).all()
    assert (drawn.segments[(drawn.tokens >= 100) & (drawn.tokens < 200)] == 0).all()
    lengths = np.diff(drawn.starts)
    places = np.concatenate([np.arange(size) for size in lengths])
    assert (drawn.positions[drawn.tokens >= 100] == places[drawn.tokens >= 100]).all()
    batch = Masking(4, np.arange(5, 99), None, 0.3, 0).apply(drawn)
    assert batch.positions is not None and batch.segments is not None
    assert batch.positions.tolist() == drawn.positions.tolist() and batch.segments.tolist() == drawn.segments.tolist()


def test_a_step_is_the_same_however_it_is_cut_and_whoever_asks() -> None:
    masking = Masking(4, np.arange(5, 99), None, 0.3, 0)
    feeds = [Feed(mixture({"en": 0.4, "de": 0.4, "en-de": 0.2}), masking.apply, 3, 16) for _ in range(2)]
    for step in (0, 1, 7):
        one = feeds[0].passes(step, 1 << 20)
        several = feeds[1].passes(step, 20)
        assert len(one) == 1 and len(several) > 2
        whole = sorted(map(tuple, np.split(one[0].tokens.numpy(), one[0].rows.starts[1:-1].numpy())), key=str)
        parts = [row for b in several for row in np.split(b.tokens.numpy(), b.rows.starts[1:-1].numpy())]
        assert whole == sorted(map(tuple, parts), key=str)


def test_an_evaluation_reads_every_row_of_every_part_once() -> None:
    source = mixture()
    assert list(source.parts) == ["en", "de", "en-de"] and source.count == 39
    masking = Masking(4, np.arange(5, 99), None, 0.3, 0)
    rows = sum(batch.rows.count for part in source.parts.values() for batch in every_example(part, masking.apply, 30))
    assert rows == 39 == sum(batch.rows.count for batch in every_example(source, masking.apply, 30))


def test_pairs_are_read_from_two_columns(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("EN\tde\nHi.\tHallo.\n\n Go. \tGeh!\tfrom somewhere\n", encoding="utf-8")
    files = PairFiles((str(path),), languages=("en", "de"))
    assert list(files.read()) == ["Hi.", "Hallo.", "Go.", "Geh!"]
    assert list(PairFiles((str(path),), languages=("en", "fr")).read())[0] == "EN"
    path.write_text("Hi.\tHallo.\none column\nGo.\t\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"line 2: one column; a pair is two texts[\s\S]*line 3: the de text is empty"):
        list(files.read())
    skipped = Skipped()
    assert list(PairFiles((str(path),), on_bad_row="skip", languages=("en", "de")).read(skipped)) == ["Hi.", "Hallo."]
    assert skipped.count == 2
