"""`weft.compare(models, data)`: metrics, agreement and costs of several models on the same rows, beside the first."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

from weft.comparison.comparison import LESS, Comparison, Standing, lost
from weft.comparison.cost import SECONDS, TEXTS, Costs, Measured, measure, total_costs
from weft.data.dataset import read_table
from weft.errors import NotFinite, UserError, listed, shown
from weft.metrics.bootstrap import Replicates, Score, WorstRows
from weft.progress import ProgressChoice, log_notes, progress_of, to_logger
from weft.tasks.base import Example, Normalization, Prediction, Task
from weft.tasks.evaluate import Paths, ReadCounts, Reader, RowOptions, table_for
from weft.tasks.forward import chunked, evaluating, framing_for
from weft.tasks.model import Model, load
from weft.text.records import Record
from weft.text.rows import Skipped


@dataclass(frozen=True)
class ComparedRows:
    """The examples of some files, one at a time."""

    examples: Iterable[Example]
    where: str
    hash: str
    skipped: Skipped
    normalization: Normalization


def rows_of(
    task: Task, card_columns: Mapping[str, str], data: Any = None, **options: Unpack[RowOptions]
) -> ComparedRows:
    """The rows of files as a task reads them, with or without targets."""
    files = table_for(task, card_columns, data, options, targets=False)
    skipped, normalization, given = Skipped(), task.normalization(), options.get("columns") or {}

    def begin(record: Record) -> tuple[Mapping[str, str], Callable[[Record], Example]]:
        reader = Reader.of(task, record, files.columns, skipped.note)
        lost = [name for name in given if name not in {*reader.inputs, *reader.columns}]
        if lost:
            raise UserError(f"{files.name}: no column {shown(given[lost[0]])!r}, which --column says is {lost[0]}")

        def checked(record: Record) -> Example:
            example = reader.read(record)
            if task.has_target(example):
                task.check_format(example)
            return normalization(example)

        return reader.inputs, checked

    def examples() -> Iterator[Example]:
        yield from read_table(files, begin, skipped)
        log_notes(replace(skipped, count=0).lines(), to_logger)

    return ComparedRows(examples(), files.name, files.hash(), skipped, normalization)


MAX_SHOWN = 10  # texts that are shown where two models disagree most
TENTH = 0.1  # of the first model's metric: a model that generates and keeps less is damaged
MIN_ROWS = 20  # answers, of which not all should be the same
ROUNDING = 1e-6  # a smaller difference is none
NOT_FINITE = "its outputs are not numbers (NaN or infinite)"


@dataclass
class Participant:
    """One model while it is compared."""

    name: str
    model: Model
    folder: Path | None
    own: Task  # as the model has it
    task: Task  # with the labels of all models, in one order
    members: tuple[Participant, ...] = ()  # of an ensemble: the models that it consists of
    metrics: Any = None
    agreement: Any = None
    # The rows where it agrees least; the same text may come again and again.
    worst: WorstRows = field(default_factory=lambda: WorstRows(20 * MAX_SHOWN))
    keys: set[Hashable] = field(default_factory=set)  # a few of its answers: two are enough to tell that they differ
    target_counts: Counter[Hashable] = field(default_factory=Counter)
    labeled: int = 0
    damaged: str | None = None
    sampled: dict[str, Replicates] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.agreement = self.task.agreement()

    @property
    def averages(self) -> bool:
        """Whether its predictions are the mean of those of its members."""
        return bool(self.members) and self.task.averages

    def break_off(self) -> None:
        """Its outputs are not numbers: nothing more is asked of it."""
        self.damaged, self.metrics, self.agreement = NOT_FINITE, None, None

    def predict(self, examples: Sequence[Example]) -> list[Prediction] | None:
        """A prediction for each example; None of a model whose outputs are not numbers."""
        if self.damaged == NOT_FINITE:
            return None
        opened, inputs = self.model.opened, [self.own.inputs(each) for each in examples]
        try:
            with evaluating(opened.network):
                predictions = self.own.predict(opened, framing_for(opened), inputs)
        except NotFinite:
            predictions = None
        if predictions is None or not all(map(self.own.is_finite, predictions)):
            self.break_off()
            return None
        return [self.task.reorder(each, self.own.labels) for each in predictions]

    def average(self, predictions: Sequence[list[Prediction] | None]) -> list[Prediction] | None:
        """The mean of what its members predict."""
        known = [each for each in predictions if each is not None]
        if len(known) < len(predictions):
            self.break_off()
            return None
        tasks = [member.task for member in self.members]
        return [self.task.mean_prediction(each, tasks) for each in zip(*known, strict=True)]

    def evaluate(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> None:
        """Add predictions of examples with targets to the metrics."""
        self.labeled += len(examples)
        self.target_counts.update(part for example in examples for part in self.task.target_parts(example))
        self.metrics = self.metrics or self.task.metrics()
        self.task.add(self.metrics, predictions, examples)

    def compare(
        self,
        first: Participant,
        predictions: Sequence[Prediction],
        references: Sequence[Prediction],
        examples: Sequence[Example],
    ) -> None:
        """Count where it agrees with the first model, and keep where it does so least."""
        task = self.task
        for prediction, reference, example in zip(predictions, references, examples, strict=True):
            task.agree(self.agreement, prediction, reference, example, first.task)
            distance = task.distance(prediction, reference, example, first.task)
            if not distance > ROUNDING:
                continue
            row = {
                "target": task.describe_target(example) if task.has_target(example) else "",
                first.name: first.task.describe(reference, prediction, example),
                self.name: task.describe(prediction, reference, example),
                "where": example.where,
                "text": " | ".join(example.texts),
            }
            self.worst.add(distance, row)

    def disagreements(self) -> list[dict[str, str]]:
        """The rows where it agrees least, each text once; a column that is empty is left out."""
        rows = list({row["text"]: row for row in reversed(self.worst.rows())}.values())[::-1][:MAX_SHOWN]
        return [{name: cell for name, cell in row.items() if any(each[name] for each in rows)} for row in rows]


def fault(model: Participant, first: Participant, varied: bool, rows: int) -> str | None:
    """Why a model cannot be used, as far as these rows show it; `varied`: their targets differ."""
    other = model is not first and len(first.keys) > 1
    if rows >= MIN_ROWS and len(model.keys) == 1 and (varied or other):
        return f"it gives all {rows:,} texts the same answer"
    if not model.sampled or not first.sampled:
        return None
    name, metric = model.task.chance_metric, model.task.default_metric
    level = model.task.chance_level(model.target_counts, model.labeled)
    if name is None:
        if model is first:
            return None
        kept = model.sampled[metric].over(first.sampled[metric])
        few = math.isfinite(kept.high) and kept.high < TENTH
        return f"it keeps {100 * kept.value:.1f} % of the {metric} of {first.name}" if few else None
    score = model.sampled[name].score()
    if name in LESS:
        return f"its {name} of {score.value:.2f} is no better than {level:g}" if score.low >= level else None
    if model is first:  # nothing stands beside it, so it must be worse than chance, not just no better
        worse = rows >= 2 * MIN_ROWS and score.high < level  # of few rows it may be bad luck
        return f"its {name} of {score.value:.3f} is worse than chance, {level:.3f}" if worse else None
    reference = first.sampled[name]
    if score.low <= level < reference.score().low and model.sampled[name].minus(reference).high < 0:
        return f"its {name} of {score.value:.3f} is no better than chance, {level:.3f}"
    return None


def below_card(model: Participant, hash: str) -> str | None:
    """The metric that a model's own card has for these very rows, where it no longer reaches it."""
    name = model.task.default_metric
    if not hash or name in LESS or name not in model.sampled or model.task.writes:  # writers: of a sample
        return None
    value = model.sampled[name].score().value
    for metric in model.model.card.metrics:
        if metric.data == hash and metric.name == name and metric.low is not None and value < metric.low:
            return f"its {name} of {value:.3f} is not the {metric.value:.3f} that its card has for the same rows"
    return None


