"""Metrics of text vectors: agreement of two models on which texts are near, and ranks in a search; with intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import UserError
from weft.metrics.bootstrap import REPLICATES, Floats, MeanMetrics, Metrics, Ratios, Replicates, drawn
from weft.metrics.regression import RegressionMetrics, ranks

MAX_TEXTS = 512  # texts whose pairs are compared: 130,816 of them


class SimilarityMetrics(Metrics):
    """Vectors of the same texts by two models, whose widths may differ; the first `max_texts` texts are compared."""

    def __init__(self, max_texts: int = MAX_TEXTS, seed: int = 0) -> None:
        self.max_texts, self.seed = max_texts, seed
        self.predicted, self.gold = list[NDArray[Any]](), list[NDArray[Any]]()

    def add(self, predicted: Sequence[float] | NDArray[Any], gold: Sequence[float] | NDArray[Any]) -> None:
        """Take in the next text: its vector by the one and by the other."""
        if len(self.gold) < self.max_texts:
            self.predicted.append(np.asarray(predicted, dtype=np.float64))
            self.gold.append(np.asarray(gold, dtype=np.float64))

    def sampled(self) -> dict[str, Replicates]:
        """spearman and pearson of the cosines of all pairs; neighbors: the share of nearest texts that are the same."""
        # Texts are resampled, not pairs: those of one text depend on each other. Ranks stay those of the whole.
        count = len(self.gold)
        if count < 3:
            raise UserError(f"similarities of texts need at least 3 texts, not {count}")
        ours, theirs = _cosines(self.predicted), _cosines(self.gold)
        pairs = np.triu_indices(count, 1)
        weights = np.ones((REPLICATES + 1, count))
        weights[1:] = drawn(self.seed, 0, REPLICATES * count).reshape(REPLICATES, count)
        same = _same_neighbors(ours, theirs, max(1, min(10, count // 10)))
        sizes = weights.sum(1)
        near = np.divide(weights @ same, sizes, out=np.full(len(sizes), math.nan), where=sizes > 0)
        rank, other = (_square(ranks(each[pairs]), pairs, count) for each in (ours, theirs))
        spearman, pearson = _correlations(rank, other, weights), _correlations(ours, theirs, weights)
        return {
            "spearman": Replicates(spearman, count),
            "pearson": Replicates(pearson, count),
            "neighbors": Replicates(near, count),
        }


def _cosines(vectors: Sequence[NDArray[Any]]) -> Floats:
    """n n, 0 between a text and itself."""
    all_of = np.stack(vectors)
    unit = all_of / np.maximum(np.linalg.norm(all_of, axis=1, keepdims=True), 1e-12)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, 0.0)
    return cosines


def _square(values: Floats, pairs: tuple[NDArray[Any], NDArray[Any]], count: int) -> Floats:
    upper = np.zeros((count, count))
    upper[pairs] = values
    return upper + upper.T


def _correlations(one: Floats, other: Floats, weights: Floats) -> Floats:
    """Pearson's correlation over all pairs of different texts, where text i counts weights[r, i] times."""

    def total(matrix: Floats) -> Floats:
        return np.einsum("ri,ri->r", weights @ matrix, weights)

    off = 1 - np.eye(len(one))
    n = total(off)
    # Around the middle of the whole, so that small differences are not lost; both matrices are 0 on the diagonal.
    a, b = ((each - each[off > 0].mean()) * off for each in (one, other))
    with np.errstate(invalid="ignore", divide="ignore"):
        mean_a, mean_b = total(a) / n, total(b) / n
        spread_a, spread_b = total(a * a) / n - mean_a**2, total(b * b) / n - mean_b**2
        correlations = (total(a * b) / n - mean_a * mean_b) / np.sqrt(spread_a * spread_b)
    if not spread_a[0] > 1e-24 or not spread_b[0] > 1e-24:  # one of them sees no difference between texts
        return np.zeros(len(weights))
    return np.clip(correlations, -1, 1)


def _same_neighbors(ours: Floats, theirs: Floats, nearest: int) -> Floats:
    """n: of each text's nearest others, the share that both have."""
    shares = np.zeros(len(ours))
    for number, rows in enumerate(zip(ours, theirs, strict=True)):
        orders = (np.argsort(-row, kind="stable") for row in rows)
        one, other = (set(order[order != number][:nearest].tolist()) for order in orders)
        shares[number] = len(one & other) / nearest
    return shares


class RankingMetrics(MeanMetrics):
    """mrr (the mean of 1 / rank), ndcg and recall within the first `at`, and recall@1, where one text is right."""

    def __init__(self, at: int = 10, seed: int = 0) -> None:
        super().__init__(("mrr", f"ndcg@{at}", "recall@1", f"recall@{at}"), seed)
        self.at = at

    def add(self, place: int | None) -> None:
        """Take in the rank of the right text of the next question, from 1; None where it is not among the results."""
        self.add_many([place])

    def add_many(self, places: Iterable[int | None]) -> None:
        """Take in the ranks of the right texts of the next questions."""
        places = list(places)
        if any(place is not None and place < 1 for place in places):
            raise UserError(f"place {min(p for p in places if p is not None)}: the first place is 1")
        place = np.array([math.inf if place is None else place for place in places], dtype=np.float64)
        # One text is right, so the best possible gain is 1 and needs no dividing by.
        near = place <= self.at
        self.add_values(np.stack([1 / place, near / np.log2(1 + place), place <= 1, near]))  # 4 n


class VectorAgreement(Metrics):
    """How alike the vectors of two models are: their cosine where they are equally wide, and their similarities."""

    def __init__(self) -> None:
        self.cosines = Ratios(["cosine"], shares=False)
        self.similarities = RegressionMetrics()
        self.before: tuple[NDArray[Any], NDArray[Any]] | None = None

    def add(self, vector: NDArray[Any], reference: NDArray[Any]) -> None:
        """Add the vectors of the next text; both models are asked how near it is to the one before."""
        self.cosines.add({"cosine": (cosine(vector, reference), 1.0)} if len(vector) == len(reference) else {})
        if self.before is not None:
            self.similarities.add([cosine(vector, self.before[0])], [cosine(reference, self.before[1])])
        self.before = (vector, reference)

    def sampled(self) -> dict[str, Replicates]:
        results = self.cosines.sampled()
        if len(self.similarities.gold) > 1:
            results["similarities"] = self.similarities.sampled()["pearson"]
        return results


def cosine(a: NDArray[Any], b: NDArray[Any]) -> float:
    """The cosine of two vectors; 0 where one is nothing."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / size if size else 0.0
