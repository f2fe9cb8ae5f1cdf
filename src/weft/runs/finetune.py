"""`weft.finetune`: from rows of data to a model for a task, in a run folder that can be resumed."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from weft.checkpoint.card import Card, Metric
from weft.checkpoint.external import open_vectors
from weft.checkpoint.families import FAMILIES
from weft.checkpoint.folder import TARGET, LoadedModel
from weft.checkpoint.locate import find_folder
from weft.config import changed, read_toml, values_of
from weft.data.dataset import Dataset, RunRows, long_note
from weft.data.examples import Examples, Sequences, VectorSide, batch_of
from weft.data.rows import Feed
from weft.errors import UserError, listed, one_of, refuse
from weft.files import read_json, sweep, write_json
from weft.metrics.bootstrap import Score, summarized
from weft.objectives.losses import Objective
from weft.progress import Log, ProgressChoice, log_notes, to_logger
from weft.runs import preparation
from weft.runs.baseline import BASELINES, FEW_JUDGES, Baseline, baseline_models, compare_baselines
from weft.runs.driver import Job, begun, check_tensorboard, device_for, drive, new_run, resume, scratch_folder, settled
from weft.runs.preparation import Beginning, absolute_paths, absolute_tables, gather, settings_of
from weft.runs.recipes import DataSection, FinetuneTraining, TaskRecipe, family_for, overlaid, read_recipe
from weft.tasks.base import Example, Task, TeacherRows
from weft.tasks.evaluate import EvaluationResult, evaluate_examples
from weft.tasks.forward import framing_for, tokenizer_of
from weft.tasks.model import Model, load
from weft.tasks.registry import task_class
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.windows import Framing, special_tokens
from weft.training.run import Run, State, tokenizer_hash
from weft.training.signals import Control
from weft.training.step import HeldOutMetrics, freeze

MOST_WINDOWS = 16  # of one text in one step of training
Batches = Examples | Sequences
Rows = Dataset[Example]


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
    `data` and `dev` may also be rows in memory: a data frame, a Dataset, dicts or tuples (`weft.data.tables`), whose
    columns may be named: `columns={"text": "summary", "label": "team"}`. A base that is a model in memory is kept in
    the run folder, so that the run can be resumed.
    """
    rows, in_memory = RunRows(), None
    if isinstance(base, Model):  # a folder for now, named as the one that it was opened from
        in_memory = scratch_folder() / ("model" if base.folder is None else base.folder.name or "model")
        base.save(in_memory)
        base = in_memory
    if not isinstance(recipe, TaskRecipe):
        more = more if columns is None else overlaid(more, {"data": {"columns": dict(columns)}})
        values = {"task.name": task, "model.base": base, "model.vectors": vectors, "out": out}
        given, files = overlaid(settings or {}, more), {"files": data, "dev": dev}
        recipe = read_recipe(recipe, settings_of(given, rows, DataSection, files, values), TaskRecipe)
    if recipe.out is None:
        recipe = replace(recipe, out=str(scratch_folder() / "run"))
    run = new_run(recipe)
    if online and isinstance(recipe.model.get("base"), str) and not Path(recipe.model["base"]).exists():
        find_folder(recipe.model["base"], online)  # from here on it lies in the cache
    recipe = replace(recipe, model=family_for(recipe.task.name, recipe.model, log))
    _check(recipe)
    tables = absolute_tables(recipe.data, ("files",), rows, recipe.out or "", log)
    recipe = changed(recipe, {"data": tables, **absolute_paths(recipe)})
    if in_memory is not None:
        recipe = changed(recipe, {"model": {"base": str((run.inside / "base" / in_memory.name).absolute())}})
    with begun(run, recipe, log, progress) as control:
        rows.write(recipe.out or "")
        if in_memory is not None:
            shutil.copytree(in_memory, recipe.model["base"])
        return go(run, recipe, control)


