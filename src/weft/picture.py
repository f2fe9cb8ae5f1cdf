"""Pages and charts from numbers and words: HTML and SVG that stand alone, run nothing and fetch nothing."""

from __future__ import annotations

import html
import math
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise

# Six colours that people who lack red, green or blue tell apart, each at least 3:1 against its ground
# (a test measures both). A chart outside of a page falls back on the light ones.
LIGHT = ("#0072b2", "#d55e00", "#8a00f0", "#004433", "#cc7788", "#554411")
DARK = ("#4aa8e8", "#f0762e", "#9040ff", "#66f0b8", "#bb6688", "#ffdd33")
# Dashes for (whole, dashed) lines; when the colours are used up, dots tell the second round from the first.
DASHES = (("none", "5 6"), ("0 5", "7 5 0 5"))

POINTS, TARGETS, DOTS = 1000, 60, 30  # of one line: points drawn, points that answer the mouse, points that get a dot
FONT, LETTER = 13, 7.2  # pixels: height of the letters and, near enough, width of one
WIDE = 8  # columns, above which a table is set in smaller letters
HUGE = 1e100  # what is larger, or on a logarithmic axis smaller than its inverse, is a gap: no axis can show it
UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))

Point = tuple[float, float]

UNFIT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")  # no XML or HTML may hold these
NUMBER = re.compile(r"[-+−]?[\d.,:]*\d(e[-+]?\d+)?( ?[^\d\s]{1,12})?( ?± ?[\d.]+)?", re.IGNORECASE)  # 1.2, 12k, 3 ms
BLANK = {"", "-", "–", "—", "?", "nan", "inf", "-inf"}

STYLE = """
:root { color-scheme: light dark; --ground: #fff; --ink: #1c2126; --rule: #d5dade; LIGHT }
@media (prefers-color-scheme: dark) { :root { --ground: #15181c; --ink: #e4e8ec; --rule: #3a4149; DARK } }
body { margin: 0 auto; padding: 1rem; max-width: 60rem; background: var(--ground); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.2; } h2 { font-size: 1.2rem; margin: 0.5rem 0 0; }
section { margin: 1rem 0; overflow-x: auto; }
svg { display: block; width: 100%; min-width: 32rem; height: auto; } circle:hover { fill-opacity: 1; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 0.3rem 0.8rem; border-bottom: 1px solid var(--rule); text-align: left; white-space: nowrap; }
.wide { font-size: 0.8rem; } .wide th, .wide td { padding: 0.25rem 0.4rem; }
.number { text-align: right; }
pre { white-space: pre-wrap; padding: 0.6rem 0.8rem; border: 1px solid var(--rule); margin: 0.3rem 0 1rem; }
"""


@dataclass(frozen=True)
class Line:
    """One line of a chart; lines of one group share a colour, and a y that is not finite leaves a gap."""

    name: str
    points: Sequence[Point]
    dashed: bool = False
    group: str | None = None
    faint: bool = False


def safe(text: str) -> str:
    """Words from outside, fit for the text and the attributes of HTML and SVG."""
    return html.escape(UNFIT.sub(lambda found: repr(found[0])[1:-1], text))


def wide(text: str) -> float:
    """About how many pixels the text takes; Chinese and Japanese characters are twice as wide."""
    return LETTER * sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def words(x: float, y: float, text: str, room: float, more: str = "") -> str:
    """Text in a chart, cut where it would run out of its room; the mouse then shows the whole."""
    cut, tip = text, ""
    if wide(text) > room:
        kept = sum(width <= room - LETTER for width in accumulate(map(wide, text)))
        cut, tip = text[:kept] + "…", f"<title>{safe(text)}</title>"
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{tip}{safe(cut)}</text>'


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
    found = [tens(digit, power) for power in range(first, last + stride, stride) for digit in digits]
    begin, end = max(value for value in found if value <= low), min(value for value in found if value >= high)
    return [value for value in found if begin <= value <= end]


def short(value: float) -> str:
    """One number as a person writes it on an axis: '0.5', '20k'."""
    unit, letter = next(((unit, letter) for unit, letter in UNITS if unit <= abs(value) < 1e15), (1.0, ""))
    return re.sub(r"e\+?(-?)0*", r"e\1", f"{value / unit:.12g}") + letter


