"""The charts and tables of reports in a browser: values under the mouse and by keys, hidden lines, sorted tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.explain.browser import NARROW, Browser, fits, settle
from weft.picture import Bar, ChartLine, bar_chart, heat_map, line_chart, page, table


def report(path: Path) -> Path:
    lines = [
        ChartLine("training", [(step, 5 / (1 + step / 10)) for step in range(0, 100, 5)]),
        ChartLine("held out", [(step, 4.0) for step in range(0, 100, 10)], dashed=True),
        ChartLine("scatter", [(1, 1), (2, 2)], joined=False),
    ]
    parts = [
        line_chart("Loss by step", lines, "step", "nats"),
        line_chart("Empty", [], "step", "nats"),
        bar_chart("F1", [Bar("a", 0.5, 0.4, 0.6)], "F1"),
        table(["model", "size"], [["small", "900"], ["large", "3.5M"], ["middle", "12k"], ["none", "?"]]),
        heat_map("Confusion", ["a"], ["b"], [[0.9]], [["9"]]),
    ]
    path.write_text(page("Report", parts), encoding="utf-8")
    return path


def first_cells(shown: Any) -> list[str]:
    return [row.split("\t")[0] for row in shown.inner_text("tbody").splitlines()]


def test_a_chart_tells_its_values(browser: Browser, tmp_path: Path) -> None:
    with browser.open(report(tmp_path / "report.html")) as shown:
        shown.focus("svg.wide >> nth=0")
        shown.keyboard.press("ArrowRight")
        assert shown.inner_text("#tooltip").splitlines() == ["step 0", "training: nats 5", "held out: nats 4"]
        shown.keyboard.press("ArrowRight")
        assert shown.inner_text("#tooltip").splitlines() == ["step 5", "training: nats 3.3333"]
        shown.click("text=training")
        shown.focus("svg.wide >> nth=0")
        shown.keyboard.press("ArrowRight")
        assert shown.inner_text("#tooltip").splitlines() == ["step 0", "held out: nats 4"]
        assert not shown.is_visible("svg.wide >> nth=0 >> path[data-line='0']")
        shown.click("text=training")
        shown.hover("svg.wide >> nth=0", position={"x": 40, "y": 100})
        assert "training: nats 5" in shown.inner_text("#tooltip")


def test_a_table_is_sorted_by_numbers(browser: Browser, tmp_path: Path) -> None:
    with browser.open(report(tmp_path / "report.html"), width=NARROW, dark=True) as shown:
        settle(shown)
        assert fits(shown) and first_cells(shown) == ["small", "large", "middle", "none"]
        orders = []
        for _ in range(3):
            shown.click("th button >> nth=1")
            orders.append(first_cells(shown))
        assert orders[0] == ["large", "middle", "small", "none"] and orders[1] == ["small", "middle", "large", "none"]
        assert orders[2] == ["small", "large", "middle", "none"]
        shown.click("th button >> nth=0")
        assert first_cells(shown) == ["large", "middle", "none", "small"]
