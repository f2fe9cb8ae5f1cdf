"""`weft.compare(models, data)`: metrics, agreement and costs of several models on the same rows, beside the first."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from weft.comparison.comparison import LESS, Comparison, Standing, lost
from weft.comparison.cost import SECONDS, TEXTS, Costs, Measured, measure, total_costs
from weft.comparison.participant import NOT_FINITE, ROUNDING, Participant, below_card, fault
from weft.comparison.rows import rows_of
from weft.errors import UserError, listed, shown
from weft.metrics.bootstrap import Score
from weft.progress import ProgressChoice, progress_of, to_logger
from weft.tasks.base import Example, Prediction, Task
from weft.tasks.evaluate import ReadCounts
from weft.tasks.forward import chunked
from weft.tasks.model import Model, load
from weft.tasks.rows import Paths, RowOptions

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
    loaded = [_loaded(each, task, device, online, trust) for each in models]
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


def _loaded(
    model: str | os.PathLike[str] | Model, task: str | None, device: str | None, online: bool, trust: bool
) -> Model:
    if isinstance(model, Model):
        return model if device is None else model.to(device)
    return load(model, task=task, device=device, online=online, trust=trust)


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
