"""Labels and values of whole texts and pairs: classify, multilabel, regress, pair."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from weft.checkpoint.card import Card
from weft.data.columns import NAMES, file_of, is_one, number_in, word_in, words_in_list
from weft.data.dataset import FEW, Unlabeled
from weft.errors import UserError, listed, shown
from weft.metrics.classification import ClassificationMetrics, MultiLabelMetrics, best_thresholds
from weft.metrics.numeric import RegressionMetrics
from weft.tasks.answers import Answer, Label, Labels, Value
from weft.tasks.base import Difference, Example, Prediction, Task, TeacherArrays, TeacherRows
from weft.tasks.forward import InputWindows, pieces_in, softmax, stacked, tokenizer_of
from weft.tasks.targets import LogitTarget, Term, read_texts, target_of
from weft.text.records import Record
from weft.text.tables import folded
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.windows import Framing, TextWindow

if TYPE_CHECKING:  # an exported model answers without torch
    from weft.checkpoint.folder import LoadedModel
    from weft.data.examples import Examples
    from weft.objectives.losses import SoftTargets, Texts

POINTS = 1000  # predicted and true values that an evaluation keeps for a scatter


def check_labels(counts: Counter[str], labels: Sequence[str], where: str) -> None:
    """Refuse what nothing can be learned from: one label only, or a label that no row has."""
    empty = [label for label in labels if not counts[label]]
    if empty:
        raise UserError(f"{where}: no row has the label {shown(empty[0])!r}, so nothing can be learned about it")
    if len(counts) == counts.total() >= FEW or (counts.total() >= 20 and len(counts) > 0.8 * counts.total()):
        raise UserError(
            f"{where}: {len(counts):,} different labels for {counts.total():,} rows, such as "
            f"{shown(next(iter(counts)))!r}: they look like ids; give --column label=NAME; for numbers: --task regress"
        )
    if len(labels) < 2 and len(counts) < 2:
        only = f"every row has the label {shown(labels[0])!r}" if labels else "no row has a label"
        raise UserError(f"{where}: {only}: there is nothing to tell apart")


@dataclass(frozen=True)
class TextTask(Task):
    """A label for each text or pair; what it shares with the tasks that give several labels or a value."""

    name: str = "classify"
    pair: bool = False
    labels: tuple[str, ...] = ()
    center: float = 0.0  # the network learns values as distances from their mean ...
    spread: float = 1.0  # ... in units of their standard deviation
    balanced: bool = False  # rows of rare labels count more
    words: float = 0.0  # weight of the next-token loss beside that of the task
    thresholds: Mapping[str, float] = field(default_factory=dict)
    either: bool = False  # a published folder does not say whether it reads texts or pairs
    soft: SoftTargets | None = None  # how a student learns from its teacher

    kind: ClassVar[Literal["label", "labels", "value"]] = "label"  # of its targets: their column, and an answer's field
    settings: ClassVar[tuple[str, ...]] = ("class_weights", "labels", "words")
    head = "classify"
    linear_baseline = True
    windowed = True
    overlap = 0.125
    averages = combines = True
    prediction_columns: ClassVar[tuple[str, ...]] = ("prediction", "probability")
    chance_metric = "mcc"

    @classmethod
    def from_recipe(cls, work: Any, data: Any) -> TextTask:
        cls.check_recipe(work)
        return cls(work.name, work.name == "pair", balanced=work.class_weights == "balanced", words=work.words)

    @classmethod
    def from_model(cls, model: LoadedModel, name: str) -> TextTask:
        outputs, labels = model.heads["classify"], model.card.labels
        if name == "pair" and labels is None and outputs == 1:
            return ValueTask(name, True)
        names = labels or tuple(f"LABEL_{number}" for number in range(outputs))
        either = name == "classify" and model.card.task is None
        return cls(name, name == "pair", names, thresholds=model.card.thresholds, either=either)

    def to_card(self, card: Card) -> Card:
        return replace(card, labels=self.labels or None, thresholds=dict(self.thresholds))

    def columns(self, record: Record, given: Mapping[str, str]) -> tuple[TextTask, tuple[str, ...]]:
        """A pair has labels, or values where there is a column of numbers only."""
        task = self
        if self.name == "pair" and self.kind == "label" and not self.labels and "label" not in given:
            labeled = any(name in record.values for name in NAMES["label"])
            valued = any(name in record.values for name in NAMES["value"] if name not in NAMES["label"])
            if "value" in given or (valued and not labeled):
                task = ValueTask("pair", True, words=self.words)
        return task, (*self.input_columns(record, given), task.kind)

    def read(self, record: Record, columns: Mapping[str, str]) -> Example:
        cell: Any = {"label": word_in, "labels": words_in_list, "value": number_in}[self.kind]
        target = cell(record, columns[self.kind])
        if target == "-1" and self.labels and target not in self.labels:  # so test files say that labels are secret
            raise Unlabeled(f"{record.where}: column {shown(columns[self.kind])!r} holds -1: no label")
        return replace(self.read_input(record, columns), target=target)

    def check_input(self, where: str, value: Any) -> tuple[str, ...]:
        return self.texts_of(super().check_input(where, value))

    def to_record(self, example: Example) -> dict[str, Any]:
        return {**dict(zip(("text", "pair"), example.texts, strict=False)), self.kind: example.target}

    def fit_labels(self, examples: Sequence[Example], labels: Sequence[str] = ()) -> TextTask:
        """Labels in an order that does not depend on the file: numbers by size, words by letters."""
        counts = Counter(label for example in examples for label in self.labels_of(example))
        names = list(labels) or sorted(counts)
        if not labels and all(re.fullmatch(r"-?\d{1,9}", label) for label in names):
            names.sort(key=int)
        if self.kind != "labels" or len(names) != 1 or counts[names[0]] in (0, len(examples)):
            check_labels(counts, names, file_of(examples[0].where))  # one label that some rows have is learned too
        return replace(self, labels=tuple(names))

    def labels_of(self, example: Example) -> tuple[str, ...]:
        return {"label": (example.target,), "labels": example.target, "value": ()}[self.kind]

    def label_notes(self) -> list[str]:
        """Labels that are most likely one label, written in several ways."""
        ways: dict[str, list[str]] = {}
        for label in self.labels:
            ways.setdefault(" ".join(label.casefold().split()), []).append(label)
        several = [repr(shown(label)) for same in ways.values() if len(same) > 1 for label in same]
        note = f"labels that differ only in case or spaces are learned as different ones: {listed(several, 6)}"
        return [note] if several else []

    def groups(self, examples: Sequence[Example]) -> list[Any]:
        """Their labels; the rarest of several: whole sets are often all different, and none would give a row."""
        every = [self.labels_of(example) for example in examples]
        counts = Counter(label for labels in every for label in labels)
        return [min(labels, key=lambda label: (counts[label], label), default="") for labels in every]

    def check_targets(self, examples: Sequence[Example]) -> None:
        self.targets(examples)

    def targets(self, examples: Sequence[Example]) -> NDArray[Any]:
        """E, or E C of several labels: the targets as the network learns them."""
        return np.array([self.label_number(e.target, e.where) for e in examples], dtype=np.int64)

    def dataset(
        self, examples: Sequence[Example], model: LoadedModel, windows: Framing, teacher_outputs: TeacherRows = None
    ) -> Examples:
        from weft.data.examples import ExamplesBuilder
        from weft.data.masking import NOTHING
        from weft.objectives.losses import LOGITS

        arrays: dict[str, NDArray[Any]] = {"importance": np.ones(len(examples), dtype=np.float32)}
        if teacher_outputs is None:
            arrays["target"] = targets = self.targets(examples)
            if self.balanced:
                counts = np.bincount(targets, minlength=len(self.labels))
                importance = len(examples) / (np.count_nonzero(counts) * counts[targets])
                arrays["importance"] = importance.astype(np.float32)
        else:
            arrays[LOGITS] = ((stacked(teacher_outputs, "output") - self.center) / self.spread).astype(np.float32)
            if self.soft is not None and self.soft.hard:
                labeled = np.array([self.has_target(example) for example in examples])
                known = self.targets([example for example in examples if self.has_target(example)])
                nothing = 0 if known.dtype.kind == "f" else NOTHING
                targets = np.full((len(examples), *known.shape[1:]), nothing, dtype=known.dtype)
                targets[labeled] = known
                arrays |= {"labeled": labeled.astype(np.float32), "target": targets}
        builder = ExamplesBuilder()
        for some, _ in self.windows_of([example.texts for example in examples], tokenizer_of(model), windows):
            builder.add(some)
        return builder.examples(arrays, segments=windows.marks(self.pair), next_words=self.words > 0)

    def windows_of(
        self, texts: Sequence[tuple[str, ...]], tokenizer: Tokenizer, windows: Framing
    ) -> Iterator[tuple[list[TextWindow], tuple[int, ...]]]:
        """The windows of each text or pair that count, and how many tokens its texts have."""
        return pieces_in(windows, tokenizer, texts)

    def objective(self) -> Texts:
        from weft.objectives.losses import Texts

        return Texts(self.kind, self.outputs, self.words, self.soft)

    def encode(self, inputs: Sequence[tuple[str, ...]], tokenizer: Tokenizer, windows: Framing) -> InputWindows:
        encoded = list(self.windows_of(inputs, tokenizer, windows))
        return InputWindows(windows, [some for some, _ in encoded], [lengths for _, lengths in encoded], [])

    def decode(self, logits: Sequence[Sequence[NDArray[Any]]], windows: InputWindows) -> list[Prediction]:
        """Logits, or a value in the units of the data: the mean over the windows, by the tokens that are their own."""
        predictions = []
        for number, (values, some) in enumerate(zip(logits, windows.pieces, strict=True)):
            own = np.array([max(1, piece.cut.last - piece.cut.first) for piece in some], dtype=np.float64)
            mean = (np.stack(values).astype(np.float64) * (own / own.sum())[:, None]).sum(0)
            predictions.append(Prediction(mean * self.spread + self.center, *windows.read(number)))
        return predictions

    def logit_target(self, model: LoadedModel, windows: Framing, input: Any, target: Any) -> LogitTarget:
        """The logit of a label, by default the best one: the mean over the windows, as in `decode`."""
        encoded = self.encode([input], tokenizer_of(model), windows)
        name, output = self.target_output(self.predict(model, windows, [input])[0], target)
        own = [max(1, window.cut.last - window.cut.first) for window in encoded.pieces[0]]
        terms = [Term(number, None, output, size / sum(own)) for number, size in enumerate(own)]
        texts = read_texts(tokenizer_of(model), input)
        return target_of(name, self.head, terms, windows, encoded.pieces[0], texts)

    def target_output(self, prediction: Prediction, target: Any) -> tuple[str, int]:
        """The name of the label that is explained, and its number."""
        number = int(prediction.output.argmax()) if target is None else self.label_number(str(target), "target")
        return self.labels[number], number

    def answer(self, prediction: Prediction, input: Any = None, **options: Any) -> Answer:
        scores = self.scores(prediction)
        best = max(scores, key=lambda label: scores[label])
        return Label(label=best, score=scores[best], scores=scores, **prediction.reading)

    def scores(self, prediction: Prediction) -> dict[str, float]:
        """The probability of every label."""
        return dict(zip(self.labels, self.probabilities(prediction).tolist(), strict=True))

    def probabilities(self, prediction: Prediction) -> NDArray[np.float64]:
        """Of every label."""
        return softmax(prediction.output)

    def mean_prediction(self, predictions: Sequence[Prediction], tasks: Sequence[Task] = ()) -> Prediction:
        """The mean of the probabilities, as logits again."""
        mean = np.clip(np.mean([self.probabilities(each) for each in predictions], axis=0), 1e-300, 1 - 1e-16)
        logits = np.log(mean) - (np.log1p(-mean) if self.kind == "labels" else 0.0)
        return replace(predictions[0], output=logits)

    def key(self, prediction: Prediction) -> Hashable:
        return self.answer(prediction).decision

    def compare(self, prediction: Prediction, reference: Prediction, example: Example, task: Any) -> Difference:
        counted, distance = super().compare(prediction, reference, example, task)
        shift = np.abs(self.probabilities(prediction) - self.probabilities(reference))
        return counted, distance + float(shift.sum()) / (2 * len(shift))

    @property
    def metric_names(self) -> tuple[str, ...]:
        return ("accuracy", "macro_f1", "mcc", *(("f1",) if len(self.labels) == 2 else ()))

    def metrics(self) -> Any:
        return ClassificationMetrics(self.labels)

    def add(self, metrics: Any, predictions: Sequence[Prediction], examples: Sequence[Example]) -> None:
        metrics.add([int(each.output.argmax()) for each in predictions], self.targets(examples).tolist())

    def tables(self, metrics: Any) -> dict[str, Any]:
        more = {"labels": self.labels, "confusion": metrics.confusion().tolist()} if self.kind == "label" else {}
        return super().tables(metrics) | more

    def loss(self, prediction: Prediction, example: Example) -> float | None:
        if self.key(prediction) == example.target:
            return None
        return -math.log(max(self.scores(prediction)[example.target], 1e-300))

    def with_teacher_answer(self, example: Example, outputs: TeacherArrays) -> Example:
        return replace(example, target=vars(self.answer(Prediction.of_teacher(outputs)))[self.kind])


@dataclass(frozen=True)
class MultilabelTask(TextTask):
    """Several labels, or none, for each text."""

    name: str = "multilabel"
    indicators: tuple[str, ...] = ()  # columns of 0 and 1, one for each label, in place of a column of labels

    kind = "labels"
    settings = ("labels", "words")
    empty_targets = True
    prediction_columns = ("prediction", "probabilities")
    chance_metric = "micro_f1"
    metric_names = ("micro_f1", "macro_f1", "exact")

    def columns(self, record: Record, given: Mapping[str, str]) -> tuple[TextTask, tuple[str, ...]]:
        usual = {folded(name) for name in NAMES["labels"]}
        if "labels" not in given and not usual & set(map(folded, record.values)):
            flags = record.likely.get("indicators", "")
            known = self.labels if all(label in record.values for label in self.labels) else ()  # those of a model
            if known or (flags and not self.labels):
                return replace(self, indicators=known or tuple(flags.split("\t"))), self.input_columns(record, given)
        return super().columns(record, given)

    def read(self, record: Record, columns: Mapping[str, str]) -> Example:
        if self.kind in columns:
            return super().read(record, columns)
        labels = tuple(name for name in self.indicators if is_one(record, name))
        return replace(self.read_input(record, columns), target=labels)

    def label_notes(self) -> list[str]:
        note = f"the columns {listed(self.indicators, 12)} of 0 and 1 are taken for the labels"
        return [*([note] if self.indicators else []), *super().label_notes()]

    def targets(self, examples: Sequence[Example]) -> NDArray[Any]:
        targets = np.zeros((len(examples), len(self.labels)), dtype=np.int8)
        for row, example in enumerate(examples):
            for label in example.target:
                targets[row, self.label_number(label, example.where)] = 1
        return targets

    def answer(self, prediction: Prediction, input: Any = None, **options: Any) -> Answer:
        scores = self.scores(prediction)
        chosen = tuple(label for label in self.labels if scores[label] >= self.thresholds.get(label, 0.5))
        return Labels(labels=chosen, scores=scores, **prediction.reading)

    def probabilities(self, prediction: Prediction) -> NDArray[np.float64]:
        return 1 / (1 + np.exp(-np.clip(prediction.output, -700, 700)))

    def describe_target(self, example: Example) -> str:
        return ", ".join(example.target) or "(none)"

    def chance_level(self, counts: Counter[Hashable], rows: int) -> float:
        """The best that one and the same set of labels for every text would reach."""
        best, total = 0.0, counts.total()
        for size, taken in enumerate(accumulate(count for _, count in counts.most_common()), 1):
            best = max(best, 2 * taken / (rows * size + total))
        return best

    def metrics(self) -> Any:
        return MultiLabelMetrics(self.labels)

    def add(self, metrics: Any, predictions: Sequence[Prediction], examples: Sequence[Example]) -> None:
        limits = np.array([self.thresholds.get(label, 0.5) for label in self.labels])
        chosen = np.stack([self.probabilities(each) >= limits for each in predictions])
        metrics.add(chosen, self.targets(examples).astype(bool))

    def tune(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> MultilabelTask:
        """Held-out rows decide the threshold of each label."""
        probabilities = np.stack([self.probabilities(each) for each in predictions])
        best = best_thresholds(probabilities, self.targets(examples).astype(bool))
        return replace(self, thresholds=dict(zip(self.labels, map(float, best), strict=True)))

    def loss(self, prediction: Prediction, example: Example) -> float | None:
        answer: Any = self.answer(prediction)
        if set(answer.labels) == set(example.target):
            return None
        gold = np.array([label in example.target for label in self.labels])
        return float(np.abs(self.probabilities(prediction) - gold).sum())


@dataclass(frozen=True)
class ValueTask(TextTask):
    """A number for each text or pair."""

    name: str = "regress"

    kind = "value"
    settings = ("words",)
    outputs = 1
    unbounded = True
    prediction_columns = ("prediction",)
    chance_metric = "pearson"
    metric_names = ("pearson", "spearman", "r2")

    @classmethod
    def from_model(cls, model: LoadedModel, name: str) -> ValueTask:
        return cls(name)

    @classmethod
    def check_model(cls, model: LoadedModel, name: str) -> None:
        super().check_model(model, name)
        if model.heads["classify"] != 1:
            raise UserError(f"a head of {model.heads['classify']} outputs gives no value")

    def fit_labels(self, examples: Sequence[Example], labels: Sequence[str] = ()) -> ValueTask:
        values = np.array([example.target for example in examples])
        if values.std() == 0:
            where = file_of(examples[0].where)
            raise UserError(f"{where}: every row has the value {values[0]:g}: there is nothing to learn")
        return replace(self, center=float(values.mean()), spread=float(values.std()))

    def targets(self, examples: Sequence[Example]) -> NDArray[Any]:
        values = np.array([example.target for example in examples], dtype=np.float64)
        return ((values - self.center) / self.spread).astype(np.float32)

    def prepare(self, model: LoadedModel, examples: Sequence[Example], fresh: bool) -> ValueTask:
        """A trained head gives values in the units of the data; here they become distances from the mean."""
        from weft.tasks.value_head import can_shift, rescale

        task, network = self, model.network
        if not can_shift(network):
            task = replace(self, center=0.0, spread=math.hypot(self.center, self.spread))
        if not fresh:
            rescale(network, 1 / task.spread, -task.center / task.spread)
        return task

    @contextmanager
    def saving(self, network: Any) -> Iterator[None]:
        from weft.tasks.value_head import rescaled

        with rescaled(network, self.spread, self.center):
            yield

    def target_output(self, prediction: Prediction, target: Any) -> tuple[str, int]:
        if target not in (None, "value"):
            raise UserError(
                f"target {shown(str(target))!r}: a model for {self.name} has one value; leave out the target"
            )
        return "value", 0

    def answer(self, prediction: Prediction, input: Any = None, **options: Any) -> Answer:
        return Value(value=float(prediction.output[0]), **prediction.reading)

    def mean_prediction(self, predictions: Sequence[Prediction], tasks: Sequence[Task] = ()) -> Prediction:
        return replace(predictions[0], output=np.mean([each.output for each in predictions], axis=0))

    def key(self, prediction: Prediction) -> Hashable:
        return round(float(prediction.output[0]), 9)

    def compare(self, prediction: Prediction, reference: Prediction, example: Example, task: Any) -> Difference:
        one, two = float(prediction.output[0]), float(reference.output[0])
        return ([one], [two]), abs(one - two)

    def describe_target(self, example: Example) -> str:
        return f"{example.target:g}"

    def metrics(self) -> Any:
        return RegressionMetrics()

    agreement = metrics

    def add(self, metrics: Any, predictions: Sequence[Prediction], examples: Sequence[Example]) -> None:
        metrics.add([float(each.output[0]) for each in predictions], [example.target for example in examples])

    def tables(self, metrics: Any) -> dict[str, Any]:
        points = [pair for pair in zip(metrics.gold, metrics.predicted, strict=True) if all(map(math.isfinite, pair))]
        some = range(len(points)) if len(points) <= POINTS else (n * len(points) // POINTS for n in range(POINTS))
        return {"points": [list(points[number]) for number in some]}

    def loss(self, prediction: Prediction, example: Example) -> float:
        return abs(float(prediction.output[0]) - example.target)

    def fit_teacher(self, examples: Sequence[Example], outputs: Sequence[TeacherArrays]) -> ValueTask:
        """The mean and spread of a teacher's values."""
        values = stacked(outputs, "output").astype(np.float64)
        # A teacher with one value for all texts is a poor one, but its student can still learn that.
        return replace(self, center=float(values.mean()), spread=float(values.std()) or 1.0)
