"""Charts, tables and texts of a page from numbers and words: static HTML and SVG.

A line chart is drawn twice, wide and narrow, and the page shows the one that fits: scaled down, the letters of the
wide one would be too small to read. Titles and legends are HTML, which wraps.
"""

from __future__ import annotations

import html
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise

FONT, LETTER = 13, 7.2  # pixels: height of the letters and, near enough, width of one
UNFIT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")  # no XML or HTML may hold these


def safe(text: str) -> str:
    """Words from outside, fit for the text and the attributes of HTML and SVG."""
    return html.escape(UNFIT.sub(lambda match: repr(match[0])[1:-1], text))


def wide(text: str) -> float:
    """About how many pixels the text takes; Chinese and Japanese characters are twice as wide, capitals a third."""
    return LETTER * sum(
        2 if unicodedata.east_asian_width(c) in "WF" else 1.35 if c.isupper() or c in "mw%@" else 1 for c in text
    )


def words(x: float, y: float, text: str, room: float, more: str = "") -> str:
    """Text in a chart, cut where it would run out of its room; the mouse then shows the whole."""
    cut, tip = text, ""
    if wide(text) > room:
        kept = sum(width <= room - LETTER for width in accumulate(map(wide, text)))
        cut, tip = text[:kept] + "…", f"<title>{safe(text)}</title>"
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{tip}{safe(cut)}</text>'


def wrapped(text: str, room: float, max_lines: int) -> list[str]:
    """The text in up to `max_lines` lines that fit the room, broken at spaces where possible."""
    lines, rest = list[str](), " ".join(text.split())
    while rest and len(lines) < max_lines - 1 and wide(rest) > room:
        kept = max(1, sum(width <= room for width in accumulate(map(wide, rest))))
        space = rest.rfind(" ", 1, kept + 1)
        end = space if space > kept // 3 else kept
        lines.append(rest[:end])
        rest = rest[end:].lstrip()
    return [*lines, rest]


# ------------------------------------------------------------------------------------------------------------ axes

HUGE = 1e100  # what is larger, or on a logarithmic axis smaller than its inverse, is a gap: no axis can show it
UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))

Point = tuple[float, float]
Names = Sequence[str]


def tens(number: int, power: int) -> float:
    """number * 10**power, rounded once: three times 0.1 is 0.3, not 0.30000000000000004."""
    return float(number * 10**power) if power >= 0 else number / 10**-power


def ticks(low: float, high: float, about: int, whole: bool = False) -> list[float]:
    """Round numbers, evenly apart, from no more than `low` to no less than `high`; whole numbers for counts."""
    size = max(abs(low), abs(high))
    if size < 1 / HUGE:
        low, high = 0.0, 1.0
    elif high - low <= 1e-9 * size:
        low, high = low - size / 2, high + size / 2
    raw = (high - low) / about
    power = max(math.floor(math.log10(raw)), 0 if whole else -999)
    digit = next(digit for digit in (1, 2, 5, 10) if tens(digit, power) >= raw * (1 - 1e-9))
    step = tens(digit, power)
    places = range(math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9) + 1)
    return [tens(place * digit, power) for place in places]


def log_ticks(low: float, high: float, about: int) -> list[float]:
    """As `ticks` for a logarithmic axis: powers of ten, with 2 and 5 between them where there are few."""
    if high < 3 * low:  # far less than a power of ten: even steps read better, and six of them stay above zero
        return ticks(low, high, max(about, 6))
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    stride = math.ceil((last - first) / about)
    digits = (1, 2, 5) if last - first <= about / 2 else (1,)
    values = [tens(digit, power) for power in range(first, last + stride, stride) for digit in digits]
    begin, end = max(value for value in values if value <= low), min(value for value in values if value >= high)
    return [value for value in values if begin <= value <= end]


def short(value: float) -> str:
    """One number as a person writes it on an axis: '0.5', '20k'."""
    unit, letter = next(((unit, letter) for unit, letter in UNITS if unit <= abs(value) < 1e15), (1.0, ""))
    return re.sub(r"e\+?(-?)0*", r"e\1", f"{value / unit:.12g}") + letter


