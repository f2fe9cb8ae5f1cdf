"""n-grams in sorted arrays: where one stands, many at a time or one alone.

An n-gram is one number: the place of its context among those of one order less, times the vocabulary, plus its last
word. n: n-grams that are looked up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

FLOOR = -99.0 * math.log(10.0)  # a log-probability as good as never; the lowest of an ARPA file


def find(keys: Tensor, wanted: Tensor) -> Tensor:
    """The place of each key, -1 where there is none."""
    if not len(keys):
        return torch.full_like(wanted, -1)
    places = torch.searchsorted(keys, wanted).clamp_(max=len(keys) - 1)
    return torch.where(keys[places] == wanted, places, -1)


def unsound(tables: Mapping[str, Tensor], vocabulary: int) -> list[str]:
    """The tables of keys that no counting makes: not in order, or with contexts that are not there."""
    names = []
    for name, keys in tables.items():
        kind, _, order = name.partition("_")
        if kind == "keys":
            most = len(tables[f"chances_{int(order) - 1}"]) * vocabulary
            inside = not len(keys) or 0 <= int(keys[0]) <= int(keys[-1]) < most
            if not inside or not bool((keys.diff() > 0).all()):
                names.append(name)
    return names


def walk(tables: Sequence[Tensor], vocabulary: int, tokens: Tensor) -> Tensor:
    """n L -> n: the place of each row among the n-grams of order L, -1 where it is none; tables from order 2."""
    ends = torch.full_like(tokens[:, 0], -1)
    rows = (tokens[:, 0] >= 0).nonzero()[:, 0]
    places = tokens[rows, 0]
    for column in range(1, tokens.shape[1]):
        places = find(tables[column - 1], places * vocabulary + tokens[rows, column])
        left = places >= 0  # most long contexts were never seen: they need not be looked for any further
        rows, places = rows[left], places[left]
    ends[rows] = places
    return ends


def put_listed(scores: Tensor, keys: Tensor, chances: Tensor, vocabulary: int, contexts: Tensor) -> None:
    """Put the log-probabilities that are listed after each context into the scores (n V)."""
    asked = (contexts >= 0).nonzero()[:, 0]
    first = torch.searchsorted(keys, contexts[asked] * vocabulary)
    counts = torch.searchsorted(keys, (contexts[asked] + 1) * vocabulary) - first
    which = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
    places = first[which] + torch.arange(len(which), device=which.device) - (counts.cumsum(0) - counts)[which]
    scores[asked[which], keys[places] % vocabulary] = chances[places].double()


class Flat(NamedTuple):
    """The tables as Python reads them one number at a time: a list for each kind, by order; empty where there is none.

    Views of numbers in memory give Python's own, which arrays and tensors wrap; arrays search.
    """

    keys: list[NDArray[np.int64]]
    words: list[memoryview]  # the numbers in `keys`
    chances: list[memoryview]
    backs: list[memoryview]

    @staticmethod
    def of(buffers: Mapping[str, Tensor], orders: int) -> Flat:
        def arrays(kind: str, dtype: torch.dtype) -> list[NDArray[Any]]:
            none = torch.empty(0)
            return [buffers.get(f"{kind}_{order}", none).to(dtype).numpy() for order in range(orders + 1)]

        keys, chances, backs = (
            arrays("keys", torch.int64),
            arrays("chances", torch.float64),
            arrays("backs", torch.float64),
        )
        return Flat(keys, *([array.data for array in table] for table in (keys, chances, backs)))

    def find(self, order: int, wanted: int) -> int:
        """The place of one n-gram of this order, -1 where there is none."""
        words = self.words[order]
        place = int(self.keys[order].searchsorted(wanted))
        return place if place < len(words) and words[place] == wanted else -1

    def walk(self, vocabulary: int, tokens: Sequence[int]) -> int:
        """The place of some tokens among the n-grams of their order, -1 where they are none."""
        place, order = tokens[0], 1
        for token in tokens[1:]:
            order += 1
            place = self.find(order, place * vocabulary + token)
            if place < 0:
                break
        return place


def score_one(
    tables: Flat, vocabulary: int, context: Sequence[int], word: int, unseen: float | None, silent: Sequence[int]
) -> float:
    """The log-probability of one word after one context, without the overhead of many.

    `unseen`: of a word after a context that was never seen, where no shorter one is asked.
    """
    score: float = tables.chances[1][word]
    lengths = range(1, len(context) + 1)
    if unseen is not None and context:
        score, lengths = (FLOOR if word in silent else unseen), lengths[-1:]
    for length in lengths:
        place = tables.walk(vocabulary, context[-length:])
        if place < 0:
            continue
        listed = tables.find(length + 1, place * vocabulary + word)
        if listed >= 0:
            score = tables.chances[length + 1][listed]
        elif unseen is None:  # the shorter context has the word, the longer one says how much that counts
            score += tables.backs[length][place]
        elif word not in silent:
            score = tables.backs[length][place]
    return score
