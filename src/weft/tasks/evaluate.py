"""`model.evaluate(data)`: scores with intervals, a table by label, what is taken for what, and the worst mistakes."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from weft.checkpoint.folder import LoadedModel
from weft.config import build
from weft.data.reading import examples_of, long_note
from weft.data.tables import Table
from weft.errors import UserError
from weft.files import MEGABYTE, read_json, write_json, write_text
from weft.metrics.bootstrap import Score
from weft.metrics.regression import RegressionMetrics
from weft.picture import heading, page, paragraph
from weft.picture import table as table_of
from weft.progress import Log, ProgressChoice, log_notes, progress_of, to_logger
from weft.tasks.base import Example
from weft.tasks.evaluation_page import MATRIX, bounded, cell, evaluation_parts
from weft.tasks.forward import framing_for
from weft.tasks.judging import Judgement, judged
from weft.tasks.registry import task_for
from weft.text.records import Record
from weft.text.row_problems import Skipped

MAX_EVALUATION = 256 * MEGABYTE  # bytes of evaluation.json
LOOKED_AT = 300  # rows, to see whether the two sides of pairs are swapped
POINTS = 1000  # predicted and true values that are kept for a scatter


@dataclass(frozen=True)
class Evaluation:
    """What a model reaches on some data."""

    task: str
    data: str
    hash: str
    scores: dict[str, Score]
    by_label: list[dict[str, Any]]
    labels: tuple[str, ...]  # of the confusion matrix
    confusion: list[list[int]]  # how often each label (row) was taken for each (column)
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
        found = asdict(self)
        return {name: value for name, value in found.items() if name not in left_out and value not in ([], (), None)}

    def save(self, path: Path) -> None:
        """All of it as one JSON file, which `read` reads; what is not finite is null, and no text is endless."""
        write_json(path, _storable(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Evaluation:
        """What `save` wrote."""
        values = read_json(path, MAX_EVALUATION)
        for name in ("scores", "points"):  # what was not finite is null
            values[name] = _finite_or_nan(values.get(name, {} if name == "scores" else []))
        found = build(cls, values, str(path))
        tables = (found.by_label, found.by_length, found.worst)
        whole = all(row.keys() >= rows[0].keys() for rows in tables for row in rows)
        size = len(found.labels)
        square = not found.confusion or [len(line) for line in found.confusion] == [size] * size
        if not (whole and square and all(len(point) == 2 for point in found.points)):
            raise UserError(f"{path}: is not an evaluation: the rows of its tables do not fit each other")
        return found

    def tables(self) -> list[tuple[str, list[str], list[list[str]]]]:
        """Title, header and rows of every table."""
        found = [
            (
                "Scores",
                ["score", "value", "95 % from", "to"],
                [[n, f"{s.value:.4f}", f"{s.low:.4f}", f"{s.high:.4f}"] for n, s in self.scores.items()],
            )
        ]
        if self.by_label:
            header = list(self.by_label[0])
            rows = [[cell(row[name]) for name in header] for row in self.by_label]
            found.append(("By label", header, rows))
        if self.by_length:
            header = list(self.by_length[0])
            rows = [[cell(row[name]) for name in header] for row in self.by_length]
            found.append(("By words of the source", header, rows))
        if 2 <= len(self.labels) <= MATRIX and self.confusion:
            rows = [[name, *(f"{n:,}" for n in line)] for name, line in zip(self.labels, self.confusion, strict=True)]
            found.append(("Right label by row, taken for by column", ["", *self.labels], rows))
        if self.worst:
            header = list(self.worst[0])
            found.append(("Worst mistakes", header, [[_short(row[name]) for name in header] for row in self.worst]))
        return found

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


def evaluate(
    opened: LoadedModel,
    name: str,
    data: Any = None,
    *,
    source: str | os.PathLike[str] | Sequence[str] = (),
    target: str | os.PathLike[str] | Sequence[str] = (),
    beam_size: int | None = None,
    others: Sequence[LoadedModel] = (),
    columns: Mapping[str, str] | None = None,
    format: str | None = None,
    delimiter: str | None = None,
    names: Sequence[str] = (),
    on_bad_row: str = "stop",
    encoding: str | None = None,
    log: Log = to_logger,
    progress: ProgressChoice = None,
) -> Evaluation:
    """LogitsProcessor a model on the rows of some files, streaming: nothing is held but the rows at hand.

    Of models that write: `source` and `target` are files that belong together line for line; `beam_size` is that
    of the search; `others` are further models of an ensemble.
    """
    task: Any = task_for(opened, name)
    sides = _names(source), _names(target)
    if not task.writes and (any(sides) or beam_size is not None or others):
        raise UserError(f"a model for {name} does not write: it has no source and target, no beam and no company")
    if any(sides) and opened.family.numbers:
        raise UserError("describe reads vectors: they come from a table, with a text beside each")
    if any(sides) == (data is not None):
        raise UserError("rows come from a table or from two files line for line: give one of them")
    wanted = {**opened.card.columns, **(columns or {})} if not names else dict(columns or {})
    files: Table
    if any(sides):
        files = Table.parallel(*sides, on_bad_row, encoding)
    else:
        files = Table(data, wanted, format, delimiter, tuple(names), on_bad_row, encoding, "test")
    if task.writes:
        task = replace(task, beam_size=task.beam_size if beam_size is None else beam_size, others=tuple(others))
    first = next(files.records(Skipped()), None)
    where = files.name
    if first is None:
        raise UserError(f"{where}: there are no rows")
    if columns is None and isinstance(files, Table):  # the columns of the training data may be called otherwise here
        files = replace(files, columns={k: v for k, v in wanted.items() if v in first.values})
    task, needed = task.columns(first, files.columns)
    looked = islice(examples_of(replace(files, on_bad_row="skip"), needed, task.read, Skipped()), LOOKED_AT)
    if opened.card.profiles and (note := task.swap_note(list(looked), where)):
        warnings.warn(note, stacklevel=2)
    skipped, framing, normalization = Skipped(), framing_for(opened), task.normalization()

    def read(record: Record, found: Mapping[str, str]) -> Example:
        example = task.read(record, found)
        if note := long_note(example.texts, example.where, framing.stride, framing.cutting):
            log(f"weft: note: {note}")
        task.check_format(example)
        return normalization(example)

    with progress_of(progress)(f"judging on {where}", "examples") as told:
        examples = task.merge_references(examples_of(files, needed, read, skipped))
        found = judged(task, opened, framing, examples, progress=told)
    log_notes(skipped.without_bad().lines(), log)
    if note := normalization.note():
        log(f"weft: note: {where}: {note}")
    return evaluation_of(found, name, where, files.hash(), skipped)


def evaluation_of(found: Judgement, name: str, data: str, hash: str, skipped: Skipped | None = None) -> Evaluation:
    """What was reached on some data, with all that a page shows of it."""
    task, metrics, reading = found.task, found.metrics, found.reading
    skipped = skipped or Skipped()
    by_label = [row._asdict() for row in metrics.table()] if hasattr(metrics, "table") else []
    confusion = metrics.confusion().tolist() if hasattr(metrics, "confusion") else []
    points = list(zip(metrics.gold, metrics.predicted, strict=True)) if isinstance(metrics, RegressionMetrics) else []
    points = [point for point in points if all(map(math.isfinite, point))]
    some = [points[n * len(points) // POINTS] for n in range(POINTS)] if len(points) > POINTS else points
    return Evaluation(
        task=name,
        data=data,
        hash=hash,
        scores=found.scores,
        by_label=by_label,
        labels=task.labels if confusion else (),
        confusion=confusion,
        worst=found.worst,
        examples=reading.examples,
        n_tokens=reading.tokens,
        n_windows=reading.windows,
        n_truncated=reading.truncated,
        reading=str(reading) + (f"; {skipped}" if skipped.count else ""),
        skipped=skipped.count + skipped.empty.count + skipped.unlabeled.count,
        signature=getattr(metrics, "signature", None),
        by_length=metrics.by_length() if task.writes else [],
        points=[list(point) for point in some],
    )


def _names(given: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None) -> tuple[str, ...]:
    several = [given] if isinstance(given, str | os.PathLike) else list(given or ())
    return tuple(os.fspath(each) for each in several)
