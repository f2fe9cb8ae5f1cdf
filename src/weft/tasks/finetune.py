"""`weft.finetune`: from rows of somebody's data to a model for a task, in a run folder that can be gone on with."""

from __future__ import annotations

import atexit
import hashlib
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from weft.checkpoint.card import Made, Metric, Window
from weft.checkpoint.folder import Opened
from weft.config import changed, read_toml, write_toml
from weft.data.batching import Feed
from weft.data.examples import Examples, batch_of
from weft.errors import UserError, one_of
from weft.files import read_json, write_json
from weft.tasks.beginning import begun_model, check_model
from weft.tasks.choosing import chosen_family, sizes_of, vocabulary_for
from weft.tasks.driving import Altered, begin, device_for, drive, half_precision, pass_tokens, resumable
from weft.tasks.gathering import Material, gather
from weft.tasks.judging import Judgement, Task, judged
from weft.tasks.model import Model, find_folder, load
from weft.tasks.passing import framing_for, tokenizer_of, window_for
from weft.tasks.reading import Files
from weft.tasks.recipes import TaskRecipe, Tuning, read_recipe
from weft.tasks.saying import Progress, Say, silent, to_stderr
from weft.tasks.texts import TextTask, can_shift, last_linear, last_norm, rescale
from weft.text.windows import Framing, special_tokens
from weft.training.freezing import freeze
from weft.training.loop import Setup, Verdict
from weft.training.run import Run
from weft.training.signals import Stop, listening

MOST_WINDOWS = 16  # of one text in one step of training
FEW_JUDGES = 20  # rows, with fewer of which a score is mostly luck


