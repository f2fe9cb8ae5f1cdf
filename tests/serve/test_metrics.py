"""What a server shows of itself: /metrics against what was asked, and traces at a collector, without texts."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serve.collector import Collector
from tests.serve.running import MODELS, ROOT, Served, until
from tests.serve.wire import classify, exchange, goes_on, head
from weft.errors import UserError
from weft.serve.limits import ServeOptions
from weft.serve.traces import collector_of
from weft.version import VERSION

SECRET = "zyzzyva"
STAGES = {"queue", "tokenize", "model", "post"}
Rows = dict[str, dict[str, float]]


def rows_of(server: Served) -> Rows:
    """All of /metrics: values by name and labels."""
    reply = server.get("/metrics")
    assert reply.status == 200 and reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    rows: Rows = defaultdict(dict)
    kinds: dict[str, str] = {}
    for line in reply.body.decode().splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name not in kinds, "a metric is there once"
            kinds[name] = kind
        elif not line.startswith("#"):
            row = re.fullmatch(r"(\w+)(\{.*\})? (\S+)", line)
            assert row, line
            assert row[2] not in rows[row[1]], "a series is there once"
            rows[row[1]][row[2] or ""] = float(row[3])
    return rows


def total(rows: Rows, name: str, **labels: str) -> float:
    """The sum of all series of a metric with these labels."""
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    return sum(value for series, value in rows[name].items() if all(label in series for label in wanted))


def grown(before: Rows, after: Rows, name: str, **labels: str) -> float:
    return total(after, name, **labels) - total(before, name, **labels)


def test_counts_are_those_of_the_requests(server: Served) -> None:
    """Each request once, by its route, model and status; tokens as the replies have them."""
    before = rows_of(server)
    answers = [classify(server, input=["the cat", "a cow is there"]) for _ in range(5)]
    written = [
        server.post("/v1/completions", {"model": "gpt", "prompt": "The", "max_tokens": 5, "seed": seed})
        for seed in range(3)
    ]
    stream = server.post("/v1/completions", {"model": "gpt", "prompt": "The", "max_tokens": 4, "stream": True})
    refused = [
        classify(server, input=["a", 3]),
        classify(server, model="nobody"),
        classify(server, tpo=1),
        server.post("/v1/classify", b"{"),
        server.get("/nothing"),
        server.get("/", {"Host": "evil.example"}),
    ]
    unread = exchange(server, b"no HTTP\r\n\r\n")
    after = rows_of(server)
    assert [reply.status for reply in (*answers, *written, stream)] == [200] * 9
    assert [reply.status for reply in (*refused, unread)] == [422, 404, 422, 400, 404, 403, 400]

    def more(name: str, **labels: str) -> float:
        return grown(before, after, name, **labels)

    route = "/v1/classify"
    assert more("weft_requests_total", route=route, model="reviews", status="200") == 5
    assert more("weft_requests_total", route="/v1/completions", model="gpt", status="200") == 4
    assert more("weft_requests_total", route=route, status="422") == 2
    assert more("weft_requests_total", route=route, status="400") == 1
    assert more("weft_requests_total", route=route, model="", status="404") == 1, "names of clients are no labels"
    assert more("weft_requests_total", route="other") == 3
    assert more("weft_requests_total", route="/metrics") == 1
    assert more("weft_request_seconds_count", route=route) == 5 + 4
    assert more("weft_request_seconds_count") == more("weft_requests_total")
    read = sum(reply.json()["usage"]["prompt_tokens"] for reply in answers)
    assert more("weft_tokens_total", model="reviews", direction="in") == read > 0
    assert more("weft_tokens_total", model="reviews", direction="out") == 0
    made = sum(reply.json()["usage"]["completion_tokens"] for reply in written)
    assert made < more("weft_tokens_total", model="gpt", direction="out") <= made + 4
    for stage in STAGES:
        assert more("weft_stage_seconds_count", route=route, stage=stage) == 5
    assert more("weft_batch_tokens_count", model="reviews") == 5
    assert more("weft_batch_tokens_sum", model="reviews") == read, "one client: each batch is one request"
    rejected = {
        reason: more("weft_rejected_total", reason=reason)
        for reason in ("unknown_parameter", "model_not_found", "not_found", "host", "no HTTP")
    }
    assert rejected == {"unknown_parameter": 1, "model_not_found": 1, "not_found": 1, "host": 1, "no HTTP": 1}
    assert more("weft_rejected_total") == 7
    labels = " ".join(after["weft_requests_total"])
    assert "nobody" not in labels and "evil" not in labels and "/nothing" not in labels


def test_histograms_hold_together(server: Served) -> None:
    """Buckets grow, the last one is the count, and the stages of a request are within its time."""
    for _ in range(3):
        goes_on(server)
    rows = rows_of(server)
    for name in ("weft_request_seconds", "weft_stage_seconds", "weft_batch_tokens"):
        buckets: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for series, value in rows[f"{name}_bucket"].items():
            edge = re.search(r'le="([^"]+)"', series)
            assert edge
            buckets[re.sub(r'(?<={)le="[^"]+",|,?le="[^"]+"', "", series)].append((float(edge[1]), value))
        assert buckets
        for series, counts in buckets.items():
            counts.sort()
            values = [value for _, value in counts]
            assert values == sorted(values) and counts[-1][0] == float("inf")
            assert values[-1] == rows[f"{name}_count"][series] > 0
            assert rows[f"{name}_sum"][series] >= 0
    inside = total(rows, "weft_stage_seconds_sum", route="/v1/classify")
    assert 0 < inside <= total(rows, "weft_request_seconds_sum", route="/v1/classify")


def test_states_of_the_models(server: Served) -> None:
    rows = rows_of(server)
    for name in (
        "weft_queue_length",
        "weft_running",
        "weft_workers",
        "weft_worker_memory_bytes",
        "weft_worker_restarts_total",
    ):
        assert len(rows[name]) == len(server.get("/v1/models").json()["data"]) >= len(MODELS), name
    assert total(rows, "weft_workers") == len(rows["weft_workers"])
    assert total(rows, "weft_queue_length") == total(rows, "weft_running") == 0
    for pid, name in zip(server.workers(), MODELS, strict=False):
        assert pid and total(rows, "weft_worker_memory_bytes", model=name) > 1 << 20
    held = int(re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{server.process.pid}/status").read_text())[0]) << 10
    assert held / 2 < total(rows, "weft_memory_bytes") < held * 2
    assert total(rows, "weft_pending") == 1, "the one that asks"
    connections = total(rows, "weft_connections")  # other tests may have left some that are kept
    assert connections >= 1
    assert total(rows, "weft_build_info", version=VERSION) == 1
    with server.connect() as connection:
        connection.sendall(head("GET /health"))
        connection.recv(1)
        assert server.metric("weft_connections") == connections + 1


# -------------------------------------------------------------------------------------------------------------- traces


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


@pytest.fixture(scope="module")
def other() -> Iterator[Collector]:
    """What the environment names: nothing may be sent there, neither by us nor by FastAPI."""
    collector = Collector()
    yield collector
    collector.close()
    assert not collector.bodies


@pytest.fixture(scope="module")
def traced(models: Path, collector: Collector, other: Collector) -> Iterator[Served]:
    """A server that sends traces."""
    environment = {"OTEL_BSP_SCHEDULE_DELAY": "100", "OTEL_METRIC_EXPORT_INTERVAL": "200",
                   "OTEL_EXPORTER_OTLP_ENDPOINT": other.url, "FASTAPI_OTEL_AUTO_CONFIGURE": "true"}  # fmt: skip
    with Served(str(models / "reviews"), "--traces", collector.url, environment=environment) as served:
        yield served
        assert served.end() == 0


def values_of(span: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


def test_traces_have_routes_times_and_counts_and_no_texts(traced: Served, collector: Collector) -> None:
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    headers = {"Traceparent": f"00-{trace}-{parent}-01", "X-Note": SECRET, "Baggage": f"a={SECRET}"}
    reply = classify(traced, headers, input=[SECRET, "the cat"])
    assert reply.status == 200
    wrong = classify(traced, {"Traceparent": f"00-{SECRET}-1-1"}, model=SECRET)
    assert wrong.status == 404 and traced.get(f"/{SECRET}?text={SECRET}").status == 404
    until(lambda: len([span for span in collector.spans() if span.name.startswith(("GET", "POST"))]) >= 3)
    assert set(collector.paths) == {"/v1/traces"}
    spans = {span.name: span for span in collector.spans()}
    first = next(span for span in collector.spans() if values_of(span).get("http.response.status_code") == 200)
    values = values_of(first)
    assert first.name == "POST /v1/classify" and first.trace_id.hex() == trace and first.parent_span_id.hex() == parent
    assert values["weft.request"] == reply.headers["x-request-id"] and values["weft.model"] == "reviews"
    assert values["weft.tokens_in"] == reply.json()["usage"]["prompt_tokens"] and values["weft.inputs"] == 2
    assert values["http.route"] == "/v1/classify" and values["http.request.method"] == "POST"
    for stage in STAGES:
        assert spans[stage].parent_span_id == first.span_id and spans[stage].trace_id == first.trace_id
        inside = spans[stage].start_time_unix_nano, spans[stage].end_time_unix_nano
        assert first.start_time_unix_nano <= inside[0] <= inside[1] <= first.end_time_unix_nano
    refused = [values_of(span) for span in collector.spans() if values_of(span).get("http.response.status_code") == 404]
    assert {each["error.type"] for each in refused} == {"model_not_found", "not_found"}
    assert not any(SECRET.encode() in body for body in collector.bodies)


def test_the_last_spans_are_sent_and_a_collector_that_is_gone_harms_nobody(models: Path, collector: Collector) -> None:
    """Variables of the environment name a collector too. One that takes connections and says nothing ends no reply."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}",
                       "OTEL_BSP_SCHEDULE_DELAY": "50"}  # fmt: skip
        with Served(str(models / "reviews"), environment=environment) as server:
            silent.settimeout(30)
            for _ in range(3):
                goes_on(server)
            taken, _ = silent.accept()
            with taken:
                begin = taken.recv(64)
                assert begin.startswith(b"POST /v1/traces")
                for _ in range(3):
                    goes_on(server)
                assert server.end() == 0
    assert not any("Traceback" in line for line in server.lines)


