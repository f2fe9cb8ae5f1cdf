"""The interface of a task: everything that the package has to know about one kind of answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from weft.checkpoint.card import Card, Window
from weft.data.columns import find_columns, is_blank, text_in
from weft.data.dataset import Begin, read_table, split, split_whole
from weft.data.tables import Table
from weft.errors import UserError, listed, one_of, shown
from weft.metrics.bootstrap import Ratios
from weft.progress import Log
from weft.tasks.forward import InputWindows, chunked, framing_for, head_outputs, tokenizer_of, window_for
from weft.tasks.targets import LogitTarget
from weft.text.records import Record
from weft.text.rows import Skipped
from weft.text.tags import TagNormalizer
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.windows import Framing, words_in

if TYPE_CHECKING:  # an exported model answers without torch
    from torch import Tensor

    from weft.checkpoint.families import Family
    from weft.checkpoint.folder import LoadedModel

Columns = dict[str, str]  # what a file calls the columns of a task
# The outputs of a teacher for one example, as the cache keeps them: arrays of at least one dimension each; a name that
# an example lacks comes back as an empty array where others of its shard have it.
TeacherArrays = Mapping[str, NDArray[Any]]
Difference = tuple[tuple[Any, ...], float]  # of two predictions: see `Task.compare`
TeacherRows = Sequence[TeacherArrays] | None  # for each example, where there is a teacher
FIRST_ROWS = 100  # of a table, by which its columns are found


@dataclass(frozen=True)
class Example:
    """One row of a user's data as a task takes it."""

    texts: tuple[str, ...]  # one, or two for a pair; question and context
    target: Any  # None where it is not known
    where: str
    numbers: bytes = b""  # of a vector, in place of texts: in single precision, so that many rows fit into memory
    words: tuple[tuple[int, int], ...] = ()  # where they stand in the text, for tasks that answer by word


@dataclass(frozen=True)
class Prediction:
    """The output of a network for one example (logits, spans, a written text), and how much of it was read."""

    output: Any
    n_tokens: int
    n_windows: int
    truncated: bool

    @classmethod
    def of_teacher(cls, outputs: TeacherArrays) -> Prediction:
        """The output of a teacher as a prediction again."""
        return cls(outputs["output"].astype(np.float64), 0, 0, False)

    @property
    def reading(self) -> dict[str, Any]:
        """How much was read, as every answer says it."""
        return {"n_tokens": self.n_tokens, "n_windows": self.n_windows, "truncated": self.truncated}


@dataclass(frozen=True)
class Normalization:
    """Rewrites the tags of one file into the scheme that a model has; without a normalizer nothing is changed."""

    normalizer: TagNormalizer | None = None

    def __call__(self, example: Example) -> Example:
        if self.normalizer is None or example.target is None:
            return example
        return replace(example, target=self.normalizer.normalized(example.target))

    def note(self) -> str | None:
        """What was rewritten."""
        return self.normalizer.note() if self.normalizer else None


