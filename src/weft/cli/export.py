"""`weft export`: a model folder for another engine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weft.cli.checks import check_choices, check_reading, check_written
from weft.cli.models import Online, Trust
from weft.cli.show import leaving_at_once
from weft.cli.tasks import Columns, columns_of
from weft.cli.words import Folder


def export(
    folder: Folder,
    out: Annotated[Path, typer.Option(help="The folder to write; new or empty.")],
    to: Annotated[str, typer.Option(help="onnx, ctranslate2 or transformers.")] = "onnx",
    data: Annotated[
        list[str] | None, typer.Option(help="Texts on which both must say the same; else made-up ones.")
    ] = None,
    column: Columns = None,
    task: Annotated[str | None, typer.Option(help="What it is for, where the folder can do more: embed, fill.")] = None,
    online: Online = False,
    trust: Trust = False,
) -> None:
    """Write a model for ONNX Runtime, CTranslate2 or transformers, if it says the same there.

    ONNX is for models that understand, CTranslate2 for encoders and models that write. The folder answers through
    weft.load and weft predict like any other, on the CPU.

    Example: weft export runs/reviews --to onnx --data dev.csv --out runs/reviews-onnx

    Example: weft export runs/translator --to ctranslate2 --out runs/translator-ct2
    """
    check_choices(("--to", to, ("onnx", "ctranslate2", "transformers")))
    check_written(folder, out, online)
    check_reading(None, columns_of(column), data)
    with leaving_at_once():
        from weft.exporters.export import export as write

    found = write(
        folder, to, out=out, data=data, columns=columns_of(column) or None, task=task, online=online, trust=trust
    )
    print(
        f"{found.folder}: {found.bytes / 1e6:.1f} MB for {found.to}; {found.texts:,} texts: the same answers, scores "
        f"at most {found.apart:.1e} of the largest apart"
    )
