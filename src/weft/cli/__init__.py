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
    except (KeyboardInterrupt, RuntimeError) as error:
        # Python 3.11 wraps an interrupt that strikes while a class is made in a RuntimeError.
        if not isinstance(error, KeyboardInterrupt) and not isinstance(error.__cause__, KeyboardInterrupt):
            raise
        print("weft: interrupted", file=sys.stderr)
        sys.exit(130)
