"""Truncated backpropagation through time: each row begins with the state in which the row before it ended.

Gradients stop where a row begins (Williams and Peng, 1990); what was read does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from weft.nn.recurrent import Carried
from weft.nn.rows import Batch
from weft.objectives.language import NextToken, cross_entropy


class StreamStates:
    """The state of every stream, in tensors that stay where they are, so that CUDA graphs find them.

    The passes of a step read `before` and write `after`, and `settle` makes one of the other: a step that is done
    again, in smaller passes, begins where it began before.
    """

    def __init__(self, streams: int) -> None:
        self.streams = streams
        self.shape: list[int] = []  # parts of each layer
        self.before: list[Tensor] = []
        self.after: list[Tensor] = []

    def lay_out(self, network: Any) -> StreamStates:
        """Room on the network's device; nothing has been read yet."""
        state = network.beginning(self.streams)
        self.shape = [len(parts) for parts in state]
        self.before, self.after = ([part.clone() for parts in state for part in parts] for _ in range(2))
        return self

    def take(self, streams: Tensor) -> Carried:
        """The states that the rows of these streams begin with."""
        parts = iter([part.index_select(0, streams) for part in self.before])
        return Carried(tuple(tuple(next(parts) for _ in range(count)) for count in self.shape))

    def put(self, streams: Tensor, carried: Carried) -> None:
        """The states that they end with, for the next step."""
        assert carried.state is not None
        for part, new in zip(self.after, (part for parts in carried.state for part in parts), strict=True):
            part.index_copy_(0, streams, new.detach().to(part.dtype))

    def settle(self) -> None:
        """The step is done: the next begins where it ended."""
        torch._foreach_copy_(self.before, self.after)


@dataclass(frozen=True)
class CarriedToken(NextToken):
    """Predict the next token; each row goes on where the one before it in its stream has ended."""

    states: StreamStates

    def sums(self, network: Any, batch: Batch) -> dict[str, Tensor]:
        streams = batch.targets["streams"]
        carried = self.states.take(streams)
        hidden = network(batch.tokens, batch.rows, batch.segments, carried=carried)
        self.states.put(streams, carried)
        return {"words": cross_entropy(network.words(hidden), batch.targets["words"])}

    def carried(self, network: Any) -> dict[str, Tensor]:
        """What the next step begins with; it writes `after` of every stream anew."""
        return {f"{number}": part for number, part in enumerate(self.states.lay_out(network).before)}

    def settle(self) -> None:
        self.states.settle()

    def for_evaluation(self, network: Any, source: Any) -> CarriedToken:
        """Each pass goes on from the one before."""
        states = StreamStates(source.streams).lay_out(network)
        states.after = states.before
        return CarriedToken(states)
