"""Charts from numbers: lines, scatters, bars and heat maps that fit a wide page and a telephone.

A line chart is drawn twice, wide and narrow, and the page shows the one that fits: scaled down, the letters of the
wide one would be too small to read. Titles and legends are HTML, which wraps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from weft.picture.axes import HUGE, Point, axes, thinned
from weft.picture.words import FONT, LETTER, safe, wide, words, wrapped

# Six colors that people who lack red, green or blue tell apart, each at least 3:1 against its ground
# (a test measures both). A chart outside of a page falls back on the light ones.
LIGHT = ("#0072b2", "#d55e00", "#8a00f0", "#004433", "#cc7788", "#554411")
DARK = ("#4aa8e8", "#f0762e", "#9040ff", "#66f0b8", "#bb6688", "#ffdd33")
# Dashes for (whole, dashed) lines; when the colors are used up, dots tell the second round from the first.
DASHES = (("none", "5 6"), ("0 5", "7 5 0 5"))

POINTS, TARGETS, DOTS = 1000, 60, 30  # of one line: points drawn, points that answer the mouse, points that get a dot
WIDTHS = {"wide": 760, "narrow": 350}  # of the two drawings of a chart
SMALLEST = 0.62  # times, by which a heat map may be scaled down before it scrolls instead


@dataclass(frozen=True)
class ChartLine:
    """One line of a chart; lines of one group share a color, and a y that is not finite leaves a gap."""

    name: str
    points: Sequence[Point]
    dashed: bool = False
    group: str | None = None
    faint: bool = False
    joined: bool = True  # False: points that no line joins, a scatter


@dataclass(frozen=True)
class Pen:
    """How a line looks."""

    paint: str
    opacity: float
    stroke: str  # attributes of a path


def _pens(lines: Sequence[ChartLine]) -> list[Pen]:
    """A color for each group, and dots where the colors are used up."""
    groups: dict[str | int, int] = {}
    pens = []
    for place, line in enumerate(lines):
        turn, color = divmod(groups.setdefault(place if line.group is None else line.group, len(groups)), len(LIGHT))
        paint, opacity = f"var(--line-{color}, {LIGHT[color]})", 0.5 if line.faint else 1
        stroke = (
            f'fill="none" style="stroke: {paint}" stroke-opacity="{opacity}" stroke-width="{1.2 if line.faint else 2}" '
            f'stroke-linecap="round" stroke-linejoin="round" stroke-dasharray="{DASHES[turn % 2][line.dashed]}"'
        )
        pens.append(Pen(paint, opacity, stroke))
    return pens


def line_chart(
    title: str,
    lines: Sequence[ChartLine],
    x: str,
    y: str,
    *,
    log_y: bool = False,
    log_x: bool = False,
    height: int = 320,
) -> str:
    """A <figure> with axes that fit every point, wide and narrow, and a legend below."""
    pens = _pens(lines)
    drawings = [_drawn(name, title, lines, pens, (x, y), (log_x, log_y), height) for name in WIDTHS]
    names = [
        '<li><svg xmlns="http://www.w3.org/2000/svg" width="24" height="10" aria-hidden="true">'
        + (f'<path d="M1 5h22" {pen.stroke}/>' if line.joined else _dots("", [(12.0, 5.0)], pen, 1))
        + f"</svg> {safe(line.name)}</li>"
        for line, pen in zip(lines, pens, strict=True)
        if line.name
    ]
    legend = f'\n<ul class="legend">{"".join(names)}</ul>' if names else ""
    return f"<figure>\n<figcaption>{safe(title)}</figcaption>\n" + "\n".join(drawings) + legend + "\n</figure>"


def _drawn(
    name: str,
    title: str,
    lines: Sequence[ChartLine],
    pens: Sequence[Pen],
    labels: tuple[str, str],
    logs: tuple[bool, bool],
    height: int,
) -> str:
    """One <svg> of a line chart."""
    width, (x, y), (log_x, log_y) = WIDTHS[name], labels, logs
    lowest, leftmost = (1 / HUGE if log else -HUGE for log in (log_y, log_x))
    shown: list[list[Point | None]] = [
        [(a, b) if leftmost < a < HUGE and lowest < b < HUGE else None for a, b in line.points] for line in lines
    ]
    drawn = list[str]()
    if every := [point for points in shown for point in points if point]:
        at, drawn = axes(every, x, y, log_y, width, height, log_x)
    else:
        drawn.append(words(width / 2, height / 2, "nothing yet", width, 'text-anchor="middle"'))
    paths: dict[bool, list[str]] = {True: [], False: []}  # the faint ones are drawn first and lie beneath
    dots, room = [], POINTS * width // WIDTHS["wide"]
    for line, points, pen in zip(lines, shown, pens, strict=True):
        if not any(points):
            continue
        if not line.joined:
            dots.append(_dots(line.name, [at(point) for point in thinned(points, POINTS) if point], pen, 0.6))
            continue
        path, tips = "", list[str]()
        for there, run in groupby(thinned(points, room), bool):
            if there:
                steps = [f"{a:.1f} {b:.1f}" for a, b in (at(point) for point in run if point)]
                path += "M" + "L".join(steps) + ("h0" if len(steps) == 1 else "")  # a point on its own shows as a dot
        for point in filter(None, thinned(points, TARGETS)):
            tips.append(safe(f"{line.name}\n{x} {point[0]:,.10g}\n{y} {point[1]:,.5g}".strip()))
        places = [at(point) for point in thinned(points, TARGETS) if point]
        paths[line.faint].append(f'<path class="line" d="{path}" {pen.stroke}/>')
        seen = pen.opacity if len(points) <= DOTS else 0  # the mouse finds those that are not seen, and a wide rim
        dots.append(_dots("", places, pen, seen, tips))
    return svg(title, width, height, [*drawn, *paths[True], *paths[False], *dots], f'class="{name}"')


def _dots(name: str, places: Sequence[Point], pen: Pen, opacity: float, tips: Sequence[str] = ()) -> str:
    """Points, each with a text for the mouse where there is one."""
    titles = [f"<title>{tip}</title>" for tip in tips] or [""] * len(places)
    circles = "".join(
        f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3">{title}</circle>'
        for (a, b), title in zip(places, titles, strict=True)
    )
    rim = 'stroke="transparent" stroke-width="6"' if tips else 'class="scatter"'
    return f'<g style="fill: {pen.paint}" fill-opacity="{opacity}" {rim}>{circles}</g>'


def svg(title: str, width: float, height: float, drawn: Sequence[str], more: str = "") -> str:
    """A drawing of its own size, with a name for those who cannot see it."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{safe(title)}" width="{width:.0f}" '
        f'height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}" fill="currentColor" '
        f'font-family="system-ui, sans-serif" font-size="{FONT}" {more}>\n' + "\n".join(drawn) + "\n</svg>"
    )


