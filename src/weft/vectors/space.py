"""Words and their vectors: near words, analogies and odd ones out; evaluation; a map between two languages.

n: words; d: width; q: questions.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.data.chance import key_of, uniform
from weft.errors import UserError, listed, one_of, refuse, shown
from weft.metrics.bootstrap import Score, Z
from weft.metrics.numeric import RegressionMetrics
from weft.text.sources import open_sources, read_lines
from weft.text.tokenizers.training import UNKNOWN

Floats = NDArray[np.float32]
Pairs = Sequence[tuple[str, str]]
TINY = 1e-12
TOGETHER = 256  # questions whose scores with all words are held at once
SPELLINGS = 50_000  # words among which near spellings are looked for; the frequent ones come first


class Near(NamedTuple):
    """A word and how near it is."""

    word: str
    score: float


Analogy = tuple[str, str, str, str]  # the first is to the second as the third is to the last


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

    @cached_property
    def unit(self) -> Floats:
        """n d: each vector made 1 long."""
        return unit(self.matrix)

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
        some = [other for other in self.words[:SPELLINGS] if abs(len(other) - len(word)) <= 2]
        spellings = difflib.get_close_matches(word.lower()[:100], some, n=3, cutoff=0.7)
        like = f"; spelled like it: {listed(spellings)}" if spellings else ""
        raise UserError(f"{shown(word)!r} is not among the {len(self):,} words of {self.name}{like}")

    def vector(self, word: str) -> Floats:
        return self.matrix[self.place(word)]

    def cosine(self, first: str, second: str) -> float:
        """How alike two words are, from -1 to 1."""
        a, b = (self.unit[self.place(word)].astype(np.float64) for word in (first, second))
        return float(np.clip(a @ b, -1, 1))

    def near(self, word: str, top: int = 10) -> list[Near]:
        """The words nearest to one, itself left out."""
        place = self.place(word)
        return self._best(self.unit @ unit(self.matrix[place]), top, (place,))

    def _best(self, scores: Floats, top: int, without: Iterable[int]) -> list[Near]:
        if top < 1:
            raise UserError(f"top must be at least 1, not {top}")
        scores[list(without)] = -np.inf
        order = np.argsort(-scores, kind="stable")[:top]
        return [Near(self.words[place], float(scores[place])) for place in order if np.isfinite(scores[place])]

    def analogy(self, first: str, second: str, third: str, top: int = 10, multiply: bool = False) -> list[Near]:
        """first - second + third, the three themselves left out; multiply: 3CosMul (Levy and Goldberg, 2014)."""
        a, b, c = (self.place(word) for word in (first, second, third))
        return self._best(next(self.analogies(np.array([(b, a, c)]), multiply))[0], top, (a, b, c))

    def analogies(self, questions: NDArray[np.int64], multiply: bool) -> Iterator[Floats]:
        """Scores of all words (q n) as what is to the third word as the second is to the first, some at a time."""
        for begin in range(0, len(questions), TOGETHER):
            a, b, c = questions[begin : begin + TOGETHER].T
            if multiply:
                # Cosines moved to 0 .. 1, so that products keep their order.
                like = [(self.unit[places] @ self.unit.T + 1) / 2 for places in (a, b, c)]
                yield like[1] * like[2] / (like[0] + 1e-3)
            else:
                wanted = self.unit[b] - self.unit[a] + self.unit[c]
                yield unit(wanted) @ self.unit.T

    def odd(self, words: Sequence[str]) -> list[Near]:
        """The words with how near each is to the mean of the others, the odd one first."""
        if len(words) < 3:
            raise UserError(f"the odd word out needs at least three words, not {len(words)}")
        rows = self.unit[[self.place(word) for word in words]].astype(np.float64)
        rest = unit(((rows.sum(0) - rows) / (len(rows) - 1)).astype(np.float32))
        scores = zip(words, (rest * rows).sum(1).tolist(), strict=True)
        return sorted((Near(*pair) for pair in scores), key=lambda near: near.score)


# ------------------------------ evaluation by human scores of pairs (WordSim-353, SimLex-999, MEN) and by analogies


@dataclass(frozen=True)
class WordScores:
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
        missing = f"{len(self.missing):,} word{' is' if len(self.missing) == 1 else 's are'} missing"
        words = listed([shown(word, 30) for word in self.missing])
        return f"{self.name}: {self.asked - self.used:,} of {self.asked:,} left out, since {missing}: {words}"


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
                sections.setdefault(section, []).append((fields[0], fields[1], fields[2], fields[3]))
            elif len(fields) >= 3 and _number(fields[2]) is not None:
                pairs.append((fields[0], fields[1], float(fields[2])))
            elif number > 1:  # the first line may name the columns
                raise UserError(
                    f"{source.name} line {number}: neither two words and a score nor four words: {shown(text, 40)!r}"
                )
    refuse(
        (bool(pairs and sections), f"{path}: holds both pairs with scores and analogies"),
        (not pairs and not sections, f"{path}: holds neither pairs of words with scores nor analogies"),
    )
    return Questions(name, pairs, sections)


def _number(field: str) -> float | None:
    try:
        number = float(field)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def evaluate(space: WordSpace, questions: Questions, multiply: bool = False) -> list[WordScores]:
    """Spearman's correlation of cosines with human scores, or the accuracy of each section and of all."""

    def missing(words: Iterable[str]) -> tuple[str, ...]:
        return tuple(word for word in dict.fromkeys(words) if word not in space)

    name, pairs = questions.name, questions.pairs
    if pairs:
        there = [pair for pair in pairs if pair[0] in space and pair[1] in space]
        if len(there) < 2:
            raise UserError(f"{name}: only {len(there)} of {len(pairs)} pairs are among the words")
        numbers = RegressionMetrics()
        numbers.add([space.cosine(first, second) for first, second, _ in there], [score for _, _, score in there])
        lost = missing(word for first, second, _ in pairs for word in (first, second))
        return [WordScores(name, "spearman", numbers.result()["spearman"], len(there), len(pairs), lost)]
    parts, right = list[WordScores](), 0
    for section, asked in questions.sections.items():
        known = [analogy for analogy in asked if all(word in space for word in analogy)]
        places = np.array([[space.place(word) for word in analogy] for analogy in known]).reshape(-1, 4)
        done = count = 0
        for scores in space.analogies(places[:, :3], multiply):
            *given, answers = places[done : done + len(scores)].T
            for column in given:  # the words of the question are no answer to it
                scores[np.arange(len(scores)), column] = -np.inf
            count += int((scores.argmax(1) == answers).sum())
            done += len(scores)
        lost = missing(word for analogy in asked for word in analogy)
        parts.append(WordScores(section, "accuracy", wilson(count, len(known)), len(known), len(asked), lost, True))
        right += count
    if len(parts) == 1:
        return [replace(parts[0], part=False)]
    used, total = sum(part.used for part in parts), sum(part.asked for part in parts)
    lost = tuple(dict.fromkeys(word for part in parts for word in part.missing))
    return [*parts, WordScores(name, "accuracy", wilson(right, used), used, total, lost)]


