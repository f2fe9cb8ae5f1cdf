"""Judge word vectors by what people say of pairs (WordSim-353, SimLex-999, MEN) and by analogies (Google's)."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from weft.errors import UserError, listed, shown
from weft.metrics.bootstrap import Score, Z
from weft.metrics.regression import RegressionMetrics
from weft.text.sources import open_sources, read_lines
from weft.vectors.space import Analogy, WordSpace


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
