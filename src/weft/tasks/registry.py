"""The tasks by name, built in or from plug-ins. It imports no torch: the command line asks it before a verb runs."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from weft.errors import UserError, one_of, shown

if TYPE_CHECKING:
    from weft.checkpoint.folder import LoadedModel
    from weft.tasks.base import Task

GROUP = "weft.tasks"  # of entry points: a plug-in names its tasks there
CLASSES = {
    **dict.fromkeys(("classify", "multilabel", "regress", "pair"), "classify:TextTask"),
    "tag": "tag:TagTask",
    "answer": "answer:AnswerTask",
    **dict.fromkeys(("translate", "summarize", "rewrite"), "seq2seq:SequenceTask"),
    "describe": "describe:DescribeTask",
    "complete": "complete:CompleteTask",
    "fill": "fill:FillTask",
    "embed": "embed:EmbedTask",
    "rank": "rank:RankTask",
    "central": "central:CentralTask",
    "next": "next:NextTask",
    "choose": "choose:ChooseTask",
}
# What recipes and the command line have to know before torch is imported.
FROM_TEXT = ("translate", "summarize", "rewrite")  # tasks that write a text from another
WRITES = (*FROM_TEXT, "describe")  # and those that write one from a vector
SUPERVISED = ("classify", "multilabel", "regress", "pair", "tag", "answer", *WRITES)  # learned from rows


@cache
def plugins() -> dict[str, EntryPoint]:
    """The tasks of installed plug-ins, not imported; none takes a built-in name."""
    return {entry.name: entry for entry in entry_points(group=GROUP) if entry.name not in CLASSES}


def task_names() -> tuple[str, ...]:
    """All tasks, those of plug-ins last."""
    return (*CLASSES, *plugins())


def task_class(name: str, what: str = "task") -> type[Task]:
    """The class of a task, imported now."""
    if name in CLASSES:
        module, _, attribute = CLASSES[name].partition(":")
        return getattr(import_module(f"weft.tasks.{module}"), attribute)
    return _plugin_class(plugins()[one_of(name, task_names(), what)])


def _plugin_class(entry: EntryPoint) -> type[Task]:
    from weft.tasks.base import Task

    where = f"task {shown(entry.name)!r} of the plug-in {entry.dist.name if entry.dist else entry.module}"
    try:
        found: Any = entry.load()
    except Exception as error:  # whatever somebody else's module raises
        raise UserError(f"{where} cannot be imported: {shown(f'{type(error).__name__}: {error}', 200)}") from error
    if not (isinstance(found, type) and issubclass(found, Task)):
        raise UserError(f"{where}: {entry.value} is not a subclass of weft.tasks.base.Task")
    return found


def task_for(model: LoadedModel, name: str) -> Task:
    """A task with the labels and settings of a model folder."""
    return task_class(name).from_model(model, name)
