"""The figures of `weft bench` as a table, as JSON and as a plot."""

from __future__ import annotations

import io
import math
import os
import re
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.comparison.compare import plain
from weft.errors import UserError
from weft.files import cache_folder, write_bytes, write_json, write_text
from weft.picture.charts import FONT, svg, words

if TYPE_CHECKING:
    from weft.bench.encode import Contestant, EncodeReport

HEADER = ["", "ms", "quartiles", "texts/s", "tokens/s"]
BAR, LEFT, RIGHT = 16, 190, 110  # pixels of a plot: height of a bar, room for names, room for figures


LIBRARY = "* "  # marks other libraries, whose names are similar to those of backends


def table_of(report: EncodeReport) -> tuple[list[str], list[list[str]]]:
    """The header, and for each profile a row per contestant that passed the gate, the fastest first."""
    memory = any(each.memory is not None for each in report.contestants)
    header, rows = [*HEADER, f"x {report.contestants[0].name}", *["MB"] * memory], list[list[str]]()
    shares = any(speed.peak_share is not None for each in report.contestants for speed in each.speeds.values())
    for profile in report.profiles:
        rows.append([profile.name, *[""] * (len(header) - 1 + shares)])
        raced = [each for each in report.contestants if profile.name in each.speeds]
        first = report.contestants[0].speeds[profile.name].seconds
        for contestant in sorted(raced, key=lambda one: one.speeds[profile.name].seconds):
            speed = contestant.speeds[profile.name]
            row = [
                f"{'  ' if contestant.ours else LIBRARY}{contestant.name}",
                _ms(speed.seconds),
                f"{_ms(speed.low)}-{_ms(speed.high)}",
            ]
            row += [f"{speed.texts:,.0f}", f"{speed.tokens:,.0f}", f"{first / speed.seconds:.2f}"]
            row += ["" if contestant.memory is None else f"{contestant.memory / 1e6:.0f}"] if memory else []
            row += ["" if speed.peak_share is None else f"{speed.peak_share:.1%}"] if shares else []
            rows.append(row)
    return header + ["of peak"] * shares, rows


def values_of(report: EncodeReport) -> dict[str, Any]:
    """The figures as JSON values."""
    profiles = {}
    for profile in report.profiles:
        raced = {
            each.name: asdict(each.speeds[profile.name]) for each in report.contestants if profile.name in each.speeds
        }
        about = {"texts": len(profile.inputs), "batch": profile.batch, "tokens": profile.tokens}
        profiles[profile.name] = {**about, "speeds": raced}
    return plain(
        {
            "mode": report.mode,
            **{"model": report.model, "machine": report.machine, "profiles": profiles},
            "refused": {each.name: each.refused for each in report.contestants if each.refused is not None},
            "memory": {each.name: each.memory for each in report.contestants if each.memory is not None},
            "choice": None if report.choice is None else asdict(report.choice),
        }
    )


def _ms(seconds: float) -> str:
    """Milliseconds with three digits."""
    value = 1e3 * seconds
    return f"{value:.{max(0, 2 - math.floor(math.log10(max(value, 1e-9))))}f}" if value < 100 else f"{value:.0f}"


Bars = list[tuple[str, list[tuple[str, float, bool]]]]  # by profile: name, tokens a second, whether it is the best


def bars_of(report: EncodeReport) -> Bars:
    bars: Bars = []
    for profile in report.profiles:
        raced: list[Contestant] = [each for each in report.contestants if profile.name in each.speeds]
        best = min(raced, key=lambda each: each.speeds[profile.name].seconds)
        bars.append((profile.name, [(each.name, each.speeds[profile.name].tokens, each is best) for each in raced]))
    return bars


def check_plot(path: Path | None) -> None:
    """Refuse a plot that cannot be written, before anything is measured."""
    if path is not None and path.suffix not in (".svg", ".png"):
        raise UserError(f"{path}: a plot is written as .svg or .png")
    if path is not None and path.suffix == ".png":
        _matplotlib()


def write_plot(path: Path, title: str, bars: Bars) -> None:
    """Horizontal bars of tokens per second, a group for each profile; SVG is drawn here, PNG by matplotlib."""
    if path.suffix == ".png":
        _write_png(path, title, bars)
        return
    width, drawn, y = 760, [words(0, FONT + 2, title, 760, 'font-weight="bold"')], 34.0
    for name, group in bars:
        most = max(value for _, value, _ in group)
        drawn.append(words(0, y, f"{name}: tokens/s", width))
        for label, value, best in group:
            y += BAR + 4
            size = (width - LEFT - RIGHT) * value / most
            shade = "1" if best else "0.45"
            drawn.append(words(0, y - 3, label, LEFT - 8))
            drawn.append(
                f'<rect x="{LEFT}" y="{y - BAR + 1:.1f}" width="{size:.1f}" height="{BAR}" fill="#3366aa" '
                f'fill-opacity="{shade}"/>'
            )
            drawn.append(words(LEFT + size + 6, y - 3, f"{value:,.0f}", RIGHT))
        y += 2 * BAR
    write_text(path, svg(title, width, y, drawn) + "\n")


def _matplotlib() -> Any:
    os.environ.setdefault("MPLCONFIGDIR", str(cache_folder() / "matplotlib"))
    try:
        return import_module("matplotlib.figure").Figure
    except ImportError:
        raise UserError("a plot as .png needs matplotlib: pip install 'weft[look]', or write it as .svg") from None


def _write_png(path: Path, title: str, bars: Bars) -> None:
    sizes = [len(group) + 1 for _, group in bars]
    figure = _matplotlib()(figsize=(8, 0.5 + 0.35 * sum(sizes)), layout="constrained")
    axes = figure.subplots(len(bars), 1, squeeze=False, height_ratios=sizes)[:, 0]
    for axis, (name, group) in zip(axes, bars, strict=True):
        labels, values = [label for label, _, _ in group], [value for _, value, _ in group]
        axis.barh(labels, values, color=["#3366aa" if best else "#a9bcd9" for _, _, best in group])
        axis.bar_label(axis.containers[0], labels=[f"{value:,.0f}" for value in values], padding=3)
        axis.set_title(f"{name}: tokens/s", loc="left", fontsize=10)
        axis.set_xlim(0, 1.15 * max(values))  # room for the figures
        axis.invert_yaxis()
        axis.xaxis.set_visible(False)
        axis.spines[:].set_visible(False)
        axis.tick_params(length=0)
    figure.suptitle(re.sub(r"([$\\])", r"\\\1", title), fontsize=11)  # no formulas
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    write_bytes(path, buffer.getvalue())


def write_values(path: Path, values: dict[str, Any]) -> None:
    write_json(path, values)
