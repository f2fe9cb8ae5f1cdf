"""`weft.finetune`: from rows of somebody's data to a model for a task, in a run folder that can be resumed."""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft.checkpoint.card import Card, Metric, Window
from weft.checkpoint.folder import TARGET, LoadedModel
from weft.checkpoint.locate import find_folder
from weft.config import changed, read_toml, values_of
from weft.data.batching import Feed
from weft.data.examples import Examples, Sequences, VectorSide, batch_of
from weft.data.tables import Dataset, RunRows
from weft.errors import UserError, one_of
from weft.files import read_json, write_json
from weft.metrics.bootstrap import Score, summarized
from weft.progress import Log, ProgressChoice, to_logger
from weft.runs.architecture import (
    Beginning,
    Start,
    begun_from,
    begun_model,
    both_ways,
    check_model,
    chosen_family,
    family_for,
    fill_table,
    sized,
    sizes_of,
    vocabularies_for,
)
from weft.runs.baseline import (
    BASELINES,
    FEW_JUDGES,
    Baseline,
    announce_baselines,
    compare_baselines,
    judged_again,
    train_baselines,
)
from weft.runs.dataset import absolute, absolute_tables, announce_long, gather, settings_of
from weft.runs.driver import Job, begun, check_tensorboard, device_for, drive, new_run, resume, scratch_folder, settled
from weft.runs.recipes import DataSection, FinetuneTraining, TaskRecipe, overlaid, read_recipe, task_recipe
from weft.scratch import sweep
from weft.tasks.base import Example, Task
from weft.tasks.complete import writer_of
from weft.tasks.evaluate import EvaluationResult, evaluate_examples, evaluation_of
from weft.tasks.forward import framing_for, tokenizer_of
from weft.tasks.model import Model, load
from weft.tasks.registry import task_class
from weft.text.windows import Framing, special_tokens
from weft.training.freezing import freeze
from weft.training.run import Run, State, tokenizer_hash
from weft.training.signals import Control
from weft.training.step import HeldOutMetrics, Setup

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
    rows, in_memory = RunRows(), isinstance(base, Model)
    if isinstance(base, Model):  # a folder for now, named as the one that it was opened from
        model, name = base, base.folder.name if base.folder is not None else ""
        base = scratch_folder() / (name or "model")
        model.save(base)
    if not isinstance(recipe, TaskRecipe):
        more = more if columns is None else overlaid(more, {"data": {"columns": dict(columns)}})
        values = {"task.name": task, "model.base": base, "model.vectors": vectors}
        given = overlaid(settings or {}, more)
        recipe = task_recipe(recipe, settings_of(given, rows, DataSection, {"files": data, "dev": dev}, values, out))
    if recipe.out is None:
        recipe = replace(recipe, out=str(scratch_folder() / "run"))
    run = new_run(recipe)
    if online and isinstance(recipe.model.get("base"), str) and not Path(recipe.model["base"]).exists():
        find_folder(recipe.model["base"], online)  # from here on it lies in the cache
    recipe = replace(recipe, model=family_for(recipe.task.name, recipe.model, log))
    _check(recipe)
    recipe = _from_anywhere(recipe, rows, log)
    if in_memory and base is not None:
        recipe = changed(recipe, {"model": {"base": str((run.inside / "base" / Path(base).name).absolute())}})
    with begun(run, recipe, log, progress) as control:
        rows.write(recipe.out or "")
        if in_memory and base is not None:
            shutil.copytree(base, recipe.model["base"])
        return go(run, recipe, control)


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


