"""`weft.distill`: a small student learns from what a large teacher says, in a run folder that can be gone on with."""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from weft.checkpoint.card import Made, Metric, Window
from weft.checkpoint.folder import Opened
from weft.compress.choosing import lesson_for
from weft.compress.lessons import Lesson
from weft.compress.material import Material, gather
from weft.compress.recipe import DistillRecipe
from weft.compress.student import begun_student, find_student
from weft.compress.teaching import Listened, Taught, digest_of_folder, taught
from weft.config import build, changed, read_toml, write_toml
from weft.data.batching import Feed
from weft.data.examples import Examples, batch_of
from weft.data.pairs import Sequences
from weft.errors import UserError, one_of
from weft.files import read_json, write_json
from weft.objectives.language import Objective
from weft.tasks.driving import Altered, begin, begun, device_for, drive
from weft.tasks.finetune import MOST_WINDOWS, SIDES, folded
from weft.tasks.judging import Judgement, Task, judged
from weft.tasks.model import HEADS, Model, find_folder, load
from weft.tasks.passing import framing_for, window_for
from weft.tasks.planning import decided, pairs_plan
from weft.tasks.reading import Example, Files
from weft.tasks.recipes import Tuning
from weft.tasks.saying import Progress, Say, silent, to_stderr
from weft.tasks.sequences import SequenceTask
from weft.tasks.texts import TextTask, can_shift, rescale
from weft.tasks.translate import writer_of
from weft.training.run import Run
from weft.training.setup import Setup, Verdict
from weft.training.signals import Stop

Names = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
SEEN = 300_000  # texts that a student which begins from weights reads in all, a fresh one twice as many


def distill(
    teacher: Names | None = None,
    recipe: DistillRecipe | None = None,
    settings: Mapping[str, Any] | None = None,
    *,
    text: Names | None = None,
    data: Names | Mapping[str, Any] | None = None,
    dev: Names | None = None,
    student: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    out: str | os.PathLike[str] | None = None,
    online: bool = False,
    say: Say = to_stderr,
    progress: Progress = silent,
    **more: Any,
) -> Model:
    """Teach a small model what a large one says; without `out`, in a folder that goes away with the process.

    `weft.distill("runs/reviews", text="unlabelled.txt", student="3x256")`; every section of the recipe may be given so:
    `distill={"temperature": 4}`, `data={"files": ["rows.csv"], "holdout": 0.1}`.
    """
    if not isinstance(recipe, DistillRecipe):
        recipe = build(DistillRecipe, _said(settings, more, teacher, text, data, dev, student, out), "--set")
    if recipe.out is None:
        scratch = tempfile.mkdtemp(prefix="weft-")
        atexit.register(shutil.rmtree, scratch, ignore_errors=True)
        recipe = replace(recipe, out=os.path.join(scratch, "run"))
    assert recipe.out is not None
    run = Run(Path(recipe.out))
    run.check_new()
    for name in recipe.teacher.folders if online else ():
        if not Path(name).exists():
            find_folder(name, online)  # from here on it lies in the cache
    d = recipe.data
    if not (d.text or d.files or d.source):
        raise UserError("no text to learn from: give --text FILE of unlabelled texts, or --data FILE of rows")
    if recipe.tensorboard and find_spec("tensorboard") is None:
        raise UserError("--tensorboard needs the package tensorboard: pip install 'weft[tensorboard]'")
    recipe = _from_anywhere(recipe)
    with begun(run, recipe) as stop:
        return _go(run, recipe, stop, say, progress)


def go_on(run: Run, stop: Stop, say: Say, progress: Progress) -> Model:
    """Go on with a distillation that was broken off; where it had finished, its model."""
    return _go(run, read_toml(DistillRecipe, run.recipe), stop, say, progress)


