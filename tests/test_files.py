"""Files written whole or not at all."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.children import ForkedChild
from weft.errors import UserError
from weft.files import held, whole_folder, write_bytes, write_json, write_text


def test_what_was_there_stays_when_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text(tmp_path / "a", "old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="a: cannot be written: no space left on device"):
        write_text(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "old" and [path.name for path in tmp_path.iterdir()] == ["a"]
    with pytest.raises(UserError, match="no space left"), whole_folder(tmp_path / "b") as inside:
        (inside / "c").write_text("x")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_text_that_is_no_text(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unpaired surrogate"):
        write_json(tmp_path / "a.json", {"label": "\ud800"})
    with pytest.raises(UserError, match="cannot be written: file name too long"):
        write_bytes(tmp_path / ("x" * 300), b"")
    assert list(tmp_path.iterdir()) == []


def test_an_error_inside_is_not_about_the_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), whole_folder(tmp_path / "b"):
        (tmp_path / "nowhere" / "x").read_text()
    assert list(tmp_path.iterdir()) == []


def test_kill_9_in_the_middle_of_a_save(tmp_path: Path) -> None:
    """Killed while it saves one folder after the other: each is whole or absent."""
    code = (
        "import sys, weft; m = weft.new('bert', size='2x128', settings={'vocabulary': 3000})\n"
        "n = 0\n"
        "while True: n += 1; m.save(f'{sys.argv[1]}/{n}')"
    )
    process = ForkedChild(code, str(tmp_path))
    deadline = time.monotonic() + 60
    while not (tmp_path / "3").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.ended()
    import weft

    whole = [path for path in tmp_path.iterdir() if not path.name.startswith(".")]
    assert whole, "it never came to save anything"
    for path in whole[-5:]:
        assert weft.load(path).config.width == 128


def test_a_lock_outlives_its_process_by_a_moment(tmp_path: Path) -> None:
    """A child that was never asked to keep it holds it a little longer; a process that is at work is not waited for."""
    path = tmp_path / "lock"
    with held(path) as ours:
        begun = time.monotonic()
        with held(path) as other:
            assert ours and not other and time.monotonic() - begun < 1
    gone = subprocess.Popen(["true"])
    gone.wait()
    with open(path, "w") as file:
        file.write(f"{gone.pid}\n")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        child = subprocess.Popen(["sleep", "0.2"], pass_fds=[file.fileno()])
    with held(path) as ours:
        assert ours and path.read_text() == f"{os.getpid()}\n"
    child.wait()
