"""What models answer: frozen dataclasses that also say how much was read."""

from __future__ import annotations

from dataclasses import dataclass

from weft.generation.search import Reason


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What every answer says about its input."""

    n_tokens: int
    n_windows: int = 1
    truncated: bool = False


@dataclass(frozen=True, kw_only=True)
class Text(Answer):
    """Written text, and why it ended."""

    text: str
    tokens: tuple[int, ...]
    finish_reason: Reason


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One word for one gap."""

    word: str
    probability: float


@dataclass(frozen=True, kw_only=True)
class Words(Answer):
    """The likeliest words for each gap of a text, best first, and the text with the best ones filled in."""

    text: str
    gaps: tuple[tuple[Candidate, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Vector(Answer):
    """A text as numbers."""

    values: tuple[float, ...]
