"""A language model learns from text: the job of every run on plain text, once there is a model to train."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from weft.checkpoint.card import TextLayout
from weft.checkpoint.folder import LoadedModel
from weft.config import changed
from weft.data.batching import Feed, in_two_phases
from weft.data.rows import Streams
from weft.errors import UserError
from weft.objectives.base import Objective
from weft.objectives.carrying import CarriedToken, StreamStates
from weft.progress import Log, Progress
from weft.runs.architecture import size_of
from weft.runs.corpus import TextDataset, gather, texts_of
from weft.runs.driver import Job, device_for, settled
from weft.runs.recipes import Recipe
from weft.tasks.forward import tokenizer_of
from weft.training.plan import Training
from weft.training.run import Run
from weft.training.setup import Setup
from weft.training.signals import Stop
from weft.training.state import State


def text_job(
    run: Run,
    recipe: Recipe,
    model: LoadedModel,
    objective: Objective,
    stop: Stop,
    log: Log,
    progress: Progress,
    *,
    base: str | None = None,
    share: float = 1.0,
    evaluate_first: bool = False,
    capture: bool = False,
) -> Job:
    """Train a model on the text of a recipe, whose objective has its name and its kind of rows already.

    `base`: what it began from, for its card; `share` of the usual learning rate; `capture`: passes over full rows
    may be played back from CUDA graphs.
    """
    aim, name = recipe.objective, recipe.objective.name
    assert name is not None
    device = device_for(recipe.device, recipe.training.threads)
    length = _length(recipe, model)
    recipe = changed(recipe, {"objective": {"length": length}}, run.recipe.name)
    filled = recipe.training.compile or (capture and device.type == "cuda")
    dataset = gather(recipe, name, tokenizer_of(model), length, model.config.begin, stop, log, progress, filled)
    plan = _resolved(recipe, dataset, model, device, share)
    if isinstance(dataset.source, Streams):
        dataset = replace(dataset, source=dataset.source.of(plan.batch or 1))
        objective = CarriedToken(StreamStates(plan.batch or 1))
    _check(recipe, plan, dataset, device)
    recipe = replace(recipe, training=plan, device=str(device))
    card = replace(
        model.card,
        task="fill" if name == "spans" else model.family.task,  # what was learned; a T5 is for more than that
        base=base,
        text=TextLayout(documents=recipe.text.documents, rows=aim.rows or "stream"),
    )
    setup = Setup(
        network=model.network,
        objective=objective,
        feed=_feed(recipe, dataset),
        held_out=dataset.held_out,
        plan=plan,
        device=device,
        decode=tokenizer_of(model).decode,
        evaluate_first=evaluate_first,
        # Recurrent kernels are many and small: played back from a graph they need not be launched one by one.
        capture=(capture or model.network.CARRIES) and dataset.source.even and not plan.compile,
    )
    return Job(
        recipe=recipe,
        model=replace(model, card=card),
        setup=setup,
        data=dataset.dev.hash if dataset.dev else dataset.corpus.hash,
        same=texts_of(dataset),
        announce=lambda state: _announce(run, recipe, model, dataset, setup, state, log),
    )


def _length(recipe: Recipe, model: LoadedModel) -> int:
    """Tokens of a row."""
    length, context = recipe.objective.length or model.family.row or model.config.context, model.config.context
    if length > context:
        raise UserError(f"rows of {length} tokens are longer than the model's context of {context}")
    return int(length)


def _feed(recipe: Recipe, dataset: TextDataset) -> Feed:
    """The batches of each step; in the first steps of shorter rows, where asked for."""
    plan = recipe.training
    feed = Feed(dataset.source, dataset.prepare, recipe.seed, plan.batch or 1)
    if dataset.short is None:
        return feed
    return in_two_phases(feed, dataset.short, round(recipe.objective.short_share * (plan.steps or 1)))


def _check(recipe: Recipe, plan: Training, dataset: TextDataset, device: torch.device) -> None:
    if plan.patience is not None and dataset.held_out is None:
        raise UserError("patience needs held-out text to judge by")
    if plan.compile and device.type == "cpu" and not dataset.source.even:
        rows = "" if recipe.objective.rows == "stream" else "give --rows stream, or "
        raise UserError(f"on the CPU only full rows can be compiled, and these are not: {rows}leave out --compile")
    if dataset.short is not None and plan.minutes is not None:
        raise UserError("objective.short needs --steps or --epochs, not --minutes")


def _resolved(recipe: Recipe, dataset: TextDataset, model: LoadedModel, device: torch.device, share: float) -> Training:
    """The plan with every open choice made, so that the recipe in the run folder says it all."""
    plan, source = recipe.training, dataset.source
    if dataset.held_out is not None:
        _ = dataset.held_out.count  # whether there is anything to judge by is checked now, not after an hour
    rows = source.count  # refuses a text that is too short for one
    batch = plan.batch or max(1, round(8192 / source.mean))
    in_epoch = rows / batch
    steps = plan.steps or (math.ceil(plan.epochs * in_epoch) if plan.epochs is not None else None)
    if steps is None and plan.minutes is None:
        steps = max(1000, math.ceil(3 * in_epoch))
    every = plan.evaluate_every or (None if plan.minutes is not None else max(1, (steps or 1) // 10))
    usual = model.family.learning_rate * (768 / model.config.width) ** 0.5  # smaller models take larger steps
    return settled(plan, device, batch, steps, every, share * usual)


def _why_short(recipe: Recipe, dataset: TextDataset) -> str:
    """Why rows are under half of the length asked for, and what to do about it; nothing where they are not."""
    length, tokens = recipe.objective.length or 0, dataset.corpus.size
    if 2 * dataset.source.mean >= length:
        return ""
    if recipe.objective.rows == "documents" and tokens >= length:
        size = tokens / (len(dataset.corpus.documents) - 1)
        return (
            f"\nrows are under half of --length {length}: each is one document, of {size:.0f} tokens on average; "
            "--rows stream fills rows with several documents"
        )
    return f"\nrows are under half of --length {length}: the text has only {tokens:,} tokens"


def _announce(
    run: Run, recipe: Recipe, model: LoadedModel, dataset: TextDataset, setup: Setup, state: State, log: Log
) -> None:
    feed, corpus, minutes = setup.feed, dataset.corpus, setup.plan.minutes if state.steps is None else None
    parameters = sum(parameter.numel() for parameter in model.network.parameters())
    first = ""
    if feed.first is not None:
        short = feed.first
        first = f"; the first {feed.border:,} of them {short.rows} rows of about {short.source.mean:.0f} tokens"
    held_out = f", held out {dataset.dev.size:,}" if dataset.dev is not None else ""
    if held_out and recipe.objective.name == "next":
        held_out += " (its perplexity counts the ends of documents too)"
    steps = state.steps or setup.steps
    amount = f"{steps:,} steps" if minutes is None else f"{minutes:g} minutes of steps"
    epochs = f", {steps * feed.rows / dataset.source.count:.1f} epochs" if minutes is None else ""
    log(
        f"{run.folder}: {model.family.name}, {size_of(model.config)}, "
        f"{parameters:,} parameters, on {setup.device.type} in {setup.precision}\n"
        f"text: {corpus.size:,} tokens in {len(corpus.documents) - 1:,} documents{held_out}\n"
        f"plan: {amount} of {feed.rows} rows of about {dataset.source.mean:.0f} tokens{epochs}{first}"
        + (f"; from step {state.step:,}" if state.step else "")
        + _why_short(recipe, dataset)
    )
