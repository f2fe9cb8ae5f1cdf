"""`weft.pretrain`: from text to a trained model, in a run folder that can be gone on with."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from weft.checkpoint.card import Made, Metric
from weft.checkpoint.families import Family
from weft.checkpoint.folder import Opened, open_folder
from weft.config import changed, read_toml, write_toml
from weft.data.batching import Feed, in_two_phases
from weft.data.streams import Streams
from weft.errors import UserError, listed
from weft.files import read_json
from weft.objectives.carrying import CarriedToken, Memory
from weft.objectives.language import MaskedWords, NextToken, Objective
from weft.objectives.sequences import Writing
from weft.tasks.choosing import chosen_family, size_of, sizes_of, vocabulary_for
from weft.tasks.counting import check_counting, count_text
from weft.tasks.driving import Altered, begin, begun, device_for, drive, half_precision, pass_tokens
from weft.tasks.material import Material, gather, text_of
from weft.tasks.model import Model, find_folder, load, new
from weft.tasks.recipes import Recipe, read_recipe
from weft.tasks.saying import Progress, Say, silent, to_stderr
from weft.tasks.starting import Start, begun_from, fill_table, find_vectors
from weft.text.records import Skipped
from weft.text.tokenizer import Tokenizer
from weft.training.loop import UNKNOWN
from weft.training.plan import Training
from weft.training.run import Run
from weft.training.setup import Setup
from weft.training.signals import Stop
from weft.training.state import State


def pretrain(
    recipe: Recipe | str | None = None,
    settings: Mapping[str, Any] | None = None,
    *,
    say: Say = to_stderr,
    progress: Progress = silent,
    **more: Any,
) -> Model:
    """Train a language model on text: a recipe, settings in its place, or both.

    `weft.pretrain(model={"family": "gpt2", "size": "4x128"}, text={"files": ["corpus.txt"]}, out="runs/gpt")`
    """
    if not isinstance(recipe, Recipe):
        recipe = read_recipe(recipe, {**(settings or {}), **more}, Recipe)
    if recipe.out is None:
        raise UserError("where should the run go? give --out FOLDER")
    run = Run(Path(recipe.out))
    run.check_new()
    family = _family(recipe)  # all that can be wrong without reading the text is said before anything is made
    if "vectors" in recipe.model:
        find_vectors(recipe.model["vectors"])
    paths = text_of(recipe).paths()
    if not paths:
        raise UserError("no text: give --text FILE")
    dev = replace(text_of(recipe), files=recipe.text.dev).paths()
    both = {path.absolute() for path in paths} & {path.absolute() for path in dev}
    if both:
        raise UserError(f"{min(both)}: is both text and held out")
    recipe = _from_anywhere(recipe, paths, dev)
    with begun(run, recipe) as stop:
        return _go(run, recipe, family, True, stop, say, progress)


def go_on(run: Run, stop: Stop, say: Say, progress: Progress) -> Model:
    """Go on with a run that was broken off; where it had finished, its model."""
    recipe = read_toml(Recipe, run.recipe)
    return _go(run, recipe, _family(recipe), False, stop, say, progress)


def _from_anywhere(recipe: Recipe, paths: list[Path], dev: list[Path]) -> Recipe:
    """The recipe with whole paths, so that the run can be gone on with from any folder."""
    values: dict[str, Any] = {
        "text": {"files": [str(p.absolute()) for p in paths], "dev": [str(p.absolute()) for p in dev]}
    }
    base, folder = recipe.model.get("base"), recipe.tokenizer.folder
    if base is not None and Path(base).is_dir():
        values["model"] = {"base": str(Path(base).absolute())}
    if "vectors" in recipe.model:
        values["model"] = {"vectors": str(Path(recipe.model["vectors"]).expanduser().absolute())}
    if folder is not None:
        values["tokenizer"] = {"folder": str(Path(folder).absolute())}
    return changed(recipe, values)


def _family(recipe: Recipe) -> Family:
    """The family to train, with every choice of the model and the objective checked."""
    family = chosen_family(recipe.model, recipe.tokenizer, sizes_of(recipe.model))
    if "words" not in family.names.heads:
        raise UserError(f"{family.name} has no head for words, so it cannot be pre-trained")
    if not family.objectives:
        raise UserError(f"{family.name} learns from pairs: weft finetune --task translate")
    name = recipe.objective.name
    if name in ("mlm+nsp", "mlm+sop") and recipe.objective.rows is not None:
        raise UserError(
            f"objective {name} makes its own rows, pairs of texts: rows {recipe.objective.rows} means nothing"
        )
    if family.counts:
        check_counting(recipe)
    if recipe.training.watch_gradients and not hasattr(family.network, "unrolled"):
        raise UserError(f"{family.name} has no state that gradients go through; watch_gradients is for rnn, lstm, gru")
    if (recipe.objective.rows or family.rows) == "carried":
        if not hasattr(family.network, "beginning"):
            raise UserError(f"{family.name} takes nothing from row to row: rows carried is for rnn, lstm and gru")
        if recipe.objective.short is not None:
            raise UserError("rows that carry a state are of one length: leave out objective.short, or say rows stream")
    if recipe.tensorboard and find_spec("tensorboard") is None:
        raise UserError("--tensorboard needs the package tensorboard: pip install 'weft[tensorboard]'")
    if name is not None and name not in family.objectives:
        raise UserError(f"objective {name} does not fit {family.name}, which learns by {listed(family.objectives)}")
    return family


def _sizes(recipe: Recipe, family: Family) -> dict[str, Any]:
    """The sizes of a fresh model; its context is the length of the rows unless said, or where it has no end."""
    sizes = sizes_of(recipe.model)
    if recipe.objective.length is not None and family.row is None:
        sizes.setdefault("context", recipe.objective.length)
    return sizes


def _go(run: Run, recipe: Recipe, family: Family, fresh: bool, stop: Stop, say: Say, progress: Progress) -> Model:
    if family.counts:
        words = _tokenizer(run, recipe, family, "next", None, stop, say, progress)
        return count_text(run, recipe, family, words, fresh, stop, say, progress)
    seed = recipe.seed
    device = device_for(recipe.device, recipe.training.threads)
    base = recipe.model.get("base")
    name = recipe.objective.name or family.objectives[0]
    rows = recipe.objective.rows or (family.rows if name in ("next", "mlm", "spans") else None)
    objective = _objective(name)
    opened = _continued(base, objective, seed) if base is not None else None
    start: Start | None = None
    if "vectors" in recipe.model and run.checkpoints().newest() is None:  # later on the weights lie in the run
        model, start = begun_from(recipe.model, family, recipe.text.on_bad_row)
        recipe = replace(recipe, model=model)
    like = None if start is None else start.tokenizer
    tokenizer = (
        opened.tokenizer if opened is not None else _tokenizer(run, recipe, family, name, like, stop, say, progress)
    )
    if tokenizer is None:
        raise UserError(f"{base}: has no tokenizer")
    if opened is None:
        settings = {key: recipe.model.get(key) for key in ("family", "size")}
        made = new(
            str(settings["family"]),
            tokenizer,
            size=settings["size"],
            settings=_sizes(recipe, family),
            heads=objective.heads,
            seed=seed,
            where="[model]",
        )
        opened = made.opened
        if start is not None:
            fill_table(opened.network, tokenizer, start, seed, say)
    length = recipe.objective.length or family.row or opened.config.context
    if length > opened.config.context:
        raise UserError(f"rows of {length} tokens are longer than the model's context of {opened.config.context}")
    recipe = changed(recipe, {"objective": {"name": name, "rows": rows, "length": length}}, run.recipe.name)
    material = gather(recipe, name, tokenizer, length, getattr(opened.config, "begin", None), stop, say, progress)
    plan = _resolved(recipe, material, opened, device)
    if isinstance(material.source, Streams):
        material = replace(material, source=material.source.of(plan.batch or 1))
        objective = CarriedToken(Memory(plan.batch or 1))
    if plan.patience is not None and material.held_out is None:
        raise UserError("patience needs held-out text to judge by")
    if plan.compile and device.type == "cpu" and not material.source.even:
        raise UserError("on the CPU only full rows can be compiled: give --rows stream, or leave out --compile")
    recipe = replace(recipe, training=plan, device=str(device))
    about = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": seed,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "parameters": sum(parameter.numel() for parameter in opened.network.parameters()),
        "text": {"hash": material.corpus.hash, "tokens": material.corpus.size},
        "held_out": {"hash": material.dev.hash, "tokens": material.dev.size} if material.dev else None,
    }
    if fresh or not run.about.exists():
        write_toml(recipe, run.recipe)
        run.describe(about)
    else:
        before = read_json(run.about)
        if before.get("text") != about["text"] or before.get("held_out") != about["held_out"]:
            raise Altered(f"{run.folder}: the text is not the one that the run began with")
    begun = begin(run, plan.keep, plan.pass_tokens or 0, say)
    known = plan.steps if plan.minutes is None else begun.state.steps
    steps = known or min(UNKNOWN, plan.steps or UNKNOWN)
    card = replace(
        opened.card,
        task="fill" if name == "spans" else family.task,  # what was learned; a T5 is for more than that
        base=None if base is None else Path(base).name,  # what lies where on this machine is nobody's business
        recipe=hashlib.sha256(run.recipe.read_bytes()).hexdigest(),
        made=Made(seed=seed, date=datetime.now(UTC).date().isoformat()),
    )
    opened = replace(opened, card=card)
    feed = Feed(material.source, material.prepare, seed, plan.batch or 1)
    if material.short is not None and plan.minutes is not None:
        raise UserError("short rows are for a share of the steps, and minutes do not say how many there are")
    if material.short is not None:
        feed = in_two_phases(feed, material.short, round(recipe.objective.short_share * steps))
    _announce(run, recipe, opened, material, feed, begun.state, steps, device, say)
    setup = Setup(
        network=opened.network,
        objective=objective,
        feed=feed,
        held_out=material.held_out,
        plan=plan,
        rate=plan.rate or 0.0,
        steps=steps,
        evaluate_every=plan.evaluate_every or steps,
        save_every=plan.save_every or steps,
        device=device,
        precision=plan.precision,
        seed=seed,
        words_of=tokenizer.decode,
        evaluate_first=base is not None,
        minutes=plan.minutes,
        most=plan.steps,
        # Recurrent kernels are many and small: played back from a graph they need not be launched one by one.
        capture=hasattr(opened.network, "beginning") and material.source.even and not plan.compile,
    )
    kept = material.dev.hash if material.dev else material.corpus.hash

    def keep_best(found: dict[str, float]) -> None:
        run.save_model(opened, tuple(Metric(data=kept, name=name, value=value) for name, value in found.items()))

    drive(run, setup, begun, recipe.tensorboard, keep_best, stop, say)
    return load(run.folder)


def _objective(name: str) -> Objective:
    if name == "spans":
        return Writing()
    return NextToken() if name == "next" else MaskedWords(pairs=name != "mlm")


def _continued(base: str, objective: Objective, seed: int) -> Opened:
    """A model to go on from, with the heads that the objective needs; those it lacks begin fresh."""
    folder = find_folder(base)
    opened = open_folder(folder)
    wanted = {
        head: opened.config.vocabulary if outputs is None else outputs for head, outputs in objective.heads.items()
    }
    missing = {head: outputs for head, outputs in wanted.items() if head not in opened.heads}
    if missing:
        opened = open_folder(folder, missing, [head for head in wanted if head in opened.heads], seed)
    opened.network.float()
    return opened


def _tokenizer(
    run: Run,
    recipe: Recipe,
    family: Family,
    name: str,
    like: Tokenizer | None,
    stop: Stop,
    say: Say,
    progress: Progress,
) -> Tokenizer:
    skipped = Skipped()
    texts = text_of(recipe).read(skipped)
    try:
        found = vocabulary_for(run, recipe.tokenizer, family, name == "next", texts, stop, say, progress, like=like)
    except UserError as error:
        if str(error).startswith(recipe.text.files):  # a bad file names itself
            raise
        raise UserError(f"{listed(recipe.text.files, 2)}: {error}") from None
    if skipped.count:
        say(f"weft: note: {skipped}")
    return found


def _resolved(recipe: Recipe, material: Material, opened: Opened, device: torch.device) -> Training:
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
    usual = opened.family.rate * (768 / opened.config.width) ** 0.5  # smaller models take larger steps
    every = plan.evaluate_every or (None if plan.minutes is not None else max(1, (steps or 1) // 10))
    return replace(
        plan,
        steps=steps,
        epochs=None,
        batch=batch,
        pass_tokens=plan.pass_tokens or pass_tokens(device),
        rate=plan.rate or (usual if "base" not in recipe.model else usual / 5),
        evaluate_every=every,
        save_every=plan.save_every or every,
        log_every=min(plan.log_every, steps or plan.log_every),
        precision=half_precision(device) if plan.precision == "auto" else plan.precision,
        threads=plan.threads or torch.get_num_threads(),
    )


def _announce(
    run: Run,
    recipe: Recipe,
    opened: Opened,
    material: Material,
    feed: Feed,
    state: State,
    steps: int,
    device: torch.device,
    say: Say,
) -> None:
    parameters = sum(parameter.numel() for parameter in opened.network.parameters())
    first = ""
    if feed.first is not None:
        short = feed.first
        first = f"; the first {feed.border:,} of them {short.rows} rows of about {short.source.mean:.0f} tokens"
    judged = f", held out {material.dev.size:,}" if material.dev is not None else ""
    minutes = recipe.training.minutes if state.steps is None else None
    amount = f"{steps:,} steps" if minutes is None else f"{minutes:g} minutes of steps"
    epochs = f", {steps * feed.rows / material.source.count:.1f} epochs" if minutes is None else ""
    say(
        f"{run.folder}: {opened.family.name}, {size_of(opened.config)}, "
        f"{parameters:,} parameters, on {device.type} in {recipe.training.precision}\n"
        f"text: {material.corpus.size:,} tokens in {len(material.corpus.documents) - 1:,} documents{judged}\n"
        f"plan: {amount} of {feed.rows} rows of about {material.source.mean:.0f} tokens{epochs}{first}"
        + (f"; from step {state.step:,}" if state.step else "")
    )
    if state.finished:
        say(f"{run.folder}: this run has finished already")