def _said(settings: Mapping[str, Any] | None, more: Mapping[str, Any], *given: Any) -> dict[str, Any]:
    """What a call says, as a recipe would."""
    said: dict[str, Any] = {**(settings or {}), **more}
    teacher, text, data, dev, student, out = given

    def put(section: str, key: str, value: Any) -> None:
        said[section] = {**said.get(section, {}), key: value}

    if isinstance(data, Mapping):
        said["data"], data = {**said.get("data", {}), **data}, None
    if isinstance(student, Mapping):
        said["student"], student = {**said.get("student", {}), **student}, None
    there = said.get("data", {})
    sides = {key: there[key] for key in SIDES if isinstance(there.get(key), str | os.PathLike)}
    for key, value in (("text", text), ("files", data), ("dev", dev), *sides.items()):
        if value is not None:
            put("data", key, _listed(value))
    if teacher is not None:
        put("teacher", "folders", _listed(teacher))
    if "teacher" not in said:
        raise UserError("a distillation needs a teacher: give its folder")
    if student is not None:
        put("student", "model", os.fspath(student))
    if "model" not in said.get("student", {}):
        raise UserError("which student? give --student SIZE such as 3x256, a published size, lstm:1x256 or a folder")
    if out is not None:
        said["out"] = os.fspath(out)
    return said


def _listed(names: Names) -> list[str]:
    several = [names] if isinstance(names, str | os.PathLike) else list(names)
    return [os.fspath(name) for name in several]


def _from_anywhere(recipe: DistillRecipe) -> DistillRecipe:
    """The recipe with whole paths, so that the run can be gone on with from any folder."""
    values: dict[str, Any] = {"data": {}, "student": {}}
    for key in ("text", "files", "dev", *SIDES):
        if names := getattr(recipe.data, key):
            values["data"][key] = [str(path.absolute()) for path in Files(names, {}).paths()]
    learned, judges = (
        {name for key in keys for name in values["data"].get(key, ())}
        for keys in (("text", "files", "source", "target"), ("dev", "dev_source", "dev_target"))
    )
    if both := learned & judges:
        raise UserError(f"{min(both)}: is both learned from and judged by")
    values["teacher"] = {"folders": [str(find_folder(name).absolute()) for name in recipe.teacher.folders]}
    for section, key, name in (
        ("data", "augment_by", recipe.data.augment_by),
        ("student", "model", recipe.student.model),
        ("student", "tokenizer", recipe.student.tokenizer),
    ):
        if name is not None and Path(name).expanduser().exists():
            values[section][key] = str(Path(name).expanduser().absolute())
    return changed(recipe, values)


# ---------------------------------------------------------------------------------------------------------- the run


def open_teachers(recipe: DistillRecipe, device: torch.device) -> tuple[str, list[Listened]]:
    """The teachers and what they are made for; all must say the same things."""
    name, found = "", list[Listened]()
    for folder in recipe.teacher.folders:
        model = load(folder)
        if found and model.task != name:
            raise UserError(f"{folder}: is made for {model.task}, the first teacher for {name}")
        name = model.task
        model.network.float().to(device).eval()
        found.append(Listened(model.opened, Path(folder), digest_of_folder(Path(folder))))
    return name, found


def chosen_lesson(recipe: DistillRecipe, name: str, teachers: Sequence[Listened]) -> Lesson:
    """The lesson that all teachers give."""
    folder = recipe.teacher.folders[0]
    if name not in HEADS and name != "embed" and not recipe.data.text:
        raise UserError(f"{folder}: is made for no task that rows are of ({name}); give --text FILE, or --pretrain")
    lesson = lesson_for(teachers[0].opened, name, recipe)
    for each in teachers[1:]:
        if not lesson.same(each.opened, name):
            raise UserError(f"{each.folder}: says other labels than the first teacher: their mean has no meaning")
    return lesson


