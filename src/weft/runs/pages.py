"""The page of a run, the curves of several, and the page of a ladder; only losses of one unit share a chart."""

from __future__ import annotations

import hashlib
import math
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.checkpoint.folder import TARGET
from weft.checkpoint.tensors import layer_weights
from weft.config import build, read_record
from weft.errors import UserError, listed, refuse
from weft.files import read_text, write_text
from weft.metrics.bootstrap import Score
from weft.picture import Bar, ChartLine, bar_chart, entries, heading, line_chart, page, paragraph, table, verbatim
from weft.tasks.evaluate import Evaluation, evaluation_parts
from weft.tasks.registry import CLASSES, task_class
from weft.training.log import time_left
from weft.training.run import Run

PERCENT = ("bleu", "chrf")  # scores between 0 and 100
ERRORS = ("mse", "mae")  # scores in the unit of the data
NAMED = 6  # labels named in a heading
# Keys of a recipe that decide what its loss is of.
KEYS = {"task": ("name", "metric", "labels"), "distill": ("metric",), "teacher": ("folders",), "objective": ("name",)}


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
    """The training record of a run folder."""

    name: str
    folder: Path
    lines: list[dict[str, Any]]
    scores: list[str]  # of its evaluations beside the loss; the one that selects the model first
    unit: str  # what its loss is of; losses of one unit can be compared
    key: str  # equal for runs of one unit


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
        reached = (first, _baselines(alone.folder), *_metrics([alone]), _layer_weights(alone.folder), *others)
        parts = [part for part in reached if part]
    rows = list(map(_row, records))
    facts = table(list(rows[0]), [list(row.values()) for row in rows]) if alone is None else entries(rows[0])
    parts.append(heading("Training") + facts)
    if len(groups) > 1:
        parts.append(paragraph("Losses of different objectives or vocabularies cannot be compared in one chart."))
        parts.append(_relative_losses(records))
    for group in groups.values():
        charts = [*([] if alone else _metrics(group)), *_losses_and_rates(group)]
        if len(groups) > 1:
            charts[0] = heading(group[0].unit) + charts[0]
        parts += charts
    title = f"Run {folders[0].name}" if len(folders) == 1 else f"{len(folders)} runs"
    write_text(out, page(title, parts))


def _record(folder: Path) -> RunRecord:
    run = Run(folder)
    refuse((not run.metrics.is_file(), f"{str(folder)!r} is not a run folder: it has no run/metrics.jsonl"))
    lines, sections = run.lines(), dict[str, Any]()
    with suppress(ValueError, RecursionError):  # a recipe that cannot be read decides nothing
        values = tomllib.loads(read_text(run.recipe)) if run.recipe.is_file() else {}
        sections = {name: values[name] for name in KEYS if name in values}
    for name, section in sections.items():
        if not isinstance(section, dict):
            raise UserError(f"{run.recipe}: {name} must be a section")
        for key in KEYS[name]:
            kind = list if key in ("labels", "folders") else str
            value = section.get(key, kind())
            if not isinstance(value, kind) or not all(isinstance(item, str) for item in value):
                what = "a text" if kind is str else "a list, each a text"
                raise UserError(f"{run.recipe} [{name}]: {key} must be {what}")
    # Parts of the loss are no scores: training lines name them too, or there is one, which equals the loss.
    evaluations = [line for line in lines if "validation_loss" in line]
    loss_parts = {f"validation_{name}" for line in lines if "validation_loss" not in line for name in line}
    names = {name for line in evaluations for name in line if name.startswith("validation_")} - loss_parts
    known = [name for name in names if any(line.get(name) != line["validation_loss"] for line in evaluations)]
    chosen = sections.get("task", {}).get("metric") or sections.get("distill", {}).get("metric")
    scores = sorted((name.removeprefix("validation_") for name in known), key=lambda name: (name != chosen, name))
    task, teachers = sections.get("task", {}), sections.get("teacher", {}).get("folders", [])
    name, labels = task.get("name"), task.get("labels", [])
    if name and not (name in CLASSES and task_class(name).loss_by_token):
        unit, parts = f"{name}: {listed(labels, NAMED)}" if labels else name, [name, *labels]
    else:  # a loss by token depends on the vocabulary
        if teachers:
            name = f"distill from {', '.join(Path(teacher).name for teacher in teachers)}"
        paths = [path for path in (folder / TARGET / "tokenizer.json", folder / "tokenizer.json") if path.is_file()]
        digest = hashlib.sha256(paths[0].read_bytes()).hexdigest()[:8] if paths else "unknown"
        unit = f"{name or sections.get('objective', {}).get('name') or 'next'}, vocabulary {digest}"
        parts = [unit, *teachers, repr(sections.get("distill"))]
    return RunRecord(str(folder), folder, lines, scores, unit, "\n".join(parts))


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


