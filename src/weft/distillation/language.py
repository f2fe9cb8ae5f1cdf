"""Language models as teachers: a student predicts each next token as its teacher does.

Where both have one vocabulary, it learns the teacher's probabilities (Hinton et al., 2015), place by place. Where they
have not, it learns from texts in which the teacher has continued the first words of those given.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from weft.checkpoint.card import Card, Metric
from weft.checkpoint.families import Family
from weft.checkpoint.folder import LoadedModel
from weft.comparison.cost import evenly
from weft.config import build, values_of
from weft.data.chance import key_of
from weft.data.masking import shift
from weft.data.rows import ExampleSource, Feed, Framed, PackedRows
from weft.data.shards import Corpus, TextFiles, tokenized
from weft.distillation.recipe import DistillDataSection, DistillRecipe
from weft.distillation.student import along, begun_student, find_student, matched
from weft.distillation.teacher_outputs import (
    Distillation,
    PlacedRows,
    Teacher,
    TeacherReads,
    TokenRequest,
    WithTokenOutputs,
    teacher_outputs,
    token_outputs,
)
from weft.errors import UserError, listed
from weft.files import write_json, write_text
from weft.generation.options import GenerationOptions
from weft.objectives.base import Objective, SoftTargets
from weft.objectives.hidden_states import TeacherNetwork
from weft.objectives.language import MaskedWords, NextToken
from weft.progress import Log, log_notes
from weft.runs.corpus import next_frame, text_of
from weft.runs.driver import Job, device_for, drive
from weft.runs.finetune import decided
from weft.runs.pretrain import text_job
from weft.runs.recipes import FinetuneTraining, ObjectiveSection, Recipe, TextSection
from weft.tasks.base import Example, Task, TeacherArrays
from weft.tasks.complete import begun, generator_of
from weft.tasks.forward import unseen_in_words
from weft.tasks.model import Model, load
from weft.tasks.perplexity import perplexity, tokenizer_of
from weft.tasks.seq2seq import pack_texts, unpack_texts
from weft.text.row_problems import Skipped
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.windows import Framing
from weft.training.loop import evaluate
from weft.training.run import Run, State, tokenizer_hash
from weft.training.signals import Control
from weft.training.step import Setup

FIRST = 4  # words of a text that a teacher continues
MAX_HELD_OUT = 1 << 21  # characters of held-out text that bits per byte are computed on


@dataclass(frozen=True)
class LanguageTexts:
    """The texts of a run: those to learn from, and those held out."""

    text: TextFiles
    count: int  # documents to learn from, the first ones
    held_out: list[str]
    dev: TextFiles | None
    hashes: dict[str, str]

    @property
    def held_out_hash(self) -> str:
        return self.hashes.get("dev", self.hashes["text"])

    def documents(self) -> Iterator[str]:
        """The documents to learn from."""
        return islice(self.text.read(Skipped()), self.count)


def _files(names: Sequence[str], data: DistillDataSection) -> TextFiles:
    column = data.columns.get("text", "text")
    return TextFiles(tuple(names), column, data.delimiter, "line", data.on_bad_row, data.encoding)


def language_texts(recipe: DistillRecipe, log: Log) -> LanguageTexts:
    """The documents of a recipe; without a dev file, the last of them are held out."""
    data, skipped = recipe.data, Skipped()
    if data.source or data.target:
        raise UserError("a language model continues a text: give --text FILE, not --source and --target")
    if data.augment:
        raise UserError("texts of a language model are learned as they stand: leave out --augment")
    text = _files((*data.text, *data.files), data)
    count = sum(1 for _ in text.read(skipped))
    log_notes(skipped.lines(), log)
    where = listed([path.name for path in text.paths()], 2)
    if not count:
        raise UserError(f"{where}: there is no text in it: nothing to learn from")
    hashes = {"text": text.hash()}
    if data.dev:
        dev = replace(text, files=tuple(data.dev))
        held_out = _limited(dev.read(Skipped()))
        if not held_out:
            raise UserError(f"{listed([path.name for path in dev.paths()], 2)}: there is no text to evaluate on")
        return LanguageTexts(text, count, held_out, dev, {**hashes, "dev": dev.hash()})
    if count < 2:
        raise UserError(f"{where}: a single text leaves none to evaluate on: give --dev FILE")
    learned = count - max(1, round(data.holdout * count))
    return LanguageTexts(text, learned, _limited(islice(text.read(Skipped()), learned, None)), None, hashes)


def _limited(documents: Iterator[str]) -> list[str]:
    texts, size = list[str](), 0
    for document in documents:
        texts.append(document)
        size += len(document)
        if size > MAX_HELD_OUT:
            break
    return texts


def held_texts(data: DistillDataSection, limit: int = 200) -> list[Example]:
    """Texts that a language model was not trained on: the dev texts, else of the last, which are held out."""
    names, share = (data.dev, 1.0) if data.dev else (data.text, data.holdout)
    lines = [line for line in _files(names, data).read(Skipped()) if line.strip()]
    # By characters, and half of them, since what was held out was split by tokens and by whole documents.
    room = share * sum(map(len, lines)) / (1 if data.dev else 2)
    examples = list[Example]()
    for line in reversed(lines):
        room -= len(line)
        if examples and room < 0:
            break
        examples.append(Example((line,), None, "held-out text"))
    return evenly(examples[::-1], limit)


@dataclass(frozen=True)
class LanguageDataset:
    """Rows of tokens that a student reads, and what it learns by."""

    source: ExampleSource
    held_out: ExampleSource
    prepare: Any
    objective: Objective
    forwards: int  # places, or texts, that a teacher had to read, in all processes of the run
    summary: str


def by_tokens(context: Distillation, texts: LanguageTexts, student: LoadedModel) -> LanguageDataset:
    """One vocabulary: the teacher's probabilities of the next token at every place of the text."""
    tokenizer, settings = tokenizer_of(student), context.recipe.distill
    corpus, held_out = _corpora(context, texts, tokenizer)
    frame, length = next_frame(tokenizer, True), _length(context.recipe, student)
    framed = Framed(corpus, frame)
    request = TokenRequest(context.teachers, framed, student.heads["words"], settings.temperature)
    reads = TeacherReads(context.run.inside)
    message = "stopped while the teacher reads; its outputs so far are cached"
    with context.control.count("the teacher reads the text", "tokens", message) as advance:
        outputs = token_outputs(request, advance, reads, context.control.log)
    size = sum(shard.nbytes for shard in outputs.shards) / 1e6
    cached = ", all from the cache" if not outputs.forwards else ""
    context.control.log(
        f"teacher: {framed.size:,} places, {outputs.forwards:,} read anew{cached}; {size:,.0f} MB are cached"
    )
    return LanguageDataset(
        PlacedRows(framed, length, 1, False, context.recipe.seed),
        PackedRows(Framed(held_out, frame), length, 1, False, None),
        WithTokenOutputs(outputs),
        NextToken(soft=SoftTargets(settings.temperature, settings.hard)),
        reads.total,
        f"the teacher's probabilities of the next token at {framed.size:,} places, the text's own tokens counting "
        f"{settings.hard:g}",
    )


