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
BETWEEN = r"\(\?i:n't\)\\b|'\(\?i:[a-z|]+\)\\b|\\b\(\?i:\[odl\]'\\p\{L\}\{3,\}\)"
LISTED = re.compile(f"({'|'.join(map(re.escape, FOLLOWED))}|{BETWEEN})(?:\\||\\Z)")

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
    parser = _PatternParser(pattern, where)
    while True:
        match, after = LISTED.match(pattern, parser.place), parser.place
        while following := LISTED.match(pattern, after):
            after = following.end()
        if match and match[1] in FOLLOWED and pattern.startswith(FOLLOWED[match[1]], after):
            parser.place = match.end(1)
        elif parser.sequence(0).empty and not empty:
            raise parser.refused("matches where there is nothing")
        if parser.place == len(pattern):
            return
        if pattern[parser.place] == ")":
            raise parser.refused("has a bracket that closes nothing")
        parser.place += 1


class _PatternParser:
    """Reads a pattern from left to right; whatever it does not know is refused."""

    def __init__(self, pattern: str, where: str) -> None:
        self.pattern, self.where, self.place = pattern, where, 0

    def refused(self, why: str) -> UserError:
        return UserError(f"{self.where}: the pattern {shown(self.pattern, 80)!r} {why}; Weft does not run it")

    def _choices(self, depth: int) -> PatternPart:
        if depth > MAX_GROUPS:
            raise self.refused(f"has more than {MAX_GROUPS} groups inside each other")
        parts = [self.sequence(depth)]
        while self.place < len(self.pattern) and self.pattern[self.place] == "|":
            self.place += 1
            parts.append(self.sequence(depth))
        if len(parts) == 1:
            return parts[0]
        ways = sum(part.ways for part in parts)
        optional, empty = any(part.optional for part in parts), any(part.empty for part in parts)
        return PatternPart(ways, any(part.open for part in parts), simple=False, optional=optional, empty=empty)

    def sequence(self, depth: int) -> PatternPart:
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
        low, high = int(match["low"] or 0), int(match["high"]) if match["comma"] and match["high"] else None
        if not match["comma"]:
            low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(match[0][0], (low, low))
        if match["comma"] is not None and (match["how"] or not match["low"] + match["high"]):
            raise self.refused(f"holds {match[0]!r}")
        if REPEAT.match(self.pattern, self.place):
            raise self.refused("repeats a repeat")
        if high is not None and high < low:
            raise self.refused("repeats from more to fewer times")
        if low > 1 and not part.simple:
            raise self.refused("repeats a choice several times")
        if low == high and part.simple:
            length, none = low * part.length, not low
            short = length <= MAX_WAYS
            return PatternPart(1, not short, short, length, none, part.empty or none)
        if high == 1:
            return PatternPart(part.ways + 1, part.open, simple=False, optional=True, empty=True)
        bounded = high is not None and part.simple and high - low < MAX_WAYS
        ways, none = high - low + 1 if bounded and high is not None else 1, low == 0
        return PatternPart(ways, not bounded, simple=False, optional=none or part.optional, empty=none or part.empty)

    def _atom(self, depth: int) -> PatternPart:
        mark = self.pattern[self.place]
        if mark == "(":
            match = GROUP.match(self.pattern, self.place)
            if match is None:
                raise self.refused(f"holds the group {shown(self.pattern[self.place : self.place + 4])!r}")
            self.place = match.end()
            part = self._choices(depth + 1)
            if self.place >= len(self.pattern):
                raise self.refused("has a bracket that is not closed")
            self.place += 1
            looks = match["kind"] in ("=", "!", "<=", "<!")
            if looks and part.open:
                raise self.refused("looks ahead or behind without an end")
            return PatternPart(part.ways, empty=True) if looks else part
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

    def _class(self) -> None:
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
