"""From one language's vectors into another's: the rotation that brings known pairs together (orthogonal Procrustes).

s, t: numbers of a source and of a target vector; p: pairs; q: words asked for; n: words of the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.data.chance import key_of, uniform
from weft.errors import UserError, one_of
from weft.vectors.judging import wilson
from weft.vectors.space import Floats, Near, WordSpace, unit

NEIGHBOURS = 10  # whose nearness CSLS takes off
HUBS = 20_000  # words on either side among which they are looked for; the frequent ones come first
RETRIEVALS = ("csls", "cosine")
TOGETHER = 1024


@dataclass(frozen=True)
class PreparedVectors:
    """How vectors are made ready: 1 long, the mean taken off, or neither; the same for words that come later."""

    normalize: bool
    mean: Floats  # d

    @staticmethod
    def of(space: WordSpace, normalize: bool, center: bool) -> PreparedVectors:
        rows = space.unit if normalize else space.matrix
        mean = rows[:HUBS].astype(np.float64).mean(0) if center else np.zeros(rows.shape[1])
        return PreparedVectors(normalize, mean.astype(np.float32))

    def __call__(self, rows: Floats) -> Floats:
        rows = (unit(rows) if self.normalize else rows) - self.mean
        return unit(rows) if self.normalize else rows


def procrustes(source: NDArray[Any], target: NDArray[Any]) -> NDArray[np.float64]:
    """s t: the matrix with orthonormal rows or columns that brings p s nearest to p t (Schoenemann, 1966)."""
    left, _, right = np.linalg.svd(source.T.astype(np.float64) @ target.astype(np.float64), full_matrices=False)
    return left @ right


@dataclass(frozen=True)
class Mapped:
    """Precision of held-out words: whether one of the right translations is among the first."""

    at_1: Any  # Score
    at_5: Any
    asked: int


class Map:
    """A rotation from a source to a target, and the search for words behind it."""

    def __init__(
        self, source: WordSpace, target: WordSpace, matrix: Floats, before: PreparedVectors, after: PreparedVectors
    ) -> None:
        self.source, self.target, self.matrix = source, target, matrix
        self.before, self.after = before, after
        self._rows: Floats | None = None
        self._hubs: Floats | None = None

    @staticmethod
    def learn(
        source: WordSpace,
        target: WordSpace,
        pairs: Sequence[tuple[str, str]],
        normalize: bool = True,
        center: bool = True,
    ) -> Map:
        """From pairs of words that mean the same; those that are not there are for the caller to leave out."""
        if len(pairs) < 2:
            raise UserError(f"{len(pairs)} pairs of words are too few to learn a map from")
        before, after = (PreparedVectors.of(space, normalize, center) for space in (source, target))
        rows = before(source.matrix[[source.place(word) for word, _ in pairs]])
        columns = after(target.matrix[[target.place(word) for _, word in pairs]])
        return Map(source, target, procrustes(rows, columns).astype(np.float32), before, after)

    def images(self, vectors: Floats) -> Floats:
        """q t: where source vectors come to lie, each 1 long."""
        return unit(self.before(vectors) @ self.matrix)

    @property
    def rows(self) -> Floats:
        """n t: the target's words, ready to be compared."""
        if self._rows is None:
            self._rows = unit(self.after(self.target.matrix))
        return self._rows

    @property
    def hubs(self) -> Floats:
        """n: how near each target word is to its nearest images; what is near to everything is a poor answer."""
        if self._hubs is None:
            images = self.images(self.source.matrix[:HUBS])
            self._hubs = _nearness(self.rows, images)
        return self._hubs

    def scores(self, vectors: Floats, retrieval: str) -> Floats:
        """q n: how well each word of the target fits; CSLS as Conneau et al. (2018) have it."""
        one_of(retrieval, RETRIEVALS, "retrieval")
        images = self.images(vectors)
        cosines = images @ self.rows.T
        if retrieval == "cosine":
            return cosines
        own = _nearness(images, self.rows[:HUBS])
        return 2 * cosines - own[:, None] - self.hubs[None]

    def near(self, word: str, top: int = 10, retrieval: str = "csls") -> list[Near]:
        """The target's words for a word of the source, by score."""
        scores = self.scores(self.source.vector(word)[None], retrieval)[0]
        return self.target._best(scores, top, ())

    def judge(self, pairs: Sequence[tuple[str, str]], retrieval: str = "csls") -> Mapped:
        """Precision at 1 and at 5; a word with several translations is asked once, and any of them is right."""
        rights: dict[int, set[int]] = {}
        for word, translation in pairs:
            rights.setdefault(self.source.place(word), set()).add(self.target.place(translation))
        asked = list(rights)
        first = within = 0
        for begin in range(0, len(asked), TOGETHER):
            some = asked[begin : begin + TOGETHER]
            scores = self.scores(self.source.matrix[some], retrieval)
            best = np.argsort(-scores, axis=1, kind="stable")[:, :5]
            first += sum(int(row[0]) in rights[word] for word, row in zip(some, best, strict=True))
            within += sum(bool(set(row.tolist()) & rights[word]) for word, row in zip(some, best, strict=True))
        return Mapped(wilson(first, len(asked)), wilson(within, len(asked)), len(asked))


def _nearness(rows: Floats, others: Floats) -> Floats:
    """The mean cosine of each row with the nearest of some others."""
    count = min(NEIGHBOURS, len(others))
    means = [
        np.partition(rows[begin : begin + TOGETHER] @ others.T, -count, axis=1)[:, -count:].mean(1)
        for begin in range(0, len(rows), TOGETHER)
    ]
    return np.concatenate(means)


def split(pairs: Sequence[tuple[str, str]], share: float, seed: int) -> tuple[list[Any], list[Any]]:
    """Pairs to learn from and pairs held out; all translations of a word are on one side."""
    words = list(dict.fromkeys(word for word, _ in pairs))
    drawn = uniform(key_of(seed, "held-out pairs"), np.arange(len(words)))
    out = {word for word, place in zip(words, drawn, strict=True) if place < share}
    return [pair for pair in pairs if pair[0] not in out], [pair for pair in pairs if pair[0] in out]
