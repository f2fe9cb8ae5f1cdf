"""What ends, reloads or kills parts of a server: no reply is lost, and what can go on does."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.children import start_child
from tests.serve.running import ENVIRONMENT, ROOT, Reply, Served, until
from tests.serve.wire import (
    TEXT,
    Asking,
    classify,
    command_of,
    exchange,
    goes_on,
    head,
    reply_on,
    standing_still,
    waits,
    worker_of,
)

JSON_LINE = "Content-Type: application/json"
STREAM = {"model": "gpt", "prompt": "The", "max_tokens": 24, "temperature": 0, "stream": True}
REFUSED = "refused"  # a connection that the server did not take
LOST = "lost"  # one that it took, without a reply


@pytest.fixture(scope="module")
def folders(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders that may be changed."""
    folder = tmp_path_factory.mktemp("changed")
    for name in ("reviews", "gpt"):
        shutil.copytree(models / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def served(folders: Path) -> Iterator[Served]:
    """A server whose workers are killed, and whose folders change."""
    with Served(str(folders / "reviews"), str(folders / "gpt")) as server:
        yield server


class Clients:
    """Threads that ask until they are told to stop, or the server takes nobody in any more; each reply is counted."""

    def __init__(self, server: Served, kept: int, fresh: int, streams: int) -> None:
        self.server, self.stop = server, threading.Event()
        self.counts: Counter[Any] = Counter()
        self.versions: list[Any] = []
        self.lock = threading.Lock()
        kinds = [self.ask_again] * kept + [self.ask_once] * fresh + [self.ask_stream] * streams
        self.threads = [threading.Thread(target=self._run, args=(kind,), daemon=True) for kind in kinds]
        for thread in self.threads:
            thread.start()

    def _run(self, ask: Any) -> None:
        connection: list[http.client.HTTPConnection] = []
        while not self.stop.is_set():
            outcome = ask(connection)
            with self.lock:
                self.counts[outcome] += 1
            if outcome == REFUSED:
                return

    def ask_once(self, _: Any) -> Any:
        """A connection for each request."""
        return self.request([], "/v1/classify", TEXT, close=True)

    def ask_again(self, held: list[http.client.HTTPConnection]) -> Any:
        """One connection for as long as the server keeps it."""
        return self.request(held, "/v1/classify", TEXT)

    def ask_stream(self, held: list[http.client.HTTPConnection]) -> Any:
        return self.request(held, "/v1/completions", STREAM)

    def request(self, held: list[http.client.HTTPConnection], path: str, values: Any, close: bool = False) -> Any:
        if not held:
            connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
            try:
                connection.connect()
            except OSError:
                return REFUSED
            held.append(connection)
        headers = {"Content-Type": "application/json", **({"Connection": "close"} if close else {})}
        try:
            held[0].request("POST", path, json.dumps(values), headers)
            response = held[0].getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException) as error:
            held.pop().close()
            return f"{LOST}: {error!r}"
        if response.will_close or close:
            held.pop().close()
        whole = not values.get("stream") or response.status != 200 or body.endswith(b"data: [DONE]\n\n")
        if response.status == 200 and not values.get("stream"):
            self.versions.append(json.loads(body)["version"])
        return response.status if whole else LOST

    @property
    def asked(self) -> int:
        return sum(self.counts.values())

    def ended(self) -> Counter[Any]:
        self.stop.set()
        return self.ended_by_server()

    def ended_by_server(self) -> Counter[Any]:
        """What came of all, once the last has been refused a connection."""
        for thread in self.threads:
            thread.join(90)
            assert not thread.is_alive(), "a request has no end"
        return self.counts


def busy(clients: Clients, more: int = 30) -> None:
    """Wait until so many more requests are answered."""
    now = clients.asked
    until(lambda: clients.asked >= now + more, 60)


# ------------------------------------------------------------------------------------------------------- killed workers


