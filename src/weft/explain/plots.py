"""Plots of maps and matrices for views: drawn by components on a page, and by matplotlib as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from weft.explain.view import Panel
from weft.picture import LIGHT, component, packed

MARKERS = "os^D"
LABELED = 80  # points of a picture that have their names beside them


def rounded(values: NDArray[Any]) -> Any:
    """Numbers for JSON: six digits are more than a picture shows."""
    return [[float(f"{value:.6g}") for value in row] for row in values.tolist()]


@dataclass(frozen=True, kw_only=True, eq=False)
class GridPlot(Panel):
    """A large matrix as colors, with numbers or names along both sides."""

    values: NDArray[Any]  # rows columns
    row: str
    column: str
    value: str
    diverging: bool = False  # around zero
    row_names: Sequence[str] | None = None
    column_names: Sequence[str] | None = None
    column_from: int = 0
    limits: tuple[float, float] | None = None

    is_plot: ClassVar[bool] = True

    def ends(self) -> tuple[float, float]:
        """The ends of the color scale."""
        if self.limits is not None:
            return self.limits
        finite = self.values[np.isfinite(self.values)]
        if not finite.size:
            return 0.0, 1.0
        # A few large numbers, as learned tables have them, would leave all the others without color.
        low, high = (float(end) for end in np.quantile(finite, (0.002, 0.998)))
        whole = float(finite.min()), float(finite.max())
        return whole if high - low > 0.5 * (whole[1] - whole[0]) else (low, high)

    def body(self) -> str:
        low, high = self.ends()
        content = {
            "values": packed(self.values.astype(np.float32)),
            "low": low,
            "high": high,
            "diverging": self.diverging,
            "row": self.row,
            "column": self.column,
            "value": self.value,
            "rowNames": None if self.row_names is None else list(self.row_names),
            "columnNames": None if self.column_names is None else list(self.column_names),
            "columnFrom": self.column_from,
        }
        return component("heat-grid", content)

    def data(self) -> Any:
        names = {"row_names": self.row_names, "column_names": self.column_names, "column_from": self.column_from}
        about = {"heading": self.heading, "row": self.row, "column": self.column, "value": self.value, **names}
        return {**about, "values": rounded(self.values)}

    def draw(self, axes: Any) -> None:
        low, high = self.ends()
        if self.diverging:
            high = max(abs(low), abs(high))
            low = -high
        rows, columns = self.values.shape
        left = self.column_from - 0.5
        image = axes.imshow(
            self.values,
            cmap="PuOr" if self.diverging else "Blues",
            vmin=low,
            vmax=high,
            aspect="auto",
            interpolation="nearest",
            extent=(left, left + columns, rows - 0.5, -0.5),
        )
        for names, ticks in ((self.row_names, axes.set_yticks), (self.column_names, axes.set_xticks)):
            if names is not None and len(names) <= 40:
                ticks(range(len(names)), names)
        axes.set(xlabel=self.column, ylabel=self.row, title=self.heading)
        axes.figure.colorbar(image, label=self.value)


@dataclass(frozen=True)
class PointLayout:
    """Where every point of a map lies by one projection, or in one layer."""

    name: str
    places: NDArray[Any]  # points 2
    note: str = ""

    def data(self) -> dict[str, Any]:
        x, y = ([float(f"{value:.5g}") for value in self.places[:, axis].tolist()] for axis in (0, 1))
        return {"name": self.name, "x": x, "y": y, "note": self.note}


@dataclass(frozen=True, kw_only=True, eq=False)
class PointPlot(Panel):
    """Points in the plane, such as words, by one or several layouts."""

    points: Sequence[Mapping[str, Any]]  # label, group (a number), note
    layouts: Sequence[PointLayout]
    groups: Sequence[str] = ()
    lines: Sequence[tuple[int, int, str]] = ()
    choice: str = "Projection"
    chosen: int = 0  # the layout that is shown at first, and in a picture
    labeled: bool = True  # whether names stand beside the points

    is_plot: ClassVar[bool] = True

    def data(self) -> Any:
        return {
            "points": [dict(point) for point in self.points],
            "maps": [layout.data() for layout in self.layouts],
            "groups": list(self.groups),
            "lines": [list(line) for line in self.lines],
            "choice": self.choice,
            "chosen": self.chosen,
            "labeled": self.labeled,
        }

    def body(self) -> str:
        return component("point-map", self.data())

    def draw(self, axes: Any) -> None:
        layout = self.layouts[self.chosen]
        numbers = np.array([point.get("group", 0) for point in self.points])
        for number in sorted(set(numbers.tolist())):
            own = layout.places[numbers == number]
            name = self.groups[number] if number < len(self.groups) else None
            color, marker = LIGHT[number % len(LIGHT)], MARKERS[number % len(MARKERS)]
            axes.scatter(own[:, 0], own[:, 1], label=name, color=color, marker=marker, s=28, alpha=0.85)
        for begin, end, _ in self.lines:
            style = {"arrowstyle": "->", "color": "#56616c"}
            axes.annotate("", layout.places[end], layout.places[begin], arrowprops=style)
        if self.labeled and len(self.points) <= LABELED:
            for point, place in zip(self.points, layout.places, strict=True):
                axes.annotate(point["label"], place, xytext=(5, 3), textcoords="offset points", fontsize=8)
        axes.set(title=" – ".join(part for part in (self.heading, layout.name) if part), xticks=[], yticks=[])
        axes.set_aspect("equal", adjustable="datalim")
        if len(self.groups) > 1:
            axes.legend()
