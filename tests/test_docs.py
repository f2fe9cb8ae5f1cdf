"""Every command and example of the documentation, run as it stands there, page by page."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest

from tests.children import start_child
from tests.warm import CALLER

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# What a page takes as given: the folders that the tour of the README makes.
GIVEN = [
    "tokenizer learn --kind wordpiece --size 8000 --text corpus/weaver.txt --out tok/",
    "tokenizer learn --kind bpe --size 600 --text corpus/weaver.txt --out pieces/",
    "new --model bert --size 2x128 --tokenizer tok/ --out runs/bert",
    "new --model gpt2 --size 2x128 --tokenizer pieces/ --out runs/gpt",
]
# A server of a page runs until the end of the page, at a port that is free here.
SERVER, PORT = re.compile(r"^weft serve .*$", re.MULTILINE), "8000"


def blocks(page: Path) -> list[tuple[str, str]]:
    return re.findall(r"^```(sh|python)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def warm() -> Iterator[Path]:
    """A folder with a `weft` that has its libraries loaded already."""
    with tempfile.TemporaryDirectory() as short:  # the name of a socket may not be long
        folder, at = Path(short), f"{short}/socket"
        (folder / "weft").write_text(CALLER.format(python=sys.executable, at=at))
        (folder / "weft").chmod(0o755)
        with start_child([sys.executable, "-m", "tests.warm", at], cwd=ROOT, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            yield folder
            process.terminate()


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_every_documented_command(page: Path, tmp_path: Path, warm: Path) -> None:
    (tmp_path / "corpus").mkdir()
    shutil.copy(ROOT / "examples" / "weaver.txt", tmp_path / "corpus")
    for name in ("reviews.csv", "more-reviews.csv", "names.conll", "questions.jsonl"):
        shutil.copy(ROOT / "examples" / name, tmp_path)
    (tmp_path / "examples").mkdir()
    for name in ("dates.py", "captions.py", "sales.py"):
        shutil.copy(ROOT / "examples" / name, tmp_path / "examples")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    python = sys.executable
    if page.name != "text.md":  # whose few commands show that the installed `weft` does the same
        path, python = f"{warm}{os.pathsep}{path}", str(warm / "weft")
    environment = {**os.environ, "PATH": path, "PYTHONWARNINGS": "ignore", "WEFT_CACHE": str(tmp_path / "cache")}
    said = "".join(text for _, text in blocks(page))
    if page.name != "README.md" and re.search(r"runs/(bert|gpt)\b|\b(tok|pieces)/", said):
        given = "".join(f"weft {line}\n" for line in GIVEN)
        subprocess.run(["bash", "-euc", given], cwd=tmp_path, env=environment, check=True, capture_output=True)
    with ExitStack() as servers:
        port = str(free_port())
        for language, text in blocks(page):
            text = text.replace(PORT, port) if PORT in said and SERVER.search(said) else text
            serves = SERVER.search(text) if language == "sh" else None
            text = text.replace(serves[0], "") if serves else text
            command = ["bash", "-euc", text] if language == "sh" else [python, "-c", text]
            found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
            assert found.returncode == 0, f"{text}\n{found.stderr}"
            assert "Traceback" not in found.stderr
            assert '"server_error"' not in found.stdout, f"{text}\n{found.stdout}"
            if serves:
                servers.enter_context(documented_server(serves[0].split(), port, tmp_path, environment))


@contextmanager
def documented_server(words: list[str], port: str, folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """A server of a page, until the end of the page; it then ends by itself when it is asked to."""
    command = [sys.executable, "-P", "-m", *words]
    with (
        (folder / "server.log").open("w+") as log,
        start_child(command, cwd=folder, env=environment, stdout=log, stderr=log) as process,
    ):
        try:
            for _ in range(600):
                with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/ready") as reply:
                    assert reply.status == 200
                    break
                assert process.poll() is None, (folder / "server.log").read_text()
                time.sleep(0.1)
            yield
            process.terminate()
            assert process.wait(60) == 0, (folder / "server.log").read_text()
        finally:
            process.kill()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target, place in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", page.read_text()):
            other = page.parent / target if target else page
            assert target.startswith("http") or other.exists(), f"{page.name}: {target}"
            assert not place or place in anchors(other), f"{page.name}: {target}#{place}"


def anchors(page: Path) -> set[str]:
    """What headings of a page are called in links."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_api_reference_is_up_to_date() -> None:
    """`python docs/make_api.py` writes it from signatures and docstrings; every public name and method has one."""
    generator = runpy.run_path(str(ROOT / "docs" / "make_api.py"))
    pages = generator["pages"]()
    assert set(pages) == {path.name for path in (ROOT / "docs" / "api").iterdir()}
    for name, text in pages.items():
        assert (ROOT / "docs" / "api" / name).read_text() == text, f"docs/api/{name}: run python docs/make_api.py"


