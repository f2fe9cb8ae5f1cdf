"""Windows of time series from tables: which sizes they have, which are held out, and the scale of their numbers.

H: steps ahead; T: numbers of a step that are forecast; F: numbers of a step that are read; W: steps of a window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np

from weft.data.columns import numbers_of
from weft.data.dataset import FEW, Begin, split_whole
from weft.data.series import Floats, Layout, Series, SeriesTable, read_series, season_of
from weft.data.tables import Table
from weft.errors import UserError, refuse, shown
from weft.objectives.losses import SoftTargets
from weft.tasks.base import Example, Task
from weft.text.records import Record
from weft.text.rows import Skipped

MANY = 50  # series, from which on some of them can be held out
SHORT = 100  # steps, up to which many series are read whole
MOST_WINDOWS = 100_000  # that are learned from; of more, every second, third ... one
DEFAULT_WINDOW, SMALLEST_WINDOW = 24, 4
FAR = 5  # deviations between the level of a window and that of the training part, which deserve a note
FEW_WINDOWS = 20  # to learn from, in the shortest series


@dataclass(frozen=True)
class SeriesWindow(Example):
    """A window of a series; its target are the steps that follow, where they are known."""

    series: Series = Series("", np.zeros((0, 1)))
    origin: int = 0  # the first step that is forecast
    size: int = 0

    @property
    def history(self) -> Floats:
        return self.series.values[self.origin - self.size : self.origin]


@dataclass(frozen=True)
class SeriesTask(Task):
    """A task whose examples are windows of series, which a whole table holds."""

    horizon: int | None = None
    size: int | None = None  # steps of a window
    season: int | None = None  # steps after which series repeat
    layout: Layout | None = None  # columns
    every: str = ""  # the time of a step, such as day, where times are dates
    features: int = 1
    center: tuple[float, ...] = ()  # of every number of a step; (): each window has its own
    spread: tuple[float, ...] = ()
    learning: bool = False  # its windows are those to learn from, rather than those of a back-test
    origins: int | None = None  # of a back-test, for each series
    soft: SoftTargets | None = None
    series_table: SeriesTable | None = field(default=None, compare=False, repr=False)  # of the table below
    table: Table | None = field(default=None, compare=False, repr=False)

    input_names: ClassVar[tuple[str, ...]] = ("value",)
    unit = "steps"
    reads_tables = True
    unbounded = True

    @property
    def steps(self) -> int:
        """Steps ahead; known once a table has been read."""
        assert self.horizon is not None
        return self.horizon

    @property
    def targets(self) -> int:
        return 1 if self.layout is None else len(self.layout.values)

    def columns(self, record: Record, given: Mapping[str, str]) -> tuple[Task, tuple[str, ...]]:
        return self, ()

    def with_table(self, table: Table, skipped: Skipped, progress: Callable[[int], None] | None = None) -> Self:
        """The task with the series of a table, which decide horizon, window and season where nothing else does."""
        read = read_series(table, skipped, self.layout, progress)
        skipped.note(read.about)
        if self.layout is not None:  # of the table that it was trained on
            self._check_table(table, read, skipped)
            task = replace(self, table=table, series_table=read)
        else:
            layout = read.layout
            if layout.kind == "rows" or layout.apart:  # columns are steps, or series
                layout = replace(layout, values=("value",))
            task = replace(self, layout=layout, features=read.numbers, every=read.every, table=table, series_table=read)
            task = task.with_sizes(read)
            skipped.note(f"{table.name}: {task._sizes_chosen(read)}")
        for short in task._too_short(table, read):
            skipped.add(f"{short.where}: series {shown(short.name)!r} has {len(short)} steps, too few for a window")
        return task

    def _check_table(self, table: Table, read: SeriesTable, skipped: Skipped) -> None:
        """Whether the model can read these series; a note where their steps are of another length."""
        numbers = read.numbers
        if self.every and read.every and read.every != self.every:
            skipped.note(f"{table.name}: one step per {read.every}, and the model was trained on one per {self.every}")
        names = (*self.layout.values, *self.layout.features) if self.layout else ()
        reads = f"the model reads {self.features}: {', '.join(map(shown, names))}"
        has = f"{table.name}: {numbers} number{'s' * (numbers != 1)} at each step"
        refuse((numbers != self.features, f"{has}, and {reads}"))

    def with_sizes(self, read: SeriesTable) -> Self:
        """The task with season, horizon and window, those that were not given by the lengths of the series."""
        lengths, season = list(map(len, read.series)), self.season or season_of(read.series)
        shortest = min(length for length in lengths if 4 * length >= np.median(lengths))  # a new store decides nothing
        horizon = self.horizon or max(1, min(season if season > 1 else 10, shortest // 8))
        room = shortest - max(round(0.1 * shortest), 2 * horizon) - horizon  # for windows, a step apart
        longest = max(room // 2, min(season, room - FEW_WINDOWS))  # a season is worth fewer of them
        window = min(max(2 * season if season > 1 else 0, 2 * horizon, DEFAULT_WINDOW), longest)
        if len(read.series) >= MANY and shortest <= SHORT:  # of many short series all is read
            window = shortest - horizon
        return replace(self, season=season, horizon=horizon, size=self.size or max(SMALLEST_WINDOW, window))

    def _sizes_chosen(self, read: SeriesTable) -> str:
        season = f"season {self.season}" if (self.season or 1) > 1 else "no season"
        chosen = f"horizon {self.horizon}, window {self.size}, {season}"
        if not self.learning:
            return chosen
        held = self.split_at([each for each in read.series if len(each) >= (self.size or 0) + self.steps]).values()
        steps = f"{min(held)} to {max(held)}" if held and min(held) < max(held) else f"{max(held, default=0)}"
        which = f"the last {steps} steps of each series" if held else "some of the series"
        return f"{chosen}; {which} are held out"

    def _too_short(self, table: Table, read: SeriesTable) -> list[Series]:
        """The series that have no window and are left out; refused where that was not asked for."""
        assert self.size is not None
        need, lengths = self.size + self.steps, list(map(len, read.series))
        sizes = f"a window of {self.size} and a horizon of {self.steps}"
        few = [each for each in read.series if len(each) < need]
        if few and (table.on_bad_row != "skip" or len(few) == len(lengths)):
            first = few[0]
            which = f"series {shown(first.name)!r}" if first.name else "the series"
            fits = self.learning and len(first) - self.steps >= SMALLEST_WINDOW
            less = f"; give --window {len(first) - self.steps} or less" if fits else ""
            skip = ", or --on-bad-row skip to leave out short series" if len(few) < len(lengths) else ""
            where = first.where or table.name
            raise UserError(f"{where}: {which} has {len(first)} steps, and {sizes} need {need}{less}{skip}")
        windows = sum(max(0, length - need + 1) for length in lengths)
        if self.learning and windows < FEW:
            some = f"{len(lengths)} series have" if len(lengths) > 1 else f"the series has {lengths[0]} steps, and"
            raise UserError(f"{read.series[0].where}: {some} {sizes} leave {windows} windows; {FEW} are the least")
        return few

    def read_table(
        self, table: Table, begin: Begin[Any], skipped: Skipped, progress: Callable[[int], None] | None = None
    ) -> Iterator[Example]:
        """Windows of every series: all to learn from, or those of a back-test with rolling origins."""
        task = self if self.table is table else self.with_table(table, skipped, progress)
        assert task.series_table is not None and task.size is not None
        size, horizon = task.size, task.steps
        total = sum(max(0, len(each) - size - horizon + 1) for each in task.series_table.series)
        stride = -(-total // MOST_WINDOWS) if self.learning else horizon
        for series in task.series_table.series:
            last = len(series) - (0 if self.soft is not None else horizon)  # a teacher says what follows
            origins = range(last, size - 1, -stride)[: None if self.learning else self.origins]
            for origin in reversed(origins):
                yield task.window_at(series, origin)

    def window_at(self, series: Series, origin: int) -> SeriesWindow:
        """The window before a step."""
        assert self.size is not None
        future = series.values[origin : origin + self.steps, : self.targets]
        where = f"{series.where}{f' series {shown(series.name)!r}' if series.name else ''} step {origin + 1}"
        target = future if len(future) == self.steps else None
        return SeriesWindow((), target, where, series=series, origin=origin, size=self.size)

    def split_at(self, series: Sequence[Series]) -> dict[int, int]:
        """How many of the last steps of each series are held out, by its id(); empty where whole series are.

        None of a series that is too short for it.
        """
        assert self.size is not None
        least = self.size + self.steps
        parts = {}
        for each in series:
            room = len(each) - least - max(1, self.steps // 2)
            held = min(max(round(0.1 * len(each)), 2 * self.steps), room)
            parts[id(each)] = held if held >= self.steps else 0
        return parts if sum(map(bool, parts.values())) > len(parts) / 2 else {}

    def split(self, examples: Sequence[Any], share: float, seed: int) -> tuple[list[int], list[int]]:
        """By time where series are long enough, so that nothing is learned from what comes later; else by series."""
        series = {id(each.series): each.series for each in examples}
        parts = self.split_at(list(series.values()))
        if not parts:
            if len(series) < 5:
                first = next(iter(series.values()))
                needed = (
                    f"a window of {self.size} and a horizon of {self.horizon} need {(self.size or 0) + 3 * self.steps}"
                )
                few = f"{len(first)} steps are too few to hold some out: {needed}"
                raise UserError(f"{first.where}: {few}; give a smaller one, or --dev FILE")
            return split_whole([id(each.series) for each in examples], share, seed)
        train, held = list[int](), list[int]()
        for number, each in enumerate(examples):
            border = len(each.series) - parts[id(each.series)]
            if each.origin + self.steps <= border:
                train.append(number)
            elif each.origin >= border and each.target is not None:
                held.append(number)
        return train, held

    def read_input(self, record: Record, columns: Mapping[str, str]) -> Example:
        raise UserError(f"{record.where}: a series is read from a whole table, not from a row")

    def inputs(self, example: Any) -> Floats:
        return example.history

    def timed_input(self, example: Any) -> Any:
        return example.history[:, 0].tolist() if self.features == 1 else example.history.tolist()

    def to_record(self, example: Any) -> dict[str, Any]:
        return {"value": example.history[:, 0].tolist()}

    # -------------------------------------------------------------------------------------------------------- inputs

    @property
    def expected(self) -> str:
        return "a list of numbers, lists of them, or a table (a data frame, dicts) of series"

    def is_input(self, value: Any) -> bool:
        return not isinstance(value, Mapping) and np.ndim(_array(value)) == (1 if self.features == 1 else 2)

    def check_input(self, where: str, value: Any) -> Floats:
        """The last window of a series, as numbers."""
        name, array = where.removesuffix(": ") or "series", _array(value)
        if self.features > 1:
            numbers = [numbers_of(row, name, self.features) for row in value]
        else:
            numbers = [numbers_of(value if np.ndim(array) != 2 else array.ravel(), name)]
        values = np.array(numbers, dtype=np.float64).reshape(-1, self.features)
        assert self.size is not None
        short = f"{where}a series of {len(values)} steps is shorter than the window of {self.size}"
        refuse((len(values) < self.size, short))
        return values[-self.size :]

    def texts_of(self, value: Any) -> tuple[str, ...]:
        return ()

    def table_inputs(self, table: Table) -> list[Any]:
        """The last window of every series of a table."""
        return [each.history for each in self.last_windows(table, Skipped())]

    def made_up_inputs(self, count: int, seed: int) -> list[Any]:
        """Random walks."""
        steps = np.random.default_rng(seed).normal(size=(count, self.size or 1, self.features))
        walks = steps.cumsum(1) / (self.size or 1) ** 0.5
        return list(walks * np.array(self.spread) + np.array(self.center) if self.center else walks)

    def scale(self, history: Floats) -> tuple[Floats, Floats]:
        """F each: what is subtracted from the numbers of a window, and what they are divided by."""
        if self.center:
            return np.array(self.center), np.array(self.spread)
        spread = history.std(0)
        return history.mean(0), np.where(spread > 1e-9 * np.abs(history).max(0), spread, 1.0)

    def last_windows(self, table: Table, skipped: Skipped, back: int = 0) -> list[SeriesWindow]:
        """The window at the end of every series of a table, or so many steps before it."""
        refuse((back < 0, f"back must be at least 0 steps, not {back}"))
        read = read_series(table, skipped, self.layout)
        self._check_table(table, read, skipped)
        skipped.note(read.about)
        for each in read.series:
            which = f"series {shown(each.name)!r}" if each.name else "the series"
            before = f", {back} of them after the forecast begins" if back else ""
            short = f"{each.where}: {which} has {len(each)} steps{before}, and the model reads a window of {self.size}"
            refuse((len(each) - back < (self.size or 0), short))
        windows = [self.window_at(each, len(each) - back) for each in read.series]
        for window in windows if self.center else ():
            level, usual, spread = window.history[:, 0].mean(), self.center[0], self.spread[0]
            if abs(level - usual) > FAR * spread:
                which = f"series {shown(window.series.name)!r}" if window.series.name else "the series"
                trained = f"was trained on a mean of {usual:.4g} and a deviation of {spread:.4g}"
                skipped.note(f"{window.series.where}: {which} has a mean of {level:.4g}, and the model {trained}")
        return windows


def _array(value: Any) -> Any:
    """An array, or what cannot be one as it is."""
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        return None
