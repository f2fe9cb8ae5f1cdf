"""Private by construction: no verb opens a socket or writes outside of its output, cache and temporary folders."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import typer

import weft
from tests.engines import need_engine
from tests.once import once
from tests.private.traces import Places, faults, need_strace, strace, traced
from tests.private.verbs import COMMANDS, MAY_REFUSE, write_inputs
from tests.tasks.small import model_for, vocabulary
from weft.cli.main import app, run

WEFT = str(Path(sys.executable).parent / "weft")
SECONDS = 20  # that a process lives on with ONNX Runtime in it: its telemetry looked up a host after nine
# `weft` in a process that stays alive for so long where a verb has loaded ONNX Runtime.
STAYING = f"""
import sys, time
from weft.cli.main import run
status = run(sys.argv[1:])
if "onnxruntime" in sys.modules:
    print("onnxruntime", file=sys.stderr)
    time.sleep({SECONDS})
sys.exit(status)
"""


# --------------------------------------------------------------------------------------------------------- the tracer


@pytest.mark.parametrize(
    ("code", "seen"),
    [
        ("import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM)", "AF_INET"),
        ("import socket; socket.socket(socket.AF_UNIX); socket.socketpair()", ""),
        ("open('HOME/file', 'w')", "file"),
        ("open('file', 'w')", "file"),
        ("import os; os.mkdir('folder')", "mkdir"),
        ("import os; os.open('TMP', os.O_TMPFILE | os.O_RDWR); os.open('WORK', os.O_TMPFILE | os.O_RDWR)", "O_TMPFILE"),
        ("import os; open('TMP/a', 'w'); os.rename('TMP/a', 'a')", "rename"),
        ("import os; open('TMP/a', 'w'); os.rename('TMP/a', 'TMP/b'); os.symlink('/etc', 'TMP/c')", ""),
        ("import os; os.chdir('TMP'); open('../started/a', 'w')", "../started/a"),
        ("import threading; threading.Thread(target=open, args=('a', 'a')).start()", '"a"'),
        ("import os; os.fork() or open('a', 'w')", '"a"'),
        ("import subprocess; subprocess.run(['true'])", "execve"),
        ("import os; open('/dev/null', 'w'); open('OUT/a', 'w'); os.listdir('HOME')", ""),
        ("import os; os.chmod('WORK', 0o755)", "chmod"),
    ],
)
def test_the_tracer_sees(code: str, seen: str, tmp_path: Path) -> None:
    need_strace()
    places = Places(tmp_path)
    names = {"HOME": places.home, "TMP": places.temporary, "OUT": places.out, "WORK": places.work}
    for name, path in names.items():
        code = code.replace(f"'{name}", f"'{path}")
    traced([sys.executable, "-ISc", code], places, check=True)
    found = faults(places)
    assert seen in "\n".join(found) if seen else not found, found


# ------------------------------------------------------------------------------------------------------ a quick look


def test_onnx_prediction_in_short(tmp_path: Path) -> None:
    """ONNX Runtime writes its database as soon as it is imported, so that a second is enough to see it."""
    need_strace()
    need_engine("onnx")
    weft.export(model_for("classify", 2, vocabulary(), ("a", "b")), "onnx", out=tmp_path / "model")
    places = Places(tmp_path / "traced")
    (places.work / "rows.csv").write_text("text\nthe cat\n")
    command = [WEFT, "predict", str(tmp_path / "model"), "--data", "rows.csv", "--out", str(places.out / "labels.csv")]
    done = traced(command, places)
    assert done.returncode == 0 and (places.out / "labels.csv").exists(), done.stderr
    assert faults(places) == []


def test_a_name_that_is_no_folder_is_not_looked_up(tmp_path: Path) -> None:
    """Without --online a model is a folder, or lies in the local Hugging Face cache."""
    need_strace()
    places = Places(tmp_path)
    done = traced([WEFT, "info", "somebody/model"], places)
    assert done.returncode == 2 and "to download it, pass --online" in done.stderr
    assert faults(places) == []


# ----------------------------------------------------------------------------------------------------------- every verb


def verbs(group: typer.Typer, before: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    """All verbs that are not another spelling of one."""
    names = set()
    for each in group.registered_commands:
        assert each.callback is not None
        if not each.hidden:
            names.add((*before, each.name or each.callback.__name__))
    for part in group.registered_groups:
        assert part.typer_instance is not None
        names |= verbs(part.typer_instance, (*before, part.name or ""))
    return names


def test_every_verb_is_traced() -> None:
    commands = {command[:2] for command in COMMANDS} | {command[:1] for command in COMMANDS}
    assert verbs(app) - {("serve",), ("top",)} <= commands  # which have tests of their own


LISTENING = re.compile(
    r"\d+\s+(?:<\.\.\. )?(?:socket\(AF_INET, SOCK_STREAM|(?:bind|getsockname|getpeername|accept4?)\b.*"
    r'sa_family=AF_INET, sin_port=htons\(\d+\), sin_addr=inet_addr\("127\.0\.0\.1"\))'
)


def test_a_server_listens_on_loopback_and_calls_nobody(tmp_path: Path) -> None:
    """The one verb with sockets: it takes connections of this machine, and opens none."""
    need_strace()
    pytest.importorskip("fastapi")
    model_for("classify", 2, vocabulary(), ("a", "b")).save(tmp_path / "model")
    places = Places(tmp_path / "traced")
    weft_here = [sys.executable, "-P", "-m", "weft"]
    command = [*strace(places.base / "trace.log"), *weft_here, "serve", str(tmp_path / "model"), "--port", "0"]
    environment = {**places.environment(), "PYTHONPATH": str(Path(weft.__file__).parents[1])}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=places.work, env=environment, **pipes) as child:  # type: ignore[call-overload]
        lines = iter(child.stdout.readline, "")
        address = next(line.split()[1] for line in lines if line.startswith("open http://127.0.0.1:"))
        body = json.dumps({"model": "model", "input": "the cat"}).encode()
        with urllib.request.urlopen(f"{address}/v1/classify", body, timeout=60) as reply:
            assert json.load(reply)["answers"][0]["label"] in "ab"
        (traced_process,) = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
        os.kill(int(traced_process), signal.SIGTERM)
        _, errors = child.communicate(timeout=60)
    assert child.returncode == 0, errors
    trace = (places.base / "trace.log").read_text(errors="replace")
    assert re.search(r'bind\(.*inet_addr\("127\.0\.0\.1"\)', trace)
    assert [line for line in faults(places) if not LISTENING.match(line)] == []


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What all the commands leave, each made before it is asked for."""

    def make(folder: Path) -> None:
        write_inputs(folder / "work")
        before = Path.cwd()
        os.chdir(folder / "work")
        try:
            for command in COMMANDS:
                if "--out" in command or command[:2] in (("arpa", "write"), ("vectors", "convert")):
                    run([f"{folder}/out{word}" if word.startswith("/") else word for word in command])
        finally:
            os.chdir(before)

    return once(tmp_path_factory, "verbs", make)


