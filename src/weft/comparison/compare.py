"""`weft.compare(models, data)`: metrics, agreement and costs of several models on the same rows, beside the first."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

from weft.checkpoint.card import Metric
from weft.comparison.cost import SECONDS, TEXTS, Costs, Measured, measure, total_costs
from weft.errors import NotFinite, UserError, listed, refuse, shown
from weft.files import write_json, write_text
from weft.metrics.bootstrap import Replicates, Score, WorstRows
from weft.picture import Bar, ChartLine, bar_chart, heading, line_chart, page, paragraph, table
from weft.progress import ProgressChoice, log_notes, progress_of, to_logger
from weft.tasks.base import Example, Normalization, Prediction, Task
from weft.tasks.evaluate import Paths, ReadCounts, Reader, RowOptions, mistake, table_for
from weft.tasks.forward import chunked, evaluating, framing_for
from weft.tasks.model import Model, load
from weft.text.records import Record
from weft.text.rows import Skipped

MAX_SHOWN = 10  # texts that are shown where two models disagree most
LETTERS = 140  # of a text in a table
LESS = ("bits_per_byte", "bits_per_gap")  # metrics of which less is better
TENTH = 0.1  # of the first model's metric: a model that generates and retains less is damaged
MIN_ROWS = 20  # answers, of which not all should be the same
ROUNDING = 1e-6  # a smaller difference is none
NOT_FINITE = "its outputs are not numbers (NaN or infinite)"
AGREEMENT_METRICS = ("correlation", "bleu", "same", "cosine", "similarities")  # the most telling first
AGREEMENT_NAMES = {"pearson": "correlation", "exact": "same"}  # of the metrics that agreement borrows
NO_AGREEMENT = ("spearman", "r2", "length_ratio", "mse")  # that it leaves out
Table = tuple[str, list[str], list[list[str]]]
Predictions = list[Prediction] | None


@dataclass(frozen=True)
class Standing:
    """One model beside the first."""

    name: str
    folder: str | None
    scores: dict[str, Score] = field(default_factory=dict)
    difference: dict[str, Score] = field(default_factory=dict)  # of each score to the first model's, paired
    retained: Score | None = None  # share of the first model's metric, paired
    agreement: dict[str, Score] = field(default_factory=dict)  # with the first model's predictions
    disagreements: list[dict[str, str]] = field(default_factory=list)  # the rows with the largest
    costs: Costs | None = None
    damaged: str | None = None  # why it cannot be used
    dropped: str | None = None  # by how much it is worse than is allowed


@dataclass(frozen=True)
class Comparison:
    """Several models on the same data."""

    task: str
    data: str
    hash: str
    examples: int
    labeled: int  # examples with a target
    metric: str | None  # that models are compared by
    agreement_metric: str | None  # the measure of agreement that comes first
    models: list[Standing]
    measured: Measured | None = None
    reading: str = ""
    max_drop: float | None = None

    @property
    def refused(self) -> list[str]:
        """A line for each model that is damaged, or worse than is allowed."""
        return [
            f"{each.name} is {'damaged' if each.damaged else 'refused'}: {each.damaged or each.dropped}"
            for each in self.models
            if each.damaged or each.dropped
        ]

    def card_metrics(self, number: int) -> tuple[Metric, ...]:
        """The metrics of a model, for its card."""
        scores = self.models[number].scores.items()
        finite = [(name, vars(score)) for name, score in scores if all(map(math.isfinite, vars(score).values()))]
        return tuple(Metric(data=self.hash, name=name, **values) for name, values in finite)

    def values(self) -> dict[str, Any]:
        """As JSON has it: what is not finite, or not known, is null."""
        return plain(asdict(self))

    def write(self, out: str | os.PathLike[str]) -> None:
        """One self-contained HTML page; a file that ends in .json gets the values."""
        path = Path(out)
        if path.suffix == ".json":
            write_json(path, self.values())
        else:
            write_text(path, page(f"{len(self.models)} models for {self.task} on {self.data}", self.parts()))

    def parts(self) -> list[str]:
        """What a page shows."""
        parts = [paragraph(f"{self.data}: {self.reading}")]
        if not self.labeled:
            parts.append(paragraph("The data has no labels: models are only compared with the first."))
        whole = iter([each.disagreements for each in self.models if each.disagreements])
        for title, header, rows in self.tables():
            disagreements = "".join(map(mistake, next(whole))) if title.startswith("Where ") else ""
            parts.append(heading(title) + (disagreements or table(header, rows)))
            if title.startswith("Costs"):
                parts += [paragraph(str(self.measured)), *self._charts()]
        return parts

    def tables(self) -> list[Table]:
        """Title, header and rows of every table: models, metrics, agreement, faults, costs, disagreements."""
        first, *others = self.models
        costs = [_cost_cells(each.costs, first.costs) for each in self.models]
        columns = {"model": [each.name for each in self.models]}
        if self.metric is not None:
            columns[self.metric] = [spread(each.scores.get(self.metric)) for each in self.models]
            columns["retained %"] = ["100", *(spread(each.retained, 100, 1) for each in others)]
        if (name := self.agreement_metric) is not None:
            columns[f"agreement ({name})"] = ["-", *(spread(each.agreement.get(name), places=3) for each in others)]
        if self.measured is not None:
            columns |= {name: [cells[name] for cells in costs] for name in ("size", "p50", "texts/s")}
        if self.refused:
            columns[""] = ["damaged" if each.damaged else "refused" if each.dropped else "" for each in self.models]
        tables: list[Table] = [("Models", list(columns), list(map(list, zip(*columns.values(), strict=True))))]
        if self.labeled:
            header = ["model", "metric", "value", "95 % from", "to", "difference", "from", "to"]
            rows = []
            for each in self.models:
                for name, score in each.scores.items():
                    retained = three(each.retained if name == self.metric else None, 100, 2)
                    difference = three(each.difference.get(name), signed=True)
                    rows.append([each.name, name, *three(score), *difference, *retained])
                rows += [] if each.scores else [[each.name, *["-"] * 10]]
            tables.append(("Scores", [*header, "retained %", "from", "to"], rows))
        if rows := [[each.name, name, *three(score)] for each in others for name, score in each.agreement.items()]:
            header = ["model", "agreement", "value", "95 % from", "to"]
            tables.append((f"Agreement with {first.name}", header, rows))
        if rows := [[each.name, why] for each in self.models if (why := each.damaged or each.dropped)]:
            tables.append(("Refused", ["model", "why"], rows))
        if self.measured is not None:
            rows = [[each.name, *cells.values()] for each, cells in zip(self.models, costs, strict=True)]
            tables.append(("Costs on this machine", ["model", *costs[0]], rows))
        for each in self.models:
            if each.disagreements:  # of others with the first
                header = list(each.disagreements[0])
                rows = [[shown(" ".join(row[name].split()), LETTERS) for name in header] for row in each.disagreements]
                tables.append((f"Where {each.name} and {first.name} disagree most", header, rows))
        return tables

    def _charts(self) -> list[str]:
        """Bars of speed and size, and what each model reaches by what an answer takes."""
        known = [(each, each.costs) for each in self.models if each.costs is not None]
        times, speeds = ([Bar(each.name, vars(cost)[name]) for each, cost in known] for name in ("p50", "per_second"))
        sizes = [Bar(each.name, cost.bytes / 1e6) for each, cost in known if cost.bytes]
        charts = [bar_chart("One text, median", times, "milliseconds, less is better")]
        charts.append(bar_chart("Texts in bulk", speeds, "texts a second"))
        charts += [bar_chart("Size on disk", sizes, "megabytes, less is better")] if sizes else []
        scored = [(each, cost) for each, cost in known if self.metric in each.scores]
        if self.metric is not None and len(scored) > 1:
            points = [ChartLine(each.name, [(cost.p50, each.scores[self.metric].value)]) for each, cost in scored]
            name = self.metric.replace("_", " ")
            charts.append(line_chart("Quality by latency", points, "milliseconds of one text", name))
        return charts


def _cost_cells(costs: Costs | None, first: Costs | None) -> dict[str, str]:
    if costs is None:
        return dict.fromkeys(("size", "parameters", "p50", "p95", "faster", "texts/s", "more", "memory"), "-")
    return {
        "size": megabytes(costs.bytes),
        "parameters": "-" if costs.parameters is None else f"{costs.parameters:,}",
        "p50": f"{costs.p50:.2f} ms",
        "p95": f"{costs.p95:.2f} ms",
        "faster": "-" if first is None else f"{first.p50 / costs.p50:.2f} x",
        "texts/s": f"{costs.per_second:,.1f}",
        "more": "-" if first is None else f"{costs.per_second / first.per_second:.2f} x",
        "memory": megabytes(costs.memory),
    }


def three(score: Score | None, scale: float = 1.0, places: int = 4, signed: bool = False) -> list[str]:
    """A score and the ends of its interval as cells."""
    if score is None:
        return ["-", "-", "-"]
    return [f"{scale * each:{'+' * signed}.{places}f}" if math.isfinite(each) else "-" for each in vars(score).values()]


def spread(score: Score | None, scale: float = 1.0, places: int = 4) -> str:
    """A score with its interval in one cell."""
    value, low, high = three(score, scale, places)
    return value if low == high else f"{value} ({low} to {high})"


def megabytes(size: int | None) -> str:
    return "-" if size is None else f"{size / 1e6:.2f} MB"


def plain(value: Any) -> Any:
    """What JSON can hold: numbers that are not finite are null."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def lost(difference: Score, name: str) -> float:
    """How many points a model is worse: hundredths of what lies between 0 and 1, as BLEU and chrF are written."""
    value = difference.value if name in LESS else -difference.value
    return value if name in ("bleu", "chrf") else 100 * value


