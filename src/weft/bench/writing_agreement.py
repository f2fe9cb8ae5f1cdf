"""The agreement gate for text generation: a backend is timed only if its output agrees with that of plain torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from weft.backends.choice import Backend
from weft.generation.generate import generate
from weft.generation.sampling import Rules, Sampling
from weft.generation.search import Beam, Completion
from weft.generation.text import Prompt
from weft.nn.linear import decoding
from weft.nn.rows import Ragged

TIED = 1e-3  # largest difference of two log-probabilities at which another token counts as a tie
NEAREST = 5  # likeliest tokens among which a tie may be
BEAM_LOSS = 0.01  # allowed loss of the mean score of a beam's answers: engines end their search by other rules

Write = Callable[[Sequence[Prompt]], list[list[int]]]  # generates tokens, as `WritingSettings` says
Score = Callable[[Sequence[Prompt], Sequence[list[int]]], list[float]]  # log-probabilities of completions


@dataclass(frozen=True)
class WritingSettings:
    """How text is generated."""

    choice: Sampling | Beam
    context: int
    max_tokens: int
    never: tuple[int, ...] = ()  # tokens that are never generated
    device: torch.device | str = "cpu"
    ends: tuple[int, ...] = ()  # none: no text ends early

    def run(self, decoder: Any, prompts: Sequence[Prompt], alternatives: int | None = None) -> list[Completion]:
        """The best completion of each prompt."""
        completions = generate(
            decoder,
            [list(prompt.tokens) for prompt in prompts],
            sources=sources_of(prompts),
            choice=self.choice,
            context=self.context,
            max_tokens=self.max_tokens,
            ends=self.ends,
            rules=Rules(banned=tuple((token,) for token in self.never)),
            alternatives=alternatives,
            device=self.device,
        )
        return [each[0] for each in completions]

    def write(self, decoder: Any) -> Write:
        return lambda prompts: [answer.tokens for answer in self.run(decoder, prompts)]


def sources_of(prompts: Sequence[Prompt]) -> list[Any] | None:
    return None if prompts[0].source is None else [prompt.source for prompt in prompts]


def writing_fault(
    writing: WritingSettings,
    network: Any,
    write: Write,
    score: Score | None,
    prompts: Sequence[Prompt],
    backend: Backend,
) -> str | None:
    """Why a backend may not be chosen; None if its output agrees with that of plain torch, within its limits.

    In float32 greedy search must give the same tokens, in a batch and alone, up to ties. In every precision the
    log-probabilities of torch's own completions must be the same.
    """
    own = replace(writing, choice=Sampling()).run(network, prompts, alternatives=NEAREST)
    if backend.precision == "fp32":
        alone = [write([prompt])[0] for prompt in prompts]
        for answers, how in ((write(prompts), "in a batch"), (alone, "alone")):
            for number, (one, tokens) in enumerate(zip(own, answers, strict=True), 1):
                if (place := parting(one, tokens)) is not None:
                    return f"writes another token {place + 1} after prompt {number} {how}"
    if score is not None:
        pairs = zip(own, score(prompts, [each.tokens for each in own]), strict=True)
        off = sum(abs(logprob - each.logprob) / max(1, len(each.tokens)) for each, logprob in pairs) / len(own)
        if not off <= backend.nats:
            return f"the log-probability of a token is off by {off:.2g} (limit {backend.nats:g})"
    return None


def beam_fault(
    writing: WritingSettings, network: Any, candidate: Any, prompts: Sequence[Prompt], limit: float
) -> str | None:
    """Why the answers of a beam search are not good enough; None if they score as well as torch's."""
    one, two = (writing.run(decoder, prompts) for decoder in (network, candidate))
    worse = sum(first.score - second.score for first, second in zip(one, two, strict=True)) / len(one)
    limit = max(limit, BEAM_LOSS)
    return None if worse <= limit else f"the answers of a beam score worse by {worse:.2g} (limit {limit:g})"


def parting(one: Completion, tokens: Sequence[int]) -> int | None:
    """The place of the first token that differs from torch's completion; None if there is none, or it is a tie."""
    assert one.logprobs is not None and one.alternatives is not None
    for place, (token, other) in enumerate(zip(one.tokens, tokens, strict=False)):
        if token != other:
            near = dict(one.alternatives[place]).get(other, -math.inf)
            return None if one.logprobs[place] - near <= TIED else place
    return None if len(one.tokens) == len(tokens) else min(len(one.tokens), len(tokens))


@torch.inference_mode()
def logprobs_of(decoder: Any, prompts: Sequence[Prompt], completions: Sequence[list[int]]) -> list[float]:
    """The log-probability of each completion after its prompt, computed by an engine or step by step."""
    tokens, sources = [list(prompt.tokens) for prompt in prompts], sources_of(prompts)
    if decoder.SEARCHES:
        return [float(each) for each in decoder.scored(tokens, sources, completions)]
    longest, totals = max(map(len, completions)), [0.0] * len(prompts)
    with decoding(fuse=True):
        source = None if sources is None else Ragged.of(sources)
        scores, state = decoder.start(Ragged.of(tokens), source, room=max(map(len, tokens)) + longest)
        for place in range(longest):
            latest = torch.tensor([own[min(place, len(own) - 1)] for own in completions])  # those that ended repeat
            logs = scores.log_softmax(-1).gather(1, latest[:, None]).squeeze(1).tolist()
            totals = [
                total + log if place < len(own) else total
                for total, log, own in zip(totals, logs, completions, strict=True)
            ]
            if place + 1 < longest:
                scores = decoder.step(latest, state)
    return totals
