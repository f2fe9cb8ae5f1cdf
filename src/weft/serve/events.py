"""What went wrong inside, as lines of JSON on standard error: where in the code, and no text of a client."""

from __future__ import annotations

import json
import sys
import time
import traceback
from typing import Any

from weft.progress import to_stderr


def place_of(error: BaseException) -> list[str]:
    """Where in the code it happened; the message may hold a client's text, so it is not kept."""
    calls = traceback.extract_tb(error.__traceback__)[-6:]
    return [f"{call.filename.rpartition('/')[2]}:{call.lineno}" for call in calls]


def log(event: str, **values: Any) -> None:
    """One line of JSON on standard error."""
    to_stderr(json.dumps({"time": round(time.time(), 3), "event": event, **values}))
    if sys.stderr is not None:
        sys.stderr.flush()
