"""An evaluation as parts of a page: scores, confusion as a heat map, tables, a scatter and the worst mistakes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from weft.picture import ChartLine, entries, heading, heat_map, line_chart, paragraph, table

if TYPE_CHECKING:
    from weft.tasks.evaluate import Evaluation

MATRIX = 40  # labels; of more, the most frequent confusions are listed instead of drawn
LISTED = 20  # confusions in that list
SHOWN = {
    "target": "true",
    "prediction": "predicted",
    "near": "similarity",
    "where": "row",
}  # names of what mistakes hold
LONGEST = 100_000  # characters of one text on a page; what is longer is truncated, and the page says so


def evaluation_parts(found: Evaluation) -> list[str]:
    """What a page shows of an evaluation, each part a section."""
    intro = paragraph(f"{found.data}: {found.reading}") + (paragraph(found.signature) if found.signature else "")
    parts = [heading("Scores") + intro + scores_table(found)]
    if found.points:
        parts.append(heading("Predicted against true") + scatter(found.points))
    if len(found.labels) >= 2 and found.confusion:
        parts.append(heading("Confusion") + confusion(found.labels, found.confusion))
    if found.by_label:
        parts.append(heading("By type" if found.task == "tag" else "By label") + rows_table(found.by_label))
    if found.by_length:
        parts.append(heading("By words of the source") + rows_table(found.by_length))
    if found.worst:
        parts.append(heading("Worst mistakes") + "".join(map(mistake, found.worst)))
    return parts


def scores_table(found: Evaluation) -> str:
    """Every score with the 95 % confidence interval."""
    rows = [[name, figure(s.value), figure(s.low), figure(s.high)] for name, s in found.scores.items()]
    return table(["score", "value", "95 % from", "to"], rows)


def rows_table(rows: Sequence[dict[str, Any]]) -> str:
    """Rows that are dictionaries of the same keys."""
    header = list(rows[0])
    return table(header, [[cell(row[name]) for name in header] for row in rows])


def cell(value: Any) -> str:
    """A number or a text as tables show it."""
    return figure(value) if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


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
        return paragraph(f"The most frequent of {len(pairs):,}:") + table(["true label", "predicted", "rows"], rows)
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