@dataclass(frozen=True)
class Bar:
    """One bar of a chart, with the ends of its interval where it has one, and words at its end."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    note: str = ""
    faint: bool = False


def bar_chart(title: str, bars: Sequence[Bar], x: str) -> str:
    """A <figure> of level bars from zero, the intervals as thin lines across their ends; names and values wrap."""
    ends = [end for bar in bars for end in (bar.value, bar.high or bar.value) if math.isfinite(end)]
    scale = 100 / max([end for end in ends if end > 0], default=1.0)
    rows = list[str]()
    for bar in bars:
        value, track = bar.note, ""
        if math.isfinite(bar.value):
            value, tip = f"{bar.value:.3f} {bar.note}".strip(), f"{bar.name}: {bar.value:.4f}"
            size = max(0.0, bar.value) * scale
            track = f'<span class="fill{" faint" * bar.faint}" style="width: {size:.2f}%"></span>'
            if bar.low is not None and bar.high is not None:
                tip += f" (95 % between {bar.low:.4f} and {bar.high:.4f})"
                near, far = (max(0.0, end) * scale for end in (bar.low, bar.high))
                track += f'<span class="interval" style="left: {near:.2f}%; width: {far - near:.2f}%"></span>'
            track = f'<span class="track" title="{safe(tip)}">{track}</span>'
        rows.append(f'<li><span class="name">{safe(bar.name)}</span>{track}<span>{safe(value)}</span></li>')
    body = f'<ul class="bars">{"".join(rows)}</ul>\n<p class="axis">{safe(x)}</p>'
    return f"<figure>\n<figcaption>{safe(title)}</figcaption>\n{body}\n</figure>"


def heat_map(
    title: str,
    down: Sequence[str],
    across: Sequence[str],
    values: Sequence[Sequence[float]],
    cells: Sequence[Sequence[str]] = (),
) -> str:
    """One <svg> of squares, the darker the nearer its value is to 1: a row for each of `down`, names on both sides.

    `cells`: words to write into the squares.
    """
    side = max([30.0, *(wide(cell) + 6 for row in cells for cell in row)])
    names = [wrapped(name, 160, 2) for name in down], [wrapped(name, 160, 2) for name in across]
    left, above = (max((wide(line) for lines in some for line in lines), default=0.0) for some in names)
    left, above = min(160.0, left) + 10, min(160.0, above) + 14
    width = max(left + side * len(across) + 4, 240)
    heads = wrapped(title, width, 9)
    roof = (FONT + 4) * len(heads) + above + 4
    drawn = [words(0, (FONT + 4) * n - 2, line, width, 'font-weight="bold"') for n, line in enumerate(heads, 1)]
    for place, lines in enumerate(names[1]):  # read from below
        for number, line in enumerate(lines):
            x = left + side * (place + 0.5) + 5 + FONT * (number - (len(lines) - 1) / 2)
            turned = f'class="across" transform="rotate(-90 {x:.1f} {roof - 6:.1f})"'
            drawn.append(words(x, roof - 6, line, 160 + LETTER, turned))
    for place, (name, lines, row) in enumerate(zip(down, names[0], values, strict=True)):
        y = roof + side * place
        for number, line in enumerate(lines):
            level = y + side / 2 + 4 + FONT * (number - (len(lines) - 1) / 2)
            drawn.append(words(left - 6, level, line, 160 + LETTER, 'class="down" text-anchor="end"'))
        for column, (other, value) in enumerate(zip(across, row, strict=True)):
            shade, x = min(1.0, max(0.0, value)) if math.isfinite(value) else 0.0, left + side * column
            tip = f"{name} / {other}: " + (f"{cells[place][column]} ({value:.3f})" if cells else f"{value:.3f}")
            drawn.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{side - 1}" height="{side - 1}" '
                f'style="fill: var(--line-0, {LIGHT[0]})" fill-opacity="{0.04 + 0.96 * shade:.3f}">'
                f"<title>{safe(tip)}</title></rect>"
            )
            if cells:
                ink = ' style="fill: var(--ground, #fff)"' if shade > 0.55 else ""
                middle = f'class="cell" text-anchor="middle" pointer-events="none"{ink}'
                drawn.append(words(x + side / 2, y + side / 2 + 4, cells[place][column], side, middle))
    height = roof + side * len(down) + 4
    size = f'style="width: 100%; max-width: {width:.0f}px; min-width: {min(width, max(240, SMALLEST * width)):.0f}px"'
    return svg(title, width, height, drawn, size)
