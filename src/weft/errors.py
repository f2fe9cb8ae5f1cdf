"""What comes from outside and is wrong: one line that says what, where, which value and what would be right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake in a file, a flag or a value that the user gave; shown without a traceback, exit status 2."""


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """'; did you mean ...?' when a choice is near enough to the word to be a slip, else nothing."""
    near = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


def listed(names: Iterable[str], most: int = 6) -> str:
    """'a, b, c and 12 more': every name when there are few, a count of the rest when there are many."""
    names = list(names)
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most} more"


def one_of(value: str, choices: Iterable[str], what: str) -> str:
    """The value itself when it is a choice; else an error that lists the choices."""
    choices = list(choices)
    if value in choices:
        return value
    raise UserError(f"{what} {value!r} is not one of {listed(choices, 20)}{did_you_mean(value, choices)}")


def shown(text: str, most: int = 60) -> str:
    """Text from outside, fit for one line of an error: control characters escaped, cut where it is long."""
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[: most + 1])
    return line if len(text) <= most else line[:most] + "..."