def go(run: Run, recipe: TaskRecipe, control: Control) -> Model:
    """From the recipe in a run folder to the best model; from its last checkpoint on where there is one."""
    device = device_for(recipe.device, recipe.training.threads)
    _check_training(recipe.training, device)
    task, dataset = gather(recipe, control)
    metric = _metric(recipe, task, control.log)
    recipe, beginning = _beginning(run, recipe, task, dataset, control)
    model, card = beginning.opened, beginning.opened.card
    task = _prepared(recipe, task, dataset, beginning, control.log)
    window = task.window(model, recipe.task.length, recipe.task.stride, recipe.task.long)
    framing = framing_for(model, window)
    announce_long(dataset.examples, framing, control.log)
    capture = device.type == "cuda" and not recipe.training.compile
    train, dev = _tokenized(task, dataset, model, framing, recipe.seed, capture, control)
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
        faster={f"heads.{task.head}.": plan.head_rate} if plan.head_rate else {},  # a new head
    )
    baselines = list[Baseline]()

    def start(state: State) -> None:
        announce(selection, recipe, dataset, train, control.log)
        if not (state.finished and (run.inside / BASELINES).exists()):
            baselines.extend(train_baselines(recipe, task, dataset, model, card, device, control.progress))
            announce_baselines(baselines, metric, control.log)

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
    drive(run, job, control)
    trained = load(run.folder)
    if baselines:
        # Without metrics the best model was kept by the process that this run goes on from.
        judgement = selection.best or judged_again(trained, work.name, dataset, framing, device)
        compare_baselines(run, judgement, baselines, metric, control.log)
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
    run: Run, recipe: TaskRecipe, task: Task, dataset: Dataset[Example], control: Control
) -> tuple[TaskRecipe, Beginning]:
    """The model to train, and the recipe with its sizes."""
    if "base" in recipe.model:
        beginning = begun_model(recipe, task, None)
        if beginning.note and not run.about.exists():
            control.note(f"{beginning.note}")
        return recipe, beginning
    family = chosen_family(recipe.model, recipe.tokenizer, sizes_of(recipe.model))
    if family.reads:
        sizes = sized(recipe.model, family, len(dataset.train), control.log)
        recipe = replace(recipe, model=task.network_settings() | sizes)
    elif not recipe.task.words:
        recipe = replace(recipe, model=both_ways(recipe.model, family, control.log))
    start: Start | None = None
    if "vectors" in recipe.model and run.checkpoints().newest() is None:  # later on the weights lie in the run
        with_width, start = begun_from(recipe.model, family, recipe.data.on_bad_row)
        recipe = replace(recipe, model=with_width)
    tokenizers = vocabularies_for(run, recipe, family, dataset.train, start, control)
    beginning = begun_model(recipe, task, *tokenizers)
    if start is not None:
        fill_table(beginning.opened.network, tokenizers[0], start, recipe.seed, control.log)
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
    control: Control,
) -> tuple[Examples | Sequences, Examples | Sequences]:
    """The rows as sources of batches: those to learn from, and those to judge by."""
    with control.progress("tokenizing", "rows") as advance:
        train = task.dataset(dataset.train, model, framing)
        advance(len(dataset.train))
        control.stop.check("stopped while tokenizing")
        dev = task.dataset(dataset.dev, model, framing)
    for note in (*train.notes, *(f"of those to judge by: {note}" for note in dev.notes)):
        control.note(f"{note}")
    # The held-out windows are for the loss; the metrics are those of whole texts.
    return train.for_training(MOST_WINDOWS, seed, capture), dev.for_training(MOST_WINDOWS, 0, False)


def _own_words(recipe: TaskRecipe, opened: LoadedModel, steps: int) -> Callable[[int], dict[str, Tensor]] | None:
    """How often a network reads its own words in each step: never at first, then more (Bengio et al., 2015)."""
    share = recipe.task.own
    if not share:
        return None
    if "own" not in inspect.signature(opened.network.forward).parameters:
        raise UserError(f"own words (task.own) are read by a recurrent encoder-decoder, not by {opened.family.name}")
    return lambda step: {"own": torch.tensor(share * step / steps)}


Scores = Mapping[str, Score]


