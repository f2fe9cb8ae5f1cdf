"""How often each run of words occurs: n-grams of every order up to some, in sorted arrays.

An n-gram is a context (the n-gram of one order less, by its place among those) and a word; the two make one whole
number. So every order is one sorted array, all that follows on a context lies together, and a lookup is a binary
search. Documents have a token before and one after them, and no n-gram lies across two.

V: vocabulary; N: tokens, those around documents among them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.data.rows import Framed

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
        """Kneser-Ney's counts: after how many different words an n-gram stands; of the longest, how often it occurs.

        So too where it opens a document, since nothing can stand before.
        """
        here = self.orders[order - 1]
        if order == len(self.orders):
            return here.counts
        after = np.bincount(self.orders[order].suffixes, minlength=len(here.keys)).astype(np.int64)
        return after if order == 1 else np.where(here.opening, here.counts, after)


def count(
    framed: Framed, order: int, vocabulary: int, start: int, progress: Callable[[int], None] = lambda more: None
) -> NgramCounts:
    """Count the n-grams of a text; `progress` gets numbers of tokens, once for each order, and may raise to stop.

    What is held beside the result is a few numbers per token, and what sorting a chunk takes.
    """
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
        orders.append(_longer(tokens, room, index, length, vocabulary, orders[-1], progress))
    return NgramCounts(vocabulary, orders, int(predicted.sum()))


def _longer(
    tokens: NDArray[np.int32],
    room: NDArray[np.int8],
    index: Numbers,
    length: int,
    vocabulary: int,
    shorter: Grams,
    progress: Callable[[int], None],
) -> Grams:
    """The n-grams of one order more; `index` is changed to point at them."""
    chunks, parts = [], list[tuple[Numbers, Numbers, Numbers]]()
    for first in range(0, len(tokens), CHUNK):
        places = first + np.flatnonzero(room[first : first + CHUNK] >= length)
        keys = index[places] * vocabulary + tokens[places + length - 1]
        unique, firsts, inverse, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
        parts.append((unique, counts, index[places[firsts] + 1]))
        index[places] = inverse  # of this chunk alone; the place after the last of them is not changed yet
        chunks.append(places)
        progress(min(CHUNK, len(tokens) - first))
    keys, counts, suffixes = (np.concatenate(some) for some in zip(*parts, strict=True))
    if len(parts) > 1:
        several, keys_of_all = counts, keys
        keys, inverse = np.unique(keys_of_all, return_inverse=True)
        counts, others = np.zeros(len(keys), dtype=np.int64), suffixes
        np.add.at(counts, inverse, several)
        suffixes = np.empty(len(keys), dtype=np.int64)
        suffixes[inverse] = others
        begin = 0
        for places, part in zip(chunks, parts, strict=True):
            index[places] = inverse[begin : begin + len(part[0])][index[places]]
            begin += len(part[0])
    return Grams(keys, counts, suffixes, shorter.opening[keys // vocabulary])
