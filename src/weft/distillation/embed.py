"""Texts as vectors, taught: the student's vectors lie to each other as the teacher's do.

Where the student's vectors are shorter than the teacher's, it learns those turned and cut so that as much as possible
of all products between texts is left: the main directions of what the teacher says (Eckart and Young, 1936). So nothing
has to be learned beside the student and left out of its folder; and what is learned of a text does not depend on which
others come in its batch, as it would if the student had to match the cosines inside of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from weft.checkpoint.folder import LoadedModel
from weft.data.examples import Examples, ExamplesBuilder
from weft.distillation.base import Lesson, Said, stacked
from weft.errors import UserError
from weft.objectives.tasks import TextVectors
from weft.tasks.base import Example
from weft.tasks.embed import Embedder, EmbedTask
from weft.tasks.forward import tokenizer_of
from weft.text.windows import Framing, pieces

TOGETHER = 1024  # texts that are tokenized at a time
Pooling = Literal["mean", "first", "max"]


@dataclass(frozen=True)
class Directions:
    """Of the teacher's vectors of all texts to learn from: the main directions, and how much lies in each."""

    basis: NDArray[np.float64]  # width width: a direction in each column, those first in which most lies
    shares: NDArray[np.float64]  # width: of the squared length
    far: float  # the mean squared distance from their middle ...
    turned: float  # ... and that of the same vectors brought to length 1

    @staticmethod
    def of(said: Sequence[Said]) -> Directions:
        products = total = units = np.zeros(())
        count = 0  # of those that are not zero
        for first in range(0, len(said), TOGETHER):
            some = stacked(said[first : first + TOGETHER], "vector").astype(np.float64)
            lengths = np.linalg.norm(some, axis=1, keepdims=True)
            products, total = products + some.T @ some, total + some.sum(0)
            units = units + (some / np.maximum(lengths, 1e-12)).sum(0)
            count += int((lengths > 0).sum())
        if not count:
            raise UserError("the teacher says zeros of all texts: there is nothing to learn")
        values, basis = np.linalg.eigh(products)
        values, basis = values[::-1].clip(0), basis[:, ::-1]
        # Either sign is right; the same one is taken on every day.
        signs = np.sign(basis[np.abs(basis).argmax(0), np.arange(basis.shape[1])])
        length = float(values.sum()) / count
        far, turned = length - float((total / count) @ (total / count)), 1 - float((units / count) @ (units / count))
        # All the same is a poor lesson, but no reason to divide by nothing.
        return Directions(basis * signs, values / values.sum(), max(far, 1e-6 * length), max(turned, 1e-6))

    def fitted(self, vectors: NDArray[Any], width: int) -> NDArray[np.float32]:
        """n teacher's width -> n width: turned and cut, or as they are with zeros after them."""
        if vectors.shape[1] > width:
            return (vectors @ self.basis[:, :width]).astype(np.float32)
        return np.pad(vectors, ((0, 0), (0, width - vectors.shape[1]))).astype(np.float32)


@dataclass(frozen=True)
class EmbedLesson(Lesson):
    """Of each text: the teacher's vector."""

    task: Any  # an EmbedTask: tasks that people have rows for are others
    directions: Directions | None = field(default=None, compare=False)

    @property
    def objective(self) -> TextVectors:
        return self.task.objective()

    def same(self, other: LoadedModel, name: str) -> bool:
        return True

    def said(self, teacher: LoadedModel, framing: Framing, examples: Sequence[Example]) -> list[Said]:
        """As this teacher's own card says that texts become vectors."""
        found = EmbedTask.from_model(teacher, "embed").predict(
            teacher, framing, [example.texts[0] for example in examples]
        )
        return [{"vector": each.output} for each in found]

    def mean(self, found: Sequence[Said]) -> Said:
        """Side by side, each of length 1: their cosine is then the mean of the teachers' cosines."""
        parts = [each["vector"] / max(float(np.linalg.norm(each["vector"])), 1e-12) for each in found]
        return {"vector": (np.concatenate(parts) / np.sqrt(len(parts))).astype(np.float32)}

    def answered(self, example: Example, said: Said) -> Example:
        return replace(example, target=said["vector"])

    def settled(self, examples: Sequence[Example], said: Sequence[Said]) -> EmbedLesson:
        return replace(self, directions=Directions.of(said))

    def table(
        self, examples: Sequence[Example], said: Sequence[Said], student: LoadedModel, framing: Framing
    ) -> Examples:
        directions = self.directions or Directions.of(said)
        # Asked first, so that a student that cannot pool so is named before it learns.
        width = Embedder(student, pooling=self.task.pooling).width
        tokenizer, gathering = tokenizer_of(student), ExamplesBuilder()
        around, own = len(framing.before), list[NDArray[np.float32]]()
        for first in range(0, len(examples), TOGETHER):
            some = examples[first : first + TOGETHER]
            for ids in tokenizer.ids([example.texts[0] for example in some], specials=False):
                found = pieces(framing, ids)
                gathering.add(found)
                for piece in found:
                    counts = np.ones(len(piece.tokens), dtype=np.float32)  # not those that another window answers for
                    c = piece.cut
                    counts[around : around + c.first - c.start] = 0
                    counts[around + c.last - c.start : around + c.end - c.start] = 0
                    own.append(counts)
        vectors = directions.fitted(stacked(said, "vector"), width)
        taught = (np.abs(vectors).max(1) > 0).astype(np.float32)
        whole = {
            "teacher_vectors": vectors,
            "direction_weight": taught / np.float32(directions.turned),
            # Where vectors are brought to length 1 afterwards, only their direction matters.
            "distance_weight": taught * np.float32(0 if self.task.normalize else 1 / directions.far),
        }
        notes: tuple[str, ...] = ()
        if width < (theirs := len(directions.shares)):
            kept = f"{directions.shares[:width].sum():.1%}"
            notes = (f"of the teacher's vectors of {theirs} numbers, {kept} fits into the student's {width}",)
        return gathering.examples(whole, by_token={"own": np.concatenate(own)}, notes=notes)
