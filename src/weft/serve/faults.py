"""What a client is told of a job that failed: a mistake of its own in one line, anything else without its inside."""

from __future__ import annotations

import os
import re
import sys
from typing import Any

from weft.errors import NotFinite, UserError
from weft.serve.events import log, place_of
from weft.serve.plans import Fault

# What libraries say where they get no memory; torch has a class for it only on a GPU. The last two are oneDNN's words.
NO_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "bad_alloc",
    "Failed to allocate",
    "failed to allocate",
    "could not create a memory",
    "could not create a primitive",
)

# A flag in a message, the argument in capitals and the name in Python behind it; and one that is only an explanation.
FLAG = re.compile(r"--([a-z][a-z-]*)(?: [A-Z]+\b)?(?: \(\w+=\w*\))?")
ASIDE = re.compile(r" \(--[a-z-]+\)")


def fault_of(error: BaseException, model: Any = None) -> Fault:
    """The reply to a failure; what is no mistake of the client goes to the log with its place in the code."""
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
    """A message in which flags of the command line are fields of a request, but for those of whole commands."""
    if "weft " in message:
        return message
    return FLAG.sub(lambda flag: flag[1].replace("-", "_"), ASIDE.sub("", message))


def without_folder(message: str, model: Any) -> str:
    """A message that does not say where the model lies."""
    folder = None if model is None else str(model.folder)
    return message if not folder else message.removeprefix(f"{folder}: ").replace(folder, "the model")


def leave(status: int) -> None:
    """End the process at once: what libraries would do at their end, nobody waits for."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(status)
