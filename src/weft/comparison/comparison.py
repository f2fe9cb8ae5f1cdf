"""The result of a comparison: as values, as tables, and as one page."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from weft.checkpoint.card import Metric
from weft.comparison.cost import Costs, Measured
from weft.files import write_text
from weft.metrics.bootstrap import Score
from weft.picture import Bar, ChartLine, bar_chart, heading, line_chart, page, paragraph
from weft.picture import table as table_of
from weft.tasks.evaluate import mistake

Table = tuple[str, list[str], list[list[str]]]
LETTERS = 140  # of a text in a table
LESS = ("bits_per_byte", "bits_per_gap")  # scores of which less is better


@dataclass(frozen=True)
class Standing:
    """One model beside the first."""

    name: str
    folder: str | None
    scores: dict[str, Score] = field(default_factory=dict)
    difference: dict[str, Score] = field(default_factory=dict)  # of each score to the first model's, paired
    kept: Score | None = None  # share of the first model's chosen score, paired
    agreement: dict[str, Score] = field(default_factory=dict)  # with what the first model says
    apart: list[dict[str, str]] = field(default_factory=list)  # where they disagree most
    costs: Costs | None = None
    damaged: str | None = None  # why it is no model to be used
    dropped: str | None = None  # by how much it is worse than is allowed


@dataclass(frozen=True)
class Comparison:
    """Several models on the same data."""

    task: str
    data: str
    hash: str
    examples: int
    labeled: int  # examples of which it is known what is right
    chosen: str | None  # the score that models are compared by
    agreed: str | None  # the measure of agreement that comes first
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
        """What a model reaches, for its card."""
        return tuple(
            Metric(data=self.hash, name=name, value=score.value, low=score.low, high=score.high)
            for name, score in self.models[number].scores.items()
            if all(map(math.isfinite, (score.value, score.low, score.high)))
        )

    def values(self) -> dict[str, Any]:
        """As JSON has it: what is not finite, or not known, is null."""
        values = {name: value for name, value in asdict(self).items() if name not in ("measured", "models")}
        measured = None if self.measured is None else self.measured.values()
        return plain({**values, "measured": measured, "models": [asdict(each) for each in self.models]})

    def tables(self) -> list[Table]:
        """Title, header and rows of every table."""
        tables = [self._summary(), *self._quality(), *self._costs()]
        for title, apart in self._disagreements():
            header = list(apart[0])
            tables.append((title, header, [[short(row[name]) for name in header] for row in apart]))
        return tables

    def _disagreements(self) -> list[tuple[str, list[dict[str, str]]]]:
        """A title, and where a model and the first disagree most."""
        first, *others = self.models
        return [(f"Where {each.name} and {first.name} disagree most", each.apart) for each in others if each.apart]

    def _summary(self) -> Table:
        """A row for each model: the score that counts, what is kept of it, agreement and costs."""
        columns = [("model", [each.name for each in self.models])]
        if self.chosen is not None:
            columns.append((self.chosen, [spread(each.scores.get(self.chosen)) for each in self.models]))
            columns.append(("kept %", ["100", *(spread(each.kept, 100, 1) for each in self.models[1:])]))
        if self.agreed is not None:
            agreed = [spread(each.agreement.get(self.agreed), places=3) for each in self.models[1:]]
            columns.append((f"agreement ({self.agreed})", ["-", *agreed]))
        if self.measured is not None:
            costs = [each.costs for each in self.models]
            columns.append(("size", [megabytes(None if each is None else each.bytes) for each in costs]))
            columns.append(("p50", ["-" if each is None else f"{each.p50:.2f} ms" for each in costs]))
            columns.append(("texts/s", ["-" if each is None else f"{each.per_second:,.1f}" for each in costs]))
        if self.refused:
            marks = ["damaged" if each.damaged else "refused" if each.dropped else "" for each in self.models]
            columns.append(("", marks))
        return (
            "Models",
            [name for name, _ in columns],
            [list(row) for row in zip(*(c for _, c in columns), strict=True)],
        )

    def _quality(self) -> list[Table]:
        """Scores of all models, and how the others stand to the first."""
        tables: list[Table] = []
        if self.labeled:
            header = ["model", "metric", "value", "95 % from", "to"]
            header += ["difference", "from", "to", "kept %", "from", "to"]
            rows = []
            for each in self.models:
                for name, score in each.scores.items():
                    kept = three(each.kept if name == self.chosen else None, 100, 2)
                    shift = three(each.difference.get(name), signed=True)
                    rows.append([each.name, name, *three(score), *shift, *kept])
                if not each.scores:
                    rows.append([each.name, *["-"] * 10])
            tables.append(("Scores", header, rows))
        rows = [[each.name, name, *three(score)] for each in self.models[1:] for name, score in each.agreement.items()]
        if rows:
            title = f"Agreement with {self.models[0].name}"
            tables.append((title, ["model", "agreement", "value", "95 % from", "to"], rows))
        faults = [[each.name, each.damaged or each.dropped or ""] for each in self.models]
        if any(fault for _, fault in faults):
            tables.append(("Refused", ["model", "why"], [row for row in faults if row[1]]))
        return tables

    def _costs(self) -> list[Table]:
        if self.measured is None:
            return []
        header = ["model", "size", "parameters", "p50", "p95", "faster", "texts/s", "more", "memory"]
        first = self.models[0].costs
        rows = []
        for each in self.models:
            costs = each.costs
            if costs is None:
                rows.append([each.name, *["-"] * (len(header) - 1)])
                continue
            rows.append(
                [
                    each.name,
                    megabytes(costs.bytes),
                    "-" if costs.parameters is None else f"{costs.parameters:,}",
                    f"{costs.p50:.2f} ms",
                    f"{costs.p95:.2f} ms",
                    "-" if first is None else f"{first.p50 / costs.p50:.2f} x",
                    f"{costs.per_second:,.1f}",
                    "-" if first is None else f"{costs.per_second / first.per_second:.2f} x",
                    megabytes(costs.memory),
                ]
            )
        return [("Costs on this machine", header, rows)]

    def parts(self) -> list[str]:
        """What a page shows."""
        parts = [paragraph(f"{self.data}: {self.reading}")]
        if not self.labeled:
            parts.append(paragraph("The data has no labels: models are only compared with the first."))
        for title, header, rows in [self._summary(), *self._quality(), *self._costs()]:
            parts.append(heading(title) + table_of(header, rows))
            if title.startswith("Costs") and self.measured is not None:
                parts.append(paragraph(str(self.measured)))
                parts += self._charts()
        return parts + [heading(title) + "".join(map(mistake, apart)) for title, apart in self._disagreements()]

    def _charts(self) -> list[str]:
        """Bars of speed and size, and what each model reaches by what an answer takes."""
        known = [(each.name, each.costs) for each in self.models if each.costs is not None]
        charts = [
            bar_chart(
                "One text, median", [Bar(name, costs.p50) for name, costs in known], "milliseconds, less is better"
            ),
            bar_chart("Texts in bulk", [Bar(name, costs.per_second) for name, costs in known], "texts a second"),
        ]
        sizes = [Bar(name, costs.bytes / 1e6) for name, costs in known if costs.bytes]
        if sizes:
            charts.append(bar_chart("Size on disk", sizes, "megabytes, less is better"))
        if self.chosen is not None:
            points = [
                ChartLine(each.name, [(each.costs.p50, each.scores[self.chosen].value)])
                for each in self.models
                if each.costs is not None and self.chosen in each.scores
            ]
            if len(points) > 1:
                name = self.chosen.replace("_", " ")
                charts.append(line_chart("Quality by latency", points, "milliseconds of one text", name))
        return charts

    def write(self, out: Path) -> None:
        """One self-contained page."""
        title = f"{len(self.models)} models for {self.task} on {self.data}"
        write_text(out, page(title, self.parts()))


def three(score: Score | None, scale: float = 1.0, places: int = 4, signed: bool = False) -> list[str]:
    """A score and the ends of its interval as cells."""
    if score is None:
        return ["-", "-", "-"]
    sign = "+" if signed else ""
    numbers = (score.value, score.low, score.high)
    return [f"{scale * each:{sign}.{places}f}" if math.isfinite(each) else "-" for each in numbers]


def spread(score: Score | None, scale: float = 1.0, places: int = 4) -> str:
    """A score with its interval in one cell."""
    value, low, high = three(score, scale, places)
    return value if low == high else f"{value} ({low} to {high})"


def megabytes(size: int | None) -> str:
    return "-" if size is None else f"{size / 1e6:.2f} MB"


def short(text: str, most: int = LETTERS) -> str:
    """A text on one line."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 3] + "..."


def plain(value: Any) -> Any:
    """What JSON can hold: numbers that are not finite are nothing."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def lost(difference: Score, name: str) -> float:
    """How many points a model is worse: hundredths of what lies between 0 and 1, as BLEU and chrF are written."""
    value = difference.value if name in LESS else -difference.value
    return value if name in ("bleu", "chrf") else 100 * value
