"""Words out of any model that speaks: it reads the prompts once, then takes one token per row and step.

B: rows; V: vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from weft.errors import UserError
from weft.generation.sampling import Sampling, choose
from weft.nn.rows import Ragged

Reason = Literal["end", "stop", "length", "context"]


class State(Protocol):
    """What a model remembers between two steps."""

    def pick(self, rows: Tensor) -> None:
        """Keep these rows, in this order; a row may be asked for more than once."""


class Speaker(Protocol):
    """A model that writes: GPT-2 and all that come after it."""

    def start(self, prompt: Ragged, source: Ragged | None = None, room: int = 0) -> tuple[Tensor, State]: ...

    def step(self, tokens: Tensor, state: State) -> Tensor: ...


@dataclass(frozen=True)
class Spoken:
    """What a model said after one prompt, and why it ended: `end` (its end token), `stop` (a stop string), `length` (as
    many tokens as were asked for) or `context` (no room left)."""

    tokens: list[int]
    finish_reason: Reason


@torch.inference_mode()
def speak(
    speaker: Speaker,
    prompts: Sequence[Sequence[int]],
    *,
    sampling: Sampling,
    seeds: Sequence[int],
    context: int,
    most: int | None = None,
    ends: Collection[int] = (),
    stopped: Callable[[int, list[int]], bool] | None = None,
    heard: Callable[[int], None] | None = None,
    device: torch.device | str = "cpu",
) -> list[Spoken]:
    """Continue each prompt until it ends by itself; `most` new tokens at most when that is said.

    `stopped` is asked after each token of a row whether its text holds a stop string; `heard` is told how many came.
    """
    for number, prompt in enumerate(prompts, 1):
        if not prompt:
            raise UserError(f"prompt {number} is empty, and this model has no token to start from")
        if len(prompt) > context:
            raise UserError(f"prompt {number} has {len(prompt)} tokens, more than the model's context of {context}")
    if most == 0 or not prompts:
        return [Spoken([], "length") for _ in prompts]
    said: list[list[int]] = [[] for _ in prompts]
    reasons: dict[int, Reason] = {}  # of the rows that are done
    for seed in seeds:
        if not 0 <= seed < 1 << 63:
            raise UserError(f"a seed must be between 0 and {(1 << 63) - 1}, not {seed}")
    chances = [torch.Generator().manual_seed(int(seed)) for seed in seeds]
    longest = max(map(len, prompts))
    room = context if most is None else min(context, longest + most)
    scores, state = speaker.start(Ragged.of(prompts, device), room=min(room, longest + 256))
    alive = list(range(len(prompts)))
    while True:
        tokens = choose(scores, sampling, [chances[row] for row in alive])
        for row, token in zip(alive, tokens.tolist(), strict=True):
            said[row].append(token)
            reason = _reason(row, said[row], len(prompts[row]), context, most, ends, stopped)
            if reason is not None:
                reasons[row] = reason
        if heard is not None:
            heard(len(alive))
        going = [place for place, row in enumerate(alive) if row not in reasons]
        if not going:
            return [Spoken(tokens, reasons[row]) for row, tokens in enumerate(said)]
        if len(going) < len(alive):  # rows that are done cost nothing more
            chosen = torch.tensor(going, device=device)
            state.pick(chosen)
            tokens = tokens[chosen]
            alive = [alive[place] for place in going]
        scores = speaker.step(tokens, state)


def _reason(
    row: int,
    said: list[int],
    prompt: int,
    context: int,
    most: int | None,
    ends: Collection[int],
    stopped: Callable[[int, list[int]], bool] | None,
) -> Reason | None:
    if said[-1] in ends:
        return "end"
    if stopped is not None and stopped(row, said):
        return "stop"
    if most is not None and len(said) >= most:
        return "length"
    return "context" if prompt + len(said) >= context else None
