"""Shared by all routes: models by name, limits, deadlines, jobs for the workers, replies and event streams."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from weft.errors import did_you_mean, shown
from weft.serve.body import SMALL, BodyBudget, check_type, parse_body, read_body
from weft.serve.calls import Call
from weft.serve.frames import Message
from weft.serve.limits import ServeOptions
from weft.serve.messages import inputs_of
from weft.serve.pool import Crashed, JobError, Overloaded, Pool, Stopping
from weft.serve.refusals import ClientGone, Refusal
from weft.serve.schemas import RequestSchema
from weft.serve.validation import validated

T = TypeVar("T")
S = TypeVar("S", bound=RequestSchema)
Json = dict[str, Any]
LARGE = 1 << 16  # characters of a reply that are sent at once; other requests are served in between
JSON_TYPE = (b"content-type", b"application/json")


class Asked:
    """A checked request: its model, and the time by which it has to be answered."""

    def __init__(self, front: Front, call: Call, receive: Receive, name: str, info: Json, end: float) -> None:
        self.front, self.call, self.receive = front, call, receive
        self.name, self.info, self.end = name, info, end
        self.version = info.get("version")

    @property
    def options(self) -> ServeOptions:
        return self.front.options

    def head(self) -> Json:
        """The fields about the model in every reply."""
        return {"model": self.name, "version": self.version}

    def check_count(self, values: Sequence[Any], param: str, most: int, what: str) -> None:
        """Refuse more values of a field than its limit."""
        if len(values) > most:
            raise Refusal(422, f"{param}: {len(values):,} {what}, where at most {most:,} are taken", param)

    def check_written(self, options: Mapping[str, Any], count: int) -> int:
        """Refuse more generated text than the limits allow; returns the tokens that are left for the input."""
        limits, n = self.options, options.get("n") or 1
        if n > limits.max_n:
            raise Refusal(422, f"n: at most {limits.max_n} texts for each input, not {n}", "n")
        self.check_count(options.get("stop") or (), "stop", limits.max_stop, "stop strings")
        written = count * n * (options.get("max_tokens") or 0)
        if written > limits.max_tokens:
            what = f"{written:,} tokens may be generated, where at most {limits.max_tokens:,} are in a request"
            raise Refusal(413, f"max_tokens: {what}", "max_tokens", reason="tokens")
        return limits.max_tokens - written

    async def run(self, job: Message) -> Message:
        """The `done` message of a job, which is canceled if the client disconnects."""
        self.call.inputs = len(inputs_of(job))
        done = await while_connected(self.receive, self._submit(job))
        self.count(done)
        return done

    async def _submit(self, job: Message) -> Message:
        try:
            return await self.front.pool.submit(self.name, job, deadline=self.end - time.monotonic())
        except JobError as error:
            raise refusal_of(error) from None

    async def stream(self, job: Message) -> AsyncIterator[Message]:
        """The `piece` messages of a job as they come, and then its `done`; closing the generator cancels the job."""
        self.call.inputs = len(inputs_of(job))
        messages: Any = self.front.pool.stream(self.name, job, deadline=self.end - time.monotonic())
        try:
            async for message in messages:
                if message["type"] == "done":
                    self.count(message)
                yield message
        except JobError as error:
            raise refusal_of(error) from None
        finally:
            await messages.aclose()

    def count(self, done: Message) -> None:
        call, usage = self.call, done["usage"]
        call.tokens_in, call.tokens_out = usage["prompt_tokens"], usage.get("completion_tokens", 0)
        call.batch_tokens = done.get("batch_tokens", 0)
        call.stages = done["timings"]
        self.version = done["version"]  # of the weights that answered: a reload may have come in between


def usage_of(done: Message) -> Json:
    """The tokens that were read and written, in OpenAI's form."""
    read, written = done["usage"]["prompt_tokens"], done["usage"].get("completion_tokens", 0)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def refusal_of(error: JobError) -> Refusal:
    """The error reply of a job that failed."""
    headers, reason = {}, ""
    if isinstance(error, Overloaded):
        seconds = max(0.05, error.retry_after)
        # HTTP has whole seconds only; OpenAI's clients also read Retry-After-Ms.
        headers = {"Retry-After": str(math.ceil(seconds)), "Retry-After-Ms": str(round(1000 * seconds))}
        reason = "queue"
    elif isinstance(error, Crashed | Stopping):
        headers, reason = {"Retry-After": "1"}, "crash" if isinstance(error, Crashed) else "draining"
    elif error.status == 413:
        reason = "tokens"
    field = error.field
    message = error.message if not field or field in error.message else f"{field}: {error.message}"
    return Refusal(error.status, message, field, reason=reason or None, headers=headers)


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine, which is canceled when the client disconnects."""
    task, watch = asyncio.ensure_future(work), asyncio.ensure_future(disconnected(receive))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        for future in (task, watch):
            if not future.done():
                future.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await future


async def first_of(events: AsyncIterator[T]) -> T | None:
    """The first event, or None if there is none."""
    async for event in events:
        return event
    return None


async def disconnected(receive: Receive) -> None:
    """Wait until the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


