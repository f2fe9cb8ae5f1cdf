"""The page of a run, and the curves of several: runs whose losses can be compared share a chart, others never do."""

from __future__ import annotations

import hashlib
import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.checkpoint.folder import TARGET
from weft.config import build, read_record
from weft.errors import UserError, listed
from weft.files import read_text, write_text
from weft.metrics.bootstrap import Score
from weft.picture import ChartLine, Point, entries, heading, line_chart, page, paragraph, table
from weft.tasks.evaluate import Evaluation, evaluation_parts
from weft.tasks.registry import CLASSES, task_class
from weft.training.log import time_left
from weft.training.run import Run

PERCENT = ("bleu", "chrf")  # scores between 0 and 100
ERRORS = ("mse", "mae")  # scores in the unit of the data
NAMED = 6  # labels named in a heading
# Keys of a recipe that decide what its loss is of.
KEYS: dict[str, dict[str, Any]] = {
    "task": {"name": str, "metric": str, "labels": list},
    "distill": {"metric": str},
    "teacher": {"folders": list},
    "objective": {"name": str},
}


@dataclass(frozen=True, kw_only=True)
class BaselineScore:
    """What one linear model reached."""

    name: str
    score: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class BaselineRecord:
    """`baseline.json`: linear models that were trained beside a run."""

    metric: str
    baselines: tuple[dict[str, Any], ...]  # of each its name, its score under the name of the metric, and seconds
    difference: Score  # of the model and the best of them


@dataclass(frozen=True)
class RunRecord:
    """What a run folder says of its training."""

    name: str
    folder: Path
    lines: list[dict[str, Any]]
    recipe: dict[str, Any]
    unit: str  # in words: what its loss is of; losses of one unit can be compared
    key: str  # equal for runs of one unit

    @property
    def scores(self) -> list[str]:
        """The scores that its evaluations have beside the loss, that by which the model is chosen first."""
        judged = [line for line in self.lines if "validation_loss" in line]
        # Parts of the loss are no scores: training lines name them too, or there is one, which equals the loss.
        parts = {f"validation_{name}" for line in self.lines if "validation_loss" not in line for name in line}
        names = {name for line in judged for name in line if name.startswith("validation_")} - parts
        known = [name for name in sorted(names) if any(line.get(name) != line["validation_loss"] for line in judged)]
        chosen = self.recipe.get("task", {}).get("metric") or self.recipe.get("distill", {}).get("metric")
        return sorted((name.removeprefix("validation_") for name in known), key=lambda name: (name != chosen, name))


def write_curves(folders: Sequence[Path], out: Path) -> None:
    """One self-contained page: what a single run reached, and for each unit of loss its metrics and losses by step."""
    records, groups = list(map(_record, folders)), dict[str, list[RunRecord]]()
    for record in records:
        groups.setdefault(record.key, []).append(record)
    alone = records[0] if len(records) == 1 else None
    parts = list[str]()
    if alone is not None:  # what its best model reached on the held-out rows, and its scores over time
        path = Run(alone.folder).evaluation
        first, *others = evaluation_parts(Evaluation.read(path)) if path.is_file() else [""]
        parts = [part for part in (first, _baselines(alone.folder), *_metrics([alone]), *others) if part]
    rows = [_row(record) for record in records]
    facts = table(HEADER, rows) if alone is None else entries(dict(zip(HEADER, rows[0], strict=True)))
    parts.append(heading("Training") + facts)
    if len(groups) > 1:
        note = "Losses of different objectives or vocabularies cannot be compared: each has charts of its own."
        parts.append(paragraph(note))
    for group in groups.values():
        charts = [*([] if alone else _metrics(group)), *_losses_and_rates(group)]
        if len(groups) > 1:
            charts[0] = heading(group[0].unit) + charts[0]
        parts += charts
    title = f"Run {folders[0].name}" if len(folders) == 1 else f"{len(folders)} runs"
    write_text(out, page(title, parts))


def _record(folder: Path) -> RunRecord:
    run = Run(folder)
    if not run.metrics.is_file():
        raise UserError(f"{str(folder)!r} is not a run folder: it has no run/metrics.jsonl")
    recipe = _recipe(run.recipe)
    return RunRecord(str(folder), folder, run.lines(), recipe, *_unit(folder, recipe))


def _recipe(path: Path) -> dict[str, Any]:
    """The sections of a recipe, whatever it trains, that the unit of its loss depends on; {} if it cannot be read."""
    try:
        values = tomllib.loads(read_text(path)) if path.is_file() else {}
    except (ValueError, RecursionError):
        return {}
    sections: dict[str, Any] = {name: values[name] for name in KEYS if name in values}
    for name, section in sections.items():
        if not isinstance(section, dict):
            raise UserError(f"{path}: {name} must be a section")
        for key, kind in KEYS[name].items():
            value = section.get(key, kind())
            if not isinstance(value, kind) or not all(isinstance(item, str) for item in value):
                raise UserError(f"{path} [{name}]: {key} must be {'a text' if kind is str else 'a list, each a text'}")
    return sections


