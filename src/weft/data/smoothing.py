"""From n-gram counts to probabilities: of each n-gram's last word, and of words that were never seen there.

Each order becomes log probabilities and back-off weights: the probability of a word that is not listed after a context
is the context's weight times the word's probability after the context less its first word. Maximum likelihood and
add-k know no shorter context: their weights are the probability of each word that is not listed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.data.counts import NgramCounts, Numbers
from weft.ngrams import FLOOR

FALLBACK = (0.5, 1.0, 1.5)  # discounts where a text is too small to tell them, as lmplz has them
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class NgramTable:
    """The n-grams of one order that are stored."""

    keys: Numbers  # context * vocabulary + word, ascending
    logprobs: Floats
    backoffs: Floats  # logarithms: the weight of shorter contexts where this n-gram is the context


def tables(
    counts: NgramCounts,
    smoothing: str,
    k: float = 1.0,
    prune: Sequence[int] = (),
    silent: Sequence[int] = (),
    log: Callable[[str], None] = lambda text: None,
) -> list[NgramTable]:
    """The probabilities of all n-grams; those that occur no more often than `prune` says of their order are left out.

    `silent` are tokens that are never predicted: those that begin a document or fill rows up.
    """
    vocabulary, logprobs, backoffs, kept = counts.vocabulary, list[Floats](), list[Floats](), list[NDArray[np.bool_]]()
    predictable = np.ones(vocabulary, dtype=bool)
    predictable[list(silent)] = False
    lower = np.full(vocabulary, 1.0 / predictable.sum())  # below single words: all alike
    for order, grams in enumerate(counts.orders, 1):
        amounts = counts.adjusted(order) if smoothing == "kneser-ney" else grams.counts
        amounts = np.where(predictable, amounts, 0) if order == 1 else amounts
        contexts = grams.keys // vocabulary if order > 1 else np.zeros(vocabulary, dtype=np.int64)
        size = len(counts.orders[order - 2].keys) if order > 1 else 1
        minimum = prune[min(order, len(prune)) - 1] if prune else 0
        stay = (grams.counts > minimum) | (order == 1)
        totals = np.bincount(contexts, amounts, minlength=size)
        with np.errstate(divide="ignore", invalid="ignore"):  # contexts that nothing follows on
            if smoothing == "kneser-ney":
                taken = np.array([0.0, *_discounts(amounts, order, log)])[np.minimum(amounts, 3)]
                probabilities = np.where(stay, amounts - taken, 0.0) / totals[contexts]
                left = np.bincount(contexts, np.where(stay, taken, amounts), minlength=size) / totals
            elif smoothing == "witten-bell":
                kinds = np.bincount(contexts, amounts > 0, minlength=size)
                probabilities = np.where(stay, amounts, 0.0) / (totals + kinds)[contexts]
                left = (kinds + np.bincount(contexts, np.where(stay, 0, amounts), minlength=size)) / (totals + kinds)
            else:
                more = k if smoothing == "add-k" else 0.0
                whole = totals + more * predictable.sum()
                probabilities, left = (amounts + more) / whole[contexts], more / whole
        if smoothing == "maximum-likelihood":
            left = np.zeros(size)
        elif smoothing in ("kneser-ney", "witten-bell"):
            left = np.where(totals > 0, left, 1.0)
            probabilities = probabilities + left[contexts] * (lower if order == 1 else lower[grams.suffixes])
        probabilities = np.where(predictable, probabilities, 0.0) if order == 1 else probabilities
        if order > 1:
            backoffs.append(_logarithm(left))
        logprobs.append(_logarithm(probabilities))
        kept.append(stay)
        lower = probabilities
    backoffs.append(np.zeros(len(logprobs[-1])))
    return _stored(counts, logprobs, backoffs, kept)


def _stored(
    counts: NgramCounts, logprobs: list[Floats], backoffs: list[Floats], kept: list[NDArray[np.bool_]]
) -> list[NgramTable]:
    """The n-grams that are not pruned: contexts have new places."""
    tables, places = list[NgramTable](), np.arange(counts.vocabulary)
    for order, (grams, stay) in enumerate(zip(counts.orders, kept, strict=True), 1):
        keys = grams.keys[stay]
        if order > 1:
            keys = places[keys // counts.vocabulary] * counts.vocabulary + keys % counts.vocabulary
        # No n-gram occurs more often than its context, so what stays has a context that stays.
        tables.append(NgramTable(keys, logprobs[order - 1][stay], backoffs[order - 1][stay]))
        places = np.cumsum(stay) - 1
    return tables


def _logarithm(probabilities: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.maximum(np.log(probabilities), FLOOR)


def _discounts(amounts: Numbers, order: int, log: Callable[[str], None]) -> tuple[float, ...]:
    """What is taken from counts of 1, 2 and 3 or more (Chen and Goodman, 1998), from how many counts are 1, 2, 3, 4."""
    ones, twos, threes, fours = (int((amounts == number).sum()) for number in (1, 2, 3, 4))
    if ones and twos and threes:
        share = ones / (ones + 2 * twos)
        discounts = tuple(
            number - (number + 1) * share * more / these
            for number, these, more in ((1, ones, twos), (2, twos, threes), (3, threes, fours))
        )
        if all(0 <= amount <= number for number, amount in enumerate(discounts, 1)):
            return discounts
    log(
        f"weft: note: too few counts of order {order} to tell Kneser-Ney's discounts from them; "
        f"{', '.join(map(str, FALLBACK))} are taken"
    )
    return FALLBACK