class JsonReply(Response):
    """A JSON reply; a large one is sent in parts, between which other requests are served."""

    def __init__(self, call: Call, values: Mapping[str, Any], large: tuple[str, Iterable[str]] | None = None) -> None:
        self.call, self.values, self.large = call, values, large
        self.background = None
        self.status_code = 200

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        timing = (b"server-timing", self.call.server_timing().encode())
        if self.large is None:
            body = json.dumps(self.values, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
            headers = [JSON_TYPE, (b"content-length", str(len(body)).encode()), timing]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": body})
            return
        await send({"type": "http.response.start", "status": 200, "headers": [JSON_TYPE, timing]})
        key, items = self.large
        parts, size, comma = [json.dumps(self.values, ensure_ascii=False)[:-1], f",{json.dumps(key)}:["], 0, ""
        for item in items:
            parts += (comma, item)
            size, comma = size + len(item), ","
            if size > LARGE:
                await send({"type": "http.response.body", "body": "".join(parts).encode(), "more_body": True})
                await asyncio.sleep(0)
                parts, size = [], 0
        await send({"type": "http.response.body", "body": ("".join(parts) + "]}").encode()})


class EventReply(Response):
    """Server-sent events, one for each object of a generator, which is closed when the client disconnects."""

    def __init__(self, call: Call, events: AsyncIterator[Mapping[str, Any]]) -> None:
        self.call, self.events = call, events
        self.background = None
        self.status_code = 200

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        events: Any = self.events
        first: Mapping[str, Any] | None = None
        try:
            # Before the first event an error can still be sent with its own status.
            first = await while_connected(receive, first_of(events))
            await send({"type": "http.response.start", "status": 200, "headers": EVENT_HEADERS})
            await while_connected(receive, self._send(first, events, send))
        finally:
            await events.aclose()

    async def _send(self, first: Mapping[str, Any] | None, events: Any, send: Send) -> None:
        async def put(text: str, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": f"data: {text}\n\n".encode(), "more_body": more})

        try:
            if first is not None:
                await put(json.dumps(first, ensure_ascii=False))
                async for event in events:
                    await put(json.dumps(event, ensure_ascii=False))
        except Refusal as refusal:
            self.call.reason = refusal.reason
            await put(json.dumps(refusal.values()))
        await put("[DONE]", more=False)


EVENT_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


def requested(schema: type[S], body: bytes) -> S:
    """The validated request of a body."""
    return validated(schema, parse_body(body))


class Front:
    """The models of a server, as its routes use them."""

    def __init__(self, options: ServeOptions, pool: Pool, is_draining: Callable[[], bool]) -> None:
        self.options, self.pool, self.is_draining = options, pool, is_draining
        self.bodies = BodyBudget(options.max_body)

    def seconds_for(self, scope: Scope) -> float:
        """Seconds that a request may take: its header Weft-Deadline, up to the limit of the server."""
        asked = next((value for name, value in scope["headers"] if name == b"weft-deadline"), None)
        if asked is None:
            return self.options.deadline
        try:
            seconds = float(asked)
        except ValueError:
            seconds = math.nan
        if not seconds > 0:
            raise Refusal(400, "Weft-Deadline: must be a number of seconds above 0", "Weft-Deadline")
        return min(seconds, self.options.deadline)

    def endpoint(
        self, path: str, schema: type[RequestSchema], task: str, handler: Callable[[Asked, Any], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """A route to a model: checks the request, then calls the handler."""

        async def answer(request: Request) -> Response:
            call: Call = request.scope["state"]["call"]
            call.route = path
            end = time.monotonic() + self.seconds_for(request.scope)
            check_type(request.scope)
            with self.bodies.room(request.scope):
                body = await read_body(request.scope, request.receive, self.options.max_body, self.options.timeout)
                call.received = len(body)
                if self.options.log_texts:
                    call.texts = body.decode("utf-8", "replace")
                if len(body) <= SMALL:
                    wanted = requested(schema, body)
                else:  # in a thread, so that other requests are answered in the meantime
                    wanted = await asyncio.to_thread(requested, schema, body)
                del body
            info = self.model(wanted.model, task)
            call.model = wanted.model
            return await handler(Asked(self, call, request.receive, wanted.model, info, end), wanted)

        return answer

    def model(self, name: str, task: str) -> Json:
        """The info of a model for a task; refuses an unknown name, and a model that cannot do the task."""
        infos = self.infos()
        if name not in infos:
            near = did_you_mean(name[:100], infos)
            raise Refusal(
                404, f"there is no model {shown(name)!r}{near}; GET /v1/models lists them", "model",
                code="model_not_found",
            )  # fmt: skip
        info = infos[name]
        if info is None:
            raise Refusal(
                503, f"the model {name!r} is not ready yet", "model", reason="not ready", headers={"Retry-After": "1"}
            )
        if task not in ([*info["tasks"], "look"] if info.get("views") else info["tasks"]):
            able = ", ".join(info["tasks"])
            raise Refusal(422, f"the model {name!r} does not {task}: it can {able}", "model", code="wrong_model")
        return info

    # ----------------------------------------------------------------------------------------- the pool of the workers

    def infos(self) -> dict[str, Json | None]:
        """The info of each model by name; None while it is being loaded."""
        return {name: info or None for name, info in self.pool.models.items()}

    def known(self, name: str) -> Json | None:
        """The same for one model; an unknown name is refused."""
        infos = self.infos()
        if name not in infos:
            raise Refusal(404, f"there is no model {shown(name)!r}", "model", code="model_not_found")
        return infos[name]