def _go(run: Run, recipe: DistillRecipe, stop: Stop, say: Say, progress: Progress) -> Model:
    device = device_for(recipe.device, recipe.training.threads)
    if recipe.training.compile and device.type == "cpu":
        raise UserError("on the CPU rows of a task are not compiled: leave out training.compile")
    if recipe.training.watch_gradients:
        raise UserError("watch_gradients is for language models: weft pretrain --watch-gradients")
    name, teachers = open_teachers(recipe, device)
    lesson = chosen_lesson(recipe, name, teachers)
    find_student(recipe, teachers[0].opened, silent_say)  # what can be wrong with it is said before anything is read
    material = gather(lesson.task, recipe, say, progress, stop)
    known = taught(lesson, teachers, [*material.train, *material.dev], stop, say, progress)
    cut = len(material.train)
    lesson = lesson.settled(material.train, known.said[:cut])
    metric = recipe.distill.metric
    if material.by_labels:
        metric = one_of(metric, lesson.task.names, "metric") if metric not in (None, AGREEMENT) else lesson.task.chosen
        judges = material.dev
    else:
        metric = AGREEMENT
        judges = [lesson.answered(*each) for each in zip(material.dev, known.said[cut:], strict=True)]
    opened_teachers = [each.opened for each in teachers]
    beginning = begun_student(
        run,
        recipe,
        opened_teachers,
        lesson.objective.heads,
        lesson.task.head,
        lambda: (text for row in material.train for text in row.texts),
        stop,
        say,
        progress,
    )
    opened = beginning.opened
    lesson = in_units(lesson, opened, beginning.fresh)
    task = lesson.task
    window = window_of(recipe, teachers[0].opened, opened, task)
    framing = framing_for(opened, window)
    with progress("tokenising", "texts") as told:
        train = lesson.table(material.train, known.said[:cut], opened, framing)
        told(cut)
        stop.check("stopped while tokenising")
        dev = lesson.table(material.dev, known.said[cut:], opened, framing)
    for note in (*train.notes, *(f"of those to judge by: {note}" for note in dev.notes)):
        say(f"weft: note: {note}")
    capture = device.type == "cuda" and not recipe.training.compile
    train = train.for_training(MOST_WINDOWS, recipe.seed, capture)
    dev = dev.for_training(MOST_WINDOWS, 0, False)
    plan = planned(recipe.training, train, opened, device, beginning.fresh)
    recipe = replace(
        recipe,
        training=plan,
        device=str(device),
        distill=replace(recipe.distill, metric=metric, length=window.length, stride=window.stride),
    )
    _note_run(run, recipe, material, teachers, known, opened, device)
    started = begin(run, plan.keep, plan.pass_tokens or 0, say)
    steps = plan.steps or 1
    card = replace(
        task.carded(opened.card),
        task=name,
        window=window,
        columns=dict(recipe.data.columns),
        base=_name_of(recipe.student.model),
        teacher=", ".join(_name_of(folder) for folder in recipe.teacher.folders),
        recipe=hashlib.sha256(run.recipe.read_bytes()).hexdigest(),
        made=Made(seed=recipe.seed, date=datetime.now(UTC).date().isoformat()),
    )
    opened = replace(opened, card=card)
    announce(run, recipe, material, steps, say)
    last: list[Judgement] = []

    def judge() -> Verdict:
        rows = task.sample(judges) if isinstance(task, SequenceTask) else judges
        last[:] = [judged(task, opened, framing, rows, tune=True)]
        return Verdict(_scores(last[0], task, material.by_labels), metric)

    data = material.hashes.get("dev", material.hashes.get("data", material.hashes.get("text", "")))

    def keep_best(found: dict[str, float]) -> None:
        settled: Task = last[0].task if last else task
        metrics = _metrics(last[0], task, material.by_labels, data) if last else ()
        with folded(opened.network, settled):
            run.save_model(replace(opened, card=settled.carded(card)), metrics)

    setup = Setup(
        network=opened.network,
        objective=objective_of(recipe, lesson, opened_teachers, opened),
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
        words_of=writer_of(opened).decode,
        judge=None if metric == "loss" else judge,
        capture=capture,
    )
    drive(run, setup, started, recipe.tensorboard, keep_best, stop, say, metric)
    report(run, recipe, teachers, judges, say)
    return load(run.folder)


AGREEMENT = "agreement"  # the task's own score, with the teacher's answers for right ones


def silent_say(text: str) -> None:
    """Nobody need hear this."""


def in_units(lesson: Lesson, opened: Opened, fresh: bool) -> Lesson:
    """Values are learned as distances from their middle; a head that has learned to say them says them so from here."""
    task: Any = lesson.task
    if not isinstance(task, TextTask) or task.kind != "value":
        return lesson
    if not can_shift(opened.network):
        task = replace(task, center=0.0, spread=float((task.center**2 + task.spread**2) ** 0.5))
    if not fresh:
        rescale(opened.network, 1 / task.spread, -task.center / task.spread)
    return replace(lesson, task=task)  # type: ignore[type-var]


def objective_of(recipe: DistillRecipe, lesson: Lesson, teachers: Sequence[Opened], student: Opened) -> Objective:
    """What the student learns by: what the teacher says, and what is asked for of its inside."""
    if recipe.distill.match:
        raise UserError("--match is not there yet")
    return lesson.objective


