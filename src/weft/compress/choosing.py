"""Which lesson a teacher gives, by its task."""

from __future__ import annotations

from weft.checkpoint.folder import Opened
from weft.compress.lessons import Lesson
from weft.compress.recipe import DistillRecipe
from weft.compress.texts import TextLesson
from weft.errors import UserError
from weft.tasks.texts import task_of


def lesson_for(teacher: Opened, task_name: str, recipe: DistillRecipe) -> Lesson:
    """The lesson of a teacher of this task."""
    asked = recipe.distill
    if task_name in ("classify", "multilabel", "regress", "pair"):
        return TextLesson(task_of(teacher, task_name), asked.temperature, asked.hard)
    raise UserError(f"{recipe.teacher.folders[0]}: a model for {task_name} is no teacher of a task; give --pretrain")
