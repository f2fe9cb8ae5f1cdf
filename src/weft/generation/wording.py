"""What a model has written. It imports no torch: answers hold it, also those of a model that another engine runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Reason = Literal["end", "stop", "length", "context"]


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One token of a written text, and what else might have stood there, best first."""

    token: int
    text: str  # as it stands in the vocabulary
    logprob: float
    alternatives: tuple[Piece, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Wording:
    """A text that a model wrote, and why it ended; `score` is its log-probability by length, as the search has it."""

    text: str
    score: float
    logprob: float
    finish_reason: Reason


@dataclass(frozen=True, kw_only=True)
class Written(Wording):
    """The same with its tokens."""

    tokens: tuple[int, ...]
    pieces: tuple[Piece, ...] | None = None  # on request
    alignment: tuple[tuple[float, ...], ...] | None = None  # on request: for each token, the part of each source token
