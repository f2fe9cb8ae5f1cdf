"""What a process asks of the system, seen by strace: sockets, files it writes, programs it starts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

# Calls that change what a path names; `open` and its kin do so by their flags.
CHANGES = re.compile(
    r"(mkdir|rename|link|symlink|unlink|rmdir|mknod|chmod|fchmod|chown|lchown|fchown|truncate|creat|utime|utimes|"
    r"utimens|setxattr|lsetxattr|removexattr|lremovexattr|mount|umount|chroot)(at)?2?$"
)
WRITING = re.compile(r"O_(WRONLY|RDWR|CREAT|TRUNC|APPEND|TMPFILE)")
CALL = re.compile(r"^\d+\s+(\w+)\((.*)$")
PATH = re.compile(r'(?:(?:AT_FDCWD|\d+)<(?P<folder>[^>]*)>, )?"(?P<path>(?:[^"\\]|\\.)*)"')
# Devices, and the semaphores that joblib tries out when scikit-learn is imported: nothing that stays on a disk.
HARMLESS = re.compile(r"/dev/(null|tty|shm/sem\.\w[\w.-]*)$")


@dataclass(frozen=True)
class Places:
    """The only folders that a traced process has to do with; `home` must stay as it is."""

    base: Path

    def __post_init__(self) -> None:
        for folder in (self.home, self.work, self.out, self.cache, self.temporary):
            folder.mkdir(parents=True, exist_ok=True)

    home = property(lambda self: self.base / "home")
    work = property(lambda self: self.base / "started")
    out = property(lambda self: self.base / "out")
    cache = property(lambda self: self.base / "cache")
    temporary = property(lambda self: self.base / "tmp")

    def environment(self) -> dict[str, str]:
        """As little as a user has: on a machine for tests (CI=true) ONNX Runtime would be silent by itself."""
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "TMPDIR": str(self.temporary),
            "WEFT_CACHE": str(self.cache),
            "LANG": "C.UTF-8",
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",  # Python may keep what it has compiled beside the sources
        }


@cache
def _can_trace() -> bool:
    command = ["strace", "-f", "--seccomp-bpf", "-qq", "-o", os.devnull, "true"]
    return shutil.which("strace") is not None and subprocess.run(command, capture_output=True).returncode == 0


def need_strace() -> None:
    """Skip a test where there is no strace, or no process may watch another."""
    if not _can_trace():
        pytest.skip("strace is not installed or not allowed here")


def strace(log: Path) -> list[str]:
    """The beginning of a command that is watched with all its children and threads."""
    return ["strace", "-f", "-y", "-qq", "--seccomp-bpf", "-o", str(log), "-e", "trace=%network,%file"]


def traced(command: Sequence[str], places: Places, **options: object) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; the trace is in `trace.log` of the base folder."""
    whole = [*strace(places.base / "trace.log"), *command]
    run = {"capture_output": True, "text": True, "timeout": 600, **options}
    return subprocess.run(whole, cwd=places.work, env=places.environment(), **run)  # type: ignore[call-overload, no-any-return]


def faults(places: Places) -> list[str]:
    """Calls that no private program makes: sockets to elsewhere, files outside of its folders, other programs."""
    lines = (places.base / "trace.log").read_text(errors="replace").splitlines()
    found = [line for line in lines if _leaves(line) or any(True for _ in _changed(line, places))]
    found += [line for line in lines if re.match(r"\d+\s+execve\(", line) and not _is_expected(line)]
    left = [f"left in the home: {path}" for path in places.home.rglob("*")]
    return [*dict.fromkeys(found), *left]


def _leaves(line: str) -> bool:
    """A socket of any kind but AF_UNIX, or an address of another family."""
    socket = re.match(r"\d+\s+socket\((\w+)", line)
    address = re.match(r"\d+\s+(?!execve).*\{sa_family=(\w+)", line)
    return any(match is not None and match[1] != "AF_UNIX" for match in (socket, address))


def _changed(line: str, places: Places) -> Iterator[Path]:
    """The paths that a call would change although they are none of its business; whether it may does not matter."""
    call = CALL.match(line)
    if call is None:
        return
    name, arguments = call.groups()
    opens = name.startswith("open") and WRITING.search(arguments)
    if not opens and not CHANGES.match(name):
        return
    paths = list(PATH.finditer(arguments))
    for match in paths[-1:] if "symlink" in name else paths:  # what a link says is no path that changes
        path = Path(os.path.normpath(Path(match["folder"] or places.work, match["path"])))
        inside = any(path.is_relative_to(folder) for folder in (places.out, places.cache, places.temporary))
        if not inside and not HARMLESS.match(str(path)):
            yield path


def _is_expected(line: str) -> bool:
    """The program that is traced, or a child: `weft`, Python itself, and fc-list, by which matplotlib finds fonts."""
    program = re.search(r'\bexecve\("([^"]*)"', line)
    names = (os.path.basename(sys.executable), os.path.basename(os.path.realpath(sys.executable)), "weft")
    # What is not there is not started.
    return program is not None and (os.path.basename(program[1]) in (*names, "fc-list") or "ENOENT" in line)
