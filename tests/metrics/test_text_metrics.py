"""Scores of what is found in texts: those of seqeval, scikit-learn and the published SQuAD scoring; best thresholds."""

from __future__ import annotations

import itertools
import json
import math
import random
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval import metrics as seqeval
from sklearn import metrics as peer

from weft.errors import UserError
from weft.metrics.classification import EntityMetrics, TagMetrics, best_no_answer, best_thresholds
from weft.metrics.generation import AnswerMetrics, normalized
from weft.metrics.numeric import RankingMetrics
from weft.text.records import read_records

near = pytest.approx
TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "E-LOC", "S-LOC"]
both_tags = st.lists(st.lists(st.tuples(*[st.sampled_from(TAGS)] * 2), max_size=8), min_size=1, max_size=8)


@settings(max_examples=40, deadline=None)
@given(both_tags)
def test_entities_as_seqeval(sentences: list[list[tuple[str, str]]]) -> None:
    predicted, gold = ([[pair[side] for pair in sentence] for sentence in sentences] for side in (0, 1))
    scores = EntityMetrics()
    scores.add(predicted, gold)
    found = {name: score.value for name, score in scores.result().items()}
    with warnings.catch_warnings(action="ignore"):
        assert found["f1"] == near(seqeval.f1_score(gold, predicted))
        assert found["precision"] == near(seqeval.precision_score(gold, predicted))
        assert found["recall"] == near(seqeval.recall_score(gold, predicted))
        if any(gold):
            assert found["accuracy"] == near(seqeval.accuracy_score(gold, predicted))
        if any(tag != "O" for sentence in gold + predicted for tag in sentence):
            report = seqeval.classification_report(gold, predicted, output_dict=True, zero_division=0)
            for row in scores.table():
                expected = report.pop(row.label)
                assert row[1:] == near([expected[k] for k in ("precision", "recall", "f1-score", "support")])
            assert all(name.endswith("avg") for name in report)


@settings(max_examples=20, deadline=None)
@given(both_tags)
def test_word_tags_as_scikit_learn(sentences: list[list[tuple[str, str]]]) -> None:
    predicted, gold = ([[pair[side] for pair in sentence] for sentence in sentences] for side in (0, 1))
    scores = TagMetrics(["I-PER", "O"])
    scores.add(predicted, gold)
    p, g = (list(itertools.chain.from_iterable(tags)) for tags in (predicted, gold))
    if g:
        found = scores.result()
        assert found["accuracy"].value == near(peer.accuracy_score(g, p))
        assert found["macro_f1"].value == near(peer.f1_score(g, p, average="macro"))
        assert [row.label for row in scores.table()][:2] == ["I-PER", "O"]
        assert sum(row.support for row in scores.table()) == len(g)


def test_a_sentence_is_resampled_whole() -> None:
    """Words that stand or fall together are no more evidence than one word."""
    reach = []
    for words in (1, 10):
        scores = TagMetrics(["a", "b"])
        scores.add([["a" if k % 4 else "b"] * words for k in range(200)], [["a"] * words] * 200)
        score = scores.result()["accuracy"]
        assert score.value == 0.75
        reach.append(score.high - score.low)
    assert reach[0] == near(reach[1])


def test_tags_that_do_not_belong_together() -> None:
    with pytest.raises(UserError, match="2 predicted tags in sentence 1, but 1 true"):
        EntityMetrics().add([["O", "O"]], [["O"]])
    with pytest.raises(UserError, match="'NOUN' is neither O nor"):
        EntityMetrics().add([["O"]], [["NOUN"]])


@pytest.mark.parametrize(
    ("predicted", "golds", "exact", "f1"),
    [
        ("The  Eiffel-Tower!", ["eiffeltower"], 1, 1),
        ("a red dog", ["the red cat", "red"], 0, 2 / 3),
        ("dog dog cat", ["dog"], 0, 1 / 2),
        ("theatre an", ["theatre"], 1, 1),
        ("", [], 1, 1),
        ("", ["something"], 0, 0),
        ("something", [], 0, 0),
        ("", ["the", "x"], 0, 0),
    ],
)
def test_an_answer_as_the_paper_says(predicted: str, golds: list[str], exact: float, f1: float) -> None:
    assert AnswerMetrics().add(predicted, golds) == near((exact, f1))


