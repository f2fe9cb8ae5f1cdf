"""The model that a task begins with: a folder, a file of word vectors, or fresh weights; and the heads it needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.checkpoint.card import Card
from weft.checkpoint.families import FAMILIES, Family
from weft.checkpoint.folder import LoadedModel, open_folder
from weft.checkpoint.locate import find_folder
from weft.checkpoint.vectors import open_vectors
from weft.errors import UserError, listed, shown
from weft.runs.architecture import chosen_family, sizes_of
from weft.runs.recipes import TaskRecipe
from weft.runs.word_vectors_start import find_vectors
from weft.tasks.base import Task
from weft.tasks.model import new
from weft.tasks.registry import SUPERVISED, task_class


def tasks_for(family: Family) -> tuple[str, ...]:
    """The built-in tasks that a family can be fine-tuned for."""
    return tuple(name for name in SUPERVISED if task_class(name).fits(family))


def check_model(recipe: TaskRecipe) -> None:
    """All that can be wrong with the choice of a model, checked before any data is read."""
    family = chosen_family(recipe.model, recipe.tokenizer, sizes_of(recipe.model))
    if "vectors" in recipe.model:
        find_vectors(recipe.model["vectors"])
    work = recipe.task
    task = task_class(work.name)
    if not task.fits(family):
        if task.needs:
            able = listed([each.name for each in FAMILIES.values() if task.fits(each)])
            raise UserError(f"{work.name} needs a model that {task.needs} ({able}), not {family.name}")
        able = f"; it learns {listed(tasks_for(family), 20)}" if tasks_for(family) else " and learns from text alone"
        raise UserError(f"{family.name} has no head for {work.name}{able}")
    if recipe.tokenizer.apart and not family.config.has("source_vocabulary"):
        raise UserError(f"{family.name} has one vocabulary for what it reads and what it writes")
    if work.words and not family.speaks:
        raise UserError(f"next words are learned by models that speak, not by {family.name}")


@dataclass(frozen=True)
class Beginning:
    """A model to train, and whether the head of its task is new, or all of it."""

    opened: LoadedModel
    fresh: bool
    scratch: bool = False
    note: str | None = None  # what of the base does not stay


def begun_model(recipe: TaskRecipe, task: Task, tokenizer: Any, target_tokenizer: Any = None) -> Beginning:
    """The model with the heads of the task; a base that has learned the same labels keeps its head."""
    wanted: dict[str, int | None] = dict(task.objective().heads)
    base = recipe.model.get("base")
    if base is None:
        made = new(
            str(recipe.model["family"]),
            tokenizer,
            size=recipe.model.get("size"),
            settings={**sizes_of(recipe.model), **({"mix": True} if recipe.task.mix else {})},
            heads=wanted,
            seed=recipe.seed,
            where="[model]",
            target_tokenizer=target_tokenizer,
        )
        return Beginning(made.opened, True, True)
    heads = {head: count or 0 for head, count in wanted.items()}
    if Path(base).is_file():
        return Beginning(open_vectors(Path(base), heads, recipe.seed, on_bad_row=recipe.data.on_bad_row), True)
    same = (recipe.task.name, task.labels)
    return from_folder(find_folder(base), wanted, task.head, same, recipe.seed, recipe.task.mix)


def from_folder(
    folder: Path,
    wanted: Mapping[str, int | None],
    head: str,
    same: tuple[str, tuple[str, ...]],
    seed: int,
    mix: bool = False,
) -> Beginning:
    """A model folder with the heads that are wanted; those that have learned the `same` task and labels stay."""
    there = open_folder(folder)
    heads = {head: there.config.vocabulary if count is None else count for head, count in wanted.items()}
    keeps = (there.card.task, there.card.labels or ()) == same
    keep = [head for head in heads if there.heads.get(head) == heads[head] and (keeps or head == "words")]
    if mix and not there.config.mix:
        keep = [head for head in keep if head == "words"]  # the others have learned to read the last layer
    new_heads = {head: count for head, count in heads.items() if head not in keep}
    opened = open_folder(folder, new_heads, keep, seed, mix) if new_heads else there
    opened.network.float()
    replaced = head in new_heads and head in there.heads and there.card.task is not None
    return Beginning(opened, head in new_heads, note=_replaced(there.card, *same) if replaced else None)


def _replaced(card: Card, task: str, labels: tuple[str, ...]) -> str | None:
    """The note where the head of a base has learned another task, or other labels."""
    before, after = (shown(listed(names, 8), 120) for names in (card.labels or (), labels))
    if before and after and card.labels != labels:
        return f"labels {before} are replaced by {after}"
    return f"the head for {card.task} is replaced by one for {task}" if card.task != task else None
