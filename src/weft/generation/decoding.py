"""What a model offers that generates, what every search needs to know, and what was generated.

B: rows; V: vocabulary; S: tokens of the longest source.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from weft.errors import NotFinite, UserError, listed
from weft.generation.sampling import LogitsProcessor
from weft.nn.rows import DecoderState, Ragged, Source


class TokenDecoder(Protocol):
    """A model that generates: n-gram, recurrent, GPT-2, T5, all of them. Its scores are logits, B V."""

    SEARCHES: bool  # whether it has `search`, and generates by itself

    def start(
        self, prompt: Ragged, source: Ragged | None = None, room: int = 0, attention: bool = False
    ) -> tuple[Tensor, Any]: ...

    def step(self, tokens: Tensor, state: Any) -> Tensor: ...


class Ensemble:
    """Several decoders with one vocabulary that generate as one: the mean of their probabilities at every step."""

    SEARCHES = False

    def __init__(self, decoders: Sequence[TokenDecoder]) -> None:
        if not decoders:
            raise UserError("an ensemble needs at least one model")
        self.decoders = list(decoders)

    def start(
        self, prompt: Ragged, source: Ragged | None = None, room: int = 0, attention: bool = False
    ) -> tuple[Tensor, EnsembleState]:
        """Let every decoder read the prompts."""
        read = [decoder.start(prompt, source, room=room, attention=attention) for decoder in self.decoders]
        sizes = {scores.shape[-1] for scores, _ in read}
        if len(sizes) > 1:
            raise UserError(f"models of an ensemble need one vocabulary, not {listed(map(str, sorted(sizes)))} tokens")
        return mean_probabilities([scores for scores, _ in read]), EnsembleState([state for _, state in read])

    def step(self, tokens: Tensor, state: EnsembleState) -> Tensor:
        """Let every decoder take in one token per row."""
        pairs = zip(self.decoders, state.states, strict=True)
        return mean_probabilities([decoder.step(tokens, own) for decoder, own in pairs])


class EnsembleState(DecoderState):
    """What the decoders of an ensemble remember."""

    def __init__(self, states: list[Any]) -> None:
        self.states = states

    def pick(self, rows: Tensor) -> None:
        """Keep these rows in every state."""
        for state in self.states:
            state.pick(rows)

    @property
    def attention(self) -> Tensor | None:
        """B S: the mean over the decoders that look at the source."""
        seen = [state.attention for state in self.states if state.attention is not None]
        return torch.stack(seen).mean(0) if seen else None


def mean_probabilities(scores: list[Tensor]) -> Tensor:
    """B V: the logarithm of the mean of several probabilities; the logits themselves where there is one decoder."""
    if len(scores) == 1:
        return scores[0]
    return torch.stack([each.log_softmax(-1) for each in scores]).logsumexp(0) - math.log(len(scores))


class Decoding:
    """A decoder on its way through some rows: the scores of each row's next token, and one step at a time.

    With `slide` a text may outgrow the context: the model then reads its last part anew, and `windows` counts that.
    """

    def __init__(
        self,
        decoder: TokenDecoder,
        prompts: Sequence[Sequence[int]],
        *,
        sources: Sequence[Source] | None = None,
        context: int | None = None,
        slide: bool = False,
        room: int = 0,
        attention: bool = False,
        device: torch.device | str = "cpu",
    ) -> None:
        self.decoder, self.device = decoder, device
        self.context = context if slide else None
        self.options: dict[str, Any] = {"room": room, "attention": attention}
        self.begins = [0 if self.context is None else max(0, len(prompt) - self.context) for prompt in prompts]
        self.lengths = [len(prompt) - begin for prompt, begin in zip(prompts, self.begins, strict=True)]
        self.windows = [1] * len(prompts)
        windows = [prompt[begin:] for prompt, begin in zip(prompts, self.begins, strict=True)]
        source = None if sources is None else Ragged.of(sources, device)
        self.scores, self.state = decoder.start(Ragged.of(windows, device), source, **self.options)

    @property
    def attention(self) -> Tensor | None:
        return self.state.attention

    def pick(self, rows: Sequence[int]) -> None:
        """Keep these rows, with their scores; a row may be asked for more than once."""
        if self._keep(rows):
            chosen = torch.tensor(rows, device=self.device)
            self.state.pick(chosen)
            self.scores = self.scores.index_select(0, chosen)

    def advance(self, rows: Sequence[int], prompts: Sequence[list[int]], generated: Sequence[list[int]]) -> None:
        """Continue these rows, each with the latest token that it has generated after its prompt."""
        changed = self._keep(rows)
        if self.context is not None and max(self.lengths) >= self.context:
            self._read_anew([[*prompt, *own] for prompt, own in zip(prompts, generated, strict=True)])
            return
        if changed:
            self.state.pick(torch.tensor(rows, device=self.device))
        self.lengths = [length + 1 for length in self.lengths] if self.context is not None else self.lengths
        latest = torch.tensor([own[-1] for own in generated], device=self.device)
        self.scores = self.decoder.step(latest, self.state)

    def _keep(self, rows: Sequence[int]) -> bool:
        """Whether anything changes when these rows are kept."""
        if len(rows) == len(self.begins) and all(place == row for place, row in enumerate(rows)):
            return False
        self.begins = [self.begins[row] for row in rows]
        self.lengths = [self.lengths[row] for row in rows]
        self.windows = [self.windows[row] for row in rows]
        return True

    def _read_anew(self, texts: list[list[int]]) -> None:
        """Rows whose context is full keep its later half; the others are read again as they are."""
        assert self.context is not None
        for row, text in enumerate(texts):
            if len(text) - self.begins[row] > self.context:
                self.begins[row] = len(text) - max(1, self.context // 2)
                self.windows[row] += 1
        windows = [text[begin:] for text, begin in zip(texts, self.begins, strict=True)]
        self.lengths = [len(window) for window in windows]
        self.scores, self.state = self.decoder.start(Ragged.of(windows, self.device), None, **self.options)


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
