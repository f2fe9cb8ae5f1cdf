"""Time series from tables: which columns are what, the order of steps, and what is refused."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from weft.data.series import Series, SeriesTable, read_series, season_of
from weft.data.tables import Table
from weft.errors import UserError
from weft.text.rows import Skipped


def read(data: Any, columns: dict[str, str] | None = None, **options: Any) -> SeriesTable:
    return read_series(Table(data, columns or {}, **options), Skipped())


def write(folder: Path, text: str, name: str = "series.csv") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


LONG = [
    {"date": f"2024-01-{day:02d}", "store": store, "sales": base + day, "price": 9.5}
    for day in (3, 1, 2, 4)
    for store, base in (("a", 10), ("b", 100))
]


def test_long_rows_are_sorted_by_time_and_parted_by_series() -> None:
    table = read(LONG)
    assert table.layout.kind == "long" and table.layout.series == ("store",) and table.layout.time == "date"
    assert table.layout.values == ("sales",)
    assert {each.name: each.values[:, 0].tolist() for each in table.series} == {
        "a": [11, 12, 13, 14],
        "b": [101, 102, 103, 104],
    }
    assert table.series[0].shown_time(4) == "2024-01-05" and "one step per day" in table.about


def test_values_and_features_by_name_are_one_series_with_several_numbers() -> None:
    table = read(LONG, {"value": "sales", "features": "price"})
    assert table.series[0].values.tolist() == [[11, 9.5], [12, 9.5], [13, 9.5], [14, 9.5]]
    both = read(LONG, {"value": "sales,price"})
    assert both.layout.values == ("sales", "price") and not both.layout.apart


def test_a_wide_table_has_a_series_in_each_column(tmp_path: Path) -> None:
    rows = "".join(f"{month:02d}/2021;{month},5;{2 * month}\n" for month in range(1, 13))
    table = read(write(tmp_path, "month;north;south\n" + rows))
    assert table.layout.kind == "wide" and table.layout.apart
    assert [each.name for each in table.series] == ["north", "south"]
    assert table.series[0].values[0, 0] == 1.5 and table.series[1].values[-1, 0] == 24
    assert table.series[0].shown_time(12) == "01/2022" and table.series[0].shown_time(13) == "02/2022"


@pytest.mark.parametrize("header", [True, False])
def test_rows_of_numbers_are_series(tmp_path: Path, header: bool) -> None:
    names = ",".join(f"t{n}" for n in range(10)) + "\n"
    rows = "".join(",".join(f"{n / 10 + row:.2f}" for n in range(10)) + "\n" for row in range(3))
    table = read(write(tmp_path, names * header + rows))
    assert table.layout.kind == "rows" and len(table.series) == 3 and len(table.series[0]) == 10
    assert table.series[2].values[:2, 0].tolist() == [2.0, 2.1]


def test_lists_in_rows_are_series() -> None:
    table = read([{"id": "a", "values": [1.0, 2.0, 3.0]}, {"id": "b", "values": [4, 5]}])
    assert [(each.name, len(each)) for each in table.series] == [("a", 3), ("b", 2)]


@pytest.mark.parametrize(
    "times, after",
    [
        (["2024-01-31", "2024-02-29", "2024-03-31"], "2024-04-30"),
        (["31.12.2023", "01.01.2024", "02.01.2024"], "03.01.2024"),
        (["2024-01-01T10:00", "2024-01-01T10:15", "2024-01-01T10:30"], "2024-01-01T10:45:00"),
        (["1990", "1991", "1992"], "1993"),
        (["2020-01-01", "2020-04-01", "2020-07-01"], "2020-10-01"),
        (["2023-12-31", "2024-01-31", "2024-02-29"], "2024-03-31"),
        (["2024-01-31", "2024-02-29", "2024-03-28", "2024-04-30", "2024-05-31"], "2024-06-30"),  # trading days
        (["1999 Q3", "1999 Q4", "2000 Q1"], "2000 Q2"),
        (["Q3/1999", "Q4/1999", "Q1/2000"], "Q2/2000"),
        (["1991 Nov", "1991 Dec", "1992 Jan"], "1992 Feb"),
        (["Nov-99", "Dec-99", "Jan-00"], "Feb-00"),
        (["Nov 1 1999", "Dec 1 1999", "Jan 1 2000"], "Feb 01 2000"),
        (["Dec 30, 1999", "Dec 31, 1999", "Jan 1, 2000"], "Jan 02, 2000"),
        (["30-Dec-1999", "31-Dec-1999", "01-Jan-2000"], "02-Jan-2000"),
        (["1/2/2024 10:00:00 PM", "1/2/2024 11:00:00 PM", "1/3/2024 12:00:00 AM"], "01/03/2024 01:00:00 AM"),
        (["1700000000000", "1700000060000", "1700000120000"], "1700000180000"),
    ],
)
def test_times_go_on(times: list[str], after: str) -> None:
    table = read([{"date": time, "value": number} for number, time in enumerate(times)])
    assert table.series[0].shown_time(len(times)) == after


def test_weekdays_have_no_gap_at_a_weekend() -> None:
    days = [f"2024-01-{day:02d}" for day in range(1, 27) if (day - 1) % 7 < 5]
    table = read([{"date": day, "close": 1.0 * n} for n, day in enumerate(days)])
    assert table.series[0].shown_time(len(days)) == "2024-01-29" and "weekday" in table.about


BAD = {
    "time,value\n1,1\n2,\n3,3\n": r"line 3: column 'value' is empty",
    "time,value\n1,1\n2,abc\n3,3\n4,4\n5,4\n6,4\n": r"line 3: column 'value' holds 'abc', not a number",
    "date,value\n2024-01-01,1\n2024-01-02,2\n2024-01-03,2\n2024-01-05,3\n": r"line 5: column 'date'.*1 missing",
    "date,value\n2024-01-01,1\n2024-01-02,2\n2024-01-02,3\n": r"line 4: column 'date' has a time that another row has",
    "date,shipped,value\n2024-01-01,2024-01-03,1\n2024-01-02,2024-01-04,2\n": r"2 time columns, date, shipped.*--col",
    "date,value\n2024-01-01,1\nyesterday,2\n2024-01-03,1\n": r"line 3: column .date. holds .yesterday.",
    "date,store,a,b\n2024-01-01,x,1,2\n2024-01-02,x,1,2\n2024-01-01,y,1,2\n2024-01-02,y,1,2\n": r"which one is",
    "name,word\nx,one\ny,two\n": r"no column of numbers",
}


@pytest.mark.parametrize("text", BAD, ids=range(len(BAD)))
def test_what_is_wrong_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match=BAD[text]) as error:
        read(write(tmp_path, text))
    assert "\n" not in str(error.value)


def test_gaps_are_interpolated_on_request(tmp_path: Path) -> None:
    path = write(tmp_path, "date,value\n2024-01-01,1\n2024-01-02,\n2024-01-03,3\n2024-01-04,4\n2024-01-06,8\n")
    table = read(path, on_bad_row="skip")
    assert table.series[0].values[:, 0].tolist() == [1, 2, 3, 4, 6, 8]
    assert table.series[0].shown_time(4) == "2024-01-05"


def test_a_column_that_is_not_there_is_named() -> None:
    with pytest.raises(UserError, match="no column 'slaes'.*did you mean 'sales'"):
        read(LONG, {"value": "slaes"})


def hourly(count: int, begin: str = "2024-03-30T00:00+00:00", zone: str = "Europe/Berlin") -> list[str]:
    first = datetime.fromisoformat(begin)
    return [(first + timedelta(hours=n)).astimezone(ZoneInfo(zone)).isoformat() for n in range(count)]


def test_no_hour_is_lost_where_clocks_are_changed() -> None:
    table = read([{"time": time, "kwh": 1.0 * n} for n, time in enumerate(hourly(60))])
    assert table.series[0].shown_time(60) == "2024-04-01T14:00:00+02:00" and "one step per hour" in table.about
    days = [f"2024-03-{day}T00:00:00+0{1 + (day > 30)}:00" for day in range(25, 32)]
    table = read([{"time": day, "kwh": 1.0 * n} for n, day in enumerate(days)])
    assert table.series[0].shown_time(7) == "2024-04-01" and "one step per day" in table.about


@pytest.mark.parametrize(
    "text, after",
    [
        ("year,month,rain\n2023,11,5\n2023,12,6\n2024,1,7\n", "2024-02"),
        ("Year,Month,Day,rain\n2023,12,30,5\n2023,12,31,6\n2024,1,1,7\n", "2024-01-02"),
        ("date,time,kwh\n2024-01-01,22:00,5\n2024-01-01,23:00,6\n2024-01-02,00:00,7\n", "2024-01-02T01:00:00"),
        ("date,hour,kwh\n01.02.2024,8,5\n01.02.2024,9,6\n01.02.2024,10,7\n", "01.02.2024 11:00"),
        ("date,kwh\n20240130,5\n20240131,6\n20240201,7\n", "20240202"),
        ("2024-01-30,5\n2024-01-31,6\n2024-02-01,7\n", "2024-02-02"),
        ("1.5\n2.5\n7\n", "4"),
        ("date,kwh\n2024-01-30,5\n2024-01-31,6\n2024-02-01,7\nTotal,18\n", "2024-02-02"),
        ("date;kwh\n30.01.2024;1.005,5\n31.01.2024;1.006,5\n01.02.2024;7,0\n", "02.02.2024"),
        ("year,quarter,gdp\n1999,3,5\n1999,4,6\n2000,1,7\n", "2000 Q2"),
        ("1,5\n2,6\n3,7\n", "4"),
        (",0\n1821,5\n1822,6\n1823,7\n", "1824"),
        ("Obs,year,gdp\n1,1999,5\n2,2000,6\n3,2001,7\n", "2002"),
        ('date,cost\n2024-01-30,"$1,000.50"\n2024-01-31,$6.5\n2024-02-01,$7\n', "2024-02-02"),
        ("date,rate\n2024-01-30,5.5%\n2024-01-31,6 %\n2024-02-01,7%\n", "2024-02-02"),
    ],
    ids=range(15),
)
def test_tables_as_people_have_them(tmp_path: Path, text: str, after: str) -> None:
    table = read(write(tmp_path, text))
    assert len(table.series) == 1 and len(table.series[0]) == 3 and table.series[0].values[2, 0] == 7
    assert table.series[0].shown_time(3) == after


def test_a_row_without_a_time_is_left_out_on_request_alone(tmp_path: Path) -> None:
    rows = ["2024-01-01,1", "soon,2", "2024-01-02,x", "2024-01-03,3", "2024-01-04,4", "2024-01-05,5"]
    path = write(tmp_path, "date,value\n" + "\n".join(rows) + "\n")
    with pytest.raises(UserError, match="line 3: column 'date' holds 'soon'"):
        read(path)
    skipped = Skipped()
    table = read_series(Table(path, {"value": "value"}, on_bad_row="skip"), skipped)
    assert table.series[0].values[:, 0].tolist() == [1, 2, 3, 4, 5] and skipped.count == 1  # x is interpolated
    assert "1 missing step filled by interpolation" in skipped.lines()


def test_a_column_for_each_year_or_month(tmp_path: Path) -> None:
    years = range(1990, 2000)
    rows = ["Peru," + ",".join(map(str, range(10))), "Chad,,," + ",".join(map(str, range(8)))]
    table = read(write(tmp_path, "\n".join([f"country,{','.join(map(str, years))}", *rows]) + "\n"))
    assert [(each.name, len(each), each.shown_time(len(each))) for each in table.series] == [
        ("Peru", 10, "2000"), ("Chad", 8, "2000"),
    ]  # fmt: skip
    months = [{"item": "x", **{f"2024-{month:02d}": month for month in range(1, 10)}}]
    assert read(months).series[0].shown_time(9) == "2024-10"
    months[0].pop("2024-05")
    with pytest.raises(UserError, match=r"column '2024-06': 2024-06 follows 2024-04, with one step per month: 1 miss"):
        read(months)
    hole = [{f"t{n}": n for n in range(9)}, {f"t{n}": None if n == 4 else n for n in range(9)}]
    with pytest.raises(UserError, match="column 't4' is empty"):
        read(hole)
    assert read(hole, on_bad_row="skip").series[1].values[:, 0].tolist() == list(range(9))


def test_numbers_name_series_where_times_repeat() -> None:
    rows = [{"Store": s, "Dept": d, "Date": f"2024-01-{day:02d}", "Sales": day * s + d}
            for s in (1, 2) for d in (7, 8) for day in range(1, 9)]  # fmt: skip
    assert [each.name for each in read(rows).series] == ["1 7", "1 8", "2 7", "2 8"]


def test_a_time_that_comes_twice_is_left_out_on_request(tmp_path: Path) -> None:
    lines = [f"2024-10-27 {hour:02d}:00,{hour}" for hour in range(20)]  # clocks are set back at 3
    path = write(tmp_path, "\n".join(["time,kwh", *lines[:3], lines[2], *lines[3:]]) + "\n")
    with pytest.raises(UserError, match="line 5: column 'time' has a time that another row has too"):
        read(path)
    assert len(read(path, on_bad_row="skip").series[0]) == 20


def test_times_that_are_not_read_are_noted() -> None:
    skipped = Skipped()
    read_series(Table([{"date": f"day {n} of spring", "value": n} for n in range(9)]), skipped)
    assert any("column 'date' holds 'day 0 of spring', not a date" in line for line in skipped.lines())


def test_cycles_of_changing_length_are_no_long_season() -> None:
    def cycle(seed: int) -> Series:
        chance = np.random.default_rng(seed)
        turns = np.cumsum((1 + 0.4 * chance.normal(size=300)) / 10.7)
        return Series("", (np.sin(2 * np.pi * turns) + 0.2 * chance.normal(size=300))[:, None])

    seasons = [season_of([cycle(seed)]) for seed in range(20)]
    assert max(seasons) <= 14 and sum(9 <= season <= 12 for season in seasons) >= 14


def test_seasons_are_found() -> None:
    chance, steps = np.random.default_rng(0), np.arange(400)
    weekly = 10 * np.sin(2 * np.pi * steps / 7) + 0.05 * steps + chance.normal(size=400)
    assert season_of([Series("", weekly[:, None])]) == 7
    slow = np.sin(2 * np.pi * steps / 50) + 0.2 * chance.normal(size=400)  # its changes are nearly noise
    assert season_of([Series("", slow[:, None])]) == 50
    noisy = [np.sin(2 * np.pi * (steps + 3 * n) / 24) + 0.3 * chance.normal(size=400) for n in range(5)]
    assert season_of([Series("", each[:, None]) for each in noisy]) == 24


def test_what_does_not_repeat_has_no_season() -> None:
    chance = np.random.default_rng(0)
    for steps in (60, 400):
        walks = [season_of([Series("", chance.normal(size=(steps, 1)).cumsum(0))]) for _ in range(50)]
        assert sum(season > 1 for season in walks) <= 7
    assert season_of([Series("", np.arange(9.0)[:, None])]) == 1
