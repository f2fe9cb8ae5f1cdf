"""`weft compare`: several models on the same rows, each beside the first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from weft.cli.checks import BAD_ROWS, check_choices, check_device, check_models, check_reading
from weft.cli.models import Online, Trust
from weft.cli.show import leaving_at_once, progress, table
from weft.cli.tasks import Columns, Delimiter, Encoding, Format, Names, columns_of
from weft.cli.words import Device
from weft.errors import UserError, escaped


def compare(
    folders: Annotated[
        list[str], typer.Argument(metavar="MODEL...", help="Model folders; the others are held beside the first.")
    ],
    data: Annotated[
        list[str] | None, typer.Option(help="Rows, with or without what is right; may be repeated.")
    ] = None,
    source: Annotated[list[str] | None, typer.Option(help="Of models that write: texts to write from ...")] = None,
    target: Annotated[list[str] | None, typer.Option(help="... and what is right, line for line.")] = None,
    column: Columns = None,
    names: Names = None,
    format: Format = None,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    on_bad_row: Annotated[str, typer.Option(help="stop, or skip and count.")] = "stop",
    task: Annotated[str | None, typer.Option(help="What to ask for, where a model can do several: embed.")] = None,
    max_drop: Annotated[
        float | None, typer.Option(help="Refuse a model that loses more points of the score than this.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write a page with tables and charts, or all figures to a .json file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    texts: Annotated[int, typer.Option(help="Texts that are timed, at most; all are judged.")] = 256,
    seconds: Annotated[float, typer.Option(help="That each model may take for each measure of time.")] = 20.0,
    costs: Annotated[bool, typer.Option(help="Measure size, speed and memory too.")] = True,
    memory: Annotated[bool, typer.Option(help="Measure memory: each model once more in a process of its own.")] = True,
    device: Device = None,
    online: Online = False,
    trust: Trust = False,
) -> None:
    """Compare models on the same rows: scores with paired intervals, agreement, size, speed, memory.

    Exit status 2, and a line for the first of them, when a model is damaged (its answers are no numbers, its labels are
    others, it says the same of everything, or it is no better than chance) or loses more than --max-drop.

    Example: weft compare runs/reviews runs/reviews-small --data test.csv --out compare.html

    Example: weft compare runs/translator runs/translator-small --source test.en --target test.de
    """
    if not (data or source or target):
        raise UserError("what to compare by? give --data FILE; to models that write also --source and --target")
    check_choices(("--on-bad-row", on_bad_row, BAD_ROWS))
    check_reading(format, columns_of(column), data, source, target)
    check_device(device)
    check_models(folders, online)
    with leaving_at_once():
        import torch

        from weft.comparison.compare import compare as run

    found = run(
        folders,
        data,
        source=source or (),
        target=target or (),
        columns=columns_of(column) or None,
        names=[part.strip() for part in (names or "").split(",") if part.strip()],
        format=format,
        delimiter=delimiter,
        encoding=encoding,
        on_bad_row=on_bad_row,
        task=task,
        max_drop=max_drop,
        costs=costs,
        memory=memory,
        texts=texts,
        seconds=seconds,
        device=device or ("cuda" if torch.cuda.is_available() else "cpu"),
        online=online,
        trust=trust,
        progress=progress,
    )
    if out is not None and out.suffix == ".json":
        from weft.files import write_json

        write_json(out, found.values())
    elif out is not None:
        found.write(out)
    if as_json:
        print(json.dumps(found.values(), indent=2, ensure_ascii=False))
    else:
        print(escaped(f"{found.data}: {found.reading}"))
        if not found.labeled:
            print("The rows do not say what is right: models are compared with the first alone.")
        for title, header, rows in found.tables():
            print(f"\n{title}\n{table(header, rows)}")
            if title.startswith("Costs") and found.measured is not None:
                print(found.measured)
    if found.refused:
        more = f" ({len(found.refused) - 1} more)" if len(found.refused) > 1 else ""
        raise UserError(found.refused[0] + more)
