"""A collector of OpenTelemetry traces on this machine, which keeps what it is sent."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """Takes traces until it is closed."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.paths: list[str] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
                collector.paths.append(self.path)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def spans(self) -> list[Any]:
        """All spans so far."""
        requests = [ExportTraceServiceRequest.FromString(body) for body in list(self.bodies)]
        scopes = [scope for request in requests for spans in request.resource_spans for scope in spans.scope_spans]
        return [span for scope in scopes for span in scope.spans]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
