"""Documents into pairs of neighboring texts, for objectives that ask whether the second follows the first.

N: tokens; B: rows; D: documents.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from weft.data.chance import key_of, scrambled, uniform
from weft.data.rows import Drawn, ExampleSource, Ids, example_of, identity_of, starts_of
from weft.data.shards import Corpus, Places
from weft.errors import UserError

WINDOWS = 128  # of a run of documents that pairs are cut from


@dataclass(frozen=True)
class PairFrame:
    """The special tokens around and between two texts."""

    before: Ids
    between: Ids
    after: Ids

    @property
    def size(self) -> int:
        return len(self.before) + len(self.between) + len(self.after)


@dataclass(frozen=True)
class SentencePairs(ExampleSource):
    """Two neighboring runs of sentences from one document, for objectives that ask whether the second follows.

    In half of the examples it does not: for next-sentence prediction (Devlin et al., 2019) it comes from another
    document, for sentence order (Lan et al., 2020) the two change places.

    A window fills its row `across` document borders; its two texts then part inside a document where they can, so that
    the second truly goes on from the first.
    """

    corpus: Corpus
    frame: PairFrame
    length: int
    kind: str  # "next" or "order"
    seed: int
    across: bool = True

    @cached_property
    def _windows(self) -> tuple[Places, Places]:
        """Where each example's tokens begin and end: as many whole sentences as fit."""
        room = self.length - self.frame.size
        if room < 2:
            raise UserError(f"rows of {self.length} tokens have no room for a pair of texts")
        documents = np.asarray(self.corpus.documents)
        if self.across:  # long runs of documents, many of which are cut into windows at once
            every = np.arange(documents[0], documents[-1], WINDOWS * room)
            documents = np.r_[documents[np.unique(np.searchsorted(documents, every))], documents[-1]]
        sentences = self.corpus.sentences
        assert sentences is not None
        lengths = np.diff(documents)
        begin, end = documents[:-1][lengths >= 2], documents[1:][lengths >= 2]
        windows = []
        while len(begin):  # the next window of every document that is not at its end
            cut = sentences[np.searchsorted(sentences, begin + room, "right") - 1]
            cut = np.where(cut > begin + 1, cut, begin + room)  # a sentence that is too long is cut
            cut = np.where(end - begin <= room, end, cut)
            windows.append((begin, cut))
            begin, end = cut[cut < end], end[cut < end]
        if not windows:
            return documents[:0], documents[:0]
        begins, ends = (np.concatenate(parts) for parts in zip(*windows, strict=True))
        order = np.argsort(begins, kind="stable")
        enough = (ends - begins)[order] >= 2
        return begins[order][enough], ends[order][enough]

    @cached_property
    def count(self) -> int:
        if not len(self._windows[0]):
            raise UserError("the text has no document of two tokens or more, so there are no pairs")
        return len(self._windows[0])

    @property
    def mean(self) -> float:
        begins, ends = self._windows
        return float((ends - begins).mean()) + self.frame.size

    def lengths(self, numbers: Places) -> Places:
        begins, ends = self._windows
        return ends[numbers] - begins[numbers] + self.frame.size

    def draw(self, epochs: Places, numbers: Places) -> Drawn:
        begins, ends = self._windows
        chance = scrambled(key_of(self.seed, "pairs"), example_of(epochs, numbers))
        cuts = uniform(key_of(self.seed, "middle"), chance)
        others, elsewhere = (uniform(key_of(self.seed, word), chance) for word in ("other", "elsewhere"))
        follows = (chance & np.uint64(1)).astype(np.int64)
        before, between, after = (np.array(ids, dtype=np.int64) for ids in vars(self.frame).values())
        tokens, given, segments, sizes = [], [], [], []
        for place, number in enumerate(numbers):
            begin, end = int(begins[number]), int(ends[number])
            middle = self._middle(begin, end, float(cuts[place]))
            first, second = np.arange(begin, middle), np.arange(middle, end)
            if follows[place] and self.kind == "order":
                first, second = second, first
            elif follows[place]:
                other = self._other(float(others[place]), float(elsewhere[place]), begin, end, len(second))
                if other is None:  # the only document: there is nothing else to take
                    follows[place] = 0
                else:
                    second = other
            taken = self.corpus.take(np.r_[first, second])
            tokens += [before, taken[: len(first)], between, taken[len(first) :], after]
            border = len(before) + len(first) + len(between)  # here the second segment begins
            size = len(taken) + self.frame.size
            marks = np.ones(size, dtype=bool)
            marks[len(before) : len(before) + len(first)] = False
            marks[border : border + len(second)] = False
            given.append(marks)
            segments.append((np.arange(size) >= border).astype(np.int64))
            sizes.append(size)
        lengths = np.array(sizes)
        return Drawn(
            np.concatenate(tokens),
            starts_of(lengths),
            identity_of(epochs, numbers, lengths),
            np.concatenate(given),
            np.concatenate(segments),
            follows,
        )

    def _middle(self, begin: int, end: int, chance: float) -> int:
        """Where the first text ends: at a sentence border drawn by chance, or in the middle where there is none."""
        sentences = self.corpus.sentences
        assert sentences is not None
        borders = sentences[np.searchsorted(sentences, begin, "right") : np.searchsorted(sentences, end)]
        documents = self.corpus.documents
        inside = borders[documents[np.searchsorted(documents, borders)] != borders]
        borders = inside if len(inside) else borders
        return int(borders[int(chance * len(borders))]) if len(borders) else (begin + end) // 2

    def _other(self, which: float, where: float, begin: int, end: int, wanted: int) -> Places | None:
        """As many tokens of another document, from a sentence border on, as a true second text begins: neither its
        length nor its first words tell that it is another."""
        begins, ends = self._windows
        documents = self.corpus.documents
        # Where the documents begin and end that this example is of.
        mine = documents[np.searchsorted(documents, begin, "right") - 1], documents[np.searchsorted(documents, end)]
        first, last = np.searchsorted(ends, mine[0], "right"), np.searchsorted(begins, mine[1])
        others = self.count - int(last - first)
        if not others:
            return None
        number = int(which * others)
        number += int(last - first) if number >= first else 0
        start = self._middle(int(begins[number]), int(ends[number]), where)
        end = int(documents[-1 if self.across else np.searchsorted(documents, start, "right")])
        end = min(end, int(mine[0])) if start < mine[0] else end
        return np.arange(start, min(end, start + wanted))