def _check(recipe: TaskRecipe) -> None:
    """All that can be wrong before any data is read."""
    family, work, data = preparation.chosen_family(recipe.model, recipe.tokenizer), recipe.task, recipe.data
    task = task_class(work.name)
    if "vectors" in recipe.model:
        preparation.find_vectors(recipe.model["vectors"])
    if not task.fits(family):
        if task.needs:
            able = listed([each.name for each in FAMILIES.values() if task.fits(each)])
            raise UserError(f"{work.name} needs a model that {task.needs} ({able}), not {family.name}")
        names = listed(preparation.tasks_for(family), 20)
        able = f"; it learns {names}" if names else " and learns from text alone"
        raise UserError(f"{family.name} has no head for {work.name}{able}")
    separate, files = recipe.tokenizer.separate, data.source or data.target
    one, two = not family.config.has("source_vocabulary"), ", or --source FILE and --target FILE" * task.parallel
    sides = not task.parallel and bool(files or separate)
    refuse(
        (
            work.layers is not None and not family.config.has("head_layers"),
            f"the head of {family.name} has no choice of layers to read: leave out --layers",
        ),
        (separate and one, f"{family.name} has one vocabulary for source and target"),
        (bool(work.words) and not family.one_way, f"--words needs a decoder such as gpt2, not {family.name}"),
        (not (data.files or files), f"no data: give --data FILE{two}; in Python, a file or rows as the first argument"),
        (sides, f"{work.name} does not generate a text from another: it has no source and target"),
    )
    check_tensorboard(recipe)


def go(run: Run, recipe: TaskRecipe, control: Control) -> Model:
    """From the recipe in a run folder to the best model; from its last checkpoint on where there is one."""
    plan, device = recipe.training, device_for(recipe.device, recipe.training.threads)
    on_cpu = bool(plan.compile) and device.type == "cpu"
    refuse(
        (on_cpu, "on the CPU only full rows can be compiled, and rows of a task are not: leave out training.compile"),
        (plan.watch_gradients, "watch_gradients is for language models: weft pretrain --watch-gradients"),
    )
    task, dataset = gather(recipe, control)
    metric = _metric(recipe, task, control.log)
    recipe, beginning = _begun(run, recipe, task, dataset, control)
    model, card = beginning.opened, beginning.opened.card
    if recipe.task.language is not None:
        model = model.in_language(recipe.task.language)
    if note := task.swap_note(dataset.train, "the rows, beside those of the base", card.profiles):
        control.note(note)
    task = task.prepare(model, dataset.train, beginning.fresh)
    if recipe.task.freeze is not None:
        freeze(model.network, recipe.task.freeze)
    window = task.window(model, recipe.task.length, recipe.task.stride, recipe.task.long)
    framing = framing_for(model, window)
    refuse(
        (
            bool(plan.compile) and not model.network.COMPILES,
            f"{model.family.name} cannot be compiled: leave out --compile",
        )
    )
    capture = device.type == "cuda" and not plan.compile and model.network.COMPILES
    train, dev = tokenized_rows(task, dataset, model, framing, control)
    # The held-out windows are for the loss; the metrics are those of whole texts.
    train, dev = train.for_training(MOST_WINDOWS, recipe.seed, capture), dev.for_training(MOST_WINDOWS, 0, False)
    plan = resolved(recipe, train, model, task, len(dataset.dev), beginning.fresh and not run.about.exists(), device)
    work = replace(recipe.task, metric=metric, length=window.length, stride=window.stride, labels=task.labels)
    recipe = replace(recipe, training=plan, device=str(device), task=work)
    made = replace(
        task.to_card(card),
        task=work.name,
        window=task.card_window(window, train),
        pooling=None,
        normalize=None,
        columns={**dataset.columns, **recipe.data.columns},
        base=Path(recipe.model["base"]).name if "base" in recipe.model else None,  # without its path, which is private
    )
    model = replace(model, card=made)
    data = dataset.hashes.get("dev", dataset.hashes["data"])
    selection = Selection(run, task, model, framing, dataset.dev, metric, data, name=work.name)
    share, steps = work.scheduled_sampling, plan.steps or 1
    own = f"task.scheduled_sampling needs a recurrent encoder-decoder, not {model.family.name}"
    refuse((share > 0 and not model.network.READS_OWN, own))
    options = {
        # The share of its own tokens that a decoder reads in each step (Bengio et al., 2015).
        "pace": (lambda step: {"own": torch.tensor(share * step / steps)}) if share else task.pace(steps),
        "capture": capture,
        # A new head, and the mix of layers that is learned with it.
        "faster": dict.fromkeys((f"heads.{task.head}.", "mix."), plan.head_rate) if plan.head_rate else {},
    }
    same = {"data": dataset.hashes, "tokenizer": tokenizer_hash(model)}
    job = selection.job(recipe, dataset, task.objective(), (train, dev), same, options)
    return _driven(selection, job, dataset, train, card, control)


