"""What a killed process leaves is removed by the next; what is in use never is."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from pathlib import Path

import pytest

from tests.children import ForkedChild
from weft import files
from weft.data.shards import TextFiles, tokenized
from weft.errors import UserError
from weft.files import check_new_run, sweep, temporary_folder, unwritable, whole_file, whole_folder, write_text
from weft.text.tokenizers.training import learn

WAYS = {
    "file": "with whole_file(here / 'a.txt') as file:\n    file.write(b'half')\n    wait()",
    "folder": "with whole_folder(here / 'out') as inside:\n    (inside / 'x').write_text('half')\n    wait()",
    "temporary": "with temporary_folder() as inside:\n    (inside / 'x').write_text('half')\n    wait()",
}
CODE = """
import os, signal, sys, tempfile, time
from pathlib import Path
from weft.files import whole_file, whole_folder
from weft.files import temporary_folder
here, tempfile.tempdir = Path(sys.argv[1]), None
def wait():
    (here / 'ready').touch()
    while not (here / 'go').exists():
        time.sleep(0.01)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(files, "_swept", set())
    return tmp_path / "tmp"


def begun(way: str, folder: Path) -> ForkedChild:
    process = ForkedChild(CODE + WAYS[way], str(folder))
    for _ in range(6000):
        if (folder / "ready").exists():
            return process
        time.sleep(0.01)
    raise AssertionError(process.ended())


def left_in(*folders: Path) -> list[str]:
    return [path.name for folder in folders for path in folder.glob("*weft-*")] + [
        path.name for folder in folders for path in folder.glob(".*")
    ]


@pytest.mark.parametrize("way", WAYS)
def test_leftovers_of_a_kill(way: str, tmp_path: Path, temporary: Path) -> None:
    process = begun(way, tmp_path)
    assert len(set(left_in(tmp_path, temporary))) == 1
    process.send_signal(9)
    process.ended()
    assert len(set(left_in(tmp_path, temporary))) == 1
    with temporary_folder():
        write_text(tmp_path / "a.txt", "whole")
    assert left_in(tmp_path, temporary) == []


@pytest.mark.parametrize("way", WAYS)
def test_what_is_in_use_stays(way: str, tmp_path: Path, temporary: Path) -> None:
    process = begun(way, tmp_path)
    for folder in (tmp_path, temporary):
        sweep(folder)
    assert len(set(left_in(tmp_path, temporary))) == 1
    (tmp_path / "go").touch()
    process.ended()
    assert process.returncode == 0 and left_in(tmp_path, temporary) == []


def test_nothing_of_anybody_else_is_removed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "thesis.txt").write_text("mine")
    names = [
        ".a.txt.1234abcd",
        "weft-notes",
        ".a.weft-1234abcg",
        "a.weft-1234abcd",
        "weft-1234abcd.txt",
        ".weft-12345678",
    ]
    for name in names:
        (tmp_path / name).write_text("mine")
    (tmp_path / "weft-00000000").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / ".a.weft-00000000")
    before = sorted(tmp_path.rglob("*"))
    sweep(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def test_many_write_while_others_look_for_leftovers(tmp_path: Path) -> None:
    """Between its making and its locking a scratch file may be taken for a leftover: then another one is made."""
    faults: list[BaseException] = []

    def write(number: int) -> None:
        try:
            for turn in range(60):
                with whole_folder(tmp_path / f"{number}-{turn}") as inside, whole_file(tmp_path / "same") as file:
                    (inside / "x").write_text("whole")
                    file.write(b"whole")
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        files._swept.clear()
        sweep(tmp_path)
    assert not faults and len(list(tmp_path.glob("*/x"))) == 180 and left_in(tmp_path) == []


def test_a_new_run_where_one_was_killed_at_once(tmp_path: Path) -> None:
    """Its folder holds a lock, and half of a recipe."""
    (tmp_path / "run" / "run").mkdir(parents=True)
    (tmp_path / "run" / "run" / "lock").write_text("1\n")
    (tmp_path / "run" / "run" / ".recipe.toml.weft-1234abcd").write_text("half")
    check_new_run(tmp_path / "run")
    (tmp_path / "run" / "run" / ".recipe.toml").write_text("somebody's")
    with pytest.raises(UserError, match="not empty"):
        check_new_run(tmp_path / "run")


def test_a_full_disk_of_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is written there first: its folder, its lock, its shards or their record."""
    (tmp_path / "text.txt").write_text("One line.\n" * 50)
    text, tokenizer = TextFiles((str(tmp_path / "text.txt"),)), learn(["one line."], "wordpiece", 60)
    sync, make = os.fsync, Path.mkdir
    for calls in range(5):
        monkeypatch.setenv("WEFT_CACHE", str(tmp_path / f"cache-{calls}"))
        left = [calls]

        def full(number: int, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise OSError(28, "No space left on device")
            sync(number)

        def full_folder(self: Path, *given: object, **more: object) -> None:
            if "cache-0" in str(self):
                raise OSError(28, "No space left on device")
            make(self, *given, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(os, "fsync", full)
        monkeypatch.setattr(Path, "mkdir", full_folder)
        with pytest.raises(UserError) as caught:
            tokenized(text, tokenizer)
        message = str(caught.value)
        assert f"the disk of the cache, {tmp_path / f'cache-{calls}'}, is full" in message, calls
        assert "no space left on device" in message and "set WEFT_CACHE to a folder on another disk" in message
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    short = OSError("400000 requested and 90048 written")  # as NumPy has it
    assert "the disk of the cache" in str(unwritable(tmp_path / "cache" / "x", short))
    with pytest.raises(UserError, match=r"b: cannot be written: no space left on device$"):
        write_text(tmp_path / "b", "x")
