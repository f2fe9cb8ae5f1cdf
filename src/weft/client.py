"""`weft.Client`: call the models of a running `weft serve` like those of `weft.load`. It imports no torch."""

from __future__ import annotations

import base64
import binascii
import http.client
import inspect
import itertools
import json
import math
import os
import random
import ssl
import struct
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints, overload
from urllib.parse import urlsplit

from weft.config import build
from weft.errors import UserError, did_you_mean, listed, shown
from weft.generation import wording
from weft.tasks import answers
from weft.tasks.answers import Answer, Ranked, Text, Vector

URL = "http://127.0.0.1:8000"
TIMEOUT = 60.0  # seconds of one call, including all waiting
LARGEST = 256 << 20  # bytes of one reply, and of one line of a stream
TRIES = 20  # of a call whose model has no worker at the moment (503)
MORE = 0.1  # calls under way that are tried anew, in the time in which as many are answered as are under way
PAUSE = 0.25  # seconds before the next try, if the server names none
BUSY = (429, 503)  # statuses after which a call is tried again
# The classes of answers by their name in JSON: "label" is a Label.
KINDS: dict[str, Any] = {
    "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_"): kind
    for module in (answers, wording)
    for name, kind in vars(module).items()
    if inspect.isclass(kind) and kind.__module__ == module.__name__
}
# The route of each task.
ROUTES = dict.fromkeys(("classify", "multilabel", "regress", "pair", "spans"), "classify")
ROUTES |= {name: name for name in ("tag", "answer", "translate", "summarize", "rewrite", "fill", "rank", "forecast")}
ROUTES |= {"choose": "choose", "next": "next", "suggest": "suggest", "complete": "completions", "embed": "embeddings"}


class ServerError(UserError):
    """An error reply of a server: its message, the HTTP status and the field that it names."""

    def __init__(self, message: str, status: int, field: str | None = None) -> None:
        super().__init__(message if field is None or field in message else f"{field}: {message}")
        self.status, self.field = status, field


class Exchange(NamedTuple):
    """A reply whose body has not been read yet, and its connection."""

    connection: http.client.HTTPConnection
    response: http.client.HTTPResponse


class Turns:
    """Limits the concurrent calls of a client to what its server accepts, first come, first served.

    Without it a refused call, which waits before its next try, could lose its place to newer calls again and again.
    """

    def __init__(self) -> None:
        self.changed, self.numbers = threading.Condition(), itertools.count()
        self.waiting: set[int] = set()
        self.most, self.under_way = math.inf, 0

    def wait(self, number: int, until: float) -> bool:
        """Wait until it is the turn of a call; False if that takes too long."""
        with self.changed:
            self.waiting.add(number)
            seconds = max(0.0, until - time.monotonic())
            came = self.changed.wait_for(lambda: self.under_way < self.most and number == min(self.waiting), seconds)
            self.waiting.remove(number)
            self.under_way += came
            self.changed.notify_all()
            return came

    def end(self, refused: bool) -> None:
        """End a call; a refusal lowers the limit by one, and answers raise it slowly."""
        with self.changed:
            self.most = max(1, min(self.most, self.under_way) - 1) if refused else self.most + MORE / self.most
            self.under_way -= 1
            self.changed.notify_all()


