"""`weft.pretrain` and `weft.resume`: from text to a trained model, in a run folder that can be gone on with."""

from __future__ import annotations

import hashlib
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from weft.checkpoint.card import Made
from weft.checkpoint.families import FAMILIES, Family, find_size
from weft.checkpoint.folder import Opened, open_folder
from weft.config import changed, read_toml, write_toml
from weft.data.batching import Feed, in_two_phases
from weft.errors import UserError, listed
from weft.files import MEGABYTE, read_json
from weft.objectives.language import MaskedWords, NextToken, Objective
from weft.tasks.curves import write_curves
from weft.tasks.material import Material, Progress, Say, gather, text_of
from weft.tasks.model import Model, device_of, find_folder, load, new
from weft.tasks.recipes import Recipe, Vocabulary, read_recipe
from weft.text.learning import learn
from weft.text.records import Skipped
from weft.text.tokenizer import Tokenizer
from weft.training.log import Log
from weft.training.loop import Exploded, Setup, quick_arithmetic, train
from weft.training.plan import Training
from weft.training.run import Run
from weft.training.signals import Interrupted, Stop, listening
from weft.training.state import State

CHOICES = ("family", "size", "base")  # keys of [model] that are not sizes


def _to_stderr(text: str) -> None:
    with suppress(OSError):  # nobody may be reading any more
        print(text, file=sys.stderr)


@contextmanager
def _silent(what: str, unit: str) -> Iterator[Callable[[int], None]]:
    yield lambda more: None


def pretrain(
    recipe: Recipe | str | None = None,
    settings: Mapping[str, Any] | None = None,
    *,
    say: Say = _to_stderr,
    progress: Progress = _silent,
    **more: Any,
) -> Model:
    """Train a language model on text: a recipe, settings in its place, or both.

    `weft.pretrain(model={"family": "gpt2", "size": "4x128"}, text={"files": ["corpus.txt"]}, out="runs/gpt")`
    """
    if not isinstance(recipe, Recipe):
        recipe = read_recipe(recipe, {**(settings or {}), **more})
    if recipe.out is None:
        raise UserError("where should the run go? give --out FOLDER")
    run = Run(Path(recipe.out))
    run.check_new()
    family = _family(recipe)  # all that can be wrong without reading the text is said before anything is made
    paths = text_of(recipe).paths()
    if not paths:
        raise UserError("no text: give --text FILE")
    dev = replace(text_of(recipe), files=recipe.text.dev).paths()
    both = {path.absolute() for path in paths} & {path.absolute() for path in dev}
    if both:
        raise UserError(f"{min(both)}: is both text and held out")
    recipe = _from_anywhere(recipe, paths, dev)
    with listening() as stop, run.held(), _resumable(run):
        run.check_new()  # again: somebody may have been quicker
        try:
            write_toml(recipe, run.recipe)
            return _go(run, recipe, family, True, stop, say, progress)
        except UserError:
            if run.checkpoints().newest() is None and not (run.folder / "model.safetensors").exists():
                run.discard()
            raise


def resume(folder: str | os.PathLike[str], *, say: Say = _to_stderr, progress: Progress = _silent) -> Model:
    """Go on with a run that was broken off; where it had finished, its model."""
    run = Run(Path(folder))
    if not run.recipe.is_file():
        raise UserError(f"{str(folder)!r} is not a run folder: it has no run/recipe.toml")
    with listening() as stop, run.held(), _resumable(run):
        recipe = read_toml(Recipe, run.recipe)
        run.tidy()
        return _go(run, recipe, _family(recipe), False, stop, say, progress)


def _from_anywhere(recipe: Recipe, paths: list[Path], dev: list[Path]) -> Recipe:
    """The recipe with whole paths, so that the run can be gone on with from any folder."""
    values: dict[str, Any] = {
        "text": {"files": [str(p.absolute()) for p in paths], "dev": [str(p.absolute()) for p in dev]}
    }
    base, folder = recipe.model.get("base"), recipe.tokenizer.folder
    if base is not None and Path(base).is_dir():
        values["model"] = {"base": str(Path(base).absolute())}
    if folder is not None:
        values["tokenizer"] = {"folder": str(Path(folder).absolute())}
    return changed(recipe, values)


@contextmanager
def _resumable(run: Run) -> Iterator[None]:
    """Whatever stops a run, its last words say how to go on."""
    words = f"; go on with: weft resume {run.folder}"
    try:
        yield
    except Interrupted as interrupted:
        raise Interrupted(interrupted.number, f"{interrupted}{words}") from None
    except Exploded:
        raise
    except UserError as error:
        raise UserError(f"{error}{words if run.checkpoints().newest() is not None else ''}") from None


