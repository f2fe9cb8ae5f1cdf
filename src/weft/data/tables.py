"""The one reader of tables: rows of files, folders and memory, and the examples that tasks make of them."""

from __future__ import annotations

import glob
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import chain, groupby
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from weft.data.chance import key_of, shuffled
from weft.data.columns import OURS, DecimalMarks, file_of, find_columns, is_blank
from weft.data.parts import (
    ClassFolder,
    LinePairs,
    MemoryRows,
    Note,
    ReadOptions,
    TableFile,
    TablePart,
    chosen_split,
    is_class_folder,
    is_names,
    rows_in_memory,
    saved_dataset,
)
from weft.data.shards import TextFiles
from weft.errors import UserError, listed, one_of, shown
from weft.text.records import ON_BAD_ROW, Record
from weft.text.rows import Problems, Skipped
from weft.text.sources import known_encoding, name_of
from weft.text.tables import likely_columns

LOOK = 100  # rows of a file that show which column is which
CHARACTERS = 1 << 20  # and characters at most


@dataclass(frozen=True)
class Table:
    """Rows of data, and how they are read.

    `data`: names of files, globs and folders; or rows in memory, as `weft.data.parts` knows them.
    """

    data: Any
    columns: Mapping[str, str] = field(default_factory=dict)  # what a task calls a column -> what the file calls it
    format: str | None = None
    delimiter: str | None = None
    names: Sequence[str] = ()  # of the columns of a file without a header line
    on_bad_row: str = "stop"
    encoding: str | None = None  # by the bytes of each file
    split: str = "train"  # of a folder that has several: train, or test
    target: tuple[str, ...] = ()  # files whose lines are the targets of those in `data`

    def __post_init__(self) -> None:
        for name in self.columns:
            one_of(name, OURS, "column")
        one_of(self.on_bad_row, ON_BAD_ROW, "on_bad_row")
        object.__setattr__(self, "names", tuple(self.names))
        data = self.data
        if is_names(data):
            data = tuple(os.fspath(name) for name in ([data] if isinstance(data, str | os.PathLike) else data))
        else:
            data = rows_in_memory(data)
        object.__setattr__(self, "data", data)

    @classmethod
    def parallel(
        cls, source: tuple[str, ...], target: tuple[str, ...], on_bad_row: str = "stop", encoding: str | None = None
    ) -> Table:
        """Files that belong together line for line, read as a table of two columns."""
        one_of(on_bad_row, ("stop", "skip"), "on_bad_row")
        for given, missing, names in (("source", "target", target), ("target", "source", source)):
            if not names:
                raise UserError(f"--{given} has nothing beside it: give --{missing} FILE too")
        return cls(source, on_bad_row=on_bad_row, encoding=encoding, target=target)

    @property
    def in_memory(self) -> bool:
        return isinstance(self.data, MemoryRows)

    @property
    def name(self) -> str:
        """What messages call it: 'a.csv, b.csv and 2 more'."""
        if self.in_memory:
            return self.data.name
        return listed([Path(name_of(path)).name for path in self.paths()], 2)

    def paths(self, note: Note = lambda text: None) -> list[Path]:
        """The files, and folders of classes; none where the rows are in memory."""
        return [path for part in self._parts(note) for path in part.paths()]

    def absolute(self, note: Note) -> list[str]:
        """Names that mean the same from any folder; a folder of classes stays one name."""
        return [str(path.absolute()) for path in self.paths(note)]

    def _parts(self, note: Note = lambda text: None) -> list[TablePart]:
        if self.in_memory:
            return [self.data]
        if self.target:
            sources, targets = TextFiles(self.data).paths(), TextFiles(self.target).paths()
            if len(sources) != len(targets):
                raise UserError(f"{len(sources)} files of sources, but {len(targets)} of targets")
            return [LinePairs(*pair) for pair in zip(sources, targets, strict=True)]
        parts = dict[TablePart, None]()
        for name in self.data:
            folder = _folder(name)
            if folder is not None and self.format is None:
                folder = chosen_split(folder, self.split, note)
                if is_class_folder(folder):
                    parts[ClassFolder(folder)] = None
                    continue
                if files := saved_dataset(folder):
                    parts.update({TableFile(path): None for path in files})
                    continue
                name = str(folder)
            parts.update({TableFile(path): None for path in TextFiles((name,)).paths()})
        return list(parts)

    def records(self, skipped: Skipped | None = None) -> Iterator[Record]:
        """Every row, one at a time; a bad one stops, or is passed over and counted.

        The first row of each file says which columns are likely what, by the rows after it.
        """
        skipped = Skipped() if skipped is None else skipped
        if self.encoding is not None:
            known_encoding(self.encoding)
        parts = self._parts(skipped.note)  # before anything is read
        options = ReadOptions(self.format, self.delimiter, tuple(self.names), self.on_bad_row, self.encoding)
        return chain.from_iterable(_with_likely(part.records(options, skipped)) for part in parts)

    def hash(self) -> str:
        """What is in the files, not what they are called; rows in memory have the hash of the file they make."""
        how = [dict(self.columns), self.format, self.delimiter, self.names]
        whole = hashlib.sha256(json.dumps(how if self.encoding is None else [*how, self.encoding]).encode())
        if self.target:
            whole = hashlib.sha256(b"parallel")
        for part in self._parts():
            for digest in part.digests():
                whole.update(digest)
        return whole.hexdigest()


def _folder(name: str) -> Path | None:
    """The folder of this name, here or where $WEFT_DATA says that data lies."""
    elsewhere = os.environ.get("WEFT_DATA")
    places = [Path(name), *([Path(elsewhere) / name] if elsewhere and not os.path.isabs(name) else [])]
    return next((path for path in places if "\0" not in name and path.is_dir()), None)


def _with_likely(records: Iterator[Record]) -> Iterator[Record]:
    """The same records; the first of each file knows what its columns look like."""
    name = ""

    def file(record: Record) -> str:
        nonlocal name
        name = file_of(record.where, name)
        return name

    for _, rest in groupby(records, file):
        first, size = list[Record](), 0
        for record in rest:
            first.append(record)
            size += sum(len(value) for value in record.values.values() if isinstance(value, str))
            if len(first) >= LOOK or size > CHARACTERS:
                break
        yield replace(first[0], likely=likely_columns([record.values for record in first]))
        yield from first[1:]
        yield from rest  # noqa: B031  (what the loop above has left)


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
        return {key: [str(self._path(out, key))] for key in self.tables}

    def write(self, out: str) -> None:
        for key, table in self.tables.items():
            table.data.write(self._path(out, key))

    def _path(self, out: str, key: str) -> Path:
        return Path(out).absolute() / "run" / "data" / f"{self.FILES[key]}.jsonl"


def is_section(data: Any, kind: type[Any]) -> bool:
    """Whether a dict is a section of a recipe, `{"files": [...], "holdout": 0.2}`, rather than columns of rows."""
    if not isinstance(data, Mapping) or not set(data) <= {entry.name for entry in fields(kind)}:
        return False
    # Two lists, of texts to read and of texts to write, have the names of two keys that stand for files.
    sides = [
        side for side in (data.get("source"), data.get("target")) if isinstance(side, list | tuple) and len(side) > 3
    ]
    texts = len(data) == len(sides) == 2 and not any(os.path.exists(str(side[0])) for side in sides)
    return not (texts and not any(glob.has_magic(str(side[0])) for side in sides))


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
