"""What the student of a language model reads: a text with the forecasts of its teacher, or what that has written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from weft.checkpoint.folder import LoadedModel
from weft.comparison.cost import evenly
from weft.data.chance import key_of
from weft.data.masking import shift
from weft.data.rows import ExampleSource, Framed, PackedRows
from weft.data.shards import Corpus, TextFiles, tokenized
from weft.distillation.base import Said
from weft.distillation.recipe import DistillData, DistillRecipe
from weft.distillation.seq2seq import packed, unpacked
from weft.distillation.teacher_cache import Teacher, TeacherReads
from weft.distillation.teacher_outputs import teacher_outputs
from weft.distillation.token_outputs import PlacedRows, TokenOutputs, TokenRequest, WithTokenOutputs, token_outputs
from weft.errors import UserError, listed
from weft.files import write_text
from weft.generation.options import GenerationOptions
from weft.objectives.base import Objective
from weft.objectives.language import NextToken
from weft.objectives.soft import SoftTargets
from weft.progress import Log, Progress, log_notes
from weft.runs.corpus import next_frame
from weft.tasks.base import Example
from weft.tasks.complete import begun, generator_of
from weft.tasks.output_checks import unseen_in_words
from weft.tasks.scoring import tokenizer_of
from weft.text.row_problems import Skipped
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.windows import Framing
from weft.training.run import Run
from weft.training.signals import Stop

FIRST = 4  # words of a text from which a teacher writes on
JUDGED = 1 << 21  # characters of held-out text, at most, that bits are counted of


@dataclass(frozen=True)
class Papers:
    """The texts of a run: those to learn from, and those that it is judged by."""

    text: TextFiles
    learned: int  # so many of its documents, the first ones
    held: list[str]  # what is judged by, as far as bits are counted of it
    dev: TextFiles | None
    hashes: dict[str, str]

    def documents(self) -> Iterator[str]:
        """The documents to learn from."""
        return islice(self.text.read(Skipped()), self.learned)


def papers_of(recipe: DistillRecipe, log: Log) -> Papers:
    """The documents of a recipe; without others to judge by, the last of them are held out."""
    data, skipped = recipe.data, Skipped()
    if data.source or data.target:
        raise UserError("a language model writes on from a text: give --text FILE, not --source and --target")
    if data.augment:
        raise UserError("texts of a language model are learned as they stand: leave out --augment")
    text = TextFiles(
        (*data.text, *data.files),
        data.columns.get("text", "text"),
        data.delimiter,
        "line",
        data.on_bad_row,
        data.encoding,
    )
    count = sum(1 for _ in text.read(skipped))
    log_notes(skipped.lines(), log)
    where = listed([path.name for path in text.paths()], 2)
    if not count:
        raise UserError(f"{where}: there is no text in it: nothing to learn from")
    hashes = {"text": text.hash()}
    if data.dev:
        dev = replace(text, files=tuple(data.dev))
        held = _some(dev.read(Skipped()))
        if not held:
            raise UserError(f"{listed([path.name for path in dev.paths()], 2)}: there is no text to judge by")
        return Papers(text, count, held, dev, {**hashes, "dev": dev.hash()})
    if count < 2:
        raise UserError(f"{where}: a single text leaves none to judge by: give --dev FILE")
    learned = count - max(1, round(data.holdout * count))
    return Papers(text, learned, _some(islice(text.read(Skipped()), learned, None)), None, hashes)


def _some(documents: Iterator[str]) -> list[str]:
    found, size = list[str](), 0
    for document in documents:
        found.append(document)
        size += len(document)
        if size > JUDGED:
            break
    return found


def held_texts(data: DistillData, limit: int = 200) -> list[Example]:
    """Texts that a language model was not trained on: the dev texts, else of the last, which are held out."""
    names, share = (data.dev, 1.0) if data.dev else (data.text, data.holdout)
    text = TextFiles(names, data.columns.get("text", "text"), data.delimiter, "line", data.on_bad_row, data.encoding)
    lines = [line for line in text.read(Skipped()) if line.strip()]
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
class Material:
    """What a student reads, and what it is judged by."""

    source: ExampleSource
    held_out: ExampleSource
    prepare: Any
    objective: Objective
    forwards: int  # places, or texts, that a teacher read anew, in this process and those before it
    way: str


def by_words(
    run: Run,
    recipe: DistillRecipe,
    papers: Papers,
    teachers: Sequence[Teacher],
    student: LoadedModel,
    stop: Stop,
    log: Log,
    progress: Progress,
) -> Material:
    """One vocabulary: the teacher's chances of the next word at every place of the text."""
    tokenizer, asked = tokenizer_of(student), recipe.distill
    corpus, held = _corpora(papers, tokenizer, stop, progress)
    frame = next_frame(tokenizer, True)
    framed = Framed(corpus, frame)
    request = TokenRequest(teachers, framed, student.heads["words"], asked.temperature)
    with progress("the teacher foresees the text", "tokens") as told:

        def heard(more: int) -> None:
            stop.check("stopped while the teacher reads; its outputs so far are cached")
            told(more)

        reads = TeacherReads(run.inside)
        known = token_outputs(request, heard, reads, log)
    _tell(known, framed, log)
    length = _length(recipe, student)
    return Material(
        PlacedRows(framed, length, 1, False, recipe.seed),
        PackedRows(Framed(held, frame), length, 1, False, None),
        WithTokenOutputs(known),
        NextToken(soft=SoftTargets(asked.temperature, asked.hard)),
        reads.total,
        f"the teacher's chances of the next word at {framed.size:,} places, its own words counting {asked.hard:g}",
    )


