"""What a distillation was made with, kept in its run folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import torch

from weft.checkpoint.folder import LoadedModel
from weft.config import values_of, write_toml
from weft.distillation.recipe import DistillRecipe
from weft.files import write_json
from weft.runs.driver import Altered
from weft.training.run import Run, tokenizer_hash


def note_run(
    run: Run,
    recipe: DistillRecipe,
    opened: LoadedModel,
    hashes: Mapping[str, Any],
    forwards: int,
    device: torch.device,
    also: Mapping[str, Any] | None = None,
) -> bool:
    """What the run was made with, on the first day; later, that it still is the same. Whether this is the first."""
    if run.about.exists():
        about = run.info()
        if about.data != hashes:
            raise Altered(f"{run.folder}: the data, or the teacher, is not what the run began with")
        if about.tokenizer != tokenizer_hash(opened):
            raise Altered(f"{run.folder}: its tokenizer is not the one that the run began with")
        if forwards != about.teacher_forwards:  # the cache was cleared meanwhile
            write_json(run.about, values_of(replace(about, teacher_forwards=forwards)))
        return False
    write_toml(recipe, run.recipe)
    run.describe(
        {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "seed": recipe.seed,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            "parameters": sum(parameter.numel() for parameter in opened.network.parameters()),
            "data": hashes,
            "tokenizer": tokenizer_hash(opened),
            **(also or {}),
            "teacher_forwards": forwards,
        }
    )
    return True
