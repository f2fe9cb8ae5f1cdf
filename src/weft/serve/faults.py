"""The error that a client gets for a failed job: its own mistakes in one line, internal errors without details."""

from __future__ import annotations

import os
import re
import sys
from typing import Any

from weft.errors import NotFinite, UserError
from weft.serve.events import log, place_of
from weft.serve.plans import Fault

# Messages of libraries that run out of memory; torch has an exception for it only on a GPU. The last two are oneDNN's.
NO_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "bad_alloc",
    "Failed to allocate",
    "failed to allocate",
    "could not create a memory",
    "could not create a primitive",
)

# A flag in a message, with the argument in capitals and the Python name after it; and a flag in parentheses.
FLAG = re.compile(r"--([a-z][a-z-]*)(?: [A-Z]+\b)?(?: \(\w+=\w*\))?")
ASIDE = re.compile(r" \(--[a-z-]+\)")


def fault_of(error: BaseException, model: Any = None) -> Fault:
    """The error for an exception; one that is not the client's mistake is logged with its place in the code."""
    if isinstance(error, Fault):
        return Fault(error.status, as_field(without_folder(str(error), model)), error.field)
    if isinstance(error, MemoryError) or any(words in str(error) for words in NO_MEMORY):
        log("memory", error=type(error).__name__)
        return Fault(503, "there is not enough memory for this request")
    if isinstance(error, UserError) and not isinstance(error, NotFinite):
        return Fault(422, as_field(without_folder(str(error), model)))
    log("failure", error=type(error).__name__, at=place_of(error))
    if isinstance(error, NotFinite):
        return Fault(500, "the model's output is not a number")
    return Fault(500, "internal error")


def as_field(message: str) -> str:
    """A message with flags of the command line written as fields of a request, unless it names a whole command."""
    if "weft " in message:
        return message
    return FLAG.sub(lambda flag: flag[1].replace("-", "_"), ASIDE.sub("", message))


def without_folder(message: str, model: Any) -> str:
    """A message without the path of the model folder."""
    folder = None if model is None else str(model.folder)
    return message if not folder else message.removeprefix(f"{folder}: ").replace(folder, "the model")


def leave(status: int) -> None:
    """End the process at once, without the exit handlers of libraries."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(status)
