"""`weft.pretrain`: from text to a trained model, in a run folder that can be gone on with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from weft.checkpoint.card import TextLayout
from weft.checkpoint.families import Family
from weft.checkpoint.folder import LoadedModel, open_folder
from weft.checkpoint.locate import find_folder
from weft.config import changed
from weft.data.batching import Feed, in_two_phases
from weft.data.rows import Streams
from weft.errors import UserError, listed
from weft.objectives.losses import CarriedToken, MaskedWords, NextToken, Objective, StreamStates, Writing
from weft.progress import Log, ProgressChoice, log_notes, to_logger
from weft.runs.architecture import (
    Start,
    begun_from,
    chosen_family,
    fill_table,
    find_vectors,
    size_of,
    sizes_of,
    vocabulary_for,
)
from weft.runs.corpus import TextDataset, gather, named_files, resolved_documents, text_of, texts_of
from weft.runs.counts import check_counting, count_text
from weft.runs.dataset import absolute
from weft.runs.driver import Job, begun, check_tensorboard, device_for, drive, new_run, settled
from weft.runs.recipes import Recipe, overlaid, read_recipe
from weft.tasks.forward import tokenizer_of
from weft.tasks.model import Model, load, new
from weft.text.row_problems import Skipped
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
    # With whole paths the run can be gone on with from any folder.
    values: dict[str, Any] = {
        "text": {"files": [str(p.absolute()) for p in paths], "dev": [str(p.absolute()) for p in dev]}
    }
    if "base" in recipe.model and Path(recipe.model["base"]).is_dir():
        values["model"] = {"base": absolute(recipe.model["base"])}
    if "vectors" in recipe.model:
        values["model"] = {"vectors": absolute(recipe.model["vectors"])}
    if recipe.tokenizer.folder is not None:
        values["tokenizer"] = {"folder": absolute(recipe.tokenizer.folder)}
    recipe = changed(recipe, values)
    recipe = changed(recipe, {"text": {"documents": resolved_documents(recipe, log)}})
    with begun(run, recipe, log, progress) as control:
        return go(run, recipe, control)


def _family(recipe: Recipe) -> Family:
    """The family to train, with every choice of the model and the objective checked."""
    family = chosen_family(recipe.model, recipe.tokenizer, sizes_of(recipe.model))
    if "words" not in family.names.heads:
        raise UserError(f"{family.name} has no head for words, so it cannot be pre-trained")
    if not family.objectives:
        raise UserError(f"{family.name} learns from pairs: weft finetune --task translate")
    name = recipe.objective.name
    if name in ("mlm+nsp", "mlm+sop") and recipe.objective.rows not in (None, "stream", "documents"):
        raise UserError(
            f"objective {name} makes pairs of texts: rows may be stream or documents, not {recipe.objective.rows}"
        )
    if family.counts:
        check_counting(recipe)
    if recipe.training.watch_gradients and not family.network.CARRIES:
        raise UserError(f"{family.name} has no state that gradients go through; watch_gradients is for rnn, lstm, gru")
    if (recipe.objective.rows or family.rows) == "carried":
        if not family.network.CARRIES:
            raise UserError(f"{family.name} takes nothing from row to row: rows carried is for rnn, lstm and gru")
        if recipe.objective.short is not None:
            raise UserError("rows that carry a state are of one length: leave out objective.short, or say rows stream")
    check_tensorboard(recipe)
    if name is not None and name not in family.objectives:
        raise UserError(f"objective {name} does not fit {family.name}, which learns by {listed(family.objectives)}")
    return family


def go(run: Run, recipe: Recipe, control: Control) -> Model:
    """From the recipe in a run folder to the best model; from its last checkpoint on where there is one."""
    family = _family(recipe)
    if family.counts:
        words = _tokenizer(run, recipe, family, "next", None, control)
        return count_text(run, recipe, family, words, control)
    device_for(recipe.device, recipe.training.threads)  # that there is none shows before anything is learned
    base, name = recipe.model.get("base"), recipe.objective.name or family.objectives[0]
    objective: Objective = MaskedWords(pairs=name != "mlm")
    if name in ("next", "spans"):
        objective = NextToken() if name == "next" else Writing()
    if base is not None:
        model = _continued(base, objective, recipe.seed)
    else:
        recipe, model = _from_scratch(run, recipe, family, name, objective, control)
    rows = recipe.objective.rows or family.rows
    recipe = changed(recipe, {"objective": {"name": name, "rows": rows}}, run.recipe.name)
    job = text_job(
        run,
        recipe,
        model,
        objective,
        control,
        base=None if base is None else Path(base).name,  # what lies where on this machine is nobody's business
        share=1.0 if base is None else 0.2,  # of the usual learning rate: what is known already is not to be lost
        evaluate_first=base is not None,
    )
    drive(run, job, control)
    return load(run.folder)


def _from_scratch(
    run: Run, recipe: Recipe, family: Family, name: str, objective: Objective, control: Control
) -> tuple[Recipe, LoadedModel]:
    """A new model with the run's vocabulary, and the recipe with its sizes."""
    start: Start | None = None
    if "vectors" in recipe.model and run.checkpoints().newest() is None:  # later on the weights lie in the run
        with_width, start = begun_from(recipe.model, family, recipe.text.on_bad_row)
        recipe = replace(recipe, model=with_width)
    like = None if start is None else start.tokenizer
    tokenizer = _tokenizer(run, recipe, family, name, like, control)
    sizes = sizes_of(recipe.model)
    if recipe.objective.length is not None and family.row is None:  # unless given, or where it has no end
        sizes.setdefault("context", recipe.objective.length)
    model = new(
        str(recipe.model["family"]),
        tokenizer,
        size=recipe.model.get("size"),
        settings=sizes,
        heads=objective.heads,
        seed=recipe.seed,
        where="[model]",
    ).opened
    if start is not None:
        fill_table(model.network, tokenizer, start, recipe.seed, control.log)
    return recipe, model


def _continued(base: str, objective: Objective, seed: int) -> LoadedModel:
    """A model to go on from, with the heads that the objective needs; those it lacks begin fresh."""
    folder = find_folder(base)
    opened = open_folder(folder)
    wanted = {
        head: opened.config.vocabulary if outputs is None else outputs for head, outputs in objective.heads.items()
    }
    missing = {head: outputs for head, outputs in wanted.items() if head not in opened.heads}
    if missing:
        opened = open_folder(folder, missing, [head for head in wanted if head in opened.heads], seed)
    if opened.tokenizer is None:
        raise UserError(f"{base}: has no tokenizer")
    opened.network.float()
    return opened


def _tokenizer(
    run: Run, recipe: Recipe, family: Family, name: str, like: Tokenizer | None, control: Control
) -> Tokenizer:
    skipped = Skipped()
    with named_files(recipe.text.files):
        texts = text_of(recipe).read(skipped)
        tokenizer = vocabulary_for(run.folder, recipe.tokenizer, family, name == "next", texts, control, like)
    log_notes(skipped.lines(), control.log)
    return tokenizer


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
    dataset = gather(recipe, name, tokenizer_of(model), length, model.config.begin, control, filled)
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
        announce=lambda state: _announce(run, recipe, model, dataset, setup, state, control.log),
    )


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
