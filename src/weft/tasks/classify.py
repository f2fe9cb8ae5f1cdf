"""Labels and values of whole texts and pairs: classify, multilabel, regress, pair."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from weft.checkpoint.card import Card
from weft.checkpoint.folder import LoadedModel
from weft.data.columns import NAMES, file_of, is_one, number_in, text_in, word_in, words_in_list
from weft.data.examples import Examples, ExamplesBuilder
from weft.data.masking import NOTHING
from weft.data.tables import FEW
from weft.errors import UserError, did_you_mean, listed, shown
from weft.metrics.classification import ClassificationMetrics, MultiLabelMetrics, best_thresholds
from weft.metrics.regression import RegressionMetrics
from weft.objectives.losses import LOGITS, SoftTargets, Texts
from weft.tasks.answers import Answer, Label, Labels, Value
from weft.tasks.base import (
    Example,
    Prediction,
    Task,
    TeacherArrays,
    TeacherRows,
    reordered,
    stacked,
    teacher_prediction,
)
from weft.tasks.forward import InputWindows, pieces_in, tokenizer_of
from weft.text.delimited import folded
from weft.text.records import Record
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.windows import Framing


def in_order(labels: Sequence[str]) -> tuple[str, ...]:
    """Labels in an order that does not hang on the file: numbers by size, words by letters."""
    if all(re.fullmatch(r"-?\d{1,9}", label) for label in labels):
        return tuple(sorted(labels, key=lambda label: (int(label), label)))
    return tuple(sorted(labels))


def alike_note(labels: Sequence[str]) -> str | None:
    """A line about labels that are most likely one label, written in several ways; None where there are none."""
    ways: dict[str, list[str]] = {}
    for label in labels:
        ways.setdefault(" ".join(label.casefold().split()), []).append(label)
    several = [repr(shown(label)) for same in ways.values() if len(same) > 1 for label in same]
    if not several:
        return None
    return f"labels that differ only in case or spaces are learned as different ones: {listed(several, 6)}"


def number_of(label: str, labels: Mapping[str, int], where: str) -> int:
    """The number of a label; one that is not there is named with the nearest that is."""
    if label not in labels:
        raise UserError(
            f"{where}: label {shown(label)!r} is not one of {listed(labels, 12)}{did_you_mean(label, labels)}"
        )
    return labels[label]


def check_labels(counts: Counter[str], labels: Sequence[str], where: str) -> None:
    """Refuse what nothing can be learned from: one label only, or a label that no row has."""
    empty = [label for label in labels if not counts[label]]
    if empty:
        raise UserError(f"{where}: no row has the label {shown(empty[0])!r}, so nothing can be learned about it")
    if len(counts) == counts.total() >= FEW:
        raise UserError(f"{where}: each of the {len(counts)} rows has a label of its own; for numbers: --task regress")
    if counts.total() >= 20 and len(counts) > 0.8 * counts.total():
        raise UserError(
            f"{where}: {len(counts):,} different labels for {counts.total():,} rows, such as "
            f"{shown(next(iter(counts)))!r}: they look like ids; name the column of labels: "
            "--column label=NAME; for numbers: --task regress"
        )
    if len(labels) < 2 and len(counts) < 2:
        only = f"every row has the label {shown(labels[0])!r}" if labels else "no row has a label"
        raise UserError(f"{where}: {only}: there is nothing to tell apart")


TargetKind = Literal["label", "labels", "value"]
KINDS: dict[str, TargetKind] = {"multilabel": "labels", "regress": "value"}  # the others have one label
POINTS = 1000  # predicted and true values that an evaluation keeps for a scatter


@dataclass(frozen=True)
class TextTask(Task):
    """A label, several labels or a value for each text or pair."""

    name: str
    kind: TargetKind
    pair: bool = False
    labels: tuple[str, ...] = ()
    center: float = 0.0  # the network learns values as distances from their mean ...
    spread: float = 1.0  # ... in units of their standard deviation
    balanced: bool = False  # rows of rare labels count more
    words: float = 0.0  # weight of the next-token loss beside that of the task
    thresholds: Mapping[str, float] = field(default_factory=dict)
    either: bool = False  # a published folder does not say whether it reads texts or pairs
    indicators: tuple[str, ...] = ()  # columns of 0 and 1, one for each label, in place of a column of labels
    soft: SoftTargets | None = None  # how a student learns from its teacher

    head = "classify"
    linear_baseline = True
    overlap = 0.125

    @classmethod
    def from_recipe(cls, work: Any, data: Any) -> TextTask:
        kind = KINDS.get(work.name, "label")
        takes = {"label": ("class_weights", "labels", "words"), "labels": ("labels", "words"), "value": ("words",)}
        cls.check_recipe(work, *takes[kind])
        balanced = work.class_weights == "balanced"
        return cls(work.name, kind, work.name == "pair", balanced=balanced, words=work.words)

    @classmethod
    def from_model(cls, model: LoadedModel, name: str) -> TextTask:
        outputs, labels = model.heads["classify"], model.card.labels
        if name == "regress" or (name == "pair" and labels is None and outputs == 1):
            return cls(name, "value", name == "pair")
        names = labels or tuple(f"LABEL_{number}" for number in range(outputs))
        either = name == "classify" and model.card.task is None
        kind, thresholds = KINDS.get(name, "label"), model.card.thresholds
        return cls(name, kind, name == "pair", names, thresholds=thresholds, either=either)

    @classmethod
    def check_model(cls, model: LoadedModel, name: str) -> None:
        super().check_model(model, name)
        if name == "regress" and model.heads["classify"] != 1:
            raise UserError(f"a head of {model.heads['classify']} outputs gives no value")

    def to_card(self, card: Card) -> Card:
        return replace(card, labels=self.labels or None, thresholds=dict(self.thresholds))

    @property
    def outputs(self) -> int:
        return 1 if self.kind == "value" else len(self.labels)

    @property
    def prediction_columns(self) -> tuple[str, ...]:
        more = {"label": ("probability",), "labels": ("probabilities",), "value": ()}
        return ("prediction", *more[self.kind])

    @property
    def takes_tuples(self) -> bool:
        return self.pair or self.either

    def input_columns(self, record: Record, given: Mapping[str, str]) -> tuple[str, ...]:
        return ("text", "pair") if self.pair else ("text",)

    def columns(self, record: Record, given: Mapping[str, str]) -> tuple[TextTask, tuple[str, ...]]:
        """A pair has labels, or values where there is a column of numbers only."""
        task, texts = self, self.input_columns(record, given)
        if self.name == "pair" and not self.labels and "label" not in given:
            labeled = any(name in record.values for name in NAMES["label"])
            valued = any(name in record.values for name in NAMES["value"] if name not in NAMES["label"])
            if "value" in given or (valued and not labeled):
                task = replace(self, kind="value")
        usual = {folded(name) for name in NAMES["labels"]}
        if self.kind == "labels" and "labels" not in given and not usual & set(map(folded, record.values)):
            flags = record.likely.get("indicators", "")
            known = self.labels if all(label in record.values for label in self.labels) else ()  # those of a model
            if known or (flags and not self.labels):
                return replace(self, indicators=known or tuple(flags.split("\t"))), texts
        return task, (*texts, task.kind)

    def read(self, record: Record, columns: Mapping[str, str]) -> Example:
        example = self.read_input(record, columns)
        if self.kind not in columns:
            return replace(example, target=tuple(name for name in self.indicators if is_one(record, name)))
        cell: Any = {"label": word_in, "labels": words_in_list, "value": number_in}[self.kind]
        return replace(example, target=cell(record, columns[self.kind]))

    def read_input(self, record: Record, columns: Mapping[str, str]) -> Example:
        texts = tuple(text_in(record, columns[name]) for name in ("text", "pair")[: 1 + self.pair])
        return Example(texts, None, record.where)

    @property
    def empty_targets(self) -> bool:
        return self.kind == "labels"

    def check_input(self, number: int, value: Any) -> tuple[str, ...]:
        if isinstance(value, str) and not self.pair:
            return (value,)
        if isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(each, str) for each in value):
            return tuple(value)  # also for a model of single texts: a published folder does not say which it is
        raise UserError(f"input {number}: {'a pair of texts' if self.pair else 'a text'} is expected")

    def to_record(self, example: Example) -> dict[str, Any]:
        return {**dict(zip(("text", "pair"), example.texts, strict=False)), self.kind: example.target}

    def fit_labels(self, examples: Sequence[Example], labels: Sequence[str] = ()) -> TextTask:
        where = file_of(examples[0].where)
        if self.kind == "value":
            values = np.array([example.target for example in examples])
            if values.std() == 0:
                raise UserError(f"{where}: every row has the value {values[0]:g}: there is nothing to learn")
            return replace(self, center=float(values.mean()), spread=float(values.std()))
        counts = Counter(label for example in examples for label in self.labels_of(example))
        task = replace(self, labels=tuple(labels) or in_order(list(counts)))
        if self.kind == "labels" and len(task.labels) == 1 and counts[task.labels[0]] not in (0, len(examples)):
            return task  # one label that some rows have and others have not
        check_labels(counts, task.labels, where)
        return task

    def labels_of(self, example: Example) -> tuple[str, ...]:
        return {"label": (example.target,), "labels": example.target, "value": ()}[self.kind]

    def column_note(self, names: Sequence[str]) -> str | None:
        if not self.indicators or "labels" in names:
            return None
        return f"the columns {listed(self.indicators, 12)} of 0 and 1 are taken for the labels"

    def label_note(self) -> str | None:
        return alike_note(self.labels)

    def groups(self, examples: Sequence[Example]) -> list[Any]:
        if self.kind != "labels":
            return [example.target if self.kind == "label" else "" for example in examples]
        # By the rarest of its labels: whole sets of labels are often all different, and none would give a row.
        counts = Counter(label for example in examples for label in example.target)
        return [min(example.target, key=lambda label: (counts[label], label), default="") for example in examples]

    def check_targets(self, examples: Sequence[Example]) -> None:
        self.targets(examples)

    def targets(self, examples: Sequence[Example]) -> NDArray[Any]:
        """E, or E C of several labels: the targets as the network learns them."""
        if self.kind == "value":
            values = np.array([example.target for example in examples], dtype=np.float64)
            return ((values - self.center) / self.spread).astype(np.float32)
        numbers = {label: number for number, label in enumerate(self.labels)}
        if self.kind == "label":
            return np.array([number_of(e.target, numbers, e.where) for e in examples], dtype=np.int64)
        targets = np.zeros((len(examples), len(self.labels)), dtype=np.int8)
        for row, example in enumerate(examples):
            for label in example.target:
                targets[row, number_of(label, numbers, example.where)] = 1
        return targets

    def dataset(
        self, examples: Sequence[Example], model: LoadedModel, windows: Framing, teacher_outputs: TeacherRows = None
    ) -> Examples:
        targets = self._hard_targets(examples) if teacher_outputs is None else self._soft(examples, teacher_outputs)
        builder = ExamplesBuilder()
        for some, _ in pieces_in(windows, tokenizer_of(model), [example.texts for example in examples]):
            builder.add(some)
        return builder.examples(targets, segments=windows.segments and self.pair, next_words=self.words > 0)

    def _hard_targets(self, examples: Sequence[Example]) -> dict[str, NDArray[Any]]:
        targets = self.targets(examples)
        importance = np.ones(len(examples), dtype=np.float32)
        if self.balanced and self.kind == "label":
            counts = np.bincount(targets, minlength=len(self.labels))
            importance = (len(examples) / (np.count_nonzero(counts) * counts[targets])).astype(np.float32)
        return {"target": targets, "importance": importance}

    def _soft(self, examples: Sequence[Example], outputs: Sequence[TeacherArrays]) -> dict[str, NDArray[Any]]:
        logits = stacked(outputs, "output")
        if self.kind == "value":
            logits = ((logits - self.center) / self.spread).astype(np.float32)
        arrays: dict[str, NDArray[Any]] = {LOGITS: logits, "importance": np.ones(len(examples), dtype=np.float32)}
        if self.soft is None or not self.soft.hard:
            return arrays
        labeled = np.array([self.has_target(example) for example in examples])
        known = self.targets([example for example in examples if self.has_target(example)])
        nothing = 0 if known.dtype.kind == "f" else NOTHING
        targets = np.full((len(examples), *known.shape[1:]), nothing, dtype=known.dtype)
        targets[labeled] = known
        return arrays | {"labeled": labeled.astype(np.float32), "target": targets}

    def objective(self) -> Texts:
        return Texts(self.kind, self.outputs, self.words, self.soft)

    def prepare(self, model: LoadedModel, examples: Sequence[Example], fresh: bool) -> TextTask:
        """A trained head gives values in the units of the data; here they become distances from the mean."""
        if self.kind != "value":
            return self
        task, network = self, model.network
        if not can_shift(network):
            task = replace(self, center=0.0, spread=math.hypot(self.center, self.spread))
        if not fresh:
            rescale(network, 1 / task.spread, -task.center / task.spread)
        return task

    @contextmanager
    def saving(self, network: Any) -> Iterator[None]:
        if self.kind != "value":
            yield
            return
        moved = list(last_linear(network.heads["classify"]).parameters())
        moved += [] if len(moved) > 1 or not can_shift(network) else [last_norm(network).bias]
        before = [parameter.detach().clone() for parameter in moved]
        rescale(network, self.spread, self.center)
        try:
            yield
        finally:
            with torch.no_grad():
                for parameter, value in zip(moved, before, strict=True):
                    parameter.copy_(value)

    def encode(self, inputs: Sequence[tuple[str, ...]], tokenizer: Tokenizer, windows: Framing) -> InputWindows:
        encoded = list(pieces_in(windows, tokenizer, inputs))
        return InputWindows(windows, [some for some, _ in encoded], [lengths for _, lengths in encoded], [])

    def decode(self, logits: Sequence[Sequence[NDArray[Any]]], windows: InputWindows) -> list[Prediction]:
        """Logits, or a value in the units of the data: the mean over the windows, by the tokens that are their own."""
        predictions = []
        for number, (values, some) in enumerate(zip(logits, windows.pieces, strict=True)):
            own = np.array([max(1, piece.cut.last - piece.cut.first) for piece in some], dtype=np.float64)
            mean = (np.stack(values).astype(np.float64) * (own / own.sum())[:, None]).sum(0)
            predictions.append(Prediction(mean * self.spread + self.center, *windows.read(number)))
        return predictions

    def answer(self, prediction: Prediction, input: Any = None, **options: Any) -> Answer:
        read = prediction.reading
        if self.kind == "value":
            return Value(value=float(prediction.output[0]), **read)
        probabilities = self.probabilities(prediction)
        scores = dict(zip(self.labels, probabilities.tolist(), strict=True))
        if self.kind == "labels":
            chosen = tuple(label for label in self.labels if scores[label] >= self.thresholds.get(label, 0.5))
            return Labels(labels=chosen, scores=scores, **read)
        best = self.labels[int(probabilities.argmax())]
        return Label(label=best, score=scores[best], scores=scores, **read)

    def probabilities(self, prediction: Prediction) -> NDArray[np.float64]:
        """Of every label."""
        logits = prediction.output
        if self.kind == "labels":
            return 1 / (1 + np.exp(-np.clip(logits, -700, 700)))
        powers = np.exp(logits - logits.max())
        return powers / powers.sum()

    def mean_prediction(self, predictions: Sequence[Prediction], tasks: Sequence[Task] = ()) -> Prediction:
        """The mean of the values, or of the probabilities, as logits again."""
        if self.kind == "value":
            return replace(predictions[0], output=np.mean([each.output for each in predictions], axis=0))
        mean = np.clip(np.mean([self.probabilities(each) for each in predictions], axis=0), 1e-300, 1 - 1e-16)
        logits = np.log(mean) - (np.log1p(-mean) if self.kind == "labels" else 0.0)
        return replace(predictions[0], output=logits)

    averages = combines = True

    def align(self, labels: Sequence[str]) -> TextTask:
        return replace(self, labels=tuple(labels))

    def reorder(self, prediction: Prediction, labels: Sequence[str]) -> Prediction:
        return prediction if self.kind == "value" else reordered(prediction, labels, self.labels)

    def key(self, prediction: Prediction) -> Hashable:
        answer: Any = self.answer(prediction)
        if self.kind == "value":
            return round(answer.value, 9)
        return answer.label if self.kind == "label" else frozenset(answer.labels)

    def distance(self, prediction: Prediction, reference: Prediction, example: Example, task: Task) -> float:
        if self.kind == "value":
            return abs(float(prediction.output[0]) - float(reference.output[0]))
        shift = np.abs(self.probabilities(prediction) - self.probabilities(reference))
        return super().distance(prediction, reference, example, task) + float(shift.sum()) / (2 * len(shift))

    def describe(self, prediction: Prediction, other: Prediction, example: Example) -> str:
        answer: Any = self.answer(prediction)
        if self.kind == "value":
            return f"{answer.value:.4g}"
        return f"{answer.label} {answer.score:.3f}" if self.kind == "label" else ", ".join(answer.labels) or "none"

    def describe_target(self, example: Example) -> str:
        if self.kind == "value":
            return f"{example.target:g}"
        return str(example.target) if self.kind == "label" else ", ".join(example.target) or "none"

    def agreement(self) -> Any:
        return RegressionMetrics() if self.kind == "value" else super().agreement()

    def agree(self, counts: Any, prediction: Prediction, reference: Prediction, example: Example, task: Task) -> None:
        if self.kind == "value":
            counts.add([float(prediction.output[0])], [float(reference.output[0])])
        else:
            super().agree(counts, prediction, reference, example, task)

    @property
    def chance_metric(self) -> str:
        return {"label": "mcc", "labels": "micro_f1", "value": "pearson"}[self.kind]

    def target_parts(self, example: Example) -> Iterable[Hashable]:
        return example.target if self.kind == "labels" else ()

    def chance_level(self, counts: Counter[Hashable], rows: int) -> float:
        """The best that one and the same set of labels for every text would reach."""
        best, total = 0.0, counts.total()
        for size, taken in enumerate(accumulate(count for _, count in counts.most_common()), 1):
            best = max(best, 2 * taken / (rows * size + total))
        return best

    @property
    def unbounded(self) -> bool:  # type: ignore[override]
        return self.kind == "value"

    @property
    def metric_names(self) -> tuple[str, ...]:
        if self.kind == "value":
            return ("pearson", "spearman", "r2")
        one = ("accuracy", "macro_f1", "mcc", *(("f1",) if len(self.labels) == 2 else ()))
        return one if self.kind == "label" else ("micro_f1", "macro_f1", "exact")

    @property
    def default_metric(self) -> str:
        return {"label": "accuracy", "labels": "micro_f1", "value": "pearson"}[self.kind]

    def metrics(self) -> Any:
        if self.kind == "value":
            return RegressionMetrics()
        return ClassificationMetrics(self.labels) if self.kind == "label" else MultiLabelMetrics(self.labels)

    def add(self, metrics: Any, predictions: Sequence[Prediction], examples: Sequence[Example]) -> None:
        if self.kind == "value":
            metrics.add([float(each.output[0]) for each in predictions], [example.target for example in examples])
            return
        gold = self.targets(examples)
        if self.kind == "label":
            metrics.add([int(each.output.argmax()) for each in predictions], gold.tolist())
            return
        limits = np.array([self.thresholds.get(label, 0.5) for label in self.labels])
        metrics.add(np.stack([self.probabilities(each) >= limits for each in predictions]), gold.astype(bool))

    def tune(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> TextTask:
        """Held-out rows decide the threshold of each label of several."""
        if self.kind != "labels":
            return self
        probabilities = np.stack([self.probabilities(each) for each in predictions])
        best = best_thresholds(probabilities, self.targets(examples).astype(bool))
        return replace(self, thresholds=dict(zip(self.labels, map(float, best), strict=True)))

    def tables(self, metrics: Any) -> dict[str, Any]:
        if self.kind == "value":
            points = [
                pair for pair in zip(metrics.gold, metrics.predicted, strict=True) if all(map(math.isfinite, pair))
            ]
            some = range(len(points)) if len(points) <= POINTS else (n * len(points) // POINTS for n in range(POINTS))
            return {"points": [list(points[number]) for number in some]}
        by_label = [row._asdict() for row in metrics.table()]
        if self.kind == "labels":
            return {"by_label": by_label}
        return {"by_label": by_label, "labels": self.labels, "confusion": metrics.confusion().tolist()}

    def mistake(self, prediction: Prediction, example: Example) -> tuple[float, dict[str, str]] | None:
        shown = {"where": example.where, "text": " | ".join(example.texts)}
        if self.kind == "value":
            value = float(prediction.output[0])
            error = abs(value - example.target)
            return error, {"target": f"{example.target:g}", "prediction": f"{value:.4g}", **shown}
        probabilities = self.probabilities(prediction)
        answer: Any = self.answer(prediction)
        if self.kind == "label":
            if answer.label == example.target:
                return None
            loss = -math.log(max(float(probabilities[self.labels.index(example.target)]), 1e-300))
            return loss, {"target": example.target, "prediction": f"{answer.label} {answer.score:.3f}", **shown}
        if set(answer.labels) == set(example.target):
            return None
        gold = np.array([label in example.target for label in self.labels])
        error = float(np.abs(probabilities - gold).sum())
        return error, {"target": ", ".join(example.target), "prediction": ", ".join(answer.labels), **shown}

    def learning_from(self, settings: Any, teachers: Sequence[LoadedModel]) -> TextTask:
        return replace(self, soft=SoftTargets(settings.temperature, settings.hard))

    def same_outputs(self, other: Any) -> bool:
        return (self.labels, self.kind) == (other.labels, other.kind)

    def with_teacher_answer(self, example: Example, outputs: TeacherArrays) -> Example:
        answer = self.answer(teacher_prediction(outputs))
        return replace(example, target=vars(answer)[self.kind])

    def fit_teacher(self, examples: Sequence[Example], outputs: Sequence[TeacherArrays]) -> TextTask:
        """The mean and spread of a teacher's values."""
        if self.kind != "value":
            return self
        values = stacked(outputs, "output").astype(np.float64)
        # A teacher with one value for all texts is a poor one, but its student can still learn that.
        return replace(self, center=float(values.mean()), spread=float(values.std()) or 1.0)


# ------------------------------------------------------------------------------------------------- the head of values


def rescale(network: Any, scale: float, shift: float) -> None:
    """Make the head of values give `scale` times its output plus `shift`; without a bias, by the last norm below it."""
    output = last_linear(network.heads["classify"])
    with torch.no_grad():
        output.weight.mul_(scale)
        if output.bias is not None:
            output.bias.mul_(scale).add_(shift)
        elif shift:
            row = output.weight[0].double()
            last_norm(network).bias.add_((shift * row / row.square().sum()).to(output.weight.dtype))


def last_norm(network: Any) -> Any:
    """The norm whose output the heads read, where each head reads it as it is."""
    final = network.final_norm
    return network.layers[-1].feedforward_norm if isinstance(final, torch.nn.Identity) else final


def can_shift(network: Any) -> bool:
    """Whether the head of values can be given another mean."""
    if last_linear(network.heads["classify"]).bias is not None:
        return True
    alone = set(network.heads) == {"classify"} and network.mix is None
    return alone and "bias" in dict(last_norm(network).named_parameters())


def last_linear(head: torch.nn.Module) -> torch.nn.Linear:
    return [module for module in head.modules() if isinstance(module, torch.nn.Linear)][-1]
