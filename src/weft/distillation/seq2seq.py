"""Teachers that write: what a student is to write is what the teacher's beam has found (Kim and Rush, 2016).

A student that learns the teacher's own best texts learns what the teacher would say, not all that it might have said;
so a search by beam is hardly needed any more. Of several texts each comes as often as its chance among them says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np

from weft.checkpoint.folder import LoadedModel
from weft.data.pairs import Sequences
from weft.distillation.base import Lesson, Said
from weft.distillation.recipe import DistillSettings
from weft.errors import UserError
from weft.metrics.generation import rouge_of
from weft.objectives.sequences import Writing
from weft.progress import Log
from weft.runs.recipes import FROM_NOTHING, FinetuneTraining
from weft.tasks.base import Example, Task
from weft.tasks.seq2seq import SequenceTask, chrf_near
from weft.tasks.translate import check_writer, together, translate
from weft.text.windows import Framing


@dataclass(frozen=True)
class WritingLesson(Lesson):
    """Translate, summarize or rewrite, as a teacher does it, or as several do who write together."""

    task: SequenceTask
    beam_size: int = 5
    best: int = 1  # texts that are learned from each source ...
    closest: bool = False  # ... or, where the right one is known, the one that is closest to it
    hard: float = 0.0  # share of the epochs in which the right text is learned, where it is known
    others: tuple[LoadedModel, ...] = ()  # teachers that write together with the one that is asked

    @staticmethod
    def of(teachers: Sequence[LoadedModel], name: str, wanted: DistillSettings) -> WritingLesson:
        """What a recipe asks of teachers of one task."""
        first, *others = teachers
        check_writer(first)
        together(first, others)
        task = replace(
            SequenceTask.from_model(first, name), beam_size=1, baseline=False
        )  # in training it is judged as finetune does
        return WritingLesson(task, wanted.beam_size, wanted.n, wanted.closest, wanted.hard, tuple(others))

    @property
    def objective(self) -> Writing:
        # What a teacher wrote is no more than its opinion, as a right text is: the student is as unsure of either.
        return Writing(self.task.smoothing)

    @property
    def number(self) -> int:
        """Texts that the teacher is asked for; the closest is sought among all that its beam has found."""
        return self.beam_size if self.closest else self.best

    @property
    def settings(self) -> Mapping[str, Any]:
        return {"beam_size": self.beam_size, "number": self.number, "prefix": self.task.prefix}

    @property
    def as_one(self) -> bool:
        return True  # several teachers choose each word together

    def same(self, other: LoadedModel, name: str) -> bool:
        return True  # what they must have in common to write together was asked when the lesson was made

    # --------------------------------------------------------------------------------------------- what is said

    def said(self, teacher: LoadedModel, framing: Framing, examples: Sequence[Example]) -> list[Said]:
        """The best texts for each source, best first, and the logs of their chances.

        One that came to no end is left out: it was broken off somewhere, mostly in a circle.
        """
        sources = [example.texts[0] for example in examples]
        found = translate(
            teacher,
            sources,
            beam_size=self.beam_size,
            n=self.number,
            prefix=self.task.prefix,
            others=self.others,
            watch=False,
        )
        return [packed([(way.text, way.logprob) for way in each.best if way.finish_reason == "end"]) for each in found]

    def mean(self, found: Sequence[Said]) -> Said:
        """All that was written by teachers who did not write together, the likeliest first."""
        return packed(sorted((way for said in found for way in unpacked(said)), key=lambda way: -way[1]))

    def answered(self, example: Example, said: Said) -> Example:
        return replace(example, target=next((text for text, _ in unpacked(said)), ""))

    # ------------------------------------------------------------------------------------------ what is learned

    def texts(self, examples: Sequence[Example], heard: Callable[[], Sequence[Said]]) -> Iterator[str]:
        """All that a vocabulary is learned from: what is read, and what is written."""
        for example, each in zip(examples, heard(), strict=True):
            yield (self.task.prefix or "") + example.texts[0]
            yield from self.ways(example, unpacked(each))

    def table(
        self, examples: Sequence[Example], said: Sequence[Said], student: LoadedModel, framing: Framing
    ) -> Sequences:
        """Each source with the texts that are to be written from it; where the teacher wrote none, it is left out."""
        ways = [self.ways(example, unpacked(each)) for example, each in zip(examples, said, strict=True)]
        kept = [number for number, each in enumerate(ways) if each]
        if not kept:
            raise UserError("the teacher has written nothing that came to an end, so there is nothing to learn")
        found = self.task.laid_out([examples[n] for n in kept], [ways[n] for n in kept], student, framing)
        lost = len(examples) - len(kept)
        if not lost:
            return found
        note = f"{lost:,} text{'s' * (lost > 1)} from which the teacher wrote nothing that came to an end: left out"
        return replace(found, notes=(note, *found.notes))

    def ways(self, example: Example, written: Sequence[tuple[str, float]]) -> Mapping[str, float]:
        """The texts to be learned from one source, and their shares, which add up to 1."""
        chances: dict[str, float] = {}
        for text, chance in written:  # two ways of cutting a text into tokens are one text
            if text.strip():
                chances[text] = np.logaddexp(chances.get(text, -math.inf), chance)
        right = example.target if isinstance(example.target, str) and example.target.strip() else None
        if right is not None and self.closest and chances:
            near = {text: self.near(text, right) for text in chances}  # the likeliest of those that are equally close
            chances = {max(near, key=lambda text: (near[text], chances[text])): 0.0}
        likeliest = list(chances)[: self.best]  # in the order of the teacher's scores, which are not chances alone
        highest = max((chances[text] for text in likeliest), default=0.0)
        weights = {text: math.exp(chances[text] - highest) for text in likeliest}
        whole, hard = sum(weights.values()), self.hard if right is not None else 0.0
        found = {text: (1 - hard) * weight / whole for text, weight in weights.items() if hard < 1}
        if right is not None and (hard or not found):
            found[right] = found.get(right, 0.0) + (hard if found else 1.0)
        return found

    def near(self, text: str, right: str) -> float:
        """How close one text is to another; of a single text letters tell more than BLEU does."""
        return rouge_of(text, right)[2] if self.task.name == "summarize" else chrf_near(text, right)


def packed(ways: Sequence[tuple[str, float]]) -> Said:
    """Texts and the logs of their chances as arrays."""
    texts = [text.encode("utf-8", "replace") for text, _ in ways]
    return {
        "texts": np.frombuffer(b"".join(texts), dtype=np.uint8).copy(),
        "ends": np.cumsum([len(text) for text in texts], dtype=np.int64),
        "chances": np.array([chance for _, chance in ways], dtype=np.float64),
    }


def unpacked(said: Said) -> list[tuple[str, float]]:
    """The texts again, the best first."""
    data, ends = said["texts"].tobytes(), said["ends"].tolist()
    begins = [0, *ends][:-1]
    texts = [data[begin:end].decode() for begin, end in zip(begins, ends, strict=True)]
    return list(zip(texts, said["chances"].tolist(), strict=True))


def from_nothing(plan: FinetuneTraining) -> FinetuneTraining:
    """The plan of a student that begins from nothing, with what is usual then where nothing else was asked for."""
    plain = FinetuneTraining()
    left = [key for key in FROM_NOTHING if vars(plan)[key] == vars(plain)[key]]
    usual: dict[str, Any] = {key: FROM_NOTHING[key] for key in left}
    return replace(plan, **usual)


def without_bleu(metric: str | None, task: Task, log: Log) -> str | None:
    """The metric asked for; where the package is missing that counts BLEU, the loss."""
    if not isinstance(task, SequenceTask) or task.name == "summarize" or find_spec("sacrebleu") is not None:
        return metric
    if metric not in (None, "loss"):
        raise UserError(f"{metric} needs the package sacrebleu: pip install 'weft[evaluate]'")
    log("weft: note: without the package sacrebleu the best student is chosen by its loss alone")
    return "loss"