def finetune(
    data: str | os.PathLike[str] | Sequence[str] | Mapping[str, Any] | None = None,
    recipe: TaskRecipe | str | None = None,
    settings: Mapping[str, Any] | None = None,
    *,
    task: str | Mapping[str, Any] | None = None,
    base: str | os.PathLike[str] | None = None,
    dev: str | os.PathLike[str] | Sequence[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    online: bool = False,
    say: Say = to_stderr,
    progress: Progress = silent,
    **more: Any,
) -> Model:
    """Fine-tune a model on rows of data; without `out`, in a folder that goes away with the process.

    `weft.finetune("reviews.csv", task="classify", base="MODEL", training={"epochs": 2})`; every section of a recipe may
    be given so, `task={"name": "tag", "length": 256}` and `data={"files": ["a.csv"], "holdout": 0.2}` too.
    """
    if not isinstance(recipe, TaskRecipe):
        said = _said(settings, more, data, dev, task, base, out)
        if recipe is None and "name" not in said.get("task", {}):
            raise UserError("which task? give --task classify, multilabel, regress, pair, tag or answer")
        recipe = read_recipe(recipe, said, TaskRecipe)
    if recipe.out is None:
        scratch = tempfile.mkdtemp(prefix="weft-")
        atexit.register(shutil.rmtree, scratch, ignore_errors=True)
        recipe = replace(recipe, out=os.path.join(scratch, "run"))
    assert recipe.out is not None
    run = Run(Path(recipe.out))
    run.check_new()
    if online and isinstance(recipe.model.get("base"), str) and not Path(recipe.model["base"]).exists():
        find_folder(recipe.model["base"], online)  # from here on it lies in the cache
    check_model(recipe)
    if not recipe.data.files:
        raise UserError("no data: give --data FILE")
    if recipe.tensorboard and find_spec("tensorboard") is None:
        raise UserError("--tensorboard needs the package tensorboard: pip install 'weft[tensorboard]'")
    recipe = _from_anywhere(recipe)
    with listening() as stop, run.held(), resumable(run):
        run.check_new()  # again: somebody may have been quicker
        try:
            write_toml(recipe, run.recipe)
            return _go(run, recipe, True, stop, say, progress)
        except UserError:
            if run.checkpoints().newest() is None and not (run.folder / "model.safetensors").exists():
                run.discard()
            raise


def go_on(run: Run, stop: Stop, say: Say, progress: Progress) -> Model:
    """Go on with a run that was broken off; where it had finished, its model."""
    return _go(run, read_toml(TaskRecipe, run.recipe), False, stop, say, progress)


def _said(settings: Mapping[str, Any] | None, more: Mapping[str, Any], *given: Any) -> dict[str, Any]:
    """What a call says, as a recipe would."""
    said: dict[str, Any] = {**(settings or {}), **more}
    data, dev, task, base, out = given

    def put(section: str, key: str, value: Any) -> None:
        said[section] = {**said.get(section, {}), key: value}

    if isinstance(data, Mapping):
        said["data"], data = {**said.get("data", {}), **data}, None
    if isinstance(task, Mapping):
        said["task"], task = {**said.get("task", {}), **task}, None
    for key, value in (("files", data), ("dev", dev)):
        if value is not None:
            several = [value] if isinstance(value, str | os.PathLike) else list(value)
            put("data", key, [os.fspath(name) for name in several])
    if task is not None:
        put("task", "name", task)
    if base is not None:
        put("model", "base", os.fspath(base))
    if out is not None:
        said["out"] = os.fspath(out)
    return said


def _from_anywhere(recipe: TaskRecipe) -> TaskRecipe:
    """The recipe with whole paths, so that the run can be gone on with from any folder."""
    values: dict[str, Any] = {"data": {}}
    for key, names in (("files", recipe.data.files), ("dev", recipe.data.dev)):
        if names:
            values["data"][key] = [str(path.absolute()) for path in Files(names, {}).paths()]
    both = set(values["data"]["files"]) & set(values["data"].get("dev", ()))
    if both:
        raise UserError(f"{min(both)}: is both learned from and judged by")
    base, folder = recipe.model.get("base"), recipe.tokenizer.folder
    if base is not None and Path(base).exists():
        values["model"] = {"base": str(Path(base).absolute())}
    if folder is not None:
        values["tokenizer"] = {"folder": str(Path(folder).absolute())}
    return changed(recipe, values)


# ---------------------------------------------------------------------------------------------------------- the run


def _go(run: Run, recipe: TaskRecipe, fresh: bool, stop: Stop, say: Say, progress: Progress) -> Model:
    device = device_for(recipe.device, recipe.training.threads)
    if recipe.training.compile and device.type == "cpu":
        raise UserError(
            "on the CPU only full rows can be compiled, and rows of a task are not: leave out training.compile"
        )
    material = gather(recipe, say, progress, stop)
    task = material.task
    metric = one_of(recipe.task.metric, task.names, "metric") if recipe.task.metric else task.chosen
    tokenizer = None
    if "base" not in recipe.model:
        family = chosen_family(recipe.model, recipe.tokenizer, sizes_of(recipe.model))
        texts = (text for row in material.train for text in row.texts)
        tokenizer = vocabulary_for(run, recipe.tokenizer, family, family.speaks, texts, stop, say, progress)
    begun_with = begun_model(recipe, task, tokenizer)
    opened = begun_with.opened
    network: Any = opened.network
    if isinstance(task, TextTask) and task.kind == "value":
        if not can_shift(network):
            task = replace(task, center=0.0, spread=math.hypot(task.center, task.spread))
        if not begun_with.fresh:  # it says values as people write them; here they are distances from the middle
            rescale(network, 1 / task.spread, -task.center / task.spread)
    if recipe.task.freeze is not None:
        freeze(opened.network, recipe.task.freeze)
    window = _window(recipe, opened, task)
    framing = framing_for(opened, window)
    with progress("tokenising", "rows") as told:
        train = task.table(material.train, tokenizer_of(opened), framing)
        told(len(material.train))
        stop.check("stopped while tokenising")
        dev = task.table(material.dev, tokenizer_of(opened), framing)
    capture = device.type == "cuda" and not recipe.training.compile
    train = replace(train, most_rows=MOST_WINDOWS, seed=recipe.seed, fixed=capture)
    dev = replace(dev, most_rows=MOST_WINDOWS)  # for the loss; the scores are those of whole texts
    plan = resolved(recipe, train, opened, device)
    recipe = replace(
        recipe,
        training=plan,
        device=str(device),
        task=replace(recipe.task, metric=metric, length=window.length, stride=window.stride, labels=task.labels),
    )
    _note_run(run, recipe, material, opened, device, fresh)
    begun = begin(run, plan.keep, plan.pass_tokens or 0, say)
    steps = plan.steps or 1
    card = replace(
        task.carded(opened.card),
        task=recipe.task.name,
        window=window,
        pooling=None,
        normalise=None,
        columns=dict(recipe.data.columns),
        base=_base_name(recipe),
        recipe=hashlib.sha256(run.recipe.read_bytes()).hexdigest(),
        made=Made(seed=recipe.seed, date=datetime.now(UTC).date().isoformat()),
    )
    opened = replace(opened, card=card)
    _announce(run, recipe, opened, material, train, framing, steps, say)
    last: list[Judgement] = []

    def judge() -> Verdict:
        found = judged(task, opened, framing, material.dev, tune=True)
        last[:] = [found]
        return Verdict({name: score.value for name, score in found.scores.items()}, metric)

    data = material.hashes.get("dev", material.hashes["data"])

    def keep_best(found: dict[str, float]) -> None:
        settled: Task = last[0].task if last else task
        scores = last[0].scores if last else {}
        metrics = tuple(Metric(data=data, name=n, value=s.value, low=s.low, high=s.high) for n, s in scores.items())
        with folded(opened.network, settled):
            run.save_model(replace(opened, card=settled.carded(card)), metrics)

    setup = Setup(
        network=opened.network,
        objective=task.objective,
        feed=Feed(train, batch_of, recipe.seed, plan.batch or 1),
        held_out=dev,
        plan=plan,
        rate=plan.rate or 0.0,
        steps=steps,
        evaluate_every=plan.evaluate_every or steps,
        save_every=plan.save_every or steps,
        device=device,
        precision=plan.precision,
        seed=recipe.seed,
        words_of=tokenizer_of(opened).decode,
        judge=judge,
        capture=capture,
    )
    drive(run, setup, begun, recipe.tensorboard, keep_best, stop, say, metric)
    return load(run.folder)


def _window(recipe: TaskRecipe, opened: Opened, task: Task) -> Window:
    work = recipe.task
    length, stride = work.length, work.stride
    if work.name == "answer":
        length = length or min(384, opened.config.context)
        stride = stride or max(1, length // 3)
    return window_for(opened, length, stride, work.long, task.overlap)


def _base_name(recipe: TaskRecipe) -> str | None:
    base = recipe.model.get("base")
    return None if base is None else Path(base).name  # what lies where on this machine is nobody's business


def _note_run(
    run: Run, recipe: TaskRecipe, material: Material, opened: Opened, device: torch.device, fresh: bool
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
            "rows": {"train": len(material.train), "dev": len(material.dev)},
        }
        run.describe(about)
        if material.held is not None:
            write_json(run.inside / "split.json", {"split": recipe.data.split, "held_out": material.held})
    elif read_json(run.about).get("data") != material.hashes:
        raise Altered(f"{run.folder}: the data is not what the run began with")


def resolved(recipe: TaskRecipe, train: Examples, opened: Opened, device: torch.device) -> Tuning:
    """The plan with every open choice made, so that the recipe in the run folder says it all."""
    plan = recipe.training
    batch = min(plan.batch or 32, train.count)
    in_epoch = math.ceil(train.count / batch)
    epochs = plan.epochs if plan.epochs is not None else 3.0
    steps = plan.steps or max(1, round(epochs * in_epoch))
    from_scratch = "base" not in recipe.model
    static = opened.family.name == "vectors"
    usual = 2e-3 if static else 5e-4 * (768 / opened.config.width) ** 0.5 if from_scratch else 5e-5
    if recipe.task.freeze == "encoder":
        usual = max(usual, 1e-3)  # a small head alone takes larger steps
    every = plan.evaluate_every or max(1, min(in_epoch, steps))
    return replace(
        plan,
        steps=steps,
        epochs=None,
        batch=batch,
        pass_tokens=plan.pass_tokens or pass_tokens(device),
        rate=plan.rate or usual,
        evaluate_every=every,
        save_every=plan.save_every or every,
        log_every=min(plan.log_every, steps),
        precision=half_precision(device) if plan.precision == "auto" else plan.precision,
        threads=plan.threads or torch.get_num_threads(),
    )


@contextmanager
def folded(network: Any, task: Task) -> Iterator[None]:
    """While it is saved, the head of values says them as people write them."""
    if not isinstance(task, TextTask) or task.kind != "value":
        yield
        return
    moved = list(last_linear(network.heads["classify"]).parameters())
    moved += [] if len(moved) > 1 or not can_shift(network) else [last_norm(network).bias]
    before = [parameter.detach().clone() for parameter in moved]
    rescale(network, task.spread, task.center)
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, value in zip(moved, before, strict=True):
                parameter.copy_(value)


def _reading(opened: Opened, material: Material, windows: int, framing: Framing) -> str:
    """What becomes of long rows."""
    if windows > len(material.train):
        return f"{windows:,} windows of at most {framing.length} tokens, none is cut"
    cut = 0
    for first in range(0, len(material.train) if framing.cutting else 0, 1024):
        rows = material.train[first : first + 1024]
        lengths = iter(tokenizer_of(opened).ids([text for row in rows for text in row.texts], specials=False))
        for row in rows:
            size = sum(len(next(lengths)) for _ in row.texts) + special_tokens(framing, len(row.texts))
            cut += size > framing.length
    return f"{cut:,} of them cut at {framing.length} tokens" if cut else "none is cut"


def _announce(
    run: Run,
    recipe: TaskRecipe,
    opened: Opened,
    material: Material,
    train: Examples,
    framing: Framing,
    steps: int,
    say: Say,
) -> None:
    parameters = sum(parameter.numel() for parameter in opened.network.parameters() if parameter.requires_grad)
    long = _reading(opened, material, len(train.starts) - 1, framing)
    labels = f"{len(material.task.labels)} labels, " if material.task.labels else ""
    held = "" if material.held is None else " (drawn from the rows, noted in run/split.json)"
    if len(material.dev) < FEW_JUDGES:
        held += "; so few say little, and their intervals tell how little"
    say(
        f"{run.folder}: {recipe.task.name}, {labels}{opened.family.name}, {parameters:,} parameters to train, "
        f"on {recipe.device} in {recipe.training.precision}\n"
        f"data: {len(material.train):,} rows to learn from ({long}), {len(material.dev):,} to judge by{held}\n"
        f"plan: {steps:,} step{'s' * (steps != 1)} of {recipe.training.batch} rows, "
        f"rate {recipe.training.rate:.1e}, kept by {recipe.task.metric}"
    )
