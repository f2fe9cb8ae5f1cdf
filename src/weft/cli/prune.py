"""`weft prune`: fewer layers, heads or tokens, and what that costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from weft.cli.checks import BAD_ROWS, check_choices, check_reading, check_written
from weft.cli.models import Online, Trust
from weft.cli.show import leaving_at_once, progress, table
from weft.cli.tasks import Columns, Delimiter, Encoding, Format, Names, columns_of
from weft.cli.words import Device, Folder


def prune(
    folder: Folder,
    layers: Annotated[int | None, typer.Option(help="How many layers stay.")] = None,
    by: Annotated[
        str, typer.Option(help="Which: even (spaced so from the first on), or importance (on --data).")
    ] = "even",
    heads: Annotated[
        float | None, typer.Option(help="Which share of all heads goes: 0.3; those that matter least.")
    ] = None,
    heads_each: Annotated[int | None, typer.Option(help="Or how many go of each layer.")] = None,
    vocabulary: Annotated[int | None, typer.Option(help="How many tokens stay: those that texts use most.")] = None,
    characters: Annotated[
        bool, typer.Option(help="Keep every single character; else those of the texts and of English.")
    ] = True,
    text: Annotated[
        list[str] | None, typer.Option(help="Texts in which tokens are counted; else those of --data.")
    ] = None,
    data: Annotated[list[str] | None, typer.Option(help="Rows to choose and to judge by; may be repeated.")] = None,
    source: Annotated[list[str] | None, typer.Option(help="Of a model that writes: texts to write from ...")] = None,
    target: Annotated[list[str] | None, typer.Option(help="... and what is right, line for line.")] = None,
    max_drop: Annotated[
        float | None, typer.Option(help="Write nothing where more points of the score are lost than this.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The model folder to write; new or empty.")] = None,
    column: Columns = None,
    names: Names = None,
    format: Format = None,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    on_bad_row: Annotated[str, typer.Option(help="stop, or skip and count.")] = "stop",
    costs: Annotated[bool, typer.Option(help="Measure size and speed too.")] = True,
    seconds: Annotated[float, typer.Option(help="That each model may take for each measure of time.")] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    device: Device = None,
    online: Online = False,
    trust: Trust = False,
) -> None:
    """Take layers, heads or tokens out of a model, and say what that costs.

    With fewer layers or tokens a folder stays what transformers opens; with fewer heads it is Weft's own. What was
    lost, weft finetune or weft distill bring back in part.

    Example: weft prune runs/reviews --layers 6 --heads 0.3 --data dev.csv --max-drop 1 --out runs/reviews-pruned

    Example: weft prune runs/reviews --vocabulary 8000 --text unlabeled.txt --out runs/reviews-8k
    """
    from weft.pruning.options import check_pruning

    check_pruning(
        layers=layers, by=by, heads=heads, heads_each=heads_each, vocabulary=vocabulary, max_drop=max_drop,
        rows=bool(data or source or target), text=bool(text),
    )  # fmt: skip
    check_written(folder, out, online)
    assert out is not None
    check_choices(("--on-bad-row", on_bad_row, BAD_ROWS))
    check_reading(format, columns_of(column), data, text, source, target)
    with leaving_at_once():
        import torch

        from weft.pruning.prune import prune as run

    found = run(
        folder,
        out=out,
        layers=layers,
        by=by,  # type: ignore[arg-type]
        heads=heads,
        heads_each=heads_each,
        vocabulary=vocabulary,
        characters=characters,
        data=data,
        text=text or (),
        source=source or (),
        target=target or (),
        max_drop=max_drop,
        columns=columns_of(column) or None,
        format=format,
        delimiter=delimiter,
        encoding=encoding,
        names=[part.strip() for part in (names or "").split(",") if part.strip()],
        on_bad_row=on_bad_row,
        costs=costs,
        seconds=seconds,
        device=device or ("cuda" if torch.cuda.is_available() else "cpu"),
        online=online,
        trust=trust,
        progress=progress,
    )
    if as_json:
        print(json.dumps(found.values(), indent=2, ensure_ascii=False))
        return
    for line in found.lines():
        print(line)
    for title, header, rows in found.tables():
        print(f"\n{title}\n{table(header, rows)}")
