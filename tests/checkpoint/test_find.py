"""`weft.load("name")`: a path, then the local Hugging Face cache, then, only when asked, a download."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import weft

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_a_path_comes_first_and_then_the_cache(tmp_path: Path) -> None:
    model = weft.new("bert", size="1x64", settings={"vocabulary": 50, "context": 16})
    repository = tmp_path / "hub" / "models--someone--small"
    model.save(repository / "snapshots" / COMMIT)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    weft.new("bert", size="1x128", settings={"vocabulary": 50, "context": 16}).save(
        tmp_path / "here" / "someone" / "small"
    )
    code = (
        "import os, weft; print(weft.load('someone/small').config.width); "
        "os.chdir('here'); print(weft.load('someone/small').config.width)"
    )
    # A process of its own: the hub's library reads its settings when it is first imported.
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "0"}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert found.stdout.split() == ["64", "128"], found.stderr


class Hub(http.server.BaseHTTPRequestHandler):
    """As much of the hub as a download needs, on this machine."""

    folder: Path
    asked: list[str] = []

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        Hub.asked.append(self.path)
        files = sorted(path.name for path in self.folder.iterdir())
        path = self.path.split("?")[0]
        if path == "/mark":
            return self.answer(b"", "text/plain")
        if path.startswith("/api/models/someone/far/tree/"):
            listing = [{"type": "file", "path": n, "size": (self.folder / n).stat().st_size, "oid": n} for n in files]
            return self.answer(json.dumps(listing).encode(), "application/json")
        if path.startswith("/api/models/someone/far"):
            siblings = [{"rfilename": name} for name in files]
            info = {"_id": "x", "id": "someone/far", "sha": COMMIT, "siblings": siblings, "private": False}
            return self.answer(json.dumps(info).encode(), "application/json")
        name = path.rpartition("/")[2]
        if path.startswith(f"/someone/far/resolve/{COMMIT}/") and name in files:
            return self.answer((self.folder / name).read_bytes(), "application/octet-stream", name)
        self.send_error(404)
        return None

    def answer(self, data: bytes, kind: str, name: str = "") -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", f'"{name or "x"}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)


def test_nothing_is_fetched_unless_asked(tmp_path: Path) -> None:
    weft.new("bert", size="1x64", settings={"vocabulary": 50, "context": 16}).save(tmp_path / "served")
    (tmp_path / "served" / "pytorch_model.bin").write_bytes(b"never fetched")
    (tmp_path / "served" / "evil.py").write_text("never fetched")
    Hub.folder = tmp_path / "served"
    Hub.asked = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    environment = {
        **{name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")},
        "HF_ENDPOINT": endpoint,
        "HF_HUB_CACHE": str(tmp_path / "hub"),
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_XET": "1",
    }
    calls = [
        ["info", "someone/far"],
        ["info", "someone/far", "--online"],
        ["info", "someone/far"],
        ["info", "someone/nowhere", "--online"],
    ]
    # After each call the hub is asked for a mark, so that its log says which call asked for what.
    code = (
        "import sys, json, urllib.request; from weft.cli.main import run\n"
        f"for call in {calls!r}:\n"
        "    print('status', run(call), file=sys.stderr)\n"
        f"    urllib.request.urlopen('{endpoint}/mark')\n"
    )
    try:
        found = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, cwd=tmp_path
        )
        said = [line for line in found.stderr.splitlines() if line.startswith(("weft", "status"))]
        log = " ".join(Hub.asked).split("/mark")
        assert len(log) == 5, found.stderr
        assert "to download it, pass --online" in said[0] and said[1] == "status 2"
        assert log[0] == "", "the network was used without being asked"
        assert said[2] == "status 0" and f"resolve/{COMMIT}/model.safetensors" in log[1]
        assert "pytorch_model.bin" not in log[1] and "evil.py" not in log[1]
        assert said[3] == "status 0" and log[2].strip() == "", "the cache was not used"
        assert "'someone/nowhere' could not be downloaded" in said[4] and said[5] == "status 2" and len(said) == 6
    finally:
        server.shutdown()


def test_names_that_cannot_be_models() -> None:
    for name in ("../up/and/away", "a/b/c", "https://example.org/x", "", "-"):
        with pytest.raises(weft.UserError, match="not a model folder"):
            weft.load(name)
