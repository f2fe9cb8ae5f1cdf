"""Scores of classes, labels and numbers: those of scikit-learn and scipy, whatever the batches, in constant memory."""

from __future__ import annotations

import time
import tracemalloc
import warnings
from collections.abc import Callable
from dataclasses import astuple
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics as peer

from weft.errors import UserError
from weft.metrics.bootstrap import POISSON, Score, WorstRows, drawn, interval, summarized
from weft.metrics.classification import ClassificationMetrics, EntityMetrics, MultiLabelMetrics, TagMetrics
from weft.metrics.generation import AnswerMetrics
from weft.metrics.numeric import RankingMetrics, RegressionMetrics

near = pytest.approx


def value_of(found: dict[str, Score], name: str) -> float:
    score = found[name]
    assert score.low <= score.value <= score.high
    return score.value


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 5), st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40))
def test_classes_as_scikit_learn(classes: int, pairs: list[tuple[int, int]]) -> None:
    predicted, gold = np.array(pairs).T % classes
    scores = ClassificationMetrics([f"c{number}" for number in range(classes)])
    scores.add(predicted, gold)
    found = scores.result()
    with warnings.catch_warnings(action="ignore"):
        assert value_of(found, "accuracy") == near(peer.accuracy_score(gold, predicted))
        assert value_of(found, "macro_f1") == near(peer.f1_score(gold, predicted, average="macro"))
        assert value_of(found, "mcc") == near(peer.matthews_corrcoef(gold, predicted))
        assert ("f1" in found) == (classes == 2)
        if classes == 2:
            assert value_of(found, "f1") == near(peer.f1_score(gold, predicted))
        labels = list(range(classes))
        rows = peer.precision_recall_fscore_support(gold, predicted, labels=labels, zero_division=0)
    assert [row.label for row in scores.table()] == list(scores.labels)
    table = np.array([row[1:] for row in scores.table()])
    assert near(np.array(rows)) == table.T
    assert (scores.confusion() == peer.confusion_matrix(gold, predicted, labels=labels)).all()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(1, 4), st.sampled_from([0.1, 0.5]))
def test_several_labels_as_scikit_learn(seed: int, n: int, width: int, often: float) -> None:
    predicted, gold = np.random.default_rng(seed).random((2, n, width)) < often
    scores = MultiLabelMetrics("abcd"[:width])
    scores.add(predicted, gold)
    found = scores.result()
    assert value_of(found, "exact") == near((predicted == gold).all(axis=1).mean())
    assert value_of(found, "micro_f1") == near(peer.f1_score(gold.ravel(), predicted.ravel(), zero_division=0))
    each = [
        peer.precision_recall_fscore_support(g, p, labels=[1], zero_division=0)
        for p, g in zip(predicted.T, gold.T, strict=True)
    ]
    table = np.array([row[1:] for row in scores.table()])
    assert table == near(np.array(each)[:, :, 0])
    if width > 1:
        assert value_of(found, "macro_f1") == near(peer.f1_score(gold, predicted, average="macro", zero_division=0))


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), st.integers(3, 40), st.sampled_from([0, 1, 8]), st.sampled_from([0.0, 2000.0]))
def test_numbers_as_scipy(seed: int, n: int, digits: int, offset: float) -> None:
    """Rounded to few digits there are ties; far from 0 there is little left of a difference."""
    random = np.random.default_rng(seed)
    gold = np.round(random.normal(size=n), digits) + offset
    predicted = np.round(random.normal(size=n) + gold, digits)
    if len(set(gold)) < 2 or len(set(predicted)) < 2:
        return
    scores = RegressionMetrics()
    scores.add(predicted, gold)
    found = scores.result()
    assert value_of(found, "pearson") == near(stats.pearsonr(predicted, gold)[0], abs=1e-9)
    assert value_of(found, "spearman") == near(stats.spearmanr(predicted, gold)[0], abs=1e-9)
    assert value_of(found, "mse") == near(peer.mean_squared_error(gold, predicted))
    assert value_of(found, "mae") == near(peer.mean_absolute_error(gold, predicted))
    assert value_of(found, "r2") == near(peer.r2_score(gold, predicted), abs=1e-9)