def test_a_worker_that_is_killed_under_load(served: Served) -> None:
    """Its requests get 503, those that it had not begun an answer; another takes its place; nobody else notices."""
    clients = Clients(served, kept=3, fresh=2, streams=2)
    busy(clients)
    restarts = served.metric("weft_worker_restarts_total", model="reviews")
    first = worker_of(served, "reviews")
    with standing_still(first):
        waits(served, 5)  # it has something to lose
        os.kill(first, signal.SIGKILL)
    until(lambda: served.metric("weft_worker_restarts_total", model="reviews") == restarts + 1)
    until(lambda: served.metric("weft_workers", model="reviews") == 1, 90)
    busy(clients)
    counts = clients.ended()
    assert set(counts) == {200, 503} and counts[503] == 5, counts
    assert worker_of(served, "reviews") != first
    lost = [line for line in served.log() if line["status"] == 503]
    assert {line["reason"] for line in lost} == {"crash"} and {line["model"] for line in lost} == {"reviews"}
    assert served.metric("weft_worker_restarts_total", model="gpt") == 0
    goes_on(served)


def test_a_worker_that_is_killed_in_the_middle_of_a_stream(served: Served) -> None:
    """What has begun as 200 ends with an error that says so, and with the mark of the end."""
    values = {**STREAM, "max_tokens": 200}
    body = json.dumps(values).encode()
    worker = worker_of(served, "gpt")
    with served.connect() as connection:
        connection.sendall(head("POST /v1/completions", JSON_LINE, f"Content-Length: {len(body)}") + body)
        begun = b""
        while b"data: " not in begun:
            begun += connection.recv(1 << 10)
        with standing_still(worker):
            os.kill(worker, signal.SIGKILL)
        received = begun
        while not received.endswith(b"0\r\n\r\n"):
            part = connection.recv(1 << 16)
            assert part, received[-300:]
            received += part
    *_, last, end = [line[6:] for line in received.decode().splitlines() if line.startswith("data: ")]
    assert end == "[DONE]"
    if "error" in json.loads(last):  # else it had all been sent
        assert json.loads(last)["error"]["code"] == "unavailable"
        assert "started again" in json.loads(last)["error"]["message"]
    until(lambda: served.metric("weft_workers", model="gpt") == 1, 90)
    assert served.post("/v1/completions", {**STREAM, "stream": False}).status == 200


# ------------------------------------------------------------------------------------------------------------ reloading


def test_a_folder_is_opened_anew_under_load(served: Served, folders: Path) -> None:
    """SIGHUP: no request is dropped; one that cannot be opened changes nothing."""
    config = folders / "reviews" / "config.json"
    kept, version = config.read_bytes(), classify(served).json()["version"]
    worker, other = worker_of(served, "reviews"), worker_of(served, "gpt")
    clients = Clients(served, kept=2, fresh=1, streams=1)
    busy(clients)
    config.write_text('{"model_type": "bert"}')
    served.process.send_signal(signal.SIGHUP)
    until(lambda: any("reviews stays as it is" in line for line in served.lines), 90)
    until(lambda: any("gpt was opened anew" in line for line in served.lines), 90)
    assert worker_of(served, "reviews") == worker and classify(served).json()["version"] == version
    config.write_bytes(kept + b"\n")
    served.process.send_signal(signal.SIGHUP)
    until(lambda: any("reviews was opened anew" in line for line in served.lines), 90)
    until(lambda: sum("gpt was opened anew" in line for line in served.lines) == 2, 90)
    busy(clients)
    counts = clients.ended()
    assert set(counts) == {200}, counts
    changed = classify(served).json()["version"]
    assert changed != version and set(clients.versions) == {version, changed}
    assert served.get("/v1/models/reviews").json()["version"] == changed
    until(lambda: not command_of(worker) and not command_of(other))
    assert worker_of(served, "reviews") not in (worker, other)
    assert served.metric("weft_worker_restarts_total", model="gpt") <= 1


# ----------------------------------------------------------------------------------------------------------------- ends


def test_sigterm_under_load_loses_no_reply(served: Served) -> None:
    """The last test of this server."""
    mark = served.get("/health").headers["x-request-id"]
    clients = Clients(served, kept=4, fresh=4, streams=3)
    busy(clients)
    served.process.send_signal(signal.SIGTERM)
    counts = clients.ended_by_server()
    assert served.ended() == 0
    assert set(counts) == {200, REFUSED} and counts[REFUSED] == len(clients.threads), counts
    log = served.log()
    first = next(number for number, line in enumerate(log) if line["request"] == mark)
    lines = [line for line in log[first:] if line["method"] == "POST"]
    assert len(lines) == counts[200] and {line["status"] for line in lines} == {200}
    assert not any("Traceback" in line or "not finished" in line for line in served.lines)


