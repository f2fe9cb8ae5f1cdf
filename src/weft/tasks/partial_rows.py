"""Rows of a task that may lack what is right: labeled ones as the task reads them, the others without a target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from weft.data.columns import PAIRED, file_of, find_columns
from weft.errors import UserError, listed
from weft.tasks.base import Example, Task
from weft.text.records import Record


@dataclass(frozen=True)
class Reader:
    """How the rows of one file are read: those that say what is right as the task reads them, the others without."""

    task: Task
    asked: dict[str, str]  # columns of what a teacher reads: what the task calls each, and what the file calls it
    right: dict[str, str]  # the same with those of right answers; empty where the file has none

    @classmethod
    def of(
        cls, task: Task, record: Record, given: Mapping[str, str], note: Callable[[str], None] = lambda text: None
    ) -> Reader:
        """By the columns that a file has."""
        names = task.input_columns(record, given)
        try:
            if names == ("source",):
                return cls(task, *sides(record, given))
            asked = find_columns(names, {name: given[name] for name in names if name in given}, record, note)
        except UserError as error:
            raise UserError(f"{error} (the teacher's task is {task.name}: its rows have {listed(names)})") from None
        task, whole = task.columns(record, given)
        there = {name.casefold() for name in record.values}
        if names == ("text",) and not given and "text" not in there and "context" in there and "question" in there:
            raise UserError(  # a question is a text too, but hardly the one that is meant
                f"{file_of(record.where)}: has context and question, as rows of the task answer have; the teacher's "
                f"task is {task.name}: say which of its columns is the text: --column text=NAME"
            )
        try:  # by their names alone: not every column of few values holds labels of this task
            right = find_columns(whole, {**asked, **given}, record, guess=False)
        except UserError:
            if any(name in given and given[name] in record.values for name in whole if name not in names):
                raise
            right = {}
        return cls(task, asked, right)

    def read(self, record: Record) -> Example:
        there = [record.values.get(theirs) for ours, theirs in self.right.items() if ours not in self.asked]
        untagged = "tags" in self.right and there == [[]]  # a file of words alone, as CoNLL has them
        if (
            there
            and not untagged
            and all(value is not None and (self.task.empty_targets or value != "") for value in there)
        ):
            return self.task.read(record, self.right)
        return self.task.read_input(record, self.asked)


def sides(record: Record, given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """What a table calls its sources; and the same with its targets, nothing where it has none."""
    try:
        both = find_columns(("source", "target"), given, record)
        return {"source": both["source"]}, both
    except UserError:
        if "target" in given:
            raise
    usual = dict.fromkeys(first for first, _ in PAIRED)
    there = {name.casefold(): name for name in reversed(list(record.values))}
    found = next((there[name] for name in usual if name in there), None)
    if "source" in given or found is None:
        return find_columns(("source",), {**given}, record), {}
    return {"source": found}, {}
