"""Load for a server on this machine, from a process of its own; it costs little, since it shares the cores with it.

A plan comes as JSON on standard input, and what was measured goes as JSON to standard output. `clients` alone: so many
connections, each with one request at a time (a closed loop). `rate` too: requests arrive at random, so many a second,
whatever the answers take (an open loop); `clients` are then the connections at most, and a request that finds none free
counts as unsent. A latency begins when its request was due.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter, deque
from typing import Any

MOST_SECONDS, MOST_CLIENTS = 3600.0, 4096


class Connection(asyncio.Protocol):
    """One kept connection with one request at a time."""

    def __init__(self, load: Load) -> None:
        self.load, self.buffer, self.due, self.number = load, b"", 0.0, 0
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def send(self, due: float) -> None:
        self.due, self.number = due, self.load.next_number()
        self.transport.write(self.load.requests[self.number % len(self.load.requests)])

    def data_received(self, data: bytes) -> None:
        self.buffer = self.buffer + data if self.buffer else data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self.buffer[:end].lower()
        place = head.find(b"content-length:")
        if place < 0:  # a reply in chunks, as many vectors are; the last one is empty
            assert b"transfer-encoding: chunked" in head, head
            whole = self.buffer.endswith(b"\r\n0\r\n\r\n")
        else:
            whole = len(self.buffer) >= end + 4 + int(head[place + 15 :].split(b"\r\n", 1)[0])
        if not whole:
            return
        body, self.buffer = self.buffer[end + 4 :], b""
        self.load.answered(self, int(head[9:12]), body, closing=b"connection: close" in head)

    def connection_lost(self, error: Exception | None) -> None:
        self.load.lost(self)


class Load:
    """The requests of one plan, and what came back."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.port, self.clients = plan["port"], min(plan["clients"], MOST_CLIENTS)
        self.seconds, self.most = min(plan["seconds"], MOST_SECONDS), plan.get("count") or 1 << 62
        self.rate, self.counts_tokens = plan.get("rate"), plan.get("counts_tokens", False)
        self.requests = [built(self.port, path, body) for path, body in plan["requests"]]
        self.sent = self.unsent = self.broken = self.tokens = 0
        self.latencies: dict[int, list[float]] = {}
        self.by_second: dict[int, Counter[int]] = {}
        self.idle: deque[Connection] = deque()
        self.open = 0
        self.begin = self.last = 0.0
        self.examples: dict[int, str] = {}

    def next_number(self) -> int:
        self.sent += 1
        return self.sent - 1

    async def connect(self) -> Connection:
        self.open += 1
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(lambda: Connection(self), "127.0.0.1", self.port)
        except OSError:
            self.open -= 1
            raise
        return connection

    def answered(self, connection: Connection, status: int, body: bytes, closing: bool) -> None:
        now = self.last = time.perf_counter()
        self.latencies.setdefault(status, []).append(now - connection.due)
        self.by_second.setdefault(int(now - self.begin), Counter())[status] += 1
        if status not in self.examples:
            self.examples[status] = body[:300].decode("utf-8", "replace")
        if self.counts_tokens and status == 200:
            self.tokens += json.loads(body)["usage"]["completion_tokens"]
        connection.due = 0.0
        if closing:
            connection.transport.close()
        elif self.rate is not None:
            self.idle.append(connection)
        elif now < self.begin + self.seconds and self.sent < self.most:
            connection.send(now)
        else:
            connection.transport.close()

    def lost(self, connection: Connection) -> None:
        self.open -= 1
        self.broken += bool(connection.due)  # in the middle of a request
        again = self.rate is None and time.perf_counter() < self.begin + self.seconds and self.sent < self.most
        if again:
            asyncio.get_running_loop().create_task(self.reconnect())

    async def reconnect(self) -> None:
        (await self.connect()).send(time.perf_counter())

    async def closed_loop(self) -> None:
        connections = [await self.connect() for _ in range(self.clients)]
        self.begin = time.perf_counter()
        for connection in connections:
            connection.send(time.perf_counter())
        while self.open and time.perf_counter() < self.begin + self.seconds + 60:
            await asyncio.sleep(0.01)

    async def open_loop(self) -> None:
        self.idle.extend([await self.connect() for _ in range(min(16, self.clients))])
        self.begin, dice = time.perf_counter(), random.Random(0)
        due = self.begin
        while due < self.begin + self.seconds and self.sent < self.most:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            while due <= time.perf_counter() and due < self.begin + self.seconds:
                await self.send_one(due)
                due += dice.expovariate(self.rate)
        end = time.perf_counter() + 60
        while len(self.idle) < self.open and time.perf_counter() < end:
            await asyncio.sleep(0.01)

    async def send_one(self, due: float) -> None:
        while self.idle and self.idle[-1].transport.is_closing():
            self.idle.pop()
        if not self.idle and self.open >= self.clients:
            self.unsent += 1
            return
        connection = self.idle.pop() if self.idle else await self.connect()
        connection.send(due)

    def result(self) -> dict[str, Any]:
        end = self.last if self.rate is None else self.begin + self.seconds
        seconds = max(1e-9, end - self.begin)
        good = self.latencies.get(200, [])
        return {
            "seconds": round(seconds, 3),
            "requests a second": round(len(good) / seconds, 2),
            "tokens a second": round(self.tokens / seconds, 1),
            "statuses": {str(status): len(values) for status, values in sorted(self.latencies.items())},
            "milliseconds": {str(status): quantiles(values) for status, values in sorted(self.latencies.items())},
            "by second": [self.by_second.get(n, Counter())[200] for n in range(int(seconds) + 1)],
            "sent": self.sent,
            "unsent": self.unsent,
            "broken": self.broken,
            "examples": {str(status): text for status, text in self.examples.items()},
        }


def quantiles(values: list[float]) -> dict[str, float]:
    """Of latencies, in milliseconds."""
    ordered = sorted(values)
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "largest": 1.0}
    picked = {name: ordered[min(len(ordered) - 1, int(share * len(ordered)))] for name, share in shares.items()}
    return {name: round(1000 * value, 2) for name, value in picked.items()}


def built(port: int, path: str, body: Any) -> bytes:
    """A whole request as bytes."""
    data = json.dumps(body, ensure_ascii=False).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


def main() -> None:
    """Run the plan of standard input."""
    load = Load(json.load(sys.stdin))
    run = load.closed_loop if load.rate is None else load.open_loop
    try:
        import uvloop
    except ImportError:
        asyncio.run(run())
    else:
        uvloop.run(run())
    json.dump(load.result(), sys.stdout)
