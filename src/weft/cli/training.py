"""`weft pretrain`, `finetune`, `distill`, `ladder`, `resume`: the verbs of training. Their options are the recipes'."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Annotated, Any

import typer

import weft
from weft.cli import inputs, late
from weft.cli.inputs import table
from weft.cli.options import Flags, Given, Online, argument, flag
from weft.errors import UserError, listed
from weft.progress import decimals, to_stderr
from weft.progress import live as progress

RecipeAndFiles = Annotated[list[str] | None, argument("[RECIPE] [FILE]...", "A recipe; after --text, further files.")]


def _recipe_and_files(names: list[str], settings: Given) -> str | None:
    """The recipe among the arguments; the others are further files of --text: a shell has expanded a glob."""
    text = settings.get("text", {})
    files = text.get("files")
    is_recipe = bool(names) and (files is None or names[0].endswith(".toml") or names[0] in late.recipes.shipped())
    recipe = names.pop(0) if is_recipe else None
    if names and files is None:
        raise UserError(f"{names[0]}: only one recipe can be given; text files are given by --text")
    if names and text.get("dev"):
        raise UserError(f"{names[0]}: training text or held-out text? Give it by --text or --dev, or quote the glob")
    if names:
        text["files"] = [*files, *names]
    return recipe


def _check_one_start(settings: Given) -> None:
    if {"family", "base"} <= set(settings.get("model", {})):
        raise UserError("--model starts from scratch and --base from weights: give one of them")


def _print_scores(metrics: Any) -> None:
    rows = [["" if x is None else decimals(x) for x in (score.value, score.low, score.high)] for score in metrics]
    if rows:
        names = (score.name for score in metrics)
        print(
            table(
                ["held-out score", "value", "95 % from", "to"], [[n, *row] for n, row in zip(names, rows, strict=True)]
            )
        )


def pretrain(
    settings: Annotated[Given, Flags("weft.runs.recipes:Recipe", example="model.layers=6")],
    given: RecipeAndFiles = None,
) -> None:
    """Train a language model on your text, from scratch or from the weights of another.

    The run folder holds the best model, the recipe, the record and checkpoints. Ctrl-C saves; weft resume continues.

    Example: weft pretrain --model gpt2 --size 4x128 --text corpus.txt --length 128 --out runs/gpt
    Example: weft pretrain --model ngram --set model.order=5 --text corpus.txt --out runs/5gram
    Example: weft pretrain --model lstm --text corpus.txt --minutes 10 --watch-gradients --out runs/lstm
    Example: weft pretrain --model xlm --text en=en.txt --text de=de.txt --pairs en-de=pairs.tsv --out runs/xlm
    Example: weft pretrain --model t5 --size 4x128 --objective spans --text corpus.txt --out runs/t5
    """
    name = _recipe_and_files(list(given or []), settings)
    _check_one_start(settings)
    recipe = late.recipes.read_recipe(name, settings, late.recipes.Recipe)
    inputs.check_run(recipe.out, recipe.model)
    late.recipes.check_has_model(recipe.model)
    text = recipe.text
    if not text.files and not text.pairs:
        raise UserError("no text: give --text FILE")
    names = (*text.files, *text.dev, *text.pairs, *text.dev_pairs)
    inputs.check_data([late.recipes.named_language(name)[1] for name in names])
    inputs.check_device(recipe.device)
    weft.pretrain(recipe, progress=progress)


def finetune(
    settings: Annotated[Given, Flags("weft.runs.recipes:TaskRecipe", example="training.ema=0.99")],
    online: Online,
    recipe: Annotated[str | None, argument("[RECIPE]", "A TOML file, or one of weft recipes.")] = None,
    seeds: Annotated[int | None, flag("Train with N seeds; print mean and spread.", panel="Run")] = None,
) -> None:
    """Fine-tune a model on rows of your data.

    The run folder is the model's folder, with its labels, windows, thresholds and scores. Ctrl-C saves; weft resume
    continues.

    Example: weft finetune --task classify --data reviews.csv --base all-MiniLM-L6-v2 --out runs/reviews
    Example: weft finetune --task classify --data reviews.csv --model lstm --vectors runs/w2v --out runs/lstm
    Example: weft finetune --task tag --data ner.conll --base bert --freeze encoder --layers last4-concat --out ner
    Example: weft finetune --task translate --source train.en --target train.de --out runs/en-de
    Example: weft finetune --task choose --data copa.jsonl --base runs/bert --out runs/copa
    Example: weft finetune --task spans --data wic.jsonl --base all-MiniLM-L6-v2 --out runs/wic
    Example: weft finetune --task forecast --data series.csv --horizon 10 --out runs/fc
    """
    _check_one_start(settings)
    plan = late.recipes.read_recipe(recipe, settings, late.recipes.TaskRecipe)
    inputs.check_run(plan.out, plan.model, several=seeds is not None, **online)
    late.recipes.check_has_model(plan.model, plan.task.name)
    _check_section(plan.data)
    inputs.check_device(plan.device)
    if seeds is not None:
        summary = late.finetune.with_seeds(recipe, settings, seeds, **online, progress=progress)
        print(table(["held-out score", "mean", "spread", "95 % from", "to", "seed by seed"], summary.rows()))
        return
    _print_scores(weft.finetune(None, plan, **online, progress=progress).card.metrics)


def _check_section(data: Any, *more: Any) -> None:
    """Refuse files of a recipe that are not there, before a model is loaded."""
    files = (data.files, data.dev, data.source, data.target, data.dev_source, data.dev_target, *more)
    inputs.check_rows(vars(data), *files)


def distill(
    settings: Annotated[Given, Flags("weft.distillation.recipe:DistillRecipe", example="training.ema=0.99")],
    online: Online,
    given: Annotated[
        list[str] | None, argument("[RECIPE] [TEACHER]...", "A recipe; model folders of teachers.")
    ] = None,
) -> None:
    """Train a small model on the outputs of a large one for your unlabeled text.

    The teacher reads every text once; its outputs are kept in the cache. The run folder is the student's folder, with
    a report that compares both. Ctrl-C saves; weft resume continues.

    Example: weft distill runs/reviews --text unlabeled.txt --student 3x256 --out runs/reviews-small
    Example: weft distill runs/qa --data unlabeled-questions.jsonl --student 6x256 --out runs/qa-small
    Example: weft distill TEACHER --pretrain --text corpus.txt --student distilbert --out runs/small-base
    Example: weft distill distill-reviews runs/reviews --text unlabeled.txt --data reviews.csv --out runs/small
    """
    teachers = list(given or [])
    first = teachers[0] if teachers else ""
    # A teacher is a folder, here or in the cache; a recipe is a file, or one of the package.
    is_recipe = first.endswith(".toml") or Path(first).is_file() or first in late.recipes.shipped()
    name = teachers.pop(0) if is_recipe else None
    if teachers:
        settings.setdefault("teacher", {})["folders"] = teachers
    plan = late.recipe.recipe_of(name, settings)
    inputs.check_run(plan.out, {})
    assert plan.out is not None
    _check_section(plan.data, plan.data.text)
    inputs.check_models(*plan.teacher.folders, **online)
    inputs.check_device(plan.device)
    _print_scores(weft.distill(recipe=plan, **online, progress=progress).card.metrics)
    report = late.report.read_report(Path(plan.out))
    if report is not None:
        print(f"\n{report.summary}\n\n{table(report.table.header, report.table.rows)}")


def ladder(
    settings: Annotated[Given, Flags("weft.runs.recipes:LadderRecipe", example="lstm.model.width=512")],
    given: RecipeAndFiles = None,
    only: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Train every language model of the line on one text with equal budgets, and compare them.

    Uniform, unigram, n-grams of order 2 to 5, MLP, RNN, GRU, LSTM, two-layer LSTM, Transformer, Transformer-XL: a
    table, ladder.json and one page (index.html) in the folder. Each rung is a run folder. Ctrl-C saves; the same --out
    continues.

    Example: weft ladder --text corpus.txt --minutes 3 --out ladder
    Example: weft ladder --out ladder --models wide --set wide.model.family=gru --set wide.model.width=1024
    """
    if only is not None:
        _only(Path(settings.get("out", "")), only)
        return
    recipe = _recipe_and_files(list(given or []), settings)
    own, rungs = dict[str, Any](), dict[str, Any]()
    for key, value in settings.items():  # --set lstm.model.width=512 is a setting of the rung lstm
        if key in late.recipes.LadderRecipe.__dataclass_fields__:
            own[key] = value
        elif isinstance(value, dict):
            rungs[key] = value
        else:
            raise UserError(f"--set {key}: write it as RUNG.SECTION.KEY=VALUE, such as lstm.model.width=512")
    _climb(recipe, {**own, "rungs": {**own.get("rungs", {}), **rungs}} if rungs else own)


