"""The report of a student: how much of its teacher it keeps, what it costs, and how much text it took."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from weft.comparison.compare import Comparison, compared, participants_of, plain, spread, with_ensemble
from weft.comparison.cost import evenly
from weft.config import build
from weft.distillation.dataset import Distillation, Teacher
from weft.errors import UserError
from weft.files import read_json, write_json, write_text
from weft.picture import ChartLine, heading, line_chart, page, paragraph
from weft.picture import table as table_of
from weft.tasks.base import Example
from weft.tasks.model import Model
from weft.tasks.registry import task_for

MAX_EXAMPLES = 2000  # that models are compared on
TIMED = 128  # of them that are timed
MEASURED = 10.0  # seconds of each measurement; a run that took less is measured for less
JSON, PAGE = "distill.json", "distill.html"
Point = Mapping[str, Any]  # of the curve: texts, score, low, high


@dataclass(frozen=True)
class StudentReport:
    """A student beside its teachers."""

    comparison: Comparison
    teachers: int  # so many of the models; the student is compared with the first, or with all of them together
    forwards: int  # examples that a teacher had to read
    texts: int = 0  # that were learned from
    metric: str | None = None  # of the curve and the stages
    curve: Sequence[Point] = ()
    stages: Sequence[Point] = ()

    @property
    def together(self) -> bool:
        """Whether the student is compared with all teachers together."""
        return len(self.comparison.models) > self.teachers + 1

    def summary(self) -> str:
        """What matters, in one sentence or two."""
        parts, teacher, student = list[str](), self.comparison.models[0], self.comparison.models[-1]
        chosen, agreed = self.comparison.metric, self.comparison.agreement_metric
        them, their = ("them", "their") if self.together else ("it", "its")
        if student.retained is not None and chosen is not None and math.isfinite(student.retained.value):
            parts.append(f"keeps {spread(student.retained, 100, 1)} % of the {chosen} of {teacher.name}")
        if agreed is not None and agreed in student.agreement:
            whom = them if parts else teacher.name
            parts.append(f"agrees with {whom} by {spread(student.agreement[agreed], places=3)} ({agreed})")
        one, two = teacher.costs, student.costs
        if one is not None and two is not None:
            if one.parameters and two.parameters:
                parts.append(f"has {100 * two.parameters / one.parameters:.1f} % of {their} parameters")
            single, many = one.p50 / two.p50, two.per_second / one.per_second
            parts.append(f"answers one text {single:.2f} x and many {many:.2f} x as fast")
        if student.damaged:
            parts.append(f"is damaged: {student.damaged}")
        if not self.texts:  # of words, whose teacher ran in every step
            return f"The student {'; '.join(parts)}."
        who, whose = ("The teacher", "its") if self.teachers == 1 else ("The teachers", "their")
        read = f"{who} read {self.forwards:,} examples for it; all {whose} other outputs were in the cache."
        return f"The student, learned from {self.texts:,} texts, {'; '.join(parts)}. {read}"

    def values(self) -> dict[str, Any]:
        """As JSON has it."""
        kept = self.comparison.models[-1].retained
        _, header, rows = self.comparison.tables()[0]
        return plain(
            {
                "summary": self.summary(),
                "kept": None if kept is None else [kept.value, kept.low, kept.high],
                "held_to": self.comparison.models[0].name,
                "metric": self.metric,
                "texts": self.texts,
                "teacher_forwards": self.forwards,
                "curve": [dict(point) for point in self.curve],
                "stages": [dict(point) for point in self.stages],
                "table": {"header": header, "rows": rows},
                "comparison": self.comparison.values(),
            }
        )

    def page(self) -> str:
        """One page that stands alone."""
        parts, name = list[str](), self.metric or "score"
        if len(self.stages) > 1:
            parts.append(heading("Stage by stage") + _points(self.stages, "stage", name))
        if len(self.curve) > 1:
            title, plain_name = "Students of more and more texts", name.replace("_", " ")
            lines = [ChartLine(plain_name, [(point["texts"], point["score"]) for point in self.curve])]
            for end in ("low", "high"):
                points = [(point["texts"], point[end]) for point in self.curve if point.get(end) is not None]
                lines.append(ChartLine(f"95 % {end}", points, dashed=True, group="interval", faint=True))
            note = "Each student took as many steps as the last; all are evaluated on the same rows."
            parts.append(heading("How much text is enough") + line_chart(title, lines, "texts", plain_name, log_x=True))
            parts.append(paragraph(note) + _points(self.curve, "texts", name))
        if self.teachers > 1:
            whom = "all of them together, which cost what all of them cost" if self.together else "the first of them"
            parts.append(paragraph(f"There were several teachers; the student is compared with {whom}."))
        return page(f"A student for {self.comparison.task}", [*parts, *self.comparison.parts()], self.summary())


def _points(points: Sequence[Point], first: str, name: str) -> str:
    rows = []
    for point in points:
        scores = [point.get(key) for key in ("score", "low", "high")]
        begin = f"{point[first]:,}" if first == "texts" else point[first]
        rows.append([begin, *("-" if score is None else f"{score:.4f}" for score in scores)])
    return table_of([first, name, "95 % from", "to"], rows)


def point_of(model: Model, metric: str | None, texts: int) -> dict[str, Any]:
    """The held-out metric of a model, by its card."""
    metrics = [each for each in model.card.metrics if metric is None or each.name == metric]
    score = asdict(metrics[0]) if metrics else {}
    return {"texts": texts, "score": score.get("value"), "low": score.get("low"), "high": score.get("high")}


def report_of(
    teachers: Sequence[Teacher], student: Model, folder: Path, examples: Sequence[Example], spent: float, **more: Any
) -> StudentReport:
    """Compare a student with its teachers on held-out examples; `more`: the other fields of a report."""
    models = [*(Model(teacher.model, student.task) for teacher in teachers), student]
    names = [*(f"{teacher.folder.name} (teacher)" for teacher in teachers), f"{folder.name} (student)"]
    if len(set(names)) < len(names):
        names = [f"{name} ({number})" for number, name in enumerate(names, 1)]
    parties = participants_of(models, names, [*(teacher.folder for teacher in teachers), folder])
    parties = with_ensemble(parties, f"{len(teachers)} teachers together", len(teachers))
    # What is learned in a moment is not measured for minutes.
    seconds, memory = min(MEASURED, max(0.3, spent / 10)), spent >= MEASURED
    rows = evenly(examples, MAX_EXAMPLES)
    comparison = compared(parties, rows, data="held-out rows", texts=TIMED, seconds=seconds, memory=memory)
    return StudentReport(comparison, len(teachers), **more)


def write_report(
    context: Distillation, student: Model, rows: Sequence[Example], spent: float, by_labels: bool = True, **more: Any
) -> None:
    """`distill.json` and `distill.html` inside a run folder, unless they are there; `spent`: seconds of training."""
    run, control = context.run, context.control
    if (run.inside / JSON).exists():
        return
    try:
        if not by_labels:  # their targets are a teacher's answers
            task = task_for(student.opened, student.task)
            rows = [task.with_texts(row, row.texts, task.word_spans(row)) for row in rows]
        report = report_of(context.teachers, student, run.folder, rows, spent, **more)
        write_json(run.inside / JSON, report.values())
        write_text(run.inside / PAGE, report.page())
        control.log(f"{run.inside / PAGE}: {report.summary()}")
    except UserError as error:  # the student is there all the same
        control.note(f"no report: {error}")


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """The metric of a student of so many texts."""

    texts: int
    score: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class TableRecord:
    """The table of a report."""

    header: list[str]
    rows: list[list[str]]


@dataclass(frozen=True, kw_only=True)
class ReportRecord:
    """The parts of `distill.json` that are read again."""

    summary: str
    table: TableRecord
    curve: tuple[CurvePoint, ...] = ()


def read_report(folder: Path) -> ReportRecord | None:
    """The report of a run folder; None where there is none."""
    path = folder / "run" / JSON
    if not path.is_file():
        return None
    values = read_json(path)
    return build(ReportRecord, {name: values.get(name) for name in ("summary", "table", "curve")}, str(path))
