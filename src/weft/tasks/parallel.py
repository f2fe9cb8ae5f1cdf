"""Pairs of texts out of people's files: two files line for line, what is left out, and sides that are swapped."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from weft.data.shards import Text
from weft.errors import UserError, listed, one_of
from weft.tasks.base import Example
from weft.text.compressed import open_sources, read_lines
from weft.text.encoding import known_encoding
from weft.text.paths import digest_of
from weft.text.records import Record, Skipped

SIDES = ("source", "target")
ROOM = 30  # characters by which a side may always be longer than the other
GRAMS = 60  # of a profile
SAMPLE = 2000  # texts that a profile is counted from
ENOUGH = 40  # pairs of letters, with fewer of which a text does not tell its language
CLEARLY = 1.3  # how much nearer a text must be to the other side


@dataclass(frozen=True)
class Parallel:
    """Two files, or several, that belong together line for line; read as a table of two columns would be."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    on_bad_row: str = "stop"
    columns: Mapping[str, str] = field(default_factory=dict)
    encoding: str | None = None

    def __post_init__(self) -> None:
        one_of(self.on_bad_row, ("stop", "skip"), "on_bad_row")
        for given, missing, names in (("source", "target", self.target), ("target", "source", self.source)):
            if not names:
                raise UserError(f"--{given} has nothing beside it: give --{missing} FILE too")

    def sides(self) -> list[tuple[Path, Path]]:
        sources, targets = Text(self.source).paths(), Text(self.target).paths()
        if len(sources) != len(targets):
            raise UserError(f"{len(sources)} files of sources, but {len(targets)} of targets")
        return list(zip(sources, targets, strict=True))

    @property
    def name(self) -> str:
        """What messages call it."""
        return listed([path.name for path in self.paths()], 2)

    def paths(self) -> list[Path]:
        return [path for both in self.sides() for path in both]

    def records(self, skipped: Skipped | None = None) -> Iterator[Record]:
        """Line for line; pairs with an empty side are left out and counted."""
        note = (lambda text: None) if skipped is None else skipped.note
        encoding = None if self.encoding is None else known_encoding(self.encoding)
        for source, target in self.sides():
            _same_lines(source, target, encoding)
            sources, targets = (_lines(path, encoding, note) for path in (source, target))
            for (where, first, fault), (other, second, fault2) in zip(sources, targets, strict=True):
                fault = fault or fault2
                if fault is None and not (first.strip() and second.strip()):
                    bad = where if not first.strip() else other
                    fault = UserError(f"{bad} is empty")
                elif fault is not None and self.on_bad_row == "stop":
                    raise fault
                if fault is None:
                    yield Record({"source": first, "target": second}, where)
                elif skipped is not None:
                    skipped.add(str(fault))

    def hash(self) -> str:
        """What is in the files, not what they are called."""
        whole = hashlib.sha256(b"parallel")
        for path in self.paths():
            whole.update(digest_of(path))
        return whole.hexdigest()


def _lines(
    path: Path, encoding: str | None, note: Callable[[str], None] = lambda text: None
) -> Iterator[tuple[str, str, UserError | None]]:
    for source in open_sources(path):
        for number, text, fault in read_lines(replace(source, encoding=encoding, note=note)):
            yield f"{source.name} line {number}", text, fault


def _same_lines(source: Path, target: Path, encoding: str | None) -> None:
    """Stop where two files cannot belong together, and say which of them ends too early."""
    first, second = (sum(1 for _ in _lines(path, encoding)) for path in (source, target))
    if first == second:
        return
    short, long, count = (source, target, first) if first < second else (target, source, second)
    raise UserError(
        f"{source} has {first:,} line{'s' * (first != 1)} and {target} {second:,}: "
        f"line {count + 1:,} of {long.name} has no other in {short.name}"
    )


# --------------------------------------------------------------------------------------------------- what is left out


def sifted(examples: Iterable[Example], ratio: float, copies: bool, told: Callable[[str], None]) -> list[Example]:
    """The pairs to learn from; those that can hardly belong together, and copies unless they are wanted, are left out.

    `ratio`: how many times as long as the other a side may be, in characters; 0: any.
    """
    kept, uneven, copied = [], list[str](), list[str]()
    for example in examples:
        source, target = example.texts[0], str(example.target)
        short, long = sorted((len(source), len(target)))
        if ratio and long > ratio * short + ROOM:
            uneven.append(example.where)
        elif not copies and source.strip() == target.strip():
            copied.append(example.where)
        else:
            kept.append(example)
    for places, what in (
        (uneven, f"one side more than {ratio:g} times as long as the other (data.ratio)"),
        (copied, "the same text on both sides (data.copies)"),
    ):
        if places:
            told(f"left out {_counted(len(places))} with {what}; the first: {places[0]}")
    return kept


def _counted(pairs: int) -> str:
    return f"{pairs:,} pair{'s' * (pairs != 1)}"


# ---------------------------------------------------------------------------------------------- sides that are swapped


def profile_of(texts: Iterable[str]) -> tuple[str, ...]:
    """The most frequent pairs of letters in some texts, which tell languages apart."""
    counts: Counter[str] = Counter()
    for text in islice(texts, SAMPLE):
        counts.update(_grams(text))
    return tuple(sorted(gram for gram, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:GRAMS]))


def _grams(text: str) -> Iterator[str]:
    folded = " ".join(text[:2000].casefold().split())
    return (a + b for a, b in zip(folded, folded[1:], strict=False))


def nearer_to_other(texts: Sequence[str], own: Sequence[str], other: Sequence[str]) -> bool:
    """Whether texts look like the other side of what a model has learned, clearly, rather than like their own."""
    ours, theirs = set(own) - set(other), set(other) - set(own)
    counts: Counter[str] = Counter()
    for text in texts[:SAMPLE]:
        counts.update(_grams(text))
    for_own, for_other = (sum(counts[gram] for gram in grams) for grams in (ours, theirs))
    if counts.total() < ENOUGH or len(ours) < GRAMS // 6 or for_other < ENOUGH // 8:
        return False  # too little to tell, or two sides in one language
    return for_other > CLEARLY * for_own + 2


def swapped(source: Sequence[str], target: Sequence[str], profiles: Mapping[str, Sequence[str]]) -> bool:
    """Whether source and target look as if they stood in each other's place."""
    if not all(side in profiles for side in SIDES):
        return False
    read, written = profiles["source"], profiles["target"]
    return nearer_to_other(source, read, written) and (not target or nearer_to_other(target, written, read))


def swapped_line(where: str, target: bool = True) -> str:
    """What is said then."""
    what = "source and target look" if target else "what is to be read looks"
    like = "as if they were swapped" if target else "like what the model has learned to write"
    return f"{where}: {what} {like}, by their letters; is it the right way round?"
