"""Regular expressions of tokenizers (Oniguruma's, with Ruby's rules) as parts of JavaScript's.

A part is a piece of source text, or a class of characters by its name, which the page fills in from tables.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

ESCAPE = re.compile(r"\\(?:([pP])\{(\^?)([A-Za-z_]+)\}|(.))", re.DOTALL)
PLAIN = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v"}
GROUP = re.compile(r"\((?:\?(:|=|!|<=|<!|i:))?")
REPEAT = re.compile(r"[*+?]\??(?![+])|\{\d+(?:,\d*)?\}")
# Letters that Unicode folds to one of ASCII; st also stands as one sign.
FOLDED = {"s": "sSſ", "k": "kK\u212a"}
SYNTAX = "^$\\.*+?()[]{}|/"


@dataclass
class Classes:
    """The names of the classes that a pattern uses."""

    names: set[str] = field(default_factory=set)

    def use(self, name: str, negated: bool, inside: bool) -> dict[str, Any]:
        self.names.add(name)
        return {"name": name, "negated": negated, "inside": inside}


def translated(pattern: str, classes: Classes) -> list[Any]:
    """The parts of a pattern; ValueError: something is in it that JavaScript has not, or has otherwise."""
    reader = _PatternReader(pattern, classes)
    parts = reader.choices(False)
    if reader.place < len(pattern):
        raise ValueError("an unmatched )")
    joined: list[Any] = []
    for part in parts:
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += part
        else:
            joined.append(part)
    return joined


def literal(letter: str, fold: bool) -> str:
    """One character as source text."""
    if fold and letter.isascii() and letter.isalpha():
        return f"[{FOLDED.get(letter.lower(), letter.lower() + letter.upper())}]"
    if fold and not letter.isascii():
        raise ValueError("a letter beyond ASCII in a group that ignores case")
    return f"\\u{{{ord(letter):x}}}" if letter in SYNTAX or ord(letter) < 32 else letter


class _PatternReader:
    def __init__(self, pattern: str, classes: Classes) -> None:
        self.pattern, self.classes, self.place = pattern, classes, 0

    def choices(self, fold: bool) -> list[Any]:
        """Alternatives up to a closing bracket or the end."""
        parts: list[Any] = []
        while self.place < len(self.pattern) and self.pattern[self.place] != ")":
            parts += self._item(fold)
        return parts

    def _item(self, fold: bool) -> list[Any]:
        mark, pattern = self.pattern[self.place], self.pattern
        if fold and pattern[self.place : self.place + 2].lower() == "st":
            self.place += 2  # one sign may stand for both letters
            return ["(?:[sSſ][tT]|[ﬅﬆ])"]
        if mark == "(":
            return self._group(fold)
        if mark == "[":
            return self._class(fold)
        if mark == "\\":
            return [self._escape(False, fold)]
        self.place += 1
        if mark == "^":
            return ["(?<![^\\n])"]  # Ruby's: at the beginning of every line
        if mark == "$":
            return ["(?![^\\n])"]
        if mark == ".":
            return ["[^\\n]"]
        if mark == "|":
            return ["|"]
        if mark in "*+?{":
            match = REPEAT.match(pattern, self.place - 1)
            if match is None:
                raise ValueError("a possessive repeat")
            self.place = match.end()
            return [match[0]]
        return [literal(mark, fold)]

    def _group(self, fold: bool) -> list[Any]:
        match = GROUP.match(self.pattern, self.place)
        assert match is not None
        if match[1] is None and self.pattern.startswith("(?", self.place):
            raise ValueError(f"the group {self.pattern[self.place : self.place + 4]}")
        self.place = match.end()
        inside = self.choices(fold or match[1] == "i:")
        if self.place >= len(self.pattern):
            raise ValueError("an unmatched (")
        self.place += 1
        kind = "(?:" if match[1] in (None, "i:") else f"(?{match[1]}"
        return [kind, *inside, ")"]

    def _escape(self, inside: bool, fold: bool) -> Any:
        match = ESCAPE.match(self.pattern, self.place)
        if match is None:
            raise ValueError("a backslash at its end")
        self.place = match.end()
        if match[3]:
            return self.classes.use(match[3], (match[1] == "P") != bool(match[2]), inside)
        letter = match[4]
        if letter in "wWsSdDhH":
            return self.classes.use(letter.lower(), letter.isupper(), inside)
        if letter == "b" and not inside:
            self.classes.names.add("w")
            return {"boundary": True}
        if letter in PLAIN:
            return f"\\u{{{ord(PLAIN[letter]):x}}}"
        if letter.isalnum():
            raise ValueError(f"\\{letter}")
        return f"\\u{{{ord(letter):x}}}"

    def _class(self, fold: bool) -> list[Any]:
        self.place += 1
        parts: list[Any] = ["["]
        if self.pattern.startswith("^", self.place):
            self.place += 1
            parts = ["[^"]
        first = True
        while self.place < len(self.pattern):
            mark = self.pattern[self.place]
            if mark == "]" and not first:
                self.place += 1
                return [*parts, "]"]
            if mark == "[" or self.pattern.startswith("&&", self.place):
                raise ValueError("a class inside a class")
            if mark == "\\":
                parts.append(self._escape(True, fold))
            else:
                self.place += 1
                range_ = mark == "-" and not first and not self.pattern.startswith("]", self.place)
                if range_ and fold:
                    raise ValueError("a range in a group that ignores case")
                small = fold and mark.isascii() and mark.isalpha()
                both = FOLDED.get(mark.lower(), mark.lower() + mark.upper()) if small else ""
                parts.append("-" if range_ else both or f"\\u{{{ord(mark):x}}}")
            first = False
        raise ValueError("an unmatched [")
