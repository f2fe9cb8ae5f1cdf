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


class Memory:
    """The state of every stream, in tensors that stay where they are, so that CUDA graphs find them.

    The passes of a step read `before` and write `after`, and `settle` makes one of the other: a step that is done
    again, in smaller passes, begins where it began before.
    """

    def __init__(self, streams: int) -> None:
        self.streams = streams
        self.shape: list[int] = []  # parts of each layer
        self.before: list[Tensor] = []
        self.after: list[Tensor] = []

    def lay_out(self, network: Any) -> Memory:
        """Room on the network's device; nothing has been read yet."""
        state = network.beginning(self.streams)
        self.shape = [len(parts) for parts in state]
        self.before, self.after = ([part.clone() for parts in state for part in parts] for _ in range(2))
        return self

    def take(self, streams: Tensor) -> Carried:
        """What the rows of these streams begin with."""
        parts = iter([part.index_select(0, streams) for part in self.before])
        return Carried(tuple(tuple(next(parts) for _ in range(count)) for count in self.shape))

    def put(self, streams: Tensor, carried: Carried) -> None:
        """What they end with, for the next step."""
        assert carried.state is not None
        for part, new in zip(self.after, (part for parts in carried.state for part in parts), strict=True):
            part.index_copy_(0, streams, new.detach().to(part.dtype))

    def settle(self) -> None:
        """The step is done: the next begins where it ended."""
        torch._foreach_copy_(self.before, self.after)

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps: what the next step begins with; it writes `after` of every stream anew."""
        return {f"{number}": part for number, part in enumerate(self.before)}


@dataclass(frozen=True)
class CarriedToken(NextToken):
    """Each token says the next, and each row goes on where the one before it in its stream has ended."""

    memory: Memory

    def sums(self, network: Any, batch: Batch) -> dict[str, Tensor]:
        streams = batch.targets["streams"]
        carried = self.memory.take(streams)
        hidden = network(batch.tokens, batch.rows, batch.segments, carried=carried)
        self.memory.put(streams, carried)
        return {"words": cross_entropy(network.words(hidden), batch.targets["words"])}

    def anew(self, network: Any, streams: int) -> CarriedToken:
        """The same with a state of its own, for text that is only judged by: each pass goes on from the one before."""
        memory = Memory(streams).lay_out(network)
        memory.after = memory.before
        return CarriedToken(memory)
