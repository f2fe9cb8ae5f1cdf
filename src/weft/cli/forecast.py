"""`weft forecast`: the next steps of time series, as a table, a file or a page of charts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any

from weft.cli import inputs, late
from weft.cli.options import READING, TABLE, Flags, Folder, Given, Jsonl, Runtime, flag
from weft.errors import UserError, refuse
from weft.files import write_text
from weft.progress import log_notes, to_stderr

CHARTS = 50  # of one page


def forecast(
    folder: Folder,
    table: Annotated[Given, Flags(TABLE, only=("files", *READING, "on_bad_row"))],
    runtime: Runtime,
    out: Annotated[Path | None, flag("Write the forecasts to this .csv, .tsv, .jsonl or .parquet file.")] = None,
    overwrite: Annotated[bool, flag("Replace an --out that is already there.", None, "--overwrite")] = False,
    plot: Annotated[Path | None, flag("Draw history, forecast and interval into this .html file.")] = None,
    back: Annotated[int, flag("Forecast from N steps before the end, beside what came.")] = 0,
    jsonl: Jsonl = False,
) -> None:
    """Forecast time series with a model that weft finetune --task forecast has made.

    The table is long (a row for each time of each series), wide (a column for each series) or has a series in each row;
    --column time=NAME, series=NAME, value=NAME and features=NAME,NAME say which column is what, where that is not
    clear. Each forecast has an interval that was calibrated on held-out windows.

    Example: weft forecast runs/fc --data new.csv --plot forecast.html
    Example: weft forecast runs/fc --data new.csv --column series=store --column value=sales --out forecast.csv
    """
    data = table.pop("files", None)
    if not data:
        raise UserError("no data: give --data FILE")
    refuse(
        (back < 0, f"--back must be 0 or more, not {back}"),
        (plot is not None and plot.suffix != ".html", f"{plot}: a page of charts is written as .html"),
        (overwrite and out is None, "--overwrite is for --out: give --out FILE too"),
    )
    if out is not None:
        late.table_writer.check_table(out, "forecast", overwrite)
    inputs.check_rows(table, data)
    model, skipped = inputs.load_model(folder, **runtime), late.rows.Skipped()
    answers = model.forecasts(inputs.table_of(data, table, split="test"), skipped, back)
    log_notes(skipped.lines(), to_stderr)
    rows = [row for answer, _ in answers for row in answer.rows()]
    if out is not None:
        late.table_writer.write_table(out, rows)
        to_stderr(f"{out}: {len(rows):,} rows")
    if plot is not None:
        _draw(plot, answers)
    if out is None and jsonl:
        for row in rows:
            print(json.dumps(row, ensure_ascii=False))
    elif out is None:
        header = [name for name in rows[0] if name != "series" or any(row["series"] for row in rows)]
        cells = [["" if row[name] is None else _figure(row[name]) for name in header] for row in rows]
        print(inputs.table(header, cells))


def _figure(value: Any) -> str:
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def _draw(plot: Path, answers: list[Any]) -> None:
    """A page with a chart for each series and column."""
    charts = [_chart(answer, window, column) for answer, window in answers for column in range(len(answer.names))]
    note = f"The first {CHARTS} of {len(charts):,}." if len(charts) > CHARTS else ""
    write_text(plot, late.picture.page("Forecast", charts[:CHARTS], note))
    to_stderr(f"{plot}: {min(CHARTS, len(charts))} chart{'s' * (len(charts) > 1)}")


def _chart(forecast: Any, window: Any, column: int) -> str:
    """A figure: the end of the history, the forecast with its interval, and what came where that is known."""
    line = late.picture.ChartLine
    series, origin, ahead = window.series, window.origin, len(forecast.times)
    values = series.values[:, column]
    shown_from = max(0, origin - max(3 * ahead, window.size))
    history = [(float(step), float(values[step])) for step in range(shown_from, origin)]
    last, steps = history[-1], [float(origin + step) for step in range(ahead)]
    lines = [line("history", history, group="history")]
    if forecast.low is not None and forecast.high is not None:
        low, high = ([last, *zip(steps, ends[column], strict=True)] for ends in (forecast.low, forecast.high))
        lines.append(line(f"{100 * forecast.interval:g} % interval", low, group="forecast", faint=True, upper=high))
    truth = [(float(step), float(values[step])) for step in range(origin, min(len(values), origin + ahead))]
    if truth:
        lines.append(line("true", [last, *truth], group="history", dashed=True))
    lines.append(line("forecast", [last, *zip(steps, forecast.values[column], strict=True)], group="forecast"))
    name = " ".join(filter(None, (forecast.series, forecast.names[column])))
    title = f"{name}: {_time(forecast.times[0])} to {_time(forecast.times[-1])}"
    return late.picture.line_chart(
        title, lines, "" if len(series.times) else "step", forecast.names[column],
        label=lambda step: _time(series.shown_time(int(step))),
    )  # fmt: skip


def _time(shown: str) -> str:
    """A time as short as a chart has it: without seconds and zone."""
    return re.sub(r"T(\d\d:\d\d)(:\d\d)?(\.\d+)?([+-]\d\d:\d\d)?$", r" \1", shown)
