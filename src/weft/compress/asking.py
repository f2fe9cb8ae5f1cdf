"""Rows that several models are asked about: with their right answers where a file has them, without them where not."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from weft.data.shards import Text
from weft.errors import UserError, listed
from weft.tasks.judging import Task
from weft.tasks.parallel import Parallel
from weft.tasks.reading import NAMES, Example, Files, Read, examples_of, find_columns, text_in
from weft.tasks.sequences import SequenceTask
from weft.tasks.tag import TagTask, joined, raw, words_of
from weft.text.records import Record, Skipped, read_texts

RIGHT = ("label", "labels", "value", "answer", "tags", "spans", "target")  # columns of what is right
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True)
class Asked:
    """The examples of some files, one at a time, and whether what is right is known of them."""

    examples: Iterable[Example]
    labelled: bool
    where: str
    hash: str
    skipped: Skipped


def named(given: Paths | None) -> tuple[str, ...]:
    """One path or several, as words."""
    several = [given] if isinstance(given, str | os.PathLike) else list(given or ())
    return tuple(os.fspath(each) for each in several)


def asked_of(
    task: Task | None,
    card_columns: Mapping[str, str],
    data: Paths | None = None,
    *,
    source: Paths = (),
    target: Paths = (),
    columns: Mapping[str, str] | None = None,
    format: str | None = None,
    delimiter: str | None = None,
    names: Sequence[str] = (),
    on_bad_row: str = "stop",
) -> Asked:
    """The rows of a task, or, where there is none (vectors, language models), texts."""
    sources, targets = named(source), named(target)
    if bool(sources or targets) == (data is not None):
        raise UserError("rows come from a table or from files of lines: give --data, or --source and --target")
    if (sources or targets) and not isinstance(task, SequenceTask):
        raise UserError("only models that write have a source and a target: give --data")
    skipped = Skipped()
    if sources and not targets:
        return _lines(sources, skipped)
    given = {**card_columns, **(columns or {})} if not names else dict(columns or {})
    files: Files | Parallel
    if targets:
        files = Parallel(sources, targets, on_bad_row)
    else:
        files = Files(named(data), given, format, delimiter, tuple(names), on_bad_row)
    where = listed([path.name for path in files.paths()], 2)
    first = next(files.records(Skipped()), None)
    if first is None:
        raise UserError(f"{where}: there are no rows")
    if isinstance(files, Files):  # the columns of the training data may be called otherwise here
        there = {ours: theirs for ours, theirs in given.items() if theirs in first.values or ours in (columns or {})}
        files = replace(files, columns=there)
    needed, read, labelled = _reader(task, files, first, columns or {})
    return Asked(examples_of(files, needed, read, skipped), labelled, where, files.hash(), skipped)


def _reader(
    task: Task | None, files: Files | Parallel, first: Record, told: Mapping[str, str]
) -> tuple[tuple[str, ...], Read, bool]:
    """The columns to read, how a row becomes an example, and whether it knows what is right."""
    if task is None:
        return ("text",), lambda record, found: Example((text_in(record, found["text"]),), None, record.where), False
    _, needed = task.needed(first, files.columns)
    try:
        find_columns(needed, files.columns, first)
        return needed, lambda record, found: _checked(task, task.read(record, found)), True
    except UserError:
        if any(name in told for name in RIGHT):
            raise
    inputs = tuple(name for name in needed if name not in RIGHT)
    if isinstance(task, TagTask):
        inputs = ("words",) if any(name in first.values for name in NAMES["words"]) else ("text",)
    if isinstance(task, SequenceTask) and "source" not in files.columns and set(first.values) == {"text"}:
        inputs = ("text",)
    find_columns(inputs, files.columns, first)  # what is missing is named
    return inputs, lambda record, found: _unlabelled(task, record, [found[name] for name in inputs]), False


def _checked(task: Task, example: Example) -> Example:
    if isinstance(task, TagTask):
        task.formed(example)  # a rare tag that was never seen is a mistake like any other
    else:
        task.check([example])
    return example


def _unlabelled(task: Task, record: Record, columns: Sequence[str]) -> Example:
    """A row of which nobody knows what is right."""
    if isinstance(task, TagTask):
        words: Any = record.values.get(columns[0])
        tagged = raw(words) if isinstance(words, str) else joined(words_of(record, columns[0]))
        return Example((tagged.text,), tagged, record.where)
    texts = tuple(text_in(record, column) for column in columns)
    # A context comes before its question in a table, and after it in an example.
    return Example(texts[::-1] if task.name == "answer" else texts, None, record.where)


def _lines(sources: tuple[str, ...], skipped: Skipped) -> Asked:
    text = Text(sources)
    found = (Example((each.text,), None, each.where) for each in read_texts(text.paths()))
    files = Files(sources, {})
    return Asked(found, False, listed([path.name for path in files.paths()], 2), files.hash(), skipped)
