"""`weft.pretrain`: from text to a trained model, in a run folder that can be resumed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from weft.checkpoint.card import TextLayout
from weft.checkpoint.families import Family
from weft.checkpoint.folder import LoadedModel
from weft.checkpoint.locate import find_folder
from weft.config import changed
from weft.data.rows import Feed, Streams, in_two_phases
from weft.errors import UserError, listed, refuse
from weft.objectives.base import Objective
from weft.objectives.language import CarriedToken, MaskedWords, NextToken, StreamStates, Writing
from weft.progress import Log, ProgressChoice, log_notes, to_logger
from weft.runs.architecture import chosen_family, find_vectors, from_folder, from_scratch, size_of, vocabulary_for
from weft.runs.counts import check_counting, count_text
from weft.runs.dataset import (
    TextDataset,
    absolute_paths,
    document_kind_of,
    gather_text,
    named_files,
    text_of,
    texts_of,
)
from weft.runs.driver import Job, begun, check_tensorboard, device_for, drive, new_run, settled
from weft.runs.recipes import Recipe, overlaid, read_recipe
from weft.tasks.forward import tokenizer_of
from weft.tasks.model import Model, load
from weft.text.rows import Skipped
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.training.plan import Training
from weft.training.run import Run, State
from weft.training.signals import Control
from weft.training.step import Setup

RECIPE = Recipe  # what `weft.resume` reads


def pretrain(
    recipe: Recipe | str | None = None,
    settings: Mapping[str, Any] | None = None,
    *,
    log: Log = to_logger,
    progress: ProgressChoice = None,
    **more: Any,
) -> Model:
    """Train a language model on text: a recipe, settings in its place, or both.

    `weft.pretrain(model={"family": "gpt2", "size": "4x128"}, text={"files": ["corpus.txt"]}, out="runs/gpt")`
    """
    if not isinstance(recipe, Recipe):
        recipe = read_recipe(recipe, overlaid(settings or {}, more), Recipe)
    run = new_run(recipe)
    _family(recipe)  # all that can be wrong without reading the text is checked before anything is made
    if "vectors" in recipe.model:
        find_vectors(recipe.model["vectors"])
    paths = text_of(recipe).paths()
    if not paths:
        raise UserError("no text: give --text FILE")
    dev = replace(text_of(recipe), files=recipe.text.dev).paths()
    both = {path.absolute() for path in paths} & {path.absolute() for path in dev}
    if both:
        raise UserError(f"{min(both)}: is both text and held out")
    # With absolute paths the run can be resumed from any folder.
    text = {"files": [str(p.absolute()) for p in paths], "dev": [str(p.absolute()) for p in dev]}
    recipe = changed(recipe, {"text": text, **absolute_paths(recipe)})
    recipe = changed(recipe, {"text": {"documents": document_kind_of(recipe, log)}})
    with begun(run, recipe, log, progress) as control:
        return go(run, recipe, control)


def _family(recipe: Recipe) -> Family:
    """The family to train, with every choice of the model and the objective checked."""
    family, aim = chosen_family(recipe.model, recipe.tokenizer), recipe.objective
    name, carries, carried = aim.name, family.network.CARRIES, (aim.rows or family.rows) == "carried"
    pairs = name in ("mlm+nsp", "mlm+sop") and aim.rows not in (None, "stream", "documents")
    unfit = name is not None and name not in family.objectives
    refuse(
        ("words" not in family.names.heads, f"{family.name} has no head for words, so it cannot be pre-trained"),
        (not family.objectives, f"{family.name} learns from pairs: weft finetune --task translate"),
        (pairs, f"objective {name} makes pairs of texts: rows may be stream or documents, not {aim.rows}"),
    )
    if family.counts:
        check_counting(recipe)
    check_tensorboard(recipe)
    stateless = f"{family.name} has no state"
    refuse(
        (recipe.training.watch_gradients and not carries, f"{stateless}: watch_gradients is for rnn, lstm and gru"),
        (carried and not carries, f"{stateless}: rows carried is for rnn, lstm and gru"),
        (carried and aim.short is not None, "rows carried have one length: leave out objective.short"),
        (unfit, f"objective {name} does not fit {family.name}, which learns by {listed(family.objectives)}"),
    )
    return family


def go(run: Run, recipe: Recipe, control: Control) -> Model:
    """From the recipe in a run folder to the best model; from its last checkpoint on where there is one."""
    family = _family(recipe)
    base, name = recipe.model.get("base"), recipe.objective.name or family.objectives[0]

    def vocabularies(like: Tokenizer | None) -> tuple[Tokenizer]:
        skipped = Skipped()
        with named_files(recipe.text.files):
            texts, next_token = text_of(recipe).read(skipped), family.counts or name == "next"
            tokenizer = vocabulary_for(run.folder, recipe.tokenizer, family, next_token, texts, control, like)
        log_notes(skipped.lines(), control.log)
        return (tokenizer,)

    if family.counts:
        return count_text(run, recipe, family, vocabularies(None)[0], control)
    device_for(recipe.device, recipe.training.threads)  # that there is none shows before anything is learned
    objective: Objective = MaskedWords(pairs=name != "mlm")
    if name in ("next", "spans"):
        objective = NextToken() if name == "next" else Writing()
    if base is not None:  # heads that the base lacks start fresh
        model = from_folder(find_folder(base), objective.heads, "words", None, recipe.seed).opened
        refuse((model.tokenizer is None, f"{base}: has no tokenizer"))
    else:
        length, given = recipe.objective.length, "context" in recipe.model or family.row is not None
        context = {} if length is None or given else {"context": length}
        on_bad_row = recipe.text.on_bad_row
        recipe, model = from_scratch(run, recipe, objective.heads, context, vocabularies, control, on_bad_row)
    rows = recipe.objective.rows or family.rows
    recipe = changed(recipe, {"objective": {"name": name, "rows": rows}}, run.recipe.name)
    options: dict[str, Any] = {}
    if base is not None:  # a fifth of the usual learning rate, so that the base does not forget; its path is private
        options = {"base": Path(base).name, "share": 0.2, "evaluate_first": True}
    drive(run, text_job(run, recipe, model, objective, control, **options), control)
    return load(run.folder)


def text_job(
    run: Run,
    recipe: Recipe,
    model: LoadedModel,
    objective: Objective,
    control: Control,
    *,
    base: str | None = None,
    share: float = 1.0,
    evaluate_first: bool = False,
    capture: bool = False,
) -> Job:
    """Train a model on the text of a recipe, whose objective has its name and its kind of rows already.

    `base`: what it began from; `share` of the usual learning rate; `capture`: full rows may go through CUDA graphs.
    """
    aim, name = recipe.objective, recipe.objective.name
    assert name is not None
    device = device_for(recipe.device, recipe.training.threads)
    length, context = aim.length or model.family.row or model.config.context, model.config.context
    if length > context:
        raise UserError(f"rows of {length} tokens are longer than the model's context of {context}")
    recipe = changed(recipe, {"objective": {"length": length}}, run.recipe.name)
    filled = recipe.training.compile or (capture and device.type == "cuda")
    dataset = gather_text(recipe, tokenizer_of(model), control, model.config.begin, filled)
    plan = _resolved(recipe, dataset, model, device, share)
    if isinstance(dataset.source, Streams):
        dataset = replace(dataset, source=replace(dataset.source, streams=plan.batch or 1))
        objective = CarriedToken(StreamStates(plan.batch or 1))
    feed = Feed(dataset.source, dataset.prepare, recipe.seed, plan.batch or 1)
    if dataset.short is not None:
        feed = in_two_phases(feed, dataset.short, round(aim.short_share * (plan.steps or 1)))
    recipe = replace(recipe, training=plan, device=str(device))
    card = replace(
        model.card,
        task="fill" if name == "spans" else model.family.task,
        base=base,
        text=TextLayout(documents=recipe.text.documents, rows=aim.rows or "stream"),
    )
    setup = Setup(
        network=model.network,
        objective=objective,
        feed=feed,
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
        announce=lambda state: _announce(run, recipe, model, dataset, setup, state, control.log),
    )


def _resolved(recipe: Recipe, dataset: TextDataset, model: LoadedModel, device: torch.device, share: float) -> Training:
    """The plan with every open choice made, so that the recipe in the run folder has them all."""
    plan, source = recipe.training, dataset.source
    if dataset.held_out is not None:
        _ = dataset.held_out.count  # refuses held-out text that is too short now, not after an hour
    rows = source.count  # refuses a text that is too short for one
    stream = "" if recipe.objective.rows == "stream" else "give --rows stream, or "
    uneven = plan.compile and device.type == "cpu" and not source.even
    timed = dataset.short is not None and plan.minutes is not None
    refuse(
        (plan.patience is not None and dataset.held_out is None, "patience needs held-out text"),
        (uneven, f"on the CPU only full rows can be compiled, and these are not: {stream}leave out --compile"),
        (timed, "objective.short needs --steps or --epochs, not --minutes"),
    )
    batch = plan.batch or max(1, round(8192 / source.mean))
    in_epoch = rows / batch
    steps = plan.steps or (math.ceil(plan.epochs * in_epoch) if plan.epochs is not None else None)
    if steps is None and plan.minutes is None:
        steps = max(1000, math.ceil(3 * in_epoch))
    every = plan.evaluate_every or (None if plan.minutes is not None else max(1, (steps or 1) // 10))
    usual = model.family.learning_rate * (768 / model.config.width) ** 0.5  # smaller models take larger steps
    return settled(plan, device, batch, steps, every, share * usual)


def _announce(
    run: Run, recipe: Recipe, model: LoadedModel, dataset: TextDataset, setup: Setup, state: State, log: Log
) -> None:
    feed, corpus, minutes = setup.feed, dataset.corpus, setup.plan.minutes if state.steps is None else None
    parameters = sum(parameter.numel() for parameter in model.network.parameters())
    mean, length, documents = dataset.source.mean, recipe.objective.length or 0, len(corpus.documents) - 1
    first, short = "", ""
    if feed.first is not None:
        shorter = feed.first
        first = f"; the first {feed.border:,} of them {shorter.rows} rows of about {shorter.source.mean:.0f} tokens"
    if 2 * mean < length:
        short = f"\nrows are under half of --length {length}: the text has only {corpus.size:,} tokens"
        if recipe.objective.rows == "documents" and corpus.size >= length:
            each = f"each is one document, of {corpus.size / documents:.0f} tokens on average"
            short = (
                f"\nrows are under half of --length {length}: {each}; --rows stream fills rows with several documents"
            )
    held_out = f", held out {dataset.dev.size:,}" if dataset.dev is not None else ""
    if held_out and recipe.objective.name == "next":
        held_out += " (its perplexity includes the ends of documents)"
    steps = state.steps or setup.steps
    amount = f"{steps:,} steps" if minutes is None else f"{minutes:g} minutes of steps"
    epochs = f", {steps * feed.rows / dataset.source.count:.1f} epochs" if minutes is None else ""
    log(
        f"{run.folder}: {model.family.name}, {size_of(model.config)}, "
        f"{parameters:,} parameters, on {setup.device.type} in {setup.precision}\n"
        f"text: {corpus.size:,} tokens in {documents:,} documents{held_out}\n"
        f"plan: {amount} of {feed.rows} rows of about {mean:.0f} tokens{epochs}{first}"
        f"{f'; from step {state.step:,}' if state.step else ''}{short}"
    )
