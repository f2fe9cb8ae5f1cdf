"""The student: how large it is, by which vocabulary it reads, and from which weights it begins."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from weft.checkpoint.families import Family, find_size
from weft.checkpoint.folder import Opened, fill
from weft.checkpoint.outline import outline
from weft.compress.recipe import DistillRecipe
from weft.config import changed
from weft.errors import UserError
from weft.tasks.beginning import Beginning, from_folder
from weft.tasks.choosing import both_ways, size_of, sizes_of, vocabulary_for
from weft.tasks.model import new
from weft.tasks.recipes import Vocabulary
from weft.tasks.saying import Progress, Say
from weft.text.tokenizer import Tokenizer
from weft.training.run import Run
from weft.training.signals import Stop

SIZE = r"([1-9][0-9]{0,3})x([1-9][0-9]{0,5})"


def find_student(recipe: DistillRecipe, teacher: Opened, say: Say) -> Path | tuple[Family, Any]:
    """The folder that a student's name stands for, or its family and sizes."""
    name, settings = recipe.student.model, recipe.student.settings
    if Path(name).expanduser().is_dir():
        if settings or recipe.student.vocabulary or recipe.student.tokenizer or recipe.student.start:
            raise UserError(f"{name}: a folder brings its own sizes, vocabulary and weights: none can be chosen")
        return Path(name).expanduser()
    family, config = _sized(name, teacher)
    if family.counts or family.numbers:
        raise UserError(f"{family.name} is learned in other ways and cannot be a student")
    if family.name != teacher.family.name:
        asked = {"family": family.name if name == family.name else name}  # a family alone has no size yet
        config = changed(config, sizes_of(both_ways(asked, family, say)), "[student]")
    return family, changed(config, settings, "[student.settings]")


def _sized(name: str, teacher: Opened) -> tuple[Family, Any]:
    """Family and sizes: 3x256 (of the teacher's family), lstm:1x256, distilbert."""
    kind, colon, size = name.rpartition(":")
    found = re.fullmatch(SIZE, name)
    if found is None or not hasattr(teacher.config, "layers"):
        return find_size(kind, size) if colon else find_size(name)
    layers, width = int(found[1]), int(found[2])
    if width == teacher.config.width:
        return teacher.family, replace(teacher.config, layers=layers)
    usual = find_size(teacher.family.name, name)[1]
    sizes = {key: getattr(usual, key) for key in ("layers", "width", "heads", "inner") if hasattr(usual, key)}
    return teacher.family, replace(teacher.config, **sizes)


def begun_student(
    run: Run,
    recipe: DistillRecipe,
    teachers: Sequence[Opened],
    wanted: Mapping[str, int | None],
    head: str,
    texts: Callable[[], Iterable[str]],
    stop: Stop,
    say: Say,
    progress: Progress,
) -> Beginning:
    """The student with the `wanted` heads, before it has learned anything; and whether its `head` is new."""
    teacher = teachers[0]
    found = find_student(recipe, teacher, say)
    if isinstance(found, Path):
        same = (teacher.card.task or "", teacher.card.labels or ())
        return _noted(from_folder(found, wanted, head, same, recipe.seed), teachers, f"the folder {found.name}", say)
    family, config = found
    tokenizer, target = _tokenizers(run, recipe, family, teacher, texts, stop, say, progress)
    theirs = tokenizer is teacher.tokenizer
    fits = theirs and family.name == teacher.family.name and _but_layers(config) == _but_layers(teacher.config)
    fits = fits and getattr(config, "layers", 1) <= getattr(teacher.config, "layers", 1)
    start = recipe.student.start or ("layers" if fits and set(wanted) <= set(teacher.heads) else "scratch")
    if start == "layers":
        if not fits:
            raise UserError(
                f"layers of the teacher ({teacher.family.name}, {size_of(teacher.config)}) do not fit into the student "
                f"({family.name}, {size_of(config)}{'' if theirs else ', another vocabulary'}): --start scratch"
            )
        numbers = spaced(teacher.config.layers, config.layers)
        begun = Beginning(_with_layers(teacher, numbers, wanted), False)
        return _noted(begun, teachers, f"layers {', '.join(map(str, numbers))} of the teacher", say)
    standard = family.config(**family.standard)
    settings = {
        field.name: getattr(config, field.name)
        for field in fields(config)
        if field.name not in ("vocabulary", "source_vocabulary", "begin", "padding", "pooler")
        and getattr(config, field.name) != getattr(standard, field.name)
    }
    made = new(
        family.name,
        tokenizer,
        settings=settings,
        heads=wanted,
        seed=recipe.seed,
        where="[student]",
        target_tokenizer=target,
    )
    return _noted(Beginning(made.opened, True), teachers, "fresh weights", say)


def spaced(there: int, wanted: int) -> list[int]:
    """Numbers of layers, evenly spaced: of six, three are 0, 2 and 4."""
    return [place * there // wanted for place in range(wanted)]


def _but_layers(config: Any) -> Any:
    return replace(config, layers=1) if hasattr(config, "layers") else config


def _with_layers(teacher: Opened, numbers: Sequence[int], wanted: Mapping[str, int | None]) -> Opened:
    """The teacher with these of its layers alone, and the heads that are wanted."""
    config = replace(teacher.config, layers=len(numbers))
    heads = {head: teacher.heads[head] for head in teacher.heads if head in wanted}
    network = outline(teacher.family, config, heads)
    stored = teacher.network.state_dict()

    def taken(name: str) -> Tensor:
        theirs = re.sub(r"(^|\.)layers\.(\d+)\.", lambda found: f"{found[1]}layers.{numbers[int(found[2])]}.", name)
        return stored[theirs].detach().cpu().clone()

    fill(network, {name: taken(name) for name in network.state_dict()}, (), 1.0, 0)
    return replace(teacher, config=config, network=network.eval().float(), heads=heads)


def _tokenizers(
    run: Run,
    recipe: DistillRecipe,
    family: Family,
    teacher: Opened,
    texts: Callable[[], Iterable[str]],
    stop: Stop,
    say: Say,
    progress: Progress,
) -> tuple[Tokenizer | None, Tokenizer | None]:
    """The vocabulary of what the student reads, and of what it writes where that is another one."""
    asked, size = recipe.student.tokenizer, recipe.student.vocabulary
    by_words = family.tokenizer == "word" and (teacher.tokenizer is None or teacher.tokenizer.kind != "word")
    if asked is None and not by_words:
        if size is not None:
            raise UserError("a part of the teacher's vocabulary cannot be taken yet: --tokenizer learned")
        return teacher.tokenizer, teacher.target_tokenizer
    given = Vocabulary(size=size) if asked in (None, "learned") else Vocabulary(folder=asked)
    alone = family.speaks and not family.reads
    return vocabulary_for(run, given, family, alone, texts(), stop, say, progress), None


def _noted(begun: Beginning, teachers: Sequence[Opened], start: str, say: Say) -> Beginning:
    """Say who learns from whom."""
    ours, theirs = parameters_of(begun.opened), sum(map(parameters_of, teachers))
    opened = begun.opened
    say(
        f"student: {opened.family.name}, {size_of(opened.config)}, {ours:,} parameters, from {start}; "
        f"teacher: {teachers[0].family.name}, {size_of(teachers[0].config)}, {theirs:,} parameters"
    )
    if ours >= theirs:
        say(f"weft: note: the student is not smaller than its teacher: {ours:,} parameters against {theirs:,}")
    return begun


def parameters_of(opened: Opened) -> int:
    return sum(parameter.numel() for parameter in opened.network.parameters())
