"""What the student of a language model reads: texts with the token outputs of its teacher, or texts of the teacher."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from weft.checkpoint.folder import LoadedModel
from weft.comparison.cost import evenly
from weft.data.chance import key_of
from weft.data.masking import shift
from weft.data.rows import ExampleSource, Framed, PackedRows
from weft.data.shards import Corpus, TextFiles, tokenized
from weft.distillation.context import Distillation
from weft.distillation.recipe import DistillDataSection, DistillRecipe
from weft.distillation.teacher_cache import TeacherReads
from weft.distillation.teacher_outputs import teacher_outputs
from weft.distillation.token_outputs import PlacedRows, TokenRequest, WithTokenOutputs, token_outputs
from weft.errors import UserError, listed
from weft.files import write_text
from weft.generation.options import GenerationOptions
from weft.objectives.base import Objective
from weft.objectives.language import NextToken
from weft.objectives.soft import SoftTargets
from weft.progress import Log, log_notes
from weft.runs.corpus import next_frame
from weft.tasks.base import Example, Task, TeacherArrays
from weft.tasks.complete import begun, generator_of
from weft.tasks.forward import unseen_in_words
from weft.tasks.perplexity import tokenizer_of
from weft.tasks.seq2seq import pack_texts, unpack_texts
from weft.text.row_problems import Skipped
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.windows import Framing

FIRST = 4  # words of a text that a teacher continues
MAX_HELD_OUT = 1 << 21  # characters of held-out text that bits per byte are computed on


# --------------------------------------------------------------------------------------------------------------- texts


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


# -------------------------------------------------------------------------------------------------------------- dataset


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
    with context.progress("the teacher reads the text", "tokens") as advance:
        message = "stopped while the teacher reads; its outputs so far are cached"
        outputs = token_outputs(request, context.stop.watched(advance, message), reads, context.log)
    size = sum(shard.nbytes for shard in outputs.shards) / 1e6
    cached = ", all from the cache" if not outputs.forwards else ""
    context.log(f"teacher: {framed.size:,} places, {outputs.forwards:,} read anew{cached}; {size:,.0f} MB are cached")
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
    cached = teacher_outputs(
        Continuations(recipe.seed),
        context.teachers,
        examples,
        [len(examples)],
        context.stop,
        context.log,
        context.progress,
        reads,
    )
    lines = [text for arrays in cached.outputs for text, _ in unpack_texts(arrays)]
    lines += [example.texts[0] for example in examples] if recipe.distill.hard else []
    path = run.inside / "teacher_texts.txt"
    write_text(path, "".join(" ".join(line.splitlines()) + "\n" for line in lines))
    tokenizer = tokenizer_of(student)
    frame, length = next_frame(tokenizer, True), _length(recipe, student)
    with context.progress("tokenizing the teacher's texts", "characters") as advance:
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
    with context.progress("tokenizing the text", "characters") as advance:
        watched: Callable[[int], None] = context.stop.watched(advance, "stopped while tokenizing; what is done is kept")
        whole = tokenized(texts.text, tokenizer, False, watched)
        if texts.dev is not None:
            return whole, tokenized(texts.dev, tokenizer, False, watched)
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