def by_texts(context: Distillation, texts: LanguageTexts, student: LoadedModel) -> LanguageDataset:
    """Two vocabularies: the student reads texts of the teacher, and where they count, the texts themselves."""
    run, recipe = context.run, context.recipe
    if recipe.distill.match:
        raise UserError("--match needs a student with the vocabulary of its teacher")
    examples = [Example((text,), None, "") for text in texts.documents() if text.strip()]
    reads = TeacherReads(run.inside)
    task = Continuations(recipe.seed)
    outputs = teacher_outputs(task, context.teachers, examples, [len(examples)], context.control, reads)
    lines = [text for arrays in outputs for text, _ in unpack_texts(arrays)]
    lines += [example.texts[0] for example in examples] if recipe.distill.hard else []
    path = run.inside / "teacher_texts.txt"
    write_text(path, "".join(" ".join(line.splitlines()) + "\n" for line in lines))
    tokenizer = tokenizer_of(student)
    frame, length = next_frame(tokenizer, True), _length(recipe, student)
    with context.control.progress("tokenizing the teacher's texts", "characters") as advance:
        corpus = tokenized(TextFiles((str(path),)), tokenizer, False, advance)
    held_out = _corpora(context, texts, tokenizer)[1]
    own = "and the texts themselves" if recipe.distill.hard else "alone"
    return LanguageDataset(
        PackedRows(Framed(corpus, frame), length, 1, False, recipe.seed),
        PackedRows(Framed(held_out, frame), length, 1, False, None),
        shift,
        NextToken(),
        reads.total,
        f"another vocabulary than the teacher's, so the student reads the teacher's texts {own}: {path}",
    )


