"""Processes that tests send signals to, and processes that need not wait for torch."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

# Loads what training needs once; its children are forked before anything has been done.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["weft.cli.training", "weft.runs.pretrain", "tests.children"])


def default_handlers() -> None:
    """A child inherits what its parent ignores, and a shell lets the jobs of a script's background ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def start_child(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """`subprocess.Popen` with the default handlers of signals."""
    return subprocess.Popen(command, preexec_fn=default_handlers, **options)


class ForkedChild:
    """Python code in a process that has torch loaded already, in the folder and environment of the test."""

    def __init__(self, code: str, argument: str) -> None:
        self.reader, writer = FORKS.Pipe(duplex=False)
        self.process = FORKS.Process(target=run, args=(code, argument, os.getcwd(), dict(os.environ), writer))
        self.process.start()
        writer.close()

    @property
    def pid(self) -> int | None:
        return self.process.pid

    @property
    def returncode(self) -> int | None:
        return self.process.exitcode

    def send_signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def ended(self, timeout: float = 180) -> str:
        """What it wrote, once it has ended."""
        self.process.join(timeout)
        assert self.process.exitcode is not None, "it does not end"
        with open(self.reader.fileno(), closefd=False) as output:
            return output.read()


def run(code: str, argument: str, folder: str, environment: dict[str, str], writer: Connection) -> None:
    """One child of the server."""
    default_handlers()
    os.chdir(Path(folder))
    os.environ.clear()
    os.environ.update(environment)
    for number in (1, 2):
        os.dup2(writer.fileno(), number)
    writer.close()
    sys.argv = ["-c", argument]
    exec(compile(code, "<child>", "exec"), {"__name__": "__main__"})