def test_what_has_begun_is_finished_however_slow_it_is(models: Path) -> None:
    """Requests that wait for a worker, that are half sent, or whose connection has said nothing yet."""
    body = json.dumps(TEXT).encode()
    whole = head("POST /v1/classify", JSON_LINE, f"Content-Length: {len(body)}") + body
    with Served(str(models / "reviews"), "--no-access-log") as server:
        goes_on(server)
        idle, half_head, half_body, new, late, several = (server.connect() for _ in range(6))
        idle.sendall(head("GET /health"))
        assert reply_on(idle).status == 200
        half_head.sendall(whole[:40])
        half_body.sendall(whole[:-9])
        with standing_still(worker_of(server, "reviews")):
            waiting = Asking(lambda: classify(server), 6)
            waits(server, 6)
            several.sendall(whole * 3)
            waits(server, 7)
            server.process.send_signal(signal.SIGTERM)
            until(lambda: any("finishing" in line for line in server.lines))
            new.sendall(whole)  # it is taken in the first moment, while nothing goes on
            not_ready = ready_or_refused(server)
            until(lambda: ready_or_refused(server) is None)
            assert not_ready in (503, None)
            half_head.sendall(whole[40:])
            half_body.sendall(whole[-9:])
            assert idle.recv(1) == b"", "a connection that wants nothing is closed"
            late.sendall(whole)  # its client had to wait: one that has not asked yet is kept for longer
        replies = waiting.ended() + [reply_on(connection) for connection in (half_head, half_body, new, late)]
        assert [reply.status for reply in replies] == [200] * 10, replies
        assert all(reply.headers["connection"] == "close" for reply in replies[-4:])
        received = b""
        while part := several.recv(1 << 16):
            received += part
        assert received.count(b"HTTP/1.1 200 ") == 3 and received.count(b"connection: close") == 1
        assert server.ended() == 0
    assert not server.log(), "--no-access-log"


def ready_or_refused(server: Served) -> int | None:
    """The status of /ready; None where no connection is taken any more."""
    try:
        return exchange(server, head("GET /ready")).status
    except ConnectionError:
        return None


def test_readiness_goes_off_before_the_door_shuts() -> None:
    """What /ready and other replies say while a server ends; the routes are asked in this process."""
    import asyncio

    from weft.serve.app import ServedApp
    from weft.serve.front import Front
    from weft.serve.guard import Guard
    from weft.serve.limits import ServeOptions
    from weft.serve.metrics import ServerMetrics
    from weft.serve.pool import Pool

    options, draining = ServeOptions(), [False]
    app = ServedApp(Front(options, Pool([]), lambda: draining[0]), ServerMetrics(dict, lambda: 0)).app
    guard = Guard(app, options, None, lambda call: None, lambda: draining[0])

    def ask(path: str) -> Reply:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"",
                 "headers": [(b"host", b"localhost")], "client": None, "root_path": ""}  # fmt: skip
        asyncio.run(guard(scope, receive, send))
        headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return Reply(sent[0]["status"], headers, b"".join(part["body"] for part in sent[1:]))

    assert ask("/ready").status == 200 and "connection" not in ask("/ready").headers
    draining[0] = True
    assert ask("/ready").status == 503 and ask("/ready").error["code"] == "unavailable"
    assert ask("/health").status == 200 and ask("/health").headers["connection"] == "close"


def test_the_drain_has_an_end(models: Path) -> None:
    """What is not answered in time is told so, and the status says that something was lost; --deadline is kept."""
    arguments = (str(models / "reviews"), "--drain", "0.5", "--deadline", "4")
    with Served(*arguments) as server, standing_still(worker_of(server, "reviews")):
        assert classify(server, {"Weft-Deadline": "100"}).status == 504, "no header makes it longer"
        waiting = Asking(lambda: classify(server), 3)
        waits(server, 3)
        server.process.send_signal(signal.SIGTERM)
        replies = waiting.ended()
        assert [reply.status for reply in replies] == [503] * 3
        assert all("ends" in reply.error["message"] and reply.headers["retry-after"] for reply in replies)
        assert server.ended() == 1
    assert any("3 requests were not finished within 0.5 seconds" in line for line in server.lines)
    assert not any("Traceback" in line for line in server.lines)


