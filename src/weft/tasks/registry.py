"""The tasks by name. It imports no torch: the command line asks it before a verb runs."""

from __future__ import annotations

FROM_TEXT = ("translate", "summarize", "rewrite")  # tasks that write a text from another
WRITES = (*FROM_TEXT, "describe")  # and those that write one from a vector
