"""TF-IDF: texts as weighted bags of words and pairs of words, as scikit-learn's `TfidfVectorizer` makes them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WORD = re.compile(r"\w\w+")
MAX_TERMS = 50_000  # terms; the most frequent ones stay


@dataclass(frozen=True)
class SparseRows:
    """Sparse rows: row r has the columns[starts[r]:starts[r + 1]], each with its value; rows have length 1."""

    columns: NDArray[np.int64]
    values: NDArray[np.float64]
    starts: NDArray[np.int64]  # one more than there are rows


class Tfidf:
    """The terms of some texts, each with its inverse document frequency."""

    def __init__(self, texts: Sequence[tuple[str, ...]], max_terms: int = MAX_TERMS) -> None:
        frequencies: Counter[str] = Counter()
        for parts in texts:
            frequencies.update(set(_terms(parts)))
        terms = [term for term, _ in frequencies.most_common(max_terms)]
        self.all_terms = len(frequencies)
        self.numbers = {term: number for number, term in enumerate(terms)}
        counts = np.array([frequencies[term] for term in terms], dtype=np.float64)
        self.weights = np.log((1 + len(texts)) / (1 + counts)) + 1

    def bags(self, texts: Sequence[tuple[str, ...]]) -> SparseRows:
        """The texts by these terms; what is not among them is left out."""
        columns, values, starts = list[NDArray[np.int64]](), list[NDArray[np.float64]](), [0]
        for parts in texts:
            counts = Counter(self.numbers[term] for term in _terms(parts) if term in self.numbers)
            places = np.fromiter(counts.keys(), dtype=np.int64, count=len(counts))
            amounts = 1 + np.log(np.fromiter(counts.values(), dtype=np.float64, count=len(counts)))
            amounts *= self.weights[places]
            length = np.sqrt((amounts * amounts).sum())
            columns.append(places)
            values.append(amounts / length if length else amounts)
            starts.append(starts[-1] + len(places))
        return SparseRows(np.concatenate(columns), np.concatenate(values), np.array(starts, dtype=np.int64))


def _terms(parts: tuple[str, ...]) -> Iterator[str]:
    """Words and pairs of neighboring words; those of a second text are terms of their own."""
    for place, text in enumerate(parts):
        mark = "\t" * place  # no word has one
        words = WORD.findall(text.lower())
        yield from (mark + word for word in words)
        yield from (f"{mark}{first} {second}" for first, second in zip(words, words[1:], strict=False))
