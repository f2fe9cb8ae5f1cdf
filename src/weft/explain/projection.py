"""Vectors in the plane, and how well groups of them are apart: PCA, t-SNE, UMAP, silhouettes, k-means."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import UserError, one_of

METHODS = ("pca", "tsne", "umap")
TITLES = {"pca": "PCA", "tsne": "t-SNE", "umap": "UMAP"}
STARTS, ROUNDS = 10, 100  # of k-means: the best of so many beginnings, each improved so often at most
Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]


def pca(vectors: Floats) -> tuple[Floats, float]:
    """n 2: the vectors along their two widest directions, and the share of their variance that is there."""
    centered = vectors.astype(np.float64) - vectors.mean(0)
    scale = np.abs(centered).max()
    if not scale > 0:
        return np.zeros((len(vectors), 2)), 1.0
    _, sizes, directions = np.linalg.svd(centered / scale, full_matrices=False)
    directions = directions[:2]
    # The sign of a direction is arbitrary: the largest number of each is made positive, so that pictures repeat.
    largest = directions[np.arange(len(directions)), np.abs(directions).argmax(1)]
    places = centered @ (directions * np.where(largest < 0, -1.0, 1.0)[:, None]).T
    places = np.pad(places, ((0, 0), (0, 2 - places.shape[1])))
    return places, float((sizes[:2] ** 2).sum() / (sizes**2).sum())


def projected(vectors: Floats, method: str, seed: int = 0) -> tuple[Floats, str]:
    """n 2 places by a method, and a note about them."""
    one_of(method, METHODS, "method")
    if method == "pca":
        places, share = pca(vectors)
        return places, f"The two directions hold {share:.0%} of the variance."
    if len(vectors) < 5:
        raise UserError(f"{TITLES[method]} needs at least 5 points, not {len(vectors)}; use --method pca")
    neighbors = max(2, min(15, len(vectors) // 3))
    model: Any
    if method == "tsne":
        manifold = _library("sklearn.manifold", "t-SNE needs scikit-learn: pip install 'weft[look]'")
        perplexity = min(30.0, (len(vectors) - 1) / 3)
        model = manifold.TSNE(2, perplexity=perplexity, init="pca", metric="cosine", random_state=seed)
    else:
        umap = _library("umap", "UMAP needs umap-learn: pip install umap-learn")
        model = umap.UMAP(n_components=2, n_neighbors=neighbors, metric="cosine", random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        places = np.asarray(model.fit_transform(vectors.astype(np.float32)), dtype=np.float64)
    return places, "Near points are alike; large distances and the sizes of clusters mean little."


def _library(name: str, message: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise UserError(f"{message}, or use --method pca") from None


def turned_onto(places: Floats, before: Floats) -> Floats:
    """The places turned or mirrored so that they lie near those before: the signs and order of axes are arbitrary."""
    left, _, right = np.linalg.svd((places - places.mean(0)).T @ (before - before.mean(0)))
    return (places - places.mean(0)) @ (left @ right)


def cosine_distances(vectors: Floats) -> Floats:
    """n n: 1 - cosine of every pair."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    rows = vectors / np.where(lengths > 0, lengths, 1.0)
    distances = np.clip(1 - rows @ rows.T, 0.0, 2.0)
    distances[distances < 1e-12] = 0.0  # equal vectors are equal, whatever the rounding of their lengths
    np.fill_diagonal(distances, 0.0)
    return distances


def silhouette(distances: Floats, groups: Numbers) -> float:
    """How much nearer points are to their own group than to the next (Rousseeuw, 1987): -1 to 1, 0 where all are equal.

    A group of one point counts as 0.
    """
    numbers, groups = np.unique(groups, return_inverse=True)
    if len(numbers) < 2:
        raise UserError("a silhouette needs at least two groups")
    members = np.eye(len(numbers))[groups]  # n g
    sizes = members.sum(0)
    sums = distances @ members  # n g: from each point to all of a group
    own = np.arange(len(groups)), groups
    inner = sums[own] / np.maximum(sizes[groups] - 1, 1)
    means = sums / sizes
    means[own] = np.inf
    outer = means.min(1)
    widest = np.maximum(inner, outer)
    values = np.divide(outer - inner, widest, out=np.zeros_like(widest), where=widest > 0)
    return float(np.where(sizes[groups] > 1, values, 0.0).mean())


def centroid_accuracy(vectors: Floats, groups: Numbers) -> float:
    """How often the nearest mean of a group, the point itself left out, is that of its own; ties count as a share."""
    numbers, groups = np.unique(groups, return_inverse=True)
    members = np.eye(len(numbers))[groups]
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    rows = vectors / np.where(lengths > 0, lengths, 1.0)
    sums, sizes = members.T @ rows, members.sum(0)  # g d
    right = 0.0
    for row, group in zip(rows, groups, strict=True):
        left = sizes - (np.arange(len(sizes)) == group)
        means = (sums - np.eye(len(sizes))[group][:, None] * row) / np.maximum(left, 1)[:, None]
        scores = means @ row / np.maximum(np.linalg.norm(means, axis=1), 1e-30)
        scores[left == 0] = -np.inf
        best = scores >= scores.max() - 1e-9
        right += best[group] / best.sum()
    return float(right / len(rows))


def kmeans(vectors: Floats, count: int, seed: int = 0) -> Numbers:
    """n: the cluster of each point, of so many, by cosine."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    rows = vectors / np.where(lengths > 0, lengths, 1.0)
    random = np.random.default_rng(seed)
    best, least = np.zeros(len(rows), dtype=np.int64), np.inf
    for _ in range(STARTS):
        centers = rows[[int(random.integers(len(rows)))]]
        while len(centers) < count:  # k-means++: a point far from all centers is likely to be the next one
            far = ((rows[:, None] - centers) ** 2).sum(-1).min(1)
            shares = far / far.sum() if far.sum() > 0 else np.full(len(rows), 1 / len(rows))
            centers = np.vstack([centers, rows[int(random.choice(len(rows), p=shares))]])
        groups = np.zeros(len(rows), dtype=np.int64)
        for _ in range(ROUNDS):
            far = ((rows[:, None] - centers) ** 2).sum(-1)
            new = far.argmin(1)
            members = np.eye(count)[new]
            sizes = members.sum(0)
            centers = np.where(sizes[:, None] > 0, members.T @ rows / np.maximum(sizes, 1)[:, None], centers)
            if (new == groups).all():
                break
            groups = new
        error = float(((rows - centers[groups]) ** 2).sum())
        if error < least - 1e-12:
            best, least = groups, error
    order = list(dict.fromkeys(best.tolist()))  # the first point is of cluster 0
    return np.array([order.index(group) for group in best.tolist()], dtype=np.int64)
