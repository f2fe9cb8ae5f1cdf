"""The table of outcomes, one row for each reader."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.table import Column, Table

from tests.hostile.runner import FAULTS, SOUND, Report


def failures_of(report: Report) -> int:
    return sum(count for counts in report.counts.values() for kind, count in counts.items() if kind in FAULTS)


def print_report(report: Report, console: Console | None = None) -> None:
    """Counts by outcome for each reader, the failing cases, and the sum."""
    console = console or Console(width=150)
    table = Table("reader", *[_right(name) for name in ("cases", *SOUND, *FAULTS)], box=None)
    for reader, counts in sorted(report.counts.items()):
        table.add_row(reader, str(counts.total()), *_cells(counts))
    total = sum(report.counts.values(), Counter())
    table.add_section()
    table.add_row("all", str(total.total()), *_cells(total), style="bold")
    console.print(table)
    console.print(
        f"{report.cases:,} cases in {report.seconds:.0f} s; {failures_of(report):,} failures", highlight=False
    )


def _right(name: str) -> Column:
    return Column(name, justify="right")


def _cells(counts: Counter[str]) -> list[str]:
    return [str(counts[kind]) if counts[kind] else "·" for kind in (*SOUND, *FAULTS)]
