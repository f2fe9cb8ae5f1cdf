"""Tags of words, taught: words come from characters, so that teacher and student may read by different tokens.

n: words of a text; C: tags; P: places in rows where a word begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.checkpoint.folder import LoadedModel
from weft.data.examples import Examples, ExamplesBuilder
from weft.data.masking import NOTHING
from weft.distillation.base import Lesson, Said
from weft.objectives.soft import SoftTargets
from weft.objectives.tasks import LOGITS, TAUGHT, Tags
from weft.tasks.base import Example, Prediction
from weft.tasks.forward import head_outputs, tokenizer_of
from weft.tasks.labels import number_of
from weft.tasks.tag import Tagged, TagTask, first_tokens, raw
from weft.text.windows import Framing, pieces

TOGETHER = 1024  # texts that are tokenized at a time


def tagged(example: Example) -> Tagged:
    """The words of an example; of one that nobody has cut into words, those of its text."""
    return example.target if example.target is not None else raw(example.texts[0])


@dataclass(frozen=True)
class TagLesson(Lesson):
    """Of each word: the teacher's scores of every tag, said by the student at the first token of that word."""

    task: TagTask
    temperature: float = 1.0
    hard: float = 0.0  # how much a right tag counts beside the teacher

    @property
    def objective(self) -> Tags:
        return Tags(self.task.outputs, SoftTargets(self.temperature, self.hard))

    @property
    def settings(self) -> Mapping[str, Any]:
        return {"labels": self.task.labels}

    def asked(self, example: Example) -> Any:
        return tagged(example).text, tagged(example).words

    def same(self, other: LoadedModel, name: str) -> bool:
        """Whether a further teacher knows the same tags, in whatever order."""
        return sorted(TagTask.from_model(other, "tag").labels) == sorted(self.task.labels)

    def settled(self, examples: Sequence[Example], said: Sequence[Said]) -> TagLesson:
        """No hard loss where nobody has tagged a word."""
        known = any(tagged(example).tags is not None for example in examples)
        return self if known else replace(self, hard=0.0)

    def said(self, teacher: LoadedModel, framing: Framing, examples: Sequence[Example]) -> list[Said]:
        task = TagTask.from_model(teacher, "tag")
        order = [task.labels.index(label) for label in self.task.labels]
        windows = task.encode([tagged(example) for example in examples], tokenizer_of(teacher), framing)
        found = task.word_logits(head_outputs(teacher, windows, "tag", True), windows)
        return [{"scores": words.logits[:, order], "known": words.known} for words in found]

    def mean(self, found: Sequence[Said]) -> Said:
        """The mean of the chances, over those teachers that have read the word."""
        known = np.stack([each["known"] for each in found])  # teachers n
        chances = np.stack([_chances(each["scores"]) for each in found])  # teachers n C
        total = (chances * known[:, :, None]).sum(0) / np.maximum(known.sum(0), 1)[:, None]
        return {"scores": np.log(np.maximum(total, 1e-30)).astype(np.float32), "known": known.any(0)}

    def answered(self, example: Example, said: Said) -> Example:
        words, known = tagged(example), said["known"].astype(bool)
        scores = np.where(known[:, None], said["scores"], self.task.unread)
        return replace(example, target=replace(words, tags=tuple(self.task.tags(Prediction(scores, 0, 0, False)))))

    def table(
        self, examples: Sequence[Example], said: Sequence[Said], student: LoadedModel, framing: Framing
    ) -> Examples:
        """Each window is an example of its own, as when tags alone are learned."""
        numbers = {label: number for number, label in enumerate(self.task.labels)}
        tokenizer, gathering = tokenizer_of(student), ExamplesBuilder()
        scores, known = list[NDArray[np.float32]](), list[NDArray[Any]]()
        for first in range(0, len(examples), TOGETHER):
            some = examples[first : first + TOGETHER]
            encoded = tokenizer.encode_batch([example.texts[0] for example in some], specials=False)
            for number, (example, tokens) in enumerate(zip(some, encoded, strict=True), first):
                words, heard = tagged(example), said[number]
                tags = [NOTHING] * len(words.words)
                if words.tags is not None:
                    tags = [number_of(tag, numbers, example.where) for tag in words.tags]
                # Two words may share a token, which then learns from both; a word without one is left out.
                begins = np.array([-1 if token is None else token for token in first_tokens(tokens, words.words)])
                for piece in pieces(framing, tokens.ids):
                    own = np.flatnonzero((begins >= piece.cut.first) & (begins < piece.cut.last) & (begins >= 0))
                    places = (piece.lead + begins[own] - piece.cut.start).tolist()
                    gathering.add([piece], tags=[zip(places, (tags[word] for word in own), strict=True)])
                    scores.append(heard["scores"][own])
                    known.append(heard["known"][own])
        by_place = {
            LOGITS: np.concatenate(scores).astype(np.float32, copy=False),
            TAUGHT: np.concatenate(known).astype(np.float32),
        }
        return gathering.examples({}, by_place=by_place)


def _chances(scores: NDArray[Any]) -> NDArray[np.float64]:
    powers = np.exp(scores.astype(np.float64) - scores.max(1, keepdims=True, initial=-1e30))
    return powers / powers.sum(1, keepdims=True)
