"""Words and their vectors, ready to be asked: which are near, what is to this as that is to those, which is odd.

n: words; d: width; q: questions.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.errors import UserError, listed, shown
from weft.text.tokenizers.training import UNKNOWN

Floats = NDArray[np.float32]
TINY = 1e-12
TOGETHER = 256  # questions whose scores with all words are held at once
SPELLINGS = 50_000  # words among which near spellings are looked for; the frequent ones come first


class Near(NamedTuple):
    """A word and how near it is."""

    word: str
    score: float


@dataclass(frozen=True)
class Analogy:
    """`first` is to `second` as `third` is to `right`."""

    first: str
    second: str
    third: str
    right: str


def unit(matrix: Floats) -> Floats:
    """Rows of length 1; a row of zeros stays."""
    length = np.linalg.norm(matrix.astype(np.float64), axis=-1, keepdims=True)
    return (matrix / np.maximum(length, TINY)).astype(np.float32)


class WordSpace:
    """Word vectors to ask; a word in capitals is looked up in small letters too."""

    def __init__(self, words: Sequence[str], matrix: Floats, name: str = "these vectors") -> None:
        """`name` is what messages call the vectors; the word for all unknown ones is no word here."""
        keep = [place for place, word in enumerate(words) if word != UNKNOWN]
        self.name = name
        self.words = [words[place] for place in keep]
        self.matrix = matrix if len(keep) == len(words) else matrix[keep]  # n d
        self.places = {word: place for place, word in enumerate(self.words)}
        self._unit: Floats | None = None

    @property
    def unit(self) -> Floats:
        """n d: each vector made 1 long."""
        if self._unit is None:
            self._unit = unit(self.matrix)
        return self._unit

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return self.find(word) is not None

    def find(self, word: str) -> int | None:
        """The place of a word; None where there is none."""
        place = self.places.get(word)
        return self.places.get(word.lower()) if place is None else place

    def place(self, word: str) -> int:
        """The place of a word, or a line that says what is spelled like it."""
        place = self.find(word)
        if place is not None:
            return place
        spellings = self.spelled_like(word)
        like = f"; spelled like it: {listed(spellings)}" if spellings else ""
        raise UserError(f"{shown(word)!r} is not among the {len(self):,} words of {self.name}{like}")

    def spelled_like(self, word: str, top: int = 3) -> list[str]:
        some = [other for other in self.words[:SPELLINGS] if abs(len(other) - len(word)) <= 2]
        return difflib.get_close_matches(word.lower()[:100], some, n=top, cutoff=0.7)

    def vector(self, word: str) -> Floats:
        return self.matrix[self.place(word)]

    def cosine(self, first: str, second: str) -> float:
        """How alike two words are, from -1 to 1."""
        a, b = (self.unit[self.place(word)].astype(np.float64) for word in (first, second))
        return float(np.clip(a @ b, -1, 1))

    def near(self, word: str, top: int = 10) -> list[Near]:
        """The words nearest to one, itself left out."""
        place = self.place(word)
        return self.near_vector(self.matrix[place], top, (place,))

    def near_vector(self, vector: Floats, top: int = 10, without: Iterable[int] = ()) -> list[Near]:
        """The words nearest to a vector by the cosine."""
        scores = self.unit @ unit(vector)
        return self._best(scores, top, without)

    def _best(self, scores: Floats, top: int, without: Iterable[int]) -> list[Near]:
        if top < 1:
            raise UserError(f"top must be at least 1, not {top}")
        scores[list(without)] = -np.inf
        order = np.argsort(-scores, kind="stable")[:top]
        return [Near(self.words[place], float(scores[place])) for place in order if np.isfinite(scores[place])]

    def analogy(self, first: str, second: str, third: str, top: int = 10, multiply: bool = False) -> list[Near]:
        """first - second + third, the three themselves left out; multiply: 3CosMul (Levy and Goldberg, 2014)."""
        a, b, c = (self.place(word) for word in (first, second, third))
        scores = next(self._analogies([(b, a, c)], multiply))[0]
        return self._best(scores, top, (a, b, c))

    def _analogies(self, questions: Sequence[tuple[int, int, int]], multiply: bool) -> Iterator[Floats]:
        """Scores of all words (q n) as what is to the third word as the second is to the first, some at a time."""
        for begin in range(0, len(questions), TOGETHER):
            a, b, c = np.array(questions[begin : begin + TOGETHER]).T
            if multiply:
                # Cosines moved to 0 .. 1, so that products keep their order.
                like = [(self.unit[places] @ self.unit.T + 1) / 2 for places in (a, b, c)]
                yield like[1] * like[2] / (like[0] + 1e-3)
            else:
                wanted = self.unit[b] - self.unit[a] + self.unit[c]
                yield unit(wanted) @ self.unit.T

    def solve(self, questions: Sequence[Analogy], multiply: bool = False) -> Iterator[bool]:
        """Whether each analogy comes out right, the words of the question left out; all its words must be there."""
        places = [tuple(self.place(word) for word in (q.first, q.second, q.third)) for q in questions]
        rights = [self.place(q.right) for q in questions]
        done = 0
        for scores in self._analogies(places, multiply):  # type: ignore[arg-type]
            rows = np.arange(len(scores))
            for column in zip(*places[done : done + len(scores)], strict=True):
                scores[rows, list(column)] = -np.inf
            yield from (bool(x) for x in scores.argmax(1) == rights[done : done + len(scores)])
            done += len(scores)

    def odd(self, words: Sequence[str]) -> list[Near]:
        """The words with how near each is to the mean of the others, the odd one first."""
        if len(words) < 3:
            raise UserError(f"the odd word out needs at least three words, not {len(words)}")
        rows = self.unit[[self.place(word) for word in words]].astype(np.float64)
        rest = unit(((rows.sum(0) - rows) / (len(rows) - 1)).astype(np.float32))
        scores = (rest * rows).sum(1)
        return sorted(
            (Near(word, float(score)) for word, score in zip(words, scores, strict=True)), key=lambda near: near.score
        )
