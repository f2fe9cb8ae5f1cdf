"""Texts in, typed answers out, for every task that understands rather than writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.checkpoint.folder import LoadedModel
from weft.errors import UserError, shown
from weft.tasks.answers import Answer
from weft.tasks.base import Task
from weft.tasks.forward import framing_for
from weft.tasks.judging import chunked
from weft.tasks.registry import task_for


def wants_two(name: str) -> bool:
    """Whether a model takes texts two by two."""
    return name in ("pair", "answer", "next")


def understand(
    opened: LoadedModel, inputs: Sequence[Any], *, task: str, others: Sequence[LoadedModel] = (), **options: Any
) -> list[Answer]:
    """Answer each input; `others`: models of the same task and labels, whose predictions are combined with it."""
    first = task_for(opened, task)
    models, tasks = [opened, *others], [first]
    tasks += [_same(first, other, number) for number, other in enumerate(others, 2)]
    checked = [first.check_input(number, value) for number, value in enumerate(inputs, 1)]
    answers: list[Answer] = []
    for some in chunked(checked, first.size):
        predictions = [each.predict(model, framing_for(model), some) for each, model in zip(tasks, models, strict=True)]
        for input, *same in zip(some, *predictions, strict=True):
            answers.append(first.answer(first.combine(same) if others else same[0], input, **options))
    return answers


def _same(first: Task, other: LoadedModel, number: int) -> Task:
    """The task of a further model, which must have the same labels as the first."""
    if first.head not in other.heads or other.card.task not in (None, first.name):
        made = other.card.task or other.family.task
        raise UserError(f"model {number} is made for {made}, the first for {first.name}")
    task = task_for(other, first.name)
    if task.labels != first.labels or task.outputs != first.outputs:
        ours, theirs = (", ".join(each.labels) or "values" for each in (first, task))
        raise UserError(f"model {number} says {shown(theirs)}, the first {shown(ours)}: they cannot answer together")
    return task
