"""Rows of a table into examples: which columns count, which rows are left out, and which are held out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np

from weft.data.cells import DecimalMarks, is_blank
from weft.data.chance import key_of, shuffled
from weft.data.columns import file_of, find_columns
from weft.data.tables import Table
from weft.errors import UserError, shown
from weft.text.records import Record
from weft.text.row_problems import Problems, Skipped

FEW = 4  # rows; from fewer nothing can be learned
INPUTS = ("text", "pair", "source", "target", "context", "question", "vector")  # a row that lacks one is empty
TARGETS = ("label", "value")
NO_LABEL = ("nan", "<na>", "nat", "#n/a", "n/a", "null")  # as pandas, Excel and SQL write a cell that holds nothing
LONG = 1_000_000  # characters; a longer text is announced before work on it begins

E = TypeVar("E")
Advance = Callable[[int], None]
Read = Callable[[Record, Mapping[str, str]], E]
Begin = Callable[[Record], tuple[Mapping[str, str], Callable[[Record], E]]]


def is_empty(record: Record, columns: Mapping[str, str]) -> bool:
    """Whether a row has nothing in it, or nothing to read."""
    texts = [record.values[theirs] for ours, theirs in columns.items() if ours in INPUTS and theirs in record.values]
    return any(map(is_blank, texts)) or all(map(is_blank, record.values.values()))


def is_unlabeled(record: Record, columns: Mapping[str, str]) -> bool:
    """Whether the cell of the label, or value, holds nothing."""
    cells = [record.values[theirs] for ours, theirs in columns.items() if ours in TARGETS and theirs in record.values]
    nothing = (*NO_LABEL, "-") if "gold_label" in columns.values() else NO_LABEL  # SNLI: people did not agree
    return any(is_blank(cell) or str(cell).strip().casefold() in nothing for cell in cells)


def examples_of(
    table: Table, needed: Sequence[str], read: Read[E], skipped: Skipped, progress: Advance | None = None
) -> Iterator[E]:
    """The rows of a table that have these columns, each as `read` makes an example of it."""

    def begin(record: Record) -> tuple[Mapping[str, str], Callable[[Record], E]]:
        columns = find_columns(needed, table.columns, record, skipped.note)
        skipped.columns |= columns
        marks = DecimalMarks()

        def checked(record: Record) -> E:
            if "value" in columns:
                marks.check(record, columns["value"])
            return read(record, columns)

        return columns, checked

    return read_table(table, begin, skipped, progress)


def read_table(table: Table, begin: Begin[E], skipped: Skipped, progress: Advance | None = None) -> Iterator[E]:
    """The rows of a table as examples, one at a time.

    `begin` gets the first row of each file and returns the columns that count and the function that reads a row. Bad
    rows stop, all of them in one error, or are counted. Empty rows, and those without a label where most have one, are
    left out and counted.
    """
    columns: Mapping[str, str] = {}
    read: Callable[[Record], E] | None = None
    before, labeled, problems = "", 0, Problems()
    records = table.records(skipped)
    while not problems.full:
        try:
            record = next(records, None)
        except UserError as error:
            problems.add(error)
            break
        if record is None:
            break
        if (name := file_of(record.where, before)) != before or read is None:
            (columns, read), before = begin(record), name
        if progress is not None:
            progress(1)
        if is_empty(record, columns):
            skipped.empty.add(record.where)
            continue
        if is_unlabeled(record, columns):
            skipped.unlabeled.add(record.where)
            continue
        labeled += 1
        try:
            example = read(record)
        except UserError as error:
            if table.on_bad_row == "stop":
                problems.add(error)
            else:
                skipped.add(str(error))
            continue
        if not problems.count:
            yield example
    problems.check()
    lost = skipped.unlabeled
    if lost.count > labeled:
        column = next(theirs for ours, theirs in columns.items() if ours in TARGETS)
        raise UserError(
            f"{file_of(lost.first)}: {lost.count:,} of {lost.count + labeled:,} rows "
            f"have nothing in column {shown(column)!r}: is it the label? --column label=NAME names another"
        )


def long_note(texts: Sequence[str], where: str, stride: int, cutting: bool) -> str | None:
    """A note on a text that takes long; None for any other. `cutting`: only its first window is read."""
    size = max(map(len, texts), default=0)
    if size <= LONG:
        return None
    windows = f"about {max(1, round(size / 4 / stride)):,} windows"  # a token has about four letters
    rest = "of which the first window is read" if cutting else windows
    return f"{where}: a text of {size / 1e6:.1f} million characters, {rest}: it takes a while"


def check_rows(count: int, where: str) -> None:
    if not count:
        raise UserError(f"{where}: there are no rows")
    if count < FEW:
        raise UserError(
            f"{where}: {count} row{'s are' if count > 1 else ' is'} too few to learn from; {FEW} are the least"
        )


@dataclass(frozen=True)
class Dataset(Generic[E]):
    """The examples of a run: those to learn from, and those that it is evaluated on."""

    examples: list[E]  # all of them, in the order of the files
    train_numbers: Sequence[int]
    dev_numbers: Sequence[int]
    hashes: dict[str, str]
    held_out: list[str] | None = None  # where the dev examples stand, if they were drawn from the others
    columns: Mapping[str, str] = field(default_factory=dict)  # file's names of columns that have no usual name
    parts: tuple[int, ...] = ()  # how many examples come from each kind of file
    labeled_dev: bool = True  # whether the dev examples have targets; else those of a teacher take their place

    @cached_property
    def train(self) -> list[E]:
        return [self.examples[number] for number in self.train_numbers]

    @cached_property
    def dev(self) -> list[E]:
        return [self.examples[number] for number in self.dev_numbers]

    def with_more(self, new: list[E]) -> Dataset[E]:
        """The same with further examples to learn from."""
        numbers = range(len(self.examples), len(self.examples) + len(new))
        return replace(
            self,
            examples=[*self.examples, *new],
            parts=(*self.parts, len(new)),
            train_numbers=[*self.train_numbers, *numbers],
        )


def split(groups: Sequence[Any], share: float, seed: int) -> tuple[list[int], list[int]]:
    """Numbers of the rows to learn from and of those held out, the same share of every group (stratified)."""
    places: dict[Any, list[int]] = {}
    for number, group in enumerate(groups):
        places.setdefault(group, []).append(number)
    # The whole share is held out even where no group alone is large enough to give a row: the remainder goes to the
    # groups that came nearest to one more. Of each group something stays to learn from.
    wanted = {group: min(int(share * len(there)), len(there) - 1) for group, there in places.items()}
    left = max(1, round(share * len(groups))) - sum(wanted.values())
    nearest = sorted(places, key=lambda group: (wanted[group] - share * len(places[group]), str(group)))
    for group in [group for group in nearest if wanted[group] < len(places[group]) - 1][: max(0, left)]:
        wanted[group] += 1
    held: list[int] = []
    for group, there in places.items():
        order = shuffled(key_of(seed, "split", str(group)), np.arange(len(there)), len(there))
        held += [there[number] for number in order[: wanted[group]].tolist()]
    if not held:  # every row is a group of its own
        held = shuffled(key_of(seed, "split"), np.arange(len(groups)), len(groups))[:1].tolist()
    kept = sorted(set(range(len(groups))) - set(held))
    return kept, sorted(held)


def split_whole(groups: Sequence[Any], share: float, seed: int) -> tuple[list[int], list[int]]:
    """As `split`, but a group is never parted: questions about one text are not on both sides."""
    names = list(dict.fromkeys(groups))
    order = shuffled(key_of(seed, "split"), np.arange(len(names)), len(names)).tolist()
    counts = Counter(groups)
    held: set[Any] = set()
    total = 0
    for number in order:
        if held and total >= share * len(groups) or len(held) + 1 >= len(names):
            break
        held.add(names[number])
        total += counts[names[number]]
    if not held:  # one text only: its questions are parted after all
        return split(["" for _ in groups], share, seed)
    return (
        [number for number, group in enumerate(groups) if group not in held],
        [number for number, group in enumerate(groups) if group in held],
    )