def thinned(points: Sequence[Point | None], most: int) -> list[Point | None]:
    """About so many points at most: the ends, and of every stretch the lowest, the highest and one gap."""
    if len(points) <= most:
        return list(points)
    cuts = [len(points) * cut // (most // 3) for cut in range(most // 3 + 1)]
    keep = {0, len(points) - 1}
    for begin, end in pairwise(cuts):
        there = sorted((point[1], begin + place) for place, point in enumerate(points[begin:end]) if point)
        keep.update(place for _, place in there[:1] + there[-1:])
        keep.update([place for place in range(begin, end) if not points[place]][:1])
    return [points[place] for place in sorted(keep)]


def axes(
    points: Sequence[Point], x: str, y: str, log_y: bool, width: int, height: int, log_x: bool = False
) -> tuple[Callable[[Point], Point], list[str]]:
    """Axes that fit all the points: where a point lies, in pixels from the upper left corner, and what to draw."""
    roof, ground, right = 48.0, height - 44.0, width - 30.0
    across, up = [point[0] for point in points], [point[1] for point in points]
    y_ticks = (log_ticks if log_y else ticks)(min(up), max(up), max(2, (height - 92) // 45))
    left = max(wide(short(value)) for value in y_ticks) + 10
    counts = all(float(value).is_integer() for value in across)
    x_about = max(2, int(right - left) // 80)
    x_ticks = (
        log_ticks(min(across), max(across), x_about) if log_x else ticks(min(across), max(across), x_about, counts)
    )
    scale, x_scale = math.log if log_y else float, math.log if log_x else float
    low, high, floor, ceiling = x_scale(x_ticks[0]), x_scale(x_ticks[-1]), scale(y_ticks[0]), scale(y_ticks[-1])

    def at(point: Point) -> Point:
        return (
            left + (x_scale(point[0]) - low) / (high - low) * (right - left),
            ground - (scale(point[1]) - floor) / (ceiling - floor) * (ground - roof),
        )

    grid, drawn = "", []
    for value in y_ticks:
        level = at((x_ticks[0], value))[1]
        grid += f"M{left:.1f} {level:.1f}H{right:.1f}"
        drawn.append(words(left - 6, level + 4, short(value), width, 'class="y" text-anchor="end"'))
    for value in x_ticks:
        column = at((value, y_ticks[0]))[0]
        grid += f"M{column:.1f} {roof:.1f}V{ground:.1f}"
        drawn.append(words(column, ground + 18, short(value), width, 'class="x" text-anchor="middle"'))
    drawn.append(words((left + right) / 2, ground + 38, x, right - left, 'text-anchor="middle"'))
    drawn.append(words(0, roof - 14, y, width))
    return at, [f'<path class="grid" d="{grid}" stroke="currentColor" stroke-opacity="0.15"/>', *drawn]


def line_chart(
    title: str,
    lines: Sequence[Line],
    x: str,
    y: str,
    *,
    log_y: bool = False,
    log_x: bool = False,
    width: int = 760,
    height: int = 340,
) -> str:
    """One <svg> with axes that fit every point; the legend comes below and adds to the height."""
    lowest, leftmost = (1 / HUGE if log else -HUGE for log in (log_y, log_x))
    shown: list[list[Point | None]] = [
        [(a, b) if leftmost < a < HUGE and lowest < b < HUGE else None for a, b in line.points] for line in lines
    ]
    drawn = [words(0, FONT + 2, title, width, 'font-weight="bold"')]
    if found := [point for points in shown for point in points if point]:
        at, frame = axes(found, x, y, log_y, width, height, log_x)
        drawn += frame
    else:
        drawn.append(words(width / 2, height / 2, "nothing yet", width, 'text-anchor="middle"'))
    groups: dict[str | int, int] = {}
    paths: dict[bool, list[str]] = {True: [], False: []}  # the faint ones are drawn first and lie beneath
    dots, legend = [], []
    legend_x, bottom = float(width), height
    for place, (line, points) in enumerate(zip(lines, shown, strict=True)):
        turn, colour = divmod(groups.setdefault(place if line.group is None else line.group, len(groups)), len(LIGHT))
        paint, opacity = f"var(--line-{colour}, {LIGHT[colour]})", 0.5 if line.faint else 1
        pen = (
            f'fill="none" style="stroke: {paint}" stroke-opacity="{opacity}" stroke-width="{1.2 if line.faint else 2}" '
            f'stroke-linecap="round" stroke-linejoin="round" stroke-dasharray="{DASHES[turn % 2][line.dashed]}"'
        )
        if line.name:
            if legend_x + 30 + wide(line.name) > width:
                legend_x, bottom = 0.0, bottom + 20
            legend.append(f'<path d="M{legend_x:.1f} {bottom - 10}h24" {pen}/>')
            legend.append(words(legend_x + 30, bottom - 6, line.name, width - 30, 'class="legend"'))
            legend_x += 48 + wide(line.name)
        path, tips = "", ""
        for there, run in groupby(thinned(points, POINTS), bool):
            if there:
                steps = [f"{a:.1f} {b:.1f}" for a, b in (at(point) for point in run if point)]
                path += "M" + "L".join(steps) + ("h0" if len(steps) == 1 else "")  # a point on its own shows as a dot
        for point in filter(None, thinned(points, TARGETS)):
            (a, b), tip = at(point), f"{line.name}\n{x} {point[0]:,.10g}\n{y} {point[1]:,.5g}".strip()
            tips += f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3"><title>{safe(tip)}</title></circle>'
        if path:
            paths[line.faint].append(f'<path class="line" d="{path}" {pen}/>')
            seen = opacity if len(points) <= DOTS else 0  # the mouse finds those that are not seen, and a wide rim
            dots.append(
                f'<g style="fill: {paint}" fill-opacity="{seen}" stroke="transparent" stroke-width="6">{tips}</g>'
            )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{safe(title)}" width="{width}" '
        f'height="{bottom}" viewBox="0 0 {width} {bottom}" fill="currentColor" '
        f'font-family="system-ui, sans-serif" font-size="{FONT}">\n'
        + "\n".join([*drawn, *paths[True], *paths[False], *dots, *legend])
        + "\n</svg>"
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


def bar_chart(title: str, bars: Sequence[Bar], x: str, *, width: int = 760) -> str:
    """One <svg> of level bars from zero, the intervals as thin lines across their ends."""
    side, roof = 26.0, FONT + 18.0
    left = min(200.0, max((wide(bar.name) for bar in bars), default=0.0) + 12)
    room = max((wide(f"{bar.value:.3f} {bar.note}") for bar in bars), default=0.0) + 16
    ends = [end for bar in bars for end in (bar.value, bar.high or bar.value) if math.isfinite(end)]
    scale = (width - left - min(room, width / 2)) / max(ends, default=1.0)
    height = roof + side * len(bars) + 26
    drawn = [words(0, FONT + 2, title, width, 'font-weight="bold"')]
    for place, bar in enumerate(bars):
        y = roof + side * place
        drawn.append(words(left - 8, y + side / 2 + 4, bar.name, left - 8, 'class="down" text-anchor="end"'))
        if not math.isfinite(bar.value):
            drawn.append(words(left + 8, y + side / 2 + 4, bar.note, width - left))
            continue
        size, tip = max(0.0, bar.value) * scale, f"{bar.name}: {bar.value:.4f}"
        end = left + size
        if bar.low is not None and bar.high is not None:
            tip += f" (95 % between {bar.low:.4f} and {bar.high:.4f})"
        drawn.append(
            f'<rect x="{left:.1f}" y="{y + 4:.1f}" width="{size:.1f}" height="{side - 8}" '
            f'style="fill: var(--line-0, {LIGHT[0]})" fill-opacity="{0.45 if bar.faint else 1}">'
            f"<title>{safe(tip)}</title></rect>"
        )
        if bar.low is not None and bar.high is not None:
            near, far = (left + max(0.0, value) * scale for value in (bar.low, bar.high))
            drawn.append(
                f'<path class="interval" d="M{near:.1f} {y + side / 2:.1f}H{far:.1f}" stroke="currentColor" '
                'stroke-width="2"/>'
            )
            end = max(end, far)
        drawn.append(words(end + 8, y + side / 2 + 4, f"{bar.value:.3f} {bar.note}".strip(), width - end, 'class="x"'))
    drawn.append(words(left, height - 8, x, width - left))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{safe(title)}" width="{width}" '
        f'height="{height:.0f}" viewBox="0 0 {width} {height:.0f}" fill="currentColor" '
        f'font-family="system-ui, sans-serif" font-size="{FONT}">\n' + "\n".join(drawn) + "\n</svg>"
    )


def heat_map(title: str, down: Sequence[str], across: Sequence[str], values: Sequence[Sequence[float]]) -> str:
    """One <svg> of squares, the darker the nearer its value is to 1: a row for each of `down`, names on both sides."""
    side = 26.0
    left = min(160.0, max(map(wide, down), default=0.0) + 10)
    roof = FONT + 14 + min(160.0, max(map(wide, across), default=0.0) + 10)
    width, height = max(left + side * len(across) + 4, wide(title)), roof + side * len(down) + 4
    drawn = [words(0, FONT + 2, title, width, 'font-weight="bold"')]
    for place, name in enumerate(across):  # read from below
        x = left + side * (place + 0.5) + 5
        turned = f'class="across" transform="rotate(-90 {x:.1f} {roof - 6:.1f})"'
        drawn.append(words(x, roof - 6, name, 160, turned))
    for place, (name, row) in enumerate(zip(down, values, strict=True)):
        y = roof + side * place
        drawn.append(words(left - 6, y + side / 2 + 5, name, left, 'class="down" text-anchor="end"'))
        for column, (other, value) in enumerate(zip(across, row, strict=True)):
            shade = min(1.0, max(0.0, value)) if math.isfinite(value) else 0.0
            drawn.append(
                f'<rect x="{left + side * column:.1f}" y="{y:.1f}" width="{side - 1}" height="{side - 1}" '
                f'style="fill: var(--line-0, {LIGHT[0]})" fill-opacity="{0.04 + 0.96 * shade:.3f}">'
                f"<title>{safe(f'{name} / {other}: {value:.3f}')}</title></rect>"
            )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{safe(title)}" width="{width:.0f}" '
        f'height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}" fill="currentColor" '
        f'font-family="system-ui, sans-serif" font-size="{FONT}" style="min-width: 0; width: {width:.0f}px">\n'
        + "\n".join(drawn)
        + "\n</svg>"
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """An HTML table, columns of numbers to the right; one that is too wide scrolls by itself."""
    assert all(len(row) == len(header) for row in rows), "a row has not as many cells as the header"

    def side(column: int) -> str:
        cells = [row[column].strip() for row in rows if row[column].strip().lower() not in BLANK]
        return ' class="number"' if cells and all(NUMBER.fullmatch(cell) for cell in cells) else ""

    sides = [side(column) for column in range(len(header))]
    head = "".join(f'<th scope="col"{side}>{safe(name)}</th>' for side, name in zip(sides, header, strict=True))
    body = [
        "<tr>" + "".join(f"<td{side}>{safe(cell)}</td>" for side, cell in zip(sides, row, strict=True)) + "</tr>"
        for row in rows
    ] or [f'<tr><td colspan="{max(1, len(header))}">nothing yet</td></tr>']
    content = f"<thead><tr>{head}</tr></thead>\n<tbody>\n" + "\n".join(body) + "\n</tbody>"
    wide = ' class="wide"' if len(header) > WIDE else ""
    # The tab key reaches what scrolls.
    return f'<div class="scroll" tabindex="0"><table{wide}>\n{content}\n</table></div>'


def paragraph(text: str) -> str:
    """A paragraph of plain words."""
    return f"<p>{safe(text)}</p>"


def verbatim(text: str) -> str:
    """Text as it stands, line by line."""
    return f"<pre>{safe(text)}</pre>"


def heading(text: str) -> str:
    """The heading of a part of a page."""
    return f"<h2>{safe(text)}</h2>"


def page(title: str, parts: Sequence[str], intro: str = "") -> str:
    """One whole HTML document; `parts` are what the other functions here return, and are not escaped again."""
    style = STYLE
    for name, colours in (("LIGHT", LIGHT), ("DARK", DARK)):
        style = style.replace(name, " ".join(f"--line-{place}: {colour};" for place, colour in enumerate(colours)))
    body = [f"<h1>{safe(title)}</h1>", *(f"<section>{part}</section>" for part in parts)]
    if intro:
        body.insert(1, paragraph(intro))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\"/>\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        f"<title>{safe(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )
