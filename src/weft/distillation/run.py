"""One distillation: from the recipe in a run folder to the best student, of a task or of a language model."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from weft.checkpoint.card import Card, Metric
from weft.checkpoint.families import Family
from weft.checkpoint.folder import LoadedModel
from weft.config import build, read_toml, values_of, write_toml
from weft.data.chance import key_of
from weft.data.dataset import Dataset
from weft.data.masking import shift
from weft.data.rows import Drawn, Feed, Framed, PackedRows
from weft.data.shards import Corpus, TextFiles, tokenized
from weft.distillation import report as reporting
from weft.distillation.dataset import LanguageTexts, augmented, gather, held_texts, language_texts, part_of
from weft.distillation.recipe import DistillRecipe
from weft.distillation.student import begun_student, find_student, matched, parameters_of
from weft.distillation.teacher_outputs import (
    Distillation,
    PlacedRows,
    Teacher,
    TeacherOutputs,
    TokenRequest,
    WithTokenOutputs,
    teacher_outputs,
    token_outputs,
)
from weft.errors import UserError, one_of, refuse
from weft.files import write_json, write_text
from weft.generation.options import GenerationOptions
from weft.metrics.bootstrap import Score
from weft.nn.rows import Batch
from weft.objectives.losses import MaskedWords, NextToken, Objective, SoftTargets
from weft.runs.driver import Job, device_for, drive
from weft.runs.finetune import MOST_WINDOWS, Selection, decided, pairs_plan, tokenized_rows
from weft.runs.preparation import Beginning, next_frame, text_of
from weft.runs.pretrain import text_job
from weft.runs.recipes import FROM_NOTHING, FinetuneTraining, ObjectiveSection, Recipe, TextSection
from weft.tasks.base import Example, Task, TeacherArrays
from weft.tasks.complete import generator_of, prompts_of
from weft.tasks.forward import framing_for, tokenizer_of, unseen_in_words, window_for
from weft.tasks.model import Model, load
from weft.tasks.perplexity import perplexity
from weft.tasks.registry import task_class, task_for
from weft.tasks.seq2seq import pack_texts, unpack_texts
from weft.text.rows import Skipped
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.windows import Framing
from weft.training.loop import evaluate
from weft.training.run import Run
from weft.training.signals import Control

AGREEMENT = "agreement"  # the task's own metric, with the teacher's answers as targets
SEEN = 300_000  # texts that a student with initial weights reads in all, a fresh one twice as many
NEW_HEAD = 1e-4  # learning rate of a student, 768 wide, with initial weights but without the head of its task ...
ALL_THERE = 5e-5  # ... and of one that has that, too
STEPS = 1000  # of a language model at least by default, but no more than 30 epochs
FIRST = 4  # words of a text that a teacher continues
MIN_TEXTS = 8  # of a student on the learning curve


def open_teachers(recipe: DistillRecipe, device: torch.device) -> tuple[str, list[Teacher]]:
    """The teachers and the task that they are made for."""
    name, teachers = "", list[Teacher]()
    for folder in recipe.teacher.folders:
        model = load(folder, task=recipe.teacher.task)
        if teachers and model.task != name:
            raise UserError(f"{folder}: is made for {model.task}, the first teacher for {name}")
        name = model.task
        model.network.float().to(device).eval()
        teachers.append(Teacher.of(model.opened, Path(folder)))
    return name, teachers


def student_task(recipe: DistillRecipe, name: str, teachers: Sequence[Teacher]) -> Task:
    """The task of a student of these teachers, whose outputs must mean the same."""
    tasks = [task_for(teacher.model, name) for teacher in teachers]
    task = tasks[0].learning_from(recipe.distill, [teacher.model for teacher in teachers])
    for teacher, other in zip(teachers, tasks, strict=True):
        if not task.same_outputs(other):
            raise UserError(f"{teacher.folder}: has other labels than the first teacher: their mean has no meaning")
    return task


def go(run: Run, recipe: DistillRecipe, control: Control) -> Model:
    """From the recipe in a run folder to the best student; from its last checkpoint on where there is one."""
    data, plan, settings = recipe.data, recipe.training, recipe.distill
    pretrain, folders = settings.pretrain, recipe.teacher.folders
    device = device_for(recipe.device, plan.threads)  # a missing one is named before anything is read
    compiled, alone = plan.compile and not pretrain, "leave out training.compile"
    not_text = not data.text or bool(data.files or data.source)
    refuse(
        (compiled and device.type == "cpu", f"on the CPU rows of a task are not compiled: {alone}"),
        (plan.watch_gradients and not pretrain, "watch_gradients is for language models: weft pretrain"),
        (compiled and bool(settings.match), f"a student whose teacher runs along is not compiled: {alone}, or match"),
        (pretrain and len(folders) > 1, f"--pretrain takes one teacher, not {len(folders)}"),
        (pretrain and not_text, "--pretrain learns from plain text alone: give --text FILE"),
        (pretrain and data.augment > 0, "--pretrain masks other words in every epoch: --augment is for tasks"),
        (pretrain and plan.compile, f"a student whose teacher runs along is not compiled: {alone}"),
    )
    name, teachers = open_teachers(recipe, device)
    context = Distillation(run, recipe, teachers, device, control)
    if not pretrain and not task_class(name).language_model:
        return distill_task(context, student_task(recipe, name, teachers))
    if settings.curve:
        raise UserError("words have no learning curve by texts: --curve is for students of a task")
    began = time.perf_counter()
    student = pretrain_student(context) if pretrain else distill_language(context)
    spent = time.perf_counter() - began
    reread = [Teacher(load(folder, task=student.task).opened, Path(folder), "") for folder in folders]
    examples, forwards = held_texts(data), run.info().teacher_forwards
    reporting.write_report(replace(context, teachers=reread), student, examples, spent, forwards=forwards)
    return student


def distill_task(context: Distillation, task: Task) -> Model:
    """Train a student of a task, with its learning curve and its report."""
    run, (recipe, dataset, train, dev, selection) = context.run, prepare(context, task)
    model, metric, plan, count = selection.model, selection.metric, recipe.training, len(dataset.train)
    held = "" if dataset.held_out is None else " (drawn from the others, listed in run/split.json)"
    by, steps = "" if dataset.labeled_dev else ", by the teacher's answers", plan.steps or 1
    announcement = (
        f"{run.folder}: {count:,} texts to learn from, {sum(map(task.has_target, dataset.train)):,} of them labeled; "
        f"{len(dataset.dev):,} held out{by}{held}\n"
        f"plan: {steps:,} step{'s' * (steps != 1)} of {plan.batch}, learning rate {plan.learning_rate:.1e}, "
        f"on {recipe.device} in {plan.precision}, best model by {metric}"
    )
    objective = matched(selection.task.objective(), context.teacher, model, recipe.distill)
    same, options = context.same(dataset.hashes, model), {"capture": context.captures}
    job = selection.job(recipe, dataset, objective, (train, dev), same, options)
    about = {**job.about, "teacher_forwards": context.reads.total}
    job = replace(job, about=about, announce=lambda state: context.control.log(announcement))
    spent = drive(run, job, context.control).seconds
    trained = load(run.folder).to(context.device)
    curve = curve_of(run, recipe, count, context.control)
    if recipe.data.share == 1:
        more: dict[str, Any] = {"forwards": run.info().teacher_forwards, "texts": count, "metric": metric}
        more["curve"] = [*curve, reporting.point_of(trained, metric, count)] if curve else ()
        reporting.write_report(context, trained, selection.examples, spent, metric != AGREEMENT, **more)
    return load(run.folder)


def prepare(context: Distillation, task: Task) -> tuple[DistillRecipe, Dataset[Example], Any, Any, Selection]:
    """Read the data, begin a student, run its teachers, and decide what is open; mistakes are named first.

    The recipe with every choice made, the dataset, the batches to train on and to evaluate on, and the student.
    """
    recipe, settings, control = context.recipe, context.recipe.distill, context.control
    find_student(recipe, context.teacher)
    task, dataset = _dataset(context, task)
    metric = decided_metric(context, task, dataset.labeled_dev)

    @cache
    def outputs() -> TeacherOutputs:
        return teacher_outputs(context, task, dataset.examples, dataset.parts)

    beginning = begun_student(
        context,
        task.objective().heads,
        task.head,
        lambda: task.vocabulary_texts(dataset.train, lambda: outputs().select(dataset.train_numbers)),
    )
    model, theirs, length, stride = beginning.opened, context.teacher.card.window, settings.length, settings.stride
    # The teacher's window where it can be; a network without attention reads whole texts.
    if not task.writes and theirs is not None and length is None and model.config.heads:
        length = min(theirs.length, model.config.context)
        stride = stride or max(1, min(theirs.stride, length))
    long = "windows" if task.writes or theirs is None else theirs.long
    window = window_for(model, length, stride, long, task.overlap)
    matched(task.objective(), context.teacher, model, settings)  # whether their layers can be compared
    learned, held_out = outputs().select(dataset.train_numbers), outputs().select(dataset.dev_numbers)
    judges: Sequence[Example] = dataset.dev
    if not dataset.labeled_dev:
        judges = [task.with_teacher_answer(*pair) for pair in zip(dataset.dev, held_out, strict=True)]
    windows = framing_for(model, window)
    task = task.fit_teacher(dataset.train, learned).prepare(model, dataset.train, beginning.fresh)
    train, dev = tokenized_rows(task, dataset, model, windows, control, learned, held_out)
    train = train.for_training(MOST_WINDOWS, recipe.seed, context.captures)
    dev = dev.for_training(MOST_WINDOWS, 0, False)
    plan = planned(recipe, task, train, context.device, beginning)
    settings = replace(settings, metric=metric, length=window.length, stride=window.stride)
    recipe = replace(recipe, training=plan, device=str(context.device), distill=settings)
    more: dict[str, Any] = {"window": task.card_window(window, train), "columns": dict(recipe.data.columns)}
    model = replace(model, card=context.card(task.to_card(model.card), task=task.name, **more))
    data = dataset.hashes.get("dev", dataset.hashes.get("data", dataset.hashes.get("text", "")))

    def kept(scores: Mapping[str, Score]) -> Mapping[str, Score]:
        """Where the teacher's answers are the targets, the agreement with them."""
        if dataset.labeled_dev:
            return scores
        agreement = {AGREEMENT: scores[task.default_metric]}
        return agreement if task.supervised else {**agreement, **scores}

    selection = Selection(context.run, task, model, windows, judges, metric, data, kept)
    return recipe, dataset, train, dev, selection


