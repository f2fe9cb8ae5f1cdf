"""Words and their vectors, ready to be asked, judged and mapped: which words are near, what is to this as that is to
those, which is odd; what people say of pairs and analogies; and the way from one language's vectors into another's.

n: words; d: width; q: questions.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.data.chance import key_of, uniform
from weft.errors import UserError, listed, one_of, shown
from weft.metrics.bootstrap import Score, Z
from weft.metrics.regression import RegressionMetrics
from weft.text.sources import open_sources, read_lines
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


# ---------------------------------------------------------------------------------------------------------- judging
# By what people say of pairs (WordSim-353, SimLex-999, MEN) and by analogies (Google's).


@dataclass(frozen=True)
class Judged:
    """One set of pairs, or one section of analogies."""

    name: str
    measure: str  # spearman or accuracy
    score: Score
    used: int
    asked: int
    missing: tuple[str, ...]  # words that are not there, each once, in the order of the file
    part: bool = False  # one section of several

    def words(self) -> str:
        """What was left out, in one line; empty where nothing was."""
        if self.used == self.asked:
            return ""
        one = len(self.missing) == 1
        return (
            f"{self.name}: {self.asked - self.used:,} of {self.asked:,} left out, since {len(self.missing):,} "
            f"word{' is' if one else 's are'} missing: {listed([shown(word, 30) for word in self.missing])}"
        )


@dataclass(frozen=True)
class Questions:
    """What is in a file: pairs with the score that people gave, or analogies by section."""

    name: str
    pairs: list[tuple[str, str, float]]
    sections: dict[str, list[Analogy]]


def read_questions(path: Path) -> Questions:
    """A file of word pairs with scores (tabs, commas, semicolons or spaces between), or of analogies with `:` lines."""
    name = path.name
    for suffix in (".xz", ".gz", ".txt", ".tsv", ".csv"):
        name = name.removesuffix(suffix)
    pairs: list[tuple[str, str, float]] = []
    sections: dict[str, list[Analogy]] = {}
    for source in open_sources(path):
        section = name
        for number, text, fault in read_lines(source):
            if fault is not None:
                raise fault
            text = text.strip()
            if text.startswith(":"):
                section = text[1:].strip() or name
                continue
            if not text or text.startswith("#"):
                continue
            fields = [field.strip() for field in re.split(r"[\t,;]" if re.search(r"[\t,;]", text) else r"\s+", text)]
            if len(fields) == 4 and _number(fields[2]) is None:
                sections.setdefault(section, []).append(Analogy(*fields))
            elif len(fields) >= 3 and _number(fields[2]) is not None:
                pairs.append((fields[0], fields[1], float(fields[2])))
            elif number > 1:  # the first line may name the columns
                raise UserError(
                    f"{source.name} line {number}: neither two words and a score nor four words: {shown(text, 40)!r}"
                )
    if pairs and sections:
        raise UserError(f"{path}: holds both pairs with scores and analogies")
    if not pairs and not sections:
        raise UserError(f"{path}: holds neither pairs of words with scores nor analogies")
    return Questions(name, pairs, sections)


def _number(field: str) -> float | None:
    try:
        number = float(field)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def judge(space: WordSpace, questions: Questions, multiply: bool = False) -> list[Judged]:
    """Spearman's correlation of cosines with human scores, or the accuracy of each section and of all."""
    if questions.pairs:
        return [_pairs(space, questions)]
    sections = [_section(space, name, some, multiply) for name, some in questions.sections.items()]
    parts = [part for part, _ in sections]
    used, asked = sum(part.used for part in parts), sum(part.asked for part in parts)
    missing = tuple(dict.fromkeys(word for part in parts for word in part.missing))
    score = wilson(sum(right for _, right in sections), used)
    whole = Judged(questions.name, "accuracy", score, used, asked, missing)
    return [*(replace(part, part=True) for part in parts), whole] if len(parts) > 1 else parts


def _pairs(space: WordSpace, questions: Questions) -> Judged:
    missing = _missing(space, [word for first, second, _ in questions.pairs for word in (first, second)])
    there = [pair for pair in questions.pairs if pair[0] in space and pair[1] in space]
    if len(there) < 2:
        raise UserError(f"{questions.name}: only {len(there)} of {len(questions.pairs)} pairs are among the words")
    numbers = RegressionMetrics()
    numbers.add([space.cosine(first, second) for first, second, _ in there], [score for _, _, score in there])
    score = numbers.result()["spearman"]
    return Judged(questions.name, "spearman", score, len(there), len(questions.pairs), missing)


def _section(space: WordSpace, name: str, some: Sequence[Analogy], multiply: bool) -> tuple[Judged, int]:
    def words(one: Analogy) -> tuple[str, str, str, str]:
        return one.first, one.second, one.third, one.right

    missing = _missing(space, [word for one in some for word in words(one)])
    there = [one for one in some if all(word in space for word in words(one))]
    right = sum(space.solve(there, multiply))
    return Judged(name, "accuracy", wilson(right, len(there)), len(there), len(some), missing), right


def _missing(space: WordSpace, words: Sequence[str]) -> tuple[str, ...]:
    return tuple(word for word in dict.fromkeys(words) if word not in space)


def wilson(right: int, asked: int) -> Score:
    """A share and Wilson's interval of it; nothing asked is nothing right, of which nothing is known."""
    if not asked:
        return Score(0.0, 0.0, 1.0)
    share = right / asked
    middle = (share + Z**2 / (2 * asked)) / (1 + Z**2 / asked)
    reach = Z / (1 + Z**2 / asked) * math.sqrt(share * (1 - share) / asked + Z**2 / (4 * asked**2))
    return Score(share, max(0.0, middle - reach), min(1.0, middle + reach))


# ---------------------------------------------------------------------------------------------------------- mapping
# From one language's vectors into another's: the rotation that brings known pairs together (orthogonal Procrustes).
# s, t: numbers of a source and of a target vector; p: pairs; q: words asked for; n: words of the target.

NEIGHBOURS = 10  # whose nearness CSLS takes off
HUBS = 20_000  # words on either side among which they are looked for; the frequent ones come first
RETRIEVALS = ("csls", "cosine")
HELD = 1024  # words whose scores with all others are held at once


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
        for begin in range(0, len(asked), HELD):
            some = asked[begin : begin + HELD]
            scores = self.scores(self.source.matrix[some], retrieval)
            best = np.argsort(-scores, axis=1, kind="stable")[:, :5]
            first += sum(int(row[0]) in rights[word] for word, row in zip(some, best, strict=True))
            within += sum(bool(set(row.tolist()) & rights[word]) for word, row in zip(some, best, strict=True))
        return Mapped(wilson(first, len(asked)), wilson(within, len(asked)), len(asked))


def _nearness(rows: Floats, others: Floats) -> Floats:
    """The mean cosine of each row with the nearest of some others."""
    count = min(NEIGHBOURS, len(others))
    means = [
        np.partition(rows[begin : begin + HELD] @ others.T, -count, axis=1)[:, -count:].mean(1)
        for begin in range(0, len(rows), HELD)
    ]
    return np.concatenate(means)


def split(pairs: Sequence[tuple[str, str]], share: float, seed: int) -> tuple[list[Any], list[Any]]:
    """Pairs to learn from and pairs held out; all translations of a word are on one side."""
    words = list(dict.fromkeys(word for word, _ in pairs))
    drawn = uniform(key_of(seed, "held-out pairs"), np.arange(len(words)))
    out = {word for word, place in zip(words, drawn, strict=True) if place < share}
    return [pair for pair in pairs if pair[0] not in out], [pair for pair in pairs if pair[0] in out]
