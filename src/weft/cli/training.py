"""`weft pretrain`, `finetune`, `distill`, `ladder`, `resume`: the verbs of training. Their options are the recipes'."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from weft.cli.inputs import check_data, check_device, check_models, check_reading, check_run
from weft.cli.options import Flags, Given, Online, Recipe
from weft.cli.show import leaving_at_once, number, progress, table
from weft.errors import UserError, listed

RecipeAndFiles = Annotated[
    list[str] | None,
    Argument(
        metavar="[RECIPE] [FILE]...",
        help="A recipe: a TOML file, or one of the package (see: weft recipes). After --text: further files.",
    ),
]


def _recipe_and_files(names: list[str], settings: Given) -> str | None:
    """The recipe among the arguments; the others are further files of --text: a shell has expanded a glob."""
    from weft.runs.recipes import shipped

    text = settings.get("text", {})
    files = text.get("files")
    is_recipe = bool(names) and (files is None or names[0].endswith(".toml") or names[0] in shipped())
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
    rows = [[metric.name, f"{metric.value:.4f}", number(metric.low), number(metric.high)] for metric in metrics]
    if rows:
        print(table(["held-out score", "value", "95 % from", "to"], rows))


def pretrain(
    settings: Annotated[Given, Flags("weft.runs.recipes:Recipe", example="model.layers=6")],
    given: RecipeAndFiles = None,
) -> None:
    """Train a language model on your text, from scratch or from the weights of another.

    The run folder holds the best model, the recipe, the record and checkpoints. Ctrl-C saves; weft resume continues.

    Example: weft pretrain --model gpt2 --size 4x128 --text corpus.txt --length 128 --out runs/gpt

    Example: weft pretrain --model ngram --set model.order=5 --text corpus.txt --out runs/5gram

    Example: weft pretrain --model lstm --text corpus.txt --minutes 10 --watch-gradients --out runs/lstm

    Example: weft pretrain --model t5 --size 4x128 --objective spans --text corpus.txt --length 128 --out runs/t5
    """
    from weft.runs.recipes import Recipe, check_has_model, read_recipe

    name = _recipe_and_files(list(given or []), settings)
    _check_one_start(settings)
    recipe = read_recipe(name, settings, Recipe)
    check_run(recipe.out, recipe.model)
    check_has_model(recipe.model)
    if not recipe.text.files:
        raise UserError("no text: give --text FILE")
    check_data(recipe.text.files, recipe.text.dev)
    check_device(recipe.device)
    with leaving_at_once():
        from weft.runs.pretrain import pretrain as train

    train(recipe, progress=progress)


def finetune(
    settings: Annotated[Given, Flags("weft.runs.recipes:TaskRecipe", example="training.ema=0.99")],
    online: Online,
    recipe: Recipe = None,
    seeds: Annotated[
        int | None, Option(help="Train with N seeds; print mean and spread.", rich_help_panel="Run")
    ] = None,
) -> None:
    """Fine-tune a model on rows of your data.

    The run folder is the model's folder, with its labels, windows, thresholds and scores. Ctrl-C saves; weft resume
    continues.

    Example: weft finetune --task classify --data reviews.csv --base all-MiniLM-L6-v2 --out runs/reviews

    Example: weft finetune --task classify --data reviews.csv --model lstm --vectors runs/w2v --out runs/lstm-reviews

    Example: weft finetune --task translate --source train.en --target train.de --model transformer --out runs/en-de
    """
    from weft.runs.recipes import TaskRecipe, check_has_model, read_recipe

    _check_one_start(settings)
    plan = read_recipe(recipe, settings, TaskRecipe)
    check_run(plan.out, plan.model, several=seeds is not None, **online)
    check_has_model(plan.model, plan.task.name)
    check_section(plan.data)
    check_device(plan.device)
    with leaving_at_once():
        from weft.runs.finetune import finetune as train
        from weft.runs.finetune import with_seeds

    if seeds is not None:
        summary = with_seeds(recipe, settings, seeds, **online, progress=progress)
        print(table(["held-out score", "mean", "spread", "95 % from", "to", "seed by seed"], summary.rows()))
        return
    _print_scores(train(None, plan, **online, progress=progress).card.metrics)


def check_section(data: Any, *more: Any) -> None:
    """Refuse files of a recipe that are not there, before a model is loaded."""
    files = (data.files, data.dev, data.source, data.target, data.dev_source, data.dev_target, *more)
    check_reading(data.format, data.columns, *files)


def distill(
    settings: Annotated[Given, Flags("weft.distillation.recipe:DistillRecipe", example="training.ema=0.99")],
    online: Online,
    given: Annotated[
        list[str] | None,
        Argument(
            metavar="[RECIPE] [TEACHER]...",
            help="A recipe: a TOML file, or one of the package. Model folders of teachers; their outputs are averaged.",
        ),
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
    from weft.distillation.recipe import recipe_of
    from weft.runs.recipes import shipped

    teachers = list(given or [])
    first = teachers[0] if teachers else ""
    # A teacher is a folder, here or in the cache; a recipe is a file, or one of the package.
    name = teachers.pop(0) if first.endswith(".toml") or Path(first).is_file() or first in shipped() else None
    if teachers:
        settings.setdefault("teacher", {})["folders"] = teachers
    plan = recipe_of(name, settings)
    check_run(plan.out, {})
    assert plan.out is not None
    check_section(plan.data, plan.data.text)
    check_models(plan.teacher.folders, **online)
    check_device(plan.device)
    with leaving_at_once():
        from weft.distillation.distill import distill as train
        from weft.distillation.report import read_table

    _print_scores(train(recipe=plan, **online, progress=progress).card.metrics)
    report = read_table(Path(plan.out))
    if report is not None:
        title, header, rows = report
        print(f"\n{title}\n\n{table(header, rows)}")


def ladder(
    settings: Annotated[Given, Flags("weft.runs.recipes:LadderRecipe", example="lstm.model.width=512")],
    given: RecipeAndFiles = None,
    only: Annotated[str | None, Option(hidden=True)] = None,
) -> None:
    """Train every language model of the line on one text with equal budgets, and compare them.

    Uniform, unigram, n-grams of order 2 to 5, MLP, RNN, GRU, LSTM, two-layer LSTM, Transformer: a table, ladder.json
    and one page (index.html) in the folder. Each rung is a run folder. Ctrl-C saves; the same --out continues.

    Example: weft ladder --text corpus.txt --minutes 3 --out ladder

    Example: weft ladder --out ladder --models wide --set wide.model.family=gru --set wide.model.width=1024
    """
    if only is not None:
        _only(Path(settings.get("out", "")), only)
        return
    recipe = _recipe_and_files(list(given or []), settings)
    _climb(recipe, _rungs(settings))


def _rungs(settings: Given) -> Given:
    """--set lstm.model.width=512 is a setting of the rung lstm: rungs.lstm.model.width."""
    from dataclasses import fields

    from weft.runs.recipes import LadderRecipe

    own = {field.name for field in fields(LadderRecipe)}
    rungs = {key: value for key, value in settings.items() if key not in own}
    for key, value in rungs.items():
        if not isinstance(value, dict):
            raise UserError(f"--set {key}: write it as RUNG.SECTION.KEY=VALUE, such as lstm.model.width=512")
    kept = {key: value for key, value in settings.items() if key in own}
    return {**kept, "rungs": {**kept.get("rungs", {}), **rungs}} if rungs else kept


def _climb(recipe: str | None, settings: Given) -> None:
    check_data(settings.get("text", {}).get("files"))
    check_device(settings.get("device"))
    with leaving_at_once():
        from weft.runs.ladder import ladder as climb
        from weft.runs.pages import LADDER_HEADER, failures, ladder_rows, verdict

    report = climb(recipe, settings, progress=progress)
    print(table(list(LADDER_HEADER), ladder_rows(report)))
    for failure in failures(report):
        print(failure)
    print(verdict(report))
    failed = [rung["name"] for rung in report["rungs"] if "failed" in rung]
    if len(failed) == len(report["rungs"]):
        raise UserError(f"every rung failed: {listed(failed, 20)}; see above and {settings.get('out')}/ladder.json")


def _only(folder: Path, name: str) -> None:
    """One rung, in the process that `weft ladder` has started for it."""
    from weft.runs.ladder import LadderFolder, climb
    from weft.training.signals import Control

    place = LadderFolder(folder)
    parent = os.getppid()
    lock = place.run.inside / "lock"
    if not lock.is_file() or lock.read_text(encoding="ascii", errors="replace").strip() != str(parent):
        raise typer.Exit(2)  # the ladder was killed meanwhile, and another may have begun this rung

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        import signal

        os.kill(os.getpid(), signal.SIGTERM)  # the parent is gone: save and end

    threading.Thread(target=watch, daemon=True).start()
    from weft.progress import to_stderr

    climb(place, name, Control(to_stderr, progress))
    if place.failure(name).is_file():
        raise typer.Exit(2)


def resume(run: Annotated[str, Argument(metavar="FOLDER", help="The folder of an interrupted run or ladder.")]) -> None:
    """Continue an interrupted run from its last checkpoint, as if it had never stopped.

    Example: weft resume runs/gpt
    """
    if not (Path(run) / "run" / "recipe.toml").is_file():
        raise UserError(f"{run!r} is not a run folder: it has no run/recipe.toml")
    with leaving_at_once():
        from weft.runs.driver import resume as resume_run
        from weft.runs.ladder import is_ladder

    if is_ladder(Path(run)):
        _climb(None, {"out": run})
    else:
        resume_run(run, progress=progress)