def test_the_performance_page_is_made_from_the_results() -> None:
    """`python docs/make_performance.py` writes it, and the figures of the README; no number is typed."""
    generator = runpy.run_path(str(ROOT / "docs" / "make_performance.py"))
    page, readme = generator["Page"](), (ROOT / "README.md").read_text()
    advice = "run python docs/make_performance.py"
    assert (ROOT / "docs" / "performance.md").read_text() == page.write(), f"docs/performance.md: {advice}"
    assert readme == generator["readme_of"](page, readme), f"README.md: {advice}"
    between = readme[readme.index(generator["BEGIN"]) : readme.index(generator["END"])]
    assert len(re.findall(r"^- .*\d", between, re.MULTILINE)) == 3


def test_missing_results_leave_the_performance_page_whole(tmp_path: Path) -> None:
    generator = runpy.run_path(str(ROOT / "docs" / "make_performance.py"))
    titles = re.findall(r"^## .*$", (ROOT / "docs" / "performance.md").read_text(), re.MULTILINE)
    for damaged in (
        None,
        {},
        [],
        {"works": [{}], "sizes": [{}], "layers": {"x": {}}, "runs": [{}], "seconds": {"x": {}}},
    ):
        for path in (ROOT / "benchmarks" / "results").rglob("*.json"):
            place = tmp_path / path.relative_to(ROOT / "benchmarks" / "results")
            place.parent.mkdir(exist_ok=True)
            place.write_text(json.dumps(damaged))
        text = generator["Page"](tmp_path).write()
        assert re.findall(r"^## .*$", text, re.MULTILINE) == titles and "None" not in text
        assert generator["Page"](tmp_path).summary() == []


def test_documented_limits_are_those_of_the_code() -> None:
    row = r"^\| .+ \| ([\d,.]+) \| `(weft\.[\w.]+)\.(\w+)` \|$"
    rows = re.findall(row, (ROOT / "docs/security.md").read_text(), re.MULTILINE)
    assert len(rows) > 40
    for value, module, name in rows:
        assert f"{getattr(import_module(module), name):,}" == value, f"{module}.{name}"


def test_documented_limits_of_the_server_are_its_defaults() -> None:
    from weft.serve.limits import ServeOptions

    rows = re.findall(r"^\| `--([\w-]+)` \| ([\d.]+) \|", (ROOT / "docs/serve.md").read_text(), re.MULTILINE)
    given = {name.replace("-", "_"): value for name, value in rows}
    defaults = {field.name: str(field.default) for field in fields(ServeOptions)}
    assert given == {name: value for name, value in defaults.items() if re.fullmatch(r"[\d.]+", value)}


def test_the_demo_runs(tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "demo.py"), "--quick"], cwd=tmp_path, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    assert "finish_reason" in found.stderr and "gap 1:" in found.stdout and "tokens/s" in found.stderr
    assert "True label by row" in found.stdout and "held-out score" in found.stdout
    made = ("vectors.npy", "curves.html", "gpt", "bert", "reviews", "reviews.html")
    assert all((tmp_path / "demo" / name).exists() for name in made)