def test_loading_and_a_second_interrupt(models: Path) -> None:
    """A server that listens says that it is not ready until its models are; a second Ctrl-C ends it at once."""
    command = [sys.executable, "-P", "-m", "weft", "serve", str(models / "reviews"), "--port", "0"]
    process = start_child(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **ENVIRONMENT},
    )  # fmt: skip
    server = Served.__new__(Served)
    server.process = process
    try:
        begun = b"weft.serve.worker"  # before, the server waits for its child
        until(lambda: [pid for pid in server.workers() if begun in command_of(pid)], 90)
        (worker,) = server.workers()
        with standing_still(worker):
            server.port = listening_port(process.pid)
            assert server.get("/health").status == 200
            for reply in (server.get("/ready"), classify(server)):
                assert reply.status == 503 and "not ready" in reply.error["message"]
                assert reply.headers["retry-after"] == "1"
            (card,) = server.get("/v1/models").json()["data"]
            assert card["id"] == "reviews" and card["ready"] is False
            process.send_signal(signal.SIGHUP)
        until(lambda: server.get("/ready").status == 200, 90)
        goes_on(server)
        # What is asked of it while it opens the folders comes next, and leaves no worker behind.
        until(lambda: not command_of(worker) and len(server.workers()) == 1, 90)
        (worker,) = server.workers()
        goes_on(server)
        with standing_still(*server.workers()):
            waiting = Asking(lambda: classify(server))
            waits(server, 1)
            process.send_signal(signal.SIGINT)
            assert process.stderr is not None
            for line in process.stderr:
                if "finishing" in line:
                    assert "1 requests" in line and "Ctrl-C again leaves at once" in line
                    break
            assert process.poll() is None
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 128 + signal.SIGINT
        (outcome,) = waiting.ended()
        assert isinstance(outcome, Exception), "nobody answers any more"
        until(lambda: not command_of(worker), 30)  # workers end with their server
    finally:
        process.kill()
        process.wait()


def listening_port(pid: int) -> int:
    """The port at which a process listens."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        sockets = set()
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                sockets.add(os.readlink(entry))
            except OSError:
                continue
        for row in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            cells = row.split()
            if cells[3] == "0A" and f"socket:[{cells[9]}]" in sockets:
                return int(cells[1].partition(":")[2], 16)
        time.sleep(0.02)
    raise AssertionError("it does not listen")


# --------------------------------------------------------------------------------------------------------- longer forms


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_sigterm_loses_no_reply_whenever_it_comes(models: Path, workers: str) -> None:
    for number in range(6):
        with Served(str(models / "reviews"), str(models / "gpt"), "--workers", workers) as server:
            clients = Clients(server, kept=6, fresh=12, streams=4)
            busy(clients, 20 + 37 * number)
            server.process.send_signal(signal.SIGTERM)
            counts = clients.ended_by_server()
            assert server.ended() == 0 and set(counts) == {200, REFUSED}, counts


@pytest.mark.slow
def test_workers_that_are_killed_again_and_again(models: Path) -> None:
    """One of two is enough to answer; all requests end in an answer or in 503."""
    with Served(str(models / "reviews"), "--workers", "2") as server:
        clients = Clients(server, kept=4, fresh=4, streams=0)
        for number in range(8):
            busy(clients)
            os.kill(server.workers()[number % 2], signal.SIGKILL)
            until(lambda count=number: server.metric("weft_worker_restarts_total", model="reviews") == count + 1, 120)
            until(lambda: server.metric("weft_workers", model="reviews") == 2, 120)
        counts = clients.ended()
        assert set(counts) <= {200, 503} and counts[200] > 8 * 30, counts
        goes_on(server)


@pytest.mark.slow
def test_a_folder_that_is_gone_and_comes_back(models: Path, tmp_path: Path) -> None:
    """Its requests are refused, not kept for ever; other models are answered; it is there again when the folder is."""
    shutil.copytree(models / "reviews", tmp_path / "reviews")
    with Served(str(tmp_path / "reviews"), str(models / "gpt")) as server:
        goes_on(server)
        (tmp_path / "reviews").rename(tmp_path / "away")
        os.kill(worker_of(server, "reviews"), signal.SIGKILL)
        until(lambda: classify(server).error["message"] == "the model cannot be opened at the moment", 180)
        assert server.post("/v1/completions", {**STREAM, "stream": False}).status == 200
        (tmp_path / "away").rename(tmp_path / "reviews")
        until(lambda: classify(server).status == 200, 180)
