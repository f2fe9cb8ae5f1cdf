"""`model.evaluate(data)`: metrics with confidence intervals, tables, the worst mistakes, and a page of them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Unpack

from weft.checkpoint.folder import LoadedModel
from weft.config import build
from weft.data.dataset import examples_of, long_note
from weft.errors import UserError
from weft.files import MEGABYTE, read_json, write_json, write_text
from weft.metrics.bootstrap import Score, WorstRows
from weft.picture import ChartLine, entries, heading, heat_map, line_chart, page, paragraph
from weft.picture import table as table_of
from weft.progress import Log, ProgressChoice, log_notes, progress_of, to_logger
from weft.tasks.base import Example, Prediction, Task
from weft.tasks.forward import chunked, framing_for
from weft.tasks.registry import task_for
from weft.tasks.rows import RowOptions, table_for
from weft.text.records import Record
from weft.text.row_problems import Skipped
from weft.text.windows import Framing

MAX_EVALUATION = 256 * MEGABYTE  # bytes of evaluation.json
LOOKED_AT = 300  # rows, to see whether the two sides of pairs are swapped
MATRIX = 40  # labels; of more, the most frequent confusions are listed instead of drawn
LISTED = 20  # confusions in that list
SHOWN = {"target": "true", "prediction": "predicted", "near": "similarity", "where": "row"}  # what mistakes hold
SCORES_HEADER = ["score", "value", "95 % from", "to"]
LONGEST = 100_000  # characters of one text on a page; what is longer is truncated, and the page says so


@dataclass(frozen=True)
class Evaluation:
    """What a model reaches on some data."""

    task: str
    data: str
    hash: str
    scores: dict[str, Score]
    by_label: list[dict[str, Any]]
    labels: tuple[str, ...]  # of the confusion matrix
    confusion: list[list[int]]  # how often each label (row) was predicted as each (column)
    worst: list[dict[str, str]]
    examples: int
    n_tokens: int
    n_windows: int
    n_truncated: int
    reading: str
    skipped: int = 0
    signature: str | None = None  # how BLEU was counted, in sacreBLEU's words
    by_length: list[dict[str, Any]] = field(default_factory=list)  # of what was written, by the words of its source
    points: list[list[float]] = field(default_factory=list)  # of values: true and predicted, evenly from all

    def values(self) -> dict[str, Any]:
        """As JSON has it."""
        left_out = ("reading", "points")
        fields = asdict(self)
        return {name: value for name, value in fields.items() if name not in left_out and value not in ([], (), None)}

    def save(self, path: Path) -> None:
        """All of it as one JSON file, which `read` reads; what is not finite is null, and no text is endless."""
        write_json(path, _storable(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Evaluation:
        """What `save` wrote."""
        values = read_json(path, MAX_EVALUATION)
        for name in ("scores", "points"):  # what was not finite is null
            values[name] = _finite_or_nan(values.get(name, {} if name == "scores" else []))
        evaluation = build(cls, values, str(path))
        tables = (evaluation.by_label, evaluation.by_length, evaluation.worst)
        whole = all(row.keys() >= rows[0].keys() for rows in tables for row in rows)
        size = len(evaluation.labels)
        square = not evaluation.confusion or [len(line) for line in evaluation.confusion] == [size] * size
        if not (whole and square and all(len(point) == 2 for point in evaluation.points)):
            raise UserError(f"{path}: is not an evaluation: the rows of its tables do not fit each other")
        return evaluation

    def tables(self) -> list[tuple[str, list[str], list[list[str]]]]:
        """Title, header and rows of every table."""
        rows = [[name, *(f"{value:.4f}" for value in (s.value, s.low, s.high))] for name, s in self.scores.items()]
        tables = [("Scores", SCORES_HEADER, rows)]
        for title, part in (("By label", self.by_label), ("By words of the source", self.by_length)):
            if part:
                tables.append((title, *cells(part)))
        if 2 <= len(self.labels) <= MATRIX and self.confusion:
            rows = [[name, *(f"{n:,}" for n in line)] for name, line in zip(self.labels, self.confusion, strict=True)]
            tables.append(("Right label by row, taken for by column", ["", *self.labels], rows))
        if self.worst:
            header = list(self.worst[0])
            tables.append(("Worst mistakes", header, [[_short(row[name]) for name in header] for row in self.worst]))
        return tables

    def _repr_html_(self) -> str:
        """What a notebook shows: every table but that of mistakes."""
        parts = [paragraph(f"{self.task} on {self.data}: {self.reading}")]
        for title, header, rows in self.tables():
            parts += [heading(title), table_of(header, rows)] if title != "Worst mistakes" else []
        return "".join(parts)

    def write(self, out: Path) -> None:
        """One self-contained page."""
        write_text(out, page(f"{self.task} on {self.data}", evaluation_parts(self)))


def _finite_or_nan(value: Any) -> Any:
    """Numbers as they were before they were stored."""
    if isinstance(value, dict):
        return {name: _finite_or_nan(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_finite_or_nan(each) for each in value]
    return math.nan if value is None else value


def _storable(value: Any) -> Any:
    """What JSON and UTF-8 can hold."""
    if isinstance(value, dict):
        return {name: _storable(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_storable(each) for each in value]
    if isinstance(value, str):
        return bounded(value).encode("utf-8", "backslashreplace").decode("utf-8")
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _short(text: str, most: int = 100) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 3] + "..."


# -------------------------------------------------------------------------------------------------------- evaluating


@dataclass
class ReadCounts:
    """How much was read."""

    examples: int = 0
    tokens: int = 0
    windows: int = 0
    in_windows: int = 0  # texts that took more than one
    truncated: int = 0

    def add(self, prediction: Prediction) -> None:
        self.examples += 1
        self.tokens += prediction.n_tokens
        self.windows += prediction.n_windows
        self.in_windows += prediction.n_windows > 1
        self.truncated += prediction.truncated

    def __str__(self) -> str:
        cut = f"{self.truncated:,} texts were cut" if self.truncated else "nothing was cut"
        return (
            f"{self.examples:,} examples, {self.tokens:,} tokens in {self.windows:,} windows "
            f"({self.in_windows:,} took more than one); {cut}"
        )


@dataclass(frozen=True)
class EvaluationResult:
    """The metrics of a model on some examples."""

    task: Task  # with what was tuned
    scores: dict[str, Score]
    metrics: Any  # whose tables say more
    worst: list[dict[str, str]]
    reading: ReadCounts


def evaluate_examples(
    task: Task,
    model: LoadedModel,
    framing: Framing,
    examples: Iterable[Example],
    tune: bool = False,
    progress: Callable[[int], None] = lambda more: None,
) -> EvaluationResult:
    """Evaluate a model; with `tune`, thresholds are first chosen on these same examples, which are then all held."""
    reading, worst = ReadCounts(), WorstRows(10)
    held: list[tuple[list[Prediction], list[Example]]] = []
    metrics: Any = None

    def add(predictions: list[Prediction], chunk: list[Example]) -> None:
        nonlocal metrics
        metrics = metrics or task.metrics()
        task.add(metrics, predictions, chunk)
        for prediction, example in zip(predictions, chunk, strict=True):
            if (mistake := task.mistake(prediction, example)) is not None:
                worst.add(*mistake)

    for chunk in chunked(examples, lambda example: sum(map(len, example.texts))):
        predictions = task.predict(model, framing, [task.inputs(example) for example in chunk])
        progress(len(chunk))
        for prediction in predictions:
            reading.add(prediction)
        if tune:
            held.append((predictions, chunk))
        else:
            add(predictions, chunk)
    if held:
        task = task.tune([each for some, _ in held for each in some], [each for _, some in held for each in some])
        for predictions, chunk in held:
            add(predictions, chunk)
    if metrics is None:
        raise UserError("there are no rows to judge by")
    return EvaluationResult(task, metrics.result(), metrics, worst.rows(), reading)


def evaluate(
    opened: LoadedModel,
    name: str,
    data: Any = None,
    *,
    beam_size: int | None = None,
    others: Sequence[LoadedModel] = (),
    log: Log = to_logger,
    progress: ProgressChoice = None,
    **rows: Unpack[RowOptions],
) -> Evaluation:
    """Evaluate a model on the rows of some files, streaming: nothing is held but the rows at hand.

    Of models that write: `source` and `target` are files that belong together line for line; `beam_size` is that
    of the search; `others` are further models of an ensemble.
    """
    task: Any = task_for(opened, name)
    if not task.writes and (rows.get("source") or rows.get("target") or beam_size is not None or others):
        raise UserError(f"a model for {name} does not write: it has no source and target, no beam and no company")
    if task.writes:
        task = replace(task, beam_size=task.beam_size if beam_size is None else beam_size, others=tuple(others))
    files = table_for(task, opened.card.columns, data, rows)
    first = next(files.records(Skipped()), None)
    where = files.name
    if first is None:
        raise UserError(f"{where}: there are no rows")
    task, needed = task.columns(first, files.columns)
    looked = islice(examples_of(replace(files, on_bad_row="skip"), needed, task.read, Skipped()), LOOKED_AT)
    if opened.card.profiles and (note := task.swap_note(list(looked), where)):
        warnings.warn(note, stacklevel=2)
    skipped, framing, normalization = Skipped(), framing_for(opened), task.normalization()

    def read(record: Record, columns: Mapping[str, str]) -> Example:
        example = task.read(record, columns)
        if note := long_note(example.texts, example.where, framing.stride, framing.cutting):
            log(f"weft: note: {note}")
        task.check_format(example)
        return normalization(example)

    with progress_of(progress)(f"judging on {where}", "examples") as count:
        examples = task.merge_references(examples_of(files, needed, read, skipped))
        result = evaluate_examples(task, opened, framing, examples, progress=count)
    log_notes(skipped.without_bad().lines(), log)
    if note := normalization.note():
        log(f"weft: note: {where}: {note}")
    return evaluation_of(result, task.name, where, files.hash(), skipped)


def evaluation_of(
    result: EvaluationResult, name: str, data: str, hash: str, skipped: Skipped | None = None
) -> Evaluation:
    """The metrics of a model with all that a page shows of them."""
    reading, skipped = result.reading, skipped or Skipped()
    return Evaluation(
        task=name,
        data=data,
        hash=hash,
        scores=result.scores,
        worst=result.worst,
        examples=reading.examples,
        n_tokens=reading.tokens,
        n_windows=reading.windows,
        n_truncated=reading.truncated,
        reading=str(reading) + (f"; {skipped}" if skipped.count else ""),
        skipped=skipped.count + skipped.empty.count + skipped.unlabeled.count,
        **{"by_label": [], "labels": (), "confusion": [], **result.task.tables(result.metrics)},
    )


# ------------------------------------------------------------------------------------------------------------- pages


def evaluation_parts(evaluation: Evaluation) -> list[str]:
    """What a page shows of an evaluation, each part a section."""
    intro = paragraph(f"{evaluation.data}: {evaluation.reading}")
    intro += paragraph(evaluation.signature) if evaluation.signature else ""
    scores = [[name, *map(figure, (s.value, s.low, s.high))] for name, s in evaluation.scores.items()]
    parts = [heading("Scores") + intro + table_of(SCORES_HEADER, scores)]
    if evaluation.points:
        parts.append(heading("Predicted against true") + scatter(evaluation.points))
    if len(evaluation.labels) >= 2 and evaluation.confusion:
        parts.append(heading("Confusion") + confusion(evaluation.labels, evaluation.confusion))
    if evaluation.by_label:
        title = "By type" if evaluation.task == "tag" else "By label"
        parts.append(heading(title) + table_of(*cells(evaluation.by_label)))
    if evaluation.by_length:
        parts.append(heading("By words of the source") + table_of(*cells(evaluation.by_length)))
    if evaluation.worst:
        parts.append(heading("Worst mistakes") + "".join(map(mistake, evaluation.worst)))
    return parts


def cells(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and cells of rows that are dictionaries of the same keys."""

    def cell(value: Any) -> str:
        return figure(value) if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)

    return list(rows[0]), [[cell(row[name]) for name in rows[0]] for row in rows]


