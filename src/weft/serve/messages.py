"""The messages between the server and its workers: how they are made, and what is checked when one comes.

Server to worker: `job`, `cancel`, `stop`. Worker to server: `ready` or `failed`, then `piece`, `done`, `error` and
`stats`. All are JSON objects. The receiver checks every message: `checked` refuses unknown types, and fields that are
missing or of the wrong type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.errors import shown
from weft.serve.frames import BadFrame, Message

KINDS = ("task", "embed", "generate", "look")
VIEWS = ("attention", "attribution", "walk", "lens", "tokens", "next", "windows")
OF_PAIRS = ("attention", "attribution")  # views that can also show a pair of texts
# The options of each view, and their types.
VIEW_OPTIONS: dict[str, dict[str, tuple[type, ...]]] = {
    "attention": {"layer": (int,), "head": (int,), "window": (int,), "target": (str, type(None))},
    "attribution": {"method": (str, list), "target": (str, type(None)), "baseline": (str, type(None))},
    "walk": {"layer": (int,), "head": (int,), "target": (str, type(None)), "top_k": (int,), "seed": (int,)},
    "lens": {"top": (int,), "window": (int,), "target": (str, type(None))},
    "tokens": {},
    "next": {"top": (int,)},
    "windows": {},
}
SHORT = 8192  # characters up to which a job is tokenized by the thread that reads it
NESTED = 24  # levels of lists and objects in what a client sends

TEXT_OR_NOTHING = (str, type(None))
# The required fields of each message, and their types.
TO_WORKER: dict[str, dict[str, tuple[type, ...]]] = {
    "job": {"id": (int,), "kind": (str,), "options": (dict,), "limits": (dict,)},
    "cancel": {"id": (int,)},
    "stop": {},
}
TO_SERVER: dict[str, dict[str, tuple[type, ...]]] = {
    "ready": {"info": (dict,)},
    "failed": {"message": (str,)},
    "piece": {"id": (int,), "prompt": (int,), "choice": (int,), "text": (str,)},
    "done": {"id": (int,), "answers": (list,), "usage": (dict,), "timings": (dict,), "batch_tokens": (int,)},
    "error": {"id": (int,), "status": (int,), "field": TEXT_OR_NOTHING, "message": (str,)},
    "stats": {"memory": (int,), "tokens": (int,), "steps": (int,), "waiting_tokens": (int,)},
}


def checked(message: Message, known: Mapping[str, Mapping[str, tuple[type, ...]]]) -> Message:
    """The message, if it is sound; `known`: the messages that may come, `TO_WORKER` or `TO_SERVER`."""
    kind = message.get("type")
    if not isinstance(kind, str) or kind not in known:
        raise BadFrame(f"a message of type {shown(repr(kind))}")
    for name, types in known[kind].items():
        value = message.get(name)
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise BadFrame(f"a message {kind}: {name} is {shown(repr(value))}")
    if kind == "job":
        _check_job(message)
    return message


def _check_job(message: Message) -> None:
    if message["kind"] not in KINDS:
        raise BadFrame(f"a job of kind {shown(message['kind'])!r}")
    inputs = message.get("prompts" if message["kind"] == "generate" else "inputs")
    if not isinstance(inputs, list):
        raise BadFrame(f"a job of kind {message['kind']} without a list of inputs")
    for name in {"task": ("task",), "look": ("view",)}.get(message["kind"], ()):
        if not isinstance(message.get(name), str):
            raise BadFrame(f"a job of kind {message['kind']} without its {name}")
    tokens = message["limits"].get("tokens")
    if tokens is not None and (type(tokens) is not int or tokens < 0):
        raise BadFrame(f"a job with a limit of {shown(repr(tokens))} tokens")


# ------------------------------------------------------------------------------------------------- what the server asks


def _job(kind: str, options: Mapping[str, Any] | None, tokens: int | None, **more: Any) -> Message:
    limits = {} if tokens is None else {"tokens": tokens}
    return {"type": "job", "id": 0, "kind": kind, **more, "options": dict(options or {}), "limits": limits}


def task_job(
    task: str,
    inputs: Sequence[Any],
    options: Mapping[str, Any] | None = None,
    *,
    tokens: int | None = None,
    stream: bool = False,
) -> Message:
    """A job for a task of the model; `tokens`: the most that its inputs may have. The pool sets its number."""
    return _job("task", options, tokens, task=task, inputs=list(inputs), stream=stream)


def embed_job(
    inputs: Sequence[str | Sequence[int]], options: Mapping[str, Any] | None = None, *, tokens: int | None = None
) -> Message:
    """Vectors of texts, or of texts as lists of tokens."""
    return _job("embed", options, tokens, inputs=list(inputs))


def generate_job(
    prompts: Sequence[str | Sequence[int]],
    options: Mapping[str, Any] | None = None,
    *,
    tokens: int | None = None,
    stream: bool = False,
    echo: bool = False,
    field: str = "prompt",
) -> Message:
    """Completions of prompts; `options`: those of `GenerationOptions`; `field`: what errors call the prompts."""
    return _job("generate", options, tokens, prompts=list(prompts), stream=stream, echo=echo, field=field)


def look_job(
    view: str, inputs: Sequence[Any], options: Mapping[str, Any] | None = None, *, tokens: int | None = None
) -> Message:
    """A view into the model, one of `VIEWS`."""
    return _job("look", options, tokens, view=view, inputs=list(inputs))


def cancel(number: int) -> Message:
    return {"type": "cancel", "id": number}


def stop() -> Message:
    return {"type": "stop"}


def inputs_of(job: Message) -> list[Any]:
    """The inputs or prompts of a job."""
    return list(job["prompts"] if job["kind"] == "generate" else job["inputs"])


def characters(value: Any, deep: int = NESTED) -> int:
    """The length of a client's value: its characters, and 1 for each number; refused if it is nested too deeply."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, list | tuple | dict):
        if not deep:
            raise BadFrame(f"more than {NESTED} lists or objects inside each other")
        if set(map(type, value)) == {int}:  # tokens, of which there may be many
            return 1 + len(value)
        parts = value.values() if isinstance(value, dict) else value
        return 1 + sum(characters(part, deep - 1) for part in parts)
    return 1


