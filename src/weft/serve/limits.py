"""The options of `weft serve`: its address, its key, and the limits of requests.

This module imports no torch and no web framework, since the command line reads its options from here.
"""

from __future__ import annotations

import ipaddress
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from weft.config import option
from weft.errors import refuse, shown
from weft.files import read_text

HEADER_BYTES = 65_536  # of the request line and the headers together
MOST_HEADERS = 256
KEY_BYTES = 4_096  # of a file with an API key
LEAST_KEY = 16  # characters of an API key
KEY_VARIABLE = "WEFT_API_KEY"
HOST_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:.]+\]")


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Where a server listens, who may use it, and its limits."""

    panel: ClassVar = "Server"
    host: str = option(
        "127.0.0.1", "--host", help="Address to listen on; if other machines can reach it, an API key is needed."
    )
    port: int = option(8000, "--port", help="Port to listen on; 0: any free port, which is printed.")
    api_key: str | None = option(
        None, "--api-key", metavar="FILE", help=f"File with the key that requests must have. Default: ${KEY_VARIABLE}."
    )
    allow_host: tuple[str, ...] = option(
        (), "--allow-host", metavar="NAME", help="Another name of this server in Host headers; repeatable."
    )
    cors: tuple[str, ...] = option(
        (), "--cors", metavar="ORIGIN",
        help="Origin whose web pages may send requests, such as https://example.org; repeatable.",
    )  # fmt: skip
    workers: int = option(
        1, "--workers", help="Worker processes per model; on a CPU those of PyTorch share the weights."
    )
    deadline: float = option(
        60.0, "--deadline", metavar="SECONDS", help="Time for one request; the header Weft-Deadline may ask for less."
    )
    drain: float = option(
        30.0, "--drain", metavar="SECONDS", help="Time to finish open requests after SIGTERM or Ctrl-C."
    )
    access_log: bool = option(
        True, "--access-log/--no-access-log", help="Write a line of JSON to standard error for each request."
    )
    log_texts: bool = option(False, "--log-texts", help="Write the body of each request into the access log too.")
    traces: str | None = option(
        None, "--traces", metavar="URL",
        help="OpenTelemetry collector that gets traces. Default: $OTEL_EXPORTER_OTLP_ENDPOINT, else nothing is sent.",
    )  # fmt: skip
    max_queue: int = option(
        64, "--max-queue", panel="Limits", help="Requests for a model, waiting or running; more get 429."
    )
    max_wait: float = option(
        0.3, "--max-wait", metavar="SECONDS", panel="Limits",
        help="Estimated waiting time from which a model whose queue is half full refuses requests with 429.",
    )  # fmt: skip
    max_connections: int = option(1024, "--max-connections", panel="Limits", help="Open connections; more get 503.")
    max_body: int = option(1 << 20, "--max-body", panel="Limits", help="Bytes of a request body.")
    max_texts: int = option(32, "--max-texts", panel="Limits", help="Inputs of a request.")
    max_embeddings: int = option(
        2048, "--max-embeddings", panel="Limits", help="Texts of a request for embeddings, and of a search."
    )
    max_n: int = option(4, "--max-n", panel="Limits", help="Texts generated per prompt.")
    max_stop: int = option(4, "--max-stop", panel="Limits", help="Stop strings of a request.")
    max_tokens: int = option(
        1 << 17, "--max-tokens", panel="Limits", help="Tokens of a request, including those that it may generate."
    )
    timeout: float = option(
        15.0, "--timeout", metavar="SECONDS", panel="Limits",
        help="Time for the headers of a request, for its body, and for a client that does not read.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        least = {
            **dict.fromkeys(("workers", "max_queue", "max_connections", "max_body", "max_texts", "max_embeddings"), 1),
            **{"max_n": 1, "max_stop": 0, "max_tokens": 1, "port": 0},
        }
        for name, lowest in least.items():
            value = vars(self)[name]
            most = {"port": 65_535, "workers": 256, "max_body": 1 << 26}.get(name, 1 << 31)
            flag = f"--{name.replace('_', '-')}"
            refuse((not lowest <= value <= most, f"{flag} must be between {lowest:,} and {most:,}, not {value}"))
        for name in ("deadline", "drain", "timeout", "max_wait"):
            seconds = vars(self)[name]
            good = math.isfinite(seconds) and 0 <= seconds <= 86_400 and (seconds or name == "drain")
            refuse((not good, f"--{name.replace('_', '-')} must be a number of seconds up to 86,400, not {seconds}"))
        for name in self.allow_host:
            bad = HOST_NAME.fullmatch(name.lower()) is None
            refuse((bad, f"--allow-host {shown(name)!r}: give the name alone, as example.org"))
        for origin in self.cors:
            refuse((not _is_origin(origin), f"--cors {shown(origin)!r}: write an origin as https://example.org"))
        bad = self.traces is not None and not re.fullmatch(r"https?://[^/\s?#@]+(/[^\s?#]*)?", self.traces)
        refuse((bad, f"--traces {shown(self.traces or '')!r}: write a URL as http://127.0.0.1:4318"))

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False

    def key(self) -> str | None:
        """The API key of --api-key or of the environment; without one a host that others can reach is an error."""
        source, key = f"${KEY_VARIABLE}", os.environ.get(KEY_VARIABLE, "")
        if self.api_key is not None:
            source, key = self.api_key, read_text(Path(self.api_key), KEY_BYTES)
        key = key.strip()
        if not key and self.api_key is None:
            needs = f"--host {shown(self.host)} can be reached from other machines: give --api-key FILE, or a key in "
            refuse((not self.is_local, f"{needs}${KEY_VARIABLE}"))
            return None
        good = key.isascii() and key.isprintable() and " " not in key and len(key) >= LEAST_KEY
        refuse((not good, f"{source}: a key is one line of {LEAST_KEY} or more ASCII characters without spaces"))
        return key


def _is_origin(origin: str) -> bool:
    """Whether it has the form of a browser's Origin header: a scheme, a host and perhaps a port."""
    try:
        parts = urlsplit(origin)
        port = parts.port
    except ValueError:
        return False
    host = (parts.hostname or "") + ("" if port is None else f":{port}")
    return parts.scheme in ("http", "https") and origin.lower() == f"{parts.scheme}://{host}" and bool(parts.hostname)
