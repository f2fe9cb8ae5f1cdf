"""Rows that cannot be read: how many were skipped, and what is wrong in which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from weft.errors import UserError


@dataclass
class LeftOut:
    """Where rows of one kind stand: how many there are, and the first of them; a file may have a hundred million."""

    count: int = 0
    first: str = ""

    def add(self, where: str) -> None:
        self.count += 1
        self.first = self.first or where


@dataclass
class Skipped:
    """What reading reports besides rows: how many were left out and why, and notes on the files."""

    count: int = 0  # bad rows that were passed over
    first: list[str] = field(default_factory=list)
    empty: LeftOut = field(default_factory=LeftOut)  # where rows without a text stand
    unlabeled: LeftOut = field(default_factory=LeftOut)  # where rows without a label stand
    notes: dict[str, None] = field(default_factory=dict)  # each once
    columns: dict[str, str] = field(default_factory=dict)  # what a task calls a column -> what the file calls it

    def add(self, message: str) -> None:
        self.count += 1
        if len(self.first) < 3:
            self.first.append(message)

    def note(self, text: str) -> None:
        self.notes[text] = None

    def __str__(self) -> str:
        if not self.count:
            return "skipped no rows"
        return f"skipped {self.count:,} bad row{'s' * (self.count > 1)}; the first: {self.first[0]}"

    def without_bad(self) -> Skipped:
        """The same without the bad rows, where these are reported elsewhere."""
        return replace(self, count=0)

    def lines(self) -> list[str]:
        """The whole report, in lines."""
        lines = list(self.notes)
        for places, what in ((self.empty, "empty row"), (self.unlabeled, "row")):
            if places.count:
                lack = " without a label" if what == "row" else ""
                some = f"{places.count:,} {what}{'s' * (places.count > 1)}{lack}"
                lines.append(f"left out {some}; the first: {places.first}")
        return [*lines, str(self)] if self.count else lines


PROBLEMS = 10  # that are named; the others are counted
MAX_PROBLEMS = 10_000  # after so many wrong rows the rest of a file is not read to count them


class BadRows(UserError):
    """Several wrong rows in one error."""

    def __init__(self, messages: Sequence[str], count: int) -> None:
        self.messages, self.count = list(messages), count
        more = [f"and {count - len(messages):,} more"] if count > len(messages) else []
        least = "at least " * (count >= MAX_PROBLEMS)
        title = f"{least}{count:,} rows are wrong; on_bad_row skip (--on-bad-row skip) leaves them out"
        super().__init__("\n  ".join([title, *messages, *more]))


class Problems:
    """Collects the errors of rows, to raise them as one."""

    def __init__(self) -> None:
        self.messages, self.count = list[str](), 0

    def add(self, error: UserError) -> None:
        several = error.messages if isinstance(error, BadRows) else [str(error)]
        self.count += error.count if isinstance(error, BadRows) else 1
        self.messages += several[: PROBLEMS - len(self.messages)]

    @property
    def full(self) -> bool:
        """Whether there are so many that no more are looked for."""
        return self.count >= MAX_PROBLEMS

    def check(self) -> None:
        """Raise what there is."""
        if self.count == 1:
            raise UserError(self.messages[0])
        if self.count:
            raise BadRows(self.messages, self.count)