def _dataset(context: Distillation, task: Task) -> tuple[Task, Dataset[Example]]:
    """The dataset, or the share of it that is learned from, with copies of its texts; and the task that it allows."""
    data, control = context.recipe.data, context.control
    dataset = gather(task, data, control)
    if data.augment:
        by = None if data.augment_by is None else load(data.augment_by).to(context.device).opened
        with control.count("replacing words", "texts", "stopped while replacing words") as advance:
            dataset = dataset.with_more(augmented(task, dataset.train, data.augment, by, context.recipe.seed, advance))
    dataset = part_of(dataset, data.share, data.split)
    if not any(map(task.has_target, dataset.train)):  # labels do not count
        task = task.learning_from(replace(context.recipe.distill, hard=0.0), context.models)
    return task, dataset


def decided_metric(context: Distillation, task: Task, by_labels: bool) -> str:
    """The metric that decides which student is kept; where the package that computes it is missing, the loss."""
    metric, package = context.recipe.distill.metric, task.packages.get(task.default_metric)
    if package is not None and find_spec(package) is None:
        if metric not in (None, "loss"):
            raise UserError(f"{metric} needs the package {package}: pip install 'weft[evaluate]'")
        context.control.note(f"without the package {package} the best student is chosen by its loss alone")
        return "loss"
    if by_labels:
        known = (*task.metric_names, "loss")
        return task.default_metric if metric in (None, AGREEMENT) else one_of(metric, known, "metric")
    if metric not in (None, AGREEMENT, "loss"):
        raise UserError(f"{metric} needs targets: give --dev FILE of rows that have them")
    return metric or AGREEMENT


