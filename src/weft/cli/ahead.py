"""The libraries of torch, loaded by another thread while Python imports the rest of what a verb needs.

Loading them takes a fifth of `import torch`, and nobody has to hold Python's lock for it. Only where they are sure to
be needed: a model folder is named first whose weights are PyTorch's, and no other engine was chosen for it.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Thread

VERBS = (
    *("predict", "answer", "generate", "translate", "summarize", "rewrite", "describe", "forecast"),
    *("fill", "embed", "rank", "central", "next", "choose", "suggest"),
)
# Modules with a library of their own, which each of these verbs imports: a second library waits until the first is
# loaded, so these come before. Newer releases of typer use pydantic.
BEFORE = (
    *("array", "bz2", "contextvars", "csv", "datetime", "decimal", "fcntl", "hashlib", "json", "lzma", "mmap"),
    *("queue", "random", "select", "socket", "struct", "subprocess", "unicodedata", "uuid", "zoneinfo"),
    *("numpy", "pydantic_core", "tokenizers"),
)
GPU = ("libtorch_cuda.so", "libtorch_hip.so", "libtorch_xpu.so")
LAZY = 1  # of dlopen: functions are looked up when they are first called, as Python itself asks for


def begin(arguments: Sequence[str]) -> Thread | None:
    """Start to load the libraries if the call is one that torch answers; the process ends only after that is done."""
    if not _names_weights(arguments) or (library := _library()) is None:
        return None
    for name in BEFORE:
        with suppress(ImportError):
            import_module(name)
    if arguments[0] == "predict" and _has_engine(Path(arguments[1])):
        return None
    import ctypes

    # A function of a library is called without Python's lock; ctypes itself would load a library with it.
    load = ctypes.CDLL(None).dlopen
    load.restype = ctypes.c_void_p
    thread = Thread(target=load, args=(os.fsencode(library), ctypes.c_int(LAZY)))
    thread.start()
    return thread


def _names_weights(arguments: Sequence[str]) -> bool:
    """Whether a call begins with a verb and a folder of PyTorch weights, and asks for no help and no backend."""
    if (
        len(arguments) < 2
        or arguments[0] not in VERBS
        or "torch" in sys.modules
        or sys.platform != "linux"
        or len(os.sched_getaffinity(0)) < 2
    ):
        return False
    if any(argument == "--help" or argument.startswith("--backend") for argument in arguments):
        return False
    try:
        return (Path(arguments[1]) / "model.safetensors").is_file()
    except (OSError, ValueError):
        return False


def _library() -> Path | None:
    """The library of torch that needs all others but Python's; None where CUDA's have an order of their own."""
    spec = find_spec("torch")
    for folder in (spec and spec.submodule_search_locations) or ():
        names = {path.name for path in (Path(folder) / "lib").glob("libtorch*.so")}
        if {"libtorch.so", "libtorch_cpu.so"} <= names and not names & set(GPU):
            return Path(folder) / "lib" / "libtorch.so"
    return None


def _has_engine(folder: Path) -> bool:
    """Whether ONNX Runtime was chosen to label texts by these weights, which it does without torch.

    What is wrong with a folder, the verb will say.
    """
    from weft.backends.choice import BACKENDS, stored
    from weft.checkpoint.card import read_card
    from weft.errors import UserError
    from weft.tasks.registry import LABELS

    with suppress(UserError, OSError), warnings.catch_warnings(action="ignore"):
        card = read_card(folder)
        choice = None if card is None or card.task not in LABELS else stored(folder, card.task)
        kind = None if choice is None else BACKENDS.get(choice.backend)
        return kind is not None and bool(kind.precision) and kind.engine == "onnx"
    return False
