"""The peak memory of a backend, in a separate process that loads the model and answers."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import torch

from weft.comparison.cost import peak_of_child
from weft.files import peak_memory
from weft.tasks.chosen import load
from weft.tasks.model import Model


def memory_of(model: Model, backend: str, inputs: Sequence[Any], **options: Any) -> int | None:
    """Peak memory in bytes; None if the system does not tell. `options`: of the call."""
    if model.folder is None or peak_memory() is None:
        return None
    given: dict[str, Any] = {"folder": str(model.folder.resolve()), "task": model.task, "backend": backend}
    given |= {"inputs": list(inputs), "options": options, "threads": torch.get_num_threads()}
    return peak_of_child("from weft.bench.memory import alone; alone()", given)


def alone() -> None:
    """The code of that process: load a model, answer, and print the peak memory."""
    given = json.loads(sys.stdin.buffer.read())
    torch.set_num_threads(given["threads"])
    model = load(given["folder"], task=given["task"], backend=given["backend"], device="cpu")
    # JSON has lists for the tuples that a pair is.
    inputs = [tuple(value) if model.task_object.pair else value for value in given["inputs"]]
    model(inputs, **given["options"])
    print(peak_memory())
