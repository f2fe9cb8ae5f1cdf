"""`weft.resume`: go on with a run that was broken off, whatever it trains."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

from weft.errors import UserError
from weft.files import read_text
from weft.progress import Log, ProgressChoice, progress_of, to_logger
from weft.runs import finetune, pretrain
from weft.runs import word_vectors as vectors
from weft.runs.driver import resumable
from weft.tasks.model import Model
from weft.training.run import Run
from weft.training.signals import listening


def resume(folder: str | os.PathLike[str], *, log: Log = to_logger, progress: ProgressChoice = None) -> Model:
    """Go on with a run that was broken off; where it had finished, its model."""
    run = Run(Path(folder))
    if not run.recipe.is_file():
        raise UserError(f"{str(folder)!r} is not a run folder: it has no run/recipe.toml")
    with listening() as stop, run.held(), resumable(run):
        try:
            sections = set(tomllib.loads(read_text(run.recipe)))
            if "ladder" in sections:
                raise UserError(f"{folder}: is a ladder: weft.ladder(out=...) goes on with it")
        except (ValueError, RecursionError):
            sections = set()  # whoever reads it next says what is wrong with it
        run.tidy()
        kind = finetune if "task" in sections else vectors if "vectors" in sections else pretrain
        return kind.go_on(run, stop, log, progress_of(progress))
