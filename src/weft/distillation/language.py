"""Language models as teachers: a student predicts each next token as its teacher does.

Where both have one vocabulary, it learns the teacher's probabilities (Hinton et al., 2015), place by place. Where they
have not, it learns from texts in which the teacher has continued the first words of those given.
"""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from weft.checkpoint.card import Metric
from weft.checkpoint.families import Family
from weft.checkpoint.folder import LoadedModel
from weft.data.batching import Feed
from weft.distillation.context import Distillation
from weft.distillation.hidden_states import matched
from weft.distillation.language_dataset import LanguageTexts, by_texts, by_tokens, language_texts
from weft.distillation.student import begun_student, find_student
from weft.errors import UserError
from weft.files import write_json
from weft.runs.driver import Job, drive
from weft.runs.finetune import decided
from weft.runs.recipes import FinetuneTraining
from weft.tasks.model import Model, load
from weft.tasks.perplexity import perplexity
from weft.tasks.scoring import tokenizer_of
from weft.training.run import tokenizer_hash
from weft.training.step import Setup

STEPS = 1000  # that a student takes at least by default, but no more than 30 epochs


def check_writes(family: Family) -> None:
    """Refuse a student that predicts no next tokens."""
    if not family.speaks or family.reads:
        raise UserError(f"{family.name} does not continue a text: a student such as gpt2:2x128 or lstm:1x256 does")


def distill_language(context: Distillation) -> Model:
    """Teach a student to predict tokens as its teachers do."""
    run, recipe, teacher = context.run, context.recipe, context.teacher
    for other in context.teachers[1:]:
        if tokenizer_of(other.model).pipeline != tokenizer_of(teacher).pipeline:
            raise UserError(f"{other.folder}: has another vocabulary than the first teacher: their mean has no meaning")
    # Tokens are predicted from one side alone, as in pre-training, whatever a network may do for labels.
    one_way = replace(context, recipe=replace(recipe, distill=replace(recipe.distill, pretrain=True)))
    lineage = find_student(one_way.recipe, teacher, lambda text: None)
    if not isinstance(lineage, Path):
        check_writes(lineage.family)
    texts = language_texts(recipe, context.log)
    beginning = begun_student(one_way, {"words": None}, "words", texts.documents)
    model = beginning.opened
    check_writes(model.family)
    same = tokenizer_of(model).pipeline == tokenizer_of(teacher).pipeline
    dataset = (by_tokens if same else by_texts)(context, texts, model)
    plan = _planned(recipe.training, dataset.source, model, context.device, beginning.fresh)
    length, steps = int(dataset.source.mean), plan.steps or 1
    settings = replace(recipe.distill, metric="loss", length=length)
    recipe = replace(recipe, training=plan, device=str(context.device), distill=settings)
    names = ", ".join(each.folder.name for each in context.teachers)
    card = replace(model.card, task=model.family.task, base=Path(recipe.student.model).name, teacher=names)
    model = replace(model, card=card)
    announcement = (
        f"{run.folder}: {dataset.summary}\n"
        f"plan: {steps:,} step{'s' * (steps != 1)} of {plan.batch} rows of {length} tokens, "
        f"{steps * (plan.batch or 1) / dataset.source.count:.1f} epochs, "
        f"learning rate {plan.learning_rate:.1e}, on {context.device.type} in {plan.precision}"
    )
    setup = Setup(
        network=model.network,
        objective=matched(dataset.objective, teacher, model, recipe.distill),
        feed=Feed(dataset.source, dataset.prepare, recipe.seed, plan.batch or 1),
        held_out=dataset.held_out,
        plan=plan,
        device=context.device,
        decode=tokenizer_of(model).decode,
    )
    hashes = {**texts.hashes, "teacher": [each.digest for each in context.teachers]}
    job = Job(
        recipe=recipe,
        model=model,
        setup=setup,
        same={"data": hashes, "tokenizer": tokenizer_hash(model)},
        about={"teacher_forwards": dataset.forwards},
        announce=lambda state: context.log(announcement),
        data=texts.held_out_hash,
    )
    drive(run, job, context.control)
    return _reported(context, texts)


def _planned(
    plan: FinetuneTraining, source: Any, model: LoadedModel, device: torch.device, fresh: bool
) -> FinetuneTraining:
    batch = max(1, min(round(8192 / source.mean), source.count // 8))
    epochs = max(3.0, min(30.0, STEPS * batch / source.count))
    learning_rate = model.family.learning_rate * (768 / model.config.width) ** 0.5
    settled = decided(plan, source, device, batch, epochs, learning_rate if fresh else learning_rate / 5)
    every = plan.evaluate_every or max(1, (settled.steps or 1) // 10)
    return replace(settled, evaluate_every=every, save_every=plan.save_every or every)


def _reported(context: Distillation, texts: LanguageTexts) -> Model:
    """How much the student has kept: bits per byte of held-out text, beside its teacher's."""
    run = context.run
    model = load(run.folder, device=context.device)
    ours = perplexity(model.opened, texts.held_out).bits_per_byte
    theirs = min((perplexity(each, texts.held_out).bits_per_byte for each in context.models), key=lambda s: s.value)
    if not math.isfinite(theirs.value):
        context.log("weft: note: the teacher gives probability 0 to some held-out words: nothing to compare with")
        return load(run.folder)
    share = theirs.value / ours.value
    write_json(
        run.inside / "kept.json", {"bits_per_byte": {"teacher": asdict(theirs), "student": asdict(ours)}, "kept": share}
    )
    others = tuple(metric for metric in model.card.metrics if metric.name != "bits_per_byte")
    metric = Metric(data=texts.held_out_hash, name="bits_per_byte", **asdict(ours))
    run.save_model(model.opened, (*others, metric))
    context.log(
        f"{run.folder}: {ours.value:.4f} bits per byte of held-out text ({ours.low:.4f} to {ours.high:.4f}), "
        f"the teacher {theirs.value:.4f}: {100 * share:.1f} % kept"
    )
    return load(run.folder)
