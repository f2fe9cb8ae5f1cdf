"""The outer guard: a fault of ours is one line, exit status 1 and a file with the traceback; never hidden in tests."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest

from weft.checkpoint import folder as folders
from weft.cli.main import run
from weft.files import read_json


class Panic(BaseException):
    """As the panic of a library in Rust comes."""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    import weft

    weft.new("bert", size="1x64", settings={"vocabulary": 50, "context": 16}).save(tmp_path / "m")
    return tmp_path / "m"


def breaking(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Every config.json makes its reader fail like this."""

    def read(path: Path, *more: Any) -> Any:
        if path.name == "config.json":
            raise error
        return read_json(path, *more)

    monkeypatch.setattr(folders, "read_json", read)


@pytest.mark.parametrize(
    "error", [IndexError("list index out of range\x1b[2J\nmore"), Panic("boom"), ZeroDivisionError()]
)
def test_a_fault_is_one_line(
    error: BaseException,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    breaking(monkeypatch, error)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(type(error)):  # as the tests have it
        run(["info", str(model)])
    monkeypatch.delenv("WEFT_DEBUG")
    capsys.readouterr()
    assert run(["info", str(model)]) == 1
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1 and "\x1b" not in printed.err
    assert printed.err.startswith("weft info: internal error while reading ") and "please report it" in printed.err
    assert type(error).__name__ in printed.err and str(model) in printed.err
    named = re.search(r"the traceback is in (\S+)", printed.err)
    assert named is not None
    report = Path(named[1])
    assert report.parent == tmp_path and stat.S_IMODE(os.stat(report).st_mode) == 0o600
    text = report.read_text()
    assert "Traceback (most recent call last)" in text and "tests/cli/test_guard.py" in text and "info" in text


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried to"),
    ],
    ids=["python", "torch"],
)
def test_memory_that_runs_out_is_no_bug(
    error: BaseException, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    breaking(monkeypatch, error)
    monkeypatch.delenv("WEFT_DEBUG")
    assert run(["info", str(model)]) == 2
    assert "out of memory while reading" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ImportError("libgomp.so.1: cannot open shared object file"), "a library cannot be imported: libgomp.so.1: "),
        (OSError("libtorch_cpu.so: cannot open shared object file"), "libtorch_cpu.so: cannot open shared"),
    ],
)
def test_a_library_that_cannot_be_loaded_is_no_bug(
    error: Exception,
    expected: str,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    breaking(monkeypatch, error)
    monkeypatch.delenv("WEFT_DEBUG")
    assert run(["info", str(model)]) == 2
    printed = capsys.readouterr().err
    assert (
        printed.startswith(f"weft info: {expected}") and printed.count("\n") == 1 and "standard output" not in printed
    )


def test_the_file_being_read_is_named(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*given: Any, **more: Any) -> Any:
        raise KeyError("x")

    monkeypatch.delenv("WEFT_DEBUG")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))  # no place for the traceback
    monkeypatch.setattr("weft.files.json.loads", broken)
    assert run(["info", str(model)]) == 1
    error = capsys.readouterr().err
    assert f"while reading {model}/" in error and ".json: KeyError" in error and "WEFT_DEBUG=1 shows" in error


def test_names_that_are_not_text_are_shown() -> None:
    from weft.errors import shown

    assert shown(b"a\xff\x1b[2J") == "a\\xff\\x1b[2J" and shown(b"x" * 100) == "x" * 60 + "..."


def test_an_interrupt_that_python_wraps_is_an_interrupt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python 3.11 turns Ctrl-C while a dataclass is made into a RuntimeError."""

    def interrupted(*_: object, **__: object) -> None:
        raise RuntimeError("Error calling __set_name__") from KeyboardInterrupt()

    monkeypatch.setattr("weft.cli.main.build", interrupted)
    assert run(["models"]) == 130
    assert capsys.readouterr().err == "weft: interrupted\n"
