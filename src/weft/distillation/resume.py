"""`weft.resume`: go on with a run that was broken off, whatever it trains, also a student."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

from weft.distillation import distill
from weft.errors import UserError
from weft.files import read_text
from weft.progress import Log, ProgressChoice, progress_of, to_logger
from weft.runs import resume as others
from weft.runs.driver import resumable
from weft.tasks.model import Model
from weft.training.run import Run
from weft.training.signals import listening


def resume(folder: str | os.PathLike[str], *, log: Log = to_logger, progress: ProgressChoice = None) -> Model:
    """Go on with a run that was broken off; where it had finished, its model."""
    run = Run(Path(folder))
    if not _distilled(run):
        return others.resume(folder, log=log, progress=progress)
    with listening() as stop, run.held(), resumable(run):
        run.tidy()
        return distill.go_on(run, stop, log, progress_of(progress))


def _distilled(run: Run) -> bool:
    """Whether a run's recipe has a student; whoever reads it next says what is wrong with it."""
    try:
        return run.recipe.is_file() and "distill" in tomllib.loads(read_text(run.recipe))
    except (ValueError, RecursionError, UserError):
        return False
