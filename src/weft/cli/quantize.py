"""`weft quantize`: a smaller, faster model, if it is as good."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from weft.cli.checks import check_reading, check_written
from weft.cli.models import Online, Trust
from weft.cli.show import leaving_at_once, progress, table
from weft.cli.tasks import Columns, Delimiter, Encoding, Format, Names, columns_of, listed_in
from weft.cli.words import Folder
from weft.errors import escaped


def quantize(
    folder: Folder,
    out: Annotated[Path, typer.Option(help="The folder to write; new or empty.")],
    data: Annotated[list[str] | None, typer.Option(help="Rows to judge by; may be repeated.")] = None,
    source: Annotated[list[str] | None, typer.Option(help="Of models that write: texts to write from ...")] = None,
    target: Annotated[list[str] | None, typer.Option(help="... and what is right, line for line.")] = None,
    max_drop: Annotated[
        float, typer.Option(help="Points of the score that may be lost: 0.5 is from 0.920 to 0.915.")
    ] = 0.5,
    prefer: Annotated[str, typer.Option(help="What to choose of those that pass: fast or small.")] = "fast",
    kinds: Annotated[
        str | None,
        typer.Option(help="Some of onnx-fp32, -fp16, -int8, -int8-static, -int4, ctranslate2-fp32, -int8, bf16."),
    ] = None,
    column: Columns = None,
    names: Names = None,
    format: Format = None,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    texts: Annotated[int, typer.Option(help="Texts that are timed, at most; all are judged.")] = 256,
    seconds: Annotated[float, typer.Option(help="That each candidate may take for each measure of time.")] = 20.0,
    online: Online = False,
    trust: Trust = False,
) -> None:
    """Make a model smaller and faster; only what is as good, and faster (or smaller), is written.

    Each candidate is evaluated on your rows and timed in turns with the model. It is refused when it loses more than
    --max-drop points and the paired 95 % interval of the loss lies above --max-drop too; a loss within noise passes,
    with a warning. Of those that pass, the fastest (or, with --prefer small, the smallest) is written. When none
    passes, nothing is written and the exit status is 2.
    The folder has a report in run/quantize.html.

    Example: weft quantize runs/reviews --data dev.csv --max-drop 0.5 --out runs/reviews-int8
    """
    check_written(folder, out, online)
    check_reading(format, columns_of(column), data, source, target)
    with leaving_at_once():
        from weft.quantization.quantize import Quantized, Refused
        from weft.quantization.quantize import quantize as run

    def show(found: Quantized) -> None:
        print(f"{found.summary()}\n")
        title, header, rows = found.comparison.tables()[0]
        print(escaped(f"{found.comparison.data}: {found.comparison.reading}") + f"\n\n{title}\n{table(header, rows)}")
        print(f"\nThe gate\n{table(*found.rows())}")

    try:
        found = run(
            folder,
            data,
            out=out,
            max_drop=max_drop,
            prefer=prefer,
            kinds=listed_in(kinds),
            source=source or (),
            target=target or (),
            columns=columns_of(column) or None,
            names=listed_in(names) or (),
            format=format,
            delimiter=delimiter,
            encoding=encoding,
            texts=texts,
            seconds=seconds,
            online=online,
            trust=trust,
            progress=progress,
        )
    except Refused as refused:
        show(refused.result)
        raise
    show(found)
    for line in found.warnings():
        print(f"weft: warning: {line}", file=sys.stderr)
    print(f"\n{out}: {found.chosen}")
