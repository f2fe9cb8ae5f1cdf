"""Internal errors as lines of JSON on standard error: with the place in the code, without texts of clients."""

from __future__ import annotations

import json
import sys
import time
import traceback
from typing import Any

from weft.progress import to_stderr


def place_of(error: BaseException) -> list[str]:
    """The last calls of the traceback; the message is left out, since it may contain a client's text."""
    calls = traceback.extract_tb(error.__traceback__)[-6:]
    return [f"{call.filename.rpartition('/')[2]}:{call.lineno}" for call in calls]


def log(event: str, **values: Any) -> None:
    """Write one line of JSON to standard error."""
    to_stderr(json.dumps({"time": round(time.time(), 3), "event": event, **values}))
    if sys.stderr is not None:
        sys.stderr.flush()
