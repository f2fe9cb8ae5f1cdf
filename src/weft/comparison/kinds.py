"""What two models say of the same example, side by side: whether it is the same, how far apart, and in words."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.checkpoint.folder import LoadedModel
from weft.metrics.answers import answer_scores
from weft.metrics.bootstrap import Bootstrap, Metrics, Replicates, share
from weft.metrics.generation import GenerationMetrics
from weft.metrics.regression import RegressionMetrics
from weft.tasks.answer import AnswerTask
from weft.tasks.base import Example, Prediction, Task
from weft.tasks.classify import TextTask
from weft.tasks.forward import framing_for
from weft.tasks.seq2seq import SequenceTask, chrf_near
from weft.tasks.tag import TagTask

LEAST = 20  # answers, of which not all should be the same
WORDS = 8  # that differ, shown of one text


class Ratios(Metrics):
    """Parts of wholes, summed over examples: of each name what an example adds to both."""

    def __init__(self, names: Sequence[str], shares: bool = True, seed: int = 0) -> None:
        self.names, self.shares = tuple(names), shares  # whether a part is at most its whole
        self.sums = Bootstrap(2 * len(self.names), seed)

    def add(self, parts: Mapping[str, tuple[float, float]]) -> None:
        """Take in the next example; a name that it does not tell of gets nothing."""
        keys = [2 * number + side for number, name in enumerate(self.names) if name in parts for side in (0, 1)]
        self.sums.add(1, [0] * len(keys), keys, [each for name in self.names if name in parts for each in parts[name]])

    def sampled(self) -> dict[str, Replicates]:
        """The share of each name, of those that there was anything of."""
        totals = self.sums.totals()
        found = {}
        for name, (part, whole) in zip(self.names, totals.sums.reshape(len(self.names), 2, -1), strict=True):
            if whole[0]:
                found[name] = Replicates(share(part, whole, math.nan), totals.examples, self.shares)
        return found


class Kind(ABC):
    """One kind of answer: how a model gives it, and how two of them are compared."""

    level = 0.0  # of the score beyond chance, what nothing but chance reaches
    parts: tuple[str, ...] = ("same",)

    def __init__(self, task: Any) -> None:
        self.task = task  # with the labels of all models together, in one order
        self.first: Any = self  # the kind of the model that this one is held beside, whose thresholds may be others

    def outcomes(self, opened: LoadedModel, examples: Sequence[Example]) -> list[Prediction]:
        """What a model says of examples, in the common order of labels."""
        found: list[Prediction] = self.own.predict(opened, framing_for(opened), [self.task.inputs(e) for e in examples])
        return found

    @property
    def own(self) -> Any:
        """The task as the model itself has it."""
        return self.task

    @abstractmethod
    def finite(self, found: Prediction) -> bool:
        """Whether a model says anything at all: numbers, not what is left of them."""

    @abstractmethod
    def key(self, found: Prediction) -> Hashable:
        """The answer, as what is equal where two answers are."""

    @abstractmethod
    def apart(self, mine: Prediction, first: Prediction, example: Example) -> float:
        """How far apart two answers are; 0 where they are the same."""

    @abstractmethod
    def told(self, found: Prediction, other: Prediction, example: Example) -> str:
        """An answer in words, where it differs from the other."""

    @abstractmethod
    def right(self, example: Example) -> str:
        """The right answer in words."""

    def agreement(self) -> Any:
        """What counts how often two models say the same."""
        return Ratios(self.parts)

    def agree(self, counts: Any, mine: Prediction, first: Prediction, example: Example) -> None:
        """Count one example."""
        counts.add({"same": (float(self.key(mine) == self.first.key(first)), 1.0)})

    def metrics(self) -> Any:
        return self.task.metrics()

    def add(self, metrics: Any, found: Sequence[Prediction], examples: Sequence[Example]) -> None:
        self.task.add(metrics, found, examples)

    @property
    def chosen(self) -> str:
        """The score that models are compared by."""
        return str(self.task.default_metric)

    @property
    def beyond_chance(self) -> str | None:
        """The score that is at `level` where a model only guesses."""
        return self.chosen

    def known(self, example: Example) -> bool:
        """Whether there is anything to be right about."""
        return bool(self.task.has_target(example))

    def seen(self, examples: Sequence[Example]) -> None:  # noqa: B027  (most need not know)
        """Take in the right answers, which decide what chance reaches."""


class OfTexts(Kind):
    """Labels and values of whole texts."""

    task: TextTask

    def __init__(self, task: TextTask, labels: Sequence[str]) -> None:
        super().__init__(replace(task, labels=tuple(labels)))
        self.mine = task
        places = {label: number for number, label in enumerate(task.labels)}
        self.places = [places.get(label) for label in labels]
        self.gold: Counter[str] = Counter()
        self.rows = 0

    @property
    def own(self) -> TextTask:
        return self.mine

    def outcomes(self, opened: LoadedModel, examples: Sequence[Example]) -> list[Prediction]:
        found = super().outcomes(opened, examples)
        if self.task.kind == "value" or self.task.labels == self.mine.labels:
            return found
        return [replace(each, output=matched(each.output, self.places)) for each in found]

    def finite(self, found: Prediction) -> bool:
        said = found.output if self.task.kind == "value" else found.output[[n is not None for n in self.places]]
        return bool(np.isfinite(said).all())

    def key(self, found: Prediction) -> Hashable:
        answer: Any = self.task.answer(found)
        if self.task.kind == "value":
            return round(answer.value, 9)
        return answer.label if self.task.kind == "label" else frozenset(answer.labels)

    def apart(self, mine: Prediction, first: Prediction, example: Example) -> float:
        if self.task.kind == "value":
            return abs(float(mine.output[0]) - float(first.output[0]))
        a, b = self._scores(mine), self.first._scores(first)
        return float(self.key(mine) != self.first.key(first)) + float(np.abs(a - b).sum()) / (2 * len(a))

    def _scores(self, found: Prediction) -> NDArray[np.float64]:
        answer: Any = self.task.answer(found)
        return np.array(list(answer.scores.values()))

    def told(self, found: Prediction, other: Prediction, example: Example) -> str:
        answer: Any = self.task.answer(found)
        if self.task.kind == "value":
            return f"{answer.value:.4g}"
        return f"{answer.label} {answer.score:.3f}" if self.task.kind == "label" else ", ".join(answer.labels) or "none"

    def right(self, example: Example) -> str:
        if self.task.kind == "value":
            return f"{example.target:g}"
        return str(example.target) if self.task.kind == "label" else ", ".join(example.target) or "none"

    def agreement(self) -> Any:
        return RegressionMetrics() if self.task.kind == "value" else super().agreement()

    def agree(self, counts: Any, mine: Prediction, first: Prediction, example: Example) -> None:
        if self.task.kind == "value":
            counts.add([float(mine.output[0])], [float(first.output[0])])
            return
        super().agree(counts, mine, first, example)

    @property
    def beyond_chance(self) -> str | None:
        return {"label": "mcc", "labels": "micro_f1", "value": "pearson"}[self.task.kind]

    def seen(self, examples: Sequence[Example]) -> None:
        if self.task.kind != "labels":
            return
        self.gold.update(label for example in examples for label in example.target)
        self.rows += len(examples)
        # The best that one and the same set of labels for every text would reach.
        counts, best = [count for _, count in self.gold.most_common()], 0.0
        for size in range(1, len(counts) + 1):
            best = max(best, 2 * sum(counts[:size]) / (self.rows * size + sum(counts)))
        self.level = best


def matched(said: NDArray[Any], places: Sequence[int | None]) -> NDArray[Any]:
    """Scores in the common order of labels; a label that a model does not know has no chance."""
    found = np.full((*said.shape[:-1], len(places)), -np.inf, dtype=said.dtype)
    known = [number for number, place in enumerate(places) if place is not None]
    found[..., known] = said[..., [place for place in places if place is not None]]
    return found


class OfTags(Kind):
    """A tag for every word."""

    task: TagTask

    def __init__(self, task: TagTask, labels: Sequence[str]) -> None:
        super().__init__(replace(task, labels=tuple(labels)))
        self.mine = task
        places = {label: number for number, label in enumerate(task.labels)}
        self.places = [places.get(label) for label in labels]
        self.gold: Counter[str] = Counter()

    @property
    def own(self) -> TagTask:
        return self.mine

    def outcomes(self, opened: LoadedModel, examples: Sequence[Example]) -> list[Prediction]:
        found = super().outcomes(opened, examples)
        if self.task.labels == self.mine.labels:
            return found
        return [replace(each, output=matched(each.output, self.places)) for each in found]

    def finite(self, found: Prediction) -> bool:
        return bool(np.isfinite(found.output[:, [n is not None for n in self.places]]).all())

    def key(self, found: Prediction) -> Hashable:
        tags = self.task.tags(found)
        return tags[0] if len(set(tags)) == 1 else tuple(tags)  # a model that calls every word the same is told

    def agree(self, counts: Any, mine: Prediction, first: Prediction, example: Example) -> None:
        pairs = list(zip(self.task.tags(mine), self.task.tags(first), strict=True))
        if pairs:
            counts.add({"same": (float(sum(a == b for a, b in pairs)), float(len(pairs)))})
        else:
            counts.add({})

    def apart(self, mine: Prediction, first: Prediction, example: Example) -> float:
        return float(sum(a != b for a, b in zip(self.task.tags(mine), self.task.tags(first), strict=True)))

    def told(self, found: Prediction, other: Prediction, example: Example) -> str:
        mine, theirs = self.task.tags(found), self.task.tags(other)
        words = [example.target.text[start:end] for start, end in example.target.words]
        wrong = [number for number in range(len(words)) if mine[number] != theirs[number]]
        return " ".join(f"{words[number]}/{mine[number]}" for number in wrong[:WORDS])

    def right(self, example: Example) -> str:
        words = [example.target.text[start:end] for start, end in example.target.words]
        named = [f"{word}/{tag}" for word, tag in zip(words, example.target.tags, strict=True) if tag != "O"]
        return " ".join(named[:WORDS])

    def seen(self, examples: Sequence[Example]) -> None:
        if self.task.scheme == "plain":
            self.gold.update(tag for example in examples for tag in example.target.tags)
            self.level = max(self.gold.values()) / self.gold.total()


class OfAnswers(Kind):
    """Stretches of a context."""

    task: AnswerTask
    parts = ("same", "f1")

    def __init__(self, task: AnswerTask) -> None:
        super().__init__(task)
        self.rows = self.none = 0

    def finite(self, found: Prediction) -> bool:
        scores = [found.output.nothing, *(score for score, _, _ in found.output.spans)]
        return all(map(math.isfinite, scores))

    def key(self, found: Prediction) -> Hashable:
        return self.task.span(found.output)

    def text(self, found: Prediction, example: Example) -> str:
        place = self.task.span(found.output)
        return "" if place is None else example.texts[1][place[0] : place[1]]

    def agree(self, counts: Any, mine: Prediction, first: Prediction, example: Example) -> None:
        same, f1 = answer_scores(self.text(mine, example), [self.first.text(first, example)])
        counts.add({"same": (same, 1.0), "f1": (f1, 1.0)})

    def apart(self, mine: Prediction, first: Prediction, example: Example) -> float:
        return 1 - answer_scores(self.text(mine, example), [self.first.text(first, example)])[1]

    def told(self, found: Prediction, other: Prediction, example: Example) -> str:
        answer: Any = self.task.answer(found, example.texts)
        return f"{answer.text or '(no answer)'} {answer.score:.3f}"

    def right(self, example: Example) -> str:
        return str(example.target[0][1]) if example.target else "(no answer)"

    def seen(self, examples: Sequence[Example]) -> None:
        self.rows += len(examples)
        self.none += sum(not example.target for example in examples)
        self.level = self.none / self.rows  # no answer to anything


class OfWriting(Kind):
    """Texts written from texts."""

    task: SequenceTask

    def finite(self, found: Prediction) -> bool:
        return math.isfinite(found.output.logprob) and math.isfinite(found.output.score)

    def key(self, found: Prediction) -> Hashable:
        return found.output.text.strip()

    def agreement(self) -> Any:
        return GenerationMetrics(edges=())

    def agree(self, counts: Any, mine: Prediction, first: Prediction, example: Example) -> None:
        counts.add([mine.output.text], [first.output.text])

    def apart(self, mine: Prediction, first: Prediction, example: Example) -> float:
        return 0.0 if self.key(mine) == self.key(first) else 1 - chrf_near(mine.output.text, first.output.text)

    def told(self, found: Prediction, other: Prediction, example: Example) -> str:
        return str(found.output.text)

    def right(self, example: Example) -> str:
        return str(example.target)

    @property
    def beyond_chance(self) -> str | None:
        return None


def kind_of(task: Task, labels: Sequence[str]) -> Kind:
    """How the answers of a task are compared."""
    if isinstance(task, TextTask):
        return OfTexts(task, labels)
    if isinstance(task, TagTask):
        return OfTags(task, labels)
    return OfAnswers(task) if isinstance(task, AnswerTask) else OfWriting(task)


def together(tasks: Iterable[Task]) -> tuple[str, ...]:
    """All labels that any of the models knows, in the order of the first of them."""
    return tuple(dict.fromkeys(label for task in tasks for label in task.labels))


AGREEMENT = {"pearson": "correlation", "exact": "same"}  # what agreement calls the scores that it borrows
