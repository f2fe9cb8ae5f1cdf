"""The working folder is not code: neither for the command line nor for the processes that it starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import weft
from tests.training.small import stories
from weft.child import child_environment, start_child
from weft.comparison.cost import memory_of
from weft.text.tokenizers.training import learn
from weft.training.run import revision

WEFT = str(Path(sys.executable).parent / "weft")
LIBRARIES = ("typer", "rich", "torch", "numpy", "tokenizers", "safetensors", "difflib", "json", "typing", "__future__")


def plant(folder: Path, *names: str) -> None:
    """Files that have the names of libraries and leave a mark when they are executed."""
    code = "import sys; open({mark!r}, 'a').write(__name__ + '\\n'); raise SystemExit('planted')\n"
    for name in names:
        path = folder / f"{name}.py" if name != "weft" else folder / "weft" / "__init__.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(code.format(mark=str(folder / "executed")))


def executed(folder: Path) -> str:
    mark = folder / "executed"
    return mark.read_text() if mark.exists() else ""


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    plant(tmp_path, *LIBRARIES, "weft")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("path", [None, os.pathsep, f"{os.pathsep}nowhere"], ids=["plain", "empty", "first"])
def test_a_child_imports_nothing_from_the_working_folder(
    path: str | None, planted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if path is not None:
        monkeypatch.setenv("PYTHONPATH", path)
    code = "import typing, json, typer, numpy, weft; print(weft.__file__, *sys.argv)"
    with start_child(code, "a b", "", stdout=subprocess.PIPE) as child:
        output, _ = child.communicate(timeout=100)
    assert not child.returncode and not executed(planted)
    assert output.decode().split("\n")[0] == f"{weft.__file__} -c a b "


def test_a_child_keeps_what_the_user_put_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["/a", "", "b"]))
    assert child_environment()["PYTHONPATH"] == os.pathsep.join(["/a", "b"])
    monkeypatch.setenv("PYTHONPATH", "")
    assert "PYTHONPATH" not in child_environment()


def test_a_child_finds_weft_where_nothing_else_does(tmp_path: Path) -> None:
    """As in a program that has put the package on its own sys.path."""
    root = str(Path(weft.__file__).parent.parent)
    code = "import os, weft.child as c; c.start_child('import weft; print(weft.__file__)', cwd='/').wait()"
    before = f"import sys; sys.path.insert(0, {root!r}); "
    command = [sys.executable, "-S", "-P", "-c", before + code]
    environment = {**os.environ, "PYTHONPATH": ""}
    found = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=True)
    assert found.stdout.strip() == weft.__file__


def test_a_ladder_starts_no_code_of_the_working_folder(planted: Path) -> None:
    (planted / "stories.txt").write_text(stories(60))
    budget = {"tokens": 2048, "size": "tiny", "parallel": 1, "models": ["uniform"]}
    weft.ladder(None, {"out": "ladder", "text": {"files": ["stories.txt"]}, "ladder": budget})
    assert not executed(planted)
    rungs = json.loads((planted / "ladder" / "ladder.json").read_text())["rungs"]
    assert len(rungs) == 1 and "failed" not in rungs[0]


def test_the_process_that_measures_memory(planted: Path) -> None:
    model = weft.new("bert", learn(["a b c"] * 3, "wordpiece", 40), size="1x64", heads={"classify": 2})
    model.save(planted / "model")
    assert (memory_of(planted / "model", weft.load("model", task="classify"), ["a b"]) or 0) > 1 << 20
    assert not executed(planted)


@pytest.mark.parametrize("options", [["-m", "weft"], ["-mweft"], ["-m", "weft.__main__"], ["-X", "dev", "-m", "weft"]])
def test_weft_as_a_module_imports_nothing_from_the_working_folder(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what Python itself imports before it has found Weft can still lie there."""
    plant(tmp_path, *LIBRARIES)
    monkeypatch.chdir(tmp_path)
    done = subprocess.run([sys.executable, *options, "--version"], capture_output=True, text=True)
    assert not executed(tmp_path) and done.stdout.startswith("weft "), done.stderr


