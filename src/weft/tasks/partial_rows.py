"""Rows of a task that may lack what is right: labeled ones as the task reads them, the others without a target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from weft.data.columns import NAMES, PAIRED, file_of, find_columns
from weft.errors import UserError, listed
from weft.tasks.answer import AnswerTask
from weft.tasks.classify import TextTask
from weft.tasks.judging import Task
from weft.tasks.reading import Example, text_in
from weft.tasks.seq2seq import SequenceTask
from weft.tasks.tag import Tagged, TagTask, joined, raw, words_of
from weft.text.records import Record


def labeled(example: Example) -> bool:
    """Whether the right answer is known; words of a text are always there, their tags may not be."""
    return example.target.tags is not None if isinstance(example.target, Tagged) else example.target is not None


def wants_rows(task: Task) -> bool:
    """Whether one text alone says too little: a pair has two, and a question has its context."""
    return isinstance(task, AnswerTask) or (isinstance(task, TextTask) and task.pair)


def asked_columns(task: Task, record: Record, given: Mapping[str, str]) -> tuple[str, ...]:
    """The columns of what a teacher reads."""
    if isinstance(task, AnswerTask):
        return ("context", "question")
    if isinstance(task, SequenceTask):
        return ("source",)
    if isinstance(task, TagTask):
        known = "words" in given or any(name in record.values for name in NAMES["words"])
        return ("words",) if known and "text" not in given else ("text",)
    return ("text", "pair") if task.pair else ("text",)


def blank(task: Task, record: Record, columns: Mapping[str, str]) -> Example:
    """A row of which nobody has said what is right."""
    if isinstance(task, TagTask):
        here = (
            joined(words_of(record, columns["words"])) if "words" in columns else raw(text_in(record, columns["text"]))
        )
        if not here.words:
            raise UserError(f"{record.where}: there are no words")
        return Example((here.text,), here, record.where)
    names = ("question", "context") if isinstance(task, AnswerTask) else tuple(columns)
    return Example(tuple(text_in(record, columns[name]) for name in names), None, record.where)


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
        names = asked_columns(task, record, given)
        try:
            if isinstance(task, SequenceTask):
                return cls(task, *sides(record, given))
            asked = find_columns(names, {name: given[name] for name in names if name in given}, record, note)
        except UserError as error:
            raise UserError(f"{error} (the teacher's task is {task.name}: its rows have {listed(names)})") from None
        task, whole = task.needed(record, given)
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
        empty = isinstance(self.task, AnswerTask) or (isinstance(self.task, TextTask) and self.task.kind == "labels")
        untagged = "tags" in self.right and there == [[]]  # a file of words alone, as CoNLL has them
        if there and not untagged and all(value is not None and (empty or value != "") for value in there):
            return self.task.read(record, self.right)
        return blank(self.task, record, self.asked)


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
