"""The texts and rows of a distillation: with right answers or without, read, checked and parted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from weft.data.columns import file_of
from weft.data.reading import FEW, read_table, split, split_whole
from weft.data.shards import TextFiles
from weft.data.tables import Table
from weft.distillation.recipe import DistillRecipe
from weft.distillation.sources import read_sources
from weft.errors import UserError, listed, shown
from weft.progress import Log, Progress, log_notes
from weft.runs.dataset import normalized
from weft.tasks.answer import AnswerTask
from weft.tasks.base import Example, Task
from weft.tasks.classify import TextTask
from weft.tasks.inputs import Reader
from weft.tasks.tag import TagTask, raw
from weft.text.records import Record, read_texts
from weft.text.row_problems import Skipped
from weft.training.signals import Stop

ENOUGH = 40  # rows with right answers; fewer say less about a student than its teacher does


def read_rows(task: Task, files: Table, log: Log, progress: Progress, stop: Stop) -> list[Example]:
    """All rows of some files, with or without right answers."""
    skipped, found = Skipped(), list[Example]()
    where = files.name
    answers = set[str]()

    def begin(record: Record) -> tuple[Mapping[str, str], Callable[[Record], Example]]:
        reader = Reader.of(task, record, files.columns, skipped.note)
        answers.update(reader.inputs, reader.columns)
        return reader.inputs, reader.read

    with progress(f"reading {where}", "rows") as told:
        for example in read_table(files, begin, skipped, told):
            stop.check("stopped while reading")
            found.append(example)
    log_notes(skipped.lines(), log)
    if not found:
        raise UserError(f"{where}: there are no rows")
    found = normalized(found, task.normalization(), where, log)
    lost = [name for name in files.columns if name not in answers]
    if lost:
        raise UserError(f"{where}: no column {shown(files.columns[lost[0]])!r}, which --column says is {lost[0]}")
    return found


def _texts(task: Task, recipe: DistillRecipe, log: Log) -> Iterator[Example]:
    """Unlabeled texts, one on each line of a file or in its column."""
    data, skipped = recipe.data, Skipped()
    text = TextFiles(
        data.text, data.columns.get("text", "text"), data.delimiter, "line", data.on_bad_row, data.encoding
    )
    found = read_texts(
        text.paths(),
        column=text.column,
        format=data.format,
        delimiter=text.delimiter,
        on_bad_row=text.on_bad_row,
        skipped=skipped,
        encoding=text.encoding,
    )
    for each in found:
        target = raw(each.text) if isinstance(task, TagTask) else None
        yield Example((each.text,), target, each.where)
    log_notes(skipped.lines(), log)


@dataclass(frozen=True)
class Material:
    """What a student learns from and is judged by."""

    rows: list[Example]  # all of them, in the order of the files
    parts: tuple[int, ...]  # how many are of the texts, of the rows and of those to judge by
    learned: list[int]  # numbers of those to learn from
    judged: list[int]
    by_labels: bool  # whether those to judge by have right answers; else the teacher's take their place
    hashes: dict[str, str]
    held: list[str] | None  # where the held-out examples stand, where they were drawn from the others

    @cached_property
    def train(self) -> list[Example]:
        return [self.rows[number] for number in self.learned]

    def with_more(self, new: list[Example]) -> Material:
        """The same with further examples to learn from."""
        numbers = range(len(self.rows), len(self.rows) + len(new))
        return replace(self, rows=[*self.rows, *new], parts=(*self.parts, len(new)), learned=[*self.learned, *numbers])

    @cached_property
    def dev(self) -> list[Example]:
        return [self.rows[number] for number in self.judged]


def files_of(recipe: DistillRecipe, names: Sequence[str]) -> Table:
    data = recipe.data
    return Table(tuple(names), data.columns, data.format, data.delimiter, data.names, data.on_bad_row, data.encoding)


def gather(task: Task, recipe: DistillRecipe, log: Log, progress: Progress, stop: Stop) -> Material:
    """All texts and rows of a distillation; some are held out where no others are given."""
    data = recipe.data
    rows, hashes = list[Example](), dict[str, str]()
    if data.text:
        if task.pair:
            raise UserError(
                f"a teacher for {task.name} reads two texts at a time: give rows (--data FILE with the columns "
                f"{listed(('text', 'pair') if isinstance(task, TextTask) else ('context', 'question'))}), not --text"
            )
        hashes["text"] = TextFiles(data.text).hash()
        with progress("reading the texts", "texts") as read:
            for example in _texts(task, recipe, log):
                stop.check("stopped while reading")
                rows.append(example)
                read(1)
        if not rows:
            raise UserError(f"{listed(data.text, 2)}: there is no text in it: nothing to learn from")
    texts = len(rows)
    if data.source or data.target:
        more, hashes["source"] = read_sources(task, recipe, False, log, progress, stop)
        rows += more
    lines = len(rows)
    if data.files:
        files = files_of(recipe, data.files)
        hashes["data"] = files.hash()
        rows += checked(task, read_rows(task, files, log, progress, stop), data.on_bad_row, log)
    if len(rows) < FEW:
        where = listed([*data.text, *data.source, *data.files], 2)
        raise UserError(f"{where}: {len(rows)} texts are too few to learn from; {FEW} are the least")
    parts = (texts, lines - texts, len(rows) - lines)
    if data.dev or data.dev_source or data.dev_target:
        if data.dev_source or data.dev_target:
            dev, hashes["dev"] = read_sources(task, recipe, True, log, progress, stop)
        else:
            other = files_of(recipe, data.dev)
            dev, hashes["dev"] = read_rows(task, other, log, progress, stop), other.hash()
            dev = checked(task, dev, data.on_bad_row, log)
        right = [row for row in dev if task.has_target(row)]
        judges = right or dev
        learned, judged = list(range(len(rows))), list(range(len(rows), len(rows) + len(judges)))
        return Material([*rows, *judges], (*parts, len(judges)), learned, judged, bool(right), hashes, None)
    known = [number for number, row in enumerate(rows) if task.has_target(row)]
    by_labels = len(known) >= ENOUGH
    numbers = known if by_labels else list(range(len(rows)))
    held = {numbers[place] for place in _held(task, [rows[number] for number in numbers], recipe, by_labels)}
    there = {row.texts for number, row in enumerate(rows) if number not in held}
    held = {number for number in held if rows[number].texts not in there} or held  # none is on both sides
    learned = [number for number in range(len(rows)) if number not in held]
    return Material(rows, parts, learned, sorted(held), by_labels, hashes, [rows[n].where for n in sorted(held)])


def _held(task: Task, rows: Sequence[Example], recipe: DistillRecipe, by_labels: bool) -> list[int]:
    groups: Sequence[Any] | None = ["" for _ in rows]
    if by_labels:
        groups = task.groups(rows)
    if groups is None or isinstance(task, AnswerTask):
        return split_whole([row.texts[-1] for row in rows], recipe.data.holdout, recipe.data.split)[1]
    return split(groups, recipe.data.holdout, recipe.data.split)[1]


def checked(task: Task, rows: list[Example], on_bad_row: str, log: Log) -> list[Example]:
    """The rows whose labels the teacher knows; another label stops, or the row is passed over and counted."""
    right = [row for row in rows if task.has_target(row)]
    if isinstance(task, TextTask) and task.labels and right:
        theirs = {label for row in right for label in (row.target if task.kind == "labels" else (row.target,))}
        if theirs and not theirs & set(task.labels):
            raise UserError(
                f"{file_of(right[0].where)}: no common labels: its rows have "
                f"{listed([shown(each) for each in sorted(theirs)], 6)}, the teacher says {listed(task.labels, 6)}"
            )
    if on_bad_row == "stop":
        task.check_targets(right)
        return rows
    skipped = Skipped()
    kept = []
    for row in rows:
        try:
            if task.has_target(row):
                task.check_targets([row])
            kept.append(row)
        except UserError as error:
            skipped.add(str(error))
    log_notes(skipped.lines(), log)
    return kept
