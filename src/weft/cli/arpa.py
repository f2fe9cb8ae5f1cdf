"""`weft arpa`: n-gram models to and from the file format that KenLM, SRILM and others have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weft.cli.options import OutFolder, group
from weft.cli.show import leaving_at_once, progress


def write(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The folder of an n-gram model.")],
    out: Annotated[Path, typer.Argument(metavar="FILE", help="File to write; compressed if its name ends in .gz.")],
) -> None:
    """Write an n-gram model as an ARPA file.

    Example: weft arpa write runs/5gram 5gram.arpa.gz
    """
    with leaving_at_once():
        from weft.checkpoint.ngram import write_arpa
        from weft.tasks.model import load

    loaded = load(model)
    with progress("writing", "n-grams") as tick:
        write_arpa(loaded.opened, out, tick)
    print(
        f"{out}: {sum(loaded.config.entries):,} n-grams up to order {loaded.config.order}, {out.stat().st_size:,} bytes"
    )


def read(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An ARPA file, plain or compressed.")],
    out: OutFolder,
) -> None:
    """Make a model folder from an ARPA file; texts are split at spaces, as the tools that write such files do.

    Example: weft arpa read 5gram.arpa.gz --out runs/from-kenlm
    """
    with leaving_at_once():
        from weft.checkpoint.folder import save_folder
        from weft.checkpoint.ngram import read_arpa
        from weft.progress import to_stderr

    with progress("reading", "lines") as tick:
        model = read_arpa(file, to_stderr, tick)
    save_folder(out, model)
    entries = ", ".join(f"{count:,} of order {order}" for order, count in enumerate(model.config.entries, 1))
    print(f"{out}: ngram, {entries}")


app = group("Write and read n-gram models as ARPA files, as KenLM and SRILM do.", write=write, read=read)
