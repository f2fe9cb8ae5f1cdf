"""`weft.Client` beside a server that answers as it is told: what is sent, what becomes of replies, when it waits."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import weft
from weft.client import KINDS, ServerError, answer_of
from weft.tasks import answers as kinds

LABEL = {"object": "label", "label": "good", "score": 0.75, "scores": {"bad": 0.25, "good": 0.75}, "n_tokens": 4}


class Stub:
    """A server whose replies are a function of the request; it keeps what it was sent."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.connections = 0
        self.reply: Callable[[str, Any], tuple[int, dict[str, str], bytes]] = lambda path, body: (200, {}, b"{}")
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                stub.connections += 1

            def answer(self) -> None:
                data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                body = json.loads(data) if data else None
                stub.requests.append((self.path, dict(self.headers), body))
                status, headers, reply = stub.reply(self.path, body)
                self.send_response(status)
                for name, value in {"Content-Length": str(len(reply)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(reply)

            do_GET = do_POST = answer

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.handle_error = lambda *_: None  # type: ignore[method-assign]  # of a client that did not wait
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def answers(self, *values: Any) -> None:
        self.reply = lambda path, body: (200, {}, json.dumps({"object": "list", "answers": values}).encode())


@pytest.fixture
def stub() -> Iterator[Stub]:
    stub = Stub()
    yield stub
    stub.server.shutdown()
    stub.server.server_close()


def error(status: int, message: str, field: str | None = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
    values = {"error": {"message": message, "type": "invalid_request_error", "param": field, "code": None}}
    return status, {name.replace("_", "-"): value for name, value in headers.items()}, json.dumps(values).encode()


def test_one_input_gets_one_answer_and_a_list_gets_a_list(stub: Stub) -> None:
    client = weft.Client(stub.url, api_key="secret")
    stub.answers(LABEL)
    label = client.classify("reviews", "a gripping film")
    assert label == kinds.Label(label="good", score=0.75, scores={"bad": 0.25, "good": 0.75}, n_tokens=4)
    assert client.classify("reviews", ["a gripping film"]) == [label]
    assert client.classify("reviews", ("one", "two")) == label  # a pair is one input
    path, headers, body = stub.requests[0]
    assert path == "/v1/classify" and body == {"model": "reviews", "input": ["a gripping film"]}
    assert headers["Authorization"] == "Bearer secret" and 0 < float(headers["Weft-Deadline"]) <= 60
    assert stub.requests[2][2]["input"] == [["one", "two"]]
    assert client.classify("reviews", []) == [] and len(stub.requests) == 3
    assert stub.connections == 1  # it is kept


@pytest.mark.parametrize(
    "answer",
    [
        kinds.Labels(labels=("a",), scores={"a": 0.9}, n_tokens=3, truncated=True),
        kinds.Value(value=2.5, n_tokens=3, n_windows=2),
        kinds.Spans(
            spans=(kinds.Span(start=0, end=3, text="Ada", label="PER", score=0.9),),
            words=(kinds.Span(start=0, end=3, text="Ada", label="B-PER", score=0.9),),
            n_tokens=3,
        ),
        kinds.Reply(
            text="Ada",
            start=0,
            end=3,
            score=0.9,
            no_answer=0.1,
            best=(kinds.Choice(text="Ada", start=0, end=3, score=0.9),),
            n_tokens=9,
        ),
        kinds.Words(text="a b", gaps=((kinds.Candidate(word="b", probability=0.5),),), n_tokens=3),
        kinds.Ranked(hits=(kinds.Hit(text="a", number=0, score=0.5, stage="pair"),), n_tokens=3),
        kinds.Translation(
            text="b",
            score=-1.0,
            logprob=-2.0,
            finish_reason="end",
            best=(),
            source_tokens=("a",),
            target_tokens=("b",),
            alignments=((0.5, 0.5),),
            n_tokens=1,
        ),
        kinds.Forecast(
            series="a", times=("1",), names=("x",), values=((1.0,),), low=None, high=None, interval=0.9, n_tokens=1
        ),
        kinds.Suggestions(
            words=(kinds.Suggestion(text="a", probability=0.5, tokens=(1, 2)),),
            n_tokens=2,
            truncated=False,
            exact=True,
            aside=0.0,
        ),
    ],
    ids=lambda answer: type(answer).__name__,
)
def test_every_answer_becomes_its_dataclass_again(answer: Any) -> None:
    name = next(name for name, kind in KINDS.items() if kind is type(answer))
    values = json.loads(json.dumps({"object": name, **asdict(answer), "of a newer server": 1}))
    assert answer_of(values) == answer


def test_nested_answers_keep_their_own_kind() -> None:
    options = [
        {"text": "a", "number": 0, "score": 1.0, "probability": 1.0, "logprob": -1.0, "n_tokens": 2, "crossing": False}
    ]
    values = {"object": "chosen", "text": "a", "number": 0, "n_tokens": 2}
    chosen = answer_of({**values, "options": options})
    assert isinstance(chosen.options[0], kinds.Continuation) and chosen.options[0].logprob == -1.0


def test_a_vector_travels_as_bytes(stub: Stub) -> None:
    import base64
    import struct

    data = base64.b64encode(struct.pack("<3f", 0.5, -1.25, 2.0)).decode()
    given = {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": data}]}
    stub.reply = lambda path, body: (200, {}, json.dumps(given).encode())
    vector = weft.Client(stub.url).embed("m", "a text")
    assert vector.values == (0.5, -1.25, 2.0)
    assert stub.requests[0][2]["encoding_format"] == "base64"
    assert answer_of({"object": "vector", "base64": data, "n_tokens": 5}).n_tokens == 5
    with pytest.raises(weft.UserError, match="cannot be read"):
        answer_of({"object": "vector", "base64": "???"})


def test_errors_are_lines_that_name_the_field(stub: Stub) -> None:
    client = weft.Client(stub.url)
    stub.reply = lambda path, body: error(422, "is empty", "input[3]")
    with pytest.raises(ServerError, match=r"^input\[3\]: is empty$") as caught:
        client.classify("m", ["a"])
    assert caught.value.status == 422 and caught.value.field == "input[3]" and isinstance(caught.value, weft.UserError)
    stub.reply = lambda path, body: (200, {}, b"<html>")
    with pytest.raises(weft.UserError, match="is this the address of weft serve"):
        client.models()
    stub.reply = lambda path, body: (502, {}, b"<html>")
    with pytest.raises(weft.UserError, match="status 502"):
        client.models()
    with pytest.raises(weft.UserError, match="cannot be sent as JSON"):
        client.classify("m", ["a"], cost=float("nan"))
    for url in ("ftp://127.0.0.1", "http://", "http://a:b:c", "http://127.0.0.1:99999"):
        with pytest.raises(weft.UserError, match="is not the address of a server"):
            weft.Client(url)


def test_a_busy_server_is_asked_again_when_it_says(stub: Stub) -> None:
    seen: list[float] = []

    def busy_twice(path: str, body: Any) -> tuple[int, dict[str, str], bytes]:
        seen.append(time.monotonic())
        done = 200, {}, json.dumps({"answers": [LABEL]}).encode()
        return done if len(seen) > 2 else error(429, "the queue is full", Retry_After="0.2")

    stub.reply = busy_twice
    assert weft.Client(stub.url).classify("m", "a").label == "good"
    assert len(seen) == 3 and min(b - a for a, b in zip(seen, seen[1:], strict=False)) >= 0.2


def test_a_busy_server_is_asked_as_often_as_it_takes(stub: Stub) -> None:
    """Until the time of the call is over, and after as many milliseconds as the server says."""

    def busy(path: str, body: Any) -> tuple[int, dict[str, str], bytes]:
        done = 200, {}, json.dumps({"answers": [LABEL]}).encode()
        headers = {"Retry_After": "1", "Retry_After_Ms": "5"}
        return done if len(stub.requests) > 50 else error(429, "the queue is full", **headers)

    stub.reply = busy
    assert weft.Client(stub.url, timeout=20).classify("m", "a").label == "good"
    assert len(stub.requests) == 51


def test_threads_take_turns_where_a_server_is_full(stub: Stub) -> None:
    """Each gets its answers in its turn, and once it is known how many the server takes, few are refused."""
    lock, counts = threading.Lock(), {"there": 0, "refused": 0}

    def three_at_a_time(path: str, body: Any) -> tuple[int, dict[str, str], bytes]:
        with lock:
            if counts["there"] == 3:
                counts["refused"] += 1
                return error(429, "the queue is full", Retry_After="1", Retry_After_Ms="400")
            counts["there"] += 1
        time.sleep(0.04)
        with lock:
            counts["there"] -= 1
        return 200, {}, json.dumps({"answers": [LABEL]}).encode()

    stub.reply = three_at_a_time
    client, answered, end = weft.Client(stub.url), [0] * 12, time.monotonic() + 3

    def ask(number: int) -> None:
        while time.monotonic() < end:
            client.classify("m", "a")
            answered[number] += 1

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert max(answered) <= 6 * min(answered), answered
    assert counts["refused"] < sum(answered) / 2


def test_waiting_ends_with_the_time_of_the_call(stub: Stub) -> None:
    stub.reply = lambda path, body: error(429, "the queue is full", Retry_After="30")
    begin = time.monotonic()
    with pytest.raises(ServerError, match="the queue is full"):
        weft.Client(stub.url, timeout=2).classify("m", "a")
    assert time.monotonic() - begin < 1 and len(stub.requests) == 1
    stub.reply = lambda path, body: error(503, "the model is being started again")  # says nothing of another try
    with pytest.raises(ServerError):
        weft.Client(stub.url).classify("m", "a")
    assert len(stub.requests) == 2
    stub.reply = lambda path, body: time.sleep(1) or (200, {}, b"{}")  # type: ignore[func-returns-value]
    with pytest.raises(weft.UserError, match="no answer within 0.2 seconds"):
        weft.Client(stub.url, timeout=0.2).classify("m", "a")


def test_a_connection_that_the_server_closed_is_opened_again(stub: Stub) -> None:
    reply = json.dumps({"answers": [LABEL]}).encode()
    client = weft.Client(stub.url)
    listener = socket.create_server(("127.0.0.1", 0))
    client._port = listener.getsockname()[1]

    def serve() -> None:
        for _ in range(2):  # one request on each connection, which then ends without a word
            connection, _ = listener.accept()
            connection.recv(1 << 16)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(reply), reply))
            connection.close()

    threading.Thread(target=serve, daemon=True).start()
    assert [client.classify("m", "a").label for _ in range(2)] == ["good", "good"]
    listener.close()
    with pytest.raises(weft.UserError, match="nothing listens there; start a server with weft serve"):
        client.classify("m", "a")


def test_streams_give_pieces_and_the_answer(stub: Stub) -> None:
    text = {"text": "ab", "score": -1.0, "logprob": -1.0, "finish_reason": "end", "tokens": [1, 2], "n_tokens": 2}
    events = [{"text": "a"}, {"text": "b"}, {"answers": [{"object": "text", **text}]}]
    lines = b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events)
    stub.reply = lambda path, body: (200, {"Content-Type": "text/event-stream"}, lines + b"data: [DONE]\n\n")
    client = weft.Client(stub.url)
    stream = client.stream("gpt", "The", max_tokens=2)
    with pytest.raises(weft.UserError, match="not all there yet"):
        stream.answer  # noqa: B018
    assert list(stream) == ["a", "b"] and stream.answer.tokens == (1, 2)
    assert stub.requests[0][2]["stream"] is True
    assert "".join(client.stream("gpt", "The")) == "ab" and stub.connections == 1
    stub.reply = lambda path, body: (200, {}, lines)
    with pytest.raises(weft.UserError, match="ended its reply too early"):
        list(client.stream("gpt", "The"))
    broken = b'data: {"error": {"message": "the worker ended", "code": 503}}\n\n'
    stub.reply = lambda path, body: (200, {}, broken)
    with pytest.raises(ServerError, match="the worker ended"):
        list(client.stream("gpt", "The"))


def test_models_are_called_by_their_task(stub: Stub) -> None:
    listed = {"object": "list", "data": [{"id": "wiki-qa", "task": "answer"}, {"id": "gpt", "task": "complete"}]}
    stub.reply = lambda path, body: (200, {}, json.dumps(listed).encode())
    client = weft.Client(stub.url)
    model = client.model("wiki-qa")
    assert "wiki-qa" in repr(model) and model.task == "answer"
    with pytest.raises(weft.UserError, match="serves no model 'wiki-qo'; did you mean 'wiki-qa'"):
        client.model("wiki-qo")
    reply = {"object": "reply", "text": "", "start": 0, "end": 0, "score": 0.1, "no_answer": 0.9, "best": []}
    stub.answers({**reply, "n_tokens": 5})
    assert model(("Who?", "Ada.")).no_answer == 0.9
    assert stub.requests[-1][0] == "/v1/answer" and stub.requests[-1][2]["input"] == [["Who?", "Ada."]]


def test_threads_have_connections_of_their_own(stub: Stub) -> None:
    stub.answers(LABEL)
    client = weft.Client(stub.url)
    threads = [threading.Thread(target=lambda: [client.classify("m", "a") for _ in range(5)]) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stub.connections == 3 and len(stub.requests) == 15


def test_the_client_needs_neither_torch_nor_numpy() -> None:
    code = "import sys, weft; weft.Client(); print(sorted({'torch', 'numpy', 'tokenizers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
