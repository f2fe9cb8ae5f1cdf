"""What a teacher says of an example, in words that no tokenizer decides; and how a student learns from it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from weft.checkpoint.folder import LoadedModel
from weft.data.examples import Examples
from weft.data.pairs import Sequences
from weft.objectives.base import Objective
from weft.tasks.base import Example, Task
from weft.text.windows import Framing

# Of one example: arrays by name, of at least one dimension each. What is kept of it in the cache; a name that an
# example lacks comes back as an empty array where others of its shard have it.
Said = Mapping[str, NDArray[Any]]


class Lesson(ABC):
    """One kind of task, taught; whoever writes one inherits what is usual from here."""

    task: Task  # of the teacher, as its card says; the student gets the same labels, in the same order

    @abstractmethod
    def said(self, teacher: LoadedModel, framing: Framing, examples: Sequence[Example]) -> list[Said]:
        """What one teacher says of each example, by words and characters rather than by its own tokens."""

    @abstractmethod
    def mean(self, found: Sequence[Said]) -> Said:
        """What several teachers say of one example together."""

    @abstractmethod
    def table(
        self, examples: Sequence[Example], said: Sequence[Said], student: LoadedModel, framing: Framing
    ) -> Examples | Sequences:
        """The examples as a source of batches, by the student's tokens, with what the teacher says of them."""

    @property
    @abstractmethod
    def objective(self) -> Objective:
        """What the student learns by."""

    @abstractmethod
    def answered(self, example: Example, said: Said) -> Example:
        """The example with the teacher's answer for its target: to be judged by where nobody knows the right one."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """What decides what a teacher says beside its folder and the examples: the cache is named by it."""
        return {}

    def asked(self, example: Example) -> Any:
        """What of an example decides what a teacher says of it, as JSON has it: the cache is named by it."""
        return example.texts

    def settled(self, examples: Sequence[Example], said: Sequence[Said]) -> Self:
        """The lesson with what its material decides, such as the middle and spread of values."""
        return self

    def texts(self, examples: Sequence[Example], heard: Callable[[], Sequence[Said]]) -> Iterator[str]:
        """What a vocabulary is learned from; `heard` lets the teacher speak, which may take long."""
        return (text for example in examples for text in example.texts)

    @property
    def as_one(self) -> bool:
        """Whether several teachers speak with one voice, so that the first alone is asked, and knows the others."""
        return False

    def same(self, other: LoadedModel, name: str) -> bool:
        """Whether a further teacher says the same things."""
        return (other.card.labels or ()) == self.task.labels


def stacked(said: Sequence[Said], name: str) -> NDArray[Any]:
    """E ...: what is said of every example under one name, where all have the same shape."""
    first = np.asarray(said[0][name])
    found = np.empty((len(said), *first.shape), dtype=first.dtype)
    for number in range(len(said)):
        found[number] = said[number][name]
    return found
