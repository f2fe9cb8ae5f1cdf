"""Tags and spans: seqeval's reading, there and back without loss, and the best path against all paths."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval.metrics.sequence_labeling import get_entities

from weft.errors import UserError
from weft.text.tags import Scheme, TagDecoder, TagNormalizer, TagSpan, scheme_of, spans_of, tags_of

BIO = ["O", *(f"{letter}-{kind}" for letter in "BI" for kind in ("PER", "LOC", "MISC-A"))]
BIOES = ["O", *(f"{letter}-{kind}" for letter in "BIES" for kind in ("PER", "LOC"))]


@st.composite
def spans(draw: st.DrawFn) -> tuple[list[TagSpan], int]:
    """Spans that do not overlap, some side by side, and the length of their sentence."""
    found, place = [], 0
    for gap, size, label in draw(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4), st.sampled_from("XYZ")))):
        found.append(TagSpan(place + gap, place + gap + size, label))
        place += gap + size
    return found, place + draw(st.integers(0, 2))


@pytest.mark.parametrize(
    ("labels", "scheme"),
    [
        (["O", "B-PER", "I-PER"], "bio"),
        (["I-PER", "O", "I-LOC"], "bio"),
        (["O"], "bio"),
        (["O", "B", "I"], "bio"),
        (["B-PER", "S-PER", "O"], "bioes"),
        (["B-PER", "I-PER", "L-PER", "U-PER", "O"], "bioes"),
        (["NOUN", "VERB", "O"], "plain"),
        (["O", "B-PER", "NOUN"], "plain"),
        (["B", "I"], "plain"),
        (["B_PER", "O"], "plain"),
        ([], "plain"),
    ],
)
def test_the_scheme_is_seen_from_the_names(labels: list[str], scheme: Scheme) -> None:
    assert scheme_of(labels) == scheme


@given(st.lists(st.sampled_from([*BIO, "B", "I"])) | st.lists(st.sampled_from(BIOES)))
def test_spans_are_those_of_seqeval(tags: list[str]) -> None:
    expected = [(first, last + 1, kind) for kind, first, last in get_entities(tags)]
    assert spans_of(tags, "bio") == spans_of(tags, "bioes") == expected
    if scheme_of(tags) != "plain":
        assert spans_of(tags) == expected


def test_bilou_is_read_as_bioes() -> None:
    tags = ["U-PER", "U-PER", "B-LOC", "I-LOC", "L-LOC", "B-LOC", "L-LOC"]
    assert spans_of(tags) == [(0, 1, "PER"), (1, 2, "PER"), (2, 5, "LOC"), (5, 7, "LOC")]


@given(spans(), st.sampled_from(["bio", "bioes"]))
def test_spans_to_tags_and_back(found: tuple[list[TagSpan], int], scheme: Scheme) -> None:
    tags = tags_of(found[0], found[1], scheme)
    assert len(tags) == found[1]
    assert spans_of(tags, scheme) == found[0]
    assert tags_of(spans_of(tags, scheme), len(tags), scheme) == tags


@given(st.lists(st.sampled_from(["NOUN", "VERB", "O"])))
def test_plain_tags_are_spans_of_one_word(tags: list[str]) -> None:
    assert tags_of(spans_of(tags, "plain"), len(tags), "plain") == tags


def test_bad_tags_and_spans_are_named() -> None:
    with pytest.raises(UserError, match="'NOUN' is neither O nor"):
        spans_of(["NOUN"], "bio")
    for bad in (
        [TagSpan(0, 2, "X"), TagSpan(1, 3, "Y")],
        [TagSpan(2, 5, "X")],
        [TagSpan(1, 1, "X")],
        [TagSpan(-1, 1, "X")],
    ):
        with pytest.raises(UserError, match="overlaps another or leaves the 4 words"):
            tags_of(bad, 4, "bio")


def well_formed(tags: tuple[str, ...], scheme: Scheme) -> bool:
    return tags_of(spans_of(tags, scheme), len(tags), scheme) == list(tags)


@pytest.mark.parametrize("labels", [BIO, BIO[::-1], BIOES])
def test_the_best_path_among_all_that_are_well_formed(labels: list[str]) -> None:
    decoder, random = TagDecoder(labels), np.random.default_rng(7)
    for length in (1, 2, 3, 4):
        paths = [path for path in itertools.product(labels, repeat=length) if well_formed(path, decoder.scheme)]
        indices = np.array([[labels.index(tag) for tag in path] for path in paths])  # paths n
        for _ in range(25):
            scores = random.normal(size=(length, len(labels))).astype(np.float32)
            totals = scores.astype(np.float64)[np.arange(length), indices].sum(axis=1)
            assert decoder.decode(scores) == indices[totals.argmax()].tolist()


@pytest.mark.parametrize("labels", [["O", "I-PER", "I-LOC"], ["NOUN", "VERB", "O"]])
def test_without_rules_the_best_tag_of_each_word(labels: list[str]) -> None:
    scores = np.random.default_rng(1).normal(size=(50, 3))
    assert TagDecoder(labels).decode(scores) == scores.argmax(axis=1).tolist()


def test_letters_that_are_missing_do_not_block() -> None:
    """No E-PER was ever seen, so I-PER may end; a lone word that only B-LOC could tag gets it all the same."""
    labels = ["O", "B-PER", "I-PER", "S-PER"]
    assert TagDecoder(labels).decode(np.array([[0, 9, 0, 0], [0, 0, 9, 0], [9, 0, 0, 0]])) == [1, 2, 0]
    assert TagDecoder(["B-LOC", "E-LOC"]).decode(np.array([[1.0, 0.0]])) == [0]
    assert TagDecoder(labels).decode(np.zeros((0, 4))) == []
    with pytest.raises(UserError, match="expected"):
        TagDecoder(labels).decode(np.zeros((3, 5)))


def test_a_long_text_is_decoded_in_linear_time() -> None:
    decoder = TagDecoder(["O", *(f"{letter}-{kind}" for letter in "BI" for kind in "WXYZ")])
    scores = np.random.default_rng(2).normal(size=(60_000, 9)).astype(np.float32)
    begin = time.process_time()
    path = decoder.decode(scores)
    assert time.process_time() - begin < 4  # about 0.5 s on a free core
    assert well_formed(tuple(decoder.labels[tag] for tag in path), "bio")


# ------------------------------------------------------------------------------------------- other schemes, and strays


def as_iob1(tags: list[str]) -> list[str]:
    """BIO tags as CoNLL-2003 has them: B- only where an entity of the same type stands right before."""
    found = list(tags)
    for place, tag in enumerate(tags):
        before = tags[place - 1] if place else "O"
        if tag[0] == "B" and (before == "O" or before[1:] != tag[1:]):
            found[place] = f"I{tag[1:]}"
    return found


SENTENCES = st.lists(spans(), min_size=1, max_size=6)


@given(SENTENCES, st.sampled_from(["bio", "bioes", "bilou", "iob1"]), st.sampled_from(["bio", "bioes", "bilou"]))
def test_every_scheme_is_read_as_every_other(found: list[tuple[list[TagSpan], int]], source: str, target: str) -> None:
    def written(scheme: str) -> list[list[str]]:
        rows = [tags_of(some, length, "bio" if scheme in ("bio", "iob1") else "bioes") for some, length in found]
        if scheme == "iob1":
            return [as_iob1(tags) for tags in rows]
        letters = {"E": "L", "S": "U"} if scheme == "bilou" else {}
        return [[letters.get(tag[0], tag[0]) + tag[1:] for tag in tags] for tags in rows]

    normalizer = TagNormalizer("bio" if target == "bio" else "bioes", target == "bilou")
    rows = written(source)
    assert [list(normalizer.normalized(tags)) for tags in rows] == written(target)
    note = normalizer.note()
    assert (note is None) == (rows == written(target))
    if source == "iob1" and note is not None:
        assert note == f"IOB1 tags read as {target.upper()}"


@given(st.lists(st.lists(st.sampled_from([*BIO, "B", "I"]), max_size=8)))
def test_any_mix_becomes_bio_with_the_same_entities(rows: list[list[str]]) -> None:
    normalizer = TagNormalizer("bio")
    for tags in rows:
        found = normalizer.normalized(tags)
        assert well_formed(found, "bio") and spans_of(found, "bio") == spans_of(tags, "bio")
        assert TagNormalizer("bio").normalized(found) == found, "and stays so"


def test_strays_are_counted() -> None:
    normalizer = TagNormalizer("bio")
    assert normalizer.normalized(["B-PER", "I-LOC", "O", "I-LOC"]) == ("B-PER", "B-LOC", "O", "B-LOC")
    assert normalizer.note() == "2 stray I- tags read as B-"
    ended = TagNormalizer("bioes")
    assert ended.normalized(["S-PER", "I-LOC", "O", "B-LOC", "I-LOC"]) == ("S-PER", "S-LOC", "O", "B-LOC", "E-LOC")
    assert ended.note() == "2 stray tags rewritten to fit BIOES"
    odd = TagNormalizer("bio")
    assert odd.normalized(["NOUN", "I-PER"]) == ("NOUN", "I-PER") and odd.note() is None, "for others to refuse"


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["NOUN", "O"], None),
        (["I-PER", "O"], ("bio", False)),
        (["B-PER", "O"], ("bio", False)),
        (["S-PER", "O"], ("bioes", False)),
        (["U-PER", "B-PER", "O"], ("bioes", True)),
    ],
)
def test_the_scheme_that_tags_are_written_in(labels: list[str], expected: tuple[str, bool] | None) -> None:
    found = TagNormalizer.of(labels)
    assert (None if found is None else (found.scheme, found.bilou)) == expected
