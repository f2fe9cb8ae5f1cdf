"""The tasks by name. It imports no torch: the command line asks it before a verb runs."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from weft.errors import one_of

if TYPE_CHECKING:
    from weft.checkpoint.folder import LoadedModel
    from weft.tasks.base import Task

CLASSES = {
    **dict.fromkeys(("classify", "multilabel", "regress", "pair"), "weft.tasks.classify:TextTask"),
    "tag": "weft.tasks.tag:TagTask",
    "answer": "weft.tasks.answer:AnswerTask",
    **dict.fromkeys(("translate", "summarize", "rewrite"), "weft.tasks.seq2seq:SequenceTask"),
    "describe": "weft.tasks.describe:DescribeTask",
}
FROM_TEXT = ("translate", "summarize", "rewrite")  # tasks that write a text from another
WRITES = (*FROM_TEXT, "describe")  # and those that write one from a vector


def task_class(name: str) -> type[Task]:
    """The class of a task, imported now."""
    module, _, attribute = CLASSES[one_of(name, CLASSES, "task")].partition(":")
    return getattr(import_module(module), attribute)


def task_for(model: LoadedModel, name: str) -> Task:
    """A task with the labels and settings of a model folder."""
    return task_class(name).from_model(model, name)
