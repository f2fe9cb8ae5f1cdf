"""Scores of written text: those of sacreBLEU and of rouge-score, whatever the batches, with intervals around them."""

from __future__ import annotations

import gzip
import random
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer

from weft.errors import UserError
from weft.metrics.generation import GenerationMetrics, RougeMetrics, longest_common, rouge_of
from weft.text.sentences import lead

near = pytest.approx
GOLD = [
    "Zwei Hunde spielen im Schnee, und einer springt hoch.",
    "Ein Mann in einem blauen Hemd steht auf einer Leiter und putzt ein Fenster.",
    "Die Katze schläft.",
    "Im Jahr 2016 kostete es 1.234,50 Euro (ohne Steuer)!",
]
WRITTEN = [
    "Zwei Hunde spielen im Schnee, einer springt.",
    "Ein Mann in blauem Hemd steht auf der Leiter und putzt die Fenster.",
    "Die Katze schläft.",
    "",
]
letters = st.text(st.sampled_from("ab cdé.,'\"-1 "), max_size=30)
texts = st.lists(st.tuples(letters, letters, letters), min_size=1, max_size=8)


def values(scores: GenerationMetrics | RougeMetrics) -> dict[str, float]:
    return {name: score.value for name, score in scores.result().items()}


@settings(max_examples=40, deadline=None)
@given(texts, st.sampled_from(["13a", "intl", "char", "zh", "none"]), st.booleans(), st.booleans())
def test_bleu_and_chrf_as_sacrebleu(
    rows: list[tuple[str, str, str]], tokenize: str, lowercase: bool, several: bool
) -> None:
    predicted, first, second = (list(part) for part in zip(*rows, strict=True))
    references = [first, second] if several else [first]
    scores = GenerationMetrics(tokenize=tokenize, lowercase=lowercase)
    sentences = scores.add(predicted, [list(golds) for golds in zip(*references, strict=True)])
    peer = sacrebleu.BLEU(tokenize=tokenize, lowercase=lowercase)
    found, chrf = values(scores), sacrebleu.CHRF(lowercase=lowercase)
    expected = peer.corpus_score(predicted, references)
    assert found["bleu"] == near(expected.score, abs=1e-9)
    assert found["chrf"] == near(chrf.corpus_score(predicted, references).score, abs=1e-9)
    assert found["exact"] == sum(
        text.strip() in (a.strip(), b.strip() if several else a.strip()) for text, a, b in rows
    ) / len(rows)
    if expected.ref_len:
        assert found["length_ratio"] == near(expected.ratio, abs=1e-9)
    assert scores.signature == peer.get_signature().format()
    one = sacrebleu.BLEU(tokenize=tokenize, lowercase=lowercase, effective_order=True)
    for text, golds, sentence in zip(predicted, zip(*references, strict=True), sentences, strict=True):
        assert sentence.bleu == near(one.sentence_score(text, golds).score, abs=1e-9)
        assert sentence.chrf == near(chrf.sentence_score(text, golds).score, abs=1e-9)


def test_real_sentences_as_sacrebleu(data: Path) -> None:
    """The German of Multi30k with words left out, doubled and swapped."""
    with gzip.open(data / "multi30k" / "test_2016_flickr.de.gz", "rt") as file:
        gold = [line.rstrip("\n") for line, _ in zip(file, range(400), strict=False)]
    chance, predicted = random.Random(1), []
    for line in gold:
        words = [word for word in line.split() for _ in range(chance.choice((0, 1, 1, 1, 1, 1, 2)))]
        predicted.append(" ".join(words))
    scores = GenerationMetrics()
    scores.add(predicted, gold, [len(line.split()) for line in gold])
    found = scores.result()
    assert found["bleu"].value == near(sacrebleu.corpus_bleu(predicted, [gold]).score, abs=1e-9)
    assert found["chrf"].value == near(sacrebleu.corpus_chrf(predicted, [gold]).score, abs=1e-9)
    assert 20 < found["bleu"].low < found["bleu"].value < found["bleu"].high < 80
    assert found["bleu"].high - found["bleu"].low < 5, "so many sentences say more than that"
    # The interval is that of sacreBLEU's own resampling, to the chance in both.
    theirs = sacrebleu.BLEU().corpus_score(predicted, [gold], n_bootstrap=300)
    assert (found["bleu"].high - found["bleu"].low) / 2 == near(theirs._ci, rel=0.25)
    for row in scores.by_length():
        here = [n for n, line in enumerate(gold) if row.low <= len(line.split()) < (row.high or 1000)]
        part = sacrebleu.corpus_bleu([predicted[n] for n in here], [[gold[n] for n in here]]).score
        assert row.sentences == len(here) and row.scores["bleu"].value == near(part, abs=1e-9)
        right = sum(predicted[n] == gold[n] for n in here)
        assert row.scores["exact"].value == right / len(here)
        assert row.scores["bleu"].low <= row.scores["bleu"].value <= row.scores["bleu"].high
    assert [row.low for row in scores.by_length()] == [0, 10, 20]