@dataclass
class Selection:
    """The model of a task in training, judged by held-out examples and saved where it is the best."""

    run: Run
    task: Task
    model: LoadedModel
    framing: Framing
    examples: Sequence[Example]
    metric: str  # which decides
    data: str  # hash of the examples
    scores: Callable[[Scores], Scores] = dict  # which metrics are kept, and under which names
    name: str | None = None  # of the task, where an evaluation page is written
    last: EvaluationResult | None = None
    best: EvaluationResult | None = None

    def evaluate(self) -> HeldOutMetrics:
        """The metrics of the model as it is, with thresholds tuned on the same examples."""
        self.last = evaluate_examples(self.task, self.model, self.framing, self.task.sample(self.examples), tune=True)
        return HeldOutMetrics({n: score.value for n, score in self.scores(self.last.scores).items()}, self.metric)

    def save(self, model: LoadedModel, losses: Mapping[str, float]) -> None:
        """Save the model with its metrics, in place of the best before it."""
        task = self.task if self.last is None else self.last.task
        scores = {} if self.last is None else self.scores(self.last.scores)
        metrics = tuple(
            Metric(data=self.data, name=n, value=s.value, low=s.low, high=s.high) for n, s in scores.items()
        )
        if self.metric == "loss" and "loss" in losses:
            metrics = (Metric(data=self.data, name="loss", value=losses["loss"]),)
        with task.saving(model.network):
            self.run.save_model(replace(model, card=task.to_card(model.card)), metrics)
        self.best = self.last
        if self.last is not None and self.name is not None:
            evaluation_of(self.last, self.name, "held-out rows", self.data).save(self.run.evaluation)


EXAMPLES = 54_000  # that a small model from scratch sees: ten times the questions of TREC
BASE_LEARNING_RATE = 5e-5  # of a pre-trained encoder of width 768
HEAD_RATE = 5.0  # a new head begins from nothing, and catches up
BATCHES = ((500, 8), (3000, 16))  # below so many rows: so many of them in a step
STEPS, MOST_STEPS = 400, 1000  # at least so many; and no more for the sake of ten times through the rows
JUDGES = 50  # held-out rows from which on a metric can stop a run
PATIENCE = 5  # evaluations, of ten


def resolved(
    recipe: TaskRecipe,
    train: Examples | Sequences,
    opened: LoadedModel,
    task: Task,
    dev_rows: int,
    new_head: bool,
    device: torch.device,
) -> FinetuneTraining:
    """The plan with every open choice made, so that the recipe in the run folder says it all."""
    plan, alone = recipe.training, recipe.task.freeze == "encoder"  # a small head alone takes larger steps
    from_scratch, static = "base" not in recipe.model, opened.family.name == "vectors"
    width = (768 / opened.config.width) ** 0.5 if opened.config.width else 1.0
    if from_scratch or static or not isinstance(train, Examples):
        usual_batch, usual_epochs = pairs_plan(train) if from_scratch and isinstance(train, Sequences) else (32, 3.0)
        if from_scratch and not isinstance(train, Sequences) and not opened.config.heads:
            usual_epochs = min(20.0, max(3.0, EXAMPLES / train.count))  # no Transformer: each time through is cheap
        usual = 2e-3 if static else opened.family.learning_rate * width if from_scratch else 5e-5
        return decided(plan, train, device, usual_batch, usual_epochs, max(usual, 1e-3) if alone else usual)
    # A pre-trained encoder reads few rows more often, in smaller steps, until nothing improves.
    batch, steps = few_rows_plan(train.count, len(task.labels))
    few = steps * batch > 3.5 * train.count
    # Few rows want larger steps of a small network and of a new head; many lose by them (SST-2: 0.902, then 0.895).
    usual = BASE_LEARNING_RATE * width if few else BASE_LEARNING_RATE
    head_rate = HEAD_RATE if few and new_head and not alone else 1.0
    batch = min(plan.batch or batch, train.count)
    usual_epochs = steps * batch / train.count
    settled_plan = decided(plan, train, device, batch, usual_epochs, max(usual, 1e-3) if alone else usual)
    settled_plan = replace(settled_plan, head_rate=plan.head_rate or head_rate)
    if not few or plan.steps or plan.epochs:
        return settled_plan
    if plan.evaluate_every is None:
        # A handful of held-out rows would pick a model by luck: they choose among few, all of them well trained.
        every = max(1, math.ceil((settled_plan.steps or 1) / (10 if dev_rows >= JUDGES else 4)))
        settled_plan = replace(settled_plan, evaluate_every=every, save_every=plan.save_every or every)
    patience = PATIENCE if plan.patience is None and dev_rows >= JUDGES else plan.patience
    return replace(settled_plan, patience=patience)


