"""Folders for ONNX Runtime: the graph of a network for one task, and what the folder says beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from weft.backends.onnx import GRAPH, WORDS
from weft.checkpoint.folder import LoadedModel, write_files
from weft.errors import UserError
from weft.exporters.onnx_builder import Graph, Precision, Range
from weft.exporters.onnx_networks import FAMILIES, words_of
from weft.exporters.traced import write_traced, write_traced_words
from weft.tasks.registry import task_class
from weft.version import VERSION

HEADS = (None, "classify", "tag", "answer", "words")  # that a graph can end in


def write_onnx(
    inside: Path,
    opened: LoadedModel,
    task: str,
    precision: Precision = "fp32",
    ranges: Mapping[int, Range] | None = None,
) -> None:
    """The files of an ONNX folder, for this task, one by one."""
    head = _head(opened, task)
    exported = _exported(opened, task, head, precision)
    write_files(inside, exported, weights=False)
    if opened.family.name not in FAMILIES:
        if precision != "fp32":
            raise UserError(
                f"a {opened.family.name} model has no ONNX graph of its own, so it is exported in fp32 only"
            )
        write_traced(inside / GRAPH, opened, head)
        if "words" in exported.heads:
            write_traced_words(inside / WORDS, opened)
        return
    graph = Graph(precision, ranges)
    inputs, outputs = FAMILIES[opened.family.name](graph, opened, head)
    graph.write(inside / GRAPH, inputs, outputs)
    if "words" in exported.heads:
        words = Graph(precision, ranges)
        words_of(words, opened.network)
        width = ["places", opened.config.width]
        words.write(inside / WORDS, {"hidden_states": width}, {"logits": ["places", opened.config.vocabulary]})


def _exported(opened: LoadedModel, task: str, head: str | None, precision: str) -> LoadedModel:
    """What an exported folder says of itself: the one head that it has, and what runs it."""
    heads = {} if head is None else {head: opened.heads[head]}
    plain: Any = precision.partition("-")[0]
    card = replace(opened.card, task=task, backend="onnx", precision=plain, weft=VERSION)
    return replace(opened, heads=heads, card=card)


def _head(opened: LoadedModel, name: str) -> str | None:
    """The head that a task reads; None: the hidden states themselves."""
    task = task_class(name)
    head = None if task.embeds else task.head
    if task.writes or head not in HEADS or (head == "words" and opened.family.speaks):
        raise UserError(f"a model for {name} cannot be written as ONNX; ctranslate2 is for models that generate")
    if head is not None and head not in opened.heads:
        raise UserError(
            f"this {opened.family.name} model has no head for {name}; weft finetune --task {name} makes one"
        )
    return head


def ranges_of(opened: LoadedModel, read: Callable[[], Any]) -> dict[int, Range]:
    """Between which numbers the inputs of every linear map lie while `read` runs, by the map's id."""
    ranges: dict[int, Range] = {}

    def observe(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        low, high = (float(end) for end in inputs[0].detach().aminmax())
        before = ranges.get(id(module), (low, high))
        ranges[id(module)] = min(low, before[0]), max(high, before[1])

    hooks = [m.register_forward_pre_hook(observe) for m in opened.network.modules() if isinstance(m, nn.Linear)]
    try:
        read()
    finally:
        for hook in hooks:
            hook.remove()
    return ranges
