"""What a teacher says of an example, in words that no tokenizer decides; and how a student learns from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from weft.checkpoint.folder import Opened
from weft.data.examples import Examples
from weft.data.pairs import Sequences
from weft.objectives.language import Objective
from weft.tasks.judging import Task
from weft.tasks.reading import Example
from weft.text.windows import Framing

Said = Mapping[str, NDArray[Any]]  # of one example: what is kept of it in the cache


class Lesson(Protocol):
    """One kind of task, taught."""

    @property
    def task(self) -> Task:
        """The task of the teacher, as its card says; the student gets the same labels, in the same order."""

    def said(self, teacher: Opened, framing: Framing, examples: Sequence[Example]) -> list[Said]:
        """What one teacher says of each example, by words and characters rather than by its own tokens."""

    def mean(self, found: Sequence[Said]) -> Said:
        """What several teachers say of one example together."""

    def table(
        self, examples: Sequence[Example], said: Sequence[Said], student: Opened, framing: Framing
    ) -> Examples | Sequences:
        """The examples as a source of batches, by the student's tokens, with what the teacher says of them."""

    @property
    def objective(self) -> Objective:
        """What the student learns by."""