def _layer_weights(folder: Path) -> str:
    """The learned mix of the best model, where it has one."""
    weights = layer_weights(folder)
    if not weights:
        return ""
    bars = [Bar(name, value) for name, value in weights.items() if name != "scale"]
    note = paragraph(f"The head reads the weighted sum of all layers, multiplied by {weights['scale']:.3f}.")
    return bar_chart("Learned layer weights", bars, "share") + note


def _points(record: RunRecord, key: str, by: str = "step") -> list[tuple[float, float]]:
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


def _relative_losses(records: Sequence[RunRecord]) -> str:
    """How far each run has come, whatever its loss is of: losses as shares of the run's first one."""
    lines = list[ChartLine]()
    for record in records:
        train, held_out = (_points(record, key, "tokens") for key in ("loss", "validation_loss"))
        first = next((loss for _, loss in (*train, *held_out) if math.isfinite(loss) and loss > 0), 1.0)
        for name, points in (("training", train), ("held out", held_out)):
            shares = [(x, loss / first) for x, loss in points]
            faint = name == "training" and bool(held_out)
            if shares:
                lines.append(ChartLine(f"{record.name}: {name}", shares, group=record.name, faint=faint))
    return line_chart("Loss as a share of the first loss, by tokens read", lines, "tokens", "share of the first loss")


def _metrics(group: Sequence[RunRecord]) -> list[str]:
    """A chart for each scale of scores: of a single run all its scores, of several the first score of each."""
    scales: dict[str, list[ChartLine]] = {}
    for record in group:
        for score in record.scores if len(group) == 1 else record.scores[:1]:
            scale = score if score in ERRORS else "score, 0 to 100" if score in PERCENT else "score"
            faint = len(group) == 1 and scale not in ERRORS and score != record.scores[0]
            name = score if len(group) == 1 else f"{record.name}: {score}"
            scales.setdefault(scale, []).append(ChartLine(name, _points(record, f"validation_{score}"), faint=faint))
    return [
        line_chart(f"Held-out {scale if scale in ERRORS else 'scores'} by step", lines, "step", scale)
        for scale, lines in scales.items()
    ]


def _row(record: RunRecord) -> dict[str, str]:
    run, evaluations = Run(record.folder), [line for line in record.lines if "validation_loss" in line]
    last: dict[str, Any] = next((line for line in reversed(record.lines) if "loss" in line), {})
    best = min(evaluations, key=lambda line: line["validation_loss"], default={})
    words, best_score = best.get("validation_words"), ""
    if record.scores:
        name = record.scores[0]
        values = [line[f"validation_{name}"] for line in evaluations if f"validation_{name}" in line]
        highest = (min if name in ERRORS else max)(filter(math.isfinite, values), default=math.nan)
        best_score = f"{name} {highest:.4f}"
    return {
        "run": record.name,
        "loss of": record.unit,
        "parameters": f"{run.info().parameters if run.about.exists() else 0:,}",
        "steps": f"{last.get('step', 0):,}",
        "tokens": f"{last.get('tokens', 0):,}",
        "loss": f"{last['loss']:.4f}" if last else "",
        "held-out loss": f"{best['validation_loss']:.4f}" if best else "",
        "at step": f"{best['step']:,}" if best else "",
        "perplexity": f"{math.exp(min(words, 99)):.2f}" if words is not None else "",
        "best score": best_score,
        "time": time_left(last.get("seconds", 0)),
        "tokens/s": f"{last.get('tokens_per_second', 0):,}",
    }


LADDER_HEADER = [
    *("model", "bits/byte", "95 % from", "to", "parameters", "on disk"),
    *("trained", "epochs", "tokens/s", "generates/s", "useful context"),
]
Rung = dict[str, Any]


def finished(results: dict[str, Any]) -> list[Rung]:
    """The rungs that have a result, in the order of the ladder."""
    return [rung for rung in results["rungs"] if "bits_per_byte" in rung]