def _climb(recipe: str | None, settings: Given) -> None:
    inputs.check_data(settings.get("text", {}).get("files"))
    inputs.check_device(settings.get("device"))
    report = weft.ladder(recipe, settings, progress=progress)
    print(table(list(late.pages.LADDER_HEADER), late.pages.ladder_rows(report)))
    print(*late.pages.failures(report), late.pages.verdict(report), sep="\n")
    failed = [rung["name"] for rung in report["rungs"] if "failed" in rung]
    if len(failed) == len(report["rungs"]):
        raise UserError(f"every rung failed: {listed(failed, 20)}; see above and {settings.get('out')}/ladder.json")


def _only(folder: Path, name: str) -> None:
    """One rung, in the process that `weft ladder` has started for it."""
    place, parent = late.ladder.LadderFolder(folder), os.getppid()
    lock = place.inside / "lock"
    if not lock.is_file() or lock.read_text(encoding="ascii", errors="replace").strip() != str(parent):
        raise typer.Exit(2)  # the ladder was killed meanwhile, and another may have begun this rung

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGTERM)  # the parent is gone: save and end

    threading.Thread(target=watch, daemon=True).start()
    late.ladder.climb(place, name, late.signals.Control(to_stderr, progress))
    if place.failure(name).is_file():
        raise typer.Exit(2)


def resume(run: Annotated[str, argument("FOLDER", "The folder of an interrupted run or ladder.")]) -> None:
    """Continue an interrupted run from its last checkpoint, as if it had never stopped.

    Example: weft resume runs/gpt
    """
    if not (Path(run) / "run" / "recipe.toml").is_file():
        raise UserError(f"{run!r} is not a run folder: it has no run/recipe.toml")
    if late.ladder.is_ladder(Path(run)):
        _climb(None, {"out": run})
    else:
        weft.resume(run, progress=progress)
