"""`weft.finetune`: from rows of somebody's data to a model for a task, in a run folder that can be resumed."""

from __future__ import annotations

import inspect
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft.checkpoint.card import Card, Window
from weft.checkpoint.folder import LoadedModel
from weft.checkpoint.locate import find_folder
from weft.config import changed
from weft.data.batching import Feed
from weft.data.examples import Examples, Sequences, batch_of
from weft.data.tables import Dataset, RunRows
from weft.errors import UserError, one_of
from weft.progress import Log, Progress, ProgressChoice, progress_of, to_logger
from weft.runs.architecture import both_ways, chosen_family, family_for, sized, sizes_of, vocabularies_for
from weft.runs.baseline import BASELINES, Baseline, announce_baselines, compare_baselines, judged_again, train_baselines
from weft.runs.calls import absolute, absolute_tables, settings_of
from weft.runs.dataset import announce_long, gather
from weft.runs.driver import Job, begun, check_tensorboard, device_for, drive, scratch_folder
from weft.runs.initial import Beginning, begun_model, check_model
from weft.runs.plan import announce, resolved
from weft.runs.recipes import DataSection, FinetuneTraining, TaskRecipe, overlaid, task_recipe
from weft.runs.selection import Selection
from weft.runs.word_vectors_start import Start, begun_from, fill_table
from weft.tasks.base import Example, Task
from weft.tasks.forward import framing_for
from weft.tasks.model import Model, load
from weft.tasks.registry import task_class
from weft.tasks.translate import writer_of
from weft.text.windows import Framing
from weft.training.freezing import freeze
from weft.training.run import Run, tokenizer_hash
from weft.training.setup import Setup
from weft.training.signals import Stop
from weft.training.state import State

RECIPE = TaskRecipe  # what `weft.resume` reads
MOST_WINDOWS = 16  # of one text in one step of training


def finetune(
    data: Any = None,
    recipe: TaskRecipe | str | None = None,
    settings: Mapping[str, Any] | None = None,
    *,
    task: str | Mapping[str, Any] | None = None,
    base: str | os.PathLike[str] | Model | None = None,
    vectors: str | os.PathLike[str] | None = None,
    dev: Any = None,
    columns: Mapping[str, str] | None = None,
    out: str | os.PathLike[str] | None = None,
    online: bool = False,
    log: Log = to_logger,
    progress: ProgressChoice = None,
    **more: Any,
) -> Model:
    """Fine-tune a model on rows of data; without `out`, in a folder that goes away with the process.

    `weft.finetune("reviews.csv", task="classify", base="MODEL", training={"epochs": 2})`; every section of a recipe may
    be given so, `task={"name": "tag", "length": 256}` and `data={"files": ["a.csv"], "holdout": 0.2}` too.
    `data` and `dev` may also be rows in memory: a data frame, a Dataset, dicts or tuples (`weft.data.parts`), whose
    columns may be named: `columns={"text": "summary", "label": "team"}`. A base that is a model in memory is kept in
    the run folder, so that the run can be resumed.
    """
    rows = RunRows()
    in_memory = isinstance(base, Model)
    if isinstance(base, Model):
        base = _saved(base)
    if not isinstance(recipe, TaskRecipe):
        more = more if columns is None else overlaid(more, {"data": {"columns": dict(columns)}})
        values = {"task.name": task, "model.base": base, "model.vectors": vectors}
        given = overlaid(settings or {}, more)
        recipe = task_recipe(recipe, settings_of(given, rows, DataSection, {"files": data, "dev": dev}, values, out))
    if recipe.out is None:
        recipe = replace(recipe, out=str(scratch_folder() / "run"))
    assert recipe.out is not None
    run = Run(Path(recipe.out))
    run.check_new()
    if online and isinstance(recipe.model.get("base"), str) and not Path(recipe.model["base"]).exists():
        find_folder(recipe.model["base"], online)  # from here on it lies in the cache
    recipe = replace(recipe, model=family_for(recipe.task.name, recipe.model, log))
    _check(recipe)
    recipe = _from_anywhere(recipe, rows, log)
    if in_memory and base is not None:
        recipe = changed(recipe, {"model": {"base": str((run.inside / "base" / Path(base).name).absolute())}})
    with begun(run, recipe) as stop:
        rows.write(recipe.out or "")
        if in_memory and base is not None:
            shutil.copytree(base, recipe.model["base"])
        return go(run, recipe, stop, log, progress_of(progress))


def _saved(model: Model) -> Path:
    """A model in memory as a folder for now, named as the one that it was opened from."""
    folder = scratch_folder() / (model.folder.name if model.folder is not None and model.folder.name else "model")
    model.save(folder)
    return folder


