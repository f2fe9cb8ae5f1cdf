"""`weft evaluate`, `compare`, `prune`, `quantize`, `export`: models measured, made smaller, or for another engine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from weft.cli.inputs import (
    best_device,
    check_choices,
    check_device,
    check_models,
    check_rows,
    check_written,
    load_model,
)
from weft.cli.options import READING, TABLE, Flags, Folder, Given, Json, LabeledRows, Opening, OutFolder, Runtime
from weft.cli.show import leaving_at_once, progress, table
from weft.config import comma_list
from weft.errors import UserError, escaped


def _rows(rows: Given, *more: Any, needed: bool = False) -> Given:
    """The options of a table as functions take them, with its files as `data`, all of them there."""
    data, sides = rows.pop("files", None), (rows.get("source"), rows.get("target"))
    if needed and not (data or any(sides)):
        raise UserError("no data: give --data FILE, or --source and --target for models that write")
    check_rows(rows, data, *more, *sides)
    return {"data": data, **rows}


def _print_report(report: Any, as_json: bool, *lines: str, measured: Any = None) -> None:
    """A report as JSON, or these lines and its tables."""
    if as_json:
        print(json.dumps(report.values(), indent=2, ensure_ascii=False))
        return
    for line in lines:
        print(line)
    for title, header, cells in report.tables():
        print(f"\n{title}\n{table(header, cells)}")
        if title.startswith("Costs") and measured is not None:
            print(measured)


def evaluate(
    folder: Folder,
    rows: LabeledRows,
    runtime: Runtime,
    beam_size: Annotated[int | None, Option(help="Beam size of a model that writes. Default: 5.")] = None,
    out: Annotated[Path | None, Option(help="Write an HTML page with all tables.")] = None,
    as_json: Json = False,
) -> None:
    """Evaluate a model on labeled data: scores with intervals, a table by label, and the worst mistakes.

    Example: weft evaluate runs/reviews --data test.csv

    Example: weft evaluate runs/en-de --source test.en --target test.de
    """
    rows = _rows(rows, needed=True)
    report = load_model(folder, **runtime).evaluate(beam_size=beam_size, **rows, progress=progress)
    if out is not None:
        report.write(out)
    signature = [f"BLEU: {report.signature}"] if report.signature else []
    _print_report(report, as_json, escaped(f"{report.data}: {report.reading}"), *signature)


def compare(
    folders: Annotated[list[str], Argument(metavar="MODEL...", help="Model folders; all are compared with the first.")],
    rows: LabeledRows,
    runtime: Runtime,
    task: Annotated[str | None, Option(metavar="TASK", help="The task of models that have several: embed.")] = None,
    max_drop: Annotated[
        float | None, Option(metavar="POINTS", help="Refuse a model whose score is lower by more than this.")
    ] = None,
    out: Annotated[
        Path | None, Option(help="Write an HTML page with tables and charts, or all figures as .json.")
    ] = None,
    as_json: Json = False,
    texts: Annotated[int, Option(help="Texts to time at most; all are evaluated.")] = 256,
    seconds: Annotated[float, Option(metavar="SECONDS", help="Time limit of each speed measurement.")] = 20.0,
    costs: Annotated[bool, Option(help="Also measure size, speed and memory.")] = True,
    memory: Annotated[bool, Option(help="Measure memory, with each model in a process of its own.")] = True,
) -> None:
    """Compare models on the same data: scores with paired intervals, agreement, size, speed, memory.

    The exit status is 2, with a line for the first fault, when a model is damaged (answers that are not finite, other
    labels, one answer for everything, or no better than chance) or loses more than --max-drop.

    Example: weft compare runs/reviews runs/reviews-small --data test.csv --out compare.html

    Example: weft compare runs/translator runs/translator-small --source test.en --target test.de
    """
    rows = _rows(rows, needed=True)
    check_device(runtime.get("device"))
    check_models(folders, runtime.get("online", False))
    with leaving_at_once():
        from weft.comparison.compare import compare as run

    report = run(
        folders, task=task, max_drop=max_drop, costs=costs, memory=memory, texts=texts, seconds=seconds,
        **rows, **{"device": best_device(), **runtime}, progress=progress,
    )  # fmt: skip
    if out is not None:
        report.write(out)
    unlabeled = [] if report.labeled else ["The data has no labels: models are only compared with the first."]
    _print_report(report, as_json, escaped(f"{report.data}: {report.reading}"), *unlabeled, measured=report.measured)
    if report.refused:
        more = f" ({len(report.refused) - 1} more)" if len(report.refused) > 1 else ""
        raise UserError(report.refused[0] + more)


Seconds = Annotated[float, Option(help="Time limit of each speed measurement.", metavar="SECONDS")]
Kinds = "onnx-fp32, onnx-fp16, onnx-int8, onnx-int8-static, onnx-int4, ctranslate2-fp32, ctranslate2-int8, bf16"


def prune(
    folder: Folder,
    rows: LabeledRows,
    runtime: Runtime,
    options: Annotated[Given, Flags("weft.pruning.options:PruneOptions")],
    out: Annotated[Path | None, Option(metavar="FOLDER", help="Model folder to write, new or empty.")] = None,
    as_json: Json = False,
) -> None:
    """Remove layers, heads or tokens from a model, and measure the loss.

    With fewer layers or tokens transformers still opens the folder; with fewer heads only Weft does. weft finetune or
    weft distill recover part of the loss.

    Example: weft prune runs/reviews --layers 6 --heads 0.3 --data dev.csv --max-drop 1 --out runs/reviews-pruned

    Example: weft prune runs/reviews --vocabulary 8000 --text unlabeled.txt --out runs/reviews-8k
    """
    from weft.pruning.options import PruneOptions

    PruneOptions(**options).check(rows=bool({"files", "source", "target"} & set(rows)))
    check_written(folder, out, runtime.get("online", False))
    rows = _rows(rows, options.get("text"))
    with leaving_at_once():
        from weft.pruning.prune import prune as run

    report = run(folder, out=out, **options, **rows, **{"device": best_device(), **runtime}, progress=progress)
    _print_report(report, as_json, *report.lines())


def quantize(
    folder: Folder,
    out: OutFolder,
    rows: Annotated[Given, Flags(TABLE, only=("files", "source", "target", *READING))],
    runtime: Opening,
    max_drop: Annotated[
        float, Option(metavar="POINTS", help="Largest loss of score: 0.5 is from 0.920 to 0.915.")
    ] = 0.5,
    prefer: Annotated[str, Option(metavar="[fast|small]", help="Which of the candidates that pass to write.")] = "fast",
    kinds: Annotated[str | None, Option(metavar="A,B,...", help=f"Candidates, of {Kinds}.")] = None,
    texts: Annotated[int, Option(help="Texts to time at most; all are evaluated.")] = 256,
    seconds: Seconds = 20.0,
) -> None:
    """Make a model smaller and faster, if it stays as good.

    Each candidate is evaluated on your data and timed beside the model. It is refused when it loses more than
    --max-drop points and the paired 95 % interval of the loss lies above --max-drop too; a loss within noise passes,
    with a warning. The fastest of those that pass (with --prefer small, the smallest) is written. When none passes,
    nothing is written and the exit status is 2. The folder has a report in run/quantize.html.

    Example: weft quantize runs/reviews --data dev.csv --max-drop 0.5 --out runs/reviews-int8
    """
    check_written(folder, out, runtime.get("online", False))
    rows = _rows(rows)
    with leaving_at_once():
        from weft.quantization.quantize import Quantized, Refused
        from weft.quantization.quantize import quantize as run

    def show(report: Quantized) -> None:
        print(f"{report.summary()}\n")
        title, header, cells = report.comparison.tables()[0]
        print(
            escaped(f"{report.comparison.data}: {report.comparison.reading}") + f"\n\n{title}\n{table(header, cells)}"
        )
        print(f"\nThe gate\n{table(*report.rows())}")

    try:
        report = run(
            folder, out=out, max_drop=max_drop, prefer=prefer, kinds=None if kinds is None else comma_list(kinds),
            texts=texts, seconds=seconds, **rows, **runtime, progress=progress,
        )  # fmt: skip
    except Refused as refused:
        show(refused.result)
        raise
    show(report)
    for line in report.warnings():
        print(f"weft: warning: {line}", file=sys.stderr)
    print(f"\n{out}: {report.chosen}")


def export(
    folder: Folder,
    out: OutFolder,
    rows: Annotated[Given, Flags(TABLE, only=("files", "columns"))],
    runtime: Opening,
    to: Annotated[str, Option(metavar="[onnx|ctranslate2|transformers]", help="The engine.")] = "onnx",
    task: Annotated[
        str | None, Option(metavar="TASK", help="The task of a folder that has several: embed, fill.")
    ] = None,
) -> None:
    """Write a model for ONNX Runtime, CTranslate2 or transformers, if its answers stay the same.

    Answers are compared on --data, or on made-up texts. ONNX is for encoders, CTranslate2 for encoders and for models
    that generate. weft.load and weft predict open the folder like any other, on the CPU.

    Example: weft export runs/reviews --to onnx --data dev.csv --out runs/reviews-onnx

    Example: weft export runs/translator --to ctranslate2 --out runs/translator-ct2
    """
    check_choices(("--to", to, ("onnx", "ctranslate2", "transformers")))
    check_written(folder, out, runtime.get("online", False))
    rows = _rows(rows)
    with leaving_at_once():
        from weft.exporters.export import export as write

    report = write(folder, to, out=out, task=task, **rows, **runtime)
    print(
        f"{report.folder}: {report.bytes / 1e6:.1f} MB for {report.to}; {report.texts:,} texts: the same answers, "
        f"largest difference {report.max_difference:.1e} of the largest score"
    )
