"""Bytes as no client sends them, replies as they come, and workers that stand still for as long as a test likes."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.serve.running import Reply, Served, until

HOST = "Host: 127.0.0.1\r\n"
TIGHT = (
    "--max-queue", "4", "--max-connections", "24", "--max-body", "20000", "--max-texts", "3", "--max-embeddings", "5",
    "--max-n", "2", "--max-stop", "1", "--max-tokens", "300", "--timeout", "1",
)  # fmt: skip
TEXT = {"model": "reviews", "input": "the cat"}


def head(start: str, *lines: str, host: str = HOST) -> bytes:
    """The head of a request: its first line without the version, and header lines."""
    return (f"{start} HTTP/1.1\r\n{host}" + "".join(f"{line}\r\n" for line in lines) + "\r\n").encode("latin-1")


def reply_on(connection: socket.socket, method: str = "GET") -> Reply:
    """The next reply on a connection; ConnectionError or an empty one where there is none."""
    response = http.client.HTTPResponse(connection, method=method)
    try:
        response.begin()
        return Reply(response.status, dict(response.getheaders()), response.read())
    finally:
        response.close()


def exchange(server: Served, data: bytes, method: str = "GET") -> Reply:
    """The reply to these bytes."""
    with server.connect() as connection:
        connection.sendall(data)
        return reply_on(connection, method)


def left_open(connection: socket.socket) -> bool:
    """Whether the server has kept a connection, once it has nothing more to say."""
    connection.settimeout(0.2)
    try:
        return connection.recv(1) != b""
    except TimeoutError:
        return True
    except ConnectionError:
        return False


def closed(connection: socket.socket, seconds: float = 30) -> bool:
    """Whether the server closes a connection."""
    connection.settimeout(seconds)
    try:
        while connection.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


def save_fragile(source: Path, folder: Path) -> None:
    """A model whose answer to a text with the word oak is not a number."""
    from safetensors.torch import load_file, save_file

    import weft

    shutil.copytree(source, folder)
    weights = load_file(folder / "model.safetensors")
    tokenizer: Any = weft.load(source).tokenizer
    (token,) = tokenizer.ids(["oak"], specials=False)[0]
    weights["bert.embeddings.word_embeddings.weight"][token] = 3e38  # a number still, but no layer can take it
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def worker_of(server: Served, model: str) -> int:
    """The process of the only worker of a model."""
    (pid,) = [pid for pid in server.workers() if f'"name": "{model}"'.encode() in command_of(pid)]
    return pid


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@contextmanager
def standing_still(*pids: int) -> Iterator[None]:
    """Workers that do nothing: a model that is as slow as a test wants it."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


class Asking:
    """Requests in threads of their own; what came of each."""

    def __init__(self, ask: Callable[[], Any], count: int = 1) -> None:
        self.results: list[Any] = []
        self.ask = ask
        self.threads = [threading.Thread(target=self._run, daemon=True) for _ in range(count)]
        for thread in self.threads:
            thread.start()

    def _run(self) -> None:
        try:
            self.results.append(self.ask())
        except Exception as error:
            self.results.append(error)

    def ended(self, seconds: float = 60) -> list[Any]:
        for thread in self.threads:
            thread.join(seconds)
            assert not thread.is_alive(), "a request has no end"
        return self.results


def classify(server: Served, headers: Mapping[str, str] | None = None, **more: Any) -> Reply:
    return server.post("/v1/classify", {**TEXT, **more}, headers)


def goes_on(server: Served, headers: Mapping[str, str] | None = None) -> None:
    """A server that still answers, with the workers that it had."""
    reply = classify(server, headers)
    assert reply.status == 200 and reply.json()["answers"][0]["label"] in ("bad", "good"), reply.body


def waits(server: Served, count: int, model: str = "reviews", headers: Mapping[str, str] | None = None) -> None:
    """Wait until so many requests wait for a model."""
    until(lambda: server.metric("weft_queue_length", model=model) + server.metric("weft_running", model=model) == count)
