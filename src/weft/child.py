"""The one way to start a child process: Python, with Weft as it runs here and no code from the working folder."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from weft.startup import PACKAGE_ROOT

# -c and -m put the working folder first on sys.path unless -P or -I is given, and then a torch.py there is executed.
_FIND_WEFT = "import sys; root = sys.argv.pop(1); root in sys.path or sys.path.insert(0, root)"
COMMAND_LINE = "from weft.cli import main; main()"  # the code of a child that is `weft ...`


def start_child(code: str, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    """Start Python code that may import Weft, in a process of its own; options as for `subprocess.Popen`."""
    flags = ["-I"] if sys.flags.isolated else ["-P"]
    command = [sys.executable, *flags, "-c", f"{_FIND_WEFT}; {code}", PACKAGE_ROOT, *arguments]
    return subprocess.Popen(command, env=child_environment(), **options)


def child_environment() -> dict[str, str]:
    """The environment of a child: an empty entry of PYTHONPATH, which means the working folder, is left out."""
    path = os.pathsep.join(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    rest = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**rest, "PYTHONPATH": path} if path else rest
