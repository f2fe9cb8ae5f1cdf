"""Pairs of texts to learn from: which are left out, and whether source and target look exchanged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

SIDES = ("source", "target")
GRAMS = 60  # of a profile
SAMPLE = 2000  # texts that a profile is counted from
ENOUGH = 40  # pairs of letters, with fewer of which a text does not tell its language
CLEARLY = 1.3  # how much nearer a text must be to the other side


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
    """The note about it."""
    what = "source and target look" if target else "what is to be read looks"
    like = "as if they were swapped" if target else "like what the model has learned to write"
    return f"{where}: {what} {like}, by their letters; is it the right way round?"
