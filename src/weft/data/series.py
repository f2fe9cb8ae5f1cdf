"""Time series from tables: which columns are times, names and values, the steps in order, and where one is missing.

A table is long (a row for each time of each series), wide (a row for each time, a column for each series or feature) or
has a series in each row.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import combinations, islice, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.config import comma_list
from weft.data.columns import (
    EUROPEAN,
    THOUSANDS,
    check_decimal_mark,
    file_of,
    is_blank,
    list_in,
    number_in,
    numbers_of,
    wrong_cell,
)
from weft.data.tables import Table
from weft.data.times import Clock, DateParser, clock_of, in_one_zone, parsers_of, plain_number, steps_between
from weft.errors import UserError, did_you_mean, listed, shown
from weft.text.records import Record
from weft.text.rows import Skipped
from weft.text.sources import open_sources, read_lines
from weft.text.tables import IDS, NUMBER, delimiter_of, folded, words_of

Floats = NDArray[np.float64]
# What people call columns of a table of series; in small letters and without spaces and underscores.
TIMES = (
    *("date", "time", "timestamp", "datetime", "ds", "day", "week", "month", "year", "quarter", "hour", "period"),
    *("step", "t", "tick", "yearmonth"),
)
GROUPS = (
    *("series", "seriesid", "uniqueid", "item", "itemid", "store", "storeid", "shop", "product", "productid", "sku"),
    *("sensor", "sensorid", "symbol", "ticker", "region", "country", "city", "name", "group", "machine", "station"),
)
VALUES = (
    *("value", "y", "target", "sales", "demand", "quantity", "amount", "units", "count", "close", "load"),
    *("passengers", "revenue", "visits", "orders", "temperature", "price"),
)
MISSING = ("nan", "na", "n/a", "#n/a", "<na>", "null", "none", "-", "?", "nat")
LOOK = 200  # rows by which columns are recognized
MOSTLY = 0.8  # share of cells that make a column one of numbers
YEAR, TWO_DIGITS, ONE_TO_FOUR = re.compile(r"\d{4}"), re.compile(r"\d{1,2}"), re.compile(r"[Qq]?[1-4]")
HOUR = re.compile(r"([01]?\d|2[0-3])(:\d{2}){0,2}")  # a time of day
COMPACT = {8: "%Y%m%d", 6: "%Y%m"}  # dates that look like numbers, by their digits
TOTALS = ("total", "totals", "grandtotal", "sum", "summe", "gesamt", "insgesamt", "average", "mean", "")
ROW_STEPS = 8  # numbered columns from which on a row is a series
MOST_REPEATED = 0.1  # share of rows that may be left out because their time comes twice
FEW_STEPS = 4  # a whole number that makes series shorter than this does not name them
UNIT = re.compile(r"[$€£¥]\s*(?=[\d.,+-])|(?<=\d)\s*[%$€£¥]$")  # a mark of percent or currency beside a number


@dataclass(frozen=True)
class Series:
    """One series: its numbers by step, those to be forecast first."""

    name: str
    values: Floats  # steps x features
    times: Sequence[Any] = ()  # of each step, where the table has them
    where: str = ""  # its first row
    clock: Clock | None = None

    def __len__(self) -> int:
        return len(self.values)

    def shown_time(self, step: int) -> str:
        """The time of a step, also of one after the last."""
        if self.clock is None or not len(self.times):
            return str(step + 1)
        last = len(self.times) - 1
        time = self.times[step] if step <= last else self.clock.after(self.times[last], step - last)
        return self.clock.show(time)


@dataclass(frozen=True)
class Layout:
    """Which column is what."""

    kind: str  # long, wide or rows
    time: str | None = None
    series: tuple[str, ...] = ()
    values: tuple[str, ...] = ()  # that are forecast; of a wide table without names, each is a series of its own
    features: tuple[str, ...] = ()  # that are read besides
    apart: bool = False  # each of the values is a series of its own


@dataclass(frozen=True)
class SeriesTable:
    """All series of a table, and a line on what was recognized."""

    series: list[Series]
    layout: Layout
    about: str

    @property
    def numbers(self) -> int:
        """Of each step."""
        return self.series[0].values.shape[1]

    @property
    def every(self) -> str:
        """The time of a step, such as day; empty where it is not known."""
        clock = self.series[0].clock
        return "" if clock is None else clock.described()


def _cells(rows: Sequence[Record], name: str) -> list[str]:
    cells = (row.values.get(name) for row in rows)
    return [str(cell).strip() for cell in cells if not is_missing(cell) and not isinstance(cell, list | dict)]


def is_missing(cell: Any) -> bool:
    """Whether a cell holds no value, as people and programs write that."""
    return is_blank(cell) or (isinstance(cell, str) and cell.strip().casefold() in MISSING)


def read_series(
    table: Table, skipped: Skipped, known: Layout | None = None, progress: Callable[[int], None] | None = None
) -> SeriesTable:
    """The series of a table; `known`: the columns that a model was trained on, where the table has them too."""
    table, numbered = _with_numbers(table)
    rows: list[Record] = []
    for record in table.records(skipped):
        rows.append(record)
        if progress is not None:
            progress(1)
    if not rows:
        raise UserError(f"{table.name}: there are no rows")
    rows = rows if "time" in table.columns else _with_joined_time(rows)
    layout, notes = layout_of(rows, table.columns, known, numbered)
    fill = table.on_bad_row == "skip"
    series = _in_rows(rows, layout, fill) if layout.kind == "rows" else _by_time(rows, layout, fill, skipped)
    clock = series[0].clock
    lengths = [len(each) for each in series]
    steps = f"{min(lengths):,}" + (f" to {max(lengths):,}" if max(lengths) > min(lengths) else "")
    by = "" if layout.time is None else f" by {shown(layout.time)!r}"
    every = f", one step per {clock.described()}" if clock is not None and clock.described() else ""
    what = {"long": f"long (series by {listed(layout.series)})", "wide": "wide", "rows": "a series in each row"}
    columns = f"; forecasts {listed(layout.values, 5)}" if layout.kind != "rows" and not layout.apart else ""
    columns += f" from {listed(layout.features, 5)} too" if layout.features else ""
    count = f"{len(series):,} series" if len(series) > 1 else "one series"
    about = f"{table.name}: {what[layout.kind]}: {count} of {steps} steps{by}{every}{columns}"
    for note in notes:
        skipped.note(f"{table.name}: {note}")
    return SeriesTable(series, layout, about)


def _with_numbers(table: Table) -> tuple[Table, bool]:
    """The table with names for its columns where a file has rows of numbers and no header; and whether that is so."""
    paths = [] if table.in_memory else table.paths()
    if not paths or table.names or table.format not in (None, "csv", "tsv"):
        return table, False
    if not paths[0].is_file() or paths[0].suffix.casefold() not in (".csv", ".tsv", ".txt"):
        return table, False
    lines = [text for source in open_sources(paths[0]) for _, text, _ in islice(read_lines(source), 5)][:5]
    mark = delimiter_of(lines, ",")
    cells = [cell.strip() for cell in lines[0].split(mark)] if lines else []
    dates = [bool(parsers_of([cell])) for cell in cells]
    if not cells or not all(date or _is_number(cell) for date, cell in zip(dates, cells, strict=True)):
        return table, False
    if len(cells) >= ROW_STEPS and not any(dates):
        if _are_consecutive(cells) and (cells[0] == "0" or YEAR.fullmatch(cells[0])):  # a header of numbers
            return table, False
        names = [f"step {number}" for number in range(1, len(cells) + 1)]
        return replace(table, names=names, format="csv"), True
    if not any(dates) and len(cells) > 1 and len(lines) > 2:
        dates[0] = _are_consecutive([line.split(mark)[0].strip() for line in lines])
    if len(cells) > 1 and sum(dates) != 1:  # a few numbers: perhaps years, as a header
        return table, False
    numbered = [f"value {number}" for number in range(1, len(cells))] if len(cells) > 2 else ["value"]
    names = ["time" if date else numbered.pop(0) for date in dates]
    return replace(table, names=names, format="csv"), False


def layout_of(
    rows: Sequence[Record], given: Mapping[str, str], known: Layout | None, numbered: bool = False
) -> tuple[Layout, list[str]]:
    """Which column is what, by the names given, by usual names and by what the cells hold; and notes on it."""
    some, where = rows[:LOOK], file_of(rows[0].where)
    names, notes = list(rows[0].values), list[str]()
    chosen = {
        role: _named(given[role], names, where) for role in ("time", "series", "value", "features") if role in given
    }
    if len(chosen.get("time", ())) > 1:
        raise UserError(f"{where}: two time columns, {listed(chosen['time'])}: name one of them")
    lists = [name for name in names if isinstance(rows[0].values[name], list) or str(rows[0].values[name])[:1] == "["]
    cells = {name: _cells(some, name) for name in names if name not in lists}
    numeric = [n for n, each in cells.items() if each and sum(map(_is_number, each)) >= MOSTLY * len(each)]
    time = chosen["time"][0] if "time" in chosen else _time_column(cells, numeric, where, chosen)
    taken = {time, *(name for some_names in chosen.values() for name in some_names)}
    free = [name for name in numeric if name not in taken and folded(name) not in IDS]
    counted = [name for name in free if cells[name][:1] in (["0"], ["1"]) and _are_consecutive(cells[name])]
    if time is not None and len(counted) < len(free):
        free = [name for name in free if name not in counted]  # the numbers of the rows
    if numbered or (time is None and "value" not in chosen and (lists or _are_steps(free))):
        series = chosen.get("series") or tuple(n for n in names if n not in free and n not in lists)[:1]
        return Layout("rows", None, series if not numbered else (), tuple(lists[:1]) or tuple(free)), notes
    series = chosen.get("series") or _series_columns(
        rows, time, [n for n in cells if n not in (taken - {time})], numeric
    )
    free = [name for name in free if name not in series]
    values, apart = chosen.get("value", ()), False
    if not values and known is not None and not known.apart and set(known.values + known.features) <= set(names):
        values, chosen["features"] = known.values, chosen.get("features", known.features)
    if not values:
        values = _usual_values(free, series, where)
        apart = len(values) > 1
    features = chosen.get("features", ())
    if not values:
        has = [f"{shown(name)} ({shown(cells[name][0])})" if cells.get(name) else shown(name) for name in names]
        raise UserError(f"{where}: no column of numbers to forecast; it has {listed(has, 8)}")
    if both := set(values) & set(features):
        raise UserError(
            f"{where}: column {shown(min(both))!r} is forecast, so it is read already: leave it out of features"
        )
    left = [name for name in names if name not in {time, *series, *values, *features} and folded(name) not in IDS]
    if time is None and (unread := [name for name in left if folded(name) in TIMES and name not in numeric]):
        cell = shown(next(iter(cells.get(unread[0], ())), ""))
        notes.append(f"column {shown(unread[0])!r} holds {cell!r}, not a date: the rows are taken in their order")
        left.remove(unread[0])
    if left:
        readable, them = [name for name in left if name in numeric], "it" if len(left) == 1 else "them"
        hint = f"; to read {them} too: --column features={','.join(readable[:5])}" if readable else ""
        notes.append(f"column{'s' * (len(left) > 1)} {listed(map(shown, left), 5)} left out{hint}")
    return Layout("long" if series else "wide", time, series, values, features, apart), notes


def _usual_values(free: Sequence[str], series: Sequence[str], where: str) -> tuple[str, ...]:
    """The column with a usual name among those of numbers; where none has one, all of them, each a series."""
    usual = [name for usual in VALUES for name in free if folded(name) == usual or words_of(name)[-1:] == [usual]]
    if series and not usual and len(free) > 1:
        which = f"which one is forecast? --column value={shown(free[0])}"
        raise UserError(f"{where}: several columns of numbers, {listed(map(shown, free), 6)}: {which}")
    return tuple(usual[:1]) if usual and len(free) > 1 else tuple(free)


def _with_joined_time(rows: list[Record]) -> list[Record]:
    """The rows with one column of times, where year and month or date and time of day are columns of their own."""
    names = {folded(name): name for name in rows[0].values}

    def fits(name: str, form: re.Pattern[str]) -> bool:
        cells = _cells(rows[:LOOK], names[name]) if name in names else []
        return bool(cells) and sum(form.fullmatch(cell) is not None for cell in cells) >= MOSTLY * len(cells)

    hour = next((name for name in ("time", "hour") if "date" in names and fits(name, HOUR)), None)
    if hour is not None:
        parts, mark = ["date", hour], " "
    elif fits("year", YEAR) and fits("quarter", ONE_TO_FOUR):
        parts, mark = ["year", "quarter"], " Q"
    elif fits("year", YEAR) and fits("month", TWO_DIGITS):
        parts, mark = ["year", "month", *(["day"] if fits("day", TWO_DIGITS) else [])], "-"
    else:
        return rows
    columns = [names[part] for part in parts]

    def joined(row: Record) -> Record:
        cells = [str(row.values.get(name) or "").strip() for name in columns]
        if mark == " Q":
            cells[1] = cells[1].lstrip("Qq")
        else:
            cells = [cell.rjust(2, "0") for cell in cells]
        cells[-1] += ":00" * (hour is not None and ":" not in cells[-1])
        rest = {name: value for name, value in row.values.items() if name not in columns}
        return replace(row, values={" ".join(columns): mark.join(cells), **rest})

    return [joined(row) for row in rows]


def _named(text: str, names: Sequence[str], where: str) -> tuple[str, ...]:
    """The columns of a list of names."""
    asked = [text] if text in names else list(comma_list(text))
    for name in asked:
        if name not in names:
            has = listed(map(shown, names), 12)
            raise UserError(f"{where}: no column {shown(name)!r}; it has {has}{did_you_mean(name, names)}")
    return tuple(dict.fromkeys(asked))


def _is_number(cell: str) -> bool:
    cell = UNIT.sub("", cell)
    return (
        NUMBER.fullmatch(cell) is not None
        or THOUSANDS.fullmatch(cell) is not None
        or EUROPEAN.fullmatch(cell) is not None
    )


def _time_column(
    cells: Mapping[str, list[str]], numeric: Sequence[str], where: str, chosen: Mapping[str, tuple[str, ...]]
) -> str | None:
    """The column of times: of dates, else of numbers under a usual name; refused where there are two."""
    taken = {name for names in chosen.values() for name in names}
    dates = [
        name
        for name, each in cells.items()
        if name not in taken and parsers_of(each, 0.5 if folded(name) in TIMES else 1.0)
    ]
    usual = [name for name in numeric if name not in taken and folded(name) in TIMES]
    index = [name for name in numeric if name not in taken and name == "column 1" and _are_consecutive(cells[name])]
    times = dates or usual or index
    if len(times) > 1:
        raise UserError(
            f"{where}: {len(times)} time columns, {listed(map(shown, times), 4)}: choose: --column time={times[0]}"
        )
    return times[0] if times else None


def _are_steps(names: Sequence[str]) -> bool:
    """Whether columns are the steps of a series: dates, or numbered one by one as t0, t1, t2 ... and 1990, 1991 ..."""
    if len(names) < ROW_STEPS or parsers_of(names):
        return len(names) >= ROW_STEPS
    matches = [re.fullmatch(r"(\D*?)(\d+)", name.strip()) for name in names]
    return len({match and match[1] for match in matches}) == 1 and _are_consecutive([m[2] for m in matches if m])


def _are_consecutive(cells: Sequence[str]) -> bool:
    """Whether cells are whole numbers, each one more than that before it."""
    return (
        bool(cells)
        and all(cell.isdecimal() for cell in cells)
        and all(int(b) == int(a) + 1 for a, b in pairwise(cells))
    )


def _series_columns(
    rows: Sequence[Record], time: str | None, names: Sequence[str], numeric: Sequence[str]
) -> tuple[str, ...]:
    """The columns that tell series apart: none where no time comes twice."""
    if time is not None:
        times = [str(row.values.get(time)) for row in rows]
        if len(set(times)) == len(times):
            return ()
    groups = [n for n in names if n != time and (n not in numeric or folded(n) in GROUPS or words_of(n)[-1:] == ["id"])]
    groups = [name for name in groups if 1 < len({str(row.values.get(name)) for row in rows}) <= max(2, len(rows) // 2)]
    groups.sort(key=lambda name: folded(name) not in GROUPS)
    if time is None:
        return tuple(groups[:1]) if groups and folded(groups[0]) in GROUPS else ()
    whole = [n for n in names if n in numeric and n not in groups and folded(n) not in (*VALUES, *IDS)]
    whole = [n for n in whole if all(str(row.values.get(n)).strip().isdecimal() for row in rows[:LOOK])]
    pairs = list(combinations((groups + whole)[:8], 2))
    for some in [(name,) for name in groups] + [(name,) for name in whole] + pairs + [tuple(groups)]:
        keys = Counter(tuple(str(row.values.get(name)) for name in (*some, time)) for row in rows)
        few = {*some} & {*whole} and len({key[:-1] for key in keys}) * FEW_STEPS > len(rows)
        if some and not few and max(keys.values()) == 1:
            return some
    return tuple(groups[:1])


def _in_rows(rows: Sequence[Record], layout: Layout, fill: bool) -> list[Series]:
    """Each row as a series; empty cells at its begin and end are steps that it does not have."""
    series, columns = list[Series](), list(layout.values)
    clock, times, marks = None, list[Any](), dict[str, tuple[str, str]]()
    parser = next(iter(parsers_of(columns)), plain_number if all(map(YEAR.fullmatch, columns)) else None)
    if parser is not None and len(columns) > 1:
        columns.sort(key=parser)
        times = [parser(name) for name in columns]
        clock = clock_of(parser, times)
        for (a, b), name in zip(pairwise(times), columns[1:], strict=True):
            if steps_between(clock, a, b) != 1:
                raise UserError(f"{rows[0].where}: column {shown(name)!r}: {_gap(clock, a, b)}")
    for number, row in enumerate(rows, 1):
        name = " ".join(str(row.values.get(each, "")) for each in layout.series) or f"row {number}"
        first, last, values = 0, 0, list[float]()
        if len(columns) == 1:
            values = numbers_of(list_in(row, columns[0]), row.where)
        else:
            there = [place for place, each in enumerate(columns) if not is_missing(row.values.get(each))]
            first, last = (there[0], there[-1] + 1) if there else (0, 0)
            for each in columns[first:last]:
                with suppress(UserError) if fill else nullcontext():
                    values.append(_value(row, each, marks))
                    continue
                values.append(math.nan)
        array = np.array(values, dtype=np.float64).reshape(-1, 1)
        _interpolate(array)
        series.append(Series(name, array, times[first:last], row.where, clock))
    return series


def _interpolate(values: Floats) -> int:
    """Fill in what is missing, in place; how many steps that were."""
    gone = np.isnan(values)
    for column, missing in zip(values.T, gone.T, strict=True):
        if missing.any():
            column[missing] = np.interp(np.flatnonzero(missing), np.flatnonzero(~missing), column[~missing])
    return int(gone.any(1).sum())


def _gap(clock: Clock, a: Any, b: Any) -> str:
    steps = steps_between(clock, a, b)
    lost = "the times are irregular" if steps is None else f"{steps - 1} missing (--on-bad-row skip interpolates)"
    every = clock.described() or f"{clock.seconds:g}"
    return f"{clock.show(b)} follows {clock.show(a)}, with one step per {every}: {lost}"


def _value(row: Record, column: str, marks: dict[str, tuple[str, str]]) -> float:
    """The number in a cell; `marks`: the decimal marks of its column so far."""
    cell = row.values.get(column)
    if is_missing(cell):
        raise wrong_cell(row, column, "is empty: a series has a number at every step (--on-bad-row skip interpolates)")
    if isinstance(cell, str) and UNIT.search(cell.strip()):
        row = replace(row, values={column: UNIT.sub("", cell.strip())})
    check_decimal_mark(marks, row, column)
    return number_in(row, column)


def _by_time(rows: Sequence[Record], layout: Layout, fill: bool, skipped: Skipped) -> list[Series]:
    """The series of a long or wide table, each with its steps in the order of time."""
    pairs: list[tuple[Record, Any]] = [(row, None) for row in rows]
    parser = None
    if layout.time is not None:
        parser = _parser(rows, layout.time)
        pairs = _timed(rows, layout.time, parser, fill, skipped)
    groups: dict[str, list[tuple[Record, Any]]] = {}
    for row, time in pairs:
        name = " ".join(str(row.values.get(each, "")).strip() for each in layout.series)
        groups.setdefault(name, []).append((row, time))
    series, filled = list[Series](), 0
    columns = [(value,) for value in layout.values] if layout.apart else [layout.values]
    clock = None
    hint = " (--on-bad-row skip keeps the first; names of series: --column series=NAME,NAME)"
    for name, group in groups.items():
        some, times = [row for row, _ in group], [time for _, time in group] if parser is not None else []
        if layout.time is not None:
            again = [n for n, (a, b) in enumerate(pairwise(times), 1) if a == b]
            for place in again:
                which = f" of series {shown(name)!r}" if name else ""
                problem = wrong_cell(some[place], layout.time, f"has a time{which} that another row has too{hint}")
                if not fill or len(again) > MOST_REPEATED * len(times):
                    raise problem
                skipped.add(str(problem))
            some, times = ([each for n, each in enumerate(all_) if n not in again] for all_ in (some, times))
            clock = clock or clock_of(parser, times)
        for values in columns:
            label = " ".join(filter(None, (name, values[0] if layout.apart else "")))
            one, more = _one(some, times, (*values, *layout.features), clock, layout.time, fill)
            series.append(replace(one, name=label))
            filled += more
    if filled:
        skipped.note(f"{filled:,} missing step{'s' * (filled != 1)} filled by interpolation")
    return series


def _timed(rows: Sequence[Record], column: str, parser: Any, fill: bool, skipped: Skipped) -> list[tuple[Record, Any]]:
    """The rows in the order of their times; a last row of totals is left out, with `fill` every row without a time."""
    kept, times = list[Record](), list[Any]()
    for number, row in enumerate(rows, 1):
        try:
            times.append(_time(row, column, parser))
            kept.append(row)
        except UserError as error:
            if number == len(rows) > 1 and folded(str(row.values.get(column) or "")) in TOTALS:
                skipped.note(f"{row.where}: no time, as a row of totals has none: left out")
            elif fill:
                skipped.add(str(error))
            else:
                raise
    return sorted(zip(kept, in_one_zone(times), strict=True), key=lambda pair: pair[1])


def _one(
    rows: Sequence[Record], times: list[Any], columns: Sequence[str], clock: Clock | None, time: str | None, fill: bool
) -> tuple[Series, int]:
    """One series from its rows in order, and how many numbers of it were missing and filled in."""
    empty = [any(is_missing(row.values.get(name)) for name in columns) for row in rows]
    if all(empty):
        raise wrong_cell(rows[0], columns[0], "is empty, and so is every row of it")
    first, last = empty.index(False), len(empty) - empty[::-1].index(False)  # a series may begin later and end earlier
    rows, times, marks = rows[first:last], times[first:last], dict[str, dict[str, tuple[str, str]]]()
    values = np.full((len(rows), len(columns)), np.nan)
    for step, row in enumerate(rows):
        for place, name in enumerate(columns):
            with suppress(UserError) if fill else nullcontext():
                values[step, place] = _value(row, name, marks.setdefault(name, {}))
    if clock is not None and len(times) > 1:
        places = [0]
        for number, (a, b) in enumerate(pairwise(times), 1):
            steps = steps_between(clock, a, b)
            if steps is None or (steps > 1 and not fill):
                raise UserError(f"{rows[number].where}: column {shown(time or '')!r}: {_gap(clock, a, b)}")
            places.append(places[-1] + steps)
        if places[-1] >= 2 * len(places):
            raise UserError(f"{rows[0].where}: more steps are missing than there are, so nothing can be filled in")
        if places[-1] != len(places) - 1:
            whole = np.full((places[-1] + 1, len(columns)), np.nan)
            whole[places] = values
            values, times = whole, [clock.after(times[0], step) for step in range(len(whole))]
    filled = _interpolate(values)
    return Series("", values, times, rows[0].where, clock), filled


def _parser(rows: Sequence[Record], column: str) -> Any:
    cells = _cells(rows[:LOOK], column)
    numbers = [cell for cell in cells if NUMBER.fullmatch(cell)]
    compact = COMPACT.get(len(numbers[0])) if numbers and len({*map(len, numbers)}) == 1 else None
    if compact and all(NUMBER.fullmatch(cell) for cell in cells):
        with suppress(ValueError):
            for cell in numbers:
                datetime.strptime(cell, compact)
            return DateParser(compact)
    if cells and len(numbers) >= MOSTLY * len(cells):
        return plain_number
    parsers = parsers_of(cells, 0.5)
    if not parsers:
        raise wrong_cell(rows[0], column, f"holds {shown(str(rows[0].values.get(column)))!r}, not a date or number")
    return parsers[0]


def _time(row: Record, column: str, parser: Any) -> Any:
    cell = row.values.get(column)
    if is_missing(cell):
        raise wrong_cell(row, column, "is empty: no time")
    try:
        return parser(str(cell).strip())
    except (ValueError, OverflowError):
        raise wrong_cell(row, column, f"holds {shown(str(cell))!r}, not a time as the others are") from None


def season_of(series: Sequence[Series], longest: int = 400) -> int:
    """The period after which series repeat, by the autocorrelation of their changes or of their distance from a line.

    A day, week or year of the clock is found more easily than any other period; 1 where nothing repeats.
    """
    columns = [each.values[-5000:, 0] for each in series[:: max(1, len(series) // 50)]]
    size, usual = max(map(len, columns)), series[0].clock.seasons if series[0].clock else ()
    best, season = 0.0, 1
    for least, view in ((0.3, np.diff), (0.6, _detrended)):
        r = _autocorrelation([view(column) for column in columns if len(column) > 8], 3 * longest)
        last = min(longest, size // 2, len(r) - 2)

        def around(lag: int, off: int, r: Floats = r) -> float:
            return float(r[lag - off : lag + off + 1].max())

        def repeats(lag: int, r: Floats = r, least: float = least, known: bool = False) -> bool:
            chance = (1.8 if known else 3.5) / math.sqrt(size - lag)  # what noise makes of so few steps
            return (
                r[lag] > max(0.6 * least if known else least, chance)
                and r[lag] >= around(lag, 1) - 0.1 * known
                and r[1:lag].min() < r[lag] - 0.3
                and all(around(n * lag, max(1, min(n, lag // 4))) > r[lag] / 2 for n in (2, 3) if n * lag + 1 < len(r))
            )

        lags = [lag for lag in usual if 2 <= lag <= last and repeats(lag, known=True)]
        lags = lags or [lag for lag in range(2, min(last, len(r) // 2 - 1) + 1) if repeats(lag)]  # seen three times
        highest = max((r[lag] for lag in lags), default=0.0)
        if highest > best:
            best, season = highest, next(lag for lag in lags if r[lag] >= 0.85 * highest)
            if season not in usual:  # its multiples say more precisely which lag it is
                near, times = range(max(2, season - 1), season + 2), range(1, 1 + (len(r) - 1) // (season + 1))
                season = max(near, key=lambda lag, r=r, times=times: sum(r[lag * n] for n in times))  # type: ignore[misc]
    return season


def _detrended(values: Floats) -> Floats:
    steps = np.arange(len(values))
    return values - np.polyval(np.polyfit(steps, values, 1), steps)


def _autocorrelation(columns: Sequence[Floats], longest: int) -> Floats:
    """By lag, from 0 on: the mean of several series, as far as two thirds of their steps go."""
    total, count = np.zeros(longest + 1), np.zeros(longest + 1)
    for x in columns:
        x = x - x.mean()
        lags, square = min(longest, 2 * len(x) // 3), float(x @ x)
        if square > 0:
            products = np.fft.irfft(np.abs(np.fft.rfft(x, 2 * len(x))) ** 2)[: lags + 1]
            total[: lags + 1] += products / square * len(x) / (len(x) - np.arange(lags + 1))
            count[: lags + 1] += 1
    known = int((count > 0).sum())
    return np.asarray(total[:known] / count[:known])
