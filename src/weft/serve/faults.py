"""What a client is told of a job that failed: a mistake of its own in one line, anything else without its inside."""

from __future__ import annotations

from typing import Any

from weft.errors import NotFinite, UserError
from weft.serve.events import log, place_of
from weft.serve.plans import Fault

# What libraries say where they get no memory; torch has a class for it only on a GPU.
NO_MEMORY = ("out of memory", "can't allocate memory", "bad_alloc", "Failed to allocate", "failed to allocate")


def fault_of(error: BaseException, model: Any = None) -> Fault:
    """The reply to a failure; what is no mistake of the client goes to the log with its place in the code."""
    if isinstance(error, Fault):
        return error
    if isinstance(error, MemoryError) or any(words in str(error) for words in NO_MEMORY):
        log("memory", error=type(error).__name__)
        return Fault(503, "there is not enough memory for this request")
    if isinstance(error, UserError) and not isinstance(error, NotFinite):
        return Fault(422, without_folder(str(error), model))
    log("failure", error=type(error).__name__, at=place_of(error))
    if isinstance(error, NotFinite):
        return Fault(500, "the model's output is not a number")
    return Fault(500, "internal error")


def without_folder(message: str, model: Any) -> str:
    """A message that does not say where the model lies."""
    folder = None if model is None else str(model.folder)
    return message if not folder else message.removeprefix(f"{folder}: ").replace(folder, "the model")
