"""The interface of a task: everything that the package has to know about one kind of answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from weft.checkpoint.card import Card, Window
from weft.checkpoint.families import Family
from weft.checkpoint.folder import LoadedModel
from weft.data.columns import find_columns, text_in
from weft.errors import UserError, listed, shown
from weft.metrics.bootstrap import Ratios
from weft.objectives.losses import SoftTargets
from weft.progress import Log
from weft.tasks.forward import InputWindows, chunked, framing_for, head_outputs, tokenizer_of, window_for
from weft.text.records import Record
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.windows import Framing, words_in

Columns = dict[str, str]  # what a file calls the columns of a task
# The outputs of a teacher for one example, as the cache keeps them: arrays of at least one dimension each; a name that
# an example lacks comes back as an empty array where others of its shard have it.
TeacherArrays = Mapping[str, NDArray[Any]]
Difference = tuple[tuple[Any, ...], float]  # of two predictions: see `Task.compare`
TeacherRows = Sequence[TeacherArrays] | None  # for each example, where there is a teacher


@dataclass(frozen=True)
class Example:
    """One row of a user's data as a task takes it."""

    texts: tuple[str, ...]  # one, or two for a pair; question and context
    target: Any  # None where it is not known
    where: str
    numbers: bytes = b""  # of a vector, in place of texts: in single precision, so that many rows fit into memory


@dataclass(frozen=True)
class Prediction:
    """The output of a network for one example (logits, spans, a written text), and how much of it was read."""

    output: Any
    n_tokens: int
    n_windows: int
    truncated: bool

    @property
    def reading(self) -> dict[str, Any]:
        """How much was read, as every answer says it."""
        return {"n_tokens": self.n_tokens, "n_windows": self.n_windows, "truncated": self.truncated}


class Normalization:
    """Rewrites the targets of one file into the form that a model has; this one changes nothing."""

    def __call__(self, example: Example) -> Example:
        return example

    def note(self) -> str | None:
        """What was rewritten."""
        return None