@pytest.mark.parametrize("borders", [[1], [0, 100, 256], [7, 255, 257, 299]])
def test_batches_do_not_matter(borders: list[int]) -> None:
    predicted, gold = WRITTEN * 75, (GOLD[1:] + GOLD[:1]) * 75  # more than one block of resamplings
    lengths = [len(text.split()) for text in gold]
    whole, parts = (
        (GenerationMetrics(edges=[5, 10]), RougeMetrics()),
        (GenerationMetrics(edges=[5, 10]), RougeMetrics()),
    )
    whole[0].add(predicted, gold, lengths)
    whole[1].add(predicted, gold)
    for low, high in pairwise(sorted([0, *borders, len(gold)])):
        parts[0].add(predicted[low:high], gold[low:high], lengths[low:high])
        parts[1].add(predicted[low:high], gold[low:high])
    for a, b in zip(whole, parts, strict=True):
        assert a.result() == b.result()
    assert whole[0].by_length() == parts[0].by_length() and len(whole[0].by_length()) == 3


def test_what_is_perfect_and_what_is_empty() -> None:
    perfect = GenerationMetrics()
    assert [sentence.exact for sentence in perfect.add(GOLD, [f" {text}\n" for text in GOLD])] == [1.0] * 4
    found = perfect.result()
    assert found["bleu"].value == found["bleu"].high == 100 and found["exact"].value == 1
    assert found["chrf"].value == near(100) and found["length_ratio"].value == 1
    assert 0 < found["bleu"].low < 100, "four sentences prove little"
    empty = GenerationMetrics()
    assert empty.add([""] * 4, GOLD) == [(0.0, 0.0, 0.0)] * 4
    assert {name: score.value for name, score in empty.result().items()} == dict.fromkeys(found, 0.0)
    rouge = RougeMetrics()
    assert rouge.add(GOLD, GOLD) == [(1.0, 1.0, 1.0)] * 4 and rouge.result()["rougeL"].value == 1
    assert rouge_of("", "a b") == rouge_of("a", "") == (0.0, 0.0, 0.0)
    mixed = GenerationMetrics()
    sentences = mixed.add(WRITTEN, GOLD)
    assert sentences[3].bleu == 0 < sentences[1].bleu < sentences[2].bleu == near(100)
    for score in mixed.result().values():
        assert score.low <= score.value <= score.high and score.low < score.high


@settings(max_examples=60, deadline=None)
@given(texts, st.booleans())
def test_rouge_as_rouge_score(rows: list[tuple[str, str, str]], several: bool) -> None:
    peer, scores = RougeScorer(["rouge1", "rouge2", "rougeL"]), RougeMetrics()
    golds = [[a, b] if several else [a] for _, a, b in rows]
    scores.add([text for text, _, _ in rows], golds)
    expected = [peer.score_multi(right, text) for (text, _, _), right in zip(rows, golds, strict=True)]
    for name, value in values(scores).items():
        assert value == near(sum(score[name].fmeasure for score in expected) / len(rows), abs=1e-9)


def test_rouge_of_long_texts_as_rouge_score() -> None:
    chance = random.Random(3)
    words = ["The", "the", "loom's", "threads,", "12", "of", "Wool;", "sang", "über", "ties-and", "tied"]
    for size in (1, 63, 64, 65, 200):
        p, g = (" ".join(chance.choices(words, k=size + extra)) for extra in (0, 7))
        theirs = RougeScorer(["rouge1", "rouge2", "rougeL"]).score(g, p)
        assert rouge_of(p, g) == near([score.fmeasure for score in theirs.values()], abs=1e-12)
    assert longest_common(list("abcbdab"), list("bdcaba")) == 4


def test_lead() -> None:
    text = "\n First one. Second (2.5 m)! \n\n Third? Fourth."
    assert lead(text) == "First one. Second (2.5 m)! \n\n Third?"
    assert lead(text, 1) == "First one." and lead(text, 9) == text.strip() and lead(text, 0) == lead("") == ""


@pytest.mark.parametrize(
    "call, fault",
    [
        (
            lambda: GenerationMetrics(tokenize="13b"),
            "tokenize '13b' is not one of 13a, intl, char, zh, none; did you mean '13a'",
        ),
        (lambda: GenerationMetrics(edges=[5, 5]), "each must be above the one before"),
        (lambda: GenerationMetrics().result(), "no examples to score"),
        (lambda: GenerationMetrics().signature, "no examples to score"),
        (lambda: GenerationMetrics().add(["a"], []), "1 predicted texts, but 0 true ones"),
        (lambda: GenerationMetrics().add(["a", "b"], ["a", []]), "text 2 has no reference"),
        (
            lambda: GenerationMetrics().add(["a"], ["a"], [1, 2]),
            "lengths of sources are given for all texts or for none",
        ),
        (lambda: RougeMetrics().add(["a"], [[]]), "summary 1 has no reference"),
    ],
)
def test_mistakes_are_named(call: Any, fault: str) -> None:
    with pytest.raises(UserError, match=fault):
        call()


def test_without_sacrebleu_one_line_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics.bleu", None)
    with pytest.raises(UserError, match=r"BLEU needs sacrebleu: pip install 'weft\[evaluate\]'"):
        GenerationMetrics()