def moved(command: tuple[str, ...], models: Path, places: Places) -> list[str]:
    """A command that reads what was made before and writes into a folder of its own."""
    writes = {flag: command.index(flag) + 1 for flag in ("--out", "--live", "--plot") if flag in command}
    if command[:2] in (("arpa", "write"), ("vectors", "convert")):
        writes["last"] = len(command) - 1
    if command[0] == "resume":  # from the checkpoint before the last
        writes["run"] = 1
        shutil.copytree(models / f"out{command[1]}", f"{places.out}{command[1]}")
        newest = max((places.out / command[1][1:] / "run" / "checkpoints").glob("step-*"))
        shutil.rmtree(newest)
    folders = {place: places.out for place in writes.values()}
    return [
        f"{folders.get(place, models / 'out')}{word}" if word.startswith("/") else word
        for place, word in enumerate(command)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[:3]))
def test_no_verb_tells_anyone(command: tuple[str, ...], models: Path, tmp_path: Path) -> None:
    need_strace()
    need_engine("onnx")
    places = Places(tmp_path)
    shutil.copytree(models / "work", places.work, dirs_exist_ok=True)
    done = traced([sys.executable, "-P", "-c", STAYING, *moved(command, models, places)], places)
    assert done.returncode == 0 or (command[0] in MAY_REFUSE and done.returncode == 2), done.stderr
    assert faults(places) == []
    if "/onnx" in command or "onnx" in command or command[0] == "quantize":
        assert "onnxruntime" in done.stderr  # it was there, and for long enough


@pytest.mark.slow
def test_a_prediction_that_waits_for_its_input(models: Path, tmp_path: Path) -> None:
    """The command itself, fed by a slow pipe."""
    need_strace()
    need_engine("onnx")
    places = Places(tmp_path)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [*strace(tmp_path / "trace.log"), WEFT, "predict", str(models / "out" / "onnx")]
    with subprocess.Popen(command, cwd=places.work, env=places.environment(), **pipes) as child:  # type: ignore[call-overload]
        child.stdin.write("a lovely blanket\n")
        child.stdin.flush()
        assert child.stdout.readline()  # loaded, and the first is answered
        time.sleep(SECONDS)
        output, _ = child.communicate("a dull one\n", timeout=100)
    assert child.returncode == 0 and output.count("\n") == 1
    assert faults(places) == []


@pytest.mark.slow
def test_compiled_training(tmp_path: Path) -> None:
    """torch's compiler starts the compiler of the system, but its code stays in the cache, and no one else's is run."""
    need_strace()
    if shutil.which("g++") is None:
        pytest.skip("torch compiles for the CPU with g++")
    places = Places(tmp_path)
    write_inputs(places.work)
    command = ["pretrain", "--model", "gpt2", "--text", "weaver.txt", "--vocabulary", "300", "--size", "1x64"]
    command += ["--steps", "2", "--batch", "2", "--length", "32", "--compile", "--out", str(places.out / "model")]
    done = traced([WEFT, *command], places)
    assert done.returncode == 0, done.stderr
    assert [line for line in faults(places) if "execve(" not in line and 'mkdir("."' not in line] == []
    assert any((places.cache / "compiled").rglob("*.so")) and not list(places.temporary.iterdir())
