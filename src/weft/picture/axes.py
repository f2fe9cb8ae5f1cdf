"""Axes of a chart: round ticks, the frame, and points thinned to what an eye can see."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from itertools import pairwise

from weft.picture.words import wide, words

HUGE = 1e100  # what is larger, or on a logarithmic axis smaller than its inverse, is a gap: no axis can show it
UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))

Point = tuple[float, float]


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
    points: Sequence[Point], x: str, y: str, log_y: bool, width: int, height: int, log_x: bool = False
) -> tuple[Callable[[Point], Point], list[str]]:
    """Axes that fit all the points: where a point lies, in pixels from the upper left corner, and what to draw."""
    roof, ground, right = 28.0, height - 44.0, width - 24.0
    across, up = [point[0] for point in points], [point[1] for point in points]
    y_ticks = (log_ticks if log_y else ticks)(min(up), max(up), max(2, (height - 72) // 45))
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
