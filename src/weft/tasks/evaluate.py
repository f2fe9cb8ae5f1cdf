"""`model.evaluate(data)`: scores with intervals, a table by label, what is taken for what, and the worst mistakes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from weft.checkpoint.folder import Opened
from weft.errors import UserError, listed
from weft.files import write_text
from weft.picture import heading, page, paragraph
from weft.picture import table as table_of
from weft.tasks.judging import judged
from weft.tasks.passing import framing_for
from weft.tasks.reading import Example, Files, examples_of
from weft.tasks.saying import Progress, silent
from weft.tasks.tag import TagTask
from weft.tasks.understand import task_of
from weft.text.records import Record, Skipped
from weft.text.resampling import Score

LABELS = 40  # a confusion matrix of more is not printed


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

    def values(self) -> dict[str, Any]:
        """As JSON has it."""
        found = asdict(self)
        return {name: value for name, value in found.items() if name != "reading" and value not in ([], ())}

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
            rows = [[_cell(row[name]) for name in header] for row in self.by_label]
            found.append(("By label", header, rows))
        if 2 <= len(self.labels) <= LABELS and self.confusion:
            rows = [[name, *(f"{n:,}" for n in line)] for name, line in zip(self.labels, self.confusion, strict=True)]
            found.append(("Right label by row, taken for by column", ["", *self.labels], rows))
        if self.worst:
            header = list(self.worst[0])
            found.append(("Worst mistakes", header, [[_short(row[name]) for name in header] for row in self.worst]))
        return found

    def write(self, out: Path) -> None:
        """One self-contained page."""
        parts = [paragraph(f"{self.data}: {self.reading}")]
        for title, header, rows in self.tables():
            parts += [heading(title), table_of(header, rows)]
        write_text(out, page(f"{self.task} on {self.data}", parts))


def _cell(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _short(text: str, most: int = 100) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 3] + "..."


def evaluate(
    opened: Opened,
    name: str,
    data: str | os.PathLike[str] | Sequence[str],
    *,
    columns: Mapping[str, str] | None = None,
    format: str | None = None,
    delimiter: str | None = None,
    names: Sequence[str] = (),
    on_bad_row: str = "stop",
    progress: Progress = silent,
) -> Evaluation:
    """Judge a model on the rows of some files, streaming: nothing is held but the rows at hand."""
    given = [data] if isinstance(data, str | os.PathLike) else list(data)
    wanted = {**opened.card.columns, **(columns or {})} if not names else dict(columns or {})
    files = Files(tuple(os.fspath(each) for each in given), wanted, format, delimiter, tuple(names), on_bad_row)
    task = task_of(opened, name)
    first = next(files.records(Skipped()), None)
    where = listed([path.name for path in files.paths()], 2)
    if first is None:
        raise UserError(f"{where}: there are no rows")
    if columns is None:  # the columns of the training data may be called otherwise here
        files = Files(files.files, {k: v for k, v in wanted.items() if v in first.values}, *_rest(files))
    _, needed = task.needed(first, files.columns)
    skipped = Skipped()

    def read(record: Record, found: Mapping[str, str]) -> Example:
        example = task.read(record, found)
        if isinstance(task, TagTask):  # a rare tag that was never seen is a mistake like any other
            task.formed(example)
        else:
            task.check([example])
        return example

    with progress(f"judging on {where}", "examples") as told:
        examples = examples_of(files, needed, read, skipped)
        found = judged(task, opened, framing_for(opened), examples, progress=told)
    metrics, reading = found.metrics, found.reading
    by_label = [row._asdict() for row in metrics.table()] if hasattr(metrics, "table") else []
    confusion = metrics.confusion().tolist() if hasattr(metrics, "confusion") else []
    return Evaluation(
        task=name,
        data=where,
        hash=files.hash(),
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
        skipped=skipped.count,
    )


def _rest(files: Files) -> tuple[Any, ...]:
    return files.format, files.delimiter, files.names, files.on_bad_row