AGREED = ("correlation", "bleu", "same", "cosine", "similarities")  # agreement, what tells most first
AGREEMENT = {"pearson": "correlation", "exact": "same"}  # what agreement calls the metrics that it borrows


def compare(
    models: Sequence[str | os.PathLike[str] | Model],
    data: Paths | None = None,
    *,
    task: str | None = None,
    max_drop: float | None = None,
    costs: bool = True,
    memory: bool = True,
    texts: int = TEXTS,
    seconds: float = SECONDS,
    device: str | None = None,
    online: bool = False,
    trust: bool = False,
    progress: ProgressChoice = None,
    **rows: Unpack[RowOptions],
) -> Comparison:
    """Compare several models with the first of them on the same rows: metrics, agreement, costs.

    Rows need no labels; `rows` are the options of reading them: `columns`, `format`, `source` and `target` ...
    `texts` and `seconds` limit what is timed. `max_drop` is in points of the task's metric (hundredths, as BLEU is
    written): a model that loses more is named in `refused`, as is one that is damaged.
    """
    if max_drop is not None and not 0 <= max_drop <= 100:
        raise UserError(f"max_drop must be between 0 and 100 points, not {max_drop:g}")
    models = [models] if isinstance(models, str | os.PathLike | Model) else models
    loaded = [
        each if isinstance(each, Model) else load(each, task=task, device=device, online=online, trust=trust)
        for each in models
    ]
    for each in models:
        if isinstance(each, Model) and device is not None:
            each.to(device)
    if not loaded:
        raise UserError("no model to compare: give one folder or several")
    folders = [None if isinstance(each, Model) else Path(each) for each in models]
    participants = participants_of(loaded, display_names(folders), folders)
    read = rows_of(participants[0].own, loaded[0].card.columns, data, **rows)
    with progress_of(progress)(f"comparing on {read.where}", "examples") as count:
        comparison = compared(
            participants,
            read.examples,
            data=read.where,
            hash=read.hash,
            max_drop=max_drop,
            costs=costs,
            memory=memory,
            texts=texts,
            seconds=seconds,
            progress=count,
        )
    if note := read.normalization.note():
        to_logger(f"weft: note: {read.where}: {note}")
    skipped = read.skipped
    return replace(comparison, reading=f"{comparison.reading}; {skipped}") if skipped.count else comparison


