"""What a model offers that generates: it reads the prompts once, then takes one token per row and step.

B: rows; V: vocabulary; S: tokens of the longest source.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from weft.errors import UserError, listed
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
