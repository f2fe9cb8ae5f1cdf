"""The Prometheus metrics of /metrics: requests, stages, queues, batches, tokens, refusals, memory."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from weft.serve.calls import Call
from weft.version import VERSION

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
TOKENS = tuple(float(1 << power) for power in range(3, 18))
CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

# The present values of one model, under the keys of `GAUGES` and `COUNTS`.
ModelState = Mapping[str, float]
GAUGES = {
    "queue": ("weft_queue_length", "Requests that wait for a model."),
    "running": ("weft_running", "Requests that a model works on."),
    "workers": ("weft_workers", "Worker processes that are ready."),
    "memory": ("weft_worker_memory_bytes", "Resident memory of the workers of a model."),
}
COUNTS = {"restarts": ("weft_worker_restarts", "Workers that were replaced.")}


def resident() -> int:
    """Resident memory of this process in bytes; 0 if the system does not tell."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return 0


class StateCollector(Collector):
    """The state of the models, read at each request to /metrics."""

    def __init__(
        self, states: Callable[[], Mapping[str, ModelState]], connections: Callable[[], int], pending: Callable[[], int]
    ) -> None:
        self.states, self.connections, self.pending = states, connections, pending

    def collect(self) -> Iterable[Metric]:
        states = self.states()
        for key, (name, text) in GAUGES.items():
            gauge = GaugeMetricFamily(name, text, labels=("model",))
            for model, values in states.items():
                gauge.add_metric((model,), values.get(key, 0))
            yield gauge
        for key, (name, text) in COUNTS.items():
            count = CounterMetricFamily(name, text, labels=("model",))
            for model, values in states.items():
                count.add_metric((model,), values.get(key, 0))
            yield count
        yield GaugeMetricFamily("weft_memory_bytes", "Resident memory of the front process.", value=resident())
        yield GaugeMetricFamily("weft_connections", "Open connections.", value=self.connections())
        yield GaugeMetricFamily("weft_pending", "Requests that are being answered.", value=self.pending())


class ServerMetrics:
    """Counts of one server, in a registry of its own."""

    def __init__(
        self,
        states: Callable[[], Mapping[str, ModelState]],
        connections: Callable[[], int],
        pending: Callable[[], int] = lambda: 0,
    ) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # they would double the number of series
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "weft_requests", "Requests by route, model and status.", ("route", "model", "status"), registry=registry
        )
        self.seconds = Histogram(
            "weft_request_seconds", "Time to the end of a reply.", ("route",), buckets=SECONDS, registry=registry
        )
        self.stages = Histogram(
            "weft_stage_seconds",
            "Time of a request in a stage: queue, tokenize, model, post.",
            ("route", "stage"),
            buckets=SECONDS,
            registry=registry,
        )
        self.batch = Histogram(
            "weft_batch_tokens", "Tokens of the batches of a request.", ("model",), buckets=TOKENS, registry=registry
        )
        self.tokens = Counter("weft_tokens", "Tokens read and generated.", ("model", "direction"), registry=registry)
        self.rejects = Counter("weft_rejected", "Refused requests by reason.", ("reason",), registry=registry)
        build = Gauge("weft_build_info", "Versions.", ("version", "python"), registry=registry)
        build.labels(VERSION, platform.python_version()).set(1)
        Gauge("weft_start_time_seconds", "When the server started.", registry=registry).set(time.time())
        registry.register(StateCollector(states, connections, pending))
        self.children: dict[tuple[str, ...], Any] = {}

    def _child(self, metric: Any, *labels: str) -> Any:
        """A metric with its labels, kept here: the library's own lookup takes longer than everything else."""
        key = (metric._name, *labels)
        child = self.children.get(key)
        if child is None:
            child = self.children[key] = metric.labels(*labels)
        return child

    def count(self, call: Call) -> None:
        """Count a request that has ended."""
        route = call.route or "other"
        self._child(self.requests, route, call.model, str(call.status)).inc()
        self._child(self.seconds, route).observe(time.perf_counter() - call.begun)
        for stage, seconds in call.stages.items():
            self._child(self.stages, route, stage).observe(seconds)
        if call.batch_tokens:
            self._child(self.batch, call.model).observe(call.batch_tokens)
        if call.tokens_in:
            self._child(self.tokens, call.model, "in").inc(call.tokens_in)
        if call.tokens_out:
            self._child(self.tokens, call.model, "out").inc(call.tokens_out)
        if call.status >= 400 and call.reason:
            self._child(self.rejects, call.reason).inc()

    def text(self) -> bytes:
        return generate_latest(self.registry)