def display_names(folders: Sequence[Path | None]) -> list[str]:
    """A name for each model: the last part of its path where that tells them apart."""
    short = [f"model {number}" if path is None else path.name or str(path) for number, path in enumerate(folders, 1)]
    if len(set(short)) == len(short):
        return short
    names = [short[number] if path is None else str(path) for number, path in enumerate(folders)]
    return [name if names.count(name) == 1 else f"{name} ({number})" for number, name in enumerate(names, 1)]


def participants_of(
    models: Sequence[Model], names: Sequence[str], folders: Sequence[Path | None] | None = None
) -> list[Participant]:
    """The models as they are compared; those that do not belong together are named."""
    first, folders = models[0], folders or [None] * len(models)
    for name, model in zip(names, models, strict=True):
        if model.task != first.task:
            raise UserError(f"{name} is made for {model.task}, {names[0]} for {first.task}: they cannot be compared")
    tasks = [model.task_object for model in models]
    if not tasks[0].comparable:
        raise UserError(f"models for {first.task} are not compared by rows; to compare their vectors: --task embed")
    faults = [_labels_differ(task, tasks[0], name, names[0]) for task, name in zip(tasks, names, strict=True)]
    labels = tuple(dict.fromkeys(label for task in tasks for label in task.labels))
    return [
        Participant(name, model, folder, task, task.align(labels), damaged=damaged)
        for name, model, folder, task, damaged in zip(names, models, folders, tasks, faults, strict=True)
    ]


def with_ensemble(models: Sequence[Participant], name: str, count: int) -> list[Participant]:
    """The models after the ensemble of the first `count` of them, where their task has one."""
    members = tuple(models[:count])
    task: Task | None = members[0].task
    if task is not None and not task.averages:
        task = task.with_others([member.model.opened for member in members[1:]])
    if count < 2 or task is None:
        return list(models)
    return [Participant(name, members[0].model, None, task, task, members), *models]


def _labels_differ(task: Task, first: Task, name: str, first_name: str) -> str | None:
    """Why a model is refused that does not have the same labels; with none in common it cannot be compared."""
    if task.unbounded != first.unbounded:
        raise UserError(f"{name} and {first_name} cannot be compared: one predicts labels, the other values")
    mine, theirs = set(task.labels), set(first.labels)
    if mine == theirs:
        return None
    if not mine & theirs:
        one, two = (shown(", ".join(each.labels)) for each in (task, first))
        raise UserError(f"{name} has the labels {one}, {first_name} has {two}: no label in common")
    parts = [
        f"{word} {listed([shown(label) for label in sorted(some)], 3)}"
        for word, some in (("it lacks", theirs - mine), ("it alone has", mine - theirs))
        if some
    ]
    return f"its labels are not those of {first_name}: {', '.join(parts)}"


