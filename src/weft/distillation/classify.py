"""Labels and values of whole texts and pairs, taught: the scores of a teacher, mixed with right labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.checkpoint.folder import LoadedModel
from weft.data.examples import Examples, ExamplesBuilder
from weft.data.masking import NOTHING
from weft.distillation.base import Lesson, Said, stacked
from weft.objectives.soft import SoftTargets
from weft.objectives.tasks import LOGITS, Texts
from weft.tasks.base import Example, Prediction
from weft.tasks.classify import TextTask
from weft.tasks.forward import pieces_in, tokenizer_of
from weft.text.windows import Framing


@dataclass(frozen=True)
class TextLesson(Lesson):
    """Of each text: the teacher's scores before they become chances, or its value as people write it."""

    task: TextTask
    temperature: float = 1.0
    hard: float = 0.0  # how much a right label counts beside the teacher

    @property
    def objective(self) -> Texts:
        return Texts(self.task.kind, self.task.outputs, soft=SoftTargets(self.temperature, self.hard))

    def said(self, teacher: LoadedModel, framing: Framing, examples: Sequence[Example]) -> list[Said]:
        # The teacher's own task: what the student's says of the middle of values is none of its business.
        plain = replace(self.task, center=0.0, spread=1.0)
        found = plain.predict(teacher, framing, [example.texts for example in examples])
        return [{"scores": np.asarray(each.output, dtype=np.float32)} for each in found]

    def mean(self, found: Sequence[Said]) -> Said:
        outcomes = [Prediction(each["scores"].astype(np.float64), 0, 0, False) for each in found]
        return {"scores": np.asarray(self.task.combine(outcomes).output, dtype=np.float32)}

    def answered(self, example: Example, said: Said) -> Example:
        answer: Any = self.task.answer(Prediction(said["scores"].astype(np.float64), 0, 0, False))
        kind = self.task.kind
        return replace(example, target=getattr(answer, kind))

    def same(self, other: LoadedModel, name: str) -> bool:
        found = TextTask.from_model(other, name)
        return (found.labels, found.kind) == (self.task.labels, self.task.kind)

    def settled(self, examples: Sequence[Example], said: Sequence[Said]) -> TextLesson:
        """With the middle and spread of what the teacher says, where that is a value; no hard loss without labels."""
        hard = self.hard if any(example.target is not None for example in examples) else 0.0
        if self.task.kind != "value":
            return replace(self, hard=hard)
        values = stacked(said, "scores").astype(np.float64)
        # A teacher that says one value of all is a poor one; but its student can still learn that.
        task = replace(self.task, center=float(values.mean()), spread=float(values.std()) or 1.0)
        return replace(self, hard=hard, task=task)

    def table(
        self, examples: Sequence[Example], said: Sequence[Said], student: LoadedModel, framing: Framing
    ) -> Examples:
        scores = stacked(said, "scores")
        if self.task.kind == "value":
            scores = ((scores - self.task.center) / self.task.spread).astype(np.float32)
        gathering = ExamplesBuilder()
        for found in pieces_in(framing, tokenizer_of(student), [example.texts for example in examples]):
            gathering.add(found[0])
        labeled = np.array([example.target is not None for example in examples], dtype=np.float32)
        whole: dict[str, NDArray[Any]] = {LOGITS: scores, "importance": np.ones(len(examples), dtype=np.float32)}
        if self.hard:
            whole |= {"labeled": labeled, "target": self._targets(examples, labeled > 0)}
        return gathering.examples(whole, segments=framing.segments and self.task.pair)

    def _targets(self, examples: Sequence[Example], labeled: NDArray[np.bool_]) -> NDArray[Any]:
        """What is right where it is known, and nothing, or no value, elsewhere."""
        there = self.task.targets([example for example in examples if example.target is not None])
        found = np.full((len(examples), *there.shape[1:]), 0 if there.dtype.kind == "f" else NOTHING, dtype=there.dtype)
        found[labeled] = there
        return found
