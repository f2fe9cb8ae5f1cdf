"""People's tables into examples of a task: which columns, which labels, and what is wrong in which line."""

from __future__ import annotations

import ast
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from weft.data.chance import key_of, shuffled
from weft.data.columns import file_of, find_columns
from weft.errors import UserError, did_you_mean, listed, shown
from weft.tasks.base import Example
from weft.text.long_texts import check_length
from weft.text.records import Record
from weft.text.row_problems import Problems, Skipped
from weft.text.table_layout import ZERO_ONE

LARGEST_VALUE = 1e30  # of a number to learn: squares and sums of larger ones overflow
FEW = 4  # rows; from fewer nothing can be learned


Read = Callable[[Record, Mapping[str, str]], Example]


class RowSource(Protocol):
    """Where rows come from: a table, or files that belong together line for line."""

    @property
    def columns(self) -> Mapping[str, str]: ...
    @property
    def on_bad_row(self) -> str: ...
    def records(self, skipped: Skipped | None = None) -> Iterator[Record]: ...


def value_in(record: Record, column: str) -> Any:
    """What a row has in a column; lines of JSON may lack what the first of them has."""
    if column not in record.values:
        has = listed([shown(each) for each in record.values], 12) or "none"
        raise UserError(f"{record.where}: no column {shown(column)!r}; it has {has}")
    return record.values[column]


def text_in(record: Record, column: str) -> str:
    value = value_in(record, column)
    if not isinstance(value, str):
        if value is None or isinstance(value, list | dict):
            raise UserError(f"{record.where}: column {shown(column)!r} holds {_kind(value)}, not text")
        value = str(value)
    if not value.strip():
        raise UserError(f"{record.where}: column {shown(column)!r} is empty")
    check_length(value, f"{record.where}: column {shown(column)!r}")
    return value


def word_in(record: Record, column: str) -> str:
    """A label: a word, or a number taken for one."""
    value = value_in(record, column)
    if isinstance(value, list) and len(value) == 1:  # as Doccano writes it
        value = value[0]
    if isinstance(value, list) and value:
        raise UserError(
            f"{record.where}: column {shown(column)!r} holds {len(value)} labels; for several: --task multilabel"
        )
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool | int | str):
        found = str(value).strip()
        if found:
            return found
        raise UserError(f"{record.where}: column {shown(column)!r} is empty: no label")
    raise UserError(f"{record.where}: column {shown(column)!r} holds {_kind(value)}, not a label")


def is_one(record: Record, column: str) -> bool:
    """Whether a column of 0 and 1 holds 1; an empty cell is 0."""
    value = value_in(record, column)
    text = "" if is_blank(value) else str(value).strip().casefold()
    if text not in ("", *ZERO_ONE):
        raise UserError(f"{record.where}: column {shown(column)!r} holds {shown(text)!r}, not 0 or 1")
    return text in ("1", "1.0", "true")


THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:(,\d{3}){2,}|(,\d{3})+\.\d+)")  # 1,234,567 and 1,234.5
EUROPEAN = re.compile(r"[-+]?(\d{1,3}(\.\d{3})+|\d*),\d+|[-+]?\d{1,3}(\.\d{3}){2,}")  # 3,5 and 1.234,5 and 1.234.567
UNCLEAR = re.compile(r"[-+]?[1-9]\d{0,2},\d{3}")  # 1,234: as much as 1234, or a little more than 1


def number_in(record: Record, column: str) -> float:
    """A number, also with a decimal comma or with marks between thousands where that is beyond doubt."""
    value = value_in(record, column)
    text = value.strip() if isinstance(value, str) else ""
    if UNCLEAR.fullmatch(text):
        meanings = f"{text.replace(',', '')} or {text.replace(',', '.')}"
        raise UserError(
            f"{record.where}: column {shown(column)!r} holds {text!r}: {meanings}? write it without a comma"
        )
    if THOUSANDS.fullmatch(text):
        value = text.replace(",", "")
    elif EUROPEAN.fullmatch(text):
        value = text.replace(".", "").replace(",", ".")
    try:
        number = float(value) if not isinstance(value, bool) and "_" not in text else math.nan
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"{record.where}: column {shown(column)!r} holds {shown(str(value))!r}, not a number")
    if abs(number) > LARGEST_VALUE:
        raise UserError(
            f"{record.where}: column {shown(column)!r} holds {shown(str(value))!r}; values go up to {LARGEST_VALUE:g}"
        )
    return number


