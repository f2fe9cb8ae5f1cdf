"""The figures of `weft top`: rates, quantiles and queues, from /metrics and /v1/models of a server.

The text format of Prometheus is parsed here, so that `weft top` needs none of the packages of the extra `serve`.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any

from weft.client import Client
from weft.errors import UserError

SPAN = 10.0  # seconds over which a live table measures rates and quantiles
LINE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
Labels = Mapping[str, str]
Table = tuple[list[str], list[list[str]]]


def unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: "\n" if match[1] == "n" else match[1], text)


def samples_of(text: str) -> dict[str, list[tuple[Labels, float]]]:
    """The samples of a text of metrics, by name."""
    samples: dict[str, list[tuple[Labels, float]]] = {}
    for line in text.splitlines():
        match = None if line.startswith("#") else LINE.match(line)
        if match is None:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        labels = {name: unescaped(text) for name, text in LABEL.findall(match[2] or "")}
        samples.setdefault(match[1], []).append((labels, value))
    return samples


@dataclass(frozen=True)
class Snapshot:
    """The metrics of a server at one time."""

    seconds: float
    samples: dict[str, list[tuple[Labels, float]]]
    models: list[dict[str, Any]] = field(default_factory=list)

    def total(self, name: str, **labels: str) -> float:
        """The sum of the samples with these labels."""
        return sum(value for own, value in self.samples.get(name, ()) if labels.items() <= own.items())

    def values(self, name: str, label: str) -> list[str]:
        """The values of a label."""
        return sorted({own[label] for own, _ in self.samples.get(name, ()) if label in own})


def beginning(snapshot: Snapshot) -> Snapshot:
    """An empty snapshot at the start of the server, so that figures count from then on."""
    started = snapshot.total("weft_start_time_seconds")
    return Snapshot(started or snapshot.seconds, {})


@dataclass(frozen=True)
class Figures:
    """What happened between two snapshots."""

    now: Snapshot
    before: Snapshot

    @property
    def span(self) -> float:
        return max(1e-9, self.now.seconds - self.before.seconds)

    def rate(self, name: str, **labels: str) -> float:
        """The rate of a counter per second."""
        return max(0.0, self.now.total(name, **labels) - self.before.total(name, **labels)) / self.span

    def quantile(self, name: str, share: float, **labels: str) -> float | None:
        """A quantile of a histogram, by linear interpolation in its bucket; None if nothing was counted."""
        counts: dict[float, float] = {}
        for sign, snapshot in ((1, self.now), (-1, self.before)):
            for own, value in snapshot.samples.get(f"{name}_bucket", ()):
                if labels.items() <= own.items():
                    limit = float(own["le"].replace("+Inf", "inf"))
                    counts[limit] = counts.get(limit, 0.0) + sign * value
        total = counts.get(inf, 0.0)
        if total <= 0:
            return None
        below, low = 0.0, 0.0
        for limit, count in sorted(counts.items()):
            if count >= share * total:
                if not isfinite(limit):
                    return low
                return low + (limit - low) * (share * total - below) / max(1e-9, count - below)
            below, low = count, limit
        return low

    def about(self) -> dict[str, Any]:
        """The server as a whole."""
        now = self.now
        info = next((dict(labels) for labels, _ in now.samples.get("weft_build_info", ())), {})
        started = now.total("weft_start_time_seconds")
        refused = {reason: self.rate("weft_rejected_total", reason=reason) for reason in self._reasons()}
        return {
            "version": info.get("version", ""),
            "up seconds": round(max(0.0, now.seconds - started)) if started else None,
            "requests a second": round(self.rate("weft_requests_total"), 2),
            "p50 seconds": self.quantile("weft_request_seconds", 0.5),
            "p99 seconds": self.quantile("weft_request_seconds", 0.99),
            "being answered": round(now.total("weft_pending")),
            "connections": round(now.total("weft_connections")),
            "memory bytes": round(now.total("weft_memory_bytes") + now.total("weft_worker_memory_bytes")),
            "refused a second": {reason: round(rate, 2) for reason, rate in refused.items() if rate},
        }

    def _reasons(self) -> list[str]:
        return self.now.values("weft_rejected_total", "reason")

    def routes(self) -> list[dict[str, Any]]:
        """For each route its requests and errors per second, and its latencies."""
        rows = []
        for route in self.now.values("weft_requests_total", "route"):
            statuses = self.now.values("weft_requests_total", "status")
            failures = [status for status in statuses if not status.startswith(("2", "3"))]
            rows.append(
                {
                    "route": route,
                    "requests": round(self.now.total("weft_requests_total", route=route)),
                    "requests a second": round(self.rate("weft_requests_total", route=route), 2),
                    "errors a second": round(
                        sum(self.rate("weft_requests_total", route=route, status=status) for status in failures), 2
                    ),
                    "p50 seconds": self.quantile("weft_request_seconds", 0.5, route=route),
                    "p99 seconds": self.quantile("weft_request_seconds", 0.99, route=route),
                }
            )
        return rows

    def models(self) -> list[dict[str, Any]]:
        """For each model its queue, workers, tokens per second and memory."""
        about = {model["id"]: model for model in self.now.models}
        names = list(dict.fromkeys([*about, *self.now.values("weft_queue_length", "model")]))
        rows = []
        for name in names:
            count = self.rate("weft_batch_tokens_count", model=name)
            rows.append(
                {
                    "model": name,
                    "task": about.get(name, {}).get("task", ""),
                    "backend": about.get(name, {}).get("backend", ""),
                    "workers": round(self.now.total("weft_workers", model=name)),
                    "restarts": round(self.now.total("weft_worker_restarts_total", model=name)),
                    "queue": round(self.now.total("weft_queue_length", model=name)),
                    "running": round(self.now.total("weft_running", model=name)),
                    "tokens read a second": round(self.rate("weft_tokens_total", model=name, direction="in"), 1),
                    "tokens written a second": round(self.rate("weft_tokens_total", model=name, direction="out"), 1),
                    "tokens of a batch": round(self.rate("weft_batch_tokens_sum", model=name) / count) if count else 0,
                    "memory bytes": round(self.now.total("weft_worker_memory_bytes", model=name)),
                }
            )
        return rows

    def values(self) -> dict[str, Any]:
        """All figures, for JSON."""
        return {
            "seconds": round(self.span, 3),
            "server": self.about(),
            "routes": self.routes(),
            "models": self.models(),
        }

    def line(self, url: str) -> str:
        """The server as a whole, in one line."""
        about = self.about()
        parts = [f"{url}  weft {about['version']}"]
        parts += [f"up {duration(about['up seconds'])}"] if about["up seconds"] is not None else []
        parts += [f"{about['requests a second']:,.1f} requests/s", f"p50 {time_of(about['p50 seconds'])}"]
        parts += [f"p99 {time_of(about['p99 seconds'])}", f"{about['being answered']} being answered"]
        parts += [f"{about['connections']} connections", size(about["memory bytes"])]
        refused = [f"{reason} {rate:,.1f}/s" for reason, rate in about["refused a second"].items()]
        return "  ".join([*parts, f"refused: {', '.join(refused)}"] if refused else parts)

    def tables(self) -> Iterator[Table]:
        """Header and rows of the routes, and of the models."""
        rows = [
            [
                route["route"],
                f"{route['requests']:,}",
                f"{route['requests a second']:,.1f}",
                f"{route['errors a second']:,.1f}",
                time_of(route["p50 seconds"]),
                time_of(route["p99 seconds"]),
            ]
            for route in self.routes()
        ]
        yield ["route", "requests", "requests/s", "errors/s", "p50", "p99"], rows
        rows = [
            [
                *(model["model"], model["task"], model["backend"], str(model["workers"]), str(model["restarts"])),
                *(str(model["queue"]), str(model["running"]), f"{model['tokens read a second']:,.0f}"),
                *(f"{model['tokens written a second']:,.0f}", f"{model['tokens of a batch']:,}"),
                size(model["memory bytes"]),
            ]
            for model in self.models()
        ]
        header = ["model", "task", "backend", "workers", "restarts", "queue", "running"]
        yield [*header, "read/s", "written/s", "batch", "memory"], rows


class Watcher:
    """Takes snapshots of a server, and gives the figures between them."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.snapshots: deque[Snapshot] = deque()

    def snapshot(self) -> Snapshot:
        text = self.client.text("/metrics")
        samples = samples_of(text)
        if "weft_start_time_seconds" not in samples:
            raise UserError(f"{self.client.url} has no metrics of weft serve")
        return Snapshot(time.time(), samples, self.client.models())

    def since_start(self) -> Figures:
        """The figures since the start of the server."""
        now = self.snapshot()
        return Figures(now, beginning(now))

    def lately(self) -> Figures:
        """The figures of the last `SPAN` seconds; those since the start at the first call."""
        now = self.snapshot()
        restarted = self.snapshots and now.total("weft_start_time_seconds") != self.snapshots[-1].total(
            "weft_start_time_seconds"
        )
        if restarted:
            self.snapshots.clear()
        while len(self.snapshots) > 1 and self.snapshots[1].seconds < now.seconds - SPAN:
            self.snapshots.popleft()
        before = self.snapshots[0] if self.snapshots else beginning(now)
        self.snapshots.append(now)
        return Figures(now, before)


# --------------------------------------------------------------------------------------------------- numbers as text


def time_of(seconds: float | None) -> str:
    """0.0123 -> '12.3 ms'."""
    if seconds is None:
        return "-"
    return f"{1000 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def duration(seconds: float) -> str:
    """3700 -> '1 h 1 min'."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    shown: Sequence[tuple[int, str]] = [part for part in parts if part[0]][:2] or parts[-1:]
    return " ".join(f"{number} {unit}" for number, unit in shown)


def size(count: float) -> str:
    """Bytes: 1234567 -> '1.2 MB'."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