def _driven(selection: Selection, job: Job, dataset: Rows, train: Batches, card: Card, control: Control) -> Model:
    """Train, with linear baselines beside where the task has some."""
    run, recipe, device = selection.run, job.recipe, job.setup.device
    model, task, metric, baselines = selection.model, selection.task, selection.metric, list[Baseline]()

    def start(state: State) -> None:
        announce(selection, recipe, dataset, train, control.log)
        if state.finished and (run.inside / BASELINES).exists():
            return
        if recipe.task.baseline and task.linear_baseline:
            model.network.to(device)
            base = replace(model, card=card) if "base" in recipe.model else None  # as it was before training
            baselines.extend(baseline_models(task, dataset.train, dataset.dev, base, control.progress))
        for each in baselines:
            score = each.metrics.result()[metric]
            control.log(f"baseline: {each.name}: {metric} {score.value:.4f} ({each.seconds:.1f} s{each.less})")

    drive(run, replace(job, announce=start), control)
    trained = load(run.folder)
    if baselines:
        best = selection.best
        if best is None:  # it was kept by the process that this run resumes
            opened = trained.to(device).opened
            held = selection.task.sample(dataset.dev)
            best = evaluate_examples(selection.task, opened, selection.framing, held, tune=True)
            trained.to("cpu")
        compare_baselines(run, best, baselines, metric, control.log)
    return trained


def _metric(recipe: TaskRecipe, task: Task, log: Log) -> str:
    """The metric that decides which model is kept."""
    metric = one_of(recipe.task.metric, task.metric_names, "metric") if recipe.task.metric else task.default_metric
    package = task.packages.get(metric)
    if package is None or find_spec(package) is not None:
        return metric
    refuse((bool(recipe.task.metric), f"{metric} needs the package {package}: pip install 'weft[evaluate]'"))
    log(f"weft: note: without the package {package} the best model is chosen by its loss alone")
    return "loss"


def _begun(run: Run, recipe: TaskRecipe, task: Task, dataset: Rows, control: Control) -> tuple[TaskRecipe, Beginning]:
    """The model to train, and the recipe with its sizes."""
    heads, base, work = dict(task.objective().heads), recipe.model.get("base"), recipe.task
    if base is not None and Path(base).is_file():
        counts = {head: count or 0 for head, count in heads.items()}
        return recipe, Beginning(open_vectors(Path(base), counts, recipe.seed, on_bad_row=recipe.data.on_bad_row), True)
    if base is not None:
        same = (work.name, task.labels)
        reading = (work.mix, work.layers)
        beginning = preparation.from_folder(find_folder(base), heads, task.head, same, recipe.seed, *reading)
        if beginning.note and not run.about.exists():
            control.note(beginning.note)
        return recipe, beginning
    family = preparation.chosen_family(recipe.model, recipe.tokenizer)
    if family.reads:
        sizes = preparation.sized(recipe.model, family, len(dataset.train), control.log)
        recipe = replace(recipe, model=task.network_settings(sizes) | sizes)
    elif family.series:
        recipe = replace(recipe, model=task.network_settings(recipe.model) | recipe.model)
    elif not work.words:
        recipe = replace(recipe, model=preparation.both_ways(recipe.model, family, control.log))

    def vocabularies(like: Tokenizer | None) -> tuple[Tokenizer, ...]:
        """One for all texts, or one for the sources and another for the targets; none for numbers."""
        if family.series:
            return ()
        read = ((work.prefix or "") + text for row in dataset.train for text in row.texts)
        written = (row.target for row in dataset.train) if family.reads else ()
        texts: dict[str, Iterable[str]] = {"": chain(read, written)}
        if recipe.tokenizer.separate and family.reads:
            texts = {"": read, TARGET: written}
        places = ((run.folder / name, recipe.tokenizer, family, each) for name, each in texts.items())
        return tuple(preparation.vocabulary_for(*place, like, control) for place in places)

    mix = {"mix": True} if work.mix else {} if work.layers is None else {"head_layers": work.layers}
    recipe, model = preparation.from_scratch(run, recipe, heads, mix, vocabularies, control, recipe.data.on_bad_row)
    return recipe, Beginning(model, True, True)