def value_of(rung: Rung) -> float:
    """Bits per byte on held-out text; infinite for a model that gives some of it probability 0."""
    value = rung["bits_per_byte"]["value"]
    return math.inf if value is None else float(value)


def ladder_rows(results: dict[str, Any]) -> list[list[str]]:
    """The table, a row for each rung."""
    rows = []
    for rung in results["rungs"]:
        if "bits_per_byte" not in rung:
            rows.append([rung["name"], "failed" if "failed" in rung else "not yet", *[""] * (len(LADDER_HEADER) - 2)])
            continue
        score, useful, speed = rung["bits_per_byte"], rung["useful_context"], rung["tokens_per_second"]
        bits = ["infinite" if score[key] is None else f"{score[key]:.4f}" for key in ("value", "low", "high")]
        rows.append(
            [
                rung["name"],
                *(bits if score["low"] != score["high"] else [bits[0], "", ""]),  # a constant has no interval
                f"{rung['parameters']:,}" + (" counts" if rung["counted"] else ""),
                f"{rung['bytes_on_disk'] / 1e6:.2f} MB",
                f"{rung['seconds']:.1f} s",
                f"{rung['epochs']:.1f}",
                "" if speed is None else f"{speed:,}",
                f"{rung['generation_tokens_per_second']:,.0f}",
                "" if useful is None else str(useful),
            ]
        )
    return rows


def failures(results: dict[str, Any]) -> list[str]:
    """Why rungs failed, one sentence for each."""
    return [f"{rung['name']} failed: {rung['failed']}" for rung in results["rungs"] if "failed" in rung]