def _check(recipe: TaskRecipe) -> None:
    """All that can be wrong before any data is read."""
    check_model(recipe)
    data, from_text = recipe.data, task_class(recipe.task.name).parallel
    if not (data.files or data.source or data.target):
        two = ", or --source FILE and --target FILE" if from_text else ""
        raise UserError(f"no data: give --data FILE{two}; in Python, a file or rows as the first argument")
    if not from_text and (data.source or data.target or recipe.tokenizer.apart):
        raise UserError(f"{recipe.task.name} does not write one text from another: it has no source and target")
    check_tensorboard(recipe)


def _from_anywhere(recipe: TaskRecipe, rows: RunRows, log: Log) -> TaskRecipe:
    """The recipe with whole paths, so that the run can be resumed from any folder."""
    values: dict[str, Any] = {"data": absolute_tables(recipe.data, ("files",), rows, recipe.out or "", log)}
    for key in ("base", "vectors"):
        name = recipe.model.get(key)
        if name is not None and (key == "vectors" or Path(name).exists()):
            values["model"] = {key: absolute(name)}
    if recipe.tokenizer.folder is not None:
        values["tokenizer"] = {"folder": absolute(recipe.tokenizer.folder)}
    return changed(recipe, values)


# ---------------------------------------------------------------------------------------------------------- the run


def go(run: Run, recipe: TaskRecipe, stop: Stop, log: Log, progress: Progress) -> Model:
    """From the recipe in a run folder to the best model; from its last checkpoint on where there is one."""
    device = device_for(recipe.device, recipe.training.threads)
    _check_training(recipe.training, device)
    task, dataset = gather(recipe, log, progress, stop)
    metric = _metric(recipe, task, log)
    recipe, beginning = _beginning(run, recipe, task, dataset, stop, log, progress)
    model, card = beginning.opened, beginning.opened.card
    task = _prepared(recipe, task, dataset, beginning, log)
    window = task.window(model, recipe.task.length, recipe.task.stride, recipe.task.long)
    framing = framing_for(model, window)
    announce_long(dataset.examples, framing, log)
    capture = device.type == "cuda" and not recipe.training.compile
    train, dev = _tokenized(task, dataset, model, framing, recipe.seed, capture, stop, log, progress)
    plan = resolved(recipe, train, model, task, len(dataset.dev), beginning.fresh and not run.about.exists(), device)
    work = replace(recipe.task, metric=metric, length=window.length, stride=window.stride, labels=task.labels)
    recipe = replace(recipe, training=plan, device=str(device), task=work)
    model = replace(model, card=_card(recipe, task.to_card(card), task.card_window(window, train), dataset.columns))
    data = dataset.hashes.get("dev", dataset.hashes["data"])
    selection = Selection(run, task, model, framing, dataset.dev, metric, data, name=work.name)
    setup = Setup(
        network=model.network,
        objective=task.objective(),
        feed=Feed(train, batch_of, recipe.seed, plan.batch or 1),
        held_out=dev,
        plan=plan,
        device=device,
        decode=writer_of(model).decode,
        evaluate=None if metric == "loss" else selection.evaluate,
        pace=_own_words(recipe, model, plan.steps or 1),
        capture=capture,
        faster=_faster(plan, task),
    )
    baselines = list[Baseline]()

    def start(state: State) -> None:
        announce(run, recipe, model, task, dataset, train, framing, log)
        if not (state.finished and (run.inside / BASELINES).exists()):
            baselines.extend(train_baselines(recipe, task, dataset, model, card, device, progress))
            announce_baselines(baselines, metric, log)

    job = Job(
        recipe=recipe,
        model=model,
        setup=setup,
        same={"data": dataset.hashes, "tokenizer": tokenizer_hash(model)},
        about={"rows": {"train": len(dataset.train), "dev": len(dataset.dev)}},
        split=None if dataset.held_out is None else {"split": recipe.data.split, "held_out": dataset.held_out},
        announce=start,
        save=selection.save,
        metric=metric,
    )
    drive(run, job, stop, log, progress)
    trained = load(run.folder)
    if baselines:
        # Without metrics the best model was kept by the process that this run goes on from.
        judgement = selection.best or judged_again(trained, work.name, dataset, framing, device)
        compare_baselines(run, judgement, baselines, metric, log)
    return trained


def _check_training(plan: FinetuneTraining, device: torch.device) -> None:
    if plan.compile and device.type == "cpu":
        raise UserError(
            "on the CPU only full rows can be compiled, and rows of a task are not: leave out training.compile"
        )
    if plan.watch_gradients:
        raise UserError("watch_gradients is for language models: weft pretrain --watch-gradients")