def tokenized_rows(
    task: Task, dataset: Rows, model: LoadedModel, framing: Framing, control: Control, *teacher: TeacherRows
) -> list[Batches]:
    """The rows as sources of batches: those to train on, and those that are held out; each with teacher outputs."""
    taught = teacher or (None, None)
    with control.progress("tokenizing", "rows") as advance:
        train = task.dataset(dataset.train, model, framing, taught[0])
        advance(len(dataset.train))
        control.stop.check("stopped while tokenizing")
        dev = task.dataset(dataset.dev, model, framing, taught[1])
    for note in (*train.notes, *(f"of the held-out rows: {note}" for note in dev.notes)):
        control.note(note)
    return [train, dev]


Scores = Mapping[str, Score]
Values = Mapping[str, Any]


@dataclass
class Selection:
    """The model of a task in training, evaluated on held-out examples and saved where it is the best."""

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

    def evaluate(self, rows: int | None = None) -> HeldOutMetrics:
        """The metrics of the model as it is, of so many rows, with thresholds tuned on the same examples."""
        examples = self.task.sample(self.examples)
        if rows is not None and rows < len(examples):
            examples = [examples[number * len(examples) // rows] for number in range(rows)]
        self.last = evaluate_examples(self.task, self.model, self.framing, examples, tune=True)
        return HeldOutMetrics({n: score.value for n, score in self.scores(self.last.scores).items()}, self.metric)

    def save(self, model: LoadedModel, losses: Mapping[str, float]) -> None:
        """Save the model with its metrics, in place of the best before it."""
        last = self.last if losses else None  # what was tried before the first evaluation is not of this model
        task = self.task if last is None else last.task
        scores = {} if last is None else self.scores(last.scores)
        metrics = tuple(Metric(data=self.data, name=name, **asdict(score)) for name, score in scores.items())
        if self.metric == "loss" and "loss" in losses:
            metrics = (Metric(data=self.data, name="loss", value=losses["loss"]),)
        with task.saving(model.network):
            self.run.save_model(replace(model, card=task.to_card(model.card)), metrics)
        self.best = last
        if last is not None and self.name is not None:
            last.evaluation("held-out rows", self.data).save(self.run.evaluation)

    def job(
        self, recipe: Any, dataset: Rows, objective: Objective, batches: Sequence[Any], same: Values, options: Values
    ) -> Job:
        """Train the model on these rows."""
        return Job(
            recipe=recipe,
            model=self.model,
            objective=objective,
            feed=Feed(batches[0], batch_of, recipe.seed, recipe.training.batch or 1),
            held_out=batches[1],
            options={
                "evaluate": None if self.metric == "loss" else self.evaluate,
                "generated": len(self.task.sample(self.examples)) if self.task.writes else 0,
                **options,
            },
            same=same,
            about={"rows": {"train": len(dataset.train), "dev": len(dataset.dev)}},
            split=None if dataset.held_out is None else {"split": recipe.data.split, "held_out": dataset.held_out},
            save=self.save,
            metric=self.metric,
        )


EXAMPLES = 54_000  # that a small model from scratch sees: ten times the questions of TREC
BASE_LEARNING_RATE = 5e-5  # of a pre-trained encoder of width 768
HEAD_RATE = 5.0  # a new head begins from nothing, and catches up
BATCHES = ((500, 8), (3000, 16))  # below so many rows: so many of them in a step
STEPS, MOST_STEPS = 400, 1000  # at least so many; and no more for the sake of ten times through the rows
JUDGES = 50  # held-out rows from which on a metric can stop a run
PATIENCE = 5  # evaluations, of ten
EVALUATIONS = 20  # of a run whose evaluations are quick


def resolved(
    recipe: TaskRecipe, train: Batches, model: LoadedModel, task: Task, dev: int, new_head: bool, device: torch.device
) -> FinetuneTraining:
    """The plan with every open choice made, so that the recipe in the run folder says it all."""
    plan, alone = recipe.training, recipe.task.freeze == "encoder"  # a small head alone takes larger steps
    from_scratch, static = "base" not in recipe.model, model.family.name == "vectors"
    if (usual_plan := task.usual_plan(train, from_scratch)) is not None:
        result = decided(plan, train, device, *usual_plan)
        every = plan.evaluate_every or max(1, math.ceil((result.steps or 1) / EVALUATIONS))
        return replace(result, evaluate_every=every, save_every=plan.save_every or every)
    width = (768 / model.config.width) ** 0.5 if model.config.width else 1.0
    if from_scratch or static or not isinstance(train, Examples):
        usual_batch, usual_epochs = pairs_plan(train) if from_scratch and isinstance(train, Sequences) else (32, 3.0)
        if from_scratch and not isinstance(train, Sequences) and not model.config.heads:
            usual_epochs = min(20.0, max(3.0, EXAMPLES / train.count))  # no Transformer: each time through is cheap
        usual = 2e-3 if static else model.family.learning_rate * width if from_scratch else 5e-5
        return decided(plan, train, device, usual_batch, usual_epochs, max(usual, 1e-3) if alone else usual)
    # A pre-trained encoder reads few rows more often, in smaller steps, until nothing improves.
    batch, steps = few_rows_plan(train.count, len(task.labels))
    few = steps * batch > 3.5 * train.count
    # Few rows want larger steps of a small network and of a new head; many lose by them (SST-2: 0.902, then 0.895).
    usual = BASE_LEARNING_RATE * width if few else BASE_LEARNING_RATE
    usual = model.family.base_rate or usual
    head_rate = HEAD_RATE if (few or model.family.base_rate) and new_head and not alone else 1.0
    batch = min(plan.batch or batch, train.count)
    result = decided(plan, train, device, batch, steps * batch / train.count, max(usual, 1e-3) if alone else usual)
    result = replace(result, head_rate=plan.head_rate or head_rate)
    if not few or plan.steps or plan.epochs:
        return result
    # A handful of held-out rows would select a model by luck: they choose among few, all of them well trained.
    every = plan.evaluate_every or max(1, math.ceil((result.steps or 1) / (10 if dev >= JUDGES else 4)))
    patience = PATIENCE if plan.patience is None and dev >= JUDGES else plan.patience
    return replace(result, evaluate_every=every, save_every=plan.save_every or every, patience=patience)


def few_rows_plan(rows: int, labels: int) -> tuple[int, int]:
    """Rows in a step, and steps: three times through the rows, ten times where they are few, and never below STEPS."""
    batch = next((batch for most, batch in BATCHES if rows < most), 32)
    at_least = max(STEPS, min(math.ceil(10 * rows / batch), MOST_STEPS))
    longer = min(2.0, max(1.0, (labels / 4) ** 0.5))  # to tell more labels apart; twice as long for 16 of them
    return batch, max(math.ceil(3 * rows / batch), math.ceil(at_least * longer))


def decided(
    plan: FinetuneTraining, train: Batches, device: torch.device, batch: int, epochs: float, learning_rate: float
) -> FinetuneTraining:
    """The plan with this batch, these epochs and this learning rate where nothing else was asked for."""
    batch = min(plan.batch or batch, train.count)
    in_epoch = math.ceil(train.count / batch)
    steps = plan.steps or max(1, round((epochs if plan.epochs is None else plan.epochs) * in_epoch))
    # Generation takes long: a run of many short epochs is evaluated ten times, not after each.
    often = max(in_epoch, math.ceil(steps / 10)) if isinstance(train, Sequences) else in_epoch
    return settled(plan, device, batch, steps, plan.evaluate_every or max(1, min(often, steps)), learning_rate)


def pairs_plan(train: Sequences) -> tuple[int, float]:
    """Pairs in a step and times through all of them, for an encoder-decoder that begins from nothing."""
    together = 4096 * train.count / max(1, train.writes)  # about so many tokens to write in a step
    batch = max(1, min(256, round(together), train.count // 8))  # few pairs still make several steps
    return batch, min(100.0, max(3.0, 1.2e6 / train.count))


def announce(selection: Selection, recipe: TaskRecipe, dataset: Rows, train: Batches, log: Log) -> None:
    """What is about to be trained, on what and how, in three lines."""
    model, task, framing, plan = selection.model, selection.task, selection.framing, recipe.training
    parameters = sum(parameter.numel() for parameter in model.network.parameters() if parameter.requires_grad)
    rows, length, truncated = len(dataset.train), framing.length, 0
    if isinstance(train, Sequences):
        rows, vectors = train.count, isinstance(train.read, VectorSide)  # pairs that are too long were left out
        read = f"vectors of {model.config.features:,} numbers" if vectors else "tokens to read"
        long = f"{len(train.read.tokens):,} {read} and {train.writes:,} tokens to write"
    elif train.about:
        long = train.about
    elif train.rows_count > rows:
        long = f"{train.rows_count:,} windows of at most {length} tokens, none is truncated"
    else:
        # Only rows that fill their window can be truncated, pairs of two long texts up to one token.
        whole = train.starts[1:] - train.starts[:-1] if isinstance(train, Examples) and train.count == rows else None
        full = range(rows) if whole is None else np.flatnonzero(whole >= length - 1).tolist()
        for first in range(0, len(full) if framing.cutting else 0, 1024):
            some = [dataset.train[number] for number in full[first : first + 1024]]
            lengths = iter(tokenizer_of(model).ids([text for row in some for text in row.texts], specials=False))
            for row in some:
                size = sum(len(next(lengths)) for _ in row.texts) + special_tokens(framing, len(row.texts))
                truncated += size > length
        long = f"{truncated:,} of them truncated at {length} tokens" if truncated else "none is truncated"
    how = framing.stride, framing.cutting
    notes = [note for row in dataset.examples if (note := long_note(row.texts, row.where, *how))]
    log_notes(notes[:3] + ([f"and {len(notes) - 3:,} more such texts"] if len(notes) > 3 else []), log)
    labels = f"{len(task.labels)} labels, " if task.labels else ""
    held = "" if dataset.held_out is None else " (taken from the rows, listed in run/split.json)"
    if len(dataset.dev) < FEW_JUDGES:
        held += "; so few give wide intervals"
    if task.writes and recipe.task.metric != "loss":
        written = len(task.sample(dataset.dev))
        held += f", {written:,} of which are generated for each evaluation" if written < len(dataset.dev) else ""
    steps = plan.steps or 1
    epochs = steps * (plan.batch or 1) / max(1, rows)
    log(
        f"{selection.run.folder}: {recipe.task.name}, {labels}{model.family.name}, {parameters:,} parameters to train, "
        f"on {recipe.device} in {plan.precision}\n"
        f"data: {rows:,} training rows ({long}), {len(dataset.dev):,} held out{held}\n"
        f"plan: {steps:,} step{'s' * (steps != 1)} of {plan.batch} rows ({epochs:.3g} epochs), "
        f"learning rate {plan.learning_rate:.1e}, best model by {recipe.task.metric}"
    )


@dataclass(frozen=True)
class Seeds:
    """The scores of runs that differ only in the seed."""

    scores: dict[str, list[float]]
    best: int  # the seed whose model is in the folder above the runs

    def rows(self) -> list[list[str]]:
        """A table: each score with its mean, spread and interval, and the values of all seeds."""
        figures = {n: [f"{x:.4f}" for x in (*summarized(values), *values)] for n, values in self.scores.items()}
        return [[name, *texts[:4], ", ".join(texts[4:])] for name, texts in figures.items()]


def with_seeds(recipe: str | None, settings: Mapping[str, Any], count: int, **control: Any) -> Seeds:
    """Train or resume runs with `count` seeds in `seed-N` of the folder, and copy the best model to the folder."""
    plan = read_recipe(recipe, settings, TaskRecipe)
    refuse((not 2 <= count <= 1000, f"seeds must be between 2 and 1000, not {count}"))
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
    metrics: dict[int, dict[str, float]] = {}
    for seed in range(plan.seed, plan.seed + count):
        run = Run(folder / f"seed-{seed}")
        try:
            if run.recipe.exists():
                model = resume(run.folder, **{key: value for key, value in control.items() if key != "online"})
            else:
                model = finetune(recipe=replace(plan, out=str(run.folder), seed=seed), **control)
        except UserError:
            if [path.name for path in folder.iterdir()] == [note.name]:  # nothing was learned: nothing is left
                shutil.rmtree(folder)
            raise
        metrics[seed] = {metric.name: metric.value for metric in model.card.metrics}
    names = dict.fromkeys(name for values in metrics.values() for name in values)
    scores = {name: [values[name] for values in metrics.values() if name in values] for name in names}
    chosen = read_toml(TaskRecipe, Run(folder / f"seed-{plan.seed}").recipe).task.metric
    deciding = chosen if chosen in scores else next(iter(scores))
    sign = -1 if deciding == "loss" else 1
    best = max(metrics, key=lambda seed: sign * metrics[seed].get(deciding, -sign * math.inf))
    for path in (folder / f"seed-{best}").iterdir():
        if path.is_file():
            shutil.copyfile(path, folder / path.name)
        elif path.name == TARGET:
            shutil.copytree(path, folder / path.name, dirs_exist_ok=True)
    write_json(note, {**wanted, "scores": scores, "best": best})
    return Seeds(scores, best)


RUNS = {"task": (TaskRecipe, go)}  # what `weft.resume` reads and calls
