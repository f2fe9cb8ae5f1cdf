"""Task-free distillation: a small language model predicts the words of a text as a large one does (DistilBERT)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from weft.checkpoint.card import Card
from weft.checkpoint.folder import LoadedModel
from weft.config import build, values_of
from weft.distillation.context import Distillation
from weft.distillation.hidden_states import along
from weft.distillation.recipe import DistillRecipe
from weft.distillation.student import begun_student
from weft.distillation.teacher_cache import Teacher, digest_of_folder
from weft.errors import UserError
from weft.files import write_json
from weft.objectives.base import Objective
from weft.objectives.hidden_states import TeacherNetwork
from weft.objectives.language import MaskedWords, NextToken
from weft.objectives.soft import SoftTargets
from weft.runs.corpus import text_of
from weft.runs.driver import device_for, drive
from weft.runs.pretrain import text_job
from weft.runs.recipes import FinetuneTraining, ObjectiveSection, Recipe, TextSection
from weft.tasks.model import Model, load
from weft.text.row_problems import Skipped
from weft.training.loop import evaluate
from weft.training.run import Run, State
from weft.training.signals import Control
from weft.training.step import Setup


def go(run: Run, recipe: DistillRecipe, control: Control) -> Model:
    """From the recipe in a run folder to the best student that was seen there; from its last checkpoint on."""
    device = device_for(recipe.device, recipe.training.threads)  # a missing one is named before anything is read
    teacher = _teacher(recipe)
    # Masks differ in every epoch, so there is nothing of the teacher's to keep: it reads every batch anew.
    name = "next" if teacher.family.speaks else "mlm"
    reading = _reading(recipe)

    def texts() -> Iterable[str]:
        return text_of(reading).read(Skipped())

    wanted: Objective = NextToken() if name == "next" else MaskedWords()
    folder = Path(recipe.teacher.folders[0])
    teachers = [Teacher(teacher, folder, digest_of_folder(folder))]
    context = Distillation(run, recipe, teachers, device, control)
    student = begun_student(context, wanted.heads, "words", texts).opened
    if student.family.speaks != teacher.family.speaks:
        does = "predicts the next word" if teacher.family.speaks else "fills gaps"
        raise UserError(f"the teacher {does}, and {student.family.name} does not: choose another student")
    settings = recipe.distill
    if not settings.match and name == "mlm":
        settings = replace(settings, match=("cosine",))  # the third of DistilBERT's losses
    soft = SoftTargets(settings.temperature, settings.hard)
    objective = along(wanted, teacher, student, settings, soft)
    # A state that goes from row to row is nothing that a teacher with rows of its own could follow.
    rows = "stream"
    length = settings.length or min(student.family.row or student.config.context, teacher.config.context)
    if length > teacher.config.context:
        raise UserError(f"rows of {length} tokens are longer than the teacher's context of {teacher.config.context}")
    aim = build(ObjectiveSection, {"name": name, "rows": rows, "length": length, "mask": settings.mask}, "[distill]")
    own = Path(recipe.student.model)
    student.network.float()

    job = text_job(
        run,
        replace(reading, objective=aim),
        replace(student, card=Card(teacher=folder.name)),
        objective,
        control,
        base=own.name if own.is_dir() else None,
        evaluate_first=True,  # what layers of the teacher know before anything is learned
        capture=True,
    )
    plan = build(FinetuneTraining, values_of(job.setup.plan), run.recipe.name, "training")
    decided = replace(recipe, training=plan, device=job.recipe.device, distill=replace(settings, length=length))
    job = replace(job, recipe=decided, same={**job.same, "teacher": teachers[0].digest})
    compare(context, job.setup, drive(run, job, control), objective.teacher, wanted)
    return load(run.folder)


def compare(context: Distillation, setup: Setup, state: State, network: TeacherNetwork, objective: Objective) -> None:
    """What the teacher itself would have had, of the same text with the same words hidden."""
    if setup.held_out is None or state.best is None:
        return
    judge: Any = network.to(setup.device)
    judged = replace(setup, network=judge, objective=objective)
    theirs = evaluate(judged, state.pass_tokens, None, context.stop)[0]["words"]
    sizes = [
        sum(weight.numel() for weight in network.parameters()) for network in (context.teacher.network, setup.network)
    ]
    both = [{"loss": theirs, "parameters": sizes[0]}, {"loss": state.best, "parameters": sizes[1]}]
    write_json(context.run.inside / "kept.json", {"teacher": both[0], "student": both[1]})
    context.log(
        f"{context.run.folder}: held-out loss {state.best:.4f}, the teacher's {theirs:.4f}; "
        f"{100 * sizes[1] / sizes[0]:.1f} % of its parameters"
    )


def _teacher(recipe: DistillRecipe) -> LoadedModel:
    """The one teacher, with everything checked that can be wrong before the text is read."""
    data, folders = recipe.data, recipe.teacher.folders
    if len(folders) > 1:
        raise UserError(f"--pretrain takes one teacher, not {len(folders)}")
    if not data.text or data.files or data.source:
        raise UserError("--pretrain learns from plain text alone: give --text FILE")
    if data.augment:
        raise UserError("--pretrain hides other words of each text in every epoch: --augment is for tasks")
    if recipe.training.compile:
        raise UserError("a student whose teacher runs along is not compiled: leave out training.compile")
    opened = load(folders[0]).opened
    if "words" not in opened.heads or opened.family.reads:
        raise UserError(
            f"{folders[0]}: {opened.family.name} with {', '.join(opened.heads) or 'no heads'} predicts no words; "
            "--pretrain needs a model that fills gaps or predicts the next word"
        )
    opened.network.float()
    return opened


def _reading(recipe: DistillRecipe) -> Recipe:
    """What is read and how it is trained, as a run of pre-training says it."""
    data = recipe.data
    words = TextSection(
        files=data.text,
        dev=data.dev,
        holdout=data.holdout,
        column=data.columns.get("text", "text"),
        delimiter=data.delimiter,
        encoding=data.encoding,
        documents=data.documents,
        on_bad_row=data.on_bad_row,
    )
    plan = recipe.training
    return Recipe(
        out=recipe.out,
        seed=recipe.seed,
        device=recipe.device,
        tensorboard=recipe.tensorboard,
        text=words,
        training=plan,
    )