def wilson(right: int, asked: int) -> Score:
    """A share and Wilson's interval of it; nothing asked is nothing right, of which nothing is known."""
    if not asked:
        return Score(0.0, 0.0, 1.0)
    share = right / asked
    middle = (share + Z**2 / (2 * asked)) / (1 + Z**2 / asked)
    reach = Z / (1 + Z**2 / asked) * math.sqrt(share * (1 - share) / asked + Z**2 / (4 * asked**2))
    return Score(share, max(0.0, middle - reach), min(1.0, middle + reach))


# -------------- from one language's vectors into another's: the rotation that brings known pairs together (Procrustes)
# s, t: numbers of a source and of a target vector; p: pairs; q: words asked for; n: words of the target.

NEIGHBORS = 10  # whose nearness CSLS takes off
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

    at_1: Score
    at_5: Score
    asked: int


class Map:
    """A rotation from a source to a target, and the search for words behind it."""

    def __init__(
        self, source: WordSpace, target: WordSpace, matrix: Floats, before: PreparedVectors, after: PreparedVectors
    ) -> None:
        self.source, self.target, self.matrix = source, target, matrix
        self.before, self.after = before, after

    @staticmethod
    def learn(source: WordSpace, target: WordSpace, pairs: Pairs, normalize: bool = True, center: bool = True) -> Map:
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

    @cached_property
    def rows(self) -> Floats:
        """n t: the target's words, ready to be compared."""
        return unit(self.after(self.target.matrix))

    @cached_property
    def hubs(self) -> Floats:
        """n: how near each target word is to its nearest images; what is near to everything is a poor answer."""
        return _nearness(self.rows, self.images(self.source.matrix[:HUBS]))

    def scores(self, vectors: Floats, retrieval: str) -> Floats:
        """q n: how well each word of the target fits; CSLS as Conneau et al. (2018) have it."""
        one_of(retrieval, RETRIEVALS, "retrieval")
        images = self.images(vectors)
        cosines = images @ self.rows.T
        if retrieval == "cosine":
            return cosines
        return 2 * cosines - _nearness(images, self.rows[:HUBS])[:, None] - self.hubs[None]

    def near(self, word: str, top: int = 10, retrieval: str = "csls") -> list[Near]:
        """The target's words for a word of the source, by score."""
        return self.target._best(self.scores(self.source.vector(word)[None], retrieval)[0], top, ())

    def evaluate(self, pairs: Pairs, retrieval: str = "csls") -> Mapped:
        """Precision at 1 and at 5; a word with several translations is asked once, and any of them is right."""
        rights: dict[int, set[int]] = {}
        for word, translation in pairs:
            rights.setdefault(self.source.place(word), set()).add(self.target.place(translation))
        asked = list(rights)
        first = within = 0
        for begin in range(0, len(asked), HELD):
            some = asked[begin : begin + HELD]
            scores = self.scores(self.source.matrix[some], retrieval)
            for place, row in zip(some, np.argsort(-scores, axis=1, kind="stable")[:, :5].tolist(), strict=True):
                first += row[0] in rights[place]
                within += not rights[place].isdisjoint(row)
        return Mapped(wilson(first, len(asked)), wilson(within, len(asked)), len(asked))


def _nearness(rows: Floats, others: Floats) -> Floats:
    """The mean cosine of each row with the nearest of some others."""
    count = min(NEIGHBORS, len(others))
    cosines = (rows[begin : begin + HELD] @ others.T for begin in range(0, len(rows), HELD))
    return np.concatenate([np.partition(some, -count, axis=1)[:, -count:].mean(1) for some in cosines])


def split(pairs: Pairs, share: float, seed: int) -> tuple[list[Any], list[Any]]:
    """Pairs to learn from and pairs held out; all translations of a word are on one side."""
    words = list(dict.fromkeys(word for word, _ in pairs))
    drawn = uniform(key_of(seed, "held-out pairs"), np.arange(len(words)))
    out = {word for word, place in zip(words, drawn, strict=True) if place < share}
    return [pair for pair in pairs if pair[0] not in out], [pair for pair in pairs if pair[0] in out]
