"""What every `weft look` command makes: a page, the JSON behind it and, where it is a plot, a picture."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from weft.errors import UserError
from weft.files import cache_folder, write_bytes, write_text
from weft.picture import (
    Bar,
    ChartLine,
    bar_chart,
    component,
    framed,
    heading,
    heat_map,
    line_chart,
    page,
    paragraph,
    table,
)
from weft.picture.charts import DOTS, LIGHT
from weft.picture.page import json_text

PICTURES = (".png", ".svg")


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One part of a view, under a heading."""

    heading: str = ""
    note: str = ""

    is_plot: ClassVar[bool] = False  # `draw` draws it with matplotlib

    def body(self) -> str:
        """The HTML below the heading."""
        raise NotImplementedError

    def data(self) -> Any:
        """What is shown, as JSON values."""
        return asdict(self)

    def draw(self, axes: Any) -> None:
        """Draw it on axes of matplotlib."""
        raise UserError(f"{self.heading or 'this view'} is not a plot: write it as .html or .json")

    def html(self) -> str:
        parts = [heading(self.heading)] if self.heading else []
        return "\n".join(
            [*parts, self.body(), *([f'<div class="note">{paragraph(self.note)}</div>'] if self.note else [])]
        )


@dataclass(frozen=True, kw_only=True)
class Interactive(Panel):
    """A part that a component of `picture/components` draws from JSON."""

    component: str
    content: Any

    def body(self) -> str:
        return component(self.component, self.content)

    def data(self) -> Any:
        return self.content


@dataclass(frozen=True, kw_only=True)
class Notes(Panel):
    """A paragraph."""

    text: str

    def body(self) -> str:
        return paragraph(self.text)


