"""A language model learns from text: what every run on plain text does once there is a model to train."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import torch

from weft.checkpoint.card import Made, Metric, TextLayout
from weft.checkpoint.folder import LoadedModel
from weft.config import changed, write_toml
from weft.data.batching import Feed, in_two_phases
from weft.data.streams import Streams
from weft.errors import UserError
from weft.objectives.carrying import CarriedToken, Memory
from weft.objectives.language import Objective
from weft.progress import Log, Progress
from weft.runs.architecture import size_of
from weft.runs.corpus import Material, gather
from weft.runs.driver import Altered, begin, device_for, drive, half_precision, pass_tokens
from weft.runs.recipes import Recipe
from weft.tasks.forward import tokenizer_of
from weft.tasks.model import Model, load
from weft.training.loop import UNKNOWN
from weft.training.plan import Training
from weft.training.run import Run
from weft.training.setup import Setup
from weft.training.signals import Stop
from weft.training.state import State


def as_it_is(recipe: Recipe) -> Any:
    """The recipe itself is what a run keeps."""
    return recipe


def learn_text(
    run: Run,
    recipe: Recipe,
    opened: LoadedModel,
    objective: Objective,
    fresh: bool,
    stop: Stop,
    log: Log,
    progress: Progress,
    *,
    base: str | None = None,
    share: float = 1.0,
    evaluate_first: bool = False,
    noted: Callable[[Recipe], Any] = as_it_is,
    also: Mapping[str, Any] | None = None,
    capture: bool = False,
    finished: Callable[[Setup, State], None] | None = None,
) -> Model:
    """Train a model on the text of a recipe, whose objective has its name and its kind of rows already.

    `base`: what it began from, for its card; `share` of the usual rate; `noted` is what becomes of the recipe, with
    every open choice made, in the run folder; `also` must be the same when the run is gone on with; `capture`: passes
    over full rows may be played back from CUDA graphs; `finished` has the last word.
    """
    also, family, name = also or {}, opened.family, recipe.objective.name
    assert name is not None
    device = device_for(recipe.device, recipe.training.threads)
    tokenizer = tokenizer_of(opened)
    length = recipe.objective.length or family.row or opened.config.context
    if length > opened.config.context:
        raise UserError(f"rows of {length} tokens are longer than the model's context of {opened.config.context}")
    recipe = changed(recipe, {"objective": {"length": length}}, run.recipe.name)
    begin_with = opened.config.begin
    filled = recipe.training.compile or (capture and device.type == "cuda")
    material = gather(recipe, name, tokenizer, length, begin_with, stop, log, progress, filled)
    plan = _resolved(recipe, material, opened, device, share)
    if isinstance(material.source, Streams):
        material = replace(material, source=material.source.of(plan.batch or 1))
        objective = CarriedToken(Memory(plan.batch or 1))
    if plan.patience is not None and material.held_out is None:
        raise UserError("patience needs held-out text to judge by")
    if plan.compile and device.type == "cpu" and not material.source.even:
        full = (
            "leave out --compile" if recipe.objective.rows == "stream" else "give --rows stream, or leave out --compile"
        )
        raise UserError(f"on the CPU only full rows can be compiled, and these are not: {full}")
    recipe = replace(recipe, training=plan, device=str(device))
    about = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": recipe.seed,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "parameters": sum(parameter.numel() for parameter in opened.network.parameters()),
        "text": {"hash": material.corpus.hash, "tokens": material.corpus.size},
        "held_out": {"hash": material.dev.hash, "tokens": material.dev.size} if material.dev else None,
    }
    if fresh or not run.about.exists():
        write_toml(noted(recipe), run.recipe)
        run.describe({**about, **also})
    else:
        before = run.info()
        if before.text != about["text"] or before.held_out != about["held_out"]:
            raise Altered(f"{run.folder}: the text is not the one that the run began with")
        for key, value in also.items():
            if vars(before)[key] != value:
                raise Altered(f"{run.folder}: the {key} is not the one that the run began with")
    begun = begin(run, plan.keep, plan.pass_tokens or 0, log)
    known = plan.steps if plan.minutes is None else begun.state.steps
    steps = known or min(UNKNOWN, plan.steps or UNKNOWN)
    card = replace(
        opened.card,
        task="fill" if name == "spans" else family.task,  # what was learned; a T5 is for more than that
        base=base,
        recipe=hashlib.sha256(run.recipe.read_bytes()).hexdigest(),
        made=Made(seed=recipe.seed, date=datetime.now(UTC).date().isoformat()),
        text=TextLayout(documents=recipe.text.documents, rows=recipe.objective.rows or "stream"),
    )
    opened = replace(opened, card=card)
    feed = Feed(material.source, material.prepare, recipe.seed, plan.batch or 1)
    if material.short is not None and plan.minutes is not None:
        raise UserError("short rows are for a share of the steps, and minutes do not say how many there are")
    if material.short is not None:
        feed = in_two_phases(feed, material.short, round(recipe.objective.short_share * steps))
    _announce(run, recipe, opened, material, feed, begun.state, steps, device, log)
    setup = Setup(
        network=opened.network,
        objective=objective,
        feed=feed,
        held_out=material.held_out,
        plan=plan,
        learning_rate=plan.learning_rate or 0.0,
        steps=steps,
        evaluate_every=plan.evaluate_every or steps,
        save_every=plan.save_every or steps,
        device=device,
        precision=plan.precision,
        seed=recipe.seed,
        words_of=tokenizer.decode,
        evaluate_first=evaluate_first,
        minutes=plan.minutes,
        most=plan.steps,
        # Recurrent kernels are many and small: played back from a graph they need not be launched one by one.
        capture=(capture or opened.network.CARRIES) and material.source.even and not plan.compile,
    )
    kept = material.dev.hash if material.dev else material.corpus.hash

    def keep_best(found: dict[str, float]) -> None:
        run.save_model(opened, tuple(Metric(data=kept, name=name, value=value) for name, value in found.items()))

    state = drive(run, setup, begun, recipe.tensorboard, keep_best, stop, log, progress=progress)
    if finished is not None:
        finished(setup, state)
    return load(run.folder)


def _resolved(recipe: Recipe, material: Material, opened: LoadedModel, device: torch.device, share: float) -> Training:
    """The plan with every open choice made, so that the recipe in the run folder says it all."""
    plan = recipe.training
    count, mean = material.source.count, material.source.mean
    if material.held_out is not None:
        _ = material.held_out.count  # whether there is anything to judge by is said now, not after an hour
    batch = plan.batch or max(1, round(8192 / mean))
    in_epoch = count / batch
    steps = plan.steps or (math.ceil(plan.epochs * in_epoch) if plan.epochs is not None else None)
    if steps is None and plan.minutes is None:
        steps = max(1000, math.ceil(3 * in_epoch))
    usual = opened.family.learning_rate * (768 / opened.config.width) ** 0.5  # smaller models take larger steps
    every = plan.evaluate_every or (None if plan.minutes is not None else max(1, (steps or 1) // 10))
    return replace(
        plan,
        steps=steps,
        epochs=None,
        batch=batch,
        pass_tokens=plan.pass_tokens or pass_tokens(device),
        learning_rate=plan.learning_rate or share * usual,
        evaluate_every=every,
        save_every=plan.save_every or every,
        log_every=min(plan.log_every, steps or plan.log_every),
        precision=half_precision(device) if plan.precision == "auto" else plan.precision,
        threads=plan.threads or torch.get_num_threads(),
    )


def _why_short(recipe: Recipe, material: Material) -> str:
    """Why rows are under half of the length asked for, and what to do about it; nothing where they are not."""
    mean, length = material.source.mean, recipe.objective.length or 0
    if 2 * mean >= length:
        return ""
    documents = len(material.corpus.documents) - 1
    if recipe.objective.rows == "documents" and material.corpus.size >= length:
        size = material.corpus.size / documents
        return (
            f"\nrows are under half of --length {length}: each is one document, of {size:.0f} tokens on average; "
            "--rows stream fills rows with several documents"
        )
    return f"\nrows are under half of --length {length}: the text has only {material.corpus.size:,} tokens"


def _announce(
    run: Run,
    recipe: Recipe,
    opened: LoadedModel,
    material: Material,
    feed: Feed,
    state: State,
    steps: int,
    device: torch.device,
    log: Log,
) -> None:
    parameters = sum(parameter.numel() for parameter in opened.network.parameters())
    first = ""
    if feed.first is not None:
        short = feed.first
        first = f"; the first {feed.border:,} of them {short.rows} rows of about {short.source.mean:.0f} tokens"
    judged = f", held out {material.dev.size:,}" if material.dev is not None else ""
    if judged and recipe.objective.name == "next":
        judged += " (its perplexity counts the ends of documents too)"
    minutes = recipe.training.minutes if state.steps is None else None
    amount = f"{steps:,} steps" if minutes is None else f"{minutes:g} minutes of steps"
    epochs = f", {steps * feed.rows / material.source.count:.1f} epochs" if minutes is None else ""
    log(
        f"{run.folder}: {opened.family.name}, {size_of(opened.config)}, "
        f"{parameters:,} parameters, on {device.type} in {recipe.training.precision}\n"
        f"text: {material.corpus.size:,} tokens in {len(material.corpus.documents) - 1:,} documents{judged}\n"
        f"plan: {amount} of {feed.rows} rows of about {material.source.mean:.0f} tokens{epochs}{first}"
        + (f"; from step {state.step:,}" if state.step else "")
        + _why_short(recipe, material)
    )
    if state.finished:
        log(f"{run.folder}: this run has finished already")