def few_rows_plan(rows: int, labels: int) -> tuple[int, int]:
    """Rows in a step, and steps: three times through the rows, ten times where they are few, and never below STEPS."""
    batch = next((batch for most, batch in BATCHES if rows < most), 32)
    at_least = max(STEPS, min(math.ceil(10 * rows / batch), MOST_STEPS))
    longer = min(2.0, max(1.0, (labels / 4) ** 0.5))  # to tell more labels apart; twice as long for 16 of them
    return batch, max(math.ceil(3 * rows / batch), math.ceil(at_least * longer))


def decided(
    plan: FinetuneTraining,
    train: Examples | Sequences,
    device: torch.device,
    usual_batch: int,
    usual_epochs: float,
    usual_learning_rate: float,
) -> FinetuneTraining:
    """The plan with what is usual where nothing else was asked for."""
    batch = min(plan.batch or usual_batch, train.count)
    in_epoch = math.ceil(train.count / batch)
    epochs = plan.epochs if plan.epochs is not None else usual_epochs
    steps = plan.steps or max(1, round(epochs * in_epoch))
    # Writing takes long: a run of many short epochs is judged ten times, not after each.
    often = max(in_epoch, math.ceil(steps / 10)) if isinstance(train, Sequences) else in_epoch
    every = plan.evaluate_every or max(1, min(often, steps))
    return settled(plan, device, batch, steps, every, usual_learning_rate)