class Task:
    """What a model is for: rows of data in, typed answers out; learned, scored, compared and taught through this."""

    name: str
    head: str = ""  # of the network; "": the task reads hidden states
    labels: tuple[str, ...] = ()
    input_names: ClassVar[tuple[str, ...]] = ()  # of the columns that it reads; (): text, and pair
    row_names: ClassVar[tuple[str, ...]] = ()  # of those of rows with targets; (): the same
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
    windowed: ClassVar[bool] = False  # `decode` needs nothing but what its head gives for windows
    loss_by_token: ClassVar[bool] = False  # its losses can be compared for one vocabulary only
    overlap: ClassVar[float] = 0.0  # share of a window that the next one repeats
    whole_groups: ClassVar[bool] = False  # all rows of a group stand on one side of a split
    language_model: ClassVar[bool] = False  # a student learns the next tokens of texts from it
    joint: ClassVar[bool] = False  # several models generate together: one is run, which knows the `others`
    packages: ClassVar[Mapping[str, str]] = {}  # optional ones, by the metric that needs them
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
    answer_options: ClassVar[tuple[str, ...]] = ()  # of a call, that `answer` takes
    timing_options: ClassVar[Mapping[str, Any]] = {}  # of a call that is timed
    chance_metric: str | None = ""  # that guessing brings to `chance_level`; "": the default metric
    reads_tables: ClassVar[bool] = False  # its examples come from a whole table, rather than one from each row
    unit: ClassVar[str] = "tokens"  # of the length of an input

    # Methods that every supervised task has to define.
    to_record: Callable[[Example], dict[str, Any]]  # an example as a row of a table, which `read` reads again
    objective: Callable[[], Any]  # what a network learns by
    decode: Callable[[Sequence[Sequence[NDArray[Any]]], InputWindows], list[Prediction]]  # outputs of windows, by input
    key: Callable[[Prediction], Hashable]  # a value that is equal where two answers are
    metrics: Callable[[], Any]  # an empty collection of metrics ...
    add: Callable[[Any, Sequence[Prediction], Sequence[Example]], None]  # ... that takes them
    with_teacher_answer: Callable[[Example, TeacherArrays], Example]  # with the teacher's answer as its target

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
        given = {"class_weights": work.class_weights == "balanced", "words": work.words, "labels": work.labels}
        chosen = ("prefix", "horizon", "window", "strategy", "season", "interval", "scaling", "blend")
        for name, is_given in {**given, **{name: vars(work)[name] is not None for name in chosen}}.items():
            if is_given and name not in (*cls.settings, *more):
                raise UserError(f"{name} does not apply to {work.name}")

    @classmethod
    def from_model(cls, model: LoadedModel, name: str) -> Task:
        """The task of a model folder, by its card and its heads."""
        return cls()

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

    @cached_property
    def label_numbers(self) -> dict[str, int]:
        return {label: number for number, label in enumerate(self.labels)}

    def label_number(self, label: str, where: str) -> int:
        """The number of a label; one that the task does not have is named with the nearest that it has."""
        numbers = self.label_numbers
        return numbers[label if label in numbers else one_of(label, numbers, f"{where}: label")]

    def input_columns(self, record: Record, given: Mapping[str, str]) -> tuple[str, ...]:
        """Which columns a model reads: all of `columns` but the targets."""
        return self.input_names or ("text", "pair")[: 1 + self.pair]

    def columns(self, record: Record, given: Mapping[str, str]) -> tuple[Task, tuple[str, ...]]:
        """Which columns rows with targets have; the first of them may decide what kind of task it is."""
        return self, self.row_names or self.input_columns(record, given)

    def of_table(self, table: Table) -> tuple[Task, tuple[str, ...]]:
        """The task and the columns of a table, by its first row; by a later one where blank or bad rows are skipped."""
        likely, ranges, problem = dict[str, str](), dict[str, tuple[int, int]](), None
        for record in islice(table.records(Skipped()), FIRST_ROWS):
            likely, ranges = likely or dict(record.likely), ranges or dict(record.ranges)
            try:
                return self.columns(replace(record, likely=likely, ranges=ranges), table.columns)
            except UserError as error:
                problem = problem or error
            if table.on_bad_row == "stop" and not all(map(is_blank, record.values.values())):
                break
        raise problem or UserError(f"{table.name}: there are no rows")

    def read(self, record: Record, columns: Mapping[str, str]) -> Example:
        """A row with its target."""
        return self.read_input(record, columns)

    def read_input(self, record: Record, columns: Mapping[str, str]) -> Example:
        """A row without a target."""
        names = self.input_columns(record, columns)
        return Example(tuple(text_in(record, columns[name]) for name in names), None, record.where)

    def has_target(self, example: Example) -> bool:
        return example.target is not None

    def with_table(self, table: Table, skipped: Skipped, progress: Callable[[int], None] | None = None) -> Task:
        """The task with what a whole table decides before its examples are read."""
        return self

    def read_table(
        self, table: Table, begin: Begin[Example], skipped: Skipped, progress: Callable[[int], None] | None = None
    ) -> Iterator[Example]:
        """The examples of a table; `begin`: see `weft.data.dataset.read_table`."""
        return read_table(table, begin, skipped, progress)

    def split(self, examples: Sequence[Example], share: float, seed: int) -> tuple[list[int], list[int]]:
        """Numbers of the examples to learn from and of those held out."""
        return (split_whole if self.whole_groups else split)(self.groups(examples), share, seed)

    # -------------------------------------------------------------------------------------------------------- inputs

    @property
    def expected(self) -> str:
        """What a call may be given, for messages."""
        if self.pair:
            return "a tuple of two texts, a list of them, or a table with columns text and pair"
        return "a text, a list of texts, or a table (a data frame, dicts) with a column text"

    def is_input(self, value: Any) -> bool:
        """Whether a value is one input, rather than several."""
        return isinstance(value, str | tuple)

    def is_row(self, values: Mapping[str, Any]) -> bool:
        """Whether a dict with lists in it is one row, rather than columns."""
        return False

    def check_input(self, where: str, value: Any) -> Any:
        """One input as the task takes it; `where`: which of several, for messages."""
        if self.pair or (self.either and not isinstance(value, str)):
            if isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(each, str) for each in value):
                return tuple(value)
            raise UserError(f"{where}a pair of texts is expected: {self.pair_order}")
        if isinstance(value, tuple):
            raise UserError(f"{where}a model for {self.name} reads one text at a time, not a tuple: give a list")
        if not isinstance(value, str):
            kind = repr(value) if value is None or isinstance(value, bool | int | float) else type(value).__name__
            raise UserError(f"{where}a text is expected, not {kind}")
        return value

    def check_inputs(self, values: Iterable[Any]) -> list[Any]:
        """The inputs of a call as the task takes them."""
        return [self.check_input(f"input {number}: ", value) for number, value in enumerate(values, 1)]

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

    def table_inputs(self, table: Table) -> list[Any]:
        """What a call is given for a table, of a task that reads whole tables."""
        raise NotImplementedError

    def timed_input(self, example: Example) -> Any:
        """What a model is timed on, as JSON has it; None where there is nothing to read."""
        return example.texts if any(text.strip() for text in example.texts) else None

    def texts_of(self, value: Any) -> tuple[str, ...]:
        """The texts of what a call is given."""
        return (value,) if isinstance(value, str) else tuple(value)

    def inputs(self, example: Example) -> Any:
        """What a model reads of an example."""
        return example.texts

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

    def label_notes(self) -> list[str]:
        """What a user should know about the labels, and about the columns that they come from."""
        return []

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

    def network_settings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Settings of a new network that the rows decide; `given`: those that the user chose."""
        return {}

    def pace(self, steps: int) -> Callable[[int], dict[str, Tensor]] | None:
        """Targets that every batch of a step has besides, of a run of so many steps."""
        return None

    def usual_plan(self, train: Any, from_scratch: bool) -> tuple[int, float, float] | None:
        """Examples of a step, epochs and learning rate by default; None: as for texts of this kind of model."""
        return None

    def baseline_predictions(self, train: Sequence[Any], dev: Sequence[Any]) -> dict[str, list[Prediction]]:
        """What simple forecasts, each under its name, predict for the held-out examples."""
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

    # ------------------------------------------------------------------------------------------------------ answering

    def encode(self, inputs: Sequence[Any], tokenizer: Tokenizer, windows: Framing) -> InputWindows:
        """The inputs as windows of tokens."""
        raise UserError(f"a model for {self.name} makes no predictions before its answers")

    def window_logits(self, model: LoadedModel, windows: InputWindows) -> list[list[NDArray[Any]]]:
        """What the head gives for each window of each input: for each of its tokens, or for the whole."""
        return head_outputs(model, windows, self.head, self.by_token)

    def predict(self, model: LoadedModel, windows: Framing, inputs: Sequence[Any]) -> list[Prediction]:
        """A prediction for each input: encoded, passed through the network, decoded."""
        encoded = self.encode(inputs, tokenizer_of(model), windows)
        return self.decode(self.window_logits(model, encoded), encoded)

    def answer(self, prediction: Prediction, input: Any, **options: Any) -> Any:
        """A prediction for people."""
        return prediction.output

    def answers(self, model: LoadedModel, inputs: Sequence[Any], **options: Any) -> list[Any]:
        """An answer to each input; `others`: models of the same labels, whose predictions are combined with it."""
        if self.run is not None:
            return self.run(model, inputs, **options)
        others: Sequence[LoadedModel] = options.pop("others", ())
        checked = self.check_inputs(inputs)
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

    def logit_target(self, model: LoadedModel, windows: Framing, input: Any, target: Any) -> LogitTarget:
        """The logit that an explanation of one checked input is about; `target`: None for the model's own answer."""
        raise UserError(f"a model for {self.name} has no single logit whose words could be attributed")

    # ------------------------------------------------------------------------------------------------------ comparing

    def reorder(self, prediction: Prediction, labels: Sequence[str]) -> Prediction:
        """The prediction of a model with these labels in the order of this task's; a missing one is impossible."""
        if tuple(labels) == self.labels:
            return prediction
        places = {label: number for number, label in enumerate(labels)}
        logits = np.full((*prediction.output.shape[:-1], len(self.labels)), -np.inf, dtype=prediction.output.dtype)
        known = [number for number, label in enumerate(self.labels) if label in places]
        logits[..., known] = prediction.output[..., [places[self.labels[number]] for number in known]]
        return replace(prediction, output=logits)

    def numbers(self, prediction: Prediction) -> NDArray[Any]:
        """What a prediction consists of, by which an exported model is compared with its source."""
        return np.asarray(prediction.output)

    def is_finite(self, prediction: Prediction) -> bool:
        """Whether a prediction consists of numbers, with no NaN and no infinity."""
        return bool(np.isfinite(self.numbers(prediction)).all())

    def compare(self, prediction: Prediction, reference: Prediction, example: Example, task: Any) -> Difference:
        """What `agreement` counts of two predictions, and how far apart they are; `task` is that of the reference."""
        same = self.key(prediction) == task.key(reference)
        return ({"same": (float(same), 1.0)},), float(not same)

    def describe(self, prediction: Prediction, other: Prediction, example: Example) -> str:
        """A prediction in words, where it differs from the other."""
        return " ".join(self.answer(prediction, self.inputs(example)).line("").split())

    def describe_target(self, example: Example) -> str:
        """The target in words."""
        return str(example.target)

    def agreement(self) -> Any:
        """An empty count of how often two models agree."""
        return Ratios(("same",))

    def target_parts(self, example: Example) -> Iterable[Hashable]:
        """What is counted of a target, for `chance_level`."""
        return self.labels_of(example)

    def chance_level(self, counts: Counter[Hashable], rows: int) -> float:
        """What guessing reaches on rows with these targets."""
        return 0.0

    def mean_prediction(self, predictions: Sequence[Prediction], tasks: Sequence[Task] = ()) -> Prediction:
        """What several models, of these tasks, predict together for one example: the mean of their probabilities."""
        raise NotImplementedError

    # ------------------------------------------------------------------------------------------- checking an export

    def logits_of(self, model: LoadedModel, inputs: Sequence[Any]) -> list[NDArray[Any]]:
        """The output of the network for each input, by which an exported model is compared with its source."""
        if self.writes:
            return [np.zeros(0) for _ in inputs]  # what it generates is compared instead
        return [self.numbers(each) for each in self.predict(model, framing_for(model), self.check_inputs(inputs))]

    def numbers_of(self, model: LoadedModel, inputs: Sequence[Any]) -> list[NDArray[Any]]:
        """The numbers that each answer is made of, which must not depend on the other inputs of a batch."""
        return [np.array(answer.numbers) for answer in self.answers(model, inputs)]

    def sample_input(self, texts: Sequence[str], tokenizer: Tokenizer | None) -> Any:
        """An input made of some text, or of two, for a check or for timing."""
        return tuple(texts) if self.pair else texts[0]

    def made_up_inputs(self, count: int, seed: int) -> list[Any] | None:
        """Random inputs for a check without data; None where they are made of the words of a tokenizer."""
        return None

    # ----------------------------------------------------------------------------------------------------- evaluating

    def composition(self) -> str:
        """Of what predictions are made where not of the network alone, for the result of a run."""
        return ""

    def blended(self, predictions: Sequence[Prediction], examples: Sequence[Any]) -> tuple[Self, list[Prediction]]:
        """The task that adds as much of a simple prediction as held-out rows ask for, and what it then predicts."""
        return self, list(predictions)

    def tune(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> Self:
        """The task with what held-out rows decide, such as thresholds."""
        return self

    def tables(self, metrics: Any) -> dict[str, Any]:
        """What an evaluation shows beside the metrics: by_label, labels, confusion, points, signature, by_length."""
        return {"by_label": [row._asdict() for row in metrics.table()]} if self.labels else {}

    def loss(self, prediction: Prediction, example: Example) -> float | None:
        """How wrong a prediction is; None where it is right."""
        return None

    def mistake(self, prediction: Prediction, example: Example) -> tuple[float, dict[str, str]] | None:
        """How wrong a prediction is, and what a table of the worst mistakes shows; None where it is right."""
        loss = self.loss(prediction, example)
        if loss is None:
            return None
        target, answer = self.describe_target(example), self.describe(prediction, prediction, example)
        return loss, {"target": target, "prediction": answer, "where": example.where, "text": " | ".join(example.texts)}

    # ------------------------------------------------------------------------------------------------------- teaching

    def learning_from(self, settings: Any, teachers: Sequence[LoadedModel]) -> Task:
        """The task of a student of these teachers, by the section [distill] of a recipe."""
        if not self.supervised:
            raise UserError(f"a model for {self.name} teaches no task: fine-tune it, or use --pretrain")
        from weft.objectives.losses import SoftTargets

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
        together = self.mean_prediction([Prediction.of_teacher(arrays) for arrays in outputs])
        return {"output": np.asarray(together.output, dtype=np.float32)}

    def fit_teacher(self, examples: Sequence[Example], outputs: Sequence[TeacherArrays]) -> Task:
        """The task with what the teacher outputs decide, such as the mean and spread of values."""
        return self

    def vocabulary_texts(
        self, examples: Sequence[Example], outputs: Callable[[], Sequence[TeacherArrays]]
    ) -> Iterator[str]:
        """The texts that a student's vocabulary is learned from; `outputs` runs the teacher, which may take long."""
        return (text for example in examples for text in example.texts)


class UnsupervisedTask(Task):
    """A task of a pretrained model, with no labels and no rows to learn from."""

    supervised = independent = comparable = False
    prediction_columns: ClassVar[tuple[str, ...]] = ()

    def inputs(self, example: Example) -> str:
        return example.texts[0]
