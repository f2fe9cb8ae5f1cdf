"""The command line; `main` is what the command `weft` calls."""

from __future__ import annotations

import sys

from weft.startup import drop_working_folder


def main() -> None:
    """Run the command line; Ctrl-C works from the first moment, while Python still imports."""
    try:
        drop_working_folder()
        from weft.cli.main import main as run

        sys.exit(run())
    except KeyboardInterrupt:
        print("weft: interrupted", file=sys.stderr)
        sys.exit(130)
