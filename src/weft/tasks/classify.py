"""Labels and values of whole texts and pairs: classify, multilabel, regress, pair."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from weft.budget import by_budget
from weft.checkpoint.card import Card
from weft.checkpoint.folder import LoadedModel
from weft.data.columns import NAMES, file_of
from weft.data.examples import Examples, ExamplesBuilder
from weft.errors import UserError
from weft.metrics.classification import ClassificationMetrics, MultiLabelMetrics
from weft.metrics.regression import RegressionMetrics
from weft.metrics.thresholds import best_thresholds
from weft.objectives.tasks import Texts
from weft.tasks.answers import Answer, Label, Labels, Value
from weft.tasks.forward import Prediction, outcome, through, tokenizer_of
from weft.tasks.reading import (
    Example,
    check_labels,
    in_order,
    is_one,
    number_in,
    number_of,
    text_in,
    word_in,
    words_in_list,
)
from weft.text.column_names import folded as folded_name
from weft.text.records import Record
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.windows import Framing, TextWindow, pieces

Kind = Literal["label", "labels", "value"]
TOGETHER = 1 << 22  # characters that are tokenized at a time
COLUMN: dict[Kind, str] = {"label": "label", "labels": "labels", "value": "value"}


@dataclass(frozen=True)
class TextTask:
    """One of the tasks about whole texts, with its labels once they are known."""

    name: str
    kind: Kind
    pair: bool = False
    labels: tuple[str, ...] = ()
    center: float = 0.0  # of the values to learn, which the network sees as distances from it ...
    spread: float = 1.0  # ... in units of this
    balanced: bool = False  # rows of rare labels count more
    words: float = 0.0  # how much the next tokens count beside the task
    thresholds: Mapping[str, float] = field(default_factory=dict)
    indicators: tuple[str, ...] = ()  # columns of 0 and 1, one for each label, in place of a column of labels

    head = "classify"
    overlap = 0.125

    @property
    def objective(self) -> Texts:
        return Texts(self.kind, self.outputs, self.words)

    @property
    def outputs(self) -> int:
        return 1 if self.kind == "value" else len(self.labels)

    @property
    def names(self) -> tuple[str, ...]:
        """The scores by which the best model may be chosen."""
        if self.kind == "value":
            return ("pearson", "spearman", "r2")
        both = ("accuracy", "macro_f1", "mcc", *(("f1",) if len(self.labels) == 2 else ()))
        return both if self.kind == "label" else ("micro_f1", "macro_f1", "exact")

    @property
    def chosen(self) -> str:
        """The score that decides which model is kept."""
        return {"label": "accuracy", "labels": "micro_f1", "value": "pearson"}[self.kind]

    @staticmethod
    def asked(example: Example) -> tuple[str, ...]:
        return example.texts

    # ------------------------------------------------------------------------------------------ from people's data

    def needed(self, record: Record, given: Mapping[str, str]) -> tuple[TextTask, tuple[str, ...]]:
        """The columns of this task; a pair has labels, or values where there is a column of numbers only."""
        texts = ("text", "pair") if self.pair else ("text",)
        task = self
        if self.name == "pair" and not self.labels and "label" not in given:
            labeled = any(name in record.values for name in NAMES["label"])
            valued = any(name in record.values for name in NAMES["value"] if name not in NAMES["label"])
            if "value" in given or (valued and not labeled):
                task = replace(self, kind="value")
        usual = {folded_name(name) for name in NAMES["labels"]}
        if self.kind == "labels" and "labels" not in given and not usual & set(map(folded_name, record.values)):
            flags = record.likely.get("indicators", "")
            known = self.labels if all(label in record.values for label in self.labels) else ()  # those of a model
            if known or (flags and not self.labels):
                return replace(self, indicators=known or tuple(flags.split("\t"))), texts
        return task, (*texts, COLUMN[task.kind])

    def read(self, record: Record, columns: Mapping[str, str]) -> Example:
        texts = tuple(text_in(record, columns[name]) for name in (("text", "pair") if self.pair else ("text",)))
        if COLUMN[self.kind] not in columns:
            named = tuple(name for name in self.indicators if is_one(record, name))
            return Example(texts, named, record.where)
        column = columns[COLUMN[self.kind]]
        target: Any
        if self.kind == "label":
            target = word_in(record, column)
        elif self.kind == "labels":
            target = words_in_list(record, column)
        else:
            target = number_in(record, column)
        return Example(texts, target, record.where)

    def learned(self, examples: Sequence[Example], labels: Sequence[str] = ()) -> TextTask:
        """The task with what the rows to learn from say: the labels in order, or the middle and spread of values."""
        where = file_of(examples[0].where)
        if self.kind == "value":
            values = np.array([example.target for example in examples])
            if values.std() == 0:
                raise UserError(f"{where}: every row has the value {values[0]:g}: there is nothing to learn")
            return replace(self, center=float(values.mean()), spread=float(values.std()))
        named = [example.target if self.kind == "labels" else (example.target,) for example in examples]
        found = Counter(label for some in named for label in some)
        task = replace(self, labels=tuple(labels) or in_order(list(found)))
        if self.kind == "labels" and len(task.labels) == 1 and found[task.labels[0]] not in (0, len(examples)):
            return task  # one label that some rows have and others have not
        check_labels(found, task.labels, where)
        return task

    def groups(self, examples: Sequence[Example]) -> list[Any] | None:
        """What the held-out rows should have their share of; None: nothing."""
        if self.kind != "labels":
            return [example.target if self.kind == "label" else "" for example in examples]
        # By the rarest of its labels: whole sets of labels are often all different, and none would give a row.
        counts = Counter(label for example in examples for label in example.target)
        return [min(example.target, key=lambda label: (counts[label], label), default="") for example in examples]

    def check(self, examples: Sequence[Example]) -> None:
        self.targets(examples)

    def targets(self, examples: Sequence[Example]) -> NDArray[Any]:
        """E, or E C of several labels: what the network is to say of each example."""
        if self.kind == "value":
            values = np.array([example.target for example in examples], dtype=np.float64)
            return ((values - self.center) / self.spread).astype(np.float32)
        numbers = {label: number for number, label in enumerate(self.labels)}
        if self.kind == "label":
            return np.array([number_of(each.target, numbers, each.where) for each in examples], dtype=np.int64)
        found = np.zeros((len(examples), len(self.labels)), dtype=np.int8)
        for row, example in enumerate(examples):
            for label in example.target:
                found[row, number_of(label, numbers, example.where)] = 1
        return found

    def table(self, examples: Sequence[Example], tokenizer: Tokenizer, framing: Framing) -> Examples:
        """The examples as a source of batches."""
        targets = self.targets(examples)
        importance = np.ones(len(examples), dtype=np.float32)
        if self.balanced and self.kind == "label":
            counts = np.bincount(targets, minlength=len(self.labels))
            importance = (len(examples) / (np.count_nonzero(counts) * counts[targets])).astype(np.float32)
        gathering = ExamplesBuilder()
        for found in pieces_in(framing, tokenizer, [example.texts for example in examples]):
            gathering.add(found[0])
        return gathering.examples(
            {"target": targets, "importance": importance},
            segments=framing.segments and self.pair,
            next_words=self.words > 0,
        )

    # -------------------------------------------------------------------------------------- from network to answer

    def outcomes(self, opened: LoadedModel, framing: Framing, texts: Sequence[tuple[str, ...]]) -> list[Prediction]:
        """What the network says of each text: scores before they become chances, a value as people wrote it."""
        found = list(pieces_in(framing, tokenizer_of(opened), texts))
        flat = [piece for some, _ in found for piece in some]
        network: Any = opened.network
        said = iter(through(opened, framing, flat, lambda h, b: network.scores("classify", h, b.rows), False))
        outcomes = []
        for some, lengths in found:
            own = np.array([max(1, piece.cut.last - piece.cut.first) for piece in some], dtype=np.float64)
            scores = np.stack([next(said).double().numpy() for _ in some])
            scores = (scores * (own / own.sum())[:, None]).sum(0)
            outcomes.append(outcome(scores * self.spread + self.center, framing, some, *lengths))
        return outcomes

    def answer(self, found: Prediction) -> Answer:
        read: dict[str, Any] = {"n_tokens": found.n_tokens, "n_windows": found.n_windows, "truncated": found.truncated}
        if self.kind == "value":
            return Value(value=float(found.said[0]), **read)
        chances = self._chances(found)
        scores = dict(zip(self.labels, chances.tolist(), strict=True))
        if self.kind == "labels":
            chosen = tuple(label for label in self.labels if scores[label] >= self.thresholds.get(label, 0.5))
            return Labels(labels=chosen, scores=scores, **read)
        best = self.labels[int(chances.argmax())]
        return Label(label=best, score=scores[best], scores=scores, **read)

    def _chances(self, found: Prediction) -> NDArray[np.float64]:
        if self.kind == "labels":
            return 1 / (1 + np.exp(-np.clip(found.said, -700, 700)))
        powers = np.exp(found.said - found.said.max())
        return powers / powers.sum()

    def together(self, found: Sequence[Prediction]) -> Prediction:
        """What several models say of one text: the mean of their values, or of their chances, as scores again."""
        if self.kind == "value":
            return replace(found[0], said=np.mean([each.said for each in found], axis=0))
        chances = np.clip(np.mean([self._chances(each) for each in found], axis=0), 1e-300, 1 - 1e-16)
        said = np.log(chances) - (np.log1p(-chances) if self.kind == "labels" else 0.0)
        return replace(found[0], said=said)

    def tuned(self, outcomes: Sequence[Prediction], examples: Sequence[Example]) -> TextTask:
        """The task with what held-out rows decide: the threshold of each label of several."""
        if self.kind != "labels":
            return self
        chances = np.stack([self._chances(found) for found in outcomes])
        best = best_thresholds(chances, self.targets(examples).astype(bool))
        return replace(self, thresholds=dict(zip(self.labels, map(float, best), strict=True)))

    def carded(self, card: Card) -> Card:
        return replace(card, labels=self.labels or None, thresholds=dict(self.thresholds))

    def metrics(self) -> Any:
        if self.kind == "value":
            return RegressionMetrics()
        return ClassificationMetrics(self.labels) if self.kind == "label" else MultiLabelMetrics(self.labels)

    def add(self, metrics: Any, outcomes: Sequence[Prediction], examples: Sequence[Example]) -> None:
        if self.kind == "value":
            metrics.add([float(found.said[0]) for found in outcomes], [example.target for example in examples])
            return
        gold = self.targets(examples)
        if self.kind == "label":
            metrics.add([int(found.said.argmax()) for found in outcomes], gold.tolist())
            return
        limits = np.array([self.thresholds.get(label, 0.5) for label in self.labels])
        metrics.add(np.stack([self._chances(found) >= limits for found in outcomes]), gold.astype(bool))

    def mistake(self, found: Prediction, example: Example) -> tuple[float, dict[str, str]] | None:
        """How wrong an answer is, and what a table of the worst shows of it; None where it is right."""
        shown = {"where": example.where, "text": " | ".join(example.texts)}
        if self.kind == "value":
            value = float(found.said[0])
            return abs(value - example.target), {"right": f"{example.target:g}", "said": f"{value:.4g}", **shown}
        chances = self._chances(found)
        answer: Any = self.answer(found)
        if self.kind == "label":
            if answer.label == example.target:
                return None
            right = float(chances[self.labels.index(example.target)])
            return -math.log(max(right, 1e-300)), {
                "right": example.target,
                "said": f"{answer.label} {answer.score:.3f}",
                **shown,
            }
        if set(answer.labels) == set(example.target):
            return None
        gold = np.array([label in example.target for label in self.labels])
        badness = float(np.abs(chances - gold).sum())
        return badness, {"right": ", ".join(example.target), "said": ", ".join(answer.labels), **shown}


def pieces_in(
    framing: Framing, tokenizer: Tokenizer, texts: Sequence[tuple[str, ...]]
) -> Iterator[tuple[list[TextWindow], tuple[int, ...]]]:
    """The windows of each text or pair, and how many tokens its texts have; some texts are held at a time."""
    for some in by_budget(texts, lambda each: max(1, sum(map(len, each))), TOGETHER):
        yield from _pieces(framing, tokenizer, some)


def _pieces(
    framing: Framing, tokenizer: Tokenizer, texts: Sequence[tuple[str, ...]]
) -> list[tuple[list[TextWindow], tuple[int, ...]]]:
    firsts = tokenizer.ids([some[0] for some in texts], specials=False)
    seconds = tokenizer.ids([some[1] for some in texts if len(some) > 1], specials=False)
    following = iter(seconds)
    found: list[tuple[list[TextWindow], tuple[int, ...]]] = []
    for some, first in zip(texts, firsts, strict=True):
        second = next(following) if len(some) > 1 else None
        lengths = (len(first),) if second is None else (len(first), len(second))
        if not sum(lengths) and not framing.before and not framing.after and not framing.nothing:
            raise UserError("a text is empty, and this model puts no tokens around a text")
        found.append((pieces(framing, first, second), lengths))
    return found


def rescale(network: Any, scale: float, shift: float) -> None:
    """Let the head of values say `scale` times what it says, and `shift` more.

    GPT's head has no bias: there the last norm below it moves by what makes the head say that much more.
    """
    output = last_linear(network.heads["classify"])
    with torch.no_grad():
        output.weight.mul_(scale)
        if output.bias is not None:
            output.bias.mul_(scale).add_(shift)
        elif shift:
            row = output.weight[0].double()
            last_norm(network).bias.add_((shift * row / row.square().sum()).to(output.weight.dtype))


@contextmanager
def folded(network: Any, task: Any) -> Iterator[None]:
    """While it is saved, the head of values says them as people write them."""
    if not isinstance(task, TextTask) or task.kind != "value":
        yield
        return
    moved = list(last_linear(network.heads["classify"]).parameters())
    moved += [] if len(moved) > 1 or not can_shift(network) else [last_norm(network).bias]
    before = [parameter.detach().clone() for parameter in moved]
    rescale(network, task.spread, task.center)
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, value in zip(moved, before, strict=True):
                parameter.copy_(value)


def last_norm(network: Any) -> Any:
    """The norm whose output the heads read, where each head reads it as it is."""
    final = network.final_norm
    return network.layers[-1].feedforward_norm if isinstance(final, torch.nn.Identity) else final


def can_shift(network: Any) -> bool:
    """Whether values can have a middle that the folder says too."""
    if last_linear(network.heads["classify"]).bias is not None:
        return True
    alone = set(network.heads) == {"classify"} and getattr(network, "mix", None) is None
    return alone and getattr(last_norm(network), "bias", None) is not None


def last_linear(head: torch.nn.Module) -> torch.nn.Linear:
    return [module for module in head.modules() if isinstance(module, torch.nn.Linear)][-1]


def task_of(opened: LoadedModel, name: str) -> TextTask:
    """The task of a model folder, as its card and its head say."""
    card, outputs = opened.card, opened.heads["classify"]
    labels = card.labels
    if name == "regress" or (name == "pair" and labels is None and outputs == 1):
        return TextTask(name, "value", name == "pair")
    names = labels or tuple(f"LABEL_{number}" for number in range(outputs))
    kind: Kind = "labels" if name == "multilabel" else "label"
    return TextTask(name, kind, name == "pair", names, thresholds=card.thresholds)
