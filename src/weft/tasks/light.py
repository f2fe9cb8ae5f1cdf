"""An ONNX model that labels texts, opened and run without torch, whose import takes longer than all the rest.

What the code of its network would say, the card of its folder says (`GraphSettings`); all checks of the folder, its
tokenizer and its graph are those of `weft.load`. Other tasks, and folders without that entry, are opened by torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from weft.backends.onnx import WRITTEN, OnnxGraph
from weft.checkpoint.card import Card, GraphSettings, check_hashes, read_card
from weft.errors import UserError
from weft.tasks.base import Task
from weft.tasks.registry import task_class
from weft.text.tokenizers.published import load_tokenizer
from weft.text.tokenizers.tokenizer import Tokenizer

TASKS = ("classify", "multilabel", "regress", "pair")


@dataclass(frozen=True)
class GraphFamily:
    """What the windows of a text depend on."""

    name: str
    one_way: bool
    row: int | None
    series: ClassVar[bool] = False


@dataclass(frozen=True)
class GraphFolder:
    """What is in the folder of an exported model, by the names of `LoadedModel`."""

    family: GraphFamily
    config: GraphSettings
    heads: dict[str, int]
    tokenizer: Tokenizer
    card: Card
    folder: Path
    graph: OnnxGraph


class LightModel:
    """A model that answers texts; a part of the interface of `weft.Model`."""

    def __init__(self, opened: GraphFolder, task: str) -> None:
        self.opened, self.task, self.card = opened, task, opened.card
        folder: Any = opened  # has all that a task with labels asks a loaded model for
        kind = task_class(task)
        try:
            kind.check_model(folder, task)
        except UserError as error:
            raise UserError(f"{opened.folder}: {error}") from None
        self.task_object: Task = kind.from_model(folder, task)

    def __call__(self, inputs: list[Any], /, others: Sequence[Any] = ()) -> list[Any]:
        assert not others, "an ensemble is opened by torch"
        folder: Any = self.opened
        return self.task_object.answers(folder, inputs)


def open_light(folder: Path, trust: bool = False) -> LightModel | None:
    """The model of a folder; None where it needs torch. `trust`: see `check_hashes`."""
    card = read_card(folder)
    if card is None or card.backend != "onnx" or card.graph is None or card.task not in TASKS:
        return None
    check_hashes(folder, card, trust)
    settings = card.graph
    tokenizer = load_tokenizer(folder)
    if tokenizer.vocabulary > settings.vocabulary:
        raise UserError(
            f"{folder}: the tokenizer has {tokenizer.vocabulary} tokens, the model only {settings.vocabulary}"
        )
    graph = OnnxGraph()
    graph.open(folder, settings, settings.outputs, settings.width, settings.family not in WRITTEN)
    family = GraphFamily(settings.family, settings.one_way, settings.row)
    opened = GraphFolder(family, settings, settings.outputs, tokenizer, card, folder, graph)
    return LightModel(opened, card.task)
