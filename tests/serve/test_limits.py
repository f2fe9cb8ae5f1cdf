"""Requests that want too much, come too slowly or are no text: each is refused as designed, and the server goes on."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.serve.running import Reply, Served, until
from tests.serve.wire import (
    TEXT,
    Asking,
    classify,
    closed,
    exchange,
    goes_on,
    head,
    reply_on,
    standing_still,
    waits,
    worker_of,
)

JSON_LINE = "Content-Type: application/json"
MEGABYTE = b" " * (1 << 20)


def complete(server: Served, **more: Any) -> Reply:
    return server.post("/v1/completions", {"model": "gpt", "prompt": "The", "max_tokens": 2, **more})


# -------------------------------------------------------------------------------------------------- limits of a request


@pytest.mark.parametrize(
    ("path", "most", "above", "status", "param"),
    [
        ("classify", {"input": ["a"] * 3}, {"input": ["a"] * 4}, 422, "input"),
        ("completions", {"prompt": ["a"] * 3}, {"prompt": ["a"] * 4}, 422, "prompt"),
        ("completions", {"prompt": [[5, 6]] * 3}, {"prompt": [[5, 6]] * 4}, 422, "prompt"),
        ("complete", {"input": ["a"] * 3}, {"input": ["a"] * 4}, 422, "input"),
        ("embeddings", {"input": ["a"] * 5}, {"input": ["a"] * 6}, 422, "input"),
        ("rerank", {"query": "a", "documents": ["a"] * 5}, {"query": "a", "documents": ["a"] * 6}, 422, "documents"),
        (
            "rank",
            {"input": {"query": "a", "texts": ["a"] * 5}},
            {"input": {"query": "a", "texts": ["a"] * 6}},
            422,
            "input[0].texts",
        ),
        ("completions", {"prompt": "a", "n": 2}, {"prompt": "a", "n": 3}, 422, "n"),
        ("completions", {"prompt": "a", "best_of": 2}, {"prompt": "a", "best_of": 3}, 422, "best_of"),
        ("complete", {"input": "a", "temperature": 1, "n": 2}, {"input": "a", "temperature": 1, "n": 3}, 422, "n"),
        ("completions", {"prompt": "a", "stop": ["x"]}, {"prompt": "a", "stop": ["x", "y"]}, 422, "stop"),
        ("complete", {"input": "a", "stop": ["x"]}, {"input": "a", "stop": ["x", "y"]}, 422, "stop"),
        ("completions", {"prompt": "a", "max_tokens": 200}, {"prompt": "a", "max_tokens": 301}, 413, "max_tokens"),
        ("completions", {"prompt": ["a"] * 3, "max_tokens": 60}, {"prompt": ["a"] * 3, "max_tokens": 101}, 413,
         "max_tokens"),
        ("completions", {"prompt": [5] * 200, "max_tokens": 2}, {"prompt": [5] * 200, "max_tokens": 101}, 413,
         "prompt"),
        ("classify", {"input": "cat " * 250}, {"input": "cat " * 301}, 413, "input"),
        ("classify", {"input": ["cat " * 90] * 3}, {"input": ["cat " * 110] * 3}, 413, "input"),
        ("embeddings", {"input": [[5] * 40] * 5}, {"input": [[5] * 70] * 5}, 413, "input"),
    ],
)  # fmt: skip
def test_each_limit_is_its_flag_and_names_its_field(
    tight: Served, path: str, most: dict[str, Any], above: dict[str, Any], status: int, param: str
) -> None:
    model = "gpt" if path.startswith("complet") else "reviews"
    more = {"max_tokens": 2} if path == "complete" else {}
    within = tight.post(f"/v1/{path}", {"model": model, **more, **most})
    assert within.status == 200, within.body
    refused = tight.post(f"/v1/{path}", {"model": model, **more, **above})
    assert refused.status == status and refused.error["param"] == param, refused.body
    assert refused.error["message"].startswith(param)


def test_limits_of_the_description_are_those_of_the_flags(tight: Served) -> None:
    schemas = tight.get("/openapi.json").json()["components"]["schemas"]
    fields = schemas["CompletionRequest"]["properties"]
    assert [kind["maximum"] for kind in fields["n"]["anyOf"] if "maximum" in kind] == [2]
    assert [kind["maxItems"] for kind in fields["stop"]["anyOf"] if "maxItems" in kind] == [1]
    texts = schemas["ClassifyRequest"]["properties"]["input"]["anyOf"]
    assert max(kind["maxItems"] for kind in texts if kind.get("type") == "array") == 3


def test_refusals_need_no_worker(tight: Served) -> None:
    """What is refused for its size is not tokenized: it is answered while the worker does nothing."""
    with standing_still(*tight.workers()):
        assert classify(tight, input=["a"] * 4).status == 422
        assert complete(tight, max_tokens=301).status == 413
        assert tight.post("/v1/classify", b" " * 20_001).status == 413
        assert tight.get("/health").status == tight.get("/ready").status == 200
    goes_on(tight)


def test_a_body_above_its_limit(tight: Served) -> None:
    body = json.dumps(TEXT).encode()
    assert tight.post("/v1/classify", body + b" " * (20_000 - len(body))).status == 200
    refused = tight.post("/v1/classify", body + b" " * (20_001 - len(body)))
    assert refused.status == 413 and "20,000 bytes" in refused.error["message"]
    with tight.connect() as connection:  # the next request of the connection is another one
        connection.sendall(head("POST /v1/classify", JSON_LINE, "Content-Length: 30000") + b" " * 1_000)
        assert reply_on(connection).status == 413
        connection.sendall(b" " * 29_000)
        for wait in (0.0, 0.0, 1.5):  # the time that was left for the first body has passed by then
            time.sleep(wait)
            connection.sendall(head("POST /v1/classify", JSON_LINE, f"Content-Length: {len(body)}") + body)
            assert reply_on(connection).status == 200
    # A client that asks first is told before it sends anything; what comes next cannot be taken for the body.
    with tight.connect() as connection:
        connection.sendall(head("POST /v1/classify", JSON_LINE, "Content-Length: 30000", "Expect: 100-continue"))
        refused = reply_on(connection)
        assert refused.status == 413 and refused.headers["connection"] == "close" and closed(connection)


def send_until_closed(connection: socket.socket, part: bytes, count: int) -> int:
    """How many parts could be sent."""
    sent = 0
    try:
        while sent < count:
            connection.sendall(part)
            sent += 1
    except ConnectionError:
        pass
    return sent


@pytest.mark.parametrize("line", ["Content-Length: 104857600", "Transfer-Encoding: chunked"])
def test_a_body_of_100_megabytes(server: Served, line: str) -> None:
    part = b"%x\r\n%s\r\n" % (len(MEGABYTE), MEGABYTE) if "chunked" in line else MEGABYTE
    before = server.metric("weft_memory_bytes")
    with server.connect() as connection:
        connection.sendall(head("POST /v1/classify", JSON_LINE, line))
        sender = Asking(lambda: send_until_closed(connection, part, 100))
        refused = reply_on(connection)
        sender.ended()
    assert refused.status == 413 and "1,048,576 bytes" in refused.error["message"]
    assert server.metric("weft_memory_bytes") - before < 24 << 20
    goes_on(server)


def test_large_bodies_that_arrive_together(server: Served) -> None:
    """More than there is memory for: the later ones are refused, small requests are not, and all is well afterwards."""
    many = [server.connect() for _ in range(140)]
    try:
        for connection in many:
            connection.sendall(head("POST /v1/classify", JSON_LINE, f"Content-Length: {1 << 20}") + b" ")
        goes_on(server)
        replies = [reply_on(connection) for connection in many]
    finally:
        for connection in many:
            connection.close()
    assert {reply.status for reply in replies} == {408, 429}, "they never went on"
    refused = [reply for reply in replies if reply.status == 429]
    assert len(refused) >= 12 and all(reply.headers["retry-after"] for reply in refused)
    assert server.post("/v1/classify", json.dumps(TEXT).encode() + b" " * 1_000_000).status == 200


# -------------------------------------------------------------------------------------------------- texts that are none


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"[" * 500_000, 400, "nested"),
        (b'{"input": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400, "nested"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, 400, "nested"),
        (b'{"model": "reviews", "input": "x\\u0000y"}', 400, "NUL"),
        (b'{"model": "reviews", "input": "x\x00y"}', 400, "not JSON"),
        (b'{"model": "reviews", "input": "\\ud800"}', 400, "surrogate"),
        (b'{"model": "reviews", "input": "\\udc00\\ud800 x"}', 400, "surrogate"),
        (b'{"model": "reviews", "input": "\xed\xa0\x80"}', 400, "UTF-8"),
        (b'{"model": "reviews", "\\ud800": 1, "input": "x"}', 400, "surrogate"),
        (b'{"model": "reviews", "input": "a", "input": "b"}', 400, "twice"),
        (b'{"model": "reviews", "model": "gpt", "input": "b"}', 400, "twice"),
        (b'{"model": "gpt", "prompt": "a", "temperature": NaN}', 400, "NaN"),
        (b'{"model": "gpt", "prompt": "a", "temperature": Infinity}', 400, "Infinity"),
        (b'{"model": "gpt", "prompt": "a", "temperature": 1e999}', 400, "number"),
        (b'{"model": "gpt", "prompt": "a", "seed": ' + b"9" * 100_000 + b"}", 400, ""),
        (b'{"model": "gpt", "prompt": "a", "seed": ' + b"9" * 400 + b"}", 422, "seed"),
        (b'{"model": "gpt", "prompt": [' + b"1," * 200_000 + b"-1]}", 422, "prompt[200000]"),
        (b'{"model": "reviews", "input": [' + b'"a",' * 200_000 + b'"b"]}', 422, "input"),
        (b"{" + b",".join(b'"k%d": 0' % number for number in range(80_000)) + b"}", 422, "unknown field"),
        (b'{"model": "reviews", "input": "x", "' + b"k" * 1_000_000 + b'": 1}', 422, "unknown field"),
        (b'{"model": "' + b"m" * 1_000_000 + b'", "input": "x"}', 422, "model"),
        (b"null", 400, "object"),
        (b'"reviews"', 400, "object"),
        (b'{"model": "reviews", "input": "x"} {}', 400, "not JSON"),
        (b"{'model': 'reviews'}", 400, "not JSON"),
        (b"\xff\xfe{\x00}\x00", 400, "UTF-8"),
        (b"model=reviews&input=x", 400, "not JSON"),
        (b"", 400, "empty"),
        (b" " * 1_000_000, 400, "empty"),
    ],
)
def test_bodies_that_are_no_request(server: Served, body: bytes, status: int, message: str) -> None:
    reply = server.post("/v1/classify" if b"gpt" not in body or b"twice" in body else "/v1/completions", body)
    assert reply.status == status and message in reply.error["message"], reply.body[:300]
    assert len(reply.body) < 1000  # what was sent is not sent back
    goes_on(server)


def test_texts_that_are_rare(server: Served) -> None:
    """A word of a million characters, and what text may hold, on every kind of model."""
    word = "x" * 1_000_000
    for name, path, field in (
        ("reviews", "classify", "input"), ("names", "tag", "input"), ("bert", "embeddings", "input"),
        ("dates", "translate", "input"), ("gpt", "completions", "prompt"),
    ):  # fmt: skip
        for text in (word, "", " ", "\n", "\U0010ffff", "e" + "\u0301" * 100, "\u202e\ufeff\u2028", "\x01\x1b[31m"):
            reply = server.post(f"/v1/{path}", {"model": name, field: text, **({"max_tokens": 1} if name in
                                ("gpt", "dates") else {})}, seconds=120)  # fmt: skip
            # A byte-level model has more tokens for the word than a request may have.
            assert reply.status == 200 or (text == word and reply.status in (413, 422)), (name, text[:9], reply.body)
            if reply.status != 200:
                assert reply.error["param"] == field and len(reply.body) < 1000
    answer = server.post("/v1/answer", {"model": "qa", "input": {"question": word[:9000], "context": word}})
    assert answer.status in (200, 413, 422)
    goes_on(server)


# ----------------------------------------------------------------------------------------------------- headers and time


@pytest.mark.parametrize(
    "lines",
    [
        [f"X: {'a' * 70_000}"],
        [f"X: {'a' * 7_000_000}"],
        [f"X-{number}: a" for number in range(9_000)],
        ["X:"] * 300,
        ["X:"] * 15_000,
        [f"Cookie: {'a' * 8_000}"] * 9,
    ],
)
def test_headers_above_their_limit(server: Served, lines: list[str]) -> None:
    with server.connect() as connection:
        data = head("GET /health", *lines)
        sender = Asking(lambda: send_until_closed(connection, data, 1))
        refused = reply_on(connection)
        sender.ended()
    assert refused.status == 431 and "65,536 bytes" in refused.error["message"]
    assert exchange(server, head("GET /health", f"X: {'a' * 60_000}")).status == 200


@pytest.mark.parametrize(
    "begin",
    [
        head("POST /v1/classify", JSON_LINE, "Transfer-Encoding: chunked") + b"0\r\nX: ",
        head("POST /v1/classify", JSON_LINE, "Transfer-Encoding: chunked") + b"2\r\n{}\r\n0\r\nX: ",
        head("POST /v1/classify", JSON_LINE, "Transfer-Encoding: chunked") + b"0\r\n" + b"X:\r\n" * 300,
        head("POST /v1/classify", JSON_LINE, "Transfer-Encoding: chunked") + b"2;",
        head("POST /nothing", "Content-Length: 2") + b"{}GET / HTTP/1.1\r\nX: ",  # the reply came before the body
        head("POST /nothing", "Transfer-Encoding: chunked") + b"0\r\nX: ",
    ],
)
def test_what_is_around_a_body_has_the_limits_of_headers(server: Served, begin: bytes) -> None:
    """The parser holds a header until its end: of one that has none, every part would be slower than the last."""
    with server.connect() as connection:
        connection.sendall(begin)
        if b"/nothing" in begin:
            assert reply_on(connection).status == 404
        sender = Asking(lambda: send_until_closed(connection, b"a" * (1 << 16), 16))
        assert reply_on(connection).status == 431
        sender.ended()
    goes_on(server)


def test_requests_far_ahead_of_their_replies(tight: Served) -> None:
    """What a client sends before it has read anything is held for it: not more than a little."""
    body = json.dumps(TEXT).encode()
    first = head("POST /v1/classify", JSON_LINE, f"Content-Length: {len(body)}") + body
    with standing_still(worker_of(tight, "reviews")), tight.connect() as connection:
        connection.sendall(first)
        waits(tight, 1)
        connection.sendall(head("GET /health") * 200)
        assert closed(connection)
        waits(tight, 0)
    until(lambda: tight.metric("weft_rejected_total", reason="pipeline") == 1)
    goes_on(tight)


def dripped(server: Served, begin: bytes, byte: bytes) -> Reply:
    """The reply to a request that comes byte by byte and never ends."""
    with server.connect() as connection:
        connection.sendall(begin)
        stop = threading.Event()

        def drip() -> None:
            for _ in range(600):
                if stop.wait(0.1) or not send_until_closed(connection, byte, 1):
                    return

        dripping = Asking(drip)
        try:
            return reply_on(connection)
        finally:
            stop.set()
            dripping.ended()


def test_requests_that_come_slowly(tight: Served) -> None:
    """Slow-loris: headers or a body byte by byte, on many connections, while others are answered."""
    post = "POST /v1/classify"
    begins = {
        b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX": b"x",
        b"GET /": b"y",
        b"\r\n": b"\r\n",
        head(post, JSON_LINE, "Content-Length: 1000"): b" ",
        head(post, JSON_LINE, "Content-Length: 1001") + b"{": b" ",
        head(post, JSON_LINE, "Transfer-Encoding: chunked"): b"1\r\n \r\n",
        head(post, JSON_LINE, "Transfer-Encoding: chunked") + b"400\r\n": b" ",
        head("GET /health") + b"GET /": b"z",  # after a request that was answered
    }
    slow = [Asking(lambda begin=begin, byte=byte: dripped(tight, begin, byte)) for begin, byte in begins.items()]
    goes_on(tight)
    for asking, begin in zip(slow, begins, strict=True):
        (reply,) = asking.ended()
        if begin.endswith(b"GET /") and begin != b"GET /":
            assert reply.status == 200
        elif begin != b"\r\n":  # what is nothing at all is closed without a word
            assert isinstance(reply, Reply) and reply.status == 408 and reply.error["code"] == "timeout", (begin, reply)
    until(lambda: tight.metric("weft_connections") == 1)
    goes_on(tight)


def test_halves_of_requests(tight: Served) -> None:
    """What stops halfway is told so; what leaves halfway is forgotten; what was never said holds no connection."""
    body = head("POST /v1/classify", JSON_LINE, "Content-Length: 50")
    with tight.connect() as silent, tight.connect() as half, tight.connect() as left:
        half.sendall(body + b'{"model"')
        left.sendall(body + b'{"model"')
        left.close()
        assert reply_on(half).status == 408 and closed(half) and closed(silent)
    for start, status in (("GET /health", 200), ("POST /nothing", 404), ("POST /v1/models", 405)):
        with tight.connect() as connection:  # replies that need no body do not wait for it, nor for ever
            connection.sendall(head(start, "Content-Length: 50") + b"abc")
            assert reply_on(connection).status == status and closed(connection)
    until(lambda: tight.metric("weft_pending") == tight.metric("weft_connections") == 1)
    goes_on(tight)


def test_a_client_that_does_not_read(server: Served) -> None:
    """Replies of megabytes, of which nobody reads a byte: they are not held for ever, and others are answered."""
    path = "/openapi.json"
    assert 100 * len(server.get(path).body) > 8 << 20
    before, memory = server.metric("weft_connections"), server.metric("weft_memory_bytes")
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(30)
        connection.connect(("127.0.0.1", server.port))
        sender = Asking(lambda: send_until_closed(connection, head(f"GET {path}"), 100))
        until(lambda: server.metric("weft_connections") > before)
        goes_on(server)
        until(lambda: server.metric("weft_connections") == before)
        sender.ended()
    assert server.metric("weft_memory_bytes") - memory < 24 << 20
    goes_on(server)


# ------------------------------------------------------------------------------------------ queues, deadlines and slots


def test_a_full_queue_is_told_at_once(tight: Served) -> None:
    before = tight.metric("weft_rejected_total", reason="queue")
    with standing_still(worker_of(tight, "reviews")):
        first = Asking(lambda: classify(tight), 4)
        waits(tight, 4)
        for _ in range(3):  # while nothing at all moves
            refused = classify(tight)
            assert refused.status == 429 and refused.error["type"] == "rate_limit_error"
            assert int(refused.headers["retry-after"]) >= 1 and int(refused.headers["retry-after-ms"]) >= 50
        assert tight.post("/v1/embeddings", TEXT).status == 429
        assert complete(tight).status == 200, "another model has a queue of its own"
    assert [reply.status for reply in first.ended()] == [200] * 4
    assert tight.metric("weft_rejected_total", reason="queue") == before + 4
    goes_on(tight)


def test_a_deadline_that_passes(tight: Served) -> None:
    with standing_still(worker_of(tight, "reviews")):
        for seconds in ("0.2", "1e-9"):
            late = classify(tight, {"Weft-Deadline": seconds})
            assert late.status == 504 and late.error["code"] == "deadline_exceeded"
        waits(tight, 0)
        streamed = Asking(lambda: complete(tight, stream=True))
        assert streamed.ended()[0].status == 200
    for seconds in ("0", "-1", "nan", "-inf", "soon", "1,5", "1 2", ""):
        refused = classify(tight, {"Weft-Deadline": seconds})
        assert refused.status == 400 and refused.error["param"] == "Weft-Deadline", seconds
    for seconds in ("30", "inf", "1e300", " 5 "):
        assert classify(tight, {"Weft-Deadline": seconds}).status == 200
    with standing_still(worker_of(tight, "gpt")):
        assert tight.post(
            "/v1/completions", {"model": "gpt", "prompt": "x", "stream": True}, {"Weft-Deadline": "0.2"}
        ).status == 504  # fmt: skip
    goes_on(tight)


def test_a_client_that_leaves_frees_its_place(tight: Served) -> None:
    body = json.dumps(TEXT).encode()
    data = head("POST /v1/classify", JSON_LINE, f"Content-Length: {len(body)}") + body
    gone = tight.metric("weft_rejected_total", reason="client gone")
    with standing_still(worker_of(tight, "reviews")):
        connections = [tight.connect() for _ in range(4)]
        for connection in connections:
            connection.sendall(data)
        waits(tight, 4)
        assert classify(tight).status == 429
        for connection in connections:
            connection.close()
        waits(tight, 0)
        again = Asking(lambda: classify(tight), 4)
        waits(tight, 4)
    assert [reply.status for reply in again.ended()] == [200] * 4
    assert tight.metric("weft_rejected_total", reason="client gone") == gone + 4
    until(lambda: sum(line["status"] == 499 for line in tight.log()) >= 4)


def test_a_client_that_leaves_a_stream_frees_its_place(tight: Served) -> None:
    values = {"model": "gpt", "prompt": "The", "max_tokens": 250, "stream": True}
    body = json.dumps(values).encode()
    worker = worker_of(tight, "gpt")
    streams = [tight.connect() for _ in range(4)]
    for connection in streams:
        connection.sendall(head("POST /v1/completions", JSON_LINE, f"Content-Length: {len(body)}") + body)
    for connection in streams[:2]:
        assert b"200 OK" in connection.recv(64)
    with standing_still(worker):
        for connection in streams:  # in the middle, or before the first piece
            connection.close()
        waits(tight, 0, "gpt")
        again = Asking(lambda: complete(tight), 4)
        waits(tight, 4, "gpt")
    assert [reply.status for reply in again.ended()] == [200] * 4
    waits(tight, 0, "gpt")


def test_more_connections_than_the_limit(tight: Served) -> None:
    until(lambda: tight.metric("weft_connections") == 1)
    rejected = tight.metric("weft_rejected_total", reason="connections")
    kept = [tight.connect() for _ in range(24)]
    try:
        for connection in kept:  # what has asked once is kept for longer than a test takes
            connection.sendall(head("GET /health"))
            assert reply_on(connection).status == 200
        large = head("POST /v1/classify", JSON_LINE, "Content-Length: 1000000") + b" " * 1_000_000
        for data in [head("GET /health")] * 17 + [large] * 3:  # each gets to see why
            refused = exchange(tight, data)
            assert refused.status == 503 and "too many connections" in refused.error["message"]
            assert refused.headers["retry-after"] == "1" and refused.headers["connection"] == "close"
        for connection in kept:
            connection.sendall(head("GET /ready"))
            assert reply_on(connection).status == 200
    finally:
        for connection in kept:
            connection.close()
    until(lambda: still_there(tight))
    assert tight.metric("weft_rejected_total", reason="connections") >= rejected + 20
    goes_on(tight)


def still_there(server: Served) -> bool:
    """Whether it answers; with far too many connections it may close one without a word."""
    try:
        return exchange(server, head("GET /health")).status == 200
    except ConnectionError:
        return False


def test_a_burst_of_connections_that_say_nothing(tight: Served) -> None:
    """Far more than the limit, at once: those are closed, and the server goes on."""
    silent = [tight.connect() for _ in range(300)]
    try:
        until(lambda: still_there(tight))
        goes_on(tight)
        assert all(closed(connection) for connection in silent)
    finally:
        for connection in silent:
            connection.close()


def test_an_answer_that_is_no_number_harms_no_other(tight: Served) -> None:
    """All of them are in one pass; the model fails on one."""
    texts = ["the cat", "the oak", "a cow"]
    (alone,) = classify(tight, input="the cat").json()["answers"]
    worker = worker_of(tight, "reviews")
    with standing_still(worker):
        asking = [Asking(lambda text=text: classify(tight, input=text)) for text in texts]
        waits(tight, 3)
    first, failed, last = (each.ended()[0] for each in asking)
    assert first.status == last.status == 200
    (answer,) = first.json()["answers"]
    assert answer["label"] == alone["label"] and answer["score"] == pytest.approx(alone["score"], abs=1e-5)
    assert failed.status == 500 and failed.error["message"] == "the model's output is not a number"
    assert worker_of(tight, "reviews") == worker, "the worker lives on"
    until(lambda: any('"NotFinite"' in line for line in tight.lines))
    assert not any("oak" in line for line in tight.lines)
    goes_on(tight)


def test_a_worker_without_memory_harms_no_other_request(server: Served) -> None:
    """The system gives the worker no more memory: what needs more is told so, and the rest is answered."""
    import resource

    worker = worker_of(server, "bert")
    status = Path(f"/proc/{worker}/status").read_text()
    held = next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmSize"))
    before = resource.prlimit(worker, resource.RLIMIT_AS)
    resource.prlimit(worker, resource.RLIMIT_AS, (held, before[1]))
    try:
        large = server.post("/v1/embeddings", {"model": "bert", "input": ["a b c d e f g h " * 30] * 300}, seconds=120)
        assert large.status in (200, 503), large.body
        if large.status == 503:
            assert "memory" in large.error["message"] or "worker" in large.error["message"]
        assert server.get("/health").status == 200
        goes_on(server)
    finally:
        if worker in server.workers():  # it may go on to fail: the other tests of this server get a new one
            resource.prlimit(worker, resource.RLIMIT_AS, before)
            os.kill(worker, signal.SIGKILL)
    again: list[Reply] = []

    def answered() -> bool:
        again.append(server.post("/v1/embeddings", {"model": "bert", "input": "a cat"}))
        return again[-1].status == 200

    until(answered, 60)
    assert {reply.status for reply in again} <= {200, 503}
