"""The routes of tasks, `/v1/classify`, `/v1/tag` and so on, one for each that a model can do; and `/v1/look`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from weft.serve.frames import Message
from weft.serve.front import Asked, EventReply, Json, JsonReply, usage_of
from weft.serve.messages import generate_job, look_job, task_job
from weft.serve.refusals import Refusal
from weft.serve.schemas import (
    AnswerRequest,
    ChooseRequest,
    ClassifyRequest,
    CompleteRequest,
    FillRequest,
    ForecastRequest,
    LookRequest,
    NextRequest,
    RankRequest,
    RequestSchema,
    SuggestRequest,
    TagRequest,
    TaskRequest,
    WriteRequest,
)
from weft.tasks.registry import FROM_TEXT

OUTSIDE = ("model", "input", "stream", "view")  # fields of a request that are no options of its task


@dataclass(frozen=True)
class TaskRoute:
    """A route and the task that answers it, by its name in the registry."""

    task: str
    schema: type[RequestSchema]
    streams: bool = False

    @property
    def path(self) -> str:
        return f"/v1/{self.task}"


# Classify serves all tasks that label whole texts (`weft.tasks.registry.LABELS`).
TASK_ROUTES = (
    TaskRoute("classify", ClassifyRequest),
    TaskRoute("tag", TagRequest),
    TaskRoute("answer", AnswerRequest),
    *(TaskRoute(name, WriteRequest) for name in FROM_TEXT),
    TaskRoute("complete", CompleteRequest, streams=True),
    TaskRoute("fill", FillRequest),
    TaskRoute("suggest", SuggestRequest),
    TaskRoute("rank", RankRequest),
    TaskRoute("forecast", ForecastRequest),
    TaskRoute("choose", ChooseRequest),
    TaskRoute("next", NextRequest),
)


def options_of(wanted: RequestSchema) -> Json:
    """The options of a request that were given, or have a default of their own."""
    values = {name: value for name, value in vars(wanted).items() if name not in OUTSIDE}
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in values.items() if value is not None
    }


def handler_of(route: TaskRoute) -> Callable[[Asked, Any], Any]:
    """What answers a route."""

    async def answer(asked: Asked, wanted: TaskRequest) -> Response:
        inputs = wanted.input
        if asked.info.get("pair") and len(inputs) == 2 and all(isinstance(text, str) for text in inputs):
            inputs = [inputs]  # two bare texts are one pair, where a model reads pairs
        asked.check_count(inputs, "input", asked.options.max_texts, "inputs")
        check_parts(asked, inputs)
        if route.task == "choose":  # as models take it
            inputs = [[item["context"], item.get("question", ""), item["options"]] for item in inputs]
        options = options_of(wanted)
        tokens = asked.check_written(options, len(inputs))
        stream = vars(wanted).get("stream") or False
        if route.task == "complete":
            job = generate_job(inputs, options, tokens=tokens, stream=stream, field="input")
        else:
            job = task_job(route.task, inputs, options, tokens=tokens, stream=stream)
        if stream:
            return EventReply(asked.call, events(asked, job))
        done = await asked.run(job)
        return JsonReply(asked.call, list_reply(asked, done))

    return answer


def check_parts(asked: Asked, inputs: Sequence[Any]) -> None:
    """Refuse too many texts or options inside of one input; a search has as many as there are embeddings."""
    most = asked.options.max_embeddings
    for number, item in enumerate(inputs):
        for key in ("texts", "options"):
            if isinstance(item, dict) and key in item:
                asked.check_count(item[key], f"input[{number}].{key}", most, key)


def list_reply(asked: Asked, done: Message) -> Json:
    return {"object": "list", **asked.head(), "answers": done["answers"], "usage": usage_of(done)}


async def events(asked: Asked, job: Message) -> AsyncIterator[Json]:
    """The pieces of a text as events, and the whole reply as the last one."""
    async for message in asked.stream(job):
        if message["type"] == "done":
            yield list_reply(asked, message)
        elif message["text"]:
            yield {"object": "piece", "text": message["text"], "input": message["prompt"], "choice": message["choice"]}


async def look(asked: Asked, wanted: LookRequest) -> Response:
    """A view into a model."""
    if wanted.view not in asked.info["views"]:
        able = ", ".join(asked.info["views"])
        raise Refusal(422, f"view: this model has no view {wanted.view!r}: it has {able}", "view")
    asked.check_count(wanted.input, "input", asked.options.max_texts, "inputs")
    job = look_job(wanted.view, wanted.input, options_of(wanted), tokens=asked.options.max_tokens)
    done = await asked.run(job)
    (view,) = done["answers"]
    return JsonReply(asked.call, {"object": "view", **asked.head(), **view, "usage": usage_of(done)})