def planned(recipe: DistillRecipe, task: Task, train: Any, device: torch.device, begun: Beginning) -> FinetuneTraining:
    """The plan of a student: few texts are read more often, since each teaches more than a label would."""
    plan, model = recipe.training, begun.opened
    # A writer of a few layers of another has lost as much as it has kept: it learns as one with fresh weights.
    fresh = begun.scratch or (task.writes and not Path(recipe.student.model).is_dir())
    # A narrow network takes larger steps than the large ones for which 5e-5 is usual.
    usual = model.family.learning_rate if fresh else NEW_HEAD if begun.fresh else ALL_THERE
    rate = 2e-3 if model.family.name == "vectors" else usual * (768 / model.config.width) ** 0.5
    batch, epochs = 32, min(10.0, max(3.0, SEEN / train.count))
    if fresh:
        epochs = min(20.0, max(4.0, 2 * SEEN / train.count))
    if fresh and task.writes:
        batch, epochs = pairs_plan(train)
        plain, given = vars(FinetuneTraining()), vars(plan)
        usual_keys: dict[str, Any] = {key: FROM_NOTHING[key] for key in FROM_NOTHING if given[key] == plain[key]}
        plan = replace(plan, **usual_keys)
    return decided(plan, train, device, batch, epochs, rate)


