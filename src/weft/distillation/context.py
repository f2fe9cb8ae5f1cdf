"""What every step of a distillation needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from weft.checkpoint.folder import LoadedModel
from weft.distillation.recipe import DistillRecipe
from weft.distillation.teacher_cache import Teacher
from weft.progress import Log, Progress
from weft.training.run import Run
from weft.training.signals import Control, Stop


@dataclass(frozen=True)
class Distillation:
    """A run folder and its recipe, the teachers, and whom to report to."""

    run: Run
    recipe: DistillRecipe
    teachers: Sequence[Teacher]
    device: torch.device
    control: Control

    @property
    def log(self) -> Log:
        return self.control.log

    @property
    def progress(self) -> Progress:
        return self.control.progress

    @property
    def stop(self) -> Stop:
        return self.control.stop

    @property
    def models(self) -> list[LoadedModel]:
        return [teacher.model for teacher in self.teachers]

    @property
    def teacher(self) -> LoadedModel:
        """The first of them, whose layers, vocabulary and window a student may take."""
        return self.teachers[0].model