def test_addresses_of_collectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    assert collector_of(None) is None
    assert (
        collector_of("http://127.0.0.1:4318")
        == collector_of("http://127.0.0.1:4318/")
        == ("http://127.0.0.1:4318/v1/traces")
    )
    assert collector_of("https://c.example/x/v1/traces") == "https://c.example/x/v1/traces"
    for wrong in ("127.0.0.1:4318", "file:///tmp/x", "http://", "http://a b", "http://u:p@c.example", ""):
        with pytest.raises(UserError, match="write a URL as"):
            ServeOptions(traces=wrong)


def test_a_missing_package() -> None:
    code = (
        "import sys; sys.modules['opentelemetry.sdk.trace'] = None; from weft.serve.traces import Tracer\n"
        "try: Tracer('http://127.0.0.1:1/v1/traces')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "UserError --traces needs the package opentelemetry: pip install 'weft[telemetry]'\n"


def test_nothing_that_could_send_is_imported_where_nothing_is_sent() -> None:
    """FastAPI may import the part of OpenTelemetry that only has interfaces."""
    code = (
        "import sys, weft.serve.server; parts = ('opentelemetry.sdk', 'opentelemetry.exporter', 'requests'); "
        "print([name for name in sys.modules if name.startswith(parts)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "[]\n"
