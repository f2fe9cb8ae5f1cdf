"""Recurrent decoders that look at what was read: the ways to compare, and what they keep between two steps.

B: rows; T, S: places written and read; W: width; M: width of what is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from weft.nn.recurrent import State
from weft.nn.rows import DecoderState

Comparing = Literal["additive", "dot", "general"]


def shares(scores: Tensor, may: Tensor) -> Tensor:
    """Scores ... S -> how much is looked at each place: it adds up to 1 over those that may be, and is 0 elsewhere.

    A row with nothing to look at looks nowhere: with -inf in place of the least number its shares would be NaN.
    """
    return scores.masked_fill(~may, torch.finfo(scores.dtype).min).softmax(-1) * may


class Looking(nn.Module):
    """How a state is compared with what was read: additive (Bahdanau et al., 2015), dot, general (Luong et al.)."""

    def __init__(self, kind: Comparing, width: int, inputs: int) -> None:
        super().__init__()
        self.key = None if kind == "dot" else nn.Linear(inputs, width, bias=kind == "additive")
        self.query = nn.Linear(width, width, bias=False) if kind == "additive" else None
        self.score = nn.Linear(width, 1, bias=False) if kind == "additive" else None

    def keys(self, values: Tensor) -> Tensor:
        """What states are compared with, worked out once for all of them: B S inputs -> B S width"""
        return values if self.key is None else self.key(values)

    def forward(self, states: Tensor, keys: Tensor, may: Tensor) -> Tensor:
        """States B T width, keys B S width, may B S -> shares B T S"""
        if self.query is None or self.score is None:
            scores = states @ keys.transpose(1, 2)
        else:
            scores = self.score((self.query(states)[:, :, None] + keys[:, None]).tanh()).squeeze(-1)  # B T S
        return shares(scores, may[:, None])


@dataclass
class SourceMemory:
    """What the decoder knows of what was read."""

    state: State  # what it begins with
    may: Tensor  # B S bool: places that hold a token
    values: Tensor | None  # B S M: what is looked at
    keys: Tensor | None  # B S W: what states are compared with


@dataclass(frozen=True)
class DecoderPlace:
    """What one place leaves to the next."""

    state: State
    output: Tensor  # B W: what the word head reads
    shares: Tensor | None = None  # B S: how much each place of the source was looked at for it

    def picked(self, rows: Tensor) -> DecoderPlace:
        """Keep these rows, in this order."""
        state = tuple(tuple(part.index_select(0, rows) for part in parts) for parts in self.state)
        shares = None if self.shares is None else self.shares.index_select(0, rows)
        return DecoderPlace(state, self.output.index_select(0, rows), shares)

    def where(self, more: Tensor, before: DecoderPlace) -> DecoderPlace:
        """Rows that have ended (B: not `more`) stay as they were."""
        more = more[:, None]
        state = tuple(
            tuple(torch.where(more, new, old) for new, old in zip(*parts, strict=True))
            for parts in zip(self.state, before.state, strict=True)
        )
        shares = self.shares
        if shares is not None and before.shares is not None:
            shares = torch.where(more, shares, before.shares)
        return DecoderPlace(state, torch.where(more, self.output, before.output), shares)


class RecurrentDecoderState(DecoderState):
    """The state between two steps of writing."""

    def __init__(self, memory: SourceMemory, place: DecoderPlace, wanted: bool) -> None:
        self.memory, self.place, self.wanted = memory, place, wanted
        self.sources = torch.arange(len(memory.may), device=memory.may.device)  # B: which source each row reads

    @property
    def attention(self) -> Tensor | None:
        return self.place.shares.float() if self.wanted and self.place.shares is not None else None

    def pick(self, rows: Tensor) -> None:
        """Keep these rows, in this order; a row may be asked for more than once."""
        self.place = self.place.picked(rows)
        sources = self.sources.index_select(0, rows)
        if not torch.equal(sources, self.sources):  # what was read is large: rows that only change places leave it
            m = self.memory
            values, keys = (None if x is None else x.index_select(0, rows) for x in (m.values, m.keys))
            self.memory = SourceMemory((), m.may.index_select(0, rows), values, keys)
            self.sources = sources
