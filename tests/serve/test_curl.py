"""The real curl: it sends no JSON type unless told to, and prints what it gets."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest

from tests.serve.running import Served

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


def curl(server: Served, path: str, *options: str) -> str:
    command = ["curl", "--silent", "--show-error", "--max-time", "60", f"127.0.0.1:{server.port}{path}", *options]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def post(server: Served, path: str, body: Any, *options: str) -> str:
    return curl(server, path, "-d", json.dumps(body), *options)


def test_labels(server: Served) -> None:
    values = json.loads(post(server, "/v1/classify", {"model": "reviews", "input": ["a gripping film"]}))
    (answer,) = values["answers"]
    assert values["model"] == "reviews" and answer["object"] == "label" and answer["label"] in ("good", "bad")


def test_a_file_and_a_type_may_be_given(server: Served, tmp_path: Any) -> None:
    file = tmp_path / "body.json"
    file.write_text(json.dumps({"model": "names", "input": "Ada aß 北京"}, ensure_ascii=False))
    kind = ("-H", "Content-Type: application/json")
    answer = json.loads(curl(server, "/v1/tag", "--data-binary", f"@{file}", *kind))["answers"][0]
    assert [word["text"] for word in answer["words"]][:2] == ["Ada", "aß"]


def test_events(server: Served) -> None:
    body = {"model": "gpt", "prompt": "The weaver", "max_tokens": 6, "temperature": 0, "stream": True}
    lines = [line for line in post(server, "/v1/completions", body, "--no-buffer").splitlines() if line]
    assert lines[-1] == "data: [DONE]" and all(line.startswith("data: ") for line in lines)
    events = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    whole = json.loads(post(server, "/v1/completions", {**body, "stream": False}))["choices"][0]
    assert "".join(event["choices"][0]["text"] for event in events) == whole["text"]
    assert events[-1]["choices"][0]["finish_reason"] == whole["finish_reason"]


def test_headers_and_status(server: Served) -> None:
    headers, _, body = post(server, "/v1/classify", {"model": "reviews", "input": "a"}, "-i").partition("\n\n")
    assert headers.startswith("HTTP/1.1 200") and "server-timing: queue;dur=" in headers
    assert json.loads(body)["answers"]
    status = ("-o", "/dev/null", "-w", "%{http_code}")
    assert post(server, "/v1/classify", {"model": "review", "input": "a"}, *status) == "404"
    assert curl(server, "/v1/classify", *status) == "405"
    assert curl(server, "/v1/classify", "-d", "{", *status) == "400"
    assert curl(server, "/ready", "--head", *status).endswith("200")
    assert post(server, "/v1/classify", {"model": "reviews", "input": "a"}, "--http2", *status) == "200"
