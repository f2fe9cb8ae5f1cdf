"""Text in several languages: how often each is read, sentence pairs, and rows of all of them mixed.

N: tokens; B: rows; P: pairs of texts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from weft.data.chance import key_of, shuffled
from weft.data.rows import Drawn, ExampleSource, flat, identity_of
from weft.data.shards import Corpus, Places, TextFiles
from weft.errors import UserError
from weft.text.records import good_rows
from weft.text.rows import Record, Rows, Skipped, check_length
from weft.text.sources import TextSource, known_encoding, open_sources, read_lines


@dataclass(frozen=True)
class PairFiles(TextFiles):
    """Files with a text and its translation on each line, a tab between them; what follows a second tab is not read."""

    languages: tuple[str, str] = ("", "")  # for messages, and a first line that names them

    def read(self, skipped: Skipped | None = None) -> Iterator[str]:
        """First texts and second texts by turns."""
        encoding = None if self.encoding is None else known_encoding(self.encoding)
        for path in self.paths():
            packed = path.suffix.lower() == ".zip"  # some of its files may be notes
            for source in open_sources(path):
                source = replace(source, encoding=encoding)
                rows = self._rows(source, packed)
                for record in good_rows(source, rows, self.on_bad_row, skipped or Skipped()):
                    yield from record.values["pair"]

    def _rows(self, source: TextSource, packed: bool) -> Rows:
        for number, text, fault in read_lines(source):
            if packed and number == 1 and "\t" not in text:
                return
            if fault or not text.strip():
                yield from [fault] if fault else []
                continue
            cells, where = text.split("\t"), f"{source.name} line {number}"
            pair = [cell.strip() for cell in cells[:2]]
            if len(pair) < 2:
                yield UserError(f"{where}: one column; a pair is two texts with a tab between them")
            elif not all(pair):
                side = self.languages[pair.index("")]
                yield UserError(f"{where}: the {side} text is empty")
            elif not (number == 1 and tuple(map(str.casefold, pair)) == tuple(map(str.casefold, self.languages))):
                check_length(text, where)
                yield Record({"pair": pair}, where)

    def hash(self) -> str:
        return hashlib.sha256(f"pairs {super().hash()}".encode()).hexdigest()


def split_pairs(corpus: Corpus, share: float) -> tuple[Corpus, Corpus]:
    """All but the last share of the pairs, and those."""
    pairs = (len(corpus.documents) - 1) // 2
    cut = 2 * (pairs - round(pairs * share))
    return tuple(replace(corpus, documents=part) for part in (corpus.documents[: cut + 1], corpus.documents[cut:]))  # type: ignore[return-value]


def borders_of(corpora: Sequence[Corpus]) -> Corpus:
    """The documents of several corpora one after the other, without their tokens: what is reported of all."""
    lengths = [np.diff(corpus.documents) for corpus in corpora]
    hashes = " ".join(corpus.hash for corpus in corpora)
    documents = np.r_[0, np.concatenate(lengths).cumsum()]
    return Corpus((), documents, None, hashlib.sha256(hashes.encode()).hexdigest()[:32])


def language_shares(sizes: Mapping[str, float], alpha: float) -> dict[str, float]:
    """How often each language is read: its share of the text to the power of alpha, so that a rare one is read more."""
    powers = {name: (size / sum(sizes.values())) ** alpha for name, size in sizes.items()}
    return {name: power / sum(powers.values()) for name, power in powers.items()}


def sampled_texts(texts: Mapping[str, Callable[[], Iterator[str]]], alpha: float) -> Iterator[str]:
    """The texts of several languages, each as often as its share asks for: what a vocabulary is learned from."""
    sizes = {name: sum(map(len, read())) for name, read in texts.items()}
    sizes = {name: size for name, size in sizes.items() if size}
    for name, share in language_shares(sizes, alpha).items():
        copies, due = share * sum(sizes.values()) / sizes[name], 0.0
        for text in texts[name]():
            due += copies
            while due >= 1:
                due -= 1
                yield text


@dataclass(frozen=True)
class InLanguage(ExampleSource):
    """The examples of a source, each of whose tokens is of one language."""

    source: ExampleSource
    language: int

    @property
    def count(self) -> int:
        return self.source.count

    @property
    def mean(self) -> float:
        return self.source.mean

    @property
    def even(self) -> bool:
        return self.source.even

    def lengths(self, numbers: Places) -> Places:
        return self.source.lengths(numbers)

    def draw(self, epochs: Places, numbers: Places) -> Drawn:
        drawn = self.source.draw(epochs, numbers)
        return replace(drawn, segments=np.full(len(drawn.tokens), self.language, dtype=np.int64))


@dataclass(frozen=True)
class PairFrame:
    """The special tokens before, between and after two texts, and how many of those between are of the first."""

    before: Sequence[int]
    between: Sequence[int]
    after: Sequence[int]
    closing: int

    @property
    def size(self) -> int:
        return len(self.before) + len(self.between) + len(self.after)


@dataclass(frozen=True)
class TranslationPairs(ExampleSource):
    """A text and its translation in one row (Conneau and Lample, 2019): what is masked in one may stand in the other.

    Of a pair that is too long, the end of the longer text is left out.
    """

    corpus: Corpus  # documents 2n and 2n + 1 are pair n
    frame: PairFrame
    length: int
    segments: tuple[int, int] | None  # of the two texts
    resets: bool  # positions are counted from 0 in each of them

    @cached_property
    def _sizes(self) -> NDArray[np.int64]:
        """P 2: tokens of each text, of those pairs that have some on both sides."""
        documents: Places = np.asarray(self.corpus.documents)
        return (documents[1:] - documents[:-1]).reshape(-1, 2)

    @cached_property
    def _numbers(self) -> Places:
        return np.flatnonzero((self._sizes > 0).all(1))

    @cached_property
    def truncated(self) -> int:
        """How many pairs are too long for a row."""
        return int((self._sizes[self._numbers].sum(1) > self.room).sum())

    @property
    def room(self) -> int:
        return self.length - self.frame.size

    @cached_property
    def count(self) -> int:
        if self.room < 2:
            raise UserError(f"rows of {self.length} tokens have no room for a pair of texts")
        if not len(self._numbers):
            raise UserError("there are no pairs of texts")
        return len(self._numbers)

    @cached_property
    def mean(self) -> float:
        return float(self.lengths(np.arange(self.count)).mean())

    def _fitted(self, numbers: Places) -> tuple[Places, Places]:
        """Tokens of the first and of the second text that are read."""
        first, second = self._sizes[self._numbers[numbers]].T
        first = np.minimum(first, np.maximum(self.room // 2, self.room - second))
        return first, np.minimum(second, self.room - first)

    def lengths(self, numbers: Places) -> Places:
        first, second = self._fitted(numbers)
        return first + second + self.frame.size

    def draw(self, epochs: Places, numbers: Places) -> Drawn:
        frame, (first, second) = self.frame, self._fitted(numbers)
        lengths = first + second + frame.size
        starts = np.r_[0, lengths.cumsum()]
        begins = np.asarray(self.corpus.documents)[2 * self._numbers[numbers][:, None] + [0, 1]]  # B 2
        sizes = np.stack([first, second], 1).ravel()
        border = starts[:-1] + len(frame.before) + first + frame.closing  # where the second text's own tokens begin
        runs = np.stack([starts[:-1] + len(frame.before), border + len(frame.between) - frame.closing], 1).ravel()
        inside = flat(runs, sizes)
        tokens, given = np.empty(starts[-1], dtype=np.int64), np.ones(starts[-1], dtype=bool)
        given[inside] = False
        tokens[inside] = self.corpus.take(flat(begins.ravel(), sizes))
        tokens[given] = np.tile([*frame.before, *frame.between, *frame.after], len(numbers))
        places = flat(np.zeros_like(lengths), lengths)
        later = places >= np.repeat(border - starts[:-1], lengths)
        drawn = Drawn(tokens, starts, identity_of(epochs, numbers, lengths), given)
        if self.segments is not None:
            drawn = replace(drawn, segments=np.where(later, self.segments[1], self.segments[0]).astype(np.int64))
        if self.resets:
            drawn = replace(drawn, positions=places - later * np.repeat(border - starts[:-1], lengths))
        return drawn


@dataclass(frozen=True)
class Mixture(ExampleSource):
    """Rows of several sources, of each as many as its share of the tokens asks for; an epoch has the tokens of all.

    In training a source whose share is large is read again sooner, and each time in another order. In evaluation
    (`shares` None) every row of every source is read once.
    """

    by_name: Mapping[str, ExampleSource]
    shares: Mapping[str, float] | None = None
    seed: int = 0

    @property
    def parts(self) -> Mapping[str, ExampleSource]:
        return self.by_name

    @cached_property
    def sources(self) -> list[ExampleSource]:
        return list(self.by_name.values())

    @cached_property
    def _ends(self) -> Places:
        """Up to which number the examples of an epoch are of each source."""
        counts = [source.count for source in self.sources]
        if self.shares is not None:
            total = sum(source.count * source.mean for source in self.sources)
            tokens = [total * self.shares[name] for name in self.parts]
            counts = [max(1, round(n / source.mean)) for n, source in zip(tokens, self.sources, strict=True)]
        return np.cumsum(counts, dtype=np.int64)

    @property
    def count(self) -> int:
        return int(self._ends[-1])

    @cached_property
    def mean(self) -> float:
        counts = np.diff(np.r_[0, self._ends])
        return float((counts * [source.mean for source in self.sources]).sum() / self.count)

    @cached_property
    def even(self) -> bool:
        return all(source.even for source in self.sources) and len({source.mean for source in self.sources}) == 1

    def _split(self, epochs: Places, numbers: Places) -> Iterator[tuple[ExampleSource, Places, Places, Places]]:
        """Of each source that is among these examples: where they are, and the source's own epochs and numbers."""
        begins = np.r_[0, self._ends[:-1]]
        which = np.searchsorted(self._ends, numbers, side="right")
        for number, (name, source) in enumerate(self.parts.items()):
            here = np.flatnonzero(which == number)
            if not len(here):
                continue
            own = numbers[here] - begins[number]
            if self.shares is None:
                yield source, here, epochs[here], own
                continue
            size = int(self._ends[number] - begins[number])
            turns, own = np.divmod(epochs[here] * size + own, source.count)
            for turn in np.unique(turns):
                now = turns == turn
                own[now] = shuffled(key_of(self.seed, "mixture", name, int(turn)), own[now], source.count)
            yield source, here, turns, own

    def lengths(self, numbers: Places) -> Places:
        """In training which row it will be depends on the epoch too, so there they are as long as the mean."""
        lengths = np.empty(len(numbers), dtype=np.int64)
        for source, here, _, own in self._split(np.zeros_like(numbers), numbers):
            usual = round(source.mean) if not source.even and self.shares is not None else source.lengths(own)
            lengths[here] = usual
        return lengths

    def draw(self, epochs: Places, numbers: Places) -> Drawn:
        """The rows of each source one after the other."""
        drawn = [source.draw(turns, own) for source, _, turns, own in self._split(epochs, numbers)]
        if len(drawn) == 1:
            return drawn[0]
        sizes = [np.diff(part.starts) for part in drawn]
        positions = segments = None
        if any(part.positions is not None for part in drawn):
            usual = (flat(np.zeros_like(lengths), lengths) for lengths in sizes)
            both = zip(drawn, usual, strict=True)
            positions = np.concatenate([each if part.positions is None else part.positions for part, each in both])
        if any(part.segments is not None for part in drawn):
            marks = (np.zeros_like(part.tokens) if part.segments is None else part.segments for part in drawn)
            segments = np.concatenate(list(marks))
        return Drawn(
            np.concatenate([part.tokens for part in drawn]),
            np.r_[0, np.concatenate(sizes).cumsum()],
            np.concatenate([part.identity for part in drawn]),
            np.concatenate([part.given for part in drawn]),
            segments,
            None if drawn[0].follows is None else np.concatenate([part.follows for part in drawn]),
            positions=positions,
        )