def _card(recipe: TaskRecipe, card: Card, window: Window, columns: Mapping[str, str]) -> Card:
    """The card of the model that the run makes."""
    base = recipe.model.get("base")
    return replace(
        card,
        task=recipe.task.name,
        window=window,
        pooling=None,
        normalize=None,
        columns={**columns, **recipe.data.columns},
        base=None if base is None else Path(base).name,  # what lies where on this machine is nobody's business
    )


def _metric(recipe: TaskRecipe, task: Task, log: Log) -> str:
    """The metric that decides which model is kept."""
    metric = one_of(recipe.task.metric, task.metric_names, "metric") if recipe.task.metric else task.default_metric
    package = task.metric_package(metric)
    if package is None or find_spec(package) is not None:
        return metric
    if recipe.task.metric:
        raise UserError(f"{metric} needs the package {package}: pip install 'weft[evaluate]'")
    log(f"weft: note: without the package {package} the best model is chosen by its loss alone")
    return "loss"


def _beginning(
    run: Run, recipe: TaskRecipe, task: Task, dataset: Dataset[Example], stop: Stop, log: Log, progress: Progress
) -> tuple[TaskRecipe, Beginning]:
    """The model to train, and the recipe with its sizes."""
    if "base" in recipe.model:
        beginning = begun_model(recipe, task, None)
        if beginning.note and not run.about.exists():
            log(f"weft: note: {beginning.note}")
        return recipe, beginning
    family = chosen_family(recipe.model, recipe.tokenizer, sizes_of(recipe.model))
    if family.reads:
        sizes = sized(recipe.model, family, len(dataset.train), log)
        recipe = replace(recipe, model=task.network_settings() | sizes)
    elif not recipe.task.words:
        recipe = replace(recipe, model=both_ways(recipe.model, family, log))
    start: Start | None = None
    if "vectors" in recipe.model and run.checkpoints().newest() is None:  # later on the weights lie in the run
        with_width, start = begun_from(recipe.model, family, recipe.data.on_bad_row)
        recipe = replace(recipe, model=with_width)
    tokenizers = vocabularies_for(run, recipe, family, dataset.train, start, stop, log, progress)
    beginning = begun_model(recipe, task, *tokenizers)
    if start is not None:
        fill_table(beginning.opened.network, tokenizers[0], start, recipe.seed, log)
    return recipe, beginning


def _prepared(recipe: TaskRecipe, task: Task, dataset: Dataset[Example], beginning: Beginning, log: Log) -> Task:
    """The task as this model learns it, and the model as it is trained."""
    model = beginning.opened
    if note := task.swap_note(dataset.train, "the rows, beside those of the base", model.card.profiles):
        log(f"weft: note: {note}")
    task = task.prepare(model, dataset.train, beginning.fresh)
    if recipe.task.freeze is not None:
        freeze(model.network, recipe.task.freeze)
    return task


def _tokenized(
    task: Task,
    dataset: Dataset[Example],
    model: LoadedModel,
    framing: Framing,
    seed: int,
    capture: bool,
    stop: Stop,
    log: Log,
    progress: Progress,
) -> tuple[Examples | Sequences, Examples | Sequences]:
    """The rows as sources of batches: those to learn from, and those to judge by."""
    with progress("tokenizing", "rows") as advance:
        train = task.dataset(dataset.train, model, framing)
        advance(len(dataset.train))
        stop.check("stopped while tokenizing")
        dev = task.dataset(dataset.dev, model, framing)
    for note in (*train.notes, *(f"of those to judge by: {note}" for note in dev.notes)):
        log(f"weft: note: {note}")
    # The held-out windows are for the loss; the metrics are those of whole texts.
    return train.for_training(MOST_WINDOWS, seed, capture), dev.for_training(MOST_WINDOWS, 0, False)


def _faster(plan: FinetuneTraining, task: Task) -> dict[str, float]:
    """Weights that learn at a multiple of the learning rate: those of a new head."""
    return {f"heads.{task.head}.": plan.head_rate} if plan.head_rate and plan.head_rate != 1 else {}


def _own_words(recipe: TaskRecipe, opened: LoadedModel, steps: int) -> Callable[[int], dict[str, Tensor]] | None:
    """How often a network reads its own words in each step: never at first, then more (Bengio et al., 2015)."""
    share = recipe.task.own
    if not share:
        return None
    if "own" not in inspect.signature(opened.network.forward).parameters:
        raise UserError(f"own words (task.own) are read by a recurrent encoder-decoder, not by {opened.family.name}")
    return lambda step: {"own": torch.tensor(share * step / steps)}
