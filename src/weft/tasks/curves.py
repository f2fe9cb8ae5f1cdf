"""Loss curves of several runs on one page, from the records in their folders."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weft.errors import UserError
from weft.files import read_json, write_text
from weft.picture import Line, Point, line_chart, page, table
from weft.training.log import time_left
from weft.training.run import Run


def write_curves(folders: Sequence[Path], out: Path) -> None:
    """One self-contained page: training and held-out loss by step and by tokens, rates, and a table of the ends."""
    runs = {}
    for folder in folders:
        run = Run(folder)
        if not run.metrics.is_file():
            raise UserError(f"{str(folder)!r} is not a run folder: it has no run/metrics.jsonl")
        runs[str(folder)] = run.lines()
    charts = [
        line_chart("Loss by step", _losses(runs, "step"), "step", "loss"),
        line_chart("Loss by tokens read", _losses(runs, "tokens"), "tokens", "loss"),
        line_chart("Learning rate", _lines(runs, "rate"), "step", "rate"),
        line_chart("Length of the gradient", _lines(runs, "norm"), "step", "norm", log_y=True),
    ]
    header = ["run", "model", "steps", "tokens", "loss", "held-out loss", "at step", "perplexity", "time", "tokens/s"]
    rows = [_row(Path(name), lines) for name, lines in runs.items()]
    title = f"Run {folders[0].name}" if len(folders) == 1 else f"{len(folders)} runs"
    write_text(out, page(title, [table(header, rows), *charts]))


def _losses(runs: dict[str, list[dict[str, Any]]], by: str) -> list[Line]:
    found = []
    for name, lines in runs.items():
        tokens = {line["step"]: line["tokens"] for line in lines if "tokens" in line}
        at = {line["step"]: line["step"] if by == "step" else tokens.get(line["step"]) for line in lines}
        places = {step: place for step, place in at.items() if place is not None}

        def points(key: str, lines: list[dict[str, Any]] = lines, at: dict[int, int] = places) -> list[Point]:
            return [(at[line["step"]], line[key]) for line in lines if key in line and line["step"] in at]

        judged = points("validation_loss")
        found.append(Line(f"{name}: training", points("loss"), group=name, faint=bool(judged)))
        if judged:
            found.append(Line(f"{name}: held out", judged, group=name))
    return found


def _lines(runs: dict[str, list[dict[str, Any]]], key: str) -> list[Line]:
    return [
        Line(name, [(line["step"], line[key]) for line in lines if key in line], group=name)
        for name, lines in runs.items()
    ]


def _row(folder: Path, lines: list[dict[str, Any]]) -> list[str]:
    about = read_json(Run(folder).about) if Run(folder).about.exists() else {}
    train = [line for line in lines if "loss" in line]
    judged = [line for line in lines if "validation_loss" in line]
    last = train[-1] if train else {}
    best = min(judged, key=lambda line: line["validation_loss"], default={})
    words = best.get("validation_words")
    return [
        str(folder),
        f"{about.get('parameters', 0):,} parameters",
        f"{last.get('step', 0):,}",
        f"{last.get('tokens', 0):,}",
        f"{last['loss']:.4f}" if last else "",
        f"{best['validation_loss']:.4f}" if best else "",
        f"{best['step']:,}" if best else "",
        f"{math.exp(min(words, 99)):.2f}" if words is not None else "",
        time_left(last.get("seconds", 0)),
        f"{last.get('tokens_per_second', 0):,}",
    ]
