"""What readers yield: records, and a UserError for a bad row; and what is reported of rows that cannot be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.errors import UserError, did_you_mean, listed, shown

MAX_COLUMNS = 100_000  # of a table
FEW_NOTES = 3  # files that are named one by one where the same is noted of them


@dataclass(frozen=True)
class Record:
    """One row of somebody's data and the place it was read from."""

    values: dict[str, Any]
    where: str
    likely: Mapping[str, str] = field(default_factory=dict)  # of a file's first row: what its columns look like
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # and the least and largest whole numbers
    problem: str | None = None  # of a row that cannot be read, where such rows keep their place


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

    def lines(self) -> list[str]:
        """The whole report, in lines."""
        files: dict[str, list[str]] = {}  # what was noted -> of which files
        for note in self.notes:
            name, _, what = note.partition(": ")
            files.setdefault(what, []).append(name)
        lines = list[str]()
        for note in self.notes:
            name, _, what = note.partition(": ")
            if len(files[what]) <= FEW_NOTES or not what:
                lines.append(note)
            elif name == files[what][0]:
                lines.append(f"{name} and {len(files[what]) - 1:,} other files: {what}")
        for places, what, lack in ((self.empty, "empty row", ""), (self.unlabeled, "row", " without a label")):
            if places.count:
                rows = f"{places.count:,} {what}{'s' * (places.count > 1)}{lack}"
                lines.append(f"left out {rows}; the first: {places.first}")
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


@dataclass(frozen=True, kw_only=True)
class Options:
    """How the caller wants the files read."""

    format: str | None = None  # one of FORMATS; None: as the name or the content shows
    columns: Sequence[str] | None = None  # names for a table without a header line, otherwise columns that must exist
    header: bool = True
    delimiter: str | None = None
    documents: str = "line"  # what a document of a txt file is: one of DOCUMENTS
    on_bad_row: str = "stop"  # one of ON_BAD_ROW
    skipped: Skipped | None = None  # takes notes on detected delimiters and encodings too
    encoding: str | None = None
    text_column: str | None = None  # only the texts, as `read_texts` gives them

    @property
    def needed(self) -> Sequence[str]:
        """The columns that must be there."""
        return (self.columns or ()) if self.text_column is None else [self.text_column]


Rows = Iterator[Record | UserError]


def need_columns(there: Sequence[str], options: Options, where: str) -> None:
    """Stop where a column that the caller needs is not there."""
    names = set(there) if options.needed else ()
    for name in options.needed:
        if name not in names:
            has = f"it has {listed(shown(each) for each in there)}" if there else "it has none"
            raise UserError(f"{where}: no column {shown(name)!r}; {has}{did_you_mean(name, there)}")


def check_columns(count: int, where: str) -> None:
    """Stop at a table that has more columns than any."""
    if count > MAX_COLUMNS:
        raise UserError(f"{where}: {count:,} columns; at most {MAX_COLUMNS:,} are read")


def check_names(where: str, names: Sequence[str]) -> None:
    """Stop where a column has no name, or two have the same."""
    check_columns(len(names), where)
    seen = set[str]()
    for place, name in enumerate(names, start=1):
        if not name:
            raise UserError(f"{where}: column {place} has no name")
        if name in seen:
            raise UserError(f"{where}: two columns are named {shown(name)!r}")
        seen.add(name)


MAX_LENGTH = 1 << 23  # characters of one text; where places in it are asked for, half as many
PART = 1 << 16  # characters that go through a tokenizer at a time: it takes some hundred bytes for each
TOGETHER = 1 << 20  # characters of several texts that do


def length_of(text: str | Sequence[str]) -> int:
    """Characters of a text, or of its words; what is neither is refused elsewhere, by name."""
    if isinstance(text, str):
        return len(text)
    words = text if isinstance(text, list | tuple) else ()
    return sum(len(word) for word in words if isinstance(word, str))


def length_problem(text: str | Sequence[str], max_length: int | None = None) -> str | None:
    """What is wrong with a text that is longer than any model reads; None where nothing is."""
    size, limit = length_of(text), max_length or MAX_LENGTH
    return None if size <= limit else f"a text of {size:,} characters; at most {limit:,} are read at a time: split it"


def check_length(text: str | Sequence[str], where: str) -> None:
    """Refuse a text that would take all memory when it is cut into tokens."""
    if wrong := length_problem(text):
        raise UserError(f"{where}: {wrong}")


def parts_of(text: str, size: int) -> Iterator[str]:
    """A long text in parts that the tokenizer cuts as it would the whole: a part begins at the space before a word."""
    begin = 0
    while len(text) - begin > size:
        end = text.rfind(" ", begin + 1, begin + size)
        while end > 0 and text[end + 1].isspace():
            end = text.rfind(" ", begin + 1, end)
        end = end if end > 0 else begin + size
        yield text[begin:end]
        begin = end
    yield text[begin:]