def is_short(job: Message) -> bool:
    """Whether a job is tokenized at once, while a thread tokenizes the long ones."""
    return characters(inputs_of(job)) <= SHORT


# ---------------------------------------------------------------------------------------------- what a worker answers


def ready(info: Mapping[str, Any]) -> Message:
    return {"type": "ready", "info": dict(info)}


def failed(message: str) -> Message:
    return {"type": "failed", "message": message}


def piece(
    number: int,
    text: str,
    *,
    prompt: int = 0,
    choice: int = 0,
    tokens: Sequence[int] | None = None,
    logprobs: Any = None,
) -> Message:
    """A part of a streamed text, whole characters, of one of the choices for one of the prompts."""
    known = None if tokens is None else list(tokens)
    return {
        "type": "piece", "id": number, "prompt": prompt, "choice": choice, "text": text, "tokens": known,
        "logprobs": logprobs,
    }  # fmt: skip


def done(
    number: int,
    answers: Sequence[Any],
    *,
    prompt_tokens: int,
    completion_tokens: int = 0,
    timings: Mapping[str, float],
    batch_tokens: int,
) -> Message:
    """The answers of a job; `timings`: seconds of queue, tokenize, model and post; `batch_tokens`: of its last pass."""
    return {
        "type": "done", "id": number, "answers": list(answers),
        "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens},
        "timings": {name: round(seconds, 6) for name, seconds in timings.items()}, "batch_tokens": batch_tokens,
    }  # fmt: skip


def error(number: int, status: int, message: str, field: str | None = None) -> Message:
    """The error of a job; `field`: the field of the request that is wrong."""
    return {"type": "error", "id": number, "status": status, "field": field, "message": message}


def stats(memory: int, tokens: int, steps: int, waiting_tokens: int) -> Message:
    """Memory of the worker in bytes, tokens and passes since its start, and tokens that wait."""
    return {"type": "stats", "memory": memory, "tokens": tokens, "steps": steps, "waiting_tokens": waiting_tokens}
