"""Tag schemes: words with tags like B-PER and I-PER, the spans they stand for, and the best tags a scheme allows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.errors import UserError, one_of, shown

Scheme = Literal["bio", "bioes", "plain"]

SCHEMES: tuple[Scheme, ...] = ("bio", "bioes", "plain")
# BILOU says L(ast) and U(nit) where BIOES says E(nd) and S(ingle); a bare B or I has no type.
TAG = re.compile(r"O|([BIESLU])(?:-(.*))?", re.DOTALL)
SAME = {"L": "E", "U": "S"}
OTHERS = {ours: theirs for theirs, ours in SAME.items()}
NO_TYPE = "_"


class TagSpan(NamedTuple):
    """A run of words that belong together: words[first:last]."""

    first: int
    last: int
    label: str


@lru_cache(maxsize=65536)
def _parts(tag: str) -> tuple[str, str] | None:
    """('B', 'PER') of B-PER, ('O', '') of O, None of a tag that is of no scheme."""
    match = TAG.fullmatch(tag)
    if match is None or match[1] is None:
        return None if match is None else ("O", "")
    return SAME.get(match[1], match[1]), match[2] or NO_TYPE


def scheme_of(labels: Iterable[str]) -> Scheme:
    """The scheme that tags of these names follow; files with I- alone (IOB1) are BIO, parts of speech plain."""
    labels = set(labels)
    parts = [_parts(label) for label in labels]
    bare = any("-" not in label and label != "O" for label in labels)
    # Bare letters may be the names of anything, unless O stands among them.
    if not labels or None in parts or (bare and "O" not in labels):
        return "plain"
    return "bioes" if any(part is not None and part[0] in "ES" for part in parts) else "bio"


def spans_of(tags: Sequence[str], scheme: Scheme | None = None) -> list[TagSpan]:
    """The spans of one sentence, read kindly: what goes on with nothing before it begins a span (seqeval's default)."""
    if (scheme or scheme_of(tags)) == "plain":
        return [TagSpan(place, place + 1, tag) for place, tag in enumerate(tags)]
    spans, first = list[TagSpan](), 0
    before, label = "O", ""
    for place, tag in enumerate(tags):
        parts = _parts(tag)
        if parts is None:
            raise UserError(f"tag {shown(tag)!r} is neither O nor of a form like B-PER or I-PER")
        now, kind = parts
        if not (before in "BI" and now in "IE" and kind == label):
            if before != "O":
                spans.append(TagSpan(first, place, label))
            first = place
        before, label = now, kind
    if before != "O":
        spans.append(TagSpan(first, len(tags), label))
    return spans


def tags_of(spans: Iterable[TagSpan], length: int, scheme: Scheme) -> list[str]:
    """The tags of a sentence of so many words, O outside the spans; the way back from `spans_of`."""
    one_of(scheme, SCHEMES, "scheme")
    tags, end = ["O"] * length, 0
    for first, last, label in sorted(spans):
        if not end <= first < last <= length:
            raise UserError(f"span {first} to {last} ({shown(label)}) overlaps another or leaves the {length} words")
        end = last
        if scheme == "plain":
            tags[first:last] = [label] * (last - first)
            continue
        letters = ["B", *"I" * (last - first - 1)]
        if scheme == "bioes":
            letters[-1] = "S" if last - first == 1 else "E"
        tags[first:last] = [letter if label == NO_TYPE else f"{letter}-{label}" for letter in letters]
    return tags


@dataclass
class TagNormalizer:
    """Writes the tags of sentences as one scheme has them, and counts what was written otherwise."""

    # In IOB1 (CoNLL-2003) an entity begins with I-, but with B- right after another of its type.
    scheme: Scheme  # bio or bioes
    bilou: bool = False  # L- and U- in place of E- and S-
    changed: int = 0  # tags that were written otherwise
    begun_inside: int = 0  # entities that began with I-
    begun_apart: int = 0  # entities that began with B- where IOB1 has I-
    letters: str = ""  # of the other schemes, those that were seen

    @classmethod
    def of(cls, labels: Iterable[str]) -> TagNormalizer | None:
        """For the scheme of these labels; None where they have none."""
        labels = set(labels)
        scheme, letters = scheme_of(labels), {label[:1] for label in labels}
        return None if scheme == "plain" else cls(scheme, bilou=bool(letters & set("LU")) and not letters & set("ES"))

    def normalized(self, tags: Sequence[str]) -> tuple[str, ...]:
        """The same entities in this scheme; a sentence with a tag of no scheme is left as it is."""
        if None in map(_parts, tags):
            return tuple(tags)
        spans = spans_of(tags, "bio")  # reads all schemes
        end, kind = 0, ""
        for span in spans:
            first = tags[span.first][0]
            self.begun_inside += first == "I"
            self.begun_apart += first == "B" and not (span.first == end and span.label == kind)
            end, kind = span.last, span.label
        self.letters += "".join({tag[0] for tag in tags} & set("ESLU") - set(self.letters))
        letters = [new[0] for new in tags_of(spans, len(tags), self.scheme)]
        if self.bilou:
            letters = [OTHERS.get(letter, letter) for letter in letters]
        rewritten = tuple(letter + tag[1:] for letter, tag in zip(letters, tags, strict=True))
        self.changed += sum(new != tag for new, tag in zip(rewritten, tags, strict=True))
        return rewritten

    def note(self) -> str | None:
        """What was changed, in one line; None where nothing was."""
        if not self.changed:
            return None
        target = "BIO" if self.scheme == "bio" else "BILOU" if self.bilou else "BIOES"
        source = "BIO" if self.begun_apart or not self.begun_inside else "IOB1"
        if self.letters:
            source = "BIOES" if set(self.letters) & set("ES") else "BILOU"
        if source != target:
            return f"{source} tags read as {target}"
        tags = f"tag{'s' * (self.changed > 1)}"
        if self.scheme == "bio":
            return f"{self.changed:,} stray I- {tags} read as B-"
        return f"{self.changed:,} stray {tags} rewritten to fit {target}"


class TagDecoder:
    """Scores of every tag at every word -> the best tags that the scheme allows in this order."""

    def __init__(self, labels: Sequence[str]) -> None:
        self.labels, self.scheme = tuple(labels), scheme_of(labels)
        parts = [_parts(label) or ("O", "") for label in labels]
        has = set(parts)
        # A letter may stand where its better one is missing: where there is no B, a span begins with I.
        begins = [letter in "OBS" or ("B", kind) not in has for letter, kind in parts]
        ends = [letter in "OES" or ("E", kind) not in has for letter, kind in parts]
        goes_on = [[a in "BI" and b in "IE" and x == y for a, x in parts] for b, y in parts]
        allowed = np.array(goes_on, dtype=bool).reshape(len(parts), len(parts))  # to, from
        allowed |= np.outer(begins, ends).astype(bool)
        if self.scheme == "plain":
            begins, ends, allowed = [True] * len(parts), [True] * len(parts), np.ones_like(allowed)
        self.begins, self.ends, self.allowed = np.array(begins, dtype=bool), np.array(ends, dtype=bool), allowed

    def decode(self, scores: NDArray[Any]) -> list[int]:
        """The path of the highest sum of scores (n words x C tags; logits will do) among those allowed (Viterbi)."""
        scores = np.asarray(scores, dtype=np.float64)  # n C
        if scores.ndim != 2 or scores.shape[1] != len(self.labels):
            raise UserError(f"scores of shape {scores.shape}: expected (words, {len(self.labels)} tags)")
        if not len(scores):
            return []
        path = scores.argmax(axis=1)
        # Nothing beats the best tag of every word, so where that path is allowed the search is over.
        if self.begins[path[0]] and self.ends[path[-1]] and self.allowed[path[1:], path[:-1]].all():
            return path.tolist()
        barred = np.where(self.allowed, 0.0, -np.inf)  # to, from
        columns = np.arange(len(self.labels))
        came_from = np.empty(scores.shape, dtype=np.intp)
        best = np.where(self.begins, scores[0], -np.inf)
        for place in range(1, len(scores)):
            reached = barred + best
            came_from[place] = origin = reached.argmax(axis=1)
            best = reached[columns, origin] + scores[place]
        best = np.where(self.ends, best, -np.inf)
        if best.max() == -np.inf:  # no path at all: one word, and only labels that need two
            return path.tolist()
        path[-1] = best.argmax()
        for place in range(len(scores) - 1, 0, -1):
            path[place - 1] = came_from[place, path[place]]
        return path.tolist()