def _family(recipe: Recipe) -> Family:
    """The family to train, with every choice of the model and the objective checked."""
    chosen = {key: recipe.model[key] for key in CHOICES if key in recipe.model}
    wrong = [key for key, value in chosen.items() if not isinstance(value, str)]
    if wrong:
        raise UserError(f"[model]: {wrong[0]} must be a text, not {chosen[wrong[0]]!r}")
    if "base" in chosen:
        if len(recipe.model) > 1:
            others = listed([key for key in recipe.model if key != "base"])
            raise UserError(f"--base brings its own model: {others} cannot be chosen with it")
        if recipe.tokenizer != Vocabulary():
            raise UserError("--base brings its own tokenizer: none can be chosen with it")
        path = find_folder(chosen["base"]) / "config.json"
        if not path.is_file():
            raise UserError(f"{chosen['base']!r} is not a model folder: it has no config.json")
        kind = read_json(path, 16 * MEGABYTE).get("model_type", "")
        family = FAMILIES.get(str(kind).removeprefix("weft-"))
        if family is None:
            raise UserError(f"{chosen['base']}: model_type {kind!r} is not one of {', '.join(FAMILIES)}")
    elif "family" in chosen:
        family, config = find_size(chosen["family"], chosen.get("size"))
        changed(config, _sizes(recipe), "[model]")
    else:
        raise UserError("which model? give --model FAMILY (see: weft models), or --base FOLDER to go on from weights")
    name = recipe.objective.name
    if name in ("mlm+nsp", "mlm+sop") and recipe.objective.rows is not None:
        raise UserError(
            f"objective {name} makes its own rows, pairs of texts: rows {recipe.objective.rows} means nothing"
        )
    if recipe.tensorboard and find_spec("tensorboard") is None:
        raise UserError("--tensorboard needs the package tensorboard: pip install 'weft[tensorboard]'")
    if name is not None and name not in family.objectives:
        raise UserError(f"objective {name} does not fit {family.name}, which learns by {listed(family.objectives)}")
    return family


def _sizes(recipe: Recipe) -> dict[str, Any]:
    """The sizes of a fresh model; its context is the length of the rows unless said."""
    sizes = {key: value for key, value in recipe.model.items() if key not in CHOICES}
    if recipe.objective.length is not None:
        sizes.setdefault("context", recipe.objective.length)
    return sizes


def _go(run: Run, recipe: Recipe, family: Family, fresh: bool, stop: Stop, say: Say, progress: Progress) -> Model:
    seed = recipe.seed
    device = device_of(recipe.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cuda":
        torch.cuda.set_device(device)  # graphs are captured on the current one
    if recipe.training.threads is not None:
        torch.set_num_threads(recipe.training.threads)
    base = recipe.model.get("base")
    name = recipe.objective.name or family.objectives[0]
    rows = recipe.objective.rows or (family.rows if name in ("next", "mlm") else None)
    objective: Objective = NextToken() if name == "next" else MaskedWords(pairs=name != "mlm")
    opened = _continued(base, objective, seed) if base is not None else None
    tokenizer = opened.tokenizer if opened is not None else _tokenizer(run, recipe, family, name, stop, say, progress)
    if tokenizer is None:
        raise UserError(f"{base}: has no tokenizer")
    if opened is None:
        settings = {key: recipe.model.get(key) for key in ("family", "size")}
        made = new(
            str(settings["family"]),
            tokenizer,
            size=settings["size"],
            settings=_sizes(recipe),
            heads=objective.heads,
            seed=seed,
            where="[model]",
        )
        opened = made.opened
    length = recipe.objective.length or opened.config.context
    if length > opened.config.context:
        raise UserError(f"rows of {length} tokens are longer than the model's context of {opened.config.context}")
    recipe = changed(recipe, {"objective": {"name": name, "rows": rows, "length": length}}, run.recipe.name)
    material = gather(recipe, name, tokenizer, length, stop, say, progress)
    plan = _resolved(recipe, material, opened.config.width, device)
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
            raise UserError(f"{run.folder}: the text is not the one that the run began with")
    checkpoints = run.checkpoints(plan.keep)
    found = checkpoints.load()
    state, stored, faults = found if found is not None else (State(pass_tokens=plan.pass_tokens or 0), None, [])
    for fault in faults:
        say(f"weft: note: {fault}; going on from an earlier one")
    steps = plan.steps or 1
    card = replace(
        opened.card,
        task=family.task,
        base=None if base is None else Path(base).name,  # what lies where on this machine is nobody's business
        recipe=hashlib.sha256(run.recipe.read_bytes()).hexdigest(),
        made=Made(seed=seed, date=datetime.now(UTC).date().isoformat()),
    )
    opened = replace(opened, card=card)
    feed = Feed(material.source, material.prepare, seed, plan.batch or 1)
    if material.short is not None:
        feed = in_two_phases(feed, material.short, round(recipe.objective.short_share * steps))
    _announce(run, recipe, opened, material, feed, state, steps, device, say)
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
    )
    log = Log(run.metrics, state.metrics, run.board if recipe.tensorboard else None, state.step)
    kept = material.dev.hash if material.dev else material.corpus.hash
    try:
        with quick_arithmetic(device):
            state = train(
                setup, state, stored, checkpoints, log, stop, lambda metrics: run.save_model(opened, metrics, kept)
            )
    except Interrupted as interrupted:
        raise Interrupted(interrupted.number, f"stopped after step {state.step:,} of {steps:,}, all saved") from None
    finally:
        log.close()
        _report(run, say)
    best = f"held-out loss {state.best:.4f} at step {state.best_step:,}" if state.best is not None else "the last step"
    say(f"{run.folder}: done after {state.step:,} steps, {state.seconds:.0f} s of training; kept: {best}")
    return load(run.folder)