def _tell(known: TokenOutputs, framed: Framed, log: Log) -> None:
    size = sum(shard.nbytes for shard in known.shards)
    cached = ", all from the cache" if not known.forwards else ""
    log(f"teacher: {framed.size:,} places, {known.forwards:,} read anew{cached}; {size / 1e6:,.0f} MB are kept of them")


def _length(recipe: DistillRecipe, student: LoadedModel) -> int:
    context = student.config.context
    length = recipe.distill.length or min(student.family.row or context, context)
    if length > context:
        raise UserError(f"rows of {length} tokens are longer than the student's context of {context}")
    return length


def _corpora(papers: Papers, tokenizer: Tokenizer, stop: Stop, progress: Progress) -> tuple[Corpus, Corpus]:
    """The tokens to learn from, and those to judge by."""
    with progress("tokenizing the text", "characters") as read:

        def heard(more: int) -> None:
            stop.check("stopped while tokenizing; what is done is kept")
            read(more)

        whole = tokenized(papers.text, tokenizer, False, heard)
        if papers.dev is not None:
            return whole, tokenized(papers.dev, tokenizer, False, heard)
    cut = int(whole.documents[papers.learned] - whole.begin)
    return whole.part(0, cut), whole.part(cut, whole.size)


@dataclass(frozen=True)
class Continued:
    """A lesson of texts: what a teacher writes on from the first words of one, about as long as that is."""

    seed: int
    first: int = FIRST

    as_one = False  # each teacher writes on by itself

    @property
    def settings(self) -> Mapping[str, Any]:
        """What the cache is named by, beside the teacher and the texts."""
        return {"seed": self.seed, "first": self.first}

    @staticmethod
    def asked(example: Example) -> Any:
        return example.texts

    def said(self, teacher: LoadedModel, framing: Framing, examples: Sequence[Example]) -> list[Said]:
        """Drawn word by word, as the teacher's chances are, from a seed that follows from the text."""
        tokenizer = tokenizer_of(teacher)
        texts = [example.texts[0] for example in examples]
        heads = [" ".join(text.split()[: self.first]) for text in texts]
        sizes = map(len, tokenizer.ids(texts, specials=False))
        prompts = begun(teacher, heads)
        room = teacher.config.context
        limits = [max(1, min(size, room) - len(prompt)) for size, prompt in zip(sizes, prompts, strict=True)]
        seeds = [key_of(self.seed, "continued", text) >> 2 for text in texts]
        with unseen_in_words(teacher):
            options = GenerationOptions(temperature=1.0, seed=seeds)
            found = generator_of(teacher).write(prompts, options, max_tokens=limits)
        return [packed([(f"{head}{each.text}", 0.0)]) for head, each in zip(heads, found, strict=True)]

    @staticmethod
    def mean(found: Sequence[Said]) -> Said:
        """All that several teachers have written."""
        return packed([way for said in found for way in unpacked(said)])


def by_texts(
    run: Run,
    recipe: DistillRecipe,
    papers: Papers,
    teachers: Sequence[Teacher],
    student: LoadedModel,
    stop: Stop,
    log: Log,
    progress: Progress,
) -> Material:
    """Two vocabularies: the student reads what the teacher writes, and where that counts, the texts themselves."""
    if recipe.distill.match:
        raise UserError("--match needs a student with the vocabulary of its teacher")
    tokenizer = tokenizer_of(student)
    lesson: Any = Continued(recipe.seed)
    examples = [Example((text,), None, "") for text in papers.documents() if text.strip()]
    reads = TeacherReads(run.inside)
    known = teacher_outputs(lesson, teachers, examples, [len(examples)], stop, log, progress, reads)
    lines = [text for said in known.outputs for text, _ in unpacked(said)]
    lines += [example.texts[0] for example in examples] if recipe.distill.hard else []
    path = run.inside / "taught.txt"
    write_text(path, "".join(" ".join(line.splitlines()) + "\n" for line in lines))
    frame, length = next_frame(tokenizer, True), _length(recipe, student)
    with progress("tokenizing what was written", "characters") as read:
        corpus = tokenized(TextFiles((str(path),)), tokenizer, False, read)
    held = _corpora(papers, tokenizer, stop, progress)[1]
    own = "and the texts themselves" if recipe.distill.hard else "alone"
    return Material(
        PackedRows(Framed(corpus, frame), length, 1, False, recipe.seed),
        PackedRows(Framed(held, frame), length, 1, False, None),
        shift,
        NextToken(),
        reads.total,
        f"another vocabulary than the teacher's, so the student reads what it has written {own}: {path}",
    )
