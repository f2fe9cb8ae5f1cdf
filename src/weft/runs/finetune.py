"""`weft.finetune`: from rows of somebody's data to a model for a task, in a run folder that can be gone on with."""

from __future__ import annotations

import hashlib
import inspect
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft.checkpoint.card import Made, Metric
from weft.checkpoint.folder import LoadedModel
from weft.checkpoint.locate import find_folder
from weft.config import changed, read_toml, write_toml
from weft.data.batching import Feed
from weft.data.examples import batch_of
from weft.data.tables import RunRows, Table, is_section
from weft.errors import UserError, one_of
from weft.files import write_json
from weft.progress import Log, Progress, ProgressChoice, progress_of, to_logger
from weft.runs.architecture import both_ways, chosen_family, family_for, sized, sizes_of, vocabularies_for
from weft.runs.baseline import BASELINES, announce_baselines, compare_baselines, judged_again, train_baselines
from weft.runs.dataset import Material, announce_long, gather
from weft.runs.driver import Altered, begin, begun, device_for, drive, scratch_folder
from weft.runs.initial import begun_model, check_model
from weft.runs.plan import announce, resolved
from weft.runs.recipes import Rows, TaskRecipe, Tuning, overlaid, task_recipe
from weft.runs.word_vectors_start import Start, begun_from, fill_table
from weft.tasks.base import Task
from weft.tasks.evaluate import evaluation_of
from weft.tasks.forward import framing_for
from weft.tasks.judging import Judgement, judged
from weft.tasks.model import Model, load
from weft.tasks.registry import FROM_TEXT
from weft.tasks.translate import writer_of
from weft.training.freezing import freeze
from weft.training.run import Run, tokenizer_hash
from weft.training.setup import Setup, Verdict
from weft.training.signals import Stop

