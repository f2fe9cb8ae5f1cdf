"""Times of series: how they are written, how far apart they are, and how many are missing between two of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import numpy as np

from weft.text.tables import NUMBER

FORMATS = (
    *("%Y-%m", "%Y/%m/%d", "%Y/%m", "%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m/%Y", "%b %Y", "%B %Y"),
    *("%d %b %Y", "%d %B %Y", "%m/%d/%Y %H:%M", "%d/%m/%Y %H:%M", "%d.%m.%Y %H:%M", "%Y/%m/%d %H:%M", "%m/%d/%y"),
    *("%m/%d/%Y %H:%M:%S", "%d/%m/%Y %H:%M:%S", "%d.%m.%Y %H:%M:%S", "%Y/%m/%d %H:%M:%S"),
    *("%m/%d/%Y %I:%M %p", "%m/%d/%Y %I:%M:%S %p", "%m/%d/%y %H:%M", "%d/%m/%y", "%d.%m.%y", "%d.%m.%y %H:%M"),
    *("%b %d %Y", "%b %d, %Y", "%B %d %Y", "%B %d, %Y", "%b-%d-%Y", "%d-%b-%Y", "%d-%b-%y", "%Y.%m.%d", "%m-%d-%Y"),
    *("%b-%y", "%b-%Y", "%b %y", "%Y %b", "%Y-%b", "%Y %B", "%YM%m"),
    *("%Y %q", "%Y%q", "%Y-%q", "%q %Y", "%q-%Y", "%q/%Y"),  # %q: a quarter, such as Q3
)
QUARTER = re.compile("[Qq]([1-4])")
DAY = 86400.0
UNITS = {7 * DAY: "week", DAY: "day", 3600.0: "hour", 60.0: "minute", 1.0: "second"}


@dataclass(frozen=True)
class Clock:
    """How the times of a table are written and how far apart they are."""

    parse: Callable[[str], datetime | float]
    show: Callable[[datetime | float], str]
    months: int = 0  # between two steps, of calendar months ...
    month_ends: bool = False  # whose last days these are
    seconds: float = 0.0  # ... or so many seconds, or numbers ...
    weekdays: bool = False  # ... or from one weekday to the next

    def after(self, time: datetime | float, steps: int) -> datetime | float:
        """The time so many steps later."""
        if not isinstance(time, datetime):
            return time + steps * self.seconds
        if self.months:
            month = time.month - 1 + steps * self.months
            first = time.replace(year=time.year + month // 12, month=month % 12 + 1, day=1)
            return first + timedelta(days=_days(first) - 1 if self.month_ends else min(time.day, _days(first)) - 1)
        if not self.weekdays:
            return time + timedelta(seconds=steps * self.seconds)
        for _ in range(steps):
            time += timedelta(days=3 if time.weekday() == 4 else 1)
        return time

    def described(self) -> str:
        """What one step is: 'day', '15 minutes'; '' where times are numbers."""
        if self.months:
            return {1: "month", 3: "quarter", 12: "year"}.get(self.months, f"{self.months} months")
        if self.weekdays or not isinstance(self.parse, DateParser):
            return "weekday" if self.weekdays else ""
        size, unit = next((item for item in UNITS.items() if self.seconds % item[0] == 0), (1.0, "second"))
        count = self.seconds / size
        return unit if count == 1 else f"{count:g} {unit}s"

    @property
    def seasons(self) -> tuple[int, ...]:
        """The steps of a day, week or year, after which series of such steps usually repeat."""
        if self.months:
            return (12 // self.months,) if self.months in (1, 3) else ()
        if self.weekdays or not isinstance(self.parse, DateParser):
            return (5,) if self.weekdays else ()
        if self.seconds >= DAY:
            return {DAY: (7,), 7 * DAY: (52,)}.get(self.seconds, ())
        return (round(DAY / self.seconds),) if self.seconds >= 60 and DAY % self.seconds == 0 else ()


@dataclass(frozen=True)
class DateParser:
    """Reads dates of one format; ISO 8601 where none is given."""

    format: str = ""

    def __call__(self, text: str) -> datetime:
        if "%q" in self.format:
            month = QUARTER.sub(lambda match: f"{3 * int(match[1]) - 2:02}", text)
            return datetime.strptime(month if month != text else "", self.format.replace("%q", "%m"))
        return datetime.strptime(text, self.format) if self.format else datetime.fromisoformat(text)

    def show(self, time: Any) -> str:
        if self.format:
            return time.strftime(self.format.replace("%q", f"Q{(time.month + 2) // 3}"))
        return time.date().isoformat() if time == datetime(time.year, time.month, time.day) else time.isoformat()


def _days(first: datetime) -> int:
    """Of a month, by its first day."""
    return ((first + timedelta(days=31)).replace(day=1) - first).days


def plain_number(text: str) -> float:
    return float(text)


def in_one_zone(times: list[Any]) -> list[Any]:
    """Times of one offset from UTC, the last one's, so that no hour is lost or twice where clocks are changed.

    Times of whole days stay those of the calendar.
    """
    zones = [time.tzinfo for time in times if isinstance(time, datetime) and time.tzinfo is not None]
    if not zones:
        return times
    if len({time.time() for time in times}) == 1:
        return [time.replace(tzinfo=None) for time in times]
    return [time.astimezone(zones[-1]) if time.tzinfo else time.replace(tzinfo=zones[-1]) for time in times]


def parsers_of(cells: Sequence[str], share: float = 1.0) -> list[DateParser]:
    """The ways to read these cells, or such a share of them, as dates; the likeliest first."""
    if not cells or all(NUMBER.fullmatch(cell) for cell in cells):
        return []
    fitting = list[tuple[int, int, int, DateParser]]()
    for parser in (DateParser(), *map(DateParser, FORMATS)):
        times = []
        for cell in cells:
            with suppress(ValueError, OverflowError):
                times.append(parser(cell).replace(tzinfo=None))
            if not times:
                break  # the first cell decides most often
        if len(times) >= share * len(cells):  # days and months in order first
            fitting.append((-len(times), sum(a > b for a, b in pairwise(times)), len(fitting), parser))
    return [parser for *_, parser in sorted(fitting, key=lambda each: each[:3])]


def clock_of(parser: Any, times: Sequence[Any]) -> Clock:
    """How far apart times are: the most frequent distance."""
    show: Any = parser.show if isinstance(parser, DateParser) else lambda time: f"{time:.15g}"
    if len(times) < 2:
        return Clock(parser, show, seconds=1.0)
    if not isinstance(parser, DateParser):
        gaps = Counter(round(b - a, 9) for a, b in pairwise(times))
        return Clock(parser, show, seconds=gaps.most_common(1)[0][0])
    seconds = Counter((b - a).total_seconds() for a, b in pairwise(times))
    often, count = seconds.most_common(1)[0]
    months = Counter((b.year - a.year) * 12 + b.month - a.month for a, b in pairwise(times))
    month_ends = all(time.day == _days(time.replace(day=1)) for time in times)
    uneven = (
        len(times) > 3 and count < 0.8 * len(times) and min(months) > 0
    )  # such as the last trading day of each month
    whole = all((time.hour, time.minute, time.second) == (0, 0, 0) for time in times)
    if whole and months.most_common(1)[0][0] > 0 and (month_ends or uneven or len({time.day for time in times}) == 1):
        return Clock(parser, show, months=months.most_common(1)[0][0], month_ends=month_ends)
    if often == DAY and len(times) > 10 and all(time.weekday() < 5 for time in times):
        return Clock(parser, show, seconds=DAY, weekdays=True)
    # Midnight is one hour among others where steps are hours.
    show = show if parser.format or often >= DAY else datetime.isoformat
    return Clock(parser, show, seconds=often)


def steps_between(clock: Clock, a: Any, b: Any) -> int | None:
    """How many steps lie between two times; None where it is no whole number of them."""
    if clock.months:
        steps, rest = divmod((b.year - a.year) * 12 + b.month - a.month, clock.months)
        return steps if steps > 0 and not rest else None
    if clock.weekdays:
        steps = int(np.busday_count(a.date(), b.date()))
    else:
        seconds = (b - a).total_seconds() if isinstance(a, datetime) else b - a
        steps = round(seconds / clock.seconds) if clock.seconds else 0
    if steps < 1:
        return None
    off = clock.after(a, steps) - b
    if isinstance(off, timedelta):  # a day may be an hour longer or shorter
        return steps if abs(off) <= timedelta(hours=1 if clock.seconds >= DAY else 0) else None
    return steps if abs(off) <= 1e-6 * max(1.0, abs(clock.seconds)) else None
