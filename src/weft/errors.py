"""What comes from outside and is wrong: one line that says what, where, which value and what would be right."""

from __future__ import annotations

import difflib
import os
import re
import traceback
from collections.abc import Iterable
from functools import cache
from itertools import islice
from pathlib import Path


class UserError(Exception):
    """A mistake in a file, a flag or a value that the user gave; shown without a traceback, exit status 2."""

    def _render_traceback_(self) -> list[str]:
        """For notebooks: the lines of the user's own code, and the message."""
        ours = os.path.dirname(__file__) + os.sep
        calls = [call for call in traceback.extract_tb(self.__traceback__) if not call.filename.startswith(ours)]
        places = [f"line {call.lineno}: {call.line}" for call in calls if "IPython" not in call.filename and call.line]
        return [*places, f"UserError: {self}"]


class NotFinite(UserError):
    """A model puts out NaN or infinity where a number is expected."""

    def __init__(self, folder: object = None) -> None:
        what = "the model's output is not a number; its weights are damaged or of no use"
        super().__init__(what if folder is None else f"{folder}: {what}")


# A proposal is looked for among so many choices, for a word of so many letters: a file may name any number of columns.
COMPARED, LONGEST_WORD = 2000, 200


@cache
def synonyms() -> tuple[dict[str, list[str]], dict[str, str]]:
    """Our words for those of other libraries, and where Weft has what it has in another place (synonyms.toml)."""
    import tomllib

    tables = tomllib.loads(Path(__file__).with_name("synonyms.toml").read_text(encoding="utf-8"))
    elsewhere = {word: text for text, words in tables.pop("elsewhere").items() for word in words}
    pairs = [pair for table in tables.values() for pair in table.items()]
    return {word: ours.split() for ours, words in pairs for word in words}, elsewhere


def _plain(word: str) -> str:
    """A word as the table has it: --max_length is max-length."""
    return word.lstrip("-").replace("_", "-").casefold()


def _meant(word: str, choices: Iterable[str]) -> str:
    """'; did you mean ...?' where one of the choices is our word for it."""
    plain = {_plain(choice): choice for choice in choices}
    name = next((name for name in synonyms()[0].get(_plain(word), ()) if name in plain), None)
    return "" if name is None else f"; did you mean {plain[name]!r}?"


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """'; did you mean ...?' where a choice means the same as the word, or is spelled nearly so; else nothing."""
    choices = list(islice(choices, COMPARED))
    near = difflib.get_close_matches(word, choices, n=1, cutoff=0.6) if len(word) <= LONGEST_WORD else []
    return _meant(word, choices) or (f"; did you mean {near[0]!r}?" if near else "")


def hint(word: str, choices: Iterable[str]) -> str:
    """As `did_you_mean`; what we have in another place is better than what is spelled nearly so."""
    choices = list(choices)
    elsewhere = synonyms()[1].get(_plain(word))
    return _meant(word, choices) or (f"; {elsewhere}" if elsewhere else did_you_mean(word, choices))


def listed(names: Iterable[str], most: int = 6) -> str:
    """'a, b, c and 12 more': every name when there are few, a count of the rest when there are many."""
    names = list(names)
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most} more"


def refuse(*cases: tuple[bool, str]) -> None:
    """Raise the message of the first case that is true."""
    for wrong, message in cases:
        if wrong:
            raise UserError(message)


def one_of(value: str, choices: Iterable[str], what: str) -> str:
    """The value itself when it is a choice; else an error that lists the choices."""
    choices = list(choices)
    if value in choices:
        return value
    raise UserError(f"{what} {shown(value)!r} is not one of {listed(choices, 20)}{did_you_mean(value, choices)}")


def shown(text: str | bytes, most: int = 60) -> str:
    """Text from outside, fit for one line of an error: control characters escaped, cut where it is long."""
    if isinstance(text, bytes):  # as libraries hand out names that are not UTF-8
        text = text[: 4 * most + 4].decode("utf-8", "backslashreplace")
    line = text[: most + 1]
    if not line.isprintable():
        line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)
    return line if len(text) <= most else line[:most] + "..."


# What steers a terminal or turns the order of letters: C0 and C1 controls, and overrides of writing direction.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def escaped(text: str, keep: str = "") -> str:
    """Text from outside, fit for a terminal: control characters, but for those to `keep`, are spelled out."""
    return _CONTROLS.sub(lambda match: match[0] if match[0] in keep else repr(match[0])[1:-1], text)