def verdict(results: dict[str, Any]) -> str:
    """Which model won, by how much, and why."""
    rungs = sorted(finished(results), key=value_of)
    if len(rungs) < 2:
        return "Too few models have finished to compare them."
    best, second = rungs[0], rungs[1]
    bits = f"{value_of(best):.3f} bits per byte, against {value_of(second):.3f} of the {second['title']}"
    sentences = [f"The {best['title']} predicted the held-out text best: {bits}."]
    low, high = second["bits_per_byte"]["low"], best["bits_per_byte"]["high"]
    if low is not None and high is not None and low <= high:
        sentences.append("Their intervals overlap, so the order may differ on another text of this kind.")
    counts = next((rung for rung in rungs if rung["counted"] and "gram" in rung["name"]), None)
    network = next((rung for rung in rungs if not rung["counted"]), None)
    if counts is None or network is None:
        return " ".join(sentences)
    gap = value_of(network) - value_of(counts)
    epochs = f"{network['epochs']:.1f} passes over the text ({network['tokens']:,} tokens)"
    curve = [point["bits_per_byte"] for point in network["curve"]]
    falling = curve[-1 - len(curve) // 3] - curve[-1] if len(curve) >= 3 else 0.0  # in the last third
    if gap > 0:
        better = f"the {counts['title']} is {gap:.3f} bits per byte better than the best network"
        sentences.append(f"Counting won at this budget: {better}, the {network['title']}, stopped after {epochs}.")
        if falling > 0.005:
            by = f"by {falling:.3f} bits per byte in the last third of its training"
            sentences.append(f"Its loss was still falling, {by}: more minutes, or a GPU, would lower it further.")
        return " ".join(sentences)
    better = f"the {network['title']} is {-gap:.3f} bits per byte better than the best n-gram"
    sentences.append(f"Learning beat counting: {better}, the {counts['title']}, after {epochs}.")
    useful, reach = network["useful_context"], counts.get("reach")
    if useful is not None and reach is not None and useful > reach:
        sentences.append(f"It uses about {useful} preceding tokens, while the {counts['title']} sees {reach}.")
    return " ".join(sentences)


def ladder_page(results: dict[str, Any]) -> str:
    """One self-contained page."""
    rungs, text, budget = finished(results), results["text"], results["budget"]
    kind = "characters" if text["vocabulary"]["kind"] == "character" else "subwords"
    minutes, tokens, xz = budget.get("minutes"), budget.get("tokens"), text.get("xz_bits_per_byte")
    equal = f"{tokens:,} tokens" if tokens else f"{minutes:g} minute{'s' * (minutes != 1)} of training"
    intro = (
        "A language model predicts how a text continues. These models were trained on the same text "
        f"({', '.join(text['files'])}; {text['train_bytes']:,} bytes, {text['vocabulary']['tokens']:,} {kind})"
        f", each with {equal}, and evaluated on {text['held_out_bytes']:,} bytes that none of them had seen."
    )
    best, bars = min(map(value_of, rungs), default=math.inf), list[Bar]()
    for rung in results["rungs"]:
        score, value = rung.get("bits_per_byte", {}), value_of(rung) if "bits_per_byte" in rung else math.nan
        note = f"failed: {rung['failed']}" if "failed" in rung else "not yet" * (not score)
        note = "infinite" if math.isinf(value) else note
        ends = {key: score[key] for key in ("low", "high") if score and score["low"] != score["high"]}
        bars.append(Bar(rung["title"], value, **ends, note=note, faint=value > best))
    contexts = list[ChartLine]()
    for rung in rungs:
        if rung["by_context"] and rung["name"] not in ("uniform", "unigram"):
            points = [(each["context"], each["bits_per_byte"]) for each in rung["by_context"] if each["bits_per_byte"]]
            contexts.append(ChartLine(rung["title"], points, dashed=rung["counted"]))
    figures = table(LADDER_HEADER, ladder_rows(results)) + "".join(map(paragraph, failures(results)))
    by_context = line_chart("Loss by preceding tokens", contexts, "preceding tokens", "bits per byte", log_x=True)
    parts = [
        heading("Which model predicts best") + paragraph(verdict(results)),
        bar_chart("Held-out text, lower is better", bars, "bits per byte"),
        paragraph(
            "Bits per byte: the average number of bits needed to encode the next byte with the model's probabilities. "
            "Lower is better; 8 is no better than chance. The thin line is the 95 % interval."
            + ("" if xz is None else f" The compressor xz needs {xz:.3f} after compressing the rest of the text.")
        ),
        heading("Results") + figures,
        paragraph("Parameters: weights, or counted n-grams. Tokens/s: in training. Generates/s: tokens of one text."),
        heading("Loss during training") + _rung_curves(rungs, "seconds", "seconds of training"),
        _rung_curves(rungs, "tokens", "tokens read"),
        heading("Loss by context length") + by_context,
        paragraph(
            "The same positions of the held-out text, predicted after 1, 2 and more tokens from an empty state. The "
            "useful context is the shortest one that no longer one beats by more than noise."
        ),
        heading("The models and their samples") + _samples(results["rungs"]),
        heading("Method") + paragraph(_method(results)),
    ]
    return page("The ladder of language models", parts, intro)


def _rung_curves(rungs: Sequence[Rung], by: str, x: str) -> str:
    lines = list[ChartLine]()
    end = max((point[by] for rung in rungs for point in rung["curve"]), default=1.0)
    for rung in rungs:
        points = [(point[by], point["bits_per_byte"]) for point in rung["curve"]]
        if rung["counted"]:
            if rung["name"] == "uniform" or math.isinf(value_of(rung)):
                continue
            at = rung["seconds"] if by == "seconds" else rung["tokens"]
            points = [(at, value_of(rung)), (max(end, at), value_of(rung))]
        lines.append(ChartLine(rung["title"], points, dashed=rung["counted"]))
    return line_chart(f"Held-out loss by {x}", lines, x, "bits per byte")


def _samples(rungs: Sequence[Rung]) -> str:
    parts = list[str]()
    for rung in rungs:
        sees = rung["sees"]
        if rung.get("context") and not rung.get("reach"):
            sees = f"{sees}, at most {rung['context']} of them"
        elif rung.get("reach") and not rung["counted"]:
            sees = f"the last {rung['reach']} tokens"
        parts.append(paragraph(f"{rung['title']} ({rung['name']}): {rung['about']}. It sees {sees}."))
        if "sample" in rung:
            parts.append(verbatim(f"{rung['sample']['prompt']}▸{rung['sample']['text']}"))
    return "".join(parts)


def _method(results: dict[str, Any]) -> str:
    text = results["text"]
    unknown = f" {text['unknown']:,} held-out tokens are unknown to the vocabulary." if text.get("unknown") else ""
    return (
        f"Device: {results['device']}; seed {results['seed']}; sizes: {results['budget'].get('size', 'as given')}. "
        "Training time excludes evaluation, saving, compiling and the first steps. Of each network the state with the "
        "lowest held-out loss is kept, which favors it a little. The curves read held-out text in separate rows and "
        "end a little above the table, which uses a sliding window. Intervals: bootstrap over blocks of 64 tokens. "
        "Samples: temperature 1, one seed. "
        f"Training text: {text['train_tokens']:,} tokens.{unknown}"
    )
