"""N-gram language models: counts of n-grams, and their smoothed probabilities.

An n-gram is a context (the n-gram of one order less, by its place among those) and a word; the two make one whole
number, so every order is one sorted array. Documents have a token before and one after them, and no n-gram lies across
two. Each order becomes log probabilities and back-off weights; maximum likelihood and add-k know no shorter context, so
their weights are the probability of each word that is not listed. V: vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.data.rows import Framed, Ids
from weft.ngrams import FLOOR

Log = Callable[[str], None]
CHUNK = 1 << 21  # tokens that are sorted at a time
Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Grams:
    """All n-grams of one order."""

    keys: Numbers  # context * V + word, ascending
    counts: Numbers  # how often each occurs
    suffixes: Numbers  # the place of each, less its first word, among those of one order less
    opening: NDArray[np.bool_]  # whether it begins with the token that begins a document


@dataclass(frozen=True)
class NgramCounts:
    """The n-grams of a text, by order."""

    vocabulary: int
    orders: Sequence[Grams]  # from 1; the first has every word of the vocabulary, also those that never occur
    tokens: int  # words and ends of documents: all that is predicted

    def adjusted(self, order: int) -> Numbers:
        """Kneser-Ney's counts: after how many words an n-gram stands; of the longest and the opening ones, all."""
        here = self.orders[order - 1]
        if order == len(self.orders):
            return here.counts
        after = np.bincount(self.orders[order].suffixes, minlength=len(here.keys)).astype(np.int64)
        return after if order == 1 else np.where(here.opening, here.counts, after)


def count(
    framed: Framed, order: int, vocabulary: int, start: int, progress: Callable[[int], None] = lambda more: None
) -> NgramCounts:
    """Count the n-grams of a text; `progress` gets numbers of tokens, once for each order, and may raise to stop."""
    size = framed.size
    tokens = np.empty(size, dtype=np.int32)
    room = np.empty(size, dtype=np.int8)  # tokens to the end of the document, as far as it matters
    for first in range(0, size, CHUNK):
        places = np.arange(first, min(size, first + CHUNK))
        tokens[places], numbers, _ = framed.read(places)
        room[places] = np.minimum(framed.starts[numbers + 1] - places, order)
        progress(len(places))
    predicted = np.ones(size, dtype=bool)
    predicted[framed.starts[:-1][np.diff(framed.starts) > 0]] = False  # what begins a document is given, not predicted
    counts = np.bincount(tokens[predicted], minlength=vocabulary).astype(np.int64)
    words = np.arange(vocabulary)
    orders = [Grams(words, counts, np.zeros(vocabulary, dtype=np.int64), words == start)]
    index = tokens.astype(np.int64)  # at each place, the n-gram of the latest order that begins there
    for length in range(2, order + 1):
        chunks, parts = [], list[tuple[Numbers, Numbers, Numbers]]()
        for first in range(0, len(tokens), CHUNK):
            places = first + np.flatnonzero(room[first : first + CHUNK] >= length)
            keys = index[places] * vocabulary + tokens[places + length - 1]
            keys, firsts, ranks, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
            parts.append((keys, counts, index[places[firsts] + 1]))
            index[places] = ranks  # of this chunk alone; the place after the last of them is not changed yet
            chunks.append(places)
            progress(min(CHUNK, len(tokens) - first))
        keys, counts, suffixes = (np.concatenate(some) for some in zip(*parts, strict=True))
        if len(parts) > 1:
            keys, firsts, inverse = np.unique(keys, return_index=True, return_inverse=True)
            counts = np.bincount(inverse, counts).astype(np.int64)
            suffixes, begin = suffixes[firsts], 0
            for places, part in zip(chunks, parts, strict=True):
                index[places] = inverse[begin : begin + len(part[0])][index[places]]
                begin += len(part[0])
        orders.append(Grams(keys, counts, suffixes, orders[-1].opening[keys // vocabulary]))
    return NgramCounts(vocabulary, orders, int(predicted.sum()))


FALLBACK = (0.5, 1.0, 1.5)  # discounts where a text is too small to estimate them, as lmplz has them
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class NgramTable:
    """The n-grams of one order that are stored."""

    keys: Numbers  # context * vocabulary + word, ascending
    logprobs: Floats
    backoffs: Floats  # logarithms: the weight of shorter contexts where this n-gram is the context


def tables(
    counts: NgramCounts, smoothing: str, k: float = 1.0, prune: Ids = (), silent: Ids = (), log: Log = lambda text: None
) -> list[NgramTable]:
    """The probabilities of all n-grams but those that occur at most `prune[order]` times; `silent`: never predicted."""
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
    stored, places = list[NgramTable](), np.zeros(1, dtype=np.int64)
    # No n-gram occurs more often than its context, so what stays has a context that stays, at a new place.
    for grams, stay, logprob, backoff in zip(counts.orders, kept, logprobs, backoffs, strict=True):
        keys = grams.keys[stay]
        keys = places[keys // vocabulary] * vocabulary + keys % vocabulary
        stored.append(NgramTable(keys, logprob[stay], backoff[stay]))
        places = np.cumsum(stay) - 1
    return stored


def _logarithm(probabilities: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.maximum(np.log(probabilities), FLOOR)


def _discounts(amounts: Numbers, order: int, log: Log) -> tuple[float, ...]:
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
    values = ", ".join(map(str, FALLBACK))
    log(f"weft: note: too few counts of order {order} to estimate Kneser-Ney's discounts; using {values}")
    return FALLBACK