def curve_of(run: Run, recipe: DistillRecipe, texts: int, control: Control) -> list[dict[str, Any]]:
    """The metrics of students of fewer texts, each a run inside `run/curve` with as many steps as the run itself."""
    points = []
    for halvings in range(recipe.distill.curve - 1, 0, -1):
        share = 0.5**halvings
        count = max(1, round(share * texts))
        if count < MIN_TEXTS:
            continue
        folder = run.inside / "curve" / f"1-of-{2**halvings}"
        data, settings = replace(recipe.data, share=share * recipe.data.share), replace(recipe.distill, curve=0)
        smaller = replace(recipe, out=str(folder), data=data, distill=settings)
        control.log(f"curve: a student of {count:,} texts")
        model = inner_run(folder, smaller, go, control)
        points.append(reporting.point_of(model, recipe.distill.metric, count))
    return points


def inner_run(folder: Path, recipe: Any, go_on: Callable[[Run, Any, Control], Model], control: Control) -> Model:
    """A run inside another one, from where it stands."""
    run = Run(folder)
    with run.held():
        run.tidy()
        if not run.recipe.exists():
            write_toml(recipe, run.recipe)
        return go_on(run, read_toml(type(recipe), run.recipe), control)


def check_writes(family: Family) -> None:
    """Refuse a student that predicts no next tokens."""
    if not family.generates or family.reads:
        raise UserError(f"{family.name} does not continue a text: a student such as gpt2:2x128 or lstm:1x256 does")


