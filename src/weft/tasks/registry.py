"""The tasks by name, built in or from plug-ins. It imports no torch: the command line asks it before a verb runs."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from weft.errors import one_of
from weft.plugins import TASKS, broken, load_plugin, sources

if TYPE_CHECKING:
    from weft.checkpoint.folder import LoadedModel
    from weft.tasks.base import Task

CLASSES = {
    "classify": "classify:TextTask",
    "multilabel": "classify:MultilabelTask",
    "regress": "classify:ValueTask",
    "pair": "classify:TextTask",
    "spans": "spans:SpanTask",
    "tag": "tag:TagTask",
    "answer": "answer:AnswerTask",
    "choose": "choose:ChoiceTask",
    **dict.fromkeys(("translate", "summarize", "rewrite"), "seq2seq:SequenceTask"),
    "describe": "seq2seq:DescribeTask",
    "complete": "complete:CompleteTask",
    "fill": "fill:FillTask",
    "embed": "embed:EmbedTask",
    "rank": "embed:RankTask",
    "central": "embed:CentralTask",
    "next": "fill:NextTask",
    "forecast": "forecast:ForecastTask",
}
# What recipes and the command line have to know before torch is imported.
FROM_TEXT = ("translate", "summarize", "rewrite")  # tasks that write a text from another
WRITES = (*FROM_TEXT, "describe")  # and those that write one from a vector
LABELS = ("classify", "multilabel", "regress", "pair", "spans")  # tasks that label whole texts
SUPERVISED = (*LABELS, "tag", "answer", "choose", *WRITES, "forecast")  # learned from rows


def task_names() -> tuple[str, ...]:
    """All tasks, those of plug-ins last."""
    return (*CLASSES, *(name for name in sources(TASKS) if name not in CLASSES))


def supervised_names(name: str) -> tuple[str, ...]:
    """The tasks that are learned from rows; those of plug-ins only where `name` is none of the built-in ones."""
    return SUPERVISED if name in SUPERVISED else (*SUPERVISED, *(n for n in sources(TASKS) if n not in CLASSES))


@cache  # every call of a model asks
def _own_class(name: str) -> type[Task]:
    module, _, attribute = CLASSES[name].partition(":")
    task: type[Task] = vars(import_module(f"weft.tasks.{module}"))[attribute]
    return task


def task_class(name: str, what: str = "task") -> type[Task]:
    """The class of a task, imported now; no plug-in takes a built-in name."""
    if name in CLASSES:
        return _own_class(name)
    one_of(name, task_names(), what)
    from weft.tasks.base import Task

    plugin = load_plugin(TASKS, name)
    if not (isinstance(plugin, type) and issubclass(plugin, Task)):
        raise broken(TASKS, name, "is not a subclass of weft.tasks.base.Task")
    return plugin


def task_for(model: LoadedModel, name: str) -> Task:
    """A task with the labels and settings of a model folder."""
    return task_class(name).from_model(model, name)
