"""OpenTelemetry traces: one span for each request and one for each of its stages, with counts and without texts.

Nothing of OpenTelemetry is imported or sent unless --traces or its environment variable names a collector.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from threading import Thread
from typing import Any

from weft.errors import UserError
from weft.serve.calls import Call
from weft.version import VERSION

VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"
FOLDER = "/v1/traces"  # where collectors take traces
TIMEOUT = 5.0  # seconds for one export
LAST = 3.0  # seconds for sending the last spans when the server ends
BILLION = 1_000_000_000


def collector_of(given: str | None) -> str | None:
    """The URL for traces, from --traces or the environment, with the standard path of collectors; None: no traces."""
    url = given or os.environ.get(VARIABLE, "")
    if not url:
        return None
    return url if url.rstrip("/").endswith(FOLDER) else url.rstrip("/") + FOLDER


class Tracer:
    """Sends spans of requests that have ended, in a thread of the library."""

    def __init__(self, collector: str) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace import SpanKind
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError:
            raise UserError("--traces needs the package opentelemetry: pip install 'weft[telemetry]'") from None
        resource = Resource.create({"service.name": "weft", "service.version": VERSION})
        self.provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self.provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(collector, timeout=TIMEOUT)))
        self.tracer = self.provider.get_tracer("weft.serve", VERSION)
        self.kind, self.propagator = SpanKind.SERVER, TraceContextTextMapPropagator()

    def add(self, call: Call) -> None:
        """Add the spans of a request that has just ended, and of its stages in a row."""
        from opentelemetry.trace import StatusCode, set_span_in_context

        end = time.time_ns()
        place = end - int(BILLION * (time.perf_counter() - call.begun))
        parent = self.propagator.extract({"traceparent": call.parent}) if call.parent else None
        name = f"{call.method} {call.route}".strip()
        span = self.tracer.start_span(
            name, context=parent, kind=self.kind, attributes=attributes_of(call), start_time=place
        )
        if call.status >= 500:
            span.set_status(StatusCode.ERROR)
        inside = set_span_in_context(span)
        for stage, seconds in call.stages.items():
            part = self.tracer.start_span(stage, context=inside, start_time=place)
            place = min(end, place + int(BILLION * seconds))
            part.end(place)
        span.end(end)

    def close(self) -> None:
        """Send the remaining spans; waits for `LAST` seconds at most."""
        ending = Thread(target=self.provider.shutdown, daemon=True)
        ending.start()
        ending.join(LAST)


def attributes_of(call: Call) -> Mapping[str, Any]:
    """The attributes of a span, under the names of OpenTelemetry where it has them."""
    values = {
        "http.request.method": call.method,
        "http.route": call.route,
        "http.response.status_code": call.status,
        "http.request.body.size": call.received,
        "http.response.body.size": call.sent,
        "error.type": call.reason,
        "weft.request": call.id,
        "weft.model": call.model,
        "weft.inputs": call.inputs,
        "weft.tokens_in": call.tokens_in,
        "weft.tokens_out": call.tokens_out,
        "weft.batch_tokens": call.batch_tokens,
    }
    return {name: value for name, value in values.items() if value not in ("", 0)}