class DecimalMarks:
    """Refuses a file whose values have a decimal comma in one row and a point in another: 2.000 is then 2 or 2000."""

    def __init__(self) -> None:
        self.first: dict[str, tuple[str, str]] = {}  # mark -> where it came first, and in which value

    def check(self, record: Record, column: str) -> None:
        value = record.values.get(column)
        text = value.strip() if isinstance(value, str) else ""
        if not re.search(r"\d", text) or not re.search("[.,]", text):
            return
        mark = "," if EUROPEAN.fullmatch(text) else "."
        self.first.setdefault(mark, (record.where, text))
        if len(self.first) > 1:
            where, before = self.first["." if mark == "," else ","]
            raise UserError(
                f"{record.where}: column {shown(column)!r} holds {shown(text)!r}, and {shown(before)!r} in {where}: "
                "use one decimal mark in the whole column"
            )


def words_in_list(record: Record, column: str) -> tuple[str, ...]:
    """Several labels: a list, or a text cut at line breaks, '|', ';' or ','."""
    value = list_in(record, column)
    if isinstance(value, str):
        mark = next((mark for mark in "\n|;," if mark in value), None)
        value = value.split(mark) if mark else [value]
    if not isinstance(value, list) or not all(isinstance(item, str | int) for item in value):
        raise UserError(f"{record.where}: column {shown(column)!r} holds {_kind(value)}, not a list of labels")
    return tuple(dict.fromkeys(str(item).strip() for item in value if str(item).strip()))


def list_in(record: Record, column: str) -> Any:
    """What a row has in a column; a list that was written into a cell, as JSON or by Python, is read as one."""
    value = value_in(record, column)
    if not isinstance(value, str) or not re.fullmatch(r"\[.*\]|\{\s*['\"].*['\"]\s*\}", value.strip(), re.DOTALL):
        return value
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        try:
            found = ast.literal_eval(value.strip())  # reads literals, and runs nothing
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            raise UserError(f"{record.where}: column {shown(column)!r} holds no list: {shown(value)}") from None
    if isinstance(found, set):
        found = sorted(found, key=str)
    if not isinstance(found, list):
        raise UserError(f"{record.where}: column {shown(column)!r} holds no list: {shown(value)}")
    return found


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


INPUTS = ("text", "pair", "source", "target", "context", "question", "vector")  # a row that lacks one is empty
TARGETS = ("label", "value")
NO_LABEL = ("nan", "<na>", "nat", "#n/a", "n/a", "null")  # as pandas, Excel and SQL write a cell that holds nothing


def is_blank(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip()) or value != value


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
    files: RowSource, needed: Sequence[str], read: Read, skipped: Skipped, progress: Callable[[int], None] | None = None
) -> Iterator[Example]:
    """The examples of some files, one at a time; bad rows stop, all told at once, or are passed over and counted.

    Empty rows, and those without a label where most have one, are left out and counted.
    """

    def begin(record: Record) -> tuple[dict[str, str], Callable[[Record], Example]]:
        columns = find_columns(needed, files.columns, record, skipped.note)
        skipped.columns |= columns
        marks = DecimalMarks()

        def one(record: Record) -> Example:
            if "value" in columns:
                marks.check(record, columns["value"])
            return read(record, columns)

        return columns, one

    return read_all(files, begin, skipped, progress)


