"""Processes that tests send signals to."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from typing import Any


def start_child(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """`subprocess.Popen` with the default handlers of SIGINT and SIGTERM.

    A child inherits what its parent ignores, and a shell lets the jobs of a script's background ignore SIGINT.
    """

    def default_handlers() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)

    return subprocess.Popen(command, preexec_fn=default_handlers, **options)