def _report(run: Run, say: Say) -> None:
    """The run's page; that it cannot be written must not hide what ended the run."""
    try:
        if run.metrics.exists() and run.metrics.stat().st_size:
            write_curves([run.folder], run.report)
    except (UserError, OSError) as error:
        say(f"weft: note: no report: {error}")


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
    run: Run, recipe: Recipe, family: Family, name: str, stop: Stop, say: Say, progress: Progress
) -> Tokenizer:
    """The run's own, the one asked for, or one learned from the text."""
    if (run.folder / "tokenizer_config.json").exists():  # the last of its files to be written
        return Tokenizer.load(run.folder)
    given = recipe.tokenizer
    if given.folder is not None:
        tokenizer = Tokenizer.load(Path(given.folder))
    else:
        kind = given.kind or family.tokenizer
        skipped = Skipped()

        def texts() -> Iterator[str]:
            for text in text_of(recipe).read(skipped):
                stop.check("stopped while learning the vocabulary")
                read(1)
                yield text

        try:
            with progress(f"learning a {kind} vocabulary", "documents") as read:
                tokenizer = learn(
                    texts(),
                    kind,
                    given.size,
                    lowercase=given.lowercase,
                    minimum_count=given.minimum_count,
                    specials=None if name == "next" else family.specials,
                    around=None if name == "next" else family.around,
                )
        except UserError as error:
            if str(error).startswith(recipe.text.files):  # a bad file names itself
                raise
            raise UserError(f"{listed(recipe.text.files, 2)}: {error}") from None
        if skipped.count:
            say(f"weft: note: {skipped}")
        less = "" if tokenizer.vocabulary == given.size else f" ({given.size} were asked for; the text has no more)"
        say(f"vocabulary: {tokenizer.kind}, {tokenizer.vocabulary:,} tokens{less}")
    tokenizer.save(run.folder)
    return tokenizer


def _resolved(recipe: Recipe, material: Material, width: int, device: torch.device) -> Training:
    """The plan with every open choice made, so that the recipe in the run folder says it all."""
    plan = recipe.training
    count, mean = material.source.count, material.source.mean
    if material.held_out is not None:
        _ = material.held_out.count  # whether there is anything to judge by is said now, not after an hour
    batch = plan.batch or max(1, round(8192 / mean))
    in_epoch = count / batch
    steps = plan.steps or (
        math.ceil(plan.epochs * in_epoch) if plan.epochs is not None else max(1000, math.ceil(3 * in_epoch))
    )
    half = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    usual = 5e-4 * (768 / width) ** 0.5  # smaller models take larger steps
    every = plan.evaluate_every or max(1, steps // 10)
    return replace(
        plan,
        steps=steps,
        epochs=None,
        batch=batch,
        pass_tokens=plan.pass_tokens or (1 << 16 if device.type == "cuda" else 1 << 14),
        rate=plan.rate or (usual if "base" not in recipe.model else usual / 5),
        evaluate_every=every,
        save_every=plan.save_every or every,
        log_every=min(plan.log_every, steps),
        precision=("bf16" if half else "fp32") if plan.precision == "auto" else plan.precision,
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
    say(
        f"{run.folder}: {opened.family.name}, {opened.config.layers} x {opened.config.width}, "
        f"{parameters:,} parameters, on {device.type} in {recipe.training.precision}\n"
        f"text: {material.corpus.size:,} tokens in {len(material.corpus.documents) - 1:,} documents{judged}\n"
        f"plan: {steps:,} steps of {feed.rows} rows of about {material.source.mean:.0f} tokens, "
        f"{steps * feed.rows / material.source.count:.1f} epochs{first}"
        + (f"; from step {state.step:,}" if state.step else "")
    )
    if state.finished:
        say(f"{run.folder}: this run has finished already")
