"""Language models as teachers: a student foresees each next word as its teacher does.

Where both have one vocabulary, it learns the teacher's chances of words (Hinton et al., 2015), place by place. Where
they have not, it learns from texts that the teacher has written on from the first words of each of those given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from weft.checkpoint.card import Metric
from weft.checkpoint.families import Family
from weft.checkpoint.folder import LoadedModel
from weft.data.batching import Feed
from weft.distillation.hidden_states import matched
from weft.distillation.language_dataset import Papers, by_texts, by_words, papers_of
from weft.distillation.recipe import DistillRecipe
from weft.distillation.student import begun_student, find_student
from weft.distillation.teacher_cache import Teacher
from weft.errors import UserError
from weft.files import write_json
from weft.metrics.bootstrap import Score
from weft.progress import Log, Progress
from weft.runs.driver import Job, drive
from weft.runs.plan import decided
from weft.runs.recipes import FinetuneTraining
from weft.tasks.model import Model, load
from weft.tasks.perplexity import perplexity
from weft.tasks.scoring import tokenizer_of
from weft.training.run import Run, tokenizer_hash
from weft.training.setup import Setup
from weft.training.signals import Stop

STEPS = 1000  # that a student takes at least where nothing is said, if not more than 30 times through the text


def speaking(family: Family) -> None:
    """Refuse a student that says no next words."""
    if not family.speaks or family.reads:
        raise UserError(f"{family.name} does not write on from a text: a student such as gpt2:2x128 or lstm:1x256 does")


def distill_language(
    run: Run,
    recipe: DistillRecipe,
    teachers: Sequence[Teacher],
    device: torch.device,
    stop: Stop,
    log: Log,
    progress: Progress,
) -> Model:
    """Teach a student to foresee words as its teachers do."""
    opened_teachers = [each.model for each in teachers]
    for each in teachers[1:]:
        if tokenizer_of(each.model).pipeline != tokenizer_of(opened_teachers[0]).pipeline:
            raise UserError(f"{each.folder}: has another vocabulary than the first teacher: their mean has no meaning")
    # Words are foreseen from one side alone, as in pre-training, whatever a network may do for labels.
    ahead = replace(recipe, distill=replace(recipe.distill, pretrain=True))
    found = find_student(ahead, opened_teachers[0], lambda text: None)
    if not isinstance(found, Path):
        speaking(found.family)
    papers = papers_of(recipe, log)
    beginning = begun_student(
        run, ahead, opened_teachers, {"words": None}, "words", papers.documents, stop, log, progress
    )
    opened = beginning.opened
    speaking(opened.family)
    same = tokenizer_of(opened).pipeline == tokenizer_of(opened_teachers[0]).pipeline
    gathered = by_words if same else by_texts
    material = gathered(run, recipe, papers, teachers, opened, stop, log, progress)
    plan = _planned(recipe.training, material.source, opened, device, beginning.fresh)
    length = int(material.source.mean)
    recipe = replace(
        recipe, training=plan, device=str(device), distill=replace(recipe.distill, metric="loss", length=length)
    )
    hashes = {**papers.hashes, "teacher": [each.digest for each in teachers]}
    card = replace(
        opened.card,
        task=opened.family.task,
        base=Path(recipe.student.model).name,
        teacher=", ".join(each.folder.name for each in teachers),
    )
    opened, steps = replace(opened, card=card), plan.steps or 1
    announcement = (
        f"{run.folder}: {material.way}\n"
        f"plan: {steps:,} step{'s' * (steps != 1)} of {plan.batch} rows of {length} tokens, "
        f"{steps * (plan.batch or 1) / material.source.count:.1f} times through the text, "
        f"learning rate {plan.learning_rate:.1e}, on {device.type} in {plan.precision}"
    )
    data = papers.hashes.get("dev", papers.hashes["text"])

    setup = Setup(
        network=opened.network,
        objective=matched(material.objective, opened_teachers[0], opened, recipe.distill),
        feed=Feed(material.source, material.prepare, recipe.seed, plan.batch or 1),
        held_out=material.held_out,
        plan=plan,
        device=device,
        decode=tokenizer_of(opened).decode,
    )
    job = Job(
        recipe=recipe,
        model=opened,
        setup=setup,
        data=data,
        same={"data": hashes, "tokenizer": tokenizer_hash(opened)},
        about={"teacher_forwards": material.forwards},
        announce=lambda state: log(announcement),
    )
    drive(run, job, stop, log, progress)
    return _reported(run, papers, opened_teachers, data, device, log)


def _planned(
    plan: FinetuneTraining, source: Any, opened: LoadedModel, device: torch.device, fresh: bool
) -> FinetuneTraining:
    batch = max(1, min(round(8192 / source.mean), source.count // 8))
    epochs = max(3.0, min(30.0, STEPS * batch / source.count))
    learning_rate = opened.family.learning_rate * (768 / opened.config.width) ** 0.5
    found = decided(plan, source, device, batch, epochs, learning_rate if fresh else learning_rate / 5)
    every = plan.evaluate_every or max(1, (found.steps or 1) // 10)
    return replace(found, evaluate_every=every, save_every=plan.save_every or every)


# ----------------------------------------------------------------------------------------------------------- the end


def _reported(
    run: Run, papers: Papers, teachers: Sequence[LoadedModel], data: str, device: torch.device, log: Log
) -> Model:
    """What the student has kept: bits for each byte of held-out text, beside its teacher's."""
    model = load(run.folder, device=device)
    ours = perplexity(model.opened, papers.held).bits_per_byte
    theirs = min((perplexity(each, papers.held).bits_per_byte for each in teachers), key=lambda score: score.value)
    if not math.isfinite(theirs.value):
        log("weft: note: to some held-out words the teacher gives no chance at all: nothing to compare with")
        return load(run.folder)
    share = theirs.value / ours.value
    found = {"bits_per_byte": {"teacher": _shown(theirs), "student": _shown(ours)}, "kept": share}
    write_json(run.inside / "kept.json", found)
    others = tuple(each for each in model.card.metrics if each.name != "bits_per_byte")
    metric = Metric(data=data, name="bits_per_byte", value=ours.value, low=ours.low, high=ours.high)
    run.save_model(model.opened, (*others, metric))
    log(
        f"{run.folder}: {ours.value:.4f} bits per byte of held-out text ({ours.low:.4f} to {ours.high:.4f}), "
        f"the teacher {theirs.value:.4f}: {100 * share:.1f} % kept"
    )
    return load(run.folder)


def _shown(score: Score) -> dict[str, float]:
    return {"value": score.value, "low": score.low, "high": score.high}
