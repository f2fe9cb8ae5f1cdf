"""The report of a student: what it has kept of its teacher, what it costs, and how much text it took."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from weft.checkpoint.folder import LoadedModel
from weft.comparison.compare import compared, parties_of, with_joint_voice
from weft.comparison.comparison import Comparison, Standing, plain, spread
from weft.comparison.cost import evenly
from weft.config import build
from weft.data.shards import TextFiles
from weft.distillation.recipe import DistillRecipe, Texts
from weft.errors import UserError
from weft.files import read_json, write_json, write_text
from weft.picture import ChartLine, heading, line_chart, page, paragraph
from weft.picture import table as table_of
from weft.progress import Log
from weft.tasks.model import Model, load
from weft.tasks.reading import Example
from weft.tasks.tag import Tagged
from weft.text.row_problems import Skipped
from weft.training.run import Run

MOST = 2000  # examples that models are compared on
TIMED = 128  # of them that are timed
JSON, PAGE = "distill.json", "distill.html"
Point = Mapping[str, Any]  # of the curve: texts, score, low, high


@dataclass(frozen=True)
class Report:
    """What is told of a student."""

    comparison: Comparison
    teachers: int  # so many of the models; what is kept and agreed is held to the first, or to all of them together
    forwards: int  # examples that a teacher had to read
    texts: int  # that were learned from
    metric: str | None  # of the curve and the stages
    curve: Sequence[Point] = ()
    stages: Sequence[Point] = ()

    @property
    def together(self) -> bool:
        """Whether the student is held to what several teachers say together."""
        return len(self.comparison.models) > self.teachers + 1

    @property
    def teacher(self) -> Standing:
        return self.comparison.models[0]

    @property
    def student(self) -> Standing:
        return self.comparison.models[-1]

    def words(self) -> str:
        """What matters, in one sentence or two."""
        said, student, teacher = [], self.student, self.teacher
        chosen, agreed = self.comparison.chosen, self.comparison.agreed
        them, their = ("them", "their") if self.together else ("it", "its")
        if student.kept is not None and chosen is not None and math.isfinite(student.kept.value):
            said.append(f"keeps {spread(student.kept, 100, 1)} % of the {chosen} of {teacher.name}")
        if agreed is not None and agreed in student.agreement:
            whom = them if said else teacher.name
            said.append(f"agrees with {whom} by {spread(student.agreement[agreed], places=3)} ({agreed})")
        one, two = teacher.costs, student.costs
        if one is not None and two is not None:
            if one.parameters and two.parameters:
                said.append(f"has {100 * two.parameters / one.parameters:.1f} % of {their} parameters")
            said.append(f"answers one text {one.p50 / two.p50:.2f} x and many {two.per_second / one.per_second:.2f} x")
            said[-1] += " as fast"
        if student.damaged:
            said.append(f"is damaged: {student.damaged}")
        who, says = ("The teacher", "it says") if self.teachers == 1 else ("The teachers", "they say")
        read = f"{who} read {self.forwards:,} examples for it; all else that {says} was in the cache."
        if not self.texts:  # of words, of which its teacher was asked in every step
            return f"The student {'; '.join(said)}."
        return f"The student, learned from {self.texts:,} texts, {'; '.join(said)}. {read}"

    def values(self) -> dict[str, Any]:
        """As JSON has it."""
        kept = self.student.kept
        title, header, rows = self.comparison.tables()[0]
        return plain(
            {
                "words": self.words(),
                "kept": None if kept is None else [kept.value, kept.low, kept.high],
                "held_to": self.teacher.name,
                "metric": self.metric,
                "texts": self.texts,
                "teacher_forwards": self.forwards,
                "curve": [dict(each) for each in self.curve],
                "stages": [dict(each) for each in self.stages],
                "table": {"header": header, "rows": rows},
                "comparison": self.comparison.values(),
            }
        )

    def page(self) -> str:
        """One page that stands alone."""
        parts = list[str]()
        if len(self.stages) > 1:
            parts.append(heading("Stage by stage") + _scores(self.stages, "stage", self.metric or "score"))
        if len(self.curve) > 1:
            parts.append(heading("How much text is enough") + self._curve())
        if self.teachers > 1:
            whom = "what they say together, which costs what all of them cost" if self.together else "the first of them"
            parts.append(paragraph(f"Several teachers were listened to; what is kept is held to {whom}."))
        return page(f"A student for {self.comparison.task}", [*parts, *self.comparison.parts()], self.words())

    def _curve(self) -> str:
        name = (self.metric or "score").replace("_", " ")
        lines = [ChartLine(name, [(each["texts"], each["score"]) for each in self.curve])]
        for end in ("low", "high"):
            points = [(each["texts"], each[end]) for each in self.curve if each.get(end) is not None]
            lines.append(ChartLine(f"95 % {end}", points, dashed=True, group="interval", faint=True))
        chart = line_chart("What students of more and more texts reach", lines, "texts", name, log_x=True)
        told = "Each student made as many steps as the last, which has all texts, and was judged by the same rows."
        return chart + paragraph(told) + _scores(self.curve, "texts", self.metric or "score")


def _scores(found: Sequence[Point], first: str, name: str) -> str:
    def cell(value: Any) -> str:
        return "-" if value is None else f"{value:.4f}" if isinstance(value, float) else f"{value:,}" if value else "-"

    rows = [
        [str(each[first]) if isinstance(each[first], str) else f"{each[first]:,}"]
        + [cell(each.get(key)) for key in ("score", "low", "high")]
        for each in found
    ]
    return table_of([first, name, "95 % from", "to"], rows)


def blanked(example: Example) -> Example:
    """An example of which nobody has said what is right: what stands there is a teacher's answer."""
    target = replace(example.target, tags=None) if isinstance(example.target, Tagged) else None
    return replace(example, target=target)


