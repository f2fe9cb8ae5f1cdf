"""A `weft serve` process for tests, and small models that it serves."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import weft
from tests.children import start_child
from tests.tasks.small import model_for, vocabulary
from weft.tasks.model import Model
from weft.text.tokenizers.training import learn

ROOT = Path(__file__).parents[2]
MODELS = ("reviews", "names", "qa", "bert", "gpt", "dates")
SECONDS = 120  # that a server may take to start, however busy the machine is
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "WEFT_DEBUG": "0"}


def save_models(folder: Path, names: Sequence[str] = MODELS) -> Path:
    """Small models with random weights, each in a folder of its name."""
    lines = (ROOT / "examples" / "weaver.txt").read_text().splitlines()
    for name in names:
        if name == "reviews":
            made = model_for("classify", 2, vocabulary(), ("bad", "good"))
        elif name == "names":
            made = model_for("tag", 3, vocabulary(), ("O", "B-PER", "I-PER"))
        elif name == "qa":
            made = model_for("answer", 2, vocabulary())
        elif name == "pairs":
            made = model_for("pair", 2, vocabulary(), ("no", "yes"))
        elif name == "bert":
            made = weft.new("bert", learn(lines, "wordpiece", 400), size="1x64", settings={"context": 128}, seed=1)
        elif name == "dates":
            words = learn(lines, "bpe", 400, specials={"unknown": "<unk>", "start": "<s>", "end": "</s>"})
            plain = weft.new("transformer", words, size="1x64", settings={"context": 64}, seed=1)
            made = Model(replace(plain.opened, card=replace(plain.card, task="translate")), "translate")
        elif name == "writer":  # whatever is asked
            made = weft.new("t5", vocabulary("unigram"), size="1x64", settings={"context": 64}, seed=1)
        elif name == "sales":
            made = forecaster()
        else:
            made = weft.new("gpt2", learn(lines, "bpe", 400), size="1x64", settings={"context": 256}, seed=1)
        made.save(folder / name)
    return folder


def forecaster() -> Model:
    """A model that has seen a few weeks of numbers."""
    week = (1.0, 1.1, 1.2, 1.3, 1.8, 2.0, 0.6)
    rows = [{"day": day, "sales": week[day % 7] * (10 + 0.1 * day)} for day in range(120)]
    return weft.finetune(
        rows,
        task={"name": "forecast", "horizon": 3, "window": 14},
        model={"family": "gru", "width": 16, "layers": 1},
        training={"steps": 4, "batch": 8, "evaluate_every": 4},
        log=lambda text: None,
        progress=False,
    )


class Reply:
    """A reply over HTTP."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, {name.lower(): value for name, value in headers.items()}, body

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error in the form that all have."""
        values = self.json()
        assert set(values) == {"error"} and set(values["error"]) == {"message", "type", "param", "code"}, values
        return values["error"]


class Served:
    """A server in a process of its own; its address is printed by it."""

    def __init__(self, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        command = [sys.executable, "-P", "-m", "weft", "serve", *arguments]
        if "--port" not in arguments:
            command += ["--port", "0"]
        self.process = start_child(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **ENVIRONMENT, **(environment or {})},
            text=True,
        )
        self.lines: list[str] = []  # of its standard error
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        self.output = ""
        self.port = self._port()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))

    def _port(self) -> int:
        assert self.process.stdout is not None
        timer = threading.Timer(SECONDS, self.process.kill)
        timer.start()
        for line in self.process.stdout:
            self.output += line
            if address := re.search(r"open http://[^ ]+:(\d+)", line):
                timer.cancel()
                return int(address[1])
        self.process.wait()
        self.reader.join(10)
        raise AssertionError(f"the server does not start: {self.lines}")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def log(self) -> list[dict[str, Any]]:
        """The lines of its access log."""
        return [json.loads(line) for line in list(self.lines) if line.startswith('{"time": "')]

    def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None, seconds: float = 60
    ) -> Reply:
        """One request over a connection of its own; a body that is no bytes is sent as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        kind = {} if data is None else {"Content-Type": "application/json"}
        try:
            connection.request(method, path, data, {**kind, **(headers or {})})
            response = connection.getresponse()
            return Reply(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()

    def post(self, path: str, body: Any, headers: Mapping[str, str] | None = None, seconds: float = 60) -> Reply:
        return self.ask("POST", path, body, headers, seconds)

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Reply:
        return self.ask("GET", path, None, headers)

    def connect(self) -> socket.socket:
        """A plain connection, for bytes that no client sends."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def metric(self, name: str, **labels: str) -> float:
        """A value of /metrics; 0 where there is none."""
        for line in self.get("/metrics").body.decode().splitlines():
            row = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
            if row and row[1] == name and all(f'{key}="{value}"' in (row[2] or "") for key, value in labels.items()):
                return float(row[3])
        return 0.0

    def workers(self) -> list[int]:
        """The processes of its workers."""
        tasks = Path(f"/proc/{self.process.pid}/task")
        return [int(pid) for task in tasks.iterdir() for pid in (task / "children").read_text().split()]

    def end(self, number: int = signal.SIGTERM, seconds: float = 60) -> int:
        """Its exit status after a signal."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.ended(seconds)

    def ended(self, seconds: float = 60) -> int:
        """Its exit status, once it has ended."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        self.reader.join(10)
        return int(self.process.returncode)

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def until(condition: Any, seconds: float = 30.0) -> None:
    """Wait until something has become true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it does not come true"
        time.sleep(0.02)
