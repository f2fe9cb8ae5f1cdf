"""Generated texts. It imports no torch, since answers of models without torch contain them too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Reason = Literal["end", "stop", "length", "context"]


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One token of a generated text, and its likeliest alternatives, best first."""

    token: int
    text: str  # as in the vocabulary
    logprob: float
    alternatives: tuple[Piece, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Wording:
    """A generated text, and why it ended; `score` is its log-probability with the length penalty of the search."""

    text: str
    score: float
    logprob: float
    finish_reason: Reason


@dataclass(frozen=True, kw_only=True)
class Written(Wording):
    """A generated text with its tokens."""

    tokens: tuple[int, ...]
    pieces: tuple[Piece, ...] | None = None  # on request
    alignment: tuple[tuple[float, ...], ...] | None = None  # on request: for each token, the share of each source token
