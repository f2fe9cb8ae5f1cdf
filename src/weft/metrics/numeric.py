"""Metrics of numbers and of text vectors: correlations, errors, agreement on near texts, ranks; with intervals."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import UserError
from weft.metrics.bootstrap import REPLICATES, Floats, MeanMetrics, Metrics, Ratios, Replicates, drawn, same_length

TINY = 1e-28  # the mean of equal numbers may miss them by a rounding: squared, that is no spread


def _correlation(x: Floats, y: Floats, weights: Floats) -> float:
    """Pearson's correlation of weighted pairs; not a number where one side does not vary."""
    n = weights.sum()
    if not n:
        return math.nan
    a, b = x - weights @ x / n, y - weights @ y / n
    spread_a, spread_b = weights @ (a * a), weights @ (b * b)
    if spread_a <= TINY * (weights @ (x * x)) or spread_b <= TINY * (weights @ (y * y)):
        return math.nan
    return float(np.clip(weights @ (a * b) / math.sqrt(spread_a * spread_b), -1, 1))


def ranks(values: NDArray[Any], weights: Floats | None = None) -> Floats:
    """The rank of each value (equal ones share the mean of theirs) when each counts `weights` times, or once."""
    groups = np.unique(values, return_inverse=True)[1] if weights is None else values
    sizes = np.bincount(groups, weights)
    return (np.cumsum(sizes) - (sizes - 1) / 2)[groups]


class RegressionMetrics(Metrics):
    """A number per example. All pairs are kept (16 bytes each), since ranks need all of them."""

    ranked = 200  # resamplings for spearman, the slow one

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.predicted, self.gold = array("d"), array("d")

    def add(self, predicted: Sequence[float] | NDArray[Any], gold: Sequence[float] | NDArray[Any]) -> None:
        """Take in the next examples."""
        same_length(predicted, gold, "numbers")
        self.predicted.frombytes(np.asarray(predicted, dtype=np.float64).tobytes())
        self.gold.frombytes(np.asarray(gold, dtype=np.float64).tobytes())

    def sampled(self) -> dict[str, Replicates]:
        """pearson, spearman, mse, mae, r2; the correlations are 0 where one side does not vary."""
        if not self.gold:
            raise UserError("no examples to score")
        p, g = np.array(self.predicted), np.array(self.gold)
        groups = [np.unique(values, return_inverse=True)[1] for values in (p, g)]
        distance = p - g
        squares, sizes = distance * distance, np.abs(distance)
        values = {name: np.full(REPLICATES + 1, math.nan) for name in ("pearson", "spearman", "mse", "mae", "r2")}
        for column in range(REPLICATES + 1):
            weights = drawn(self.seed, column, len(p)) if column else np.ones(len(p))
            if not (n := weights.sum()):
                continue
            lost, around = weights @ squares, g - weights @ g / n
            spread = weights @ (around * around)
            values["mse"][column], values["mae"][column] = lost / n, weights @ sizes / n
            values["r2"][column] = 1 - lost / spread if spread > TINY * (weights @ (g * g)) else math.nan
            values["pearson"][column] = _correlation(p, g, weights)
            if column <= self.ranked:
                values["spearman"][column] = _correlation(ranks(groups[0], weights), ranks(groups[1], weights), weights)
        if g.min() == g.max():  # as scikit-learn: no spread to explain
            values["r2"][:] = float(not squares.any())
        if p.min() == p.max() or g.min() == g.max():
            values |= {name: np.zeros(REPLICATES + 1) for name in ("pearson", "spearman")}
        return {name: Replicates(columns, len(p)) for name, columns in values.items()}


class SimilarityMetrics(Metrics):
    """Vectors of the same texts by two models, whose widths may differ; pairs of the first `max_texts` are compared."""

    def __init__(self, max_texts: int = 512, seed: int = 0) -> None:
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
        nearest, same, sizes = max(1, min(10, count // 10)), np.zeros(count), weights.sum(1)
        for number, rows in enumerate(zip(ours, theirs, strict=True)):
            orders = (np.argsort(-row, kind="stable") for row in rows)
            one, other = (set(order[order != number][:nearest].tolist()) for order in orders)
            same[number] = len(one & other) / nearest
        near = np.divide(weights @ same, sizes, out=np.full(len(sizes), math.nan), where=sizes > 0)
        ranked = np.zeros((2, count, count))
        for place, each in enumerate((ours, theirs)):
            ranked[place][pairs] = ranks(each[pairs])
        ranked += ranked.transpose(0, 2, 1)
        spearman, pearson = (_correlations(one, other, weights) for one, other in (ranked, (ours, theirs)))
        values = {"spearman": spearman, "pearson": pearson, "neighbors": near}
        return {name: Replicates(columns, count) for name, columns in values.items()}


def _cosines(vectors: Sequence[NDArray[Any]]) -> Floats:
    """n n, 0 between a text and itself."""
    rows = np.stack(vectors)
    rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    cosines = rows @ rows.T
    np.fill_diagonal(cosines, 0.0)
    return cosines


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


class RankingMetrics(MeanMetrics):
    """mrr (the mean of 1 / rank), ndcg and recall within the first `at`, and recall@1, where one text is right."""

    def __init__(self, at: int = 10, seed: int = 0) -> None:
        super().__init__(("mrr", f"ndcg@{at}", "recall@1", f"recall@{at}"), seed)
        self.at = at

    def add(self, place: int | None) -> None:
        """Take in the rank of the right text of the next question, from 1; None where it is not among the results."""
        if place is not None and place < 1:
            raise UserError(f"place {place}: the first place is 1")
        rank = math.inf if place is None else place
        near = rank <= self.at
        # One text is right, so the best possible gain is 1 and needs no dividing by.
        self.add_values(np.array([[1 / rank], [near / math.log2(1 + rank)], [rank <= 1], [near]], dtype=np.float64))


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