def test_numbers_that_do_not_vary() -> None:
    for predicted, gold, r2 in (
        ([0.1] * 5, [1.0, 2, 3, 4, 5], None),
        ([0.1] * 5, [0.1] * 5, 1.0),
        ([1.0] * 5, [0.1] * 5, 0.0),
    ):
        scores = RegressionMetrics()
        scores.add(predicted, gold)
        found = scores.result()
        assert found["pearson"] == found["spearman"] == Score(0.0, 0.0, 0.0)
        assert value_of(found, "r2") == near(peer.r2_score(gold, predicted))
        assert r2 is None or found["r2"] == Score(r2, r2, r2)


def test_the_weights_are_poisson() -> None:
    counts = np.bincount(drawn(3, 1, 1_000_000).astype(int), minlength=9) / 1e6
    assert counts[:9] == near(stats.poisson.pmf(np.arange(9), 1), abs=2e-3)
    assert POISSON.mean() == near(1, abs=1e-4)
    assert (drawn(3, 1, 999) == drawn(3, 1, 10_000)[:999]).all()
    both = np.corrcoef([drawn(3, 1, 5000), drawn(3, 2, 5000), drawn(4, 1, 5000)])
    assert np.abs(both - np.eye(3)).max() < 0.06


def everything(random: np.random.Generator, n: int) -> dict[str, tuple[Any, Callable[[Any, int, int], None]]]:
    """One of each kind of scores, and how it takes in examples first to last."""
    classes = random.integers(0, 4, (2, n))
    labels = random.random((2, n, 3)) < 0.4
    numbers = random.normal(size=(2, n))
    tags = [[[str(t) for t in random.choice(["O", "B-X", "I-X", "B-Y", "I-Y"], 5)] for _ in range(n)] for _ in "pg"]
    words = [" ".join(random.choice(["red", "blue", "dog", "The"], 3)) for _ in range(n)]
    golds = [[words[(k * 7) % n]] * (k % 3) for k in range(n)]
    places = [None if k % 5 == 0 else int(k % 13) + 1 for k in range(n)]
    return {
        "classes": (ClassificationMetrics("abcd"), lambda s, a, b: s.add(classes[0, a:b], classes[1, a:b])),
        "labels": (MultiLabelMetrics("abc"), lambda s, a, b: s.add(labels[0, a:b], labels[1, a:b])),
        "numbers": (RegressionMetrics(), lambda s, a, b: s.add(numbers[0, a:b], numbers[1, a:b])),
        "entities": (EntityMetrics(), lambda s, a, b: s.add(tags[0][a:b], tags[1][a:b])),
        "tags": (TagMetrics(["O", "I-Y"]), lambda s, a, b: s.add(tags[0][a:b], tags[1][a:b])),
        "answers": (AnswerMetrics(), lambda s, a, b: [s.add(words[k], golds[k]) for k in range(a, b)][:0]),
        "ranking": (RankingMetrics(), lambda s, a, b: [s.add(place) for place in places[a:b]][:0]),
    }


def test_batches_do_not_matter() -> None:
    """To the last bit, across the borders of blocks, and with a result asked for in between."""
    n, found = 700, dict[str, Any]()
    for size in (700, 256, 37, 1):
        for name, (scores, add) in everything(np.random.default_rng(5), n).items():
            for first in range(0, n, size):
                add(scores, first, min(first + size, n))
                if first in (37 * 3, 256):
                    scores.result()
            result = (scores.result(), scores.table() if hasattr(scores, "table") else None)
            assert found.setdefault(name, result) == result, (name, size)
            assert all(score.low < score.value < score.high for score in result[0].values()), name


def test_another_seed_draws_another_interval_for_the_same_value() -> None:
    random = np.random.default_rng(0)
    predicted, gold = random.integers(0, 2, (2, 100))
    found = []
    for seed in (0, 1):
        scores = ClassificationMetrics("ab", seed=seed)
        scores.add(predicted, gold)
        found.append(scores.result()["accuracy"])
    assert found[0].value == found[1].value and found[0] != found[1]


@pytest.mark.parametrize("name", everything(np.random.default_rng(0), 4))
def test_one_example_says_next_to_nothing_and_none_nothing(name: str) -> None:
    scores, add = everything(np.random.default_rng(0), 4)[name]
    with pytest.raises(UserError, match="no example"):
        scores.result()
    add(scores, 0, 1)
    for score in scores.result().values():
        sure = score.low == score.value == score.high
        assert sure if score.value not in (0.0, 1.0) or name == "numbers" else score.high - score.low > 0.7


