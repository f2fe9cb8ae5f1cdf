"""Regular expressions of tokenizers: only those that read a text once, however it is written.

The library's engine tries one way after another, so that a pattern such as `(a+)+b` takes for ever on some texts, and
` +$` the square of a run of spaces. A pattern is taken where nothing can fail after its first open repeat: whatever was
read is then used, and never read again. Published patterns that are not like this but are followed by one that takes
the whole run (`\\s+(?!\\S)|\\s+`) are listed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from weft.errors import UserError, shown

MAX_PATTERN_LENGTH = 4096  # characters; published ones have some hundreds
MAX_GROUPS = 16  # groups inside groups
MAX_WAYS = 1000  # in which the part of a pattern before its open repeat can be read

UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
BEFORE = r"[^\r\n\p{L}\p{N}]?"
ENDING = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
# Alternatives that may read a run in vain -> how the one begins that takes it then, and must follow.
FOLLOWED = {
    r"\s+(?!\S)": r"\s+",
    r"\s*[\r\n]+": r"\s+",
    r"\s*[\r\n]": r"\s+",
    r"\s*\n+": r"\s+",
    r"\d+(?:[.,:]\d+)+": r"\w+",
    r"\w+(?=(?i:n't)\b)": r"\w+",
    rf"{BEFORE}{UPPER}*{LOWER}+{ENDING}": rf"{BEFORE}{UPPER}+{LOWER}*",
    rf"{BEFORE}{UPPER}*{LOWER}+": rf"{BEFORE}{UPPER}+{LOWER}*",
}
# What may stand between the two: it begins with an apostrophe or another letter than the run.
BETWEEN = re.compile(r"\(\?i:n't\)\\b|'\(\?i:[a-z|]+\)\\b|\\b\(\?i:\[odl\]'\\p\{L\}\{3,\}\)")

ESCAPE = re.compile(
    r"\\(?:[pP]\{\^?[A-Za-z_ =-]{1,60}\}|x\{[0-9A-Fa-f]{1,8}\}|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}"
    r"|[^1-9a-zA-Z]|[wWsSdDhHbBAzZGnrtvfaeRO])"
)
GROUP = re.compile(r"\((?:\?(?P<kind>[:=!>]|<=|<!|[im]*(?:-[im]+)?:)|(?!\?|\*))")
REPEAT = re.compile(r"(?:[*+?]|\{(?P<low>\d{0,6})(?P<comma>,?)(?P<high>\d{0,6})\})(?P<how>[?+]?)")


@dataclass(frozen=True)
class PatternPart:
    """What is known of a part of a pattern."""

    ways: int = 1  # in which it can be read
    open: bool = False  # holds an open repeat, after which nothing may fail
    simple: bool = True  # reads a fixed number of characters in one way
    length: int = 1  # that number
    optional: bool = False
    empty: bool = False  # may match where there is nothing to read


def check_pattern(pattern: str, where: str, empty: bool = True) -> None:
    """Refuse a pattern that could take more time than the text is long, or, without `empty`, match nothing at all."""
    if not 1 <= len(pattern) <= MAX_PATTERN_LENGTH:
        raise UserError(f"{where}: a pattern of {len(pattern)} characters; from 1 to {MAX_PATTERN_LENGTH} are read")
    alternatives = _alternatives(pattern, where)
    for number, alternative in enumerate(alternatives):
        after = (
            other for other in alternatives[number + 1 :] if other not in FOLLOWED and not BETWEEN.fullmatch(other)
        )
        if alternative not in FOLLOWED or not next(after, "").startswith(FOLLOWED[alternative]):
            _PatternParser(alternative, where).check(empty)


def _alternatives(pattern: str, where: str) -> list[str]:
    """The pattern cut at every | that stands in no group and no class."""
    parser = _PatternParser(pattern, where)
    parts, start = [], 0
    while parser.place < len(pattern):
        if pattern[parser.place] == "|":
            parts.append(pattern[start : parser.place])
            start = parser.place = parser.place + 1
        else:
            parser.skip()
    return [*parts, pattern[start:]]


class _PatternParser:
    """Reads a pattern from left to right; whatever it does not know is refused."""

    def __init__(self, pattern: str, where: str) -> None:
        self.pattern = pattern
        self.where = where
        self.place = 0

    def refused(self, why: str) -> UserError:
        return UserError(f"{self.where}: the pattern {shown(self.pattern, 80)!r} {why}; Weft does not run it")

    def skip(self) -> None:
        """Past one character, class, escape or bracket, whatever it means."""
        if self.pattern[self.place] in "\\[":
            self._atom(0)
        else:
            depth = 0
            while True:
                mark = self.pattern[self.place] if self.place < len(self.pattern) else ""
                if mark and mark in "\\[":
                    self._atom(0)
                    continue
                self.place += 1
                depth += (mark == "(") - (mark == ")")
                if depth <= 0 or not mark:
                    return

    def check(self, empty: bool) -> None:
        part = self._choices(0)
        if part.empty and not empty:
            raise self.refused("matches where there is nothing")
        if self.place < len(self.pattern):
            raise self.refused("has a bracket that closes nothing")

    def _choices(self, depth: int) -> PatternPart:
        if depth > MAX_GROUPS:
            raise self.refused(f"has more than {MAX_GROUPS} groups inside each other")
        parts = [self._sequence(depth)]
        while self.place < len(self.pattern) and self.pattern[self.place] == "|":
            self.place += 1
            parts.append(self._sequence(depth))
        if len(parts) == 1:
            return parts[0]
        ways = sum(part.ways for part in parts)
        optional, empty = any(part.optional for part in parts), any(part.empty for part in parts)
        return PatternPart(ways, any(part.open for part in parts), simple=False, optional=optional, empty=empty)

    def _sequence(self, depth: int) -> PatternPart:
        """Parts one after the other."""
        ways, open_, simple, optional, length, empty = 1, False, True, True, 0, True
        while self.place < len(self.pattern) and self.pattern[self.place] not in "|)":
            part = self._repeated(depth)
            if open_ and not part.optional:
                raise self.refused("may fail after a repeat without an end")
            ways *= part.ways
            if ways > MAX_WAYS:
                raise self.refused(f"can be read in more than {MAX_WAYS} ways")
            open_, simple = open_ or part.open, simple and part.simple
            optional, length, empty = optional and part.optional, length + part.length, empty and part.empty
        return PatternPart(ways, open_, simple, length, optional, empty)

    def _repeated(self, depth: int) -> PatternPart:
        part = self._atom(depth)
        match = REPEAT.match(self.pattern, self.place)
        if match is None:
            return part
        self.place = match.end()
        low, high = _times(match)
        if match["comma"] is not None and (match["how"] or not match["low"] + match["high"]):
            raise self.refused(f"holds {match[0]!r}")
        if REPEAT.match(self.pattern, self.place):
            raise self.refused("repeats a repeat")
        if high is not None and high < low:
            raise self.refused("repeats from more to fewer times")
        if low > 1 and not part.simple:
            raise self.refused("repeats a choice several times")
        if low == high and part.simple:
            short = low * part.length <= MAX_WAYS
            length = low * part.length
            return PatternPart(
                open=not short, simple=short, length=length, optional=not low, empty=part.empty or not low
            )
        if high == 1:
            return PatternPart(part.ways + 1, part.open, simple=False, optional=True, empty=True)
        bounded = high is not None and part.simple and high - low < MAX_WAYS
        return PatternPart(
            high - low + 1 if bounded and high is not None else 1,
            not bounded,
            simple=False,
            optional=low == 0 or part.optional,
            empty=low == 0 or part.empty,
        )

    def _atom(self, depth: int) -> PatternPart:
        mark = self.pattern[self.place]
        if mark == "(":
            return self._group(depth)
        if mark == "[":
            self._class()
            return PatternPart()
        if mark == "\\":
            match = ESCAPE.match(self.pattern, self.place)
            if match is None:
                raise self.refused(f"holds {shown(self.pattern[self.place : self.place + 2])!r}")
            self.place = match.end()
            return PatternPart(empty=match[0][1] in "bBAzZG")
        if mark in "*+?{":
            raise self.refused("repeats nothing")
        self.place += 1
        return PatternPart(empty=mark in "^$")

    def _group(self, depth: int) -> PatternPart:
        match = GROUP.match(self.pattern, self.place)
        if match is None:
            raise self.refused(f"holds the group {shown(self.pattern[self.place : self.place + 4])!r}")
        self.place = match.end()
        part = self._choices(depth + 1)
        if self.place >= len(self.pattern):
            raise self.refused("has a bracket that is not closed")
        self.place += 1
        if match["kind"] in ("=", "!", "<=", "<!"):
            if part.open:
                raise self.refused("looks ahead or behind without an end")
            return PatternPart(part.ways, empty=True)
        return part

    def _class(self) -> None:
        """A set of characters, with those inside it."""
        depth, start = 0, self.place
        while self.place < len(self.pattern):
            mark = self.pattern[self.place]
            if mark == "\\":
                match = ESCAPE.match(self.pattern, self.place)
                self.place = match.end() if match else self.place + 2
                continue
            self.place += 1
            if mark == "[" and self.pattern[self.place : self.place + 1] == ":":
                end = self.pattern.find(":]", self.place)
                self.place = end + 2 if end >= 0 else self.place
            elif mark == "[":
                depth += 1
                self.place += self.pattern.startswith("^", self.place)
                self.place += self.pattern.startswith("]", self.place)  # the first one is a character
            elif mark == "]":
                depth -= 1
                if depth == 0:
                    return
        self.place = start
        raise self.refused("has a class that is not closed")


def _times(match: re.Match[str]) -> tuple[int, int | None]:
    """How often at least and at most; None: without an end."""
    if match["comma"] is None:
        return {"*": (0, None), "+": (1, None), "?": (0, 1)}[match[0][0]]
    low = int(match["low"] or 0)
    if not match["comma"]:
        return low, low
    return low, int(match["high"]) if match["high"] else None
