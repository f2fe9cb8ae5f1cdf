"""The command line; `main` is what the command `weft` calls."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from types import FrameType

from weft.loading import collector_paused
from weft.startup import drop_working_folder


def interrupt(number: int, frame: FrameType | None) -> None:
    """Ctrl-C: leave at once where Python imports; libraries catch what is raised there, and nothing has begun yet."""
    call = frame
    while call is not None:
        if call.f_code.co_filename.startswith("<frozen importlib"):
            with suppress(OSError):  # of a terminal that was closed
                os.write(2, b"weft: interrupted\n")
            os._exit(128 + number)
        call = call.f_back
    signal.default_int_handler(number, frame)


def main() -> None:
    """Run the command line; Ctrl-C works from the first moment, while Python still imports."""
    try:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell may have it ignored
            signal.signal(signal.SIGINT, interrupt)
        drop_working_folder()
        with collector_paused():
            from weft.cli.ahead import begin

            begin(sys.argv[1:])
            from weft.cli.main import main as run

        sys.exit(run())
    except KeyboardInterrupt:
        print("weft: interrupted", file=sys.stderr)
        sys.exit(130)