def read_all(
    files: RowSource,
    begin: Callable[[Record], tuple[Mapping[str, str], Callable[[Record], Example]]],
    skipped: Skipped,
    progress: Callable[[int], None] | None = None,
) -> Iterator[Example]:
    """As `examples_of`; `begin` says by the first row of each file which columns count and how a row is read."""
    columns: Mapping[str, str] = {}
    read: Callable[[Record], Example] | None = None
    before, labeled, problems = "", 0, Problems()
    records = files.records(skipped)
    while True:
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
            if files.on_bad_row == "stop":
                problems.add(error)
                if problems.full:
                    break
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


LONG = 1_000_000  # characters; a longer text is announced before work on it begins


def long_note(texts: Sequence[str], where: str, stride: int, cutting: bool) -> str | None:
    """What is said of a text that takes long; None of any other. `cutting`: only its first window is read."""
    size = max(map(len, texts), default=0)
    if size <= LONG:
        return None
    windows = f"about {max(1, round(size / 4 / stride)):,} windows"  # a token has about four letters
    rest = "of which the first window is read" if cutting else windows
    return f"{where}: a text of {size / 1e6:.1f} million characters, {rest}: it takes a while"


# ------------------------------------------------------------------------------------------------------------ labels


def in_order(labels: Sequence[str]) -> tuple[str, ...]:
    """Labels in an order that does not hang on the file: numbers by size, words by letters."""
    if all(re.fullmatch(r"-?\d{1,9}", label) for label in labels):
        return tuple(sorted(labels, key=lambda label: (int(label), label)))
    return tuple(sorted(labels))


def alike_note(labels: Sequence[str]) -> str | None:
    """A line about labels that are most likely one label, written in several ways; None where there are none."""
    ways: dict[str, list[str]] = {}
    for label in labels:
        ways.setdefault(" ".join(label.casefold().split()), []).append(label)
    several = [repr(shown(label)) for same in ways.values() if len(same) > 1 for label in same]
    if not several:
        return None
    return f"labels that differ only in case or spaces are learned as different ones: {listed(several, 6)}"


def number_of(label: str, labels: Mapping[str, int], where: str) -> int:
    """The number of a label; one that is not there is named with the nearest that is."""
    if label not in labels:
        raise UserError(
            f"{where}: label {shown(label)!r} is not one of {listed(labels, 12)}{did_you_mean(label, labels)}"
        )
    return labels[label]


def check_labels(found: Counter[str], labels: Sequence[str], where: str) -> None:
    """Refuse what nothing can be learned from: one label only, or a label that no row has."""
    empty = [label for label in labels if not found[label]]
    if empty:
        raise UserError(f"{where}: no row has the label {shown(empty[0])!r}, so nothing can be learned about it")
    if len(found) == found.total() >= FEW:
        raise UserError(f"{where}: each of the {len(found)} rows has a label of its own; for numbers: --task regress")
    if found.total() >= 20 and len(found) > 0.8 * found.total():
        raise UserError(
            f"{where}: {len(found):,} different labels for {found.total():,} rows, such as "
            f"{shown(next(iter(found)))!r}: they look like ids; name the column of labels: "
            "--column label=NAME; for numbers: --task regress"
        )
    if len(labels) < 2 and len(found) < 2:
        only = f"every row has the label {shown(labels[0])!r}" if labels else "no row has a label"
        raise UserError(f"{where}: {only}: there is nothing to tell apart")


def check_rows(count: int, where: str) -> None:
    if not count:
        raise UserError(f"{where}: there are no rows")
    if count < FEW:
        raise UserError(
            f"{where}: {count} row{'s are' if count > 1 else ' is'} too few to learn from; {FEW} are the least"
        )


def split(groups: Sequence[Any], share: float, seed: int) -> tuple[list[int], list[int]]:
    """Numbers of the rows to learn from and of those held out, the same share of every group (stratified)."""
    places: dict[Any, list[int]] = {}
    for number, group in enumerate(groups):
        places.setdefault(group, []).append(number)
    # The whole share is held out also where no group alone is large enough to give one: what is left over goes to the
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
    """As `split`, but what is of one group stays together: questions about one text are not on both sides."""
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
