"""The model that a task begins with: a folder, a file of word vectors, or fresh weights; and the heads it needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.checkpoint.families import FAMILIES, Family, find_size
from weft.checkpoint.folder import Opened, open_folder
from weft.config import changed
from weft.errors import UserError, listed
from weft.files import MEGABYTE, read_json
from weft.tasks.judging import Task
from weft.tasks.model import find_folder, new
from weft.tasks.recipes import TaskRecipe, Vocabulary

CHOICES = ("family", "size", "base")  # keys of [model] that are not sizes


def chosen_family(model: Mapping[str, Any], tokenizer: Vocabulary, sizes: Mapping[str, Any]) -> Family:
    """The family to train, with every choice of the model checked."""
    chosen = {key: model[key] for key in CHOICES if key in model}
    wrong = [key for key, value in chosen.items() if not isinstance(value, str)]
    if wrong:
        raise UserError(f"[model]: {wrong[0]} must be a text, not {chosen[wrong[0]]!r}")
    if "base" in chosen:
        if len(model) > 1:
            others = listed([key for key in model if key != "base"])
            raise UserError(f"--base brings its own model: {others} cannot be chosen with it")
        if tokenizer != Vocabulary():
            raise UserError("--base brings its own tokenizer: none can be chosen with it")
        path = find_folder(chosen["base"]) / "config.json"
        if not path.is_file():
            raise UserError(f"{chosen['base']!r} is not a model folder: it has no config.json")
        kind = read_json(path, 16 * MEGABYTE).get("model_type", "")
        family = FAMILIES.get(str(kind).removeprefix("weft-"))
        if family is None:
            raise UserError(f"{chosen['base']}: model_type {kind!r} is not one of {', '.join(FAMILIES)}")
        return family
    if "family" not in chosen:
        raise UserError("which model? give --model FAMILY (see: weft models), or --base FOLDER to go on from weights")
    family, config = find_size(chosen["family"], chosen.get("size"))
    changed(config, sizes, "[model]")
    return family


def sizes_of(model: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in model.items() if key not in CHOICES}


def check_model(recipe: TaskRecipe) -> None:
    """All that can be wrong with the choice of a model, said before any data is read."""
    family = chosen_family(recipe.model, recipe.tokenizer, sizes_of(recipe.model))
    work = recipe.task
    head = {"tag": "tag", "answer": "answer"}.get(work.name, "classify")
    if head not in family.names.heads:
        raise UserError(f"{family.name} has no head for {work.name}")
    if work.name == "answer" and family.speaks:
        raise UserError(f"{work.name} needs a model that looks both ways; {family.name} looks back only")
    if work.words and not family.speaks:
        raise UserError(f"next words are learned by models that speak, not by {family.name}")


def begun_model(recipe: TaskRecipe, task: Task, tokenizer: Any) -> Opened:
    """The model with the heads of the task; a base that has learned the same labels keeps its head."""
    wanted: dict[str, int | None] = dict(task.objective.heads)
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
        )
        return made.opened
    folder = find_folder(base)
    there = open_folder(folder)
    heads = {head: there.config.vocabulary if count is None else count for head, count in wanted.items()}
    same = there.card.task == recipe.task.name and (there.card.labels or ()) == task.labels
    keep = [head for head in heads if there.heads.get(head) == heads[head] and (same or head == "words")]
    new_heads = {head: count for head, count in heads.items() if head not in keep}
    opened = open_folder(folder, new_heads, keep, recipe.seed, recipe.task.mix) if new_heads else there
    opened.network.float()
    return opened