@pytest.mark.parametrize("rounds", [60, pytest.param(400, marks=pytest.mark.slow)])
def test_memory_does_not_grow_with_the_examples(rounds: int) -> None:
    random = np.random.default_rng(0)
    scores = ClassificationMetrics("abcde")

    def feed(times: int) -> None:
        for _ in range(times):
            scores.add(random.integers(0, 5, 500), random.integers(0, 5, 500))

    feed(20)
    tracemalloc.start()
    try:
        feed(20)
        tracemalloc.reset_peak()
        small = tracemalloc.get_traced_memory()
        feed(rounds)
        now, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert scores.sums.examples == 500 * (40 + rounds)
    assert now - small[0] < 50_000 and most < 8_000_000


def test_a_thousand_classes_and_25_000_examples() -> None:
    random = np.random.default_rng(0)
    predicted, gold = random.integers(0, 1000, (2, 25_000))
    begin = time.process_time()
    scores = ClassificationMetrics([str(number) for number in range(1000)])
    scores.add(predicted, gold)
    found = scores.result()
    assert time.process_time() - begin < 4  # about 0.8 s, 0.15 s with two classes
    assert found["macro_f1"].value == near(peer.f1_score(gold, predicted, average="macro"))


def test_the_interval_is_that_of_the_usual_formula() -> None:
    random = np.random.default_rng(0)
    right = random.random(4000) < 0.8
    scores = ClassificationMetrics("ab")
    scores.add(right, np.ones(4000))
    score = scores.result()["accuracy"]
    reach = 1.96 * (right.mean() * (1 - right.mean()) / 4000) ** 0.5
    assert (score.high - score.low) / 2 == near(reach, rel=0.15)
    assert interval(np.array([0.5, np.nan, 0.4, 0.6]), 9) == Score(0.5, near(0.405), near(0.595))


@pytest.mark.slow
def test_intervals_hold_the_truth_95_times_in_100() -> None:
    held = dict[str, int]()
    for trial in range(400):
        random = np.random.default_rng(trial)
        gold = random.integers(0, 2, 300)
        classes, numbers = ClassificationMetrics("ab", seed=trial), RegressionMetrics(seed=trial)
        classes.add(np.where(random.random(300) < 0.8, gold, 1 - gold), gold)
        x, noise = random.normal(size=(2, 300))
        numbers.add(0.6 * x + 0.8 * noise, x)
        found = {**classes.result(), **numbers.result()}
        truths = {"accuracy": 0.8, "macro_f1": 0.8, "mcc": 0.6, "f1": 0.8, "pearson": 0.6, "mse": 0.4**2 + 0.8**2}
        truths["spearman"] = 6 / np.pi * np.arcsin(0.6 / 2)
        for name, truth in truths.items():
            held[name] = held.get(name, 0) + (found[name].low <= truth <= found[name].high)
    assert all(0.915 < count / 400 < 0.98 for count in held.values()), held


@pytest.mark.parametrize("n", [2, 3, 5, 10, 31])
def test_several_seeds_as_scipy(n: int) -> None:
    values = np.random.default_rng(n).normal(size=n)
    low, high = stats.t.interval(0.95, n - 1, loc=values.mean(), scale=stats.sem(values))
    assert summarized(values.tolist()) == near((values.mean(), values.std(ddof=1), low, high), rel=1e-8)
    assert summarized([0.7]) == (0.7, 0.0, 0.7, 0.7)
    with pytest.raises(UserError, match="no value"):
        summarized([])


@given(st.lists(st.integers(0, 9)), st.integers(0, 5))
def test_the_worst_rows(values: list[int], most: int) -> None:
    worst = WorstRows(most)
    for place, value in enumerate(values):
        worst.add(value, {"place": place})
    expected = sorted(range(len(values)), key=lambda place: (-values[place], place))[:most]
    assert [row["place"] for row in worst.rows()] == expected


def test_what_is_not_a_number_is_worst() -> None:
    worst = WorstRows(2)
    for badness in (1.0, float("nan"), 3.0, 2.0):
        worst.add(badness, {"loss": badness})
    assert [str(row["loss"]) for row in worst.rows()] == ["nan", "3.0"]


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(UserError, match="2 predicted classes, but 1 true"):
        ClassificationMetrics("ab").add([0, 1], [0])
    with pytest.raises(UserError, match="there are 2 classes"):
        ClassificationMetrics("ab").add([0, 2], [0, 0])
    with pytest.raises(UserError, match="3 labels"):
        MultiLabelMetrics("abc").add([[True, False]], [[True, False]])
    with pytest.raises(UserError, match="1 predicted numbers"):
        RegressionMetrics().add([1.0], [])
    assert astuple(Score(1, 0, 2)) == (1, 0, 2)
