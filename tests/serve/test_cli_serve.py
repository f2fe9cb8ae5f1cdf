"""`weft serve` on the command line: its mistakes are one line each, before anything is loaded."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from weft.cli.main import run
from weft.errors import UserError
from weft.serve.limits import ServeOptions

KEY = "a-key-of-some-letters"


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEFT_API_KEY", raising=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Looks like a model folder, which is enough for what is checked first."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    return tmp_path / "model"


@contextmanager
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def message(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a mistake ends with."""
    assert run(["serve", *arguments]) == 2
    text = capsys.readouterr().err
    assert text.count("\n") == 1 and "Traceback" not in text
    return text


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--host", "0.0.0.0"], "can be reached from other machines: give --api-key FILE, or a key in $WEFT_API_KEY"),
        (["--host", "::"], "can be reached from other machines"),
        (["--host", "example.org"], "can be reached from other machines"),
        (["--port", "70000"], "--port must be between 0 and 65,535"),
        (["--workers", "0"], "--workers must be between 1 and 256"),
        (["--max-body", "0"], "--max-body must be between 1 and"),
        (["--max-tokens", "-1"], "--max-tokens must be between 1 and"),
        (["--deadline", "nan"], "--deadline must be a number of seconds"),
        (["--deadline", "0"], "--deadline must be a number of seconds"),
        (["--cors", "*"], "write an origin as https://example.org"),
        (["--cors", "https://example.org/page"], "write an origin as https://example.org"),
        (["--allow-host", "a/b"], "give the name alone"),
        (["--api-key", "nowhere"], "nowhere: cannot be read"),
        (["--device", "warp"], "device 'warp'"),
        (["--prot", "1"], "did you mean '--port'?"),
    ],
)
def test_options(options: list[str], line: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert line in message([str(folder), *options], capsys)


def test_keys(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("", "short", "two words are no key", "key with\nlines in it", "schlüssel-mit-umlaut"):
        (tmp_path / "key").write_text(text)
        assert "a key is one line of 16 or more" in message([str(folder), "--api-key", str(tmp_path / "key")], capsys)


def test_where_the_key_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text(f"{KEY}\n")
    assert ServeOptions().key() is None and ServeOptions(host="127.3.2.1").key() is None
    assert ServeOptions(api_key=str(tmp_path / "key")).key() == KEY
    monkeypatch.setenv("WEFT_API_KEY", KEY[::-1])
    assert ServeOptions(host="0.0.0.0").key() == KEY[::-1]
    assert ServeOptions(api_key=str(tmp_path / "key")).key() == KEY
    monkeypatch.setenv("WEFT_API_KEY", "short")
    with pytest.raises(UserError, match="16 or more"):
        ServeOptions().key()


def test_models(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "Missing argument" in message([], capsys)
    assert "two models have the name 'model'" in message([str(folder), str(folder)], capsys)
    assert "two models have the name 'a'" in message([f"a={folder}", f"a={folder}"], capsys)
    assert "cannot be the name of a model" in message([f"a b={folder}"], capsys)
    assert "cannot be the name of a model" in message([f"../a={folder}"], capsys)
    assert "is not a model folder" in message([str(tmp_path)], capsys)
    assert "is not a model folder" in message([str(tmp_path / "nowhere" / "x")], capsys)


def test_a_port_that_is_taken(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with taken_port() as port:
        assert "try another --port" in message([str(folder), "--port", str(port)], capsys)


def test_a_folder_that_cannot_be_opened(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The worker's one line is the command's."""
    line = message([str(folder), "--port", "0"], capsys)
    assert str(folder) in line and "internal error" not in line


def test_a_missing_package(folder: Path) -> None:
    code = f"import sys; sys.modules['uvicorn'] = None; from weft.cli.main import run; run(['serve', {str(folder)!r}])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "weft serve: a server needs the package uvicorn: pip install 'weft[serve]'\n"


def test_help_loads_no_web_framework() -> None:
    code = (
        "import sys; from weft.cli.main import run; run(['serve', '--help']); "
        "print([name for name in ('fastapi', 'uvicorn', 'torch', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n") and "weft serve runs/reviews" in done.stdout