def pairs_plan(train: Sequences) -> tuple[int, float]:
    """Pairs in a step and times through all of them, for an encoder-decoder that begins from nothing."""
    together = 4096 * train.count / max(1, train.writes)  # about so many tokens to write in a step
    batch = max(1, min(256, round(together), train.count // 8))  # few pairs still make several steps
    return batch, min(100.0, max(3.0, 1.2e6 / train.count))


def _reading(opened: LoadedModel, dataset: Dataset[Example], windows: int, framing: Framing) -> str:
    """What becomes of long rows."""
    if windows > len(dataset.train):
        return f"{windows:,} windows of at most {framing.length} tokens, none is cut"
    cut = 0
    for first in range(0, len(dataset.train) if framing.cutting else 0, 1024):
        rows = dataset.train[first : first + 1024]
        lengths = iter(tokenizer_of(opened).ids([text for row in rows for text in row.texts], specials=False))
        for row in rows:
            size = sum(len(next(lengths)) for _ in row.texts) + special_tokens(framing, len(row.texts))
            cut += size > framing.length
    return f"{cut:,} of them cut at {framing.length} tokens" if cut else "none is cut"


def announce(
    selection: Selection, recipe: TaskRecipe, dataset: Dataset[Example], train: Examples | Sequences, log: Log
) -> None:
    """What is about to be learned, from what and how, in three lines."""
    run, opened, task = selection.run, selection.model, selection.task
    parameters = sum(parameter.numel() for parameter in opened.network.parameters() if parameter.requires_grad)
    rows = len(dataset.train)
    if isinstance(train, Sequences):
        rows = train.count  # pairs that are too long were left out
        read = (
            f"vectors of {opened.config.features:,} numbers" if isinstance(train.read, VectorSide) else "tokens to read"
        )
        long = f"{len(train.read.tokens):,} {read} and {train.writes:,} tokens to write"
    else:
        long = _reading(opened, dataset, train.rows_count, selection.framing)
    labels = f"{len(task.labels)} labels, " if task.labels else ""
    held = "" if dataset.held_out is None else " (drawn from the rows, noted in run/split.json)"
    if len(dataset.dev) < FEW_JUDGES:
        held += "; so few say little, and their intervals tell how little"
    if task.writes and recipe.task.metric != "loss":
        written = len(task.sample(dataset.dev))
        held += f", of which {written:,} are written out" if written < len(dataset.dev) else ""
    steps = recipe.training.steps or 1
    epochs = steps * (recipe.training.batch or 1) / max(1, rows)
    log(
        f"{run.folder}: {recipe.task.name}, {labels}{opened.family.name}, {parameters:,} parameters to train, "
        f"on {recipe.device} in {recipe.training.precision}\n"
        f"data: {rows:,} rows to learn from ({long}), {len(dataset.dev):,} to judge by{held}\n"
        f"plan: {steps:,} step{'s' * (steps != 1)} of {recipe.training.batch} rows"
        f" ({epochs:.3g} epochs), learning rate {recipe.training.learning_rate:.1e}, kept by {recipe.task.metric}"
    )


@dataclass(frozen=True)
class Seeds:
    """The scores of runs that differ in nothing but the seed."""

    scores: dict[str, list[float]]
    best: int  # the seed whose model stands in the folder above the runs

    def rows(self) -> list[list[str]]:
        rows = []
        for name, values in self.scores.items():
            mean, spread, low, high = summarized(values)
            each = ", ".join(f"{value:.4f}" for value in values)
            rows.append([name, f"{mean:.4f}", f"{spread:.4f}", f"{low:.4f}", f"{high:.4f}", each])
        return rows


def with_seeds(
    recipe: str | None,
    settings: Mapping[str, Any],
    count: int,
    *,
    online: bool = False,
    log: Log = to_logger,
    progress: ProgressChoice = None,
) -> Seeds:
    """Train, or go on, with `count` seeds, each in `seed-N` of the folder, and put the best model into the folder."""
    if not 2 <= count <= 1000:
        raise UserError(f"seeds must be between 2 and 1000, not {count}")
    plan = read_recipe(recipe, settings, TaskRecipe)
    if plan.out is None:
        raise UserError("no folder for the runs: give --out FOLDER")
    folder = Path(plan.out)
    note = folder / "seeds.json"
    sweep(folder)
    if folder.exists() and any(folder.iterdir()) and not note.exists():
        raise UserError(f"{folder}: already there and not empty; choose another --out or remove it first")
    same = json.dumps(values_of(replace(plan, seed=0, out=None)), sort_keys=True)
    wanted = {"count": count, "first": plan.seed, "recipe": hashlib.sha256(same.encode()).hexdigest()}
    if note.exists() and {key: read_json(note).get(key) for key in wanted} != wanted:
        raise UserError(f"{folder}: holds runs of another recipe or with other seeds; choose another --out")
    write_json(note, wanted)
    models: dict[int, Model] = {}
    for seed in range(plan.seed, plan.seed + count):
        run = Run(folder / f"seed-{seed}")
        if run.recipe.exists():
            models[seed] = resume(run.folder, log=log, progress=progress)
        else:
            one = replace(plan, out=os.fspath(run.folder), seed=seed)
            try:
                models[seed] = finetune(recipe=one, online=online, log=log, progress=progress)
            except UserError:
                if [path.name for path in folder.iterdir()] == [note.name]:  # nothing was learned: nothing is left
                    shutil.rmtree(folder)
                raise
    by_name: dict[str, list[float]] = {}
    for model in models.values():
        for metric in model.card.metrics:
            by_name.setdefault(metric.name, []).append(metric.value)
    chosen = read_toml(TaskRecipe, Run(folder / f"seed-{plan.seed}").recipe).task.metric
    deciding = chosen if chosen is not None and chosen in by_name else next(iter(by_name))
    sign = -1 if deciding == "loss" else 1
    scores = {seed: {each.name: sign * each.value for each in model.card.metrics} for seed, model in models.items()}
    best = max(models, key=lambda seed: scores[seed].get(deciding, float("-inf")))
    for path in (folder / f"seed-{best}").iterdir():
        if path.is_file():
            shutil.copyfile(path, folder / path.name)
        elif path.name == TARGET:
            shutil.copytree(path, folder / path.name, dirs_exist_ok=True)
    write_json(note, {**wanted, "scores": by_name, "best": best})
    return Seeds(by_name, best)