@dataclass(frozen=True, kw_only=True)
class TextTable(Panel):
    """A table of texts and numbers."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def body(self) -> str:
        return table(self.header, self.rows)


@dataclass(frozen=True, kw_only=True)
class LinePlot(Panel):
    """Lines over one axis."""

    lines: Sequence[ChartLine]
    x: str
    y: str
    log_x: bool = False
    log_y: bool = False
    title: str = ""

    is_plot: ClassVar[bool] = True

    def body(self) -> str:
        return line_chart(self.title, self.lines, self.x, self.y, log_x=self.log_x, log_y=self.log_y)

    def data(self) -> Any:
        lines = [{"name": line.name, "points": [list(point) for point in line.points]} for line in self.lines]
        return {"heading": self.heading, "x": self.x, "y": self.y, "lines": lines}

    def draw(self, axes: Any) -> None:
        for number, line in enumerate(self.lines):
            style = ("--" if line.dashed else "-") if line.joined else ""
            across, up = ([point[n] for point in line.points] for n in (0, 1))
            marker = "o" if not line.joined or len(across) <= DOTS else ""
            look = {"marker": marker, "markersize": 4, "alpha": 0.5 if line.faint else 1}
            axes.plot(across, up, style, label=line.name, color=LIGHT[number % len(LIGHT)], **look)
        axes.set(xlabel=self.x, ylabel=self.y, title=self.title or self.heading)
        axes.set_xscale("log" if self.log_x else "linear")
        axes.set_yscale("log" if self.log_y else "linear")
        axes.grid(alpha=0.25)
        places = sorted({point[0] for line in self.lines for point in line.points})
        if self.log_x and len(places) <= DOTS // 2:  # where it was measured, rather than powers of ten
            axes.set_xticks(places, [f"{place:,g}" for place in places])
            axes.minorticks_off()
        if len(self.lines) > 1:
            axes.legend(frameon=False)


@dataclass(frozen=True, kw_only=True)
class BarPlot(Panel):
    """Bars from zero, with intervals."""

    bars: Sequence[Bar]
    x: str
    title: str = ""

    is_plot: ClassVar[bool] = True

    def body(self) -> str:
        return bar_chart(self.title, self.bars, self.x)

    def data(self) -> Any:
        bars = [{"name": bar.name, "value": bar.value, "low": bar.low, "high": bar.high} for bar in self.bars]
        return {"heading": self.heading, "x": self.x, "bars": bars}

    def draw(self, axes: Any) -> None:
        names, values = [bar.name for bar in self.bars], [bar.value for bar in self.bars]
        low = [bar.value - (bar.value if bar.low is None else bar.low) for bar in self.bars]
        high = [(bar.value if bar.high is None else bar.high) - bar.value for bar in self.bars]
        axes.barh(names, values, xerr=[low, high] if any(low) or any(high) else None)
        axes.invert_yaxis()
        axes.set(xlabel=self.x, title=self.title or self.heading)


@dataclass(frozen=True, kw_only=True)
class HeatPlot(Panel):
    """A small matrix of numbers from 0 to 1, with names on both sides."""

    down: Sequence[str]
    across: Sequence[str]
    values: Sequence[Sequence[float]]
    cells: Sequence[Sequence[str]] = field(default=())
    title: str = ""

    is_plot: ClassVar[bool] = True

    def body(self) -> str:
        return heat_map(self.title, self.down, self.across, self.values, self.cells)

    def draw(self, axes: Any) -> None:
        image = axes.imshow(self.values, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        axes.set_xticks(range(len(self.across)), self.across, rotation=90)
        axes.set_yticks(range(len(self.down)), self.down)
        axes.set_title(self.title or self.heading)
        axes.figure.colorbar(image)


@dataclass(frozen=True)
class View:
    """A page that stands alone, the JSON behind it and, where it is a plot, a picture."""

    title: str
    panels: tuple[Panel, ...]
    intro: str = ""

    def html(self) -> str:
        """One HTML document, which needs no other file and no network."""
        return page(self.title, [panel.html() for panel in self.panels], self.intro)

    def data(self) -> dict[str, Any]:
        """What the page shows, as JSON values."""
        return {"title": self.title, "panels": [panel.data() for panel in self.panels]}

    def json(self) -> str:
        """The data as a JSON document; a number that is not finite is null."""
        return json_text(self.data()) + "\n"

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the view by the ending of the path: .html, .json, and .png or .svg where it is a plot."""
        path = Path(path)
        writers: dict[str, Callable[[], str]] = {
            ".html": self.html,
            ".json": self.json,
        }
        if path.suffix in PICTURES:
            self._draw(path)
        elif path.suffix in writers:
            write_text(path, writers[path.suffix]())
        else:
            raise UserError(f"{path}: a view is written as .html, .json, .png or .svg")
        return path

    def _draw(self, path: Path) -> None:
        plots = [panel for panel in self.panels if panel.is_plot]
        if not plots:
            raise UserError(f"{path}: this view is not a plot; write it as .html or .json")
        # Its list of fonts belongs to what can be computed again, not into the home folder.
        os.environ.setdefault("MPLCONFIGDIR", str(cache_folder() / "matplotlib"))
        try:
            figures, library = import_module("matplotlib.figure"), import_module("matplotlib")
        except ImportError:
            raise UserError(f"{path}: pictures need matplotlib: pip install 'weft[look]'") from None
        figure = figures.Figure(figsize=(9, 4.5 * len(plots)), layout="constrained")
        for panel, axes in zip(plots, figure.subplots(len(plots), squeeze=False)[:, 0], strict=True):
            panel.draw(axes)
        picture = io.BytesIO()
        # Words stay words in an .svg, and the same view gives the same file.
        fixed: dict[str, Any] = {"metadata": {"Date": None}} if path.suffix == ".svg" else {}
        with library.rc_context({"svg.fonttype": "none", "svg.hashsalt": "weft"}):
            figure.savefig(picture, format=path.suffix[1:], dpi=150, **fixed)
        write_bytes(path, picture.getvalue())

    def _repr_html_(self) -> str:
        return framed(self.html())
