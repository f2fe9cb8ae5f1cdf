"""The examples that tasks make of the rows of tables: read, checked and split."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from weft.data.chance import key_of, shuffled
from weft.data.columns import check_decimal_mark, file_of, find_columns, is_blank
from weft.data.tables import Table
from weft.errors import UserError, refuse, shown
from weft.text.records import Record
from weft.text.rows import Problems, Skipped


class RunRows:
    """Rows in memory that a run is given: they are written into its folder, where `weft resume` finds them again."""

    FILES = {"files": "train", "dev": "dev", "text": "text"}  # key in [data] -> name of the file

    def __init__(self) -> None:
        self.tables: dict[str, Table] = {}

    def names(self, key: str, data: Any) -> list[str]:
        """What a recipe says for this key: names of files as they are given, or where the rows will be."""
        table = Table(data)
        if not table.in_memory:
            return list(table.data)
        self.tables[key] = table
        return [f"run/data/{self.FILES[key]}.jsonl"]

    def paths(self, out: str) -> dict[str, list[str]]:
        """Where the rows will be, by key."""
        folder = Path(out).absolute() / "run" / "data"
        return {key: [str(folder / f"{self.FILES[key]}.jsonl")] for key in self.tables}

    def write(self, out: str) -> None:
        for key, (path,) in self.paths(out).items():
            self.tables[key].data.write(Path(path))


def is_section(data: Any, kind: type[Any]) -> bool:
    """Whether a dict is a section of a recipe, `{"files": [...], "holdout": 0.2}`, rather than columns of rows."""
    if not isinstance(data, Mapping) or not set(data) <= {entry.name for entry in fields(kind)}:
        return False
    # Two lists, of texts to read and of texts to write, have the names of two keys that stand for files.
    sides = [data.get(name) for name in ("source", "target")]
    firsts = [str(side[0]) for side in sides if isinstance(side, list | tuple) and len(side) > 3]
    return len(data) != 2 or len(firsts) != 2 or any(os.path.exists(name) or glob.has_magic(name) for name in firsts)


class Unlabeled(UserError):
    """A row without a label, where one is expected."""


FEW = 4  # rows; from fewer nothing can be learned
INPUTS = ("text", "pair", "source", "target", "context", "question", "vector")  # a row that lacks one is empty
TARGETS = ("label", "value")
NO_LABEL = ("nan", "<na>", "nat", "#n/a", "n/a", "null")  # as pandas, Excel and SQL write a cell that holds nothing
LONG = 1_000_000  # characters; a longer text is announced before work on it begins

E = TypeVar("E")
Advance = Callable[[int], None]
Read = Callable[[Record, Mapping[str, str]], E]
Begin = Callable[[Record], tuple[Mapping[str, str], Callable[[Record], E]]]


def examples_of(
    table: Table, needed: Sequence[str], read: Read[E], skipped: Skipped, progress: Advance | None = None
) -> Iterator[E]:
    """The rows of a table that have these columns, each as `read` makes an example of it."""
    return read_table(table, begin_with(table, needed, read, skipped), skipped, progress)


def begin_with(table: Table, needed: Sequence[str], read: Read[E], skipped: Skipped) -> Begin[E]:
    """How `read_table` begins a file: by these columns, each row as `read` makes an example of it."""

    def begin(record: Record) -> tuple[Mapping[str, str], Callable[[Record], E]]:
        columns = find_columns(needed, table.columns, record, skipped.note)
        skipped.columns |= columns
        marks = dict[str, tuple[str, str]]()  # decimal mark -> where it came first, and in which value

        def checked(record: Record) -> E:
            if "value" in columns:
                check_decimal_mark(marks, record, columns["value"])
            return read(record, columns)

        return columns, checked

    return begin


def read_table(table: Table, begin: Begin[E], skipped: Skipped, progress: Advance | None = None) -> Iterator[E]:
    """The rows of a table as examples; empty ones, and those without a label where most have one, are left out.

    `begin` gets the first row of each file and returns the columns that count and the function that reads a row.
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
        cells = {ours: record.values[theirs] for ours, theirs in columns.items() if theirs in record.values}
        blank = any(is_blank(cell) for ours, cell in cells.items() if ours in INPUTS)
        if blank or all(map(is_blank, record.values.values())):
            skipped.empty.add(record.where)
            continue
        nothing = (*NO_LABEL, "-") if "gold_label" in columns.values() else NO_LABEL  # SNLI: people did not agree
        targets = [cell for ours, cell in cells.items() if ours in TARGETS]
        if any(is_blank(cell) or str(cell).strip().casefold() in nothing for cell in targets):
            skipped.unlabeled.add(record.where)
            continue
        try:
            example = read(record)
            labeled += 1
        except Unlabeled:
            skipped.unlabeled.add(record.where)
            continue
        except UserError as error:
            labeled += 1
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
        column = next((shown(theirs) for ours, theirs in columns.items() if ours in TARGETS), None)
        where = f" in column {column!r}: is it the label? --column label=NAME names another" if column else ""
        raise UserError(f"{file_of(lost.first)}: {lost.count:,} of {lost.count + labeled:,} rows have no label{where}")


def long_note(texts: Sequence[str], where: str, stride: int, cutting: bool) -> str | None:
    """A note on a text that takes long; None for any other. `cutting`: only its first window is read."""
    size = max(map(len, texts), default=0)
    if size <= LONG:
        return None
    windows = f"about {max(1, round(size / 4 / stride)):,} windows"  # a token has about four letters
    rest = "of which the first window is read" if cutting else windows
    return f"{where}: a text of {size / 1e6:.1f} million characters, {rest}: it takes a while"


def check_rows(count: int, where: str) -> None:
    too_few = f"{count} row{'s are' if count > 1 else ' is'} too few to learn from; {FEW} are the least"
    refuse((not count, f"{where}: there are no rows"), (count < FEW, f"{where}: {too_few}"))


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
        examples = [*self.examples, *new]
        numbers = [*self.train_numbers, *range(len(self.examples), len(examples))]
        return replace(self, examples=examples, parts=(*self.parts, len(new)), train_numbers=numbers)


def split(groups: Sequence[Any], share: float, seed: int) -> tuple[list[int], list[int]]:
    """Numbers of the rows to learn from and of those held out, the same share of every group (stratified)."""
    places: dict[Any, list[int]] = {}
    for number, group in enumerate(groups):
        places.setdefault(group, []).append(number)
    # Where no group alone is large enough to give a row, the groups that came nearest to one more do.
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
    counts = Counter(groups)  # in the order of their first rows
    names, held, total = list(counts), set[Any](), 0
    for number in shuffled(key_of(seed, "split"), np.arange(len(names)), len(names)).tolist():
        if held and total >= share * len(groups) or len(held) + 1 >= len(names):
            break
        held.add(names[number])
        total += counts[names[number]]
    if not held:  # one text only: its questions are parted after all
        return split(["" for _ in groups], share, seed)
    sides: tuple[list[int], list[int]] = ([], [])
    for number, group in enumerate(groups):
        sides[group in held].append(number)
    return sides