def compared(
    models: Sequence[Participant],
    examples: Iterable[Example],
    *,
    data: str = "",
    hash: str = "",
    max_drop: float | None = None,
    costs: bool = True,
    memory: bool = True,
    texts: int = TEXTS,
    seconds: float = SECONDS,
    progress: Callable[[int], None] = lambda more: None,
) -> Comparison:
    """Compare models on examples, streaming: nothing is held but the rows at hand and the texts to be timed."""
    first, reading, timed = models[0], ReadCounts(), _Sample(texts)
    targets, known = set[str](), 0
    for some in chunked(examples, lambda example: sum(map(len, example.texts))):
        predictions = _predictions(models, some)
        for example in some:
            timed.add(example.texts)
        progress(len(some))
        for prediction in predictions[0] or []:
            reading.add(prediction)
        labeled = [number for number, example in enumerate(some) if first.task.has_target(example)]
        rows = [some[number] for number in labeled]
        known += len(rows)
        targets.update(first.task.describe_target(example) for example in rows if len(targets) < 2)
        for model, mine in zip(models, predictions, strict=True):
            if mine is None:
                continue
            if rows:
                model.evaluate([mine[number] for number in labeled], rows)
            model.keys.update(model.task.key(each) for each in mine if len(model.keys) < 2)
            if model is not first and predictions[0] is not None:
                model.compare(first, mine, predictions[0], some)
    if not timed.seen:
        raise UserError(f"{data}: there are no rows" if data else "there are no rows to compare by")
    if max_drop is not None and not known:
        raise UserError(f"{data}: the data has no labels, so a loss cannot be measured: leave out --max-drop")
    for model in models:
        model.sampled = model.metrics.sampled() if model.metrics is not None else {}
    for model in models:
        model.damaged = model.damaged or fault(model, first, len(targets) > 1, timed.seen) or below_card(model, hash)
    measured = _measured(models, timed.held, seconds, texts, memory) if costs else None
    metric = first.task.default_metric if known else None
    standings = [_standing(model, first, metric, max_drop, measured) for model in models]
    agreements = [name for each in standings for name in each.agreement]
    return Comparison(
        task=first.model.task,
        data=data,
        hash=hash,
        examples=timed.seen,
        labeled=known,
        chosen=metric or None,
        agreed=next((name for name in AGREED if name in agreements), None),
        models=standings,
        measured=None if measured is None else measured[0],
        reading=str(reading),
        max_drop=max_drop,
    )


def _predictions(models: Sequence[Participant], examples: Sequence[Example]) -> list[list[Prediction] | None]:
    """What each model predicts; an ensemble's are the mean of what its members have predicted."""
    alone = {model.name: model.predict(examples) for model in models if not model.averages}
    return [
        model.average([alone[member.name] for member in model.members]) if model.averages else alone[model.name]
        for model in models
    ]


def _measured(
    models: Sequence[Participant], inputs: Sequence[Any], seconds: float, texts: int, memory: bool
) -> tuple[Measured, dict[str, Costs | None]] | None:
    """How costs were measured, and those of each model by its name; an ensemble costs what its members cost."""
    sound = [model for model in models if model.damaged != NOT_FINITE and not model.members]
    if not sound:
        return None
    folders = [model.folder for model in sound]
    measured = measure([each.model for each in sound], inputs, folders, seconds=seconds, texts=texts, memory=memory)
    by_name: dict[str, Costs | None] = dict(zip((model.name for model in sound), measured.costs, strict=True))
    together = {
        model.name: total_costs([by_name.get(member.name) for member in model.members])
        for model in models
        if model.members
    }
    return measured, {**by_name, **together}


def _standing(
    model: Participant,
    first: Participant,
    metric: str | None,
    max_drop: float | None,
    measured: tuple[Measured, Mapping[str, Costs | None]] | None,
) -> Standing:
    """One model beside the first."""
    standing = Standing(
        name=model.name,
        folder=None if model.folder is None else str(model.folder),
        scores={name: each.score() for name, each in model.sampled.items()},
        costs=None if measured is None else measured[1].get(model.name),
        damaged=model.damaged,
    )
    if model is first or model.damaged == NOT_FINITE:
        return standing
    shared = {name: each for name, each in model.sampled.items() if name in first.sampled}
    difference = {name: each.minus(first.sampled[name]) for name, each in shared.items()}
    kept = dropped = None
    if metric is not None and metric in difference:
        mine, theirs = model.sampled[metric], first.sampled[metric]
        kept = theirs.over(mine) if metric in LESS else mine.over(theirs)
        drop = lost(difference[metric], metric)
        if max_drop is not None and not drop <= max_drop + ROUNDING:
            dropped = f"it loses {drop:.2f} points of {metric}, and {max_drop:g} are allowed"
    agreement: dict[str, Score] = {}
    if model.agreement is not None and first.damaged != NOT_FINITE:
        for name, each in model.agreement.sampled().items():
            if name not in ("spearman", "r2", "length_ratio", "mse"):
                agreement[AGREEMENT.get(name, name)] = each.score()
    return replace(
        standing, difference=difference, kept=kept, agreement=agreement, apart=model.disagreements(), dropped=dropped
    )


class _Sample:
    """Up to `size` inputs of a stream, evenly from all of it, while no more than twice as many are held."""

    def __init__(self, size: int) -> None:
        self.size, self.step, self.seen = max(1, size), 1, 0
        self.held: list[tuple[str, ...]] = []

    def add(self, texts: tuple[str, ...]) -> None:
        if self.seen % self.step == 0 and any(text.strip() for text in texts):
            self.held.append(texts)
            if len(self.held) >= 2 * self.size:
                self.held, self.step = self.held[::2], 2 * self.step
        self.seen += 1