def _length(recipe: DistillRecipe, student: LoadedModel) -> int:
    context = student.config.context
    length = recipe.distill.length or min(student.family.row or context, context)
    if length > context:
        raise UserError(f"rows of {length} tokens are longer than the student's context of {context}")
    return length


def _corpora(context: Distillation, texts: LanguageTexts, tokenizer: Tokenizer) -> tuple[Corpus, Corpus]:
    """The tokens to learn from, and those held out."""
    message = "stopped while tokenizing; what is done is kept"
    with context.control.count("tokenizing the text", "characters", message) as advance:
        whole = tokenized(texts.text, tokenizer, False, advance)
        if texts.dev is not None:
            return whole, tokenized(texts.dev, tokenizer, False, advance)
    cut = int(whole.documents[texts.count] - whole.begin)
    return whole.part(0, cut), whole.part(cut, whole.size)


@dataclass(frozen=True)
class Continuations(Task):
    """Continuations of the first words of a text, about as long as the text is."""

    seed: int
    first: int = FIRST

    name = "continue"

    @classmethod
    def from_model(cls, model: LoadedModel, name: str) -> Continuations:
        return cls(0)

    @property
    def teacher_settings(self) -> dict[str, Any]:
        return {"seed": self.seed, "first": self.first}

    def teacher_outputs(self, model: LoadedModel, windows: Framing, examples: Sequence[Example]) -> list[TeacherArrays]:
        """Sampled token by token, from a seed that follows from the text."""
        texts = [example.texts[0] for example in examples]
        heads = [" ".join(text.split()[: self.first]) for text in texts]
        sizes = map(len, tokenizer_of(model).ids(texts, specials=False))
        prompts, room = begun(model, heads), model.config.context
        limits = [max(1, min(size, room) - len(prompt)) for size, prompt in zip(sizes, prompts, strict=True)]
        seeds = [key_of(self.seed, "continued", text) >> 2 for text in texts]
        with unseen_in_words(model):
            options = GenerationOptions(temperature=1.0, seed=seeds)
            completions = generator_of(model).write(prompts, options, max_tokens=limits)
        return [pack_texts([(f"{head}{each.text}", 0.0)]) for head, each in zip(heads, completions, strict=True)]

    def average(self, outputs: Sequence[TeacherArrays]) -> TeacherArrays:
        """The texts of all teachers."""
        return pack_texts([text for arrays in outputs for text in unpack_texts(arrays)])


STEPS = 1000  # that a student takes at least by default, but no more than 30 epochs


def check_writes(family: Family) -> None:
    """Refuse a student that predicts no next tokens."""
    if not family.generates or family.reads:
        raise UserError(f"{family.name} does not continue a text: a student such as gpt2:2x128 or lstm:1x256 does")


