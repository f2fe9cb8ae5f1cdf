"""Students of language models: the teacher's probabilities of each next token, its texts, or its masked words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.budget import BUDGET, by_budget
from weft.checkpoint.card import Card, Metric
from weft.checkpoint.folder import LoadedModel, open_folder
from weft.comparison.cost import evenly
from weft.config import build, values_of
from weft.data.chance import key_of
from weft.data.masking import shift
from weft.data.rows import Drawn, Feed, Framed, PackedRows
from weft.data.shards import Places, TextFiles, tokenized
from weft.distillation.dataset import Advance, Distillation, Teacher, TeacherReads, read_shard, teacher_outputs
from weft.distillation.recipe import DistillDataSection
from weft.distillation.student import begun_student, find_student, matched, parameters_of
from weft.errors import UserError, listed, refuse
from weft.files import whole_file, write_json, write_text
from weft.generation.options import GenerationOptions
from weft.nn.heads import in_full
from weft.nn.rows import Batch, Ragged
from weft.objectives.losses import LOGPROBS, REST, TOKENS, MaskedWords, NextToken, Objective, SoftTargets
from weft.progress import log_notes
from weft.runs.driver import Job, drive
from weft.runs.finetune import decided
from weft.runs.preparation import next_frame, text_of
from weft.runs.pretrain import text_job
from weft.runs.recipes import FinetuneTraining, ObjectiveSection, PretrainText, Recipe
from weft.tasks.base import Example, Task, TeacherArrays
from weft.tasks.complete import generator_of, prompts_of, write
from weft.tasks.forward import tokenizer_of, unseen_in_words
from weft.tasks.model import Model, load
from weft.tasks.perplexity import perplexity
from weft.tasks.seq2seq import pack_texts, unpack_texts
from weft.text.rows import Skipped
from weft.text.windows import Framing
from weft.training.loop import evaluate
from weft.training.signals import Control

STEPS = 1000  # of a language model at least by default, but no more than 30 epochs
FIRST = 4  # words of a text that a teacher continues
MAX_HELD_OUT = 1 << 21  # characters of held-out text that bits per byte are computed on


@dataclass(frozen=True)
class LanguageTexts:
    """The texts of a language model: those to learn from, and those held out."""

    text: TextFiles
    count: int  # documents to learn from, the first ones
    held_out: list[str]
    dev: TextFiles | None
    hashes: dict[str, str]

    def documents(self) -> Iterator[str]:
        """The documents to learn from."""
        return islice(self.text.read(Skipped()), self.count)


def _files(names: Sequence[str], data: DistillDataSection) -> TextFiles:
    column = data.columns.get("text", "text")
    return TextFiles(tuple(names), column, data.delimiter, "line", data.on_bad_row, data.encoding)


def language_texts(data: DistillDataSection, control: Control) -> LanguageTexts:
    """The documents of a recipe; without a dev file, the last of them are held out."""
    given, skipped = bool(data.source or data.target), Skipped()
    refuse(
        (given, "a language model continues a text: give --text FILE, not --source and --target"),
        (data.augment > 0, "texts of a language model are learned as they stand: leave out --augment"),
    )
    text = _files((*data.text, *data.files), data)
    count = sum(1 for _ in text.read(skipped))
    log_notes(skipped.lines(), control.log)
    where = listed([path.name for path in text.paths()], 2)
    refuse(
        (not count, f"{where}: there is no text in it: nothing to learn from"),
        (count == 1 and not data.dev, f"{where}: a single text leaves none to evaluate on: give --dev FILE"),
    )
    dev = replace(text, files=tuple(data.dev)) if data.dev else None
    count -= 0 if dev else max(1, round(data.holdout * count))
    documents = dev.read(Skipped()) if dev else islice(text.read(Skipped()), count, None)
    held_out, size = list[str](), 0
    while size <= MAX_HELD_OUT and (document := next(documents, None)) is not None:
        held_out.append(document)
        size += len(document)
    if dev is not None and not held_out:
        raise UserError(f"{listed([path.name for path in dev.paths()], 2)}: there is no text to evaluate on")
    hashes = {"text": text.hash(), **({"dev": dev.hash()} if dev else {})}
    return LanguageTexts(text, count, held_out, dev, hashes)


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


TOKEN_FORMAT = 2
TOKEN_SHARD = 1 << 15  # places in a file
TOP = 32  # tokens that are kept of an output
LONG = 1024  # tokens of a window, of a teacher that reads texts of any length
SCORES = 1 << 24  # logits that are held at once


@dataclass(frozen=True)
class TokenRequest:
    """Which teachers read which text, and what of their outputs is kept."""

    teachers: Sequence[Teacher]
    framed: Framed
    vocabulary: int  # tokens that the student knows
    temperature: float = 1.0
    top: int = TOP

    @property
    def dtype(self) -> np.dtype[Any]:
        """One output: the likeliest tokens, their log-probabilities, and the probability of all others."""
        tokens = np.uint16 if self.vocabulary <= 1 << 16 else np.int32
        k = min(self.top, self.vocabulary)
        return np.dtype([("tokens", tokens, (k,)), ("logprobs", np.float16, (k,)), ("rest", np.float32)])


@dataclass(frozen=True)
class TokenOutputs:
    """The outputs for all places of a text, and how many places a teacher had to read for that."""

    shards: Sequence[NDArray[Any]]
    forwards: int

    def take(self, places: Places) -> NDArray[Any]:
        """The outputs at these places."""
        outputs = np.empty(len(places), dtype=self.shards[0].dtype)
        numbers = places // TOKEN_SHARD
        for number in np.unique(numbers):
            here = numbers == number
            outputs[here] = self.shards[number][places[here] - number * TOKEN_SHARD]
        return outputs

    def batch(self, drawn: Drawn) -> Batch:
        """Each token predicts the next, with the outputs of the teachers where the rows are placed."""
        batch = shift(replace(drawn, places=None))
        if drawn.places is None:  # held-out text
            return batch
        inside = np.ones(len(drawn.tokens), dtype=bool)
        inside[drawn.starts[1:] - 1] = False
        outputs = self.take(drawn.places[inside])
        soft = {
            TOKENS: torch.from_numpy(outputs["tokens"].astype(np.int64)),
            LOGPROBS: torch.from_numpy(outputs["logprobs"].astype(np.float32)),
            REST: torch.from_numpy(np.ascontiguousarray(outputs["rest"])),
        }
        return replace(batch, targets={**batch.targets, **soft})


def token_outputs(
    request: TokenRequest, progress: Advance = lambda more: None, context: Distillation | None = None
) -> TokenOutputs:
    """The outputs of the teachers, from the cache or made now; `progress` gets numbers of places and may raise."""
    corpus, places = request.framed.corpus, range(request.framed.size)
    part = [corpus.hash, corpus.begin, corpus.size, *vars(request.framed.frame).values()]
    digests = sorted(teacher.digest for teacher in request.teachers)
    key = [TOKEN_FORMAT, TOKEN_SHARD, digests, part, request.vocabulary, request.temperature, request.top]
    parts = [places[begin : begin + TOKEN_SHARD] for begin in places[::TOKEN_SHARD]]
    shards = [(f"forecasts-{number:05d}.npy", part) for number, part in enumerate(parts)]
    source = "forecasts of " + ", ".join(str(teacher.folder) for teacher in request.teachers)

    def read(path: Path) -> NDArray[Any]:
        outputs = np.load(path, mmap_mode="r")
        if outputs.dtype != request.dtype:
            raise ValueError("of another kind")
        return outputs

    def write(path: Path, places: range) -> None:
        shard = _shard(request, places, progress)
        with whole_file(path) as file:
            np.save(file, shard)

    reads = TeacherReads() if context is None else context.reads
    paths, forwards = reads.shards(key, source, shards, write, progress)
    return TokenOutputs([read_shard(path, read) for path in paths], forwards)


@torch.inference_mode()
def _shard(request: TokenRequest, places: range, progress: Advance) -> NDArray[Any]:
    """The mean of what the teachers predict after each of these places, window by window."""
    models = [teacher.model for teacher in request.teachers]
    length = min(LONG, *(model.config.context for model in models))
    # Each place has at least half a window before it, or as much as its teacher looks back at.
    reach = max(length if model.config.reach is None else model.config.reach for model in models)
    before = min(length // 2, reach)
    step = max(1, length - before)
    cuts = [(max(0, first - before), first, min(first + step, places.stop)) for first in places[::step]]
    shard, done = np.empty(len(places), dtype=request.dtype), 0
    size = max(1, SCORES // request.vocabulary)
    for batch in by_budget(cuts, lambda cut: cut[2] - cut[0], BUDGET):
        progress(0)
        rows = [request.framed.read(np.arange(start, last))[0].tolist() for start, _, last in batch]
        hidden = []
        for model in models:
            ragged = Ragged.of(rows, model.device)
            firsts = zip(ragged.rows.starts.tolist(), batch, strict=False)
            at = [row + place - start for row, (start, first, last) in firsts for place in range(first, last)]
            states = model.network.next_states(ragged.tokens, ragged.rows)
            hidden.append(states[torch.tensor(at, device=model.device)])
        count = len(hidden[0])
        for chunk in range(0, count, size):
            each = list[Tensor]()
            for model, states in zip(models, hidden, strict=True):
                with unseen_in_words(model):  # some tables are longer than their vocabulary
                    logits = model.network.words(states[chunk : chunk + size])[:, : request.vocabulary]
                each.append((in_full(logits) / request.temperature).log_softmax(-1))
            logprobs = each[0] if len(each) == 1 else torch.stack(each).logsumexp(0) - float(np.log(len(each)))
            here = slice(done + chunk, min(done + count, done + chunk + size))
            parts = shortened(logprobs, shard["tokens"].shape[1])
            for name, values in zip(("tokens", "logprobs", "rest"), parts, strict=True):
                shard[name][here] = values.cpu().numpy()
        done += count
        progress(count)
    return shard


def shortened(logprobs: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """n V -> n k, n k, n: the likeliest tokens, their log-probabilities, and the probability of all others."""
    best = logprobs.topk(k)
    rest = torch.zeros_like(best.values[:, 0])
    if k < logprobs.shape[1]:
        rest = (1 - best.values.double().exp().sum(-1)).clamp(0, 1).to(logprobs.dtype)
    # A token of probability 0, of a model that counts, has none in half precision either.
    return best.indices, best.values.clamp_min(-60000.0), rest


@dataclass(frozen=True)
class PlacedRows(PackedRows):
    """Packed rows that know at which places of the text they stand."""

    def draw(self, epochs: Places, numbers: Places) -> Drawn:
        return replace(super().draw(epochs, numbers), places=self.places(epochs, numbers)[0])


def distill_language(context: Distillation) -> Model:
    """Teach a student to predict each next token as its teachers do."""
    run, recipe, teacher, control = context.run, context.recipe, context.teacher, context.control
    for other in context.teachers[1:]:
        if tokenizer_of(other.model).pipeline != tokenizer_of(teacher).pipeline:
            raise UserError(f"{other.folder}: has another vocabulary than the first teacher: their mean has no meaning")
    # Tokens are predicted from one side alone, as in pre-training, whatever a network may do for labels.
    one_way = replace(context, recipe=replace(recipe, distill=replace(recipe.distill, pretrain=True)))
    lineage = find_student(one_way.recipe, teacher)
    family = open_folder(lineage).family if isinstance(lineage, Path) else lineage.family
    if not family.one_way or family.reads:
        raise UserError(f"{family.name} does not continue a text: a student such as gpt2:2x128 or lstm:1x256 does")
    texts = language_texts(recipe.data, control)
    beginning = begun_student(one_way, {"words": None}, "words", texts.documents)
    model = beginning.opened
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
    """Rows to train on and to evaluate on, how batches are made of them, the objective, and that in words.

    The teacher's probabilities of the next token (Hinton et al., 2015); with another vocabulary, the teacher's texts.
    """
    recipe, control = context.recipe, context.control
    tokenizer, settings, room = tokenizer_of(student), recipe.distill, student.config.context
    length = settings.length or min(student.row, room)
    same = tokenizer.pipeline == tokenizer_of(context.teacher).pipeline
    refuse(
        (not same and bool(settings.match), "--match needs a student with the vocabulary of its teacher"),
        (length > room, f"rows of {length} tokens are longer than the student's context of {room}"),
    )
    frame, message = next_frame(tokenizer, True), "stopped while tokenizing; what is done is kept"
    with control.count("tokenizing the text", "characters", message) as advance:
        whole = tokenized(texts.text, tokenizer, False, advance)
        dev = None if texts.dev is None else tokenized(texts.dev, tokenizer, False, advance)
    cut = whole.size if dev is not None else int(whole.documents[texts.count] - whole.begin)
    held_out = PackedRows(Framed(dev or whole.part(cut, whole.size), frame), length, 1, False, None)
    if not same:
        examples = [Example((text,), None, "") for text in texts.documents() if text.strip()]
        continued = teacher_outputs(context, Continuations(recipe.seed), examples, [len(examples)])
        lines = [text for arrays in continued for text, _ in unpack_texts(arrays)]
        lines += [example.texts[0] for example in examples] if settings.hard else []
        path = context.run.inside / "teacher_texts.txt"
        write_text(path, "".join(" ".join(line.splitlines()) + "\n" for line in lines))
        with control.progress("tokenizing the teacher's texts", "characters") as advance:
            corpus = tokenized(TextFiles((str(path),)), tokenizer, False, advance)
        own = "and the texts themselves" if settings.hard else "alone"
        summary = f"another vocabulary than the teacher's, so the student reads the teacher's texts {own}: {path}"
        return PackedRows(Framed(corpus, frame), length, 1, False, recipe.seed), held_out, shift, NextToken(), summary
    framed = Framed(whole if dev is not None else whole.part(0, cut), frame)
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
    return source, held_out, outputs.batch, objective, summary


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
            completions = write(generator_of(model), prompts, options)
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
    bits = f"{ours.value:.4f} bits per byte of held-out text ({ours.low:.4f} to {ours.high:.4f})"
    control.log(f"{run.folder}: {bits}, the teacher {theirs.value:.4f}: {100 * share:.1f} % kept")
    return load(run.folder)


def pretrain_student(context: Distillation) -> Model:
    """Teach a student its teacher's language model, whose outputs differ in every epoch, with the masks."""
    run, recipe, settings, control = context.run, context.recipe, context.recipe.distill, context.control
    teacher, folder, data = context.teacher, context.teachers[0].folder, recipe.data
    generates, room = teacher.family.generates, teacher.config.context
    if "words" not in teacher.heads or not {"mlm", "next"} & set(teacher.family.objectives):
        kind = f"{teacher.family.name} with {', '.join(teacher.heads) or 'no heads'}"
        raise UserError(f"{folder}: --pretrain needs a masked or causal language model, not {kind}")
    names = ("dev", "holdout", "delimiter", "encoding", "documents", "on_bad_row")
    column, reading = data.columns.get("text", "text"), {name: vars(data)[name] for name in names}
    shared = {name: vars(recipe)[name] for name in ("out", "seed", "device", "tensorboard", "training")}
    text = Recipe(text=PretrainText(files=data.text, column=column, **reading), **shared)
    wanted: Objective = NextToken() if generates else MaskedWords()
    student = begun_student(context, wanted.heads, "words", lambda: text_of(text).read(Skipped())).opened
    if student.family.one_way != generates or student.family.both_ways:
        does = "predicts the next word" if generates else "fills gaps"
        raise UserError(f"the teacher {does}, and {student.family.name} does not: choose another student")
    if not settings.match and not generates:
        settings = replace(settings, match=("cosine",))  # the third of DistilBERT's losses
    objective: Any = matched(wanted, teacher, student, settings)
    length = settings.length or min(student.row, room)
    if length > room:
        raise UserError(f"rows of {length} tokens are longer than the teacher's context of {room}")
    # A state that goes from row to row is nothing that a teacher with rows of its own could follow.
    aim = {"name": "next" if generates else "mlm", "rows": "stream", "length": length, "mask": settings.mask}
    own = Path(recipe.student.model)
    student.network.float()
    text = replace(text, objective=build(ObjectiveSection, aim, "[distill]"))
    base, card = own.name if own.is_dir() else None, Card(teacher=folder.name)
    job = text_job(run, text, replace(student, card=card), objective, control, base, taught=True)
    plan = build(FinetuneTraining, values_of(job.setup.plan), run.recipe.name, "training")
    settled = replace(recipe, training=plan, device=job.recipe.device, distill=replace(settings, length=length))
    job = replace(job, recipe=settled, same={**job.same, "teacher": context.teachers[0].digest})
    best = drive(run, job, control)
    if job.setup.held_out is not None and best.best is not None:
        # What the teacher itself would have had, of the same text with the same words hidden.
        network: Any = objective.teacher.to(job.setup.device)
        setup = replace(job.setup, network=network, objective=wanted)
        theirs = evaluate(setup, best.pass_tokens, None, control.stop)[0]["words"]
        sizes = parameters_of(teacher), parameters_of(student)
        both = [{"loss": theirs, "parameters": sizes[0]}, {"loss": best.best, "parameters": sizes[1]}]
        write_json(run.inside / "kept.json", {"teacher": both[0], "student": both[1]})
        losses = f"held-out loss {best.best:.4f}, the teacher's {theirs:.4f}"
        control.log(f"{run.folder}: {losses}; {100 * sizes[1] / sizes[0]:.1f} % of its parameters")
    return load(run.folder)