def figure(value: float) -> str:
    """A score in few characters: errors of values in the thousands need no four decimals."""
    return f"{value:.4f}" if abs(value) < 1000 else f"{value:,.1f}"


def confusion(labels: Sequence[str], counts: Sequence[Sequence[int]]) -> str:
    """How often each label was predicted for each: a heat map, shaded by the share of the true label's rows."""
    if len(labels) > MATRIX:
        pairs = sorted(
            (
                (n, labels[row], labels[column])
                for row, line in enumerate(counts)
                for column, n in enumerate(line)
                if n and row != column
            ),
            key=lambda pair: -pair[0],
        )
        rows = [[right, predicted, f"{n:,}"] for n, right, predicted in pairs[:LISTED]]
        return paragraph(f"The most frequent of {len(pairs):,}:") + table_of(["true label", "predicted", "rows"], rows)
    shares = [[n / max(1, sum(line)) for n in line] for line in counts]
    cells = [[f"{n:,}" for n in line] for line in counts]
    return heat_map("True label by row, predicted label by column", labels, labels, shares, cells)


def scatter(points: Sequence[Sequence[float]]) -> str:
    """Predicted against true values, and the line on which they would be equal."""
    pairs = [(true, predicted) for true, predicted in points]
    ends = [min(min(pair) for pair in pairs), max(max(pair) for pair in pairs)]
    lines = [
        ChartLine("rows", pairs, joined=False),
        ChartLine("predicted = true", [(end, end) for end in ends], dashed=True, faint=True),
    ]
    return line_chart("Predicted against true values", lines, "true", "predicted")


def mistake(row: dict[str, str]) -> str:
    """One mistake with its whole text."""
    return entries({SHOWN.get(name, name): bounded(text) for name, text in row.items()})


def bounded(text: str) -> str:
    """A text that is not endless: what is longer than a book's chapter is truncated, and says so."""
    rest = len(text) - LONGEST
    return text if rest <= 0 else f"{text[:LONGEST]} … ({rest:,} more characters)"