@dataclass(frozen=True)
class ComparedRows:
    """The examples of some files, one at a time."""

    examples: Iterable[Example]
    where: str
    hash: str
    skipped: Skipped
    normalization: Normalization


def rows_of(task: Task, known: Mapping[str, str], data: Any = None, **options: Unpack[RowOptions]) -> ComparedRows:
    """The rows of files as a task reads them, with or without targets; `known`: the columns that a card names."""
    files = table_for(task, known, data, options, targets=False)
    skipped, normalization, given = Skipped(), task.normalization(), options.get("columns") or {}

    def begin(record: Record) -> tuple[Mapping[str, str], Callable[[Record], Example]]:
        reader = Reader.of(task, record, files.columns, skipped.note)
        if absent := [name for name in given if name not in {*reader.inputs, *reader.columns}]:
            raise UserError(f"{files.name}: no column {shown(given[absent[0]])!r}, which --column says is {absent[0]}")

        def checked(record: Record) -> Example:
            example = reader.read(record)
            if task.has_target(example):
                task.check_format(example)
            return normalization(example)

        return reader.inputs, checked

    def examples() -> Iterator[Example]:
        yield from task.read_table(files, begin, skipped)
        log_notes(replace(skipped, count=0).lines(), to_logger)

    return ComparedRows(examples(), files.name, files.hash(), skipped, normalization)


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
    agreement: Any = None  # with the first model
    # The rows where it agrees least; the same text may come again and again.
    worst: WorstRows = field(default_factory=lambda: WorstRows(20 * MAX_SHOWN))
    keys: set[Hashable] = field(default_factory=set)  # a few of its answers: two are enough to tell that they differ
    target_counts: Counter[Hashable] = field(default_factory=Counter)
    labeled: int = 0
    damaged: str | None = None
    sampled: dict[str, Replicates] = field(default_factory=dict)

    def predict(self, examples: Sequence[Example], others: Mapping[str, Predictions]) -> Predictions:
        """A prediction for each example, of an ensemble the mean of its members'; None: its outputs are no numbers."""
        if self.damaged == NOT_FINITE:
            return None
        predictions: Predictions = None
        if self.members and self.task.averages:
            known = [each for member in self.members if (each := others[member.name]) is not None]
            if len(known) == len(self.members):
                tasks = [member.task for member in self.members]
                return [self.task.mean_prediction(each, tasks) for each in zip(*known, strict=True)]
        else:
            opened, inputs = self.model.opened, [self.own.inputs(each) for each in examples]
            with suppress(NotFinite), evaluating(opened.network):
                predictions = self.own.predict(opened, framing_for(opened), inputs)
        if predictions is None or not all(map(self.own.is_finite, predictions)):
            self.damaged, self.metrics, self.agreement = NOT_FINITE, None, None  # nothing more is asked of it
            return None
        return [self.task.reorder(each, self.own.labels) for each in predictions]

    def evaluate(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> None:
        """Add predictions of examples with targets to the metrics."""
        self.labeled += len(examples)
        self.target_counts.update(part for example in examples for part in self.task.target_parts(example))
        self.metrics = self.metrics or self.task.metrics()
        self.task.add(self.metrics, predictions, examples)

    def compare(self, first: Participant, rows: Iterable[tuple[Prediction, Prediction, Example]]) -> None:
        """Count where it agrees with the first model, and keep where it does so least."""
        task, self.agreement = self.task, self.agreement or self.task.agreement()
        for prediction, reference, example in rows:
            counted, distance = task.compare(prediction, reference, example, first.task)
            self.agreement.add(*counted)
            if distance > ROUNDING:
                target = task.describe_target(example) if task.has_target(example) else ""
                theirs = first.task.describe(reference, prediction, example)
                row = {"target": target, first.name: theirs, self.name: task.describe(prediction, reference, example)}
                self.worst.add(distance, {**row, "where": example.where, "text": " | ".join(example.texts)})

    def fault(self, first: Participant, varied: bool, rows: int, hash: str) -> str | None:
        """Why it cannot be used, as far as these rows show it; `varied`: their targets differ."""
        if rows >= MIN_ROWS and len(self.keys) == 1 and (varied or (self is not first and len(first.keys) > 1)):
            return f"it gives all {rows:,} texts the same answer"
        if self.sampled and first.sampled and (why := self._below_chance(first, rows)):
            return why
        name = self.task.default_metric
        # Writers are evaluated on a sample, series on other windows in a back-test than in training.
        same = not (self.task.writes or self.task.reads_tables)
        if hash and name in self.sampled and name not in LESS and same:
            value = self.sampled[name].score().value
            for each in self.model.card.metrics:
                if each.data == hash and each.name == name and each.low is not None and value < each.low:
                    return f"its {name} of {value:.3f} is not the {each.value:.3f} that its card has for the same rows"
        return None

    def _below_chance(self, first: Participant, rows: int) -> str | None:
        metric, name = self.task.default_metric, self.task.chance_metric
        level = self.task.chance_level(self.target_counts, self.labeled)
        if name is None:
            retained = self.sampled[metric].over(first.sampled[metric])
            few = self is not first and math.isfinite(retained.high) and retained.high < TENTH
            return f"it retains {100 * retained.value:.1f} % of the {metric} of {first.name}" if few else None
        name = name or metric
        score, reference = self.sampled[name].score(), first.sampled[name]
        if name in LESS:
            return f"its {name} of {score.value:.2f} is no better than {level:g}" if score.low >= level else None
        if self is first:  # with no model beside it, it must be worse than chance; few rows may be bad luck
            worse = rows >= 2 * MIN_ROWS and score.high < level
            return f"its {name} of {score.value:.3f} is worse than chance, {level:.3f}" if worse else None
        worse = score.low <= level < reference.score().low and self.sampled[name].minus(reference).high < 0
        return f"its {name} of {score.value:.3f} is no better than chance, {level:.3f}" if worse else None

    def standing(self, first: Participant, metric: str | None, max_drop: float | None, costs: Costs | None) -> Standing:
        """It beside the first model."""
        scores = {name: each.score() for name, each in self.sampled.items()}
        folder = None if self.folder is None else str(self.folder)
        standing = Standing(self.name, folder, scores, costs=costs, damaged=self.damaged)
        if self is first or self.damaged == NOT_FINITE:
            return standing
        difference = {n: each.minus(first.sampled[n]) for n, each in self.sampled.items() if n in first.sampled}
        retained = dropped = None
        if metric is not None and metric in difference:
            mine, theirs = self.sampled[metric], first.sampled[metric]
            retained = theirs.over(mine) if metric in LESS else mine.over(theirs)
            drop = lost(difference[metric], metric)
            if max_drop is not None and not drop <= max_drop + ROUNDING:
                dropped = f"it loses {drop:.2f} points of {metric}, and {max_drop:g} are allowed"
        agreement: dict[str, Score] = {}
        if first.damaged != NOT_FINITE:
            sampled = {name: each for name, each in self.agreement.sampled().items() if name not in NO_AGREEMENT}
            agreement = {AGREEMENT_NAMES.get(name, name): each.score() for name, each in sampled.items()}
        worst = list({row["text"]: row for row in reversed(self.worst.rows())}.values())[::-1][:MAX_SHOWN]
        filled = [{name: cell for name, cell in row.items() if any(each[name] for each in worst)} for row in worst]
        standing = replace(standing, difference=difference, retained=retained, dropped=dropped)
        return replace(standing, agreement=agreement, disagreements=filled)


def participants_of(
    models: Sequence[Model], names: Sequence[str], folders: Sequence[Path | None] | None = None
) -> list[Participant]:
    """The models as they are compared; those that do not belong together are named."""
    first, folders = models[0], folders or [None] * len(models)
    for name, model in zip(names, models, strict=True):
        if model.task != first.task:
            raise UserError(f"{name} is made for {model.task}, {names[0]} for {first.task}: they cannot be compared")
    tasks: list[Any] = [model.task_object for model in models]
    if not tasks[0].comparable:
        raise UserError(f"models for {first.task} are not compared by rows; to compare their vectors: --task embed")
    labels = tuple(dict.fromkeys(label for task in tasks for label in task.labels))
    participants = []
    for name, model, folder, task in zip(names, models, folders, tasks, strict=True):
        mine, theirs = set(task.labels), set(tasks[0].labels)
        if task.unbounded != tasks[0].unbounded:
            raise UserError(f"{name} and {names[0]} cannot be compared: one predicts labels, the other values")
        if mine != theirs and not mine & theirs:
            one, two = (shown(", ".join(each.labels)) for each in (task, tasks[0]))
            raise UserError(f"{name} has the labels {one}, {names[0]} has {two}: no label in common")
        differ = [
            f"{word} {listed([shown(label) for label in sorted(some)], 3)}"
            for word, some in (("it lacks", theirs - mine), ("it alone has", mine - theirs))
            if some
        ]
        damaged = f"its labels are not those of {names[0]}: {', '.join(differ)}" if differ else None
        aligned = replace(task, labels=labels) if labels else task
        participants.append(Participant(name, model, folder, task, aligned, damaged=damaged))
    return participants


def with_ensemble(models: Sequence[Participant], name: str, count: int) -> list[Participant]:
    """The models after the ensemble of the first `count` of them, where their task has one."""
    members = tuple(models[:count])
    task: Any = members[0].task
    if count < 2 or not (task.averages or task.joint):
        return list(models)
    if task.joint:
        task = replace(task, others=tuple(member.model.opened for member in members[1:]))
    return [Participant(name, members[0].model, None, task, task, members), *models]


def check_max_drop(max_drop: float | None) -> None:
    if max_drop is not None and not 0 <= max_drop <= 100:
        raise UserError(f"max_drop must be between 0 and 100 points, not {max_drop:g}")


def compare(
    models: Sequence[str | os.PathLike[str] | Model],
    data: Paths | None = None,
    *,
    task: str | None = None,
    max_drop: float | None = None,
    device: str | None = None,
    online: bool = False,
    trust: bool = False,
    progress: ProgressChoice = None,
    costs: bool = True,
    memory: bool = True,
    texts: int = TEXTS,
    seconds: float = SECONDS,
    **rows: Unpack[RowOptions],
) -> Comparison:
    """Compare several models with the first of them on the same rows: metrics, agreement, costs.

    Rows need no labels; `columns`, `format`, `source`, `target` ... say how they are read. `costs=False` measures no
    size, speed and memory, `memory=False` no memory; `texts` and `seconds` limit what is timed. `max_drop` is in
    points of the metric (hundredths): a model that loses more, or is damaged, is named in `refused`.
    """
    check_max_drop(max_drop)
    models = [models] if isinstance(models, str | os.PathLike | Model) else models
    folders = [None if isinstance(each, Model) else Path(each) for each in models]
    refuse((not models, "no model to compare: give one folder or several"))
    opening: Any = {"task": task, "device": device, "online": online, "trust": trust}
    loaded = [each if isinstance(each, Model) else load(each, **opening) for each in models]
    for each in models:
        if isinstance(each, Model) and device is not None:
            each.to(device)
    names = [f"model {number}" if path is None else path.name or str(path) for number, path in enumerate(folders, 1)]
    if len(set(names)) < len(names):
        whole = [name if path is None else str(path) for name, path in zip(names, folders, strict=True)]
        names = [name if whole.count(name) == 1 else f"{name} ({number})" for number, name in enumerate(whole, 1)]
    participants = participants_of(loaded, names, folders)
    measuring: Any = {"costs": costs, "memory": memory, "texts": texts, "seconds": seconds}
    read = rows_of(participants[0].own, loaded[0].card.columns, data, **rows)
    with progress_of(progress)(f"comparing on {read.where}", "examples") as count:
        comparison = compared(participants, read, max_drop=max_drop, progress=count, **measuring)
    if note := read.normalization.note():
        to_logger(f"weft: note: {read.where}: {note}")
    skipped = read.skipped
    return replace(comparison, reading=f"{comparison.reading}; {skipped}") if skipped.count else comparison


def compared(
    models: Sequence[Participant],
    rows: ComparedRows | Iterable[Example],
    *,
    data: str = "",
    max_drop: float | None = None,
    costs: bool = True,
    progress: Callable[[int], None] = lambda more: None,
    **measuring: Any,
) -> Comparison:
    """Compare models on examples, streaming: nothing is held but the rows at hand and the texts to be timed."""
    first, reading, timed = models[0], ReadCounts(), _Sample(measuring.get("texts", TEXTS))
    targets, known = set[str](), 0
    examples = rows.examples if isinstance(rows, ComparedRows) else rows
    data, hash = (rows.where, rows.hash) if isinstance(rows, ComparedRows) else (data, "")
    for some in chunked(examples, lambda example: sum(map(len, example.texts))):
        predictions: dict[str, Predictions] = {}
        for model in reversed(models):  # an ensemble stands before its members
            predictions[model.name] = model.predict(some, predictions)
        for example in some:
            timed.add(first.task.timed_input(example))
        progress(len(some))
        references = predictions[first.name]
        for prediction in references or []:
            reading.add(prediction)
        labeled = [number for number, example in enumerate(some) if first.task.has_target(example)]
        known += len(labeled)
        targets.update(first.task.describe_target(some[number]) for number in labeled if len(targets) < 2)
        for model in models:
            if (mine := predictions[model.name]) is None:
                continue
            if labeled:
                model.evaluate([mine[number] for number in labeled], [some[number] for number in labeled])
            model.keys.update(model.task.key(each) for each in mine if len(model.keys) < 2)
            if model is not first and references is not None:
                model.compare(first, zip(mine, references, some, strict=True))
    refuse(
        (not timed.seen, f"{data}: there are no rows" if data else "there are no rows to compare by"),
        (max_drop is not None and not known, f"{data}: the data has no labels to measure by: leave out --max-drop"),
    )
    for model in models:
        model.sampled = model.metrics.sampled() if model.metrics is not None else {}
    for model in models:
        model.damaged = model.damaged or model.fault(first, len(targets) > 1, timed.seen, hash)
    measured, by_name = _measured(models, timed.held, **measuring) if costs else (None, {})
    metric = first.task.default_metric if known else None
    standings = [model.standing(first, metric, max_drop, by_name.get(model.name)) for model in models]
    agreements = [name for each in standings for name in each.agreement]
    agreement = next((name for name in AGREEMENT_METRICS if name in agreements), None)
    shared = first.model.task, data, hash, timed.seen, known, metric or None, agreement
    return Comparison(*shared, standings, measured, str(reading), max_drop)


def _measured(
    models: Sequence[Participant], inputs: Sequence[Any], **measuring: Any
) -> tuple[Measured | None, dict[str, Costs | None]]:
    """How costs were measured, and those of each model by its name; an ensemble costs what its members cost."""
    sound = [model for model in models if model.damaged != NOT_FINITE and not model.members]
    if not sound:
        return None, {}
    measured, each_cost = measure([each.model for each in sound], inputs, [each.folder for each in sound], **measuring)
    costs: dict[str, Costs | None] = dict(zip((model.name for model in sound), each_cost, strict=True))
    for model in models:
        if model.members:
            costs[model.name] = total_costs([costs.get(member.name) for member in model.members])
    return measured, costs


class _Sample:
    """Up to `size` inputs of a stream, evenly from all of it, while no more than twice as many are held."""

    def __init__(self, size: int) -> None:
        self.size, self.step, self.seen = max(1, size), 1, 0
        self.held: list[Any] = []

    def add(self, value: Any) -> None:
        if self.seen % self.step == 0 and value is not None:
            self.held.append(value)
            if len(self.held) >= 2 * self.size:
                self.held, self.step = self.held[::2], 2 * self.step
        self.seen += 1
