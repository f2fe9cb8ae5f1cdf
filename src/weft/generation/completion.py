"""What was generated, and what every way of searching for it needs to know.

B: rows; V: vocabulary; S: tokens of the longest source.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from weft.errors import NotFinite, UserError
from weft.generation.decoding import Decoding, TokenDecoder
from weft.generation.rules import LogitsProcessor
from weft.nn.rows import Source

Reason = Literal["end", "stop", "length", "context"]
Ranked = list[tuple[int, float]]  # tokens and their log-probabilities, best first
Advance = list[tuple[int, int | None]]  # rows that went on by a token, and which, where that is settled
COLUMNS = 16  # see `best_tokens`


@dataclass(frozen=True)
class Completion:
    """What was generated after one prompt, and why it ended: `end` (its end token), `stop` (a stop string, or no token
    that the rules allow), `length` (as many tokens as were asked for) or `context` (no room left)."""

    tokens: list[int]
    finish_reason: Reason
    score: float  # what answers are compared by: the log-probability by length, and what a beam adds
    logprob: float  # of all tokens together
    windows: int = 1  # how often the model read: more than once where its window slid
    logprobs: list[float] | None = None  # of each token
    alternatives: list[Ranked] | None = None  # at each token, the likeliest
    attention: Tensor | None = field(default=None, compare=False)  # tokens S: what of the source each came from


@dataclass(frozen=True)
class Detail:
    """What is kept of one token where that was asked for."""

    logprob: float
    alternatives: Ranked
    attention: Tensor | None  # S


@dataclass(frozen=True, kw_only=True)
class Request:
    """One call of `generate`: who speaks, after what, and when it is over."""

    decoder: TokenDecoder
    prompts: list[list[int]]
    sources: Sequence[Source] | None
    limits: list[int]  # tokens that each row may say
    limited: list[Reason]  # what that limit is called
    ends: Collection[int]
    processor: LogitsProcessor
    stopped: Callable[[int, list[int]], bool] | None
    context: int | None
    slide: bool
    alternatives: int | None
    attention: bool
    device: torch.device | str

    def decoding(self, room: int, attention: bool = False) -> Decoding:
        """Let the decoder read the prompts; `room`: for how many new tokens at once."""
        longest = max(map(len, self.prompts))
        room = longest + min(room, max(self.limits))
        decoding = Decoding(
            self.decoder,
            self.prompts,
            sources=self.sources,
            context=self.context,
            slide=self.slide,
            room=room if self.context is None else min(room, self.context),
            attention=attention or self.attention,
            device=self.device,
        )
        if self.attention and decoding.attention is None:
            raise UserError("this model looks at no source, so it has no alignments")
        return decoding

    def reason(self, row: int, generated: list[int]) -> Reason | None:
        """Why a row is over, None while it goes on."""
        if generated[-1] in self.ends:
            return "end"
        if self.stopped is not None and self.stopped(row, generated):
            return "stop"
        return self.limited[row] if len(generated) >= self.limits[row] else None

    @property
    def detailed(self) -> bool:
        return self.alternatives is not None or self.attention

    def ranked(self, logs: Tensor) -> list[Ranked]:
        """The likeliest tokens of each row, as many as were asked for: B V -> B lists."""
        if not self.alternatives:
            return [[] for _ in range(logs.shape[0])]
        values, tokens = logs.topk(min(self.alternatives, logs.shape[-1]))
        pairs = zip(tokens.tolist(), values.tolist(), strict=True)
        return [list(zip(some, chances, strict=True)) for some, chances in pairs]

    def detail(self, row: int, logprob: float, alternatives: Ranked, decoding: Decoding, place: int) -> Detail:
        """What is kept of a token that came from this place of the scores."""
        seen = decoding.attention if self.attention else None
        if seen is not None and self.sources is not None:
            seen = seen[place, : len(self.sources[row])]
        return Detail(logprob, alternatives, seen)

    def completion(
        self, tokens: list[int], reason: Reason, score: float, logprob: float, windows: int, details: list[Detail]
    ) -> Completion:
        """What was generated, with the details asked for."""
        seen = [detail.attention for detail in details if detail.attention is not None]
        return Completion(
            tokens,
            reason,
            score,
            logprob,
            windows,
            None if self.alternatives is None else [detail.logprob for detail in details],
            [detail.alternatives for detail in details] if self.alternatives else None,
            torch.stack(seen).cpu() if self.attention and seen else None,
        )


def check_scores(scores: Tensor) -> None:
    """Refuse the scores of next tokens where one is no number; minus infinity is a token that cannot come."""
    if bool((scores.isnan() | (scores == torch.inf)).any()):
        raise NotFinite()


def by_length(logprob: float, length: int, penalty: float) -> float:
    """A log-probability as it is compared with those of other lengths."""
    return logprob / max(length, 1) ** penalty


def best_tokens(scores: Tensor, count: int) -> Tensor:
    """B count: the best tokens of each row, best first.

    On the CPU the maximum of a stretch is far cheaper than its order: the best tokens can only be in the columns with
    the best maxima, so most of a large vocabulary is never put in order.
    """
    size = scores.shape[-1]
    wide = size // COLUMNS
    if scores.device.type != "cpu" or wide < 4 * count:
        return scores.topk(min(count, size)).indices
    even = wide * COLUMNS
    columns = scores[:, :even].view(-1, COLUMNS, wide).amax(1).topk(count).indices  # B count
    among = (columns[:, :, None] + wide * torch.arange(COLUMNS)).flatten(1)  # B count*COLUMNS
    if even < size:
        among = torch.cat((among, torch.arange(even, size).expand(len(among), -1)), 1)
    return among.gather(1, scores.gather(1, among).topk(count).indices)