class Task(ABC):
    """What a model is for: rows of data in, typed answers out; learned, scored, compared and taught through this."""

    name: str
    head: str = ""  # of the network; "": the task reads hidden states
    labels: tuple[str, ...] = ()
    settings: ClassVar[tuple[str, ...]] = ()  # of the section [task] of a recipe, beside its name
    needs: ClassVar[str] = ""  # what a family must do beside having the head, for messages
    pair: bool = False  # it reads two texts at a time ...
    either: bool = False  # ... or one, or two as a tuple
    pair_order: ClassVar[str] = "one, then the other"  # ... in this order
    writes: ClassVar[bool] = False  # its output is generated text
    supervised: ClassVar[bool] = True  # learned from and evaluated on rows with targets
    parallel: ClassVar[bool] = False  # its rows may also come from two files, line for line
    linear_baseline: ClassVar[bool] = False  # a linear model can be trained for it
    by_token: ClassVar[bool] = False  # its head gives an output for each token
    loss_by_token: ClassVar[bool] = False  # its losses can be compared for one vocabulary only
    overlap: ClassVar[float] = 0.0  # share of a window that the next one repeats
    whole_groups: ClassVar[bool] = False  # all rows of a group stand on one side of a split
    language_model: ClassVar[bool] = False  # a student learns the next tokens of texts from it
    joint_teachers: ClassVar[bool] = False  # several teachers predict together: one is run, which knows the others
    embeds: ClassVar[bool] = False  # it asks a network for nothing but vectors of texts
    gives_vectors: ClassVar[bool] = False  # a network exported for it gives vectors of texts too
    independent: ClassVar[bool] = True  # an answer depends on its own input alone
    comparable: ClassVar[bool] = True  # its models can be compared on rows
    empty_targets: ClassVar[bool] = False  # an empty cell is a target: no labels, no answer
    prediction_columns: ClassVar[tuple[str, ...]] = ("prediction",)  # that its answers add to a table; none: no rows
    averages: ClassVar[bool] = False  # `mean_prediction`: the predictions of several models have a mean ...
    combines: ClassVar[bool] = False  # ... of which one answer can be made
    unbounded: ClassVar[bool] = False  # its outputs are numbers of any size, not probabilities
    run: ClassVar[Callable[..., list[Any]] | None] = None  # a function that answers; None: by predictions
    timing_options: ClassVar[Mapping[str, Any]] = {}  # of a call that is timed

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Those by which the best model may be chosen; the first unless another is asked for."""
        return ()

    @property
    def default_metric(self) -> str:
        return next(iter(self.metric_names), "")

    # ---------------------------------------------------------------------------------------------------------- data

    @classmethod
    def from_recipe(cls, work: Any, data: Any) -> Task:
        """The task of the sections [task] and [data] of a recipe, before its rows are read."""
        if not cls.supervised:
            raise UserError(f"{work.name} is not learned from rows")
        cls.check_recipe(work)
        return cls()

    @classmethod
    def check_recipe(cls, work: Any, *more: str) -> None:
        """Refuse a setting of the section [task] that does not apply to this task."""
        given = {
            "class_weights = balanced": work.class_weights == "balanced" and "class_weights",
            "words": work.words and "words",
            "labels": work.labels and "labels",
            "prefix": work.prefix is not None and "prefix",
        }
        for setting, name in given.items():
            if name and name not in (*cls.settings, *more):
                raise UserError(f"{setting} does not apply to {work.name}")

    @classmethod
    @abstractmethod
    def from_model(cls, model: LoadedModel, name: str) -> Task:
        """The task of a model folder, by its card and its heads."""

    @classmethod
    def check_model(cls, model: LoadedModel, name: str) -> None:
        """Refuse a model that cannot do this task."""
        if cls.supervised and cls.head not in model.heads:
            has = listed(model.heads) or "none"
            raise UserError(f"has no head for {name}: it has {has}; weft finetune --task {name} makes one")
        if cls.writes and cls.supervised and not cls.fits(model.family):
            raise UserError(f"{name} needs a model that {cls.needs}, not {model.family.name}")

    @classmethod
    def fits(cls, family: Family) -> bool:
        """Whether a family can be fine-tuned for this task."""
        return cls.head in family.names.heads and not family.reads

    def to_card(self, card: Card) -> Card:
        """The card with the labels, thresholds and settings of this task."""
        return replace(card, labels=self.labels) if self.labels else card

    @property
    def outputs(self) -> int:
        """How many outputs its head has."""
        return len(self.labels)

    def input_columns(self, record: Record, given: Mapping[str, str]) -> tuple[str, ...]:
        """Which columns a model reads: all of `columns` but the targets."""
        return ("text", "pair") if self.pair else ("text",)

    def columns(self, record: Record, given: Mapping[str, str]) -> tuple[Task, tuple[str, ...]]:
        """Which columns rows with targets have; the first of them may decide what kind of task it is."""
        return self, self.input_columns(record, given)

    def read(self, record: Record, columns: Mapping[str, str]) -> Example:
        """A row with its target."""
        return self.read_input(record, columns)

    def read_input(self, record: Record, columns: Mapping[str, str]) -> Example:
        """A row without a target."""
        names = self.input_columns(record, columns)
        return Example(tuple(text_in(record, columns[name]) for name in names), None, record.where)

    def has_target(self, example: Example) -> bool:
        return example.target is not None

    # -------------------------------------------------------------------------------------------------------- inputs

    @property
    def expected(self) -> str:
        """What a call may be given, for messages."""
        if self.pair:
            return "a tuple of two texts, a list of them, or a table with columns text and pair"
        return "a text, a list of texts, or a table (a data frame, dicts) with a column text"

    def is_input(self, value: Any) -> bool:
        """Whether a value is one input, rather than several."""
        if isinstance(value, tuple):
            self.check_item("", value)
        return isinstance(value, str | tuple)

    def is_row(self, values: Mapping[str, Any]) -> bool:
        """Whether a dict with lists in it is one row, rather than columns."""
        return False

    def check_item(self, where: str, value: Any) -> None:
        """Refuse what cannot be an input; `where`: which of several."""
        if isinstance(value, tuple) and not (self.pair or self.either):
            raise UserError(f"{where}a model for {self.name} reads one text at a time, not a tuple: give a list")
        if not self.pair and not isinstance(value, str | tuple | list):
            kind = repr(value) if value is None or isinstance(value, bool | int | float) else type(value).__name__
            raise UserError(f"{where}a text is expected, not {kind}")

    def check_input(self, number: int, value: Any) -> Any:
        """The `number`-th input of a call as the task takes it."""
        if not isinstance(value, str):
            raise UserError(f"input {number}: a text is expected")
        return value

    def word_spans(self, example: Example) -> list[Sequence[tuple[int, int]]]:
        """The words of each text, by characters."""
        return [words_in(text) for text in example.texts]

    def with_texts(self, example: Example, texts: Sequence[str], words: Sequence[Any]) -> Example:
        """The example with other texts, and without a target."""
        return replace(example, texts=tuple(texts), target=None)

    def find_inputs(self, record: Record, given: Mapping[str, str], note: Log = lambda text: None) -> Columns:
        """What a file calls the columns that a model reads, by its first row."""
        names = self.input_columns(record, given)
        return find_columns(names, {name: given[name] for name in names if name in given}, record, note)

    def partial_columns(self, record: Record, given: Mapping[str, str], note: Log) -> tuple[Task, Columns, Columns]:
        """The columns of inputs, and the same with those of targets: none where a file has no targets."""
        inputs = self.find_inputs(record, given, note)
        task, names = self.columns(record, given)
        try:  # by their names alone: not every column of few values holds labels of this task
            return task, inputs, find_columns(names, {**inputs, **given}, record, guess=False)
        except UserError:
            if any(name in given and given[name] in record.values for name in names if name not in inputs):
                raise
            return task, inputs, {}

    def row_input(self, record: Record, columns: Mapping[str, str]) -> Any:
        """What a call is given for a row; an empty cell is an empty text."""
        texts = tuple(text_in(record, column, empty=True) for column in columns.values())
        return texts if self.pair else texts[0]

    def texts_of(self, value: Any) -> tuple[str, ...]:
        """The texts of what a call is given."""
        return (value,) if isinstance(value, str) else tuple(value)

    def inputs(self, example: Example) -> Any:
        """What a model reads of an example."""
        return example.texts

    def to_record(self, example: Example) -> dict[str, Any]:
        """An example as a row of a table, which `read` reads again."""
        raise NotImplementedError

    def normalization(self, examples: Sequence[Example] = (), labels: Sequence[str] = ()) -> Normalization:
        """How targets of a file are rewritten into the form of the labels, else into that of the examples."""
        return Normalization()

    def select(self, examples: Sequence[Example], log: Log) -> list[Example]:
        """The examples that something can be learned from."""
        return list(examples)

    def fit_labels(self, examples: Sequence[Example], labels: Sequence[str] = ()) -> Task:
        """The task with what the training rows decide: its labels in order, the mean and spread of values."""
        return self

    def labels_of(self, example: Example) -> tuple[str, ...]:
        """The labels of a whole example, where it has some."""
        return ()

    def column_note(self, names: Sequence[str]) -> str | None:
        """What a user should know about the columns that were chosen."""
        return None

    def label_note(self) -> str | None:
        """What a user should know about the labels."""
        return None

    def swap_note(self, examples: Sequence[Example], where: str, profiles: Mapping[str, Any] | None = None) -> str:
        """A line where source and target look exchanged, by `profiles` or by what the task has learned; else ""."""
        return ""

    def groups(self, examples: Sequence[Example]) -> list[Any]:
        """What the held-out rows should have their share of; with `whole_groups`, what is never parted."""
        return ["" for _ in examples]

    def check_targets(self, examples: Sequence[Example]) -> None:  # noqa: B027
        """Refuse a target that the task does not know."""

    def check_format(self, example: Example) -> None:
        """Refuse a target that a model cannot be evaluated on; a label that it does not know is a mistake only."""
        self.check_targets([example])

    def merge_references(self, examples: Iterable[Example]) -> Iterable[Example]:
        """The examples as they are evaluated: several targets of one input become one example."""
        return examples

    def dataset(
        self, examples: Sequence[Example], model: LoadedModel, windows: Framing, teacher_outputs: TeacherRows = None
    ) -> Any:
        """The examples as a source of batches, by the tokens of this model; with soft targets of a teacher."""
        raise NotImplementedError

    # ------------------------------------------------------------------------------------------------------- learning

    def objective(self) -> Any:
        """What a network learns by."""
        raise NotImplementedError

    def network_settings(self) -> dict[str, Any]:
        """Settings of a new network that the rows decide."""
        return {}

    def prepare(self, model: LoadedModel, examples: Sequence[Example], fresh: bool) -> Task:
        """Make a network ready to learn; the task with what the network decides. `fresh`: its weights are new."""
        return self

    @contextmanager
    def saving(self, network: Any) -> Iterator[None]:
        """While a network is saved, it gives its outputs in the units of the data."""
        yield

    def window(self, model: LoadedModel, length: int | None, stride: int | None, long: str) -> Window:
        """The window asked for, else all that the model can read."""
        return window_for(model, length, stride, long, self.overlap)

    def card_window(self, window: Window, dataset: Any) -> Window:
        """The window that the card keeps."""
        return window

    def sample(self, examples: Sequence[Example]) -> Sequence[Example]:
        """The held-out examples that a run is evaluated on while it learns."""
        return examples

    def metric_package(self, metric: str) -> str | None:
        """The optional package that a metric needs."""
        return None

    # ------------------------------------------------------------------------------------------------------ answering

    def encode(self, inputs: Sequence[Any], tokenizer: Tokenizer, windows: Framing) -> InputWindows:
        """The inputs as windows of tokens."""
        raise UserError(f"a model for {self.name} makes no predictions before its answers")

    def decode(self, logits: Sequence[Sequence[NDArray[Any]]], windows: InputWindows) -> list[Prediction]:
        """A prediction for each input, by the outputs of its windows."""
        raise NotImplementedError

    def predict(self, model: LoadedModel, windows: Framing, inputs: Sequence[Any]) -> list[Prediction]:
        """A prediction for each input: encoded, passed through the network, decoded."""
        encoded = self.encode(inputs, tokenizer_of(model), windows)
        return self.decode(head_outputs(model, encoded, self.head, self.by_token), encoded)

    def answer(self, prediction: Prediction, input: Any, **options: Any) -> Any:
        """A prediction for people."""
        return prediction.output

    def answers(self, model: LoadedModel, inputs: Sequence[Any], **options: Any) -> list[Any]:
        """An answer to each input; `others`: models of the same labels, whose predictions are combined with it."""
        if self.run is not None:
            return self.run(model, inputs, **options)
        others: Sequence[LoadedModel] = options.pop("others", ())
        checked = [self.check_input(number, value) for number, value in enumerate(inputs, 1)]
        if others and not self.combines:
            raise UserError(f"models for {self.name} cannot answer together; those that classify or generate can")
        parts: list[tuple[Task, LoadedModel]] = [(self, model)]
        for number, other in enumerate(others, 2):
            if self.head not in other.heads or other.card.task not in (None, self.name):
                made = other.card.task or other.family.task
                raise UserError(f"model {number} is made for {made}, the first for {self.name}")
            task = self.from_model(other, self.name)
            if task.labels != self.labels or task.outputs != self.outputs:
                ours, theirs = (", ".join(each.labels) or "values" for each in (self, task))
                raise UserError(f"model {number} has the labels {shown(theirs)}, not {shown(ours)} as the first")
            parts.append((task, other))
        answers = []
        for some in chunked(zip(inputs, checked, strict=True), lambda pair: sum(map(len, self.texts_of(pair[0])))):
            chunk = [input for _, input in some]
            predictions = [task.predict(each, framing_for(each), chunk) for task, each in parts]
            for input, *same in zip(chunk, *predictions, strict=True):
                answers.append(self.answer(self.mean_prediction(same) if others else same[0], input, **options))
        return answers

    def stream(self, model: LoadedModel, input: Any, **options: Any) -> Any:
        """The answer to one input, piece by piece."""
        raise UserError(f"a model for {self.name} writes nothing that could be streamed")

    # ------------------------------------------------------------------------------------------------------ comparing

    def align(self, labels: Sequence[str]) -> Task:
        """The task with the labels of all models that are compared, in one order."""
        task: Any = self
        return replace(task, labels=tuple(labels)) if labels else self

    def reorder(self, prediction: Prediction, labels: Sequence[str]) -> Prediction:
        """The prediction of a model with these labels in the order of this task's; a missing one is impossible."""
        if tuple(labels) == self.labels:
            return prediction
        places = {label: number for number, label in enumerate(labels)}
        logits = np.full((*prediction.output.shape[:-1], len(self.labels)), -np.inf, dtype=prediction.output.dtype)
        known = [number for number, label in enumerate(self.labels) if label in places]
        logits[..., known] = prediction.output[..., [places[self.labels[number]] for number in known]]
        return replace(prediction, output=logits)

    def is_finite(self, prediction: Prediction) -> bool:
        """Whether a prediction consists of numbers, with no NaN and no infinity."""
        return bool(np.isfinite(prediction.output).all())

    def key(self, prediction: Prediction) -> Hashable:
        """A value that is equal where two answers are."""
        raise NotImplementedError

    def compare(self, prediction: Prediction, reference: Prediction, example: Example, task: Any) -> Difference:
        """What `agreement` counts of two predictions, and how far apart they are; `task` is that of the reference."""
        same = self.key(prediction) == task.key(reference)
        return ({"same": (float(same), 1.0)},), float(not same)

    def describe(self, prediction: Prediction, other: Prediction, example: Example) -> str:
        """A prediction in words, where it differs from the other."""
        return str(self.key(prediction))

    def describe_target(self, example: Example) -> str:
        """The target in words."""
        return str(example.target)

    def agreement(self) -> Any:
        """An empty count of how often two models agree."""
        return Ratios(("same",))

    @property
    def chance_metric(self) -> str | None:
        """The metric that is at `chance_level` where a model only guesses; None: there is none."""
        return self.default_metric

    def target_parts(self, example: Example) -> Iterable[Hashable]:
        """What is counted of a target, for `chance_level`."""
        return self.labels_of(example)

    def chance_level(self, counts: Counter[Hashable], rows: int) -> float:
        """What guessing reaches on rows with these targets."""
        return 0.0

    def mean_prediction(self, predictions: Sequence[Prediction], tasks: Sequence[Task] = ()) -> Prediction:
        """What several models, of these tasks, predict together for one example: the mean of their probabilities."""
        raise NotImplementedError

    def with_others(self, models: Sequence[LoadedModel]) -> Task | None:
        """The task of a model that generates together with others; None where models cannot."""
        return None

    # ------------------------------------------------------------------------------------------- checking an export

    def logits_of(self, model: LoadedModel, inputs: Sequence[Any]) -> list[NDArray[Any]]:
        """The output of the network for each input, by which an exported model is compared with its source."""
        if self.writes:
            return [np.zeros(0) for _ in inputs]  # what it generates is compared instead
        checked = [self.check_input(number, value) for number, value in enumerate(inputs, 1)]
        return [np.asarray(each.output) for each in self.predict(model, framing_for(model), checked)]

    def numbers_of(self, model: LoadedModel, inputs: Sequence[Any]) -> list[NDArray[Any]]:
        """The numbers that each answer is made of, which must not depend on the other inputs of a batch."""
        return [np.array(answer.numbers) for answer in self.answers(model, inputs)]

    def made_up_input(self, text: Callable[[int], str], length: int, tokenizer: Tokenizer) -> Any:
        """An input of so many random tokens, for a check without data."""
        return (text(min(length, 2)), text(length)) if self.pair else text(length)

    def timing_input(self, texts: Sequence[str], tokenizer: Tokenizer | None) -> Any:
        """An input as it is timed."""
        return tuple(texts) if self.pair else texts[0]

    # ----------------------------------------------------------------------------------------------------- evaluating

    def metrics(self) -> Any:
        """An empty collection of this task's metrics."""
        raise NotImplementedError

    def add(self, metrics: Any, predictions: Sequence[Prediction], examples: Sequence[Example]) -> None:
        """Add predictions and what was right to metrics."""
        raise NotImplementedError

    def tune(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> Self:
        """The task with what held-out rows decide, such as thresholds."""
        return self

    def tables(self, metrics: Any) -> dict[str, Any]:
        """What an evaluation shows beside the metrics: by_label, labels, confusion, points, signature, by_length."""
        return {"by_label": [row._asdict() for row in metrics.table()]} if self.labels else {}

    def mistake(self, prediction: Prediction, example: Example) -> tuple[float, dict[str, str]] | None:
        """How wrong a prediction is, and what a table of the worst mistakes shows; None where it is right."""
        return None

    # ------------------------------------------------------------------------------------------------------- teaching

    def learning_from(self, settings: Any, teachers: Sequence[LoadedModel]) -> Task:
        """The task of a student of these teachers, by the section [distill] of a recipe."""
        if not self.supervised:
            raise UserError(f"a model for {self.name} teaches no task: fine-tune it, or use --pretrain")
        task: Any = self
        return replace(task, soft=SoftTargets(settings.temperature, settings.hard))

    def same_outputs(self, other: Task) -> bool:
        """Whether the outputs of another teacher mean the same, so that they can be averaged."""
        return (type(self), self.labels) == (type(other), other.labels)

    @property
    def teacher_settings(self) -> dict[str, Any]:
        """What decides the outputs of a teacher beside its folder and the examples: part of the key of the cache."""
        return {}

    def teacher_key(self, example: Example) -> Any:
        """What of an example decides the outputs of a teacher, as JSON has it."""
        return example.texts

    def teacher_outputs(self, model: LoadedModel, windows: Framing, examples: Sequence[Example]) -> list[TeacherArrays]:
        """The outputs of one teacher for each example, by words and characters rather than by its own tokens."""
        predictions = self.predict(model, windows, [self.inputs(example) for example in examples])
        return [{"output": np.atleast_1d(np.asarray(each.output, dtype=np.float32))} for each in predictions]

    def average(self, outputs: Sequence[TeacherArrays]) -> TeacherArrays:
        """The outputs of several teachers for one example together."""
        together = self.mean_prediction([teacher_prediction(arrays) for arrays in outputs])
        return {"output": np.asarray(together.output, dtype=np.float32)}

    def with_teacher_answer(self, example: Example, outputs: TeacherArrays) -> Example:
        """The example with the teacher's answer as its target."""
        raise NotImplementedError

    def fit_teacher(self, examples: Sequence[Example], outputs: Sequence[TeacherArrays]) -> Task:
        """The task with what the teacher outputs decide, such as the mean and spread of values."""
        return self

    def vocabulary_texts(
        self, examples: Sequence[Example], outputs: Callable[[], Sequence[TeacherArrays]]
    ) -> Iterator[str]:
        """The texts that a student's vocabulary is learned from; `outputs` runs the teacher, which may take long."""
        return (text for example in examples for text in example.texts)


def stacked(outputs: Sequence[TeacherArrays], name: str) -> NDArray[Any]:
    """E ...: the outputs for every example under one name, where all have the same shape."""
    first = np.asarray(outputs[0][name])
    array = np.empty((len(outputs), *first.shape), dtype=first.dtype)
    for number in range(len(outputs)):
        array[number] = outputs[number][name]
    return array


def teacher_prediction(outputs: TeacherArrays) -> Prediction:
    """The output of a teacher as a prediction again."""
    return Prediction(outputs["output"].astype(np.float64), 0, 0, False)


class UnsupervisedTask(Task):
    """A task of a pretrained model, with no labels and no rows to learn from."""

    supervised = independent = comparable = False
    prediction_columns: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def from_model(cls, model: LoadedModel, name: str) -> Task:
        return cls()

    def inputs(self, example: Example) -> str:
        return example.texts[0]