def thinned(points: Sequence[Point | None], max_points: int) -> list[Point | None]:
    """About so many points at most: the ends, and of every stretch the lowest, the highest and one gap."""
    if len(points) <= max_points:
        return list(points)
    cuts = [len(points) * cut // (max_points // 3) for cut in range(max_points // 3 + 1)]
    keep = {0, len(points) - 1}
    for begin, end in pairwise(cuts):
        there = sorted((point[1], begin + place) for place, point in enumerate(points[begin:end]) if point)
        keep.update(place for _, place in there[:1] + there[-1:])
        keep.update([place for place in range(begin, end) if not points[place]][:1])
    return [points[place] for place in sorted(keep)]


def axes(
    points: Sequence[Point],
    x: str,
    y: str,
    log_y: bool,
    width: int,
    height: int,
    log_x: bool = False,
    label: Callable[[float], str] | None = None,
) -> tuple[Callable[[Point], Point], list[str]]:
    """Axes that fit all the points: where a point lies, in pixels from the upper left corner, and what to draw.

    `label`: how a whole number across is written, such as the date of a step.
    """
    roof, ground, right = 28.0, height - 44.0, width - 24.0
    across, up = [point[0] for point in points], [point[1] for point in points]
    y_ticks = (log_ticks if log_y else ticks)(min(up), max(up), max(2, (height - 72) // 45))
    left = max(wide(short(value)) for value in y_ticks) + 10
    counts = all(float(value).is_integer() for value in across)
    x_about = max(2, int(right - left) // 80)
    x_ticks = ticks(min(across), max(across), x_about, counts)
    if log_x:
        x_ticks = log_ticks(min(across), max(across), x_about)
    scale, x_scale = math.log if log_y else float, math.log if log_x else float
    low, high, floor, ceiling = x_scale(x_ticks[0]), x_scale(x_ticks[-1]), scale(y_ticks[0]), scale(y_ticks[-1])
    if label is not None:  # only points that there are have a label
        low, high = min(across), max(max(across), min(across) + 1)
        half = max(wide(label(low)), wide(label(high))) / 2
        about = max(1, int((right - left) / (2 * half + 24)))
        pixels = (right - left) / (high - low)
        first, last = low + max(0.0, half - left) / pixels, high - max(0.0, half - 24) / pixels
        x_ticks = [tick for tick in ticks(low, high, about, True) if first <= tick <= last] or [math.ceil(first)]

    def at(point: Point) -> Point:
        return (
            left + (x_scale(point[0]) - low) / (high - low) * (right - left),
            ground - (scale(point[1]) - floor) / (ceiling - floor) * (ground - roof),
        )

    grid, drawn = "", []
    for value in y_ticks:
        level = at((across[0], value))[1]
        grid += f"M{left:.1f} {level:.1f}H{right:.1f}"
        drawn.append(words(left - 6, level + 4, short(value), width, 'class="y" text-anchor="end"'))
    for value in x_ticks:
        column = at((value, y_ticks[0]))[0]
        grid += f"M{column:.1f} {roof:.1f}V{ground:.1f}"
        name = short(value) if label is None else label(value)
        drawn.append(words(column, ground + 18, name, width, 'class="x" text-anchor="middle"'))
    drawn.append(words((left + right) / 2, ground + 38, x, right - left, 'text-anchor="middle"'))
    drawn.append(words(0, roof - 14, y, width))
    return at, [f'<path class="grid" d="{grid}" stroke="currentColor" stroke-opacity="0.15"/>', *drawn]


# ---------------------------------------------------------------------------------------------------------- charts

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
    upper: Sequence[Point] = ()  # the area between the points and these is shaded, and no line is drawn


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
    label: Callable[[float], str] | None = None,
) -> str:
    """A <figure> with axes that fit every point, wide and narrow, and a legend below; `label`: see `axes`."""
    pens = _pens(lines)
    lowest, leftmost = (1 / HUGE if log else -HUGE for log in (log_y, log_x))
    shown: list[list[Point | None]] = [
        [(a, b) if leftmost < a < HUGE and lowest < b < HUGE else None for a, b in line.points] for line in lines
    ]
    every = [point for points in shown for point in points if point]
    every += [point for line in lines for point in line.upper]
    drawings = []
    for name, width in WIDTHS.items():
        if every:
            at, drawn = axes(every, x, y, log_y, width, height, log_x, label)
        else:
            drawn = [words(width / 2, height / 2, "nothing yet", width, 'text-anchor="middle"')]
        paths: dict[bool, list[str]] = {True: [], False: []}  # the faint ones are drawn first and lie beneath
        dots, room = list[str](), POINTS * width // WIDTHS["wide"]
        for number, (line, points, pen) in enumerate(zip(lines, shown, pens, strict=True)):
            mark = f'data-line="{number}"'
            if any(points) and line.upper:
                around = _path([*points, *reversed(line.upper)], at)
                paths[True].append(f'<path {mark} d="{around}Z" style="fill: {pen.paint}" fill-opacity="0.18"/>')
            elif any(points) and not line.joined:
                places = [at(point) for point in thinned(points, POINTS) if point]
                dots.append(f"<g {mark}>{_dots(places, pen, 0.6)}</g>")
            elif any(points):
                path = "".join(_path(run, at) for there, run in groupby(thinned(points, room), bool) if there)
                paths[line.faint].append(f'<path class="line" {mark} d="{path}" {pen.stroke}/>')
                targets = [point for point in thinned(points, TARGETS) if point]
                across = [f"{x} {a:,.10g}" if label is None else label(a) for a, _ in targets]
                tips = [
                    safe(f"{line.name}\n{a}\n{y} {b:,.5g}".strip()) for a, (_, b) in zip(across, targets, strict=True)
                ]
                seen = pen.opacity if len(points) <= DOTS else 0  # the mouse finds those that are not seen
                dots.append(f"<g {mark}>{_dots(list(map(at, targets)), pen, seen, tips)}</g>")
        drawings.append(svg(title, width, height, [*drawn, *paths[True], *paths[False], *dots], f'class="{name}"'))
    names = [
        f'<li data-line="{number}"><svg xmlns="http://www.w3.org/2000/svg" width="24" height="10" aria-hidden="true">'
        + _sample(line, pen)
        + f"</svg> {safe(line.name)}</li>"
        for number, (line, pen) in enumerate(zip(lines, pens, strict=True))
        if line.name
    ]
    legend = f'\n<ul class="legend">{"".join(names)}</ul>' if names else ""
    caption = f"<figcaption>{safe(title)}</figcaption>"
    return f'<figure data-component="line-chart">\n{caption}\n' + "\n".join(drawings) + legend + "\n</figure>"


def _sample(line: ChartLine, pen: Pen) -> str:
    """How a line looks, for the legend."""
    if line.upper:
        return f'<path d="M1 0h22v10h-22Z" style="fill: {pen.paint}" fill-opacity="0.18"/>'
    return f'<path d="M1 5h22" {pen.stroke}/>' if line.joined else _dots([(12.0, 5.0)], pen, 1)


def _path(points: Iterable[Point | None], at: Callable[[Point], Point]) -> str:
    steps = [f"{a:.1f} {b:.1f}" for a, b in (at(point) for point in points if point)]
    return "M" + "L".join(steps) + ("h0" if len(steps) == 1 else "")  # a point on its own shows as a dot


def _dots(places: Sequence[Point], pen: Pen, opacity: float, tips: Sequence[str] = ()) -> str:
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
    title: str, down: Names, across: Names, values: Sequence[Sequence[float]], cells: Sequence[Names] = ()
) -> str:
    """One <svg> of squares, darker toward 1: a row for each of `down`, and `cells` to write into the squares."""
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


# ----------------------------------------------------------------------------------------------------------- pages

LONG = 40  # characters, above which the text of a cell wraps
WIDE = 8  # columns, above which a table is set in smaller letters
NUMBER = re.compile(r"[-+−]?[\d.,:]*\d(e[-+]?\d+)?( ?[^\d\s]{1,12})?( ?± ?[\d.]+)?", re.IGNORECASE)  # 1.2, 12k, 3 ms
BLANK = {"", "-", "–", "—", "?", "nan", "inf", "-inf"}


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """An HTML table, columns of numbers to the right; one that is too wide scrolls by itself."""
    assert all(len(row) == len(header) for row in rows), "a row has not as many cells as the header"

    def side(column: int) -> str:
        cells = [row[column].strip() for row in rows if row[column].strip().lower() not in BLANK]
        return ' class="number"' if cells and all(NUMBER.fullmatch(cell) for cell in cells) else ""

    def cell(text: str, side: str) -> str:
        return f"<td{side or long}>{safe(text)}</td>" if len(text) > LONG else f"<td{side}>{safe(text)}</td>"

    sides, long = [side(column) for column in range(len(header))], ' class="long"'
    head = "".join(f'<th scope="col"{side}>{safe(name)}</th>' for side, name in zip(sides, header, strict=True))
    body = ["<tr>" + "".join(map(cell, row, sides)) + "</tr>" for row in rows]
    body = body or [f'<tr><td colspan="{max(1, len(header))}">nothing yet</td></tr>']
    content = f"<thead><tr>{head}</tr></thead>\n<tbody>\n" + "\n".join(body) + "\n</tbody>"
    many = ' class="many"' if len(header) > WIDE else ""
    # The tab key reaches what scrolls.
    return f'<div class="scroll" data-component="data-table" tabindex="0"><table{many}>\n{content}\n</table></div>'


def paragraph(text: str) -> str:
    """A paragraph of plain words."""
    return f"<p>{safe(text)}</p>"


def verbatim(text: str) -> str:
    """Text as it stands, line by line."""
    return f"<pre>{safe(text)}</pre>"


def entries(values: Mapping[str, str]) -> str:
    """Names with their texts, whole and wrapped, as of one mistake of a model."""
    items = []
    for name, text in values.items():
        long = ' class="long"' if len(text) > LONG or "\n" in text else ""
        items.append(f"<dt{long}>{safe(name)}</dt><dd{long}>{safe(text)}</dd>")
    return f"<dl>{''.join(items)}</dl>"


def heading(text: str) -> str:
    """The heading of a part of a page."""
    return f"<h2>{safe(text)}</h2>"