MOST_WINDOWS = 16  # of one text in one step of training
SIDES = ("source", "target", "dev_source", "dev_target")  # of files that belong together line for line


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
    `data` and `dev` may also be rows in memory: a data frame, a Dataset, dicts or tuples (`weft.data.memory`), whose
    columns may be named: `columns={"text": "summary", "label": "team"}`. A base that is a model in memory is kept in
    the run folder, so that the run can be resumed.
    """
    rows = RunRows()
    in_memory = isinstance(base, Model)
    if isinstance(base, Model):
        base = _saved(base)
    if columns is not None:
        more = overlaid(more, {"data": {"columns": dict(columns)}})
    if not isinstance(recipe, TaskRecipe):
        recipe = task_recipe(recipe, _said(settings, more, rows, data, dev, task, base, vectors, out))
    if recipe.out is None:
        recipe = replace(recipe, out=str(scratch_folder() / "run"))
    assert recipe.out is not None
    run = Run(Path(recipe.out))
    run.check_new()
    if online and isinstance(recipe.model.get("base"), str) and not Path(recipe.model["base"]).exists():
        find_folder(recipe.model["base"], online)  # from here on it lies in the cache
    recipe = replace(recipe, model=family_for(recipe.task.name, recipe.model, log))
    check_model(recipe)
    if not (recipe.data.files or recipe.data.source or recipe.data.target):
        two = ", or --source FILE and --target FILE" if recipe.task.name in FROM_TEXT else ""
        raise UserError(f"no data: give --data FILE{two}; in Python, a file or rows as the first argument")
    if recipe.task.name not in FROM_TEXT and (recipe.data.source or recipe.data.target or recipe.tokenizer.apart):
        raise UserError(f"{recipe.task.name} does not write one text from another: it has no source and target")
    if recipe.tensorboard and find_spec("tensorboard") is None:
        raise UserError("--tensorboard needs the package tensorboard: pip install 'weft[tensorboard]'")
    recipe = _from_anywhere(recipe, rows, log)
    if in_memory and base is not None:
        recipe = changed(recipe, {"model": {"base": str((run.inside / "base" / Path(base).name).absolute())}})
    with begun(run, recipe) as stop:
        rows.write(recipe.out or "")
        if in_memory and base is not None:
            shutil.copytree(base, recipe.model["base"])
        return _go(run, recipe, True, stop, log, progress_of(progress))


def _saved(model: Model) -> Path:
    """A model in memory as a folder for now, named as the one that it was opened from."""
    folder = scratch_folder() / (model.folder.name if model.folder is not None and model.folder.name else "model")
    model.save(folder)
    return folder


def go_on(run: Run, stop: Stop, log: Log, progress: Progress) -> Model:
    """Go on with a run that was broken off; where it had finished, its model."""
    return _go(run, read_toml(TaskRecipe, run.recipe), False, stop, log, progress)


def _said(settings: Mapping[str, Any] | None, more: Mapping[str, Any], rows: RunRows, *given: Any) -> dict[str, Any]:
    """What a call says, as a recipe would."""
    said = overlaid(settings or {}, more)
    data, dev, task, base, vectors, out = given

    def put(section: str, key: str, value: Any) -> None:
        said[section] = {**said.get(section, {}), key: value}

    if is_section(data, Rows):
        said, data = overlaid(said, {"data": data}), None
    if isinstance(task, Mapping):
        said, task = overlaid(said, {"task": task}), None
    there = said.get("data", {})
    sides = {key: there[key] for key in SIDES if isinstance(there.get(key), str | os.PathLike)}
    for key, value in (("files", data), ("dev", dev), *sides.items()):
        if value is not None:
            put("data", key, rows.names(key, value))
    if task is not None:
        put("task", "name", task)
    for key, value in (("base", base), ("vectors", vectors)):
        if value is not None:
            put("model", key, os.fspath(value))
    if out is not None:
        said["out"] = os.fspath(out)
    return said


def _from_anywhere(recipe: TaskRecipe, rows: RunRows, log: Log) -> TaskRecipe:
    """The recipe with whole paths, so that the run can be gone on with from any folder."""
    values: dict[str, Any] = {"data": {**rows.paths(recipe.out or "")}}
    for key in ("files", "dev", "source", "target", "dev_source", "dev_target"):
        if (names := getattr(recipe.data, key)) and key not in rows.tables:
            table = Table(names, format=recipe.data.format if key in ("files", "dev") else "txt")
            values["data"][key] = table.absolute(lambda text: log(f"weft: note: {text}"))
    learned, judges = (
        {name for key in keys for name in values["data"].get(key, ())}
        for keys in (("files", "source", "target"), ("dev", "dev_source", "dev_target"))
    )
    if both := learned & judges:
        raise UserError(f"{min(both)}: is both learned from and judged by")
    folder = recipe.tokenizer.folder
    for key in ("base", "vectors"):
        name = recipe.model.get(key)
        if name is not None and (key == "vectors" or Path(name).exists()):
            values["model"] = {key: str(Path(name).expanduser().absolute())}
    if folder is not None:
        values["tokenizer"] = {"folder": str(Path(folder).absolute())}
    return changed(recipe, values)


# ---------------------------------------------------------------------------------------------------------- the run


def _go(run: Run, recipe: TaskRecipe, fresh: bool, stop: Stop, log: Log, progress: Progress) -> Model:
    device = device_for(recipe.device, recipe.training.threads)
    if recipe.training.compile and device.type == "cpu":
        raise UserError(
            "on the CPU only full rows can be compiled, and rows of a task are not: leave out training.compile"
        )
    if recipe.training.watch_gradients:
        raise UserError("watch_gradients is for language models: weft pretrain --watch-gradients")
    material = gather(recipe, log, progress, stop)
    task = material.task
    metric = one_of(recipe.task.metric, task.metric_names, "metric") if recipe.task.metric else task.default_metric
    package = task.metric_package(metric)
    if package is not None and find_spec(package) is None:
        if recipe.task.metric:
            raise UserError(f"{metric} needs the package {package}: pip install 'weft[evaluate]'")
        metric = "loss"
        log(f"weft: note: without the package {package} the best model is chosen by its loss alone")
    tokenizers: tuple[Any, ...] = ()
    start: Start | None = None
    if "base" not in recipe.model:
        family = chosen_family(recipe.model, recipe.tokenizer, sizes_of(recipe.model))
        if family.reads:
            recipe = replace(
                recipe, model=task.network_settings() | sized(recipe.model, family, len(material.train), log)
            )
        elif not recipe.task.words:
            recipe = replace(recipe, model=both_ways(recipe.model, family, log))
        if "vectors" in recipe.model and run.checkpoints().newest() is None:  # later on the weights lie in the run
            model, start = begun_from(recipe.model, family, recipe.data.on_bad_row)
            recipe = replace(recipe, model=model)
        tokenizers = vocabularies_for(run, recipe, family, material.train, start, stop, log, progress)
    begun_with = begun_model(recipe, task, *(tokenizers or (None,)))
    opened = begun_with.opened
    if fresh and begun_with.note:
        log(f"weft: note: {begun_with.note}")
    if start is not None:
        fill_table(opened.network, tokenizers[0], start, recipe.seed, log)
    if note := task.swap_note(material.train, "the rows, beside those of the base", opened.card.profiles):
        log(f"weft: note: {note}")
    task = task.prepare(opened, material.train, begun_with.fresh)
    if recipe.task.freeze is not None:
        freeze(opened.network, recipe.task.freeze)
    window = task.window(opened, recipe.task.length, recipe.task.stride, recipe.task.long)
    framing = framing_for(opened, window)
    announce_long(material, framing, log)
    with progress("tokenizing", "rows") as told:
        train = task.dataset(material.train, opened, framing)
        told(len(material.train))
        stop.check("stopped while tokenizing")
        dev = task.dataset(material.dev, opened, framing)
    for note in (*train.notes, *(f"of those to judge by: {note}" for note in dev.notes)):
        log(f"weft: note: {note}")
    capture = device.type == "cuda" and not recipe.training.compile
    train = train.for_training(MOST_WINDOWS, recipe.seed, capture)
    dev = dev.for_training(MOST_WINDOWS, 0, False)  # for the loss; the scores are those of whole texts
    first = fresh or not run.about.exists()  # later on the recipe has the choices, or none where there were none yet
    plan = resolved(recipe, train, opened, task, len(material.dev), begun_with.fresh and first, device)
    recipe = replace(
        recipe,
        training=plan,
        device=str(device),
        task=replace(recipe.task, metric=metric, length=window.length, stride=window.stride, labels=task.labels),
    )
    _note_run(run, recipe, material, opened, device, fresh)
    begun = begin(run, plan.keep, plan.pass_tokens or 0, log)
    steps = plan.steps or 1
    card = replace(
        task.to_card(opened.card),
        task=recipe.task.name,
        window=task.card_window(window, train),
        pooling=None,
        normalize=None,
        columns={**material.columns, **recipe.data.columns},
        base=_base_name(recipe),
        recipe=hashlib.sha256(run.recipe.read_bytes()).hexdigest(),
        made=Made(seed=recipe.seed, date=datetime.now(UTC).date().isoformat()),
    )
    opened = replace(opened, card=card)
    announce(run, recipe, opened, material, train, framing, steps, log)
    baselines = []
    if not (begun.state.finished and (run.inside / BASELINES).exists()):
        baselines = train_baselines(recipe, task, material, opened, begun_with.opened.card, device, progress)
        announce_baselines(baselines, metric, log)
    last: list[Judgement] = []
    best: list[Judgement] = []

    def judge() -> Verdict:
        found = judged(task, opened, framing, task.sample(material.dev), tune=True)
        last[:] = [found]
        return Verdict({name: score.value for name, score in found.scores.items()}, metric)

    data = material.hashes.get("dev", material.hashes["data"])

    def keep_best(found: dict[str, float]) -> None:
        settled: Task = last[0].task if last else task
        scores = last[0].scores if last else {}
        metrics = tuple(Metric(data=data, name=n, value=s.value, low=s.low, high=s.high) for n, s in scores.items())
        if metric == "loss" and "loss" in found:
            metrics = (Metric(data=data, name="loss", value=found["loss"]),)
        with settled.saving(opened.network):
            run.save_model(replace(opened, card=settled.to_card(card)), metrics)
        best[:] = last
        if last:
            evaluation_of(last[0], recipe.task.name, "held-out rows", data).save(run.evaluation)

    setup = Setup(
        network=opened.network,
        objective=task.objective(),
        feed=Feed(train, batch_of, recipe.seed, plan.batch or 1),
        held_out=dev,
        plan=plan,
        learning_rate=plan.learning_rate or 0.0,
        steps=steps,
        evaluate_every=plan.evaluate_every or steps,
        save_every=plan.save_every or steps,
        device=device,
        precision=plan.precision,
        seed=recipe.seed,
        words_of=writer_of(opened).decode,
        judge=None if metric == "loss" else judge,
        pace=_own_words(recipe, opened, steps),
        capture=capture,
        faster=_faster(plan, task),
    )
    drive(run, setup, begun, recipe.tensorboard, keep_best, stop, log, metric, progress)
    trained = load(run.folder)
    if baselines:
        # Without a judgement the best model was kept by the process that this run goes on from.
        judgement = best[0] if best else judged_again(trained, recipe.task.name, material, framing, device)
        compare_baselines(run, judgement, baselines, metric, log)
    return trained


def _faster(plan: Tuning, task: Task) -> dict[str, float]:
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


def _base_name(recipe: TaskRecipe) -> str | None:
    base = recipe.model.get("base")
    return None if base is None else Path(base).name  # what lies where on this machine is nobody's business


def _note_run(
    run: Run, recipe: TaskRecipe, material: Material, opened: LoadedModel, device: torch.device, fresh: bool
) -> None:
    """What the run was made with, on the first day; later, that it still is the same."""
    if fresh or not run.about.exists():
        write_toml(recipe, run.recipe)
        about = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "seed": recipe.seed,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            "parameters": sum(parameter.numel() for parameter in opened.network.parameters()),
            "data": material.hashes,
            "tokenizer": tokenizer_hash(opened),
            "rows": {"train": len(material.train), "dev": len(material.dev)},
        }
        run.describe(about)
        if material.held is not None:
            write_json(run.inside / "split.json", {"split": recipe.data.split, "held_out": material.held})
        return
    before = run.info()
    if before.data != material.hashes:
        raise Altered(f"{run.folder}: the data is not what the run began with")
    if before.tokenizer != tokenizer_hash(opened):
        raise Altered(f"{run.folder}: its tokenizer is not the one that the run began with")
