"""Which lesson a teacher gives, by its task."""

from __future__ import annotations

from collections.abc import Sequence

from weft.checkpoint.folder import LoadedModel
from weft.distillation.answer import AnswerLesson
from weft.distillation.base import Lesson
from weft.distillation.classify import TextLesson
from weft.distillation.embed import EmbedLesson
from weft.distillation.recipe import DistillRecipe
from weft.distillation.seq2seq import WritingLesson
from weft.distillation.tag import TagLesson
from weft.errors import UserError
from weft.tasks.answer import AnswerTask
from weft.tasks.classify import TextTask
from weft.tasks.embed import EmbedTask
from weft.tasks.registry import FROM_TEXT
from weft.tasks.tag import TagTask


def lesson_for(
    teacher: LoadedModel, task_name: str, recipe: DistillRecipe, others: Sequence[LoadedModel] = ()
) -> Lesson:
    """The lesson of a teacher of this task; `others`: further teachers, for those that speak with one voice."""
    asked = recipe.distill
    if task_name in ("classify", "multilabel", "regress", "pair"):
        return TextLesson(TextTask.from_model(teacher, task_name), asked.temperature, asked.hard)
    if task_name == "tag":
        return TagLesson(TagTask.from_model(teacher, "tag"), asked.temperature, asked.hard)
    if task_name == "answer":
        return AnswerLesson(AnswerTask.from_model(teacher, "answer"), asked.temperature, asked.hard)
    if task_name == "embed":
        return EmbedLesson(EmbedTask.from_model(teacher, "embed"))
    if task_name in FROM_TEXT:
        return WritingLesson.of([teacher, *others], task_name, asked)
    raise UserError(
        f"{recipe.teacher.folders[0]}: is made for no task ({task_name}), so it teaches none: weft finetune makes it a "
        "teacher, and --pretrain hands on what it knows of words"
    )