def test_a_module_of_the_user_keeps_its_folder(tmp_path: Path) -> None:
    """A package of the user that imports Weft, started by -m, finds its neighbors."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("import weft\n")
    (tmp_path / "mine" / "__main__.py").write_text("import neighbor\n")
    (tmp_path / "neighbor.py").write_text("print('found')\n")
    done = subprocess.run([sys.executable, "-m", "mine", "weft"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "found\n", done.stderr


@pytest.mark.parametrize(("path", "kept"), [("", False), (os.pathsep, False), (f"{os.pathsep}.", True)])
def test_an_empty_entry_of_pythonpath_is_not_the_working_folder(path: str, kept: bool, tmp_path: Path) -> None:
    plant(tmp_path, "typer")
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([WEFT, "--version"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert bool(executed(tmp_path)) is kept, done.stderr  # who names a folder means it
    assert kept or done.returncode == 0


# -------------------------------------------------------------------------------------------------------------- git


def git(folder: Path, *arguments: str) -> str:
    """git as its user runs it, with a name to commit under."""
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    try:
        git(folder, "init", "-q")
    except OSError:
        pytest.skip("git is not installed")
    (folder / "a").mkdir()
    (folder / "a" / "text.txt").write_text("one\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    return folder


def test_the_revision_is_what_git_says(repository: Path, tmp_path: Path) -> None:
    head = git(repository, "rev-parse", "HEAD")
    assert revision(repository) == revision(repository / "a") == head
    git(repository, "checkout", "-qb", "feature/x")
    git(repository, "pack-refs", "--all")
    assert revision(repository) == head and not list((repository / ".git" / "refs" / "heads").rglob("x"))
    git(repository, "commit", "-q", "--allow-empty", "-m", "second")
    assert revision(repository) == git(repository, "rev-parse", "HEAD") != head
    git(repository, "worktree", "add", "-q", str(tmp_path / "tree"), "main")
    assert revision(tmp_path / "tree") == head
    git(repository, "checkout", "-q", "--detach", head)
    assert revision(repository) == head


def test_what_is_no_revision(repository: Path, tmp_path: Path) -> None:
    head = repository / ".git" / "HEAD"
    for text in ("", "ref: refs/heads/none", "ref: ../../a/text.txt", "ref: refs/../../a/text.txt", "x" * 40, "\xff"):
        head.write_text(text, encoding="latin-1")
        assert revision(repository) is None, text
    head.unlink()
    os.mkfifo(head)  # would wait for ever
    assert revision(repository) is None
    (tmp_path / ".git").write_text("gitdir: nowhere")
    assert revision(tmp_path) is None


def test_a_repository_runs_no_code(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """core.fsmonitor and a filter's clean are run by `git describe --dirty`; a run folder records the commit anyway."""
    spy = tmp_path / "spy"
    spy.write_text(f"#!/bin/sh\ntouch {tmp_path}/executed\ncat\n")
    spy.chmod(0o755)
    git(repository, "config", "core.fsmonitor", str(spy))
    git(repository, "config", "filter.spy.clean", str(spy))
    (repository / ".gitattributes").write_text("* filter=spy\n")
    (repository / "a" / "text.txt").write_text("two\n")
    subprocess.run(["git", "describe", "--always", "--dirty"], cwd=repository, capture_output=True)
    assert executed(tmp_path) == "" and (tmp_path / "executed").exists()  # the trap works
    (tmp_path / "executed").unlink()
    monkeypatch.chdir(repository)
    (repository / "stories.txt").write_text(stories(60))
    settings = {"text": {"files": ["stories.txt"]}, "out": "out"}
    weft.pretrain(None, {**settings, "model": {"family": "ngram", "order": 2}})
    about = json.loads(Path("out", "run", "run.json").read_text())
    assert len(about["git"]) == 40 and not (tmp_path / "executed").exists()
