"""Language objectives: the next token, also with a carried state or from what an encoder read, and masked words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.data.masking import NOTHING
from weft.nn.heads import in_full
from weft.nn.recurrent import Carried
from weft.nn.rows import Batch
from weft.objectives.base import TOKENS, Objective, SoftTargets


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Summed over all labels but `NOTHING`; in float32, since a sum of many is too much for less."""
    logits = logits.float() if logits.dtype.itemsize < 4 else logits
    return F.cross_entropy(logits, labels, reduction="sum", ignore_index=NOTHING)


@dataclass(frozen=True)
class NextToken(Objective):
    """Each token predicts the next (GPT); with `soft`, as a teacher does, where a batch has its outputs."""

    heads: ClassVar[Mapping[str, int | None]] = {"words": None}
    soft: SoftTargets | None = field(default=None, kw_only=True)

    @property
    def terms(self) -> tuple[str, ...]:
        return ("words", "teacher") if self.soft else ("words",)

    def counts(self, batch: Batch) -> dict[str, int]:
        words = {"words": int((batch.targets["words"] != NOTHING).sum())}
        return {**words, "teacher": len(batch.targets[TOKENS])} if self.soft and TOKENS in batch.targets else words

    def sums(self, network: Any, batch: Batch) -> dict[str, Tensor]:
        logits = network.words(network(batch.tokens, batch.rows, batch.segments))
        loss = cross_entropy(logits, batch.targets["words"])
        if self.soft is None or TOKENS not in batch.targets:  # held-out text has no teacher outputs
            return {"words": loss}
        soft = self.soft.next_token(logits, batch.targets).sum()
        return {"words": self.soft.hard * loss, "teacher": (1 - self.soft.hard) * soft}


@dataclass(frozen=True)
class MaskedWords(Objective):
    """The words behind the masks (BERT); with `pairs`, also whether the second text of a pair follows the first."""

    pairs: bool = False

    @property
    def terms(self) -> tuple[str, ...]:
        return ("words", "pairs") if self.pairs else ("words",)

    @property
    def heads(self) -> Mapping[str, int | None]:
        return {"words": None, "next": 2} if self.pairs else {"words": None}

    def counts(self, batch: Batch) -> dict[str, int]:
        words = {"words": int((batch.targets["words"] != NOTHING).sum())}
        return {**words, "pairs": len(batch.targets["follows"])} if self.pairs else words

    def sums(self, network: Any, batch: Batch) -> dict[str, Tensor]:
        hidden = network(batch.tokens, batch.rows, batch.segments)
        # The table of all words is by far the largest matrix: it is read only at masks.
        sums = {"words": cross_entropy(network.words(hidden[batch.targets["places"]]), batch.targets["words"])}
        if self.pairs:
            sums["pairs"] = cross_entropy(network.logits("next", hidden, batch.rows), batch.targets["follows"])
        return sums


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


@dataclass(frozen=True)
class Writing(Objective):
    """The next token of what is written; a share of `smoothing` is asked of all tokens alike (Szegedy et al., 2016)."""

    terms: ClassVar[tuple[str, ...]] = ("words",)
    heads: ClassVar[Mapping[str, int | None]] = {"words": None}
    smoothing: float = 0.0

    def counts(self, batch: Batch) -> dict[str, int]:
        return {"words": int((batch.targets["words"] != NOTHING).sum())}

    def sums(self, network: Any, batch: Batch) -> dict[str, Tensor]:
        # How often a network is fed its own words grows with the steps, so it comes with the batch.
        own = {"own": batch.targets["own"]} if "own" in batch.targets else {}
        scores = network.words(network(batch.tokens, batch.rows, source=batch.source, **own))
        smoothing = self.smoothing if network.training else 0.0  # held-out losses are plain, to be compared by
        loss = F.cross_entropy(
            in_full(scores), batch.targets["words"], reduction="sum", ignore_index=NOTHING, label_smoothing=smoothing
        )
        return {"words": loss}