def test_answers_with_and_without_questions_that_have_none() -> None:
    scores = AnswerMetrics()
    for predicted, golds in (("x y", ["x"]), ("x", ["x"])):
        scores.add(predicted, golds)
    assert {name: score.value for name, score in scores.result().items()} == near({"exact": 0.5, "f1": 5 / 6})
    for predicted in ("", "x", "", ""):
        scores.add(predicted, [])
    expected = {"exact": 4 / 6, "f1": (5 / 3 + 3) / 6, "answerable_exact": 0.5, "answerable_f1": 5 / 6}
    found = {name: score.value for name, score in scores.result().items()}
    assert found == near({**expected, "no_answer_accuracy": 0.75})


WITNESS = """
import json, sys, types
from transformers.data.metrics import squad_metrics as witness

rows = json.load(sys.stdin)
both = (witness.compute_exact, witness.compute_f1)
each = [[witness.normalize_answer(p), *(max(f(g, p) for g in golds or [""]) for f in both)] for p, golds in rows]
examples = [types.SimpleNamespace(qas_id=str(n), answers=[{"text": g} for g in row[1]]) for n, row in enumerate(rows)]
print(json.dumps([each, witness.squad_evaluate(examples, {str(n): row[0] for n, row in enumerate(rows)})]))
"""