class Client:
    """A running `weft serve`; its models answer like those of `weft.load`.

    `api_key`: the key that the server was started with; default: the environment variable WEFT_API_KEY. `timeout`:
    seconds that a call may take, including its time in the queue; a call that a busy server refuses is tried again
    until then. Several threads may share one client; each has its own connection.
    """

    def __init__(self, url: str = URL, api_key: str | None = None, timeout: float = TIMEOUT) -> None:
        parts = urlsplit(url if "//" in url else f"//{url}", scheme="http")
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1 or parts.query or parts.fragment:
            raise UserError(f"{shown(url)!r} is not the address of a server, such as {URL}")
        if not timeout > 0:
            raise UserError(f"timeout {timeout} is not a number of seconds above 0")
        self.url, self.timeout = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}", timeout
        self._secure, self._host, self._port, self._path = parts.scheme == "https", parts.hostname, port, parts.path
        key = os.environ.get("WEFT_API_KEY") if api_key is None else api_key
        if key and not (key.isascii() and key.isprintable()):
            raise UserError("the API key has characters that a header cannot hold")
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        self._headers |= {"Authorization": f"Bearer {key}"} if key else {}
        self._local = threading.local()
        self._turns: dict[str, Turns] = {}  # by model

    def __repr__(self) -> str:
        return f"<weft.Client {self.url}>"

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection of this thread; the next call opens a new one."""
        connection = self._local.__dict__.pop("connection", None)
        if connection is not None:
            connection.close()

    # ---------------------------------------------------------------------------------------------------------- calls

    def models(self) -> list[dict[str, Any]]:
        """The models of the server: for each its name (`id`), task, routes, version and sizes."""
        return self.get("/v1/models")["data"]

    def model(self, name: str) -> RemoteModel:
        """One model of the server, which is called like a model of `weft.load`."""
        models = {info["id"]: info for info in self.models()}
        if name not in models:
            near = did_you_mean(name, models) or f"; it serves {listed(models)}"
            raise UserError(f"{self.url} serves no model {shown(name)!r}{near}")
        return RemoteModel(self, name, models[name])

    def classify(self, model: str, texts: Any, /, **options: Any) -> Any:
        """The label, labels or value of one text (or pair, a tuple), or of each of a list."""
        return self._task("classify", model, texts, options)

    def tag(self, model: str, texts: Any, /, **options: Any) -> Any:
        """The tags and entities of one text, or of each of a list."""
        return self._task("tag", model, texts, options)

    def answer(self, model: str, questions: Any, /, **options: Any) -> Any:
        """The answer to a question in its context, a tuple of both, or to each of a list of them."""
        return self._task("answer", model, questions, options)

    def translate(self, model: str, texts: Any, /, **options: Any) -> Any:
        """The translation of one text, or of each of a list."""
        return self._task("translate", model, texts, options)

    def summarize(self, model: str, texts: Any, /, **options: Any) -> Any:
        """The summary of one text, or of each of a list."""
        return self._task("summarize", model, texts, options)

    def rewrite(self, model: str, texts: Any, /, **options: Any) -> Any:
        """The rewritten form of one text, or of each of a list."""
        return self._task("rewrite", model, texts, options)

    def next(self, model: str, pairs: Any, /, **options: Any) -> Any:
        """Whether the second text of a pair, a tuple, follows the first; or of each of a list of pairs."""
        return self._task("next", model, pairs, options)

    def fill(self, model: str, texts: Any, /, **options: Any) -> Any:
        """The likeliest words for the gaps of one text, or of each of a list."""
        return self._task("fill", model, texts, options)

    def suggest(self, model: str, texts: Any, /, **options: Any) -> Any:
        """The likeliest next words of one text, or of each of a list."""
        return self._task("suggest", model, texts, options)

    def choose(self, model: str, prompts: Any, /, **options: Any) -> Any:
        """The best option for (context, options) or (context, question, options), or for each of a list."""
        return self._task("choose", model, prompts, options)

    def forecast(self, model: str, data: Any, /, **options: Any) -> Any:
        """The next steps of each series: of rows (a list of dicts), or of {name: values}."""
        rows = {"rows": list(data)} if not isinstance(data, Mapping) else data
        whole = rows if {"rows", "series"} & set(rows) else {"series": rows}
        return self.call("/v1/forecast", {"model": model, "input": whole, **options})

    def rank(self, model: str, query: str, texts: Sequence[str], /, **options: Any) -> Ranked:
        """The texts nearest to a query, best first."""
        body = {"model": model, "input": {"query": query, "texts": list(texts)}, **options}
        return self.call("/v1/rank", body)[0]

    def embed(self, model: str, texts: Any, /, **options: Any) -> Any:
        """The vector of one text, or of each of a list."""
        one = isinstance(texts, str)
        body = {"model": model, "input": [texts] if one else list(texts), "encoding_format": "base64", **options}
        vectors = [_vector(each) for each in self.post("/v1/embeddings", body)["data"]]
        return vectors[0] if one else vectors

    def complete(self, model: str, prompts: Any, /, **options: Any) -> Any:
        """The continuation of one prompt, or of each of a list; the options are those of models of `weft.load`.

        Decoding is greedy unless a sampling option (`temperature`, `top_p` ...) is given.
        """
        one = isinstance(prompts, str)
        texts = self.call("/v1/complete", {"model": model, "input": [prompts] if one else list(prompts), **options})
        return texts[0] if one else texts

    def stream(self, model: str, prompt: str, /, **options: Any) -> RemoteStream:
        """The continuation of a prompt, piece by piece; at the end the stream has its `answer`."""
        body = {"model": model, "input": prompt, "stream": True, **options}
        return RemoteStream(self.events("/v1/complete", body))

    def _task(self, route: str, model: str, inputs: Any, options: Mapping[str, Any]) -> Any:
        one = not isinstance(inputs, list)
        plain = [_plain(route, each) for each in ([inputs] if one else inputs)]
        body = {"model": model, "input": plain, **options}
        if not one and not inputs:
            return []
        result = self.call(f"/v1/{route}", body)
        return result[0] if one else result

    def call(self, path: str, body: Mapping[str, Any]) -> list[Any]:
        """The answers of a task's route, as the dataclasses that models of `weft.load` return."""
        return [answer_of(values) for values in self.post(path, body)["answers"]]

    # ----------------------------------------------------------------------------------------------------------- HTTP

    def get(self, path: str) -> Any:
        """The JSON of a route."""
        return self._json("GET", path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The JSON reply of a route to a JSON body."""
        return self._json("POST", path, body)

    def text(self, path: str) -> str:
        """The text of a route that is not JSON, such as /metrics."""
        exchange = self._exchange("GET", path, None, time.monotonic() + self.timeout)
        return self._whole(exchange).decode("utf-8", "replace")

    def _json(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        exchange = self._exchange(method, path, body, time.monotonic() + self.timeout)
        return _parsed(self._whole(exchange), self.url)

    def _whole(self, exchange: Exchange) -> bytes:
        """The body of a reply."""
        try:
            data = exchange.response.read(LARGEST + 1)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise self._broken(error) from None
        if len(data) > LARGEST:
            self.close()
            raise UserError(f"{self.url} answered with more than {LARGEST >> 20} MiB")
        return data

    def events(self, path: str, body: Mapping[str, Any]) -> Generator[dict[str, Any], None, None]:
        """The events of a streamed reply; closing the generator closes the connection, which cancels the request."""
        exchange = self._exchange("POST", path, body, time.monotonic() + self.timeout)
        ended = False
        try:
            while line := exchange.response.readline(LARGEST):
                kind, _, value = line.decode("utf-8", "replace").strip().partition(":")
                if kind != "data":
                    continue
                if value.strip() == "[DONE]":
                    ended = True
                    break
                event = _parsed(value.encode(), self.url)
                if "error" in event:
                    raise _refused(event, exchange.response.status)
                yield event
            if not ended:
                raise UserError(f"{self.url} ended its reply too early")
            exchange.response.read(LARGEST)
        except (OSError, http.client.HTTPException) as error:
            raise self._broken(error) from None
        finally:
            if not ended:
                self.close()

    def _exchange(self, method: str, path: str, body: Mapping[str, Any] | None, until: float) -> Exchange:
        """A reply with status 200; if the server is busy, the request is sent again while there is time."""
        data, error, tries = None if body is None else _as_json(body), None, 0
        turns = self._turns.setdefault("" if body is None else str(body.get("model")), Turns())
        number = next(turns.numbers)
        while turns.wait(number, until):
            status = 0
            try:
                exchange = self._sent(method, path, data, until)
                response, status = exchange.response, exchange.response.status
            finally:
                turns.end(status == 429)
            if status == 200:
                return exchange
            error = _refused(_parsed(self._whole(exchange), self.url, status), status)
            wait = _seconds(response.headers, error.status)
            tries += error.status != 429
            if wait is None or tries == TRIES:
                raise error
            pause = wait * random.uniform(1.0, 1.25)  # callers that were refused together do not come back together
            if time.monotonic() + pause >= until:
                raise error
            time.sleep(pause)
        raise error or UserError(f"{self.url}: no answer within {self.timeout:g} seconds")

    def _sent(self, method: str, path: str, body: bytes | None, until: float) -> Exchange:
        """Send one request and read the head of its reply; opens a new connection if the server has closed the last."""
        kept = "connection" in self._local.__dict__
        left = until - time.monotonic()
        if left <= 0:
            raise UserError(f"{self.url}: no answer within {self.timeout:g} seconds")
        connection = self._local.connection if kept else self._opened(left)
        connection.timeout = left
        if connection.sock is not None:
            connection.sock.settimeout(left)
        try:
            headers = (
                {**self._headers, "Weft-Deadline": f"{max(left, 0.001):.3f}"} if body is not None else self._headers
            )
            connection.request(method, self._path.rstrip("/") + path, body, headers)
            return Exchange(connection, connection.getresponse())
        except (OSError, http.client.HTTPException) as error:
            self.close()
            # No route has side effects, so a request may be sent twice.
            if kept and isinstance(error, ConnectionError | http.client.BadStatusLine):
                return self._sent(method, path, body, until)
            raise self._broken(error) from None

    def _opened(self, timeout: float) -> http.client.HTTPConnection:
        if self._secure:
            context = ssl.create_default_context()
            self._local.connection = http.client.HTTPSConnection(
                self._host, self._port, timeout=timeout, context=context
            )
        else:
            self._local.connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout)
        return self._local.connection

    def _broken(self, error: Exception) -> UserError:
        if isinstance(error, TimeoutError):
            return UserError(f"{self.url}: no answer within {self.timeout:g} seconds")
        if isinstance(error, ConnectionRefusedError):
            return UserError(f"{self.url}: nothing listens there; start a server with weft serve FOLDER")
        reason = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        return UserError(f"{self.url}: the connection failed: {shown(reason)}")


class RemoteModel:
    """One model of a server; `model(texts)` answers like a model of `weft.load`."""

    def __init__(self, client: Client, name: str, info: Mapping[str, Any]) -> None:
        self.client, self.name, self.info = client, name, dict(info)
        self.task: str = info["task"]

    def __repr__(self) -> str:
        return f"<weft.RemoteModel {self.task}: {self.name} at {self.client.url}>"

    @overload
    def __call__(self, texts: str | tuple[str, str], /, **options: Any) -> Answer: ...
    @overload
    def __call__(self, texts: list[Any], /, **options: Any) -> list[Answer]: ...
    @overload
    def __call__(self, texts: Any, /, **options: Any) -> Any: ...
    def __call__(self, texts: Any, /, **options: Any) -> Answer | list[Answer]:
        """Answer one text or a list of them; a pair, or a question and its context, is a tuple of two."""
        if self.task not in ROUTES:
            raise UserError(f"no route of {self.client.url} answers {self.task}")
        if self.task == "embed":
            return self.client.embed(self.name, texts, **options)
        if self.task == "complete":
            return self.client.complete(self.name, texts, **options)
        return self.client._task(ROUTES[self.task], self.name, texts, options)

    def stream(self, text: str, /, **options: Any) -> RemoteStream:
        """The text that the model generates for one input, piece by piece; at the end the stream has its `answer`."""
        return self.client.stream(self.name, text, **options)

    def embed(self, texts: Any, /, **options: Any) -> Any:
        """The vector of one text, or of each of a list; for a model of any task that gives vectors."""
        return self.client.embed(self.name, texts, **options)

    def rank(self, query: str, texts: Sequence[str], /, **options: Any) -> Ranked:
        """The texts nearest to a query, best first."""
        return self.client.rank(self.name, query, texts, **options)

    def forecast(self, data: Any, /, **options: Any) -> list[Any]:
        """The next steps of each series: of rows (a list of dicts), or of {name: values}."""
        return self.client.forecast(self.name, data, **options)


class RemoteStream:
    """Text as a server generates it: iterate over its pieces; afterwards `answer` is the whole answer."""

    def __init__(self, events: Iterable[dict[str, Any]]) -> None:
        self._events = iter(events)
        self._answer: Text | None = None

    def __iter__(self) -> Iterator[str]:
        for event in self._events:
            if piece := event.get("text"):
                yield piece
            if event.get("answers"):
                self._answer = answer_of(event["answers"][0])

    def close(self) -> None:
        """End the text early: the server stops generating it."""
        with suppress(AttributeError):
            self._events.close()  # type: ignore[attr-defined]

    @property
    def answer(self) -> Text:
        if self._answer is None:
            raise UserError("the text is not all there yet: iterate over the stream first")
        return self._answer


# ---------------------------------------------------------------------------------------------------------------- JSON


def answer_of(values: Mapping[str, Any]) -> Any:
    """An answer as the dataclass that its "object" names; fields that a newer server adds are left out."""
    name = values.get("object")
    if name == "vector":
        return _vector(values)
    if name not in KINDS:
        raise UserError(f"the server answered with {shown(str(name))!r}, which this version of Weft does not know")
    return build(KINDS[name], _known(KINDS[name], values), name)


def _known(kind: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values for the fields of a dataclass, with nested dataclasses restored."""
    hints = get_type_hints(kind)
    names = {field.name for field in fields(kind)}
    return {name: _revived(hints[name], value) for name, value in values.items() if name in names}


def _revived(hint: Any, value: Any) -> Any:
    """A value with objects restored to dataclasses: that of `hint`, or a subclass if it has more of the fields."""
    if isinstance(value, Mapping):
        kind: Any = next((each for each in (hint, *get_args(hint)) if is_dataclass(each)), None)
        if kind is None:
            return value
        kinds: list[Any] = [kind, *(each for each in KINDS.values() if issubclass(each, kind))]
        best = max(kinds, key=lambda each: sum(field.name in value for field in fields(each)))
        return build(best, _known(best, value), best.__name__.lower())
    if isinstance(value, list):
        inner = next((each for each in (hint, *get_args(hint)) if get_origin(each) is tuple), None)
        return [_revived(get_args(inner)[0] if inner else None, each) for each in value]
    return value


def _vector(values: Mapping[str, Any]) -> Vector:
    """A vector, which is sent as little-endian float32 in base64, or as a list if that was asked for."""
    given = values.get("base64", values.get("embedding"))
    numbers: Sequence[float]
    if isinstance(given, str):
        try:
            data = base64.b64decode(given, validate=True)
            numbers = struct.unpack(f"<{len(data) // 4}f", data)
        except (binascii.Error, struct.error):
            raise UserError("the server answered with a vector that cannot be read") from None
    else:
        numbers = given or ()
    counts = {name: values[name] for name in ("n_tokens", "n_windows", "truncated") if name in values}
    return Vector(values=tuple(numbers), **{"n_tokens": 0, **counts})


def _plain(route: str, value: Any) -> Any:
    """An input in the form that the routes take."""
    if route == "choose" and isinstance(value, tuple | list) and len(value) in (2, 3):
        question = {"question": value[1]} if len(value) == 3 else {}
        return {"context": value[0], **question, "options": list(value[-1])}
    return list(value) if isinstance(value, tuple) else value


def _parsed(data: bytes, url: str, status: int = 200) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        what = "is this the address of weft serve?" if status < 500 else f"status {status}"
        raise UserError(f"{url} answered with {shown(data, 60)!r}, which is no JSON; {what}") from None


def _refused(reply: Any, status: int) -> ServerError:
    """The error of a reply, in OpenAI's form."""
    error = reply.get("error") if isinstance(reply, Mapping) else None
    given = error if isinstance(error, Mapping) else {}
    message = str(given.get("message") or f"the server answered with status {status}")
    code = given.get("code")
    return ServerError(message, code if isinstance(code, int) else status, given.get("param"))


def _as_json(body: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise UserError(f"an input or option cannot be sent as JSON: {shown(str(error), 120)}") from None


def _seconds(headers: http.client.HTTPMessage, status: int) -> float | None:
    """Seconds to wait before the next try; None if the request should not be sent again."""
    exact, whole = headers.get("Retry-After-Ms"), headers.get("Retry-After")
    if status not in BUSY or (whole is None and status != 429):
        return None
    try:
        return max(0.0, float(exact) / 1000 if exact else float(whole) if whole else PAUSE)
    except ValueError:
        return PAUSE