def distill_language(context: Distillation) -> Model:
    """Teach a student to predict tokens as its teachers do."""
    run, recipe, teacher = context.run, context.recipe, context.teacher
    for other in context.teachers[1:]:
        if tokenizer_of(other.model).pipeline != tokenizer_of(teacher).pipeline:
            raise UserError(f"{other.folder}: has another vocabulary than the first teacher: their mean has no meaning")
    # Tokens are predicted from one side alone, as in pre-training, whatever a network may do for labels.
    one_way = replace(context, recipe=replace(recipe, distill=replace(recipe.distill, pretrain=True)))
    lineage = find_student(one_way.recipe, teacher, lambda text: None)
    if not isinstance(lineage, Path):
        check_writes(lineage.family)
    texts = language_texts(recipe, context.control.log)
    beginning = begun_student(one_way, {"words": None}, "words", texts.documents)
    model = beginning.opened
    check_writes(model.family)
    same = tokenizer_of(model).pipeline == tokenizer_of(teacher).pipeline
    dataset = (by_tokens if same else by_texts)(context, texts, model)
    plan = _planned(recipe.training, dataset.source, model, context.device, beginning.fresh)
    length, steps = int(dataset.source.mean), plan.steps or 1
    settings = replace(recipe.distill, metric="loss", length=length)
    recipe = replace(recipe, training=plan, device=str(context.device), distill=settings)
    names = ", ".join(each.folder.name for each in context.teachers)
    card = replace(model.card, task=model.family.task, base=Path(recipe.student.model).name, teacher=names)
    model = replace(model, card=card)
    announcement = (
        f"{run.folder}: {dataset.summary}\n"
        f"plan: {steps:,} step{'s' * (steps != 1)} of {plan.batch} rows of {length} tokens, "
        f"{steps * (plan.batch or 1) / dataset.source.count:.1f} epochs, "
        f"learning rate {plan.learning_rate:.1e}, on {context.device.type} in {plan.precision}"
    )
    setup = Setup(
        network=model.network,
        objective=matched(dataset.objective, teacher, model, recipe.distill),
        feed=Feed(dataset.source, dataset.prepare, recipe.seed, plan.batch or 1),
        held_out=dataset.held_out,
        plan=plan,
        device=context.device,
        decode=tokenizer_of(model).decode,
    )
    hashes = {**texts.hashes, "teacher": [each.digest for each in context.teachers]}
    job = Job(
        recipe=recipe,
        model=model,
        setup=setup,
        same={"data": hashes, "tokenizer": tokenizer_hash(model)},
        about={"teacher_forwards": dataset.forwards},
        announce=lambda state: context.control.log(announcement),
        data=texts.held_out_hash,
    )
    drive(run, job, context.control)
    return _reported(context, texts)