def distill_language(context: Distillation) -> Model:
    """Teach a student to predict each next token as its teachers do."""
    run, recipe, teacher, control = context.run, context.recipe, context.teacher, context.control
    for other in context.teachers[1:]:
        if tokenizer_of(other.model).pipeline != tokenizer_of(teacher).pipeline:
            raise UserError(f"{other.folder}: has another vocabulary than the first teacher: their mean has no meaning")
    # Tokens are predicted from one side alone, as in pre-training, whatever a network may do for labels.
    one_way = replace(context, recipe=replace(recipe, distill=replace(recipe.distill, pretrain=True)))
    lineage = find_student(one_way.recipe, teacher)
    if not isinstance(lineage, Path):
        check_writes(lineage.family)
    texts = language_texts(recipe.data, control)
    beginning = begun_student(one_way, {"words": None}, "words", texts.documents)
    model = beginning.opened
    check_writes(model.family)
    source, held_out, prepare_batch, objective, summary = language_rows(context, texts, model)
    batch = max(1, min(round(8192 / source.mean), source.count // 8))
    epochs = max(3.0, min(30.0, STEPS * batch / source.count))
    rate = model.family.learning_rate * (768 / model.config.width) ** 0.5
    plan = decided(recipe.training, source, context.device, batch, epochs, rate if beginning.fresh else rate / 5)
    every = recipe.training.evaluate_every or max(1, (plan.steps or 1) // 10)
    plan = replace(plan, evaluate_every=every, save_every=recipe.training.save_every or every)
    length, steps = int(source.mean), plan.steps or 1
    settings = replace(recipe.distill, metric="loss", length=length)
    recipe = replace(recipe, training=plan, device=str(context.device), distill=settings)
    model = replace(model, card=context.card(model.card, task=model.family.task))
    announcement = (
        f"{run.folder}: {summary}\n"
        f"plan: {steps:,} step{'s' * (steps != 1)} of {plan.batch} rows of {length} tokens, "
        f"{steps * (plan.batch or 1) / source.count:.1f} epochs, "
        f"learning rate {plan.learning_rate:.1e}, on {context.device.type} in {plan.precision}"
    )
    job = Job(
        recipe=recipe,
        model=model,
        objective=matched(objective, teacher, model, settings),
        feed=Feed(source, prepare_batch, recipe.seed, plan.batch or 1),
        held_out=held_out,
        same=context.same(texts.hashes, model),
        about={"teacher_forwards": context.reads.total},
        announce=lambda state: control.log(announcement),
        data=texts.hashes.get("dev", texts.hashes["text"]),
    )
    drive(run, job, control)
    return compare_bits(context, texts.held_out, job.data)


def language_rows(
    context: Distillation, texts: LanguageTexts, student: LoadedModel
) -> tuple[Any, PackedRows, Callable[[Drawn], Batch], Objective, str]:
    """What a student reads, what it is evaluated on, how its batches are made, its objective, and that in words.

    Where both have one vocabulary, the teacher's probabilities of the next token (Hinton et al., 2015). Otherwise texts
    whose first words the teacher has continued, and where they count, the texts themselves.
    """
    recipe, control = context.recipe, context.control
    tokenizer, settings, room = tokenizer_of(student), recipe.distill, student.config.context
    length = settings.length or min(student.family.row or room, room)
    same = tokenizer.pipeline == tokenizer_of(context.teacher).pipeline
    refuse(
        (not same and bool(settings.match), "--match needs a student with the vocabulary of its teacher"),
        (length > room, f"rows of {length} tokens are longer than the student's context of {room}"),
    )
    frame, message = next_frame(tokenizer, True), "stopped while tokenizing; what is done is kept"
    with control.count("tokenizing the text", "characters", message) as advance:
        whole = tokenized(texts.text, tokenizer, False, advance)
        dev = None if texts.dev is None else tokenized(texts.dev, tokenizer, False, advance)
    learned, held = whole, dev
    if held is None:
        cut = int(whole.documents[texts.count] - whole.begin)
        learned, held = whole.part(0, cut), whole.part(cut, whole.size)
    held_out = PackedRows(Framed(held, frame), length, 1, False, None)
    if not same:
        corpus, summary = _teacher_texts(context, texts, tokenizer)
        source = PackedRows(Framed(corpus, frame), length, 1, False, recipe.seed)
        return source, held_out, shift, NextToken(), summary
    framed = Framed(learned, frame)
    request = TokenRequest(context.teachers, framed, student.heads["words"], settings.temperature)
    message = "stopped while the teacher reads; its outputs so far are cached"
    with control.count("the teacher reads the text", "tokens", message) as advance:
        outputs = token_outputs(request, advance, context)
    size = sum(shard.nbytes for shard in outputs.shards) / 1e6
    cached = ", all from the cache" if not outputs.forwards else ""
    places = f"{framed.size:,} places"
    control.log(f"teacher: {places}, {outputs.forwards:,} read anew{cached}; {size:,.0f} MB are cached")
    weight = f"the text's own tokens have a weight of {settings.hard:g}"
    summary = f"the teacher's probabilities of the next token at {places}; {weight}"
    objective = NextToken(soft=SoftTargets(settings.temperature, settings.hard))
    source = PlacedRows(framed, length, 1, False, recipe.seed)
    return source, held_out, WithTokenOutputs(outputs), objective, summary


def _teacher_texts(context: Distillation, texts: LanguageTexts, tokenizer: Tokenizer) -> tuple[Corpus, str]:
    """The tokens of texts that the teacher has continued, and what they are."""
    control, hard = context.control, context.recipe.distill.hard
    examples = [Example((text,), None, "") for text in texts.documents() if text.strip()]
    task = Continuations(context.recipe.seed)
    outputs = teacher_outputs(context, task, examples, [len(examples)])
    lines = [text for arrays in outputs for text, _ in unpack_texts(arrays)]
    lines += [example.texts[0] for example in examples] if hard else []
    path = context.run.inside / "teacher_texts.txt"
    write_text(path, "".join(" ".join(line.splitlines()) + "\n" for line in lines))
    with control.progress("tokenizing the teacher's texts", "characters") as advance:
        corpus = tokenized(TextFiles((str(path),)), tokenizer, False, advance)
    own = "and the texts themselves" if hard else "alone"
    return corpus, f"another vocabulary than the teacher's, so the student reads the teacher's texts {own}: {path}"


@dataclass(frozen=True)
class Continuations(Task):
    """Continuations of the first words of a text, about as long as the text is."""

    seed: int

    name = "continue"

    @classmethod
    def from_model(cls, model: LoadedModel, name: str) -> Continuations:
        return cls(0)

    @property
    def teacher_settings(self) -> dict[str, Any]:
        return {"seed": self.seed, "first": FIRST}

    def teacher_outputs(self, model: LoadedModel, windows: Framing, examples: Sequence[Example]) -> list[TeacherArrays]:
        """Sampled token by token, from a seed that follows from the text."""
        texts = [example.texts[0] for example in examples]
        heads = [" ".join(text.split()[:FIRST]) for text in texts]
        sizes = map(len, tokenizer_of(model).ids(texts, specials=False))
        pairs, room = zip(prompts_of(model, heads), sizes, strict=True), model.config.context
        prompts = [replace(prompt, max_tokens=max(1, min(size, room) - len(prompt.tokens))) for prompt, size in pairs]
        seeds = [key_of(self.seed, "continued", text) >> 2 for text in texts]
        with unseen_in_words(model):
            options = GenerationOptions(temperature=1.0, seed=seeds)
            completions = generator_of(model).write(prompts, options)
        return [pack_texts([(f"{head}{each.text}", 0.0)]) for head, each in zip(heads, completions, strict=True)]

    def average(self, outputs: Sequence[TeacherArrays]) -> TeacherArrays:
        """The texts of all teachers."""
        return pack_texts([text for arrays in outputs for text in unpack_texts(arrays)])


def compare_bits(context: Distillation, held_out: list[str], data: str) -> Model:
    """How much the student has kept: bits per byte of held-out text, beside its teacher's."""
    run, control = context.run, context.control
    model = load(run.folder, device=context.device)
    ours = perplexity(model.opened, held_out).bits_per_byte
    theirs = min((perplexity(each, held_out).bits_per_byte for each in context.models), key=lambda s: s.value)
    if not math.isfinite(theirs.value):
        control.note("the teacher gives probability 0 to some held-out words: nothing to compare with")
        return load(run.folder)
    both, share = {"teacher": asdict(theirs), "student": asdict(ours)}, theirs.value / ours.value
    write_json(run.inside / "kept.json", {"bits_per_byte": both, "kept": share})
    others = tuple(metric for metric in model.card.metrics if metric.name != "bits_per_byte")
    run.save_model(model.opened, (*others, Metric(data=data, name="bits_per_byte", **asdict(ours))))
    control.log(
        f"{run.folder}: {ours.value:.4f} bits per byte of held-out text ({ours.low:.4f} to {ours.high:.4f}), "
        f"the teacher {theirs.value:.4f}: {100 * share:.1f} % kept"
    )
    return load(run.folder)


def pretrain_student(context: Distillation) -> Model:
    """Teach a student its teacher's language model, whose outputs differ in every epoch, with the masks."""
    run, recipe, settings, control = context.run, context.recipe, context.recipe.distill, context.control
    teacher, folder, data = context.teacher, context.teachers[0].folder, recipe.data
    generates, room = teacher.family.generates, teacher.config.context
    if "words" not in teacher.heads or teacher.family.reads:
        raise UserError(
            f"{folder}: {teacher.family.name} with {', '.join(teacher.heads) or 'no heads'} predicts no words; "
            "--pretrain needs a model that fills gaps or predicts the next word"
        )
    names = ("dev", "holdout", "delimiter", "encoding", "documents", "on_bad_row")
    column, reading = data.columns.get("text", "text"), {name: vars(data)[name] for name in names}
    shared = {name: vars(recipe)[name] for name in ("out", "seed", "device", "tensorboard", "training")}
    text = Recipe(text=TextSection(files=data.text, column=column, **reading), **shared)
    wanted: Objective = NextToken() if generates else MaskedWords()
    student = begun_student(context, wanted.heads, "words", lambda: text_of(text).read(Skipped())).opened
    if student.family.generates != generates:
        does = "predicts the next word" if generates else "fills gaps"
        raise UserError(f"the teacher {does}, and {student.family.name} does not: choose another student")
    if not settings.match and not generates:
        settings = replace(settings, match=("cosine",))  # the third of DistilBERT's losses
    soft = SoftTargets(settings.temperature, settings.hard)
    objective: Any = matched(wanted, teacher, student, settings, soft)
    length = settings.length or min(student.family.row or student.config.context, room)
    if length > room:
        raise UserError(f"rows of {length} tokens are longer than the teacher's context of {room}")
    # A state that goes from row to row is nothing that a teacher with rows of its own could follow.
    aim = {"name": "next" if generates else "mlm", "rows": "stream", "length": length, "mask": settings.mask}
    own = Path(recipe.student.model)
    student.network.float()
    job = text_job(
        run,
        replace(text, objective=build(ObjectiveSection, aim, "[distill]")),
        replace(student, card=Card(teacher=folder.name)),
        objective,
        control,
        own.name if own.is_dir() else None,
        taught=True,
    )
    plan = build(FinetuneTraining, values_of(job.setup.plan), run.recipe.name, "training")
    settled = replace(recipe, training=plan, device=job.recipe.device, distill=replace(settings, length=length))
    job = replace(job, recipe=settled, same={**job.same, "teacher": context.teachers[0].digest})
    best = drive(run, job, control)
    if job.setup.held_out is not None and best.best is not None:
        # What the teacher itself would have had, of the same text with the same words hidden.
        judge: Any = objective.teacher.to(job.setup.device)
        judged = replace(job.setup, network=judge, objective=wanted)
        theirs = evaluate(judged, best.pass_tokens, None, control.stop)[0]["words"]
        sizes = parameters_of(teacher), parameters_of(student)
        both = [{"loss": theirs, "parameters": sizes[0]}, {"loss": best.best, "parameters": sizes[1]}]
        write_json(run.inside / "kept.json", {"teacher": both[0], "student": both[1]})
        control.log(
            f"{run.folder}: held-out loss {best.best:.4f}, the teacher's {theirs:.4f}; "
            f"{100 * sizes[1] / sizes[0]:.1f} % of its parameters"
        )
    return load(run.folder)