def report_of(
    teachers: Sequence[tuple[str, LoadedModel, Path]],
    student: tuple[str, Model, Path],
    examples: Sequence[Example],
    *,
    by_labels: bool,
    forwards: int,
    texts: int,
    metric: str | None = None,
    curve: Sequence[Point] = (),
    stages: Sequence[Point] = (),
    seconds: float = 5.0,
    memory: bool = True,
) -> Report:
    """Hold a student beside its teachers on what it was judged by."""
    task = student[1].task
    models = [*(Model(opened, task) for _, opened, _ in teachers), student[1]]
    names = [*(name for name, _, _ in teachers), student[0]]
    folders = [*(folder for _, _, folder in teachers), student[2]]
    if len(set(names)) < len(names):
        names = [f"{name} ({number})" for number, name in enumerate(names, 1)]
    some = evenly(examples if by_labels else [blanked(each) for each in examples], MOST)
    parties = with_joint_voice(parties_of(models, names, folders), f"{len(teachers)} teachers together", len(teachers))
    found = compared(parties, some, data="held-out rows", texts=TIMED, seconds=seconds, memory=memory)
    return Report(found, len(teachers), forwards, texts, metric, curve, stages)


def held_texts(data: Texts, most: int = 200) -> list[Example]:
    """Texts that a language model was not trained on: those to judge by, else of the last, which are held out."""
    names, share = (data.dev, 1.0) if data.dev else (data.text, data.holdout)
    text = TextFiles(names, data.columns.get("text", "text"), data.delimiter, "line", data.on_bad_row, data.encoding)
    lines = [each for each in text.read(Skipped()) if each.strip()]
    # By their letters, and half of them, since what was held out was cut by tokens and by whole documents.
    room = share * sum(map(len, lines)) / (1 if data.dev else 2)
    found = list[Example]()
    for each in reversed(lines):
        room -= len(each)
        if found and room < 0:
            break
        found.append(Example((each,), None, "held-out text"))
    return evenly(found[::-1], most)


def write_language_report(
    run: Run, recipe: DistillRecipe, student: Model, seconds: float, memory: bool, log: Log
) -> None:
    """The report of a student that learned words alone."""
    if (run.inside / JSON).exists():
        return
    try:
        teachers = [(folder, load(folder, task=student.task)) for folder in recipe.teacher.folders]
        found = report_of(
            [(f"{Path(name).name} (teacher)", each.opened, Path(name)) for name, each in teachers],
            (f"{run.folder.name} (student)", student, run.folder),
            held_texts(recipe.data),
            by_labels=True,
            forwards=run.info().teacher_forwards,
            texts=0,
            seconds=seconds,
            memory=memory,
        )
        write_report(run.inside, found)
    except UserError as error:  # the student is there all the same
        log(f"weft: note: no report: {error}")
        return
    log(f"{run.inside / PAGE}: {found.words()}")


def write_report(inside: Path, report: Report) -> None:
    """`distill.json` and `distill.html` in the inside of a run folder."""
    write_json(inside / JSON, report.values())
    write_text(inside / PAGE, report.page())


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """What a student of so many texts reached."""

    texts: int
    score: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class CurveRecord:
    """The curve of a report."""

    curve: tuple[CurvePoint, ...] = ()


def read_curve(path: Path) -> list[dict[str, Any]]:
    """The curve of a report that was written before; empty where there is none."""
    values = {"curve": read_json(path).get("curve", [])} if path.is_file() else {}
    return [asdict(point) for point in build(CurveRecord, values, str(path)).curve]


@dataclass(frozen=True, kw_only=True)
class TableRecord:
    """The table of a report."""

    header: list[str]
    rows: list[list[str]]


@dataclass(frozen=True, kw_only=True)
class ReportTable:
    """What of a report is printed."""

    words: str
    table: TableRecord


def read_table(folder: Path) -> tuple[str, list[str], list[list[str]]] | None:
    """What a run folder's report says in words, and its table; None where there is none."""
    path = folder / "run" / JSON
    try:
        found = read_json(path) if path.is_file() else {}
        kept = build(ReportTable, {name: found.get(name) for name in ("words", "table")}, str(path))
    except UserError:
        return None
    return kept.words, kept.table.header, kept.table.rows