def _planned(
    plan: FinetuneTraining, source: Any, model: LoadedModel, device: torch.device, fresh: bool
) -> FinetuneTraining:
    batch = max(1, min(round(8192 / source.mean), source.count // 8))
    epochs = max(3.0, min(30.0, STEPS * batch / source.count))
    learning_rate = model.family.learning_rate * (768 / model.config.width) ** 0.5
    settled = decided(plan, source, device, batch, epochs, learning_rate if fresh else learning_rate / 5)
    every = plan.evaluate_every or max(1, (settled.steps or 1) // 10)
    return replace(settled, evaluate_every=every, save_every=plan.save_every or every)


def _reported(context: Distillation, texts: LanguageTexts) -> Model:
    """How much the student has kept: bits per byte of held-out text, beside its teacher's."""
    run = context.run
    model = load(run.folder, device=context.device)
    ours = perplexity(model.opened, texts.held_out).bits_per_byte
    theirs = min((perplexity(each, texts.held_out).bits_per_byte for each in context.models), key=lambda s: s.value)
    if not math.isfinite(theirs.value):
        context.control.note("the teacher gives probability 0 to some held-out words: nothing to compare with")
        return load(run.folder)
    share = theirs.value / ours.value
    write_json(
        run.inside / "kept.json", {"bits_per_byte": {"teacher": asdict(theirs), "student": asdict(ours)}, "kept": share}
    )
    others = tuple(metric for metric in model.card.metrics if metric.name != "bits_per_byte")
    metric = Metric(data=texts.held_out_hash, name="bits_per_byte", **asdict(ours))
    run.save_model(model.opened, (*others, metric))
    context.control.log(
        f"{run.folder}: {ours.value:.4f} bits per byte of held-out text ({ours.low:.4f} to {ours.high:.4f}), "
        f"the teacher {theirs.value:.4f}: {100 * share:.1f} % kept"
    )
    return load(run.folder)


def pretrain_student(run: Run, recipe: DistillRecipe, control: Control) -> Model:
    """From the recipe in a run folder to the best student that was seen there; from its last checkpoint on."""
    device = device_for(recipe.device, recipe.training.threads)  # a missing one is named before anything is read
    teacher = _teacher(recipe)
    # Masks differ in every epoch, so there is nothing of the teacher's to keep: it reads every batch anew.
    name = "next" if teacher.family.generates else "mlm"
    reading = _reading(recipe)

    def texts() -> Iterable[str]:
        return text_of(reading).read(Skipped())

    wanted: Objective = NextToken() if name == "next" else MaskedWords()
    folder = Path(recipe.teacher.folders[0])
    teachers = [Teacher.of(teacher, folder)]
    context = Distillation(run, recipe, teachers, device, control)
    student = begun_student(context, wanted.heads, "words", texts).opened
    if student.family.generates != teacher.family.generates:
        does = "predicts the next word" if teacher.family.generates else "fills gaps"
        raise UserError(f"the teacher {does}, and {student.family.name} does not: choose another student")
    settings = recipe.distill
    if not settings.match and name == "mlm":
        settings = replace(settings, match=("cosine",))  # the third of DistilBERT's losses
    soft = SoftTargets(settings.temperature, settings.hard)
    objective = along(wanted, teacher, student, settings, soft)
    length = settings.length or min(student.family.row or student.config.context, teacher.config.context)
    if length > teacher.config.context:
        raise UserError(f"rows of {length} tokens are longer than the teacher's context of {teacher.config.context}")
    # A state that goes from row to row is nothing that a teacher with rows of its own could follow.
    aim = {"name": name, "rows": "stream", "length": length, "mask": settings.mask}
    own = Path(recipe.student.model)
    student.network.float()

    job = text_job(
        run,
        replace(reading, objective=build(ObjectiveSection, aim, "[distill]")),
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
    compare_losses(context, job.setup, drive(run, job, control), objective.teacher, wanted)
    return load(run.folder)


def compare_losses(
    context: Distillation, setup: Setup, state: State, network: TeacherNetwork, objective: Objective
) -> None:
    """What the teacher itself would have had, of the same text with the same words hidden."""
    if setup.held_out is None or state.best is None:
        return
    judge: Any = network.to(setup.device)
    judged = replace(setup, network=judge, objective=objective)
    theirs = evaluate(judged, state.pass_tokens, None, context.control.stop)[0]["words"]
    sizes = [
        sum(weight.numel() for weight in network.parameters()) for network in (context.teacher.network, setup.network)
    ]
    both = [{"loss": theirs, "parameters": sizes[0]}, {"loss": state.best, "parameters": sizes[1]}]
    write_json(context.run.inside / "kept.json", {"teacher": both[0], "student": both[1]})
    context.control.log(
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
    names = ("dev", "holdout", "delimiter", "encoding", "documents", "on_bad_row")
    column = data.columns.get("text", "text")
    words = TextSection(files=data.text, column=column, **{name: vars(data)[name] for name in names})
    shared = {name: vars(recipe)[name] for name in ("out", "seed", "device", "tensorboard", "training")}
    return Recipe(text=words, **shared)