def report(run: Run, recipe: DistillRecipe, teachers: Sequence[Listened], judges: Sequence[Example], say: Say) -> None:
    """What the student has kept of its teacher, measured on what it was judged by."""


def planned(plan: Tuning, train: Examples | Sequences, opened: Opened, device: torch.device, fresh: bool) -> Tuning:
    """The plan of a student: few texts are read more often, since each says more than a label would."""
    batch, epochs = pairs_plan(train) if fresh and isinstance(train, Sequences) else (32, 0.0)
    if not epochs:
        epochs = min(20.0, max(4.0, 2 * SEEN / train.count)) if fresh else min(10.0, max(3.0, SEEN / train.count))
    static = opened.family.name == "vectors"
    # A narrow network takes larger steps than the large ones for which 5e-5 is usual.
    shape = (768 / opened.config.width) ** 0.5
    usual = 2e-3 if static else opened.family.rate * shape if fresh else 5e-5 * shape
    return decided(plan, train, device, batch, epochs, usual)


def window_of(recipe: DistillRecipe, teacher: Opened, student: Opened, task: Task) -> Window:
    """How the student cuts long texts: as the teacher does where it can, a network without attention at its leisure."""
    length, stride = recipe.distill.length, recipe.distill.stride
    there = teacher.card.window
    if there is not None and length is None and hasattr(student.config, "heads"):
        length = min(there.length, student.config.context)
        stride = stride or max(1, min(there.stride, length))
    long = there.long if there is not None else "windows"
    return window_for(student, length, stride, long, task.overlap)


def _name_of(name: str) -> str:
    return Path(name).name  # what lies where on this machine is nobody's business


def _scores(found: Judgement, task: Task, by_labels: bool) -> dict[str, float]:
    scores = {name: score.value for name, score in found.scores.items()}
    return scores if by_labels else {AGREEMENT: scores[task.chosen]}


def _metrics(found: Judgement, task: Task, by_labels: bool, data: str) -> tuple[Metric, ...]:
    scores = found.scores if by_labels else {AGREEMENT: found.scores[task.chosen]}
    return tuple(Metric(data=data, name=n, value=s.value, low=s.low, high=s.high) for n, s in scores.items())


def _hashes(material: Material, teachers: Sequence[Listened]) -> dict[str, Any]:
    return {**material.hashes, "teacher": [each.digest for each in teachers]}


def _note_run(
    run: Run,
    recipe: DistillRecipe,
    material: Material,
    teachers: Sequence[Listened],
    known: Taught,
    opened: Opened,
    device: torch.device,
) -> None:
    """What the run was made with, on the first day; later, that it still is the same."""
    if run.about.exists():
        about = read_json(run.about)
        if about.get("data") != _hashes(material, teachers):
            raise Altered(f"{run.folder}: the data, or the teacher, is not what the run began with")
        if known.forwards:  # the cache was cleared meanwhile
            write_json(run.about, {**about, "teacher_forwards": about.get("teacher_forwards", 0) + known.forwards})
        return
    write_toml(recipe, run.recipe)
    run.describe(
        {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "seed": recipe.seed,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            "parameters": sum(parameter.numel() for parameter in opened.network.parameters()),
            "data": _hashes(material, teachers),
            "rows": {"train": len(material.train), "dev": len(material.dev)},
            "teacher_forwards": known.forwards,
        }
    )
    if material.held is not None:
        write_json(run.inside / "split.json", {"split": recipe.data.split, "held_out": material.held})


def announce(run: Run, recipe: DistillRecipe, material: Material, steps: int, say: Say) -> None:
    """What is about to be learned, from what and how."""
    labelled = sum(example.target is not None for example in material.train)
    held = "" if material.held is None else " (drawn from the others, noted in run/split.json)"
    by = "" if material.by_labels else ", by the teacher's answers"
    say(
        f"{run.folder}: {len(material.train):,} texts to learn from, {labelled:,} of them with a right answer; "
        f"{len(material.dev):,} to judge by{by}{held}\n"
        f"plan: {steps:,} step{'s' * (steps != 1)} of {recipe.training.batch}, rate {recipe.training.rate:.1e}, on "
        f"{recipe.device} in {recipe.training.precision}, kept by {recipe.distill.metric}"
    )