@pytest.mark.slow
def test_answers_as_transformers_4_scored_them(data: Path, tmp_path: Path) -> None:
    """transformers 5 has no SQuAD scoring any more; this is the file of the last version that had, run by itself."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(tmp_path)]
    found = subprocess.run([*command, "transformers==4.57.*"], capture_output=True, text=True)
    if found.returncode:
        pytest.skip(f"transformers 4.57 cannot be had here: {found.stderr.strip().splitlines()[-1]}")
    package = tmp_path / "transformers"
    with zipfile.ZipFile(next(tmp_path.glob("transformers-4.57.*.whl"))) as wheel:
        wheel.extract("transformers/data/metrics/squad_metrics.py", tmp_path)
    for folder in (package, package / "data", package / "data" / "metrics", package / "models"):
        folder.mkdir(exist_ok=True)
        (folder / "__init__.py").touch()
    # What that file imports but the scoring does not use.
    (package / "models" / "bert.py").write_text("BasicTokenizer = None\n")
    (package / "utils.py").write_text("import logging\nlogging.get_logger = logging.getLogger\n")

    chance, rows = random.Random(3), list[tuple[str, list[str]]]()
    for record in read_records(data / "xquad" / "xquad.en.json.xz"):
        golds = [answer["text"] for answer in record.values["answers"]]
        words = record.values["context"].split()
        place = chance.randrange(len(words))
        predicted = chance.choice(
            [
                golds[0],
                f"The {golds[0].upper()}.",
                " ".join(golds[0].split()[:-1]),
                f"{golds[0]}, {words[place]} {golds[0]}",
                " ".join(words[place : place + 4]),
                chance.choice(["", "a", "?!", "an The"]),
            ]
        )
        rows.append((predicted, chance.choice([golds, golds, [*golds, "the"], [*golds, words[0]], []])))
    assert len(rows) == 1190
    found = subprocess.run(
        [sys.executable, "-c", WITNESS],
        input=json.dumps(rows),
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    each, total = json.loads(found.stdout)
    scores = AnswerMetrics()
    for (predicted, golds), (words_left, exact, f1) in zip(rows, each, strict=True):
        result = scores.add(predicted, golds)
        assert normalized(predicted) == words_left
        if all(map(normalized, golds)):  # golds without a word are left out by the evaluation, not by these functions
            assert result == near((exact, f1))
    result = {name: 100 * score.value for name, score in scores.result().items()}
    names = {"exact": "exact", "f1": "f1", "answerable_exact": "HasAns_exact", "answerable_f1": "HasAns_f1"}
    assert result == near({**{a: total[b] for a, b in names.items()}, "no_answer_accuracy": total["NoAns_exact"]})


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 15) | st.none(), min_size=1), st.sampled_from([1, 3, 10]))
def test_ranking_as_scikit_learn(places: list[int | None], at: int) -> None:
    scores = RankingMetrics(at)
    for place in places:
        scores.add(place)
    found = {name: score.value for name, score in scores.result().items()}
    ordered = -np.arange(20.0)[None].repeat(len(places), axis=0)
    truth = np.array([[0 if place is None else place == k for k in range(1, 21)] for place in places])
    assert found[f"ndcg@{at}"] == near(peer.ndcg_score(truth, ordered, k=at))
    assert found["mrr"] == near(np.mean([0 if place is None else 1 / place for place in places]))
    for first in (1, at):
        assert found[f"recall@{first}"] == near(truth[:, :first].sum() / len(places))
    with pytest.raises(UserError, match="first place is 1"):
        scores.add(0)


def f1_at(scores: np.ndarray, gold: np.ndarray, threshold: float) -> float:
    marked = scores >= threshold
    return 2 * (marked & gold).sum() / (marked.sum() + gold.sum())


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 12), st.booleans()), min_size=1, max_size=12), st.sampled_from([0.0, 0.5]))
def test_the_best_threshold_of_each_label(rows: list[tuple[int, bool]], offset: float) -> None:
    scores = np.array([score for score, _ in rows]) / 12 - offset
    gold = np.array([mark for _, mark in rows])
    threshold = best_thresholds(scores[:, None], gold[:, None])[0]
    if not gold.any():
        assert threshold == 0.5
        return
    assert f1_at(scores, gold, threshold) == near(max(f1_at(scores, gold, value) for value in scores))
    above, below = scores[scores >= threshold].min(), scores[scores < threshold]
    if len(below):
        assert threshold == near((above + below.max()) / 2)


def test_thresholds_of_several_labels_and_of_scores_side_by_side() -> None:
    scores = np.array([[0.9, 0.1], [0.2, 0.8], [0.4, 0.3]])
    assert best_thresholds(scores, scores > 0.35) == near([0.3, 0.55])
    low = np.array([[0.3], [np.nextafter(0.3, 1)]])
    assert (low >= best_thresholds(low, [[False], [True]])[0]).ravel().tolist() == [False, True]
    assert (low >= best_thresholds(low, [[True], [True]])[0]).all()
    with pytest.raises(UserError, match="two equal tables"):
        best_thresholds(scores, scores[:2] > 0)


@given(st.lists(st.tuples(*[st.integers(-4, 4)] * 3), min_size=1, max_size=12))
def test_the_best_threshold_for_no_answer(rows: list[tuple[int, int, int]]) -> None:
    margin, answered, not_answered = zip(*rows, strict=True)

    def earned(threshold: float) -> int:
        return sum(yes if place <= threshold else no for place, yes, no in rows)

    threshold = best_no_answer(margin, answered, not_answered)
    assert earned(threshold) == max(earned(value) for value in [*margin, -math.inf])
    below, above = [m for m in margin if m <= threshold], [m for m in margin if m > threshold]
    assert threshold == (max(below, default=min(margin) - 2) + min(above, default=max(margin) + 2)) / 2


def test_no_answer_at_the_ends() -> None:
    assert best_no_answer([1.0, 3.0], [1, 0], [0, 1]) == 2.0
    assert best_no_answer([1.0, 3.0], [1, 1], [0, 0]) == 4.0
    assert best_no_answer([1.0, 3.0], [0, 0], [1, 1]) == 0.0
    assert best_no_answer([], [], []) == 0.0
    assert 3 < best_no_answer([3.0, math.inf], [1, 0], [0, 1]) < math.inf
    side = np.nextafter(1.0, 2)
    assert best_no_answer([1.0, side], [1, 0], [0, 1]) == 1.0
    with pytest.raises(UserError, match="as many each"):
        best_no_answer([1.0], [], [])
