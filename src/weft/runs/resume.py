"""`weft.resume`: go on with a run that was broken off, whatever it trains."""

from __future__ import annotations

import os
import tomllib
from importlib import import_module
from pathlib import Path

from weft.config import read_toml
from weft.errors import UserError
from weft.files import read_text
from weft.progress import Log, ProgressChoice, progress_of, to_logger
from weft.runs.driver import resumable
from weft.tasks.model import Model
from weft.training.run import Run
from weft.training.signals import Control, listening

# Kinds of runs by the section that only their recipes have. Each module has a class RECIPE and a function
# `go(run, recipe, control)`, and is imported when such a run is resumed.
KINDS = {"distill": "weft.distillation.distill", "task": "weft.runs.finetune", "vectors": "weft.runs.word_vectors"}
OTHERS = "weft.runs.pretrain"


def resume(folder: str | os.PathLike[str], *, log: Log = to_logger, progress: ProgressChoice = None) -> Model:
    """Go on with a run that was broken off; where it had finished, its model."""
    run = Run(Path(folder))
    if not run.recipe.is_file():
        raise UserError(f"{str(folder)!r} is not a run folder: it has no run/recipe.toml")
    with listening() as stop, run.held(), resumable(run):
        try:
            sections = set(tomllib.loads(read_text(run.recipe)))
        except (ValueError, RecursionError):
            sections = set()  # read_toml says what is wrong with it
        if "ladder" in sections:
            raise UserError(f"{folder}: is a ladder: weft.ladder(out=...) goes on with it")
        run.tidy()
        kind = import_module(next((module for section, module in KINDS.items() if section in sections), OTHERS))
        model: Model = kind.go(run, read_toml(kind.RECIPE, run.recipe), Control(log, progress_of(progress), stop))
        return model
