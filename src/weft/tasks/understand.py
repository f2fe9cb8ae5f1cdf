"""Texts in, typed answers out, for every task that understands rather than writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.checkpoint.folder import LoadedModel
from weft.errors import UserError, shown
from weft.tasks import answer, describe, tag
from weft.tasks import classify as texts
from weft.tasks import seq2seq as sequences
from weft.tasks.answers import Answer
from weft.tasks.forward import framing_for
from weft.tasks.judging import Task, chunked
from weft.tasks.registry import WRITES


def task_of(opened: LoadedModel, name: str) -> Task:
    """The task that a model folder was made for, as its card says."""
    if name == "describe":
        return describe.task_of(opened)
    if name in WRITES:
        return sequences.task_of(opened, name)
    if name == "tag":
        return tag.task_of(opened)
    return answer.task_of(opened) if name == "answer" else texts.task_of(opened, name)


def wants_two(name: str) -> bool:
    """Whether a model takes texts two by two."""
    return name in ("pair", "answer", "next")


def understand(
    opened: LoadedModel, inputs: Sequence[Any], *, task: str, best: int = 3, others: Sequence[LoadedModel] = ()
) -> list[Answer]:
    """Answer each input: a text; for a pair two; for an answer a question and its context; for tags a text or words.

    `others`: models of the same task and labels; the chances of all are averaged.
    """
    does = task_of(opened, task)
    framing = framing_for(opened)
    if others:
        return _together(does, opened, inputs, task, others)
    asked = [asked_of(does, number, each) for number, each in enumerate(inputs, 1)]
    answers: list[Answer] = []
    for some in chunked(asked, lambda each: len(each.text) if isinstance(each, tag.Tagged) else sum(map(len, each))):
        found = does.outcomes(opened, framing, some)
        for each, outcome in zip(some, found, strict=True):
            if isinstance(does, tag.TagTask):
                answers.append(does.answer(outcome, each))
            elif isinstance(does, answer.AnswerTask):
                answers.append(does.answer(outcome, each[1], best))
            else:
                answers.append(does.answer(outcome))
    return answers


def _together(
    does: Task, opened: LoadedModel, inputs: Sequence[Any], name: str, others: Sequence[LoadedModel]
) -> list[Answer]:
    """What several models say together: each reads by its own vocabulary, and their chances are averaged."""
    if not isinstance(does, texts.TextTask):
        raise UserError(f"models for {name} do not answer together; those that classify, and those that write, do")
    tasks = [does, *(_same(does, other, name, number) for number, other in enumerate(others, 2))]
    asked = [asked_of(does, number, each) for number, each in enumerate(inputs, 1)]
    answers: list[Answer] = []
    for some in chunked(asked, lambda each: sum(map(len, each))):
        found = [each.outcomes(who, framing_for(who), some) for each, who in zip(tasks, (opened, *others), strict=True)]
        answers += [does.answer(does.together(outcomes)) for outcomes in zip(*found, strict=True)]
    return answers


def _same(first: texts.TextTask, other: LoadedModel, name: str, number: int) -> texts.TextTask:
    """The task of a further model, which must say the same things as the first."""
    if "classify" not in other.heads or other.card.task not in (None, name):
        raise UserError(f"model {number} is made for {other.card.task or other.family.task}, the first for {name}")
    task = texts.task_of(other, name)
    if task.labels != first.labels or task.kind != first.kind:
        ours, theirs = (", ".join(each.labels) or "values" for each in (first, task))
        raise UserError(f"model {number} says {shown(theirs)}, the first {shown(ours)}: they cannot answer together")
    return task


def asked_of(task: Task, number: int, given: Any) -> Any:
    """One input as its task takes it."""
    if isinstance(task, tag.TagTask):
        if isinstance(given, str):
            return tag.raw(given)
        if isinstance(given, list) and given and all(isinstance(word, str) for word in given):
            return tag.joined(given)
        raise UserError(f"input {number}: a text, or a list of words, is expected")
    two = isinstance(task, answer.AnswerTask) or (isinstance(task, texts.TextTask) and task.pair)
    if isinstance(given, str) and not two:
        return (given,)
    if isinstance(given, tuple | list) and len(given) == 2 and all(isinstance(each, str) for each in given):
        return tuple(given)  # also for a model of single texts: a published folder does not say which it is
    what = "a question and its context" if isinstance(task, answer.AnswerTask) else "a pair of texts"
    raise UserError(f"input {number}: {what if two else 'a text'} is expected")