def _unit(folder: Path, recipe: dict[str, Any]) -> tuple[str, str]:
    """What the loss of a run is of, in words, and a key that is equal where losses can be compared."""
    task = recipe.get("task", {})
    name, labels = task.get("name"), task.get("labels", [])
    if name and not (name in CLASSES and task_class(name).loss_by_token):
        named = listed(labels, NAMED)
        return f"{name}: {named}" if named else name, "\n".join([name, *labels])
    teachers = recipe.get("teacher", {}).get("folders", [])
    if teachers:
        name = f"distill from {', '.join(Path(teacher).name for teacher in teachers)}"
    # A loss by token: of other tokens, it is another measure.
    paths = [path for path in (folder / TARGET / "tokenizer.json", folder / "tokenizer.json") if path.is_file()]
    digest = hashlib.sha256(paths[0].read_bytes()).hexdigest()[:8] if paths else "unknown"
    unit = f"{name or recipe.get('objective', {}).get('name') or 'next'}, vocabulary {digest}"
    return unit, "\n".join([unit, *teachers, repr(recipe.get("distill"))])


def _baselines(folder: Path) -> str:
    """The linear models that were trained beside, where there are some."""
    path = Run(folder).inside / "baseline.json"
    if not path.is_file():
        return ""
    record = read_record(BaselineRecord, path)
    gap, rows = record.difference, []
    for each in record.baselines:
        values = {"name": each.get("name"), "score": each.get(record.metric), "seconds": each.get("seconds")}
        one = build(BaselineScore, values, str(path), "baselines")
        rows.append([one.name, f"{one.score:.4f}", f"{one.seconds:.1f} s"])
    note = f"Model minus best baseline, paired: {gap.value:+.4f} (95 % {gap.low:+.4f} to {gap.high:+.4f})."
    return heading("Linear baselines") + table(["baseline", record.metric, "time"], rows) + paragraph(note)


def _points(record: RunRecord, key: str, by: str = "step") -> list[Point]:
    places = {line["step"]: line[by] for line in record.lines if by in line}
    values = ((line["step"], line[key]) for line in record.lines if key in line)
    return [(places[step], math.nan if value is None else value) for step, value in values if step in places]


def _losses_and_rates(group: Sequence[RunRecord]) -> list[str]:
    """Losses, learning rate and gradient of runs that can be compared."""
    charts, several = list[str](), len(group) > 1
    for by, title in (("step", "Loss by step"), ("tokens", "Loss by tokens read")):
        lines = list[ChartLine]()
        for record in group:
            name, held_out = f"{record.name}: " if several else "", _points(record, "validation_loss", by)
            train = _points(record, "loss", by)
            lines.append(ChartLine(f"{name}training", train, group=record.name, faint=bool(held_out)))
            if held_out:
                lines.append(ChartLine(f"{name}held out", held_out, group=record.name))
        charts.append(line_chart(title, lines, by, "loss"))
    for key, title in (("learning_rate", "Learning rate"), ("norm", "Length of the gradient")):
        lines = [ChartLine(each.name if several else "", _points(each, key), group=each.name) for each in group]
        charts.append(line_chart(title, lines, "step", key, log_y=key == "norm"))
    return charts


def _metrics(group: Sequence[RunRecord]) -> list[str]:
    """A chart for each scale of scores: of a single run all its scores, of several the first score of each."""
    scales: dict[str, list[ChartLine]] = {}
    for record in group:
        for score in record.scores if len(group) == 1 else record.scores[:1]:
            points = [(line["step"], line[key]) for line in record.lines if (key := f"validation_{score}") in line]
            scale = score if score in ERRORS else "score, 0 to 100" if score in PERCENT else "score"
            faint = len(group) == 1 and scale not in ERRORS and score != record.scores[0]
            name = score if len(group) == 1 else f"{record.name}: {score}"
            scales.setdefault(scale, []).append(ChartLine(name, points, faint=faint))
    return [
        line_chart(f"Held-out {scale if scale in ERRORS else 'scores'} by step", lines, "step", scale)
        for scale, lines in scales.items()
    ]


HEADER = [
    "run", "loss of", "parameters", "steps", "tokens", "loss", "held-out loss", "at step", "perplexity", "best score",
    "time", "tokens/s",
]  # fmt: skip


def _row(record: RunRecord) -> list[str]:
    run = Run(record.folder)
    parameters = run.info().parameters if run.about.exists() else 0
    train = [line for line in record.lines if "loss" in line]
    judged = [line for line in record.lines if "validation_loss" in line]
    last = train[-1] if train else {}
    best = min(judged, key=lambda line: line["validation_loss"], default={})
    words, best_score = best.get("validation_words"), ""
    if record.scores:
        name = record.scores[0]
        values = [line[f"validation_{name}"] for line in judged if f"validation_{name}" in line]
        highest = (min if name in ERRORS else max)(filter(math.isfinite, values), default=math.nan)
        best_score = f"{name} {highest:.4f}"
    return [
        record.name,
        record.unit,
        f"{parameters:,}",
        f"{last.get('step', 0):,}",
        f"{last.get('tokens', 0):,}",
        f"{last['loss']:.4f}" if last else "",
        f"{best['validation_loss']:.4f}" if best else "",
        f"{best['step']:,}" if best else "",
        f"{math.exp(min(words, 99)):.2f}" if words is not None else "",
        best_score,
        time_left(last.get("seconds", 0)),
        f"{last.get('tokens_per_second', 0):,}",
    ]
