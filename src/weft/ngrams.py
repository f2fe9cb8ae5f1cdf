"""n-grams in sorted arrays: where one stands, many at a time or one alone.

An n-gram is one number: the place of its context among those of one order less, times the vocabulary, plus its last
word. n: n-grams that are looked up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

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


def score_one(
    arrays: Mapping[str, NDArray[Any]],
    vocabulary: int,
    context: Sequence[int],
    word: int,
    unseen: float | None,
    silent: Sequence[int],
) -> float:
    """The log-probability of one word after one context, without the overhead of many.

    `unseen`: of a word after a context that was never seen, where no shorter one is asked.
    """
    known = [token for token in context if token >= 0]
    score, lengths = float(arrays["chances_1"][word]), range(1, len(known) + 1)
    if unseen is not None and known:
        score, lengths = (FLOOR if word in silent else unseen), lengths[-1:]
    for length in lengths:
        place = known[-length]
        for order, token in enumerate(known[len(known) - length + 1 :], 2):
            place = _find_one(arrays[f"keys_{order}"], place * vocabulary + token)
            if place < 0:
                break
        if place < 0:
            continue
        back = float(arrays[f"backs_{length}"][place]) if unseen is None or word not in silent else FLOOR
        listed = _find_one(arrays[f"keys_{length + 1}"], place * vocabulary + word)
        score = (
            back + (score if unseen is None else 0.0) if listed < 0 else float(arrays[f"chances_{length + 1}"][listed])
        )
    return score


def _find_one(keys: NDArray[Any], wanted: int) -> int:
    place = int(keys.searchsorted(wanted))
    return place if place < len(keys) and keys[place] == wanted else -1
