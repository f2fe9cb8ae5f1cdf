"""An ONNX model that labels texts, opened and run without torch, whose import takes longer than all the rest.

What the code of its network would say, the card of its folder says (`GraphSettings`); all checks of the folder, its
tokenizer and its graph are those of `weft.load`. Other tasks, and folders without that entry, are opened by torch.
The same goes for a model of PyTorch weights that ONNX Runtime answers for, by an export in the cache.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from weft.backends.choice import BACKENDS, TORCH, export_of, folder_of, stored
from weft.backends.onnx import WRITTEN, OnnxGraph
from weft.checkpoint.card import Card, GraphSettings, check_hashes, check_labels, labels_of, read_card
from weft.errors import UserError
from weft.files import MEGABYTE, read_json
from weft.progress import to_logger
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
    """The exported model of a folder; None where it needs torch. `trust`: see `check_hashes`."""
    card = read_card(folder)
    if card is None or card.backend != "onnx" or card.graph is None or card.task not in TASKS:
        return None
    check_hashes(folder, card, trust)
    return _opened(folder, card, card.task, folder, card.graph)


def open_chosen(folder: Path, backend: str | None = None, trust: bool = False) -> LightModel | None:
    """A model of PyTorch weights that ONNX Runtime answers for, from the cache: by this backend, or as `weft bench`
    has chosen for it; None where torch is needed, also to say what is wrong.

    An export is kept by the hash of the weights that it was made from, so these need not be read.
    """
    card = read_card(folder)
    if card is None or card.backend not in (None, TORCH) or card.task not in TASKS:
        return None
    choice = None
    try:
        if backend is None:
            with warnings.catch_warnings(action="ignore"):  # of a damaged choice: torch, which is used then, says it
                choice = stored(folder, card.task)
            backend = TORCH if choice is None else choice.backend
        kind = BACKENDS.get(backend)
        if kind is None or not kind.precision or kind.engine != "onnx":
            return None
        export = export_of(folder_of(folder), card.task, kind.precision)
        made = read_card(export)
        if made is None or made.graph is None or made.backend != "onnx":
            return None
        check_hashes(export, made)
        check_hashes(folder, card, trust)
        model = _opened(folder, card, card.task, export, made.graph)
    except (UserError, OSError):
        return None
    if choice is not None:
        to_logger(choice.line())
    return model


def _opened(folder: Path, card: Card, task: str, export: Path, settings: GraphSettings) -> LightModel:
    """The model of a folder, whose graph is in `export`."""
    tokenizer = load_tokenizer(folder)
    if tokenizer.vocabulary > settings.vocabulary:
        raise UserError(
            f"{folder}: the tokenizer has {tokenizer.vocabulary} tokens, the model only {settings.vocabulary}"
        )
    graph = OnnxGraph()
    graph.open(export, settings, settings.outputs, settings.width, settings.family not in WRITTEN)
    where = folder / "config.json"
    labels = labels_of(read_json(where, 16 * MEGABYTE), str(where)) if "classify" in settings.outputs else None
    check_labels(folder, labels, card.labels, settings.outputs)
    family = GraphFamily(settings.family, settings.one_way, settings.row)
    opened = GraphFolder(family, settings, settings.outputs, tokenizer, card, folder, graph)
    return LightModel(opened, task)
