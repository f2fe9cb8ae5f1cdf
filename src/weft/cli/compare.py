"""`weft evaluate` and `weft compare`: one model, or several, on the same rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from weft.cli.checks import check_device, check_models, check_rows
from weft.cli.inputs import best_device, load_model
from weft.cli.options import Folder, Given, Json, LabeledRows, Runtime
from weft.cli.show import leaving_at_once, progress, table
from weft.errors import UserError, escaped


def _check_rows(rows: Given) -> list[str] | None:
    data = rows.pop("files", None)
    if not (data or rows.get("source") or rows.get("target")):
        raise UserError("no data: give --data FILE, or --source and --target for models that write")
    check_rows(rows, data, rows.get("source"), rows.get("target"))
    return data


def evaluate(
    folder: Folder,
    rows: LabeledRows,
    runtime: Runtime,
    beam_size: Annotated[int | None, typer.Option(help="Beam size of a model that writes. Default: 5.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write an HTML page with all tables.")] = None,
    as_json: Json = False,
) -> None:
    """Evaluate a model on labeled data: scores with intervals, a table by label, and the worst mistakes.

    Example: weft evaluate runs/reviews --data test.csv

    Example: weft evaluate runs/en-de --source test.en --target test.de
    """
    data = _check_rows(rows)
    report = load_model(folder, **runtime).evaluate(data, beam_size=beam_size, **rows, progress=progress)
    if out is not None:
        report.write(out)
    if as_json:
        print(json.dumps(report.values(), indent=2, ensure_ascii=False))
        return
    print(escaped(f"{report.data}: {report.reading}"))
    if report.signature:
        print(f"BLEU: {report.signature}")
    for title, header, cells in report.tables():
        print(f"\n{title}\n{table(header, cells)}")


def compare(
    folders: Annotated[
        list[str], typer.Argument(metavar="MODEL...", help="Model folders; all are compared with the first.")
    ],
    rows: LabeledRows,
    runtime: Runtime,
    task: Annotated[
        str | None, typer.Option(metavar="TASK", help="The task of models that have several: embed.")
    ] = None,
    max_drop: Annotated[
        float | None, typer.Option(metavar="POINTS", help="Refuse a model whose score is lower by more than this.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write an HTML page with tables and charts, or all figures as .json.")
    ] = None,
    as_json: Json = False,
    texts: Annotated[int, typer.Option(help="Texts to time at most; all are evaluated.")] = 256,
    seconds: Annotated[float, typer.Option(metavar="SECONDS", help="Time limit of each speed measurement.")] = 20.0,
    costs: Annotated[bool, typer.Option(help="Also measure size, speed and memory.")] = True,
    memory: Annotated[bool, typer.Option(help="Measure memory, with each model in a process of its own.")] = True,
) -> None:
    """Compare models on the same data: scores with paired intervals, agreement, size, speed, memory.

    The exit status is 2, with a line for the first fault, when a model is damaged (answers that are not finite, other
    labels, one answer for everything, or no better than chance) or loses more than --max-drop.

    Example: weft compare runs/reviews runs/reviews-small --data test.csv --out compare.html

    Example: weft compare runs/translator runs/translator-small --source test.en --target test.de
    """
    data = _check_rows(rows)
    check_device(runtime.get("device"))
    check_models(folders, runtime.get("online", False))
    with leaving_at_once():
        from weft.comparison.compare import compare as run

    report = run(
        folders, data, task=task, max_drop=max_drop, costs=costs, memory=memory, texts=texts, seconds=seconds,
        **rows, **{"device": best_device(), **runtime}, progress=progress,
    )  # fmt: skip
    if out is not None and out.suffix == ".json":
        from weft.files import write_json

        write_json(out, report.values())
    elif out is not None:
        report.write(out)
    if as_json:
        print(json.dumps(report.values(), indent=2, ensure_ascii=False))
    else:
        print(escaped(f"{report.data}: {report.reading}"))
        if not report.labeled:
            print("The data has no labels: models are only compared with the first.")
        for title, header, cells in report.tables():
            print(f"\n{title}\n{table(header, cells)}")
            if title.startswith("Costs") and report.measured is not None:
                print(report.measured)
    if report.refused:
        more = f" ({len(report.refused) - 1} more)" if len(report.refused) > 1 else ""
        raise UserError(report.refused[0] + more)
