"""Prompts that wait for their completions."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from weft.generation.search import Completion, Detail, Request
from weft.generation.wording import Reason


@dataclass(eq=False)
class PendingText:
    """One prompt: the tokens generated so far, and at the end its completions or the error."""

    request: Request
    options: dict[str, Any]
    asked: float = field(default_factory=time.perf_counter)
    entered: float | None = None  # when its first tokens were read
    tokens: list[list[int]] = field(default_factory=list)  # of each sample so far; empty for a beam
    details: list[list[Detail]] = field(default_factory=list)  # of each token, if log-probabilities are wanted
    reasons: list[Reason | None] = field(default_factory=list)  # of samples that have ended
    completions: list[Completion] | None = None
    error: Exception | None = None
    cancelled: bool = False
    in_rows: bool = False  # tokens and details are known as they come: in rows, or in slots
    scores_prompt: bool = False
    prompt_details: list[Detail] = field(default_factory=list)  # of each token of the prompt but the first

    @property
    def over(self) -> bool:
        return self.completions is not None or self.error is not None or self.cancelled


def alike(one: Request, other: Request) -> bool:
    """Whether two requests can be joined into one with both prompts."""
    names = ("choice", "rules", "ends", "alternatives", "attention", "slide", "context")
    typed = any(one.typed) or any(other.typed)
    return not typed and all(getattr(one, name) == getattr(other, name) for name in names)
