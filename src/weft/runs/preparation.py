"""What a run begins with: its data, read, checked and split; and its model: family, size, vocabulary and heads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from weft.checkpoint.external import open_vectors
from weft.checkpoint.families import FAMILIES, Family, check_config, find_size
from weft.checkpoint.folder import LoadedModel, family_of, open_folder, read_published
from weft.checkpoint.locate import find_folder, has_model
from weft.config import changed
from weft.data import rows as sources
from weft.data.dataset import Dataset, RunRows, begin_with, check_rows, is_section
from weft.data.masking import Masking, Permutation, SpanCorruption, sentinel, shift, two_way
from weft.data.shards import Corpus, TextFiles, tokenized
from weft.data.tables import Table
from weft.errors import UserError, listed, refuse, shown
from weft.nn.rows import Batch
from weft.progress import Log, log_notes
from weft.runs.languages import LayOut, by_language, languages_in
from weft.runs.recipes import (
    Recipe,
    TableSection,
    TaskRecipe,
    TokenizerSection,
    check_has_model,
    named_language,
    overlaid,
)
from weft.spelling import FIRST_WORD
from weft.tasks.base import Example, Normalization, Task
from weft.tasks.model import new
from weft.tasks.registry import SUPERVISED, task_class
from weft.text.records import DOCUMENTS, NAMES, document_kinds
from weft.text.rows import Problems, Skipped
from weft.text.tables import OURS, USUAL, folded
from weft.text.tokenizers.published import load_tokenizer
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.tokenizers.training import MAX_VOCABULARY, learn, learn_like
from weft.text.vector_files import is_file_of_vectors
from weft.text.windows import frame as frame_of
from weft.text.windows import pair_frame
from weft.training.run import Run
from weft.training.signals import Control

SIDES = ("source", "target", "dev_source", "dev_target")  # of files that belong together line for line
DEV = ("dev", "dev_source", "dev_target")
SHORT = 12  # tokens; documents that are shorter on average are probably lines of something longer
Values = Mapping[str, Any]
R = TypeVar("R", Recipe, TaskRecipe)
Heads = Mapping[str, int | None]
Learn = Callable[[Tokenizer | None], tuple[Tokenizer, ...]]  # makes the vocabularies of a run
VOCABULARY = 8000  # tokens of a vocabulary
CHOICES = ("family", "size", "base", "vectors")  # keys of [model] that are not sizes
FEW, MANY = 100_000, 500_000  # pairs of texts, up to which a small model, or a middling one, is large enough
LABELLED_DROPOUT = 0.5  # of a recurrent network that labels texts
DROPOUT = 0.3  # of such a model: few pairs are soon known by heart


def settings_of(given: Values, rows: RunRows, section: type[Any], tables: Values, values: Values) -> dict[str, Any]:
    """The settings of a call: `tables` of [data], `values` by `section.key`, each of which may be a whole section."""
    settings, tables = dict(given), dict(tables)
    if is_section(tables.get("files"), section):
        settings = overlaid(settings, {"data": tables.pop("files")})
    for name, value in values.items():
        if isinstance(value, Mapping):
            settings = overlaid(settings, {name.split(".")[0]: value})
    there = settings.get("data", {})
    tables |= {key: there[key] for key in SIDES if isinstance(there.get(key), str | os.PathLike)}
    files = {f"data.{key}": rows.names(key, value) for key, value in tables.items() if value is not None}
    for name, value in {**files, **values}.items():
        if value is not None and not isinstance(value, Mapping):
            head, _, key = name.partition(".")
            plain = os.fspath(value) if isinstance(value, os.PathLike) else value
            settings[head] = {**settings.get(head, {}), key: plain} if key else plain
    return settings


def absolute_tables(data: Any, keys: tuple[str, ...], rows: RunRows, out: str, log: Log) -> dict[str, Any]:
    """The files of [data] with whole paths, so that the run can be resumed from any folder."""
    values: dict[str, Any] = {**rows.paths(out)}
    for key in (*keys, "dev", *SIDES):
        if (names := vars(data)[key]) and key not in rows.tables:
            table = Table(names, format=data.format if key in ("files", "dev") else "txt")
            paths = table.paths(lambda text: log(f"weft: note: {text}"))
            values[key] = [str(path.absolute()) for path in paths]  # a folder of classes stays one name
    train, dev = ({name for key in values if (key in DEV) is held for name in values[key]} for held in (False, True))
    if both := train & dev:
        raise UserError(f"{min(both)}: is both training and held-out data")
    return values


def absolute(name: str) -> str:
    """A path that is the same from any folder."""
    return str(Path(name).expanduser().absolute())


def absolute_paths(recipe: Any) -> dict[str, Any]:
    """Base, vectors and tokenizer by absolute paths, so that the run can be resumed from any folder."""
    model, folder = recipe.model, recipe.tokenizer.folder
    local = [key for key in ("vectors", "base") if key in model and (key == "vectors" or Path(model[key]).exists())]
    paths = {"model": {key: absolute(model[key]) for key in local}}
    return paths if folder is None else {**paths, "tokenizer": {"folder": absolute(folder)}}


def table_of(data: TableSection, dev: bool = False) -> Table:
    """The rows to learn from, or to evaluate on: in a table, or in two files line for line."""
    source, target = (data.dev_source, data.dev_target) if dev else (data.source, data.target)
    names = data.dev if dev else data.files
    if not (source or target):
        return Table(names, data.columns, data.format, data.delimiter, data.names, data.on_bad_row, data.encoding)
    if names:
        raise UserError(f"give a table or two parallel files, not both: {names[0]} and {(source or target)[0]}")
    return Table.parallel(source, target, data.on_bad_row, data.encoding)


def read_examples(task: Task, table: Table, skipped: Skipped, control: Control) -> tuple[Task, list[Example]]:
    """All rows of a table; the first of them may decide what kind of task it is."""
    task, needed = task.of_table(table)
    with control.count(f"reading {table.name}", "rows", "stopped while reading") as watched:
        task = task.with_table(table, skipped, watched)
        examples = list(task.read_table(table, begin_with(table, needed, task.read, skipped), skipped, watched))
    log_notes(skipped.lines(), control.log)
    return task, examples


def gather(recipe: TaskRecipe, control: Control) -> tuple[Task, Dataset[Example]]:
    """The task and the dataset of a run; some rows are held out where no others are given to evaluate on."""
    data, table, skipped = recipe.data, table_of(recipe.data), Skipped()
    fresh = task_class(recipe.task.name).from_recipe(recipe.task, recipe.data)
    task, examples = read_examples(fresh, table, skipped, control)
    # Names that no other file would be expected to use are remembered with the model.
    known = {ours: theirs for ours, theirs in skipped.columns.items() if ours in OURS}
    columns = {ours: theirs for ours, theirs in known.items() if folded(theirs) not in USUAL}
    where = table.name
    check_rows(len(examples), where)
    hashes = {"data": table.hash()}
    normalization = task.normalization(examples, recipe.task.labels)
    dev_normalization = deepcopy(normalization)  # which counts what it changes in one file
    examples = normalized(examples, normalization, where, control.log)
    examples = task.select(examples, lambda note: control.note(f"{where}: {note}"))
    check_rows(len(examples), where)
    task = task.fit_labels(examples, recipe.task.labels)
    dev, dev_table = list[Example](), None
    if data.dev or data.dev_source or data.dev_target:
        dev_table = table_of(data, dev=True)
        _, dev = read_examples(task, dev_table, Skipped(), control)
        dev = normalized(dev, dev_normalization, dev_table.name, control.log)
    for note in task.label_notes():
        control.note(f"{where}: {note}")
    examples = checked(task, examples, data.on_bad_row, control.log)
    check_rows(len(examples), where)
    if dev_table is None:
        train, held = task.split(examples, data.holdout, data.split)
        learned = {examples[number].texts for number in train}  # a row that is there twice must not be on both sides
        twice = {number for number in held if examples[number].texts in learned}
        if not task.whole_groups and len(twice) < len(held):
            train, held = sorted({*train, *twice}), [number for number in held if number not in twice]
        places = [examples[number].where for number in held]
        return task, Dataset(examples, train, held, hashes, places, columns)
    dev = checked(task, dev, data.on_bad_row, control.log)
    refuse((not dev, f"{dev_table.name}: there are no rows"))
    if note := task.swap_note(dev, dev_table.name):
        control.note(note)
    count = len(examples)
    hashes["dev"] = dev_table.hash()
    return task, Dataset([*examples, *dev], range(count), range(count, count + len(dev)), hashes, columns=columns)


def normalized(examples: list[Example], normalization: Normalization, where: str, log: Log) -> list[Example]:
    """The examples with their targets in one form, and a note where they had another."""
    examples = [normalization(example) for example in examples]
    if note := normalization.note():
        log(f"weft: note: {where}: {note}")
    return examples


def checked(task: Task, examples: list[Example], on_bad_row: str, log: Log) -> list[Example]:
    """The examples without a target, or with one that the task knows; others stop in one error, or are counted."""
    skipped, problems, kept = Skipped(), Problems(), list[Example]()
    with suppress(UserError):  # most often all is well
        task.check_targets([example for example in examples if task.has_target(example)])
        return examples
    for example in examples:
        try:
            if task.has_target(example):
                task.check_targets([example])
            kept.append(example)
        except UserError as error:
            if on_bad_row == "stop":
                problems.add(error)
            else:
                skipped.add(str(error))
    problems.check()
    log_notes(skipped.lines(), log)
    return kept


def text_of(recipe: Any) -> TextFiles:
    t = recipe.text
    files = tuple(named_language(name)[1] for name in t.files)
    return TextFiles(files, t.column, t.delimiter, t.documents, t.on_bad_row, t.encoding)


def documents_of(recipe: Recipe, log: Log) -> str:
    """What the documents of a recipe's text files are, for the recipe in the run folder; logged where it was open."""
    if recipe.text.documents != "auto":
        return recipe.text.documents
    files = [named_language(name)[1] for name in (*recipe.text.files, *recipe.text.dev)]
    kinds = document_kinds(replace(text_of(recipe), files=tuple(files)).paths())
    if kinds:
        names = " or ".join(NAMES[kind] for kind in DOCUMENTS if kind in kinds)
        each = ", file by file" if len(kinds) > 1 else ""
        log(f"documents: {names}{each} (detected; --documents overrides)")
    return kinds.pop() if len(kinds) == 1 else "auto"


@dataclass(frozen=True)
class TextDataset:
    """What a run over text trains with: tokens, rows and labels."""

    source: sources.ExampleSource
    short: sources.ExampleSource | None  # the rows of the first steps, where they are shorter
    held_out: sources.ExampleSource | None
    prepare: Callable[[sources.Drawn], Batch]
    corpus: Corpus
    dev: Corpus | None

    @property
    def texts(self) -> dict[str, Any]:
        """As `run.json` names them."""
        corpora = {"text": self.corpus, "held_out": self.dev}
        return {key: corpus and {"hash": corpus.hash, "tokens": corpus.size} for key, corpus in corpora.items()}


def tokens_of(text: TextFiles, tokenizer: Tokenizer, what: str, sentences: bool, control: Control) -> Corpus:
    """The tokens of a text, from the cache or made now; `what`: for the progress bar."""
    skipped = Skipped()
    with control.count(f"tokenizing {what}", "characters", "stopped while tokenizing; what is done is kept") as watched:
        waiting = "another process is tokenizing this text; waiting for it"
        corpus = tokenized(text, tokenizer, sentences, watched, lambda: control.note(waiting), skipped)
    log_notes(skipped.lines(), control.log)
    refuse((not corpus.size, f"{listed(text.files, 2)}: there is no text to learn from"))
    return corpus


def counted(texts: Iterable[str], step: Callable[[int], None]) -> Iterator[str]:
    """The texts, each of which moves a progress bar."""
    for text in texts:
        step(1)
        yield text


@contextmanager
def named_files(files: tuple[str, ...]) -> Iterator[None]:
    """Errors in the block name the files that were read, unless they do so themselves."""
    try:
        yield
    except UserError as error:
        if str(error).startswith(files):
            raise
        raise UserError(f"{listed(files, 2)}: {error}") from None


def _one_text(recipe: Recipe, tokenizer: Tokenizer, control: Control) -> tuple[Corpus, Corpus | None, LayOut]:
    """The tokens of a text, those held out, and how they become rows."""
    given, name, text = recipe.text, recipe.objective.name, text_of(recipe)
    sentences = name in ("mlm+nsp", "mlm+sop")
    corpus, dev = tokens_of(text, tokenizer, "the text", sentences, control), None
    if given.dev:
        dev = tokens_of(replace(text, files=given.dev), tokenizer, "the held-out text", sentences, control)
    elif given.holdout:
        train, rest = corpus.split(given.holdout)
        if train.size >= 2 and rest.size >= 2:
            corpus, dev = train, rest
    count = len(corpus.documents) - 1
    if name == "mlm+nsp" and count < 2:
        raise UserError("mlm+nsp needs at least two documents: give --documents block, or --objective mlm+sop")
    if given.documents == "line" and count > 100 and corpus.size / count < SHORT:
        lines = f"documents are lines of {corpus.size / count:.0f} tokens on average"
        control.note(f"{lines}; if they are parts of a longer text, give --documents block or --documents file")

    def lay_out(length: int, held: bool) -> sources.ExampleSource:
        return _rows(recipe, dev if held and dev else corpus, tokenizer, length, None if held else recipe.seed)

    return corpus, dev, lay_out


def gather_text(
    recipe: Recipe, tokenizer: Tokenizer, control: Control, model: LoadedModel | None = None, filled: bool = False
) -> TextDataset:
    """The dataset of a run; `model`: that reads it; `filled`: batches have few shapes, with as many labels each."""
    aim = recipe.objective
    name, length = aim.name or "next", aim.length or 0
    begin = 0 if model is None else model.config.begin or 0
    spans = SpanCorruption.of(tokenizer, begin, aim.mask, aim.span, recipe.seed) if name == "spans" else None
    # Less is read than the text has, so the text of a row is longer than the row.
    raw = (lambda size: size) if spans is None else spans.raw
    languages = languages_in(recipe)
    if languages is None or model is None:
        corpus, dev, lay_out = _one_text(recipe, tokenizer, control)
    else:

        def rows(corpus: Corpus, length: int, held: bool) -> sources.ExampleSource:
            return _rows(recipe, corpus, tokenizer, length, None if held else recipe.seed)

        def tokens(text: TextFiles, what: str) -> Corpus:
            return tokens_of(text, tokenizer, what, name in ("mlm+nsp", "mlm+sop"), control)

        corpus, dev, lay_out = by_language(recipe, languages, tokenizer, model, tokens, rows, control)
    source = lay_out(raw(length), False)
    short = None if aim.short is None else lay_out(raw(aim.short), False)
    held_out = lay_out(raw(length), True) if dev else None
    # One graph for all batches needs the longest length of rows, or a fixed number of labels.
    near = recipe.training.compile or (filled and 2 * source.mean >= length)  # to be compiled, now or later
    longest = length if near and not source.even else None
    prepare: Callable[[sources.Drawn], Batch]
    if name == "next":
        start, end = tokenizer.id_of("start"), tokenizer.id_of("end")
        prepare = partial(shift, longest=longest, start=None if start == end else start)
    elif name == "two-way":
        none = tokenizer.vocabulary <= FIRST_WORD
        refuse((none, "this vocabulary has characters alone, and no words to predict: train without --base"))
        prepare = partial(two_way, longest=longest)
    elif spans is not None:
        wanted = int(spans.wanted(np.array([spans.raw(length)]))[1][0])
        if wanted > len(spans.sentinels):
            there = f"the vocabulary has {len(spans.sentinels)} sentinels, so spans are fewer and longer"
            control.note(f"rows of {length} tokens would have {wanted} spans; {there}")
        prepare = partial(spans.apply, longest=longest)
    elif name == "permutation":
        prepare = partial(Permutation.of(tokenizer, aim.mask, recipe.seed).apply, longest=longest)
    else:
        # A generator has words of its own to show: where it is asked for one, it reads the mask alone.
        shown = 0.0 if name == "rtd" else 0.2
        masking = Masking.of(tokenizer, aim.mask, aim.whole_words, recipe.seed, shown)
        prepare = partial(masking.apply, longest=longest, filled=filled and source.even)
    return TextDataset(source, short, held_out, prepare, corpus, dev)


def next_frame(tokenizer: Tokenizer, stream: bool, lead: bool = False) -> sources.Frame:
    """The special tokens around a text of which each predicts the next; `lead`: one before the first text too."""
    start, end = tokenizer.id_of("start"), tokenizer.id_of("end")
    start = end if start is None else start
    # Where texts follow each other, one token that both ends and begins a text stands there once.
    before = () if start is None or (start == end and stream) else (start,)
    first = (start,) if lead and start is not None and not before else ()
    return sources.Frame(before, () if end is None else (end,), lead=first)


def _rows(recipe: Recipe, corpus: Corpus, tokenizer: Tokenizer, length: int, seed: int | None) -> sources.ExampleSource:
    """How documents become rows; `seed` None: for evaluation."""
    rows, name = recipe.objective.rows, recipe.objective.name
    if name in ("next", "two-way"):
        frame = next_frame(tokenizer, rows in ("stream", "carried"), lead=name == "next" and seed is None)
    elif name in ("mlm", "mlm+tlm", "rtd", "permutation"):
        left, right = frame_of(tokenizer)
        separator = tokenizer.id_of("separator")
        between = () if separator is None else (separator,)
        if name == "permutation":  # a text ends with a token that a model can generate
            between = () if (end := tokenizer.id_of("end")) is None else (end,)
        frame = sources.Frame((), between if rows in ("stream", "carried") else (), tuple(left), tuple(right))
        if rows == "apart":
            frame = sources.Frame(tuple(left), tuple(right))
        refuse((length <= frame.row, f"rows of {length} tokens have no room for a text"))
    elif name == "spans":
        frame = sources.Frame()  # as published: documents follow each other with nothing between them
    else:
        around = pair_frame(tokenizer)
        if around is None:
            raise UserError("the tokenizer has no separator token for pairs of texts; learn one of kind wordpiece")
        kind = "next" if name == "mlm+nsp" else "order"
        return sources.SentencePairs(corpus, around, length, kind, recipe.seed, rows != "documents")
    extra = 1 if name == "next" else 0
    framed = sources.Framed(corpus, frame)
    if rows == "carried" and name == "permutation":
        return sources.Streams(framed, length, True, 1, 0) if seed is not None else sources.held_out(framed, length, 0)
    if rows == "carried":
        return sources.Streams(framed, length, True) if seed is not None else sources.held_out(framed)
    if rows == "documents":
        return sources.DocumentRows(framed, length, extra)
    return sources.PackedRows(framed, length, extra, rows == "apart", seed)


def chosen_family(model: Mapping[str, Any], tokenizer: TokenizerSection) -> Family:
    """The family to train, with every choice of the model checked."""
    chosen = {key: model[key] for key in CHOICES if key in model}
    for key, value in chosen.items():
        refuse((not isinstance(value, str), f"[model]: {key} must be a text, not {value!r}"))
    if "base" in chosen:
        base, others = chosen["base"], listed([key for key in model if key != "base"])
        refuse(
            (len(model) > 1, f"--base brings its own model: {others} cannot be chosen with it"),
            (tokenizer != TokenizerSection(), "--base brings its own tokenizer: none can be chosen with it"),
        )
        if Path(base).is_file():
            vectors = is_file_of_vectors(Path(base))
            refuse((not vectors, f"{base}: is neither a model folder nor a text file of word vectors"))
            return FAMILIES["vectors"]
        folder = find_folder(base)
        refuse((not has_model(folder), f"{base!r} is not a model folder: it has no config.json"))
        return family_of(read_published(folder)[0], base)[0]
    check_has_model(model)
    sizes = sizes_of(model)
    family, config = find_size(chosen["family"], chosen.get("size"), sizes.get("heads"))
    check_config(family, changed(config, sizes, "[model]"))
    if "vectors" in chosen:
        able = listed([each.name for each in FAMILIES.values() if fits_vectors(each)])
        words = tokenizer.folder is not None or tokenizer.kind in (None, "word")
        refuse(
            (not fits_vectors(family), f"--vectors: {family.name} does not take word vectors; {able} do"),
            (not words, f"--vectors: word vectors need a word vocabulary, not tokenizer.kind {tokenizer.kind}"),
        )
    return family


def sizes_of(model: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in model.items() if key not in CHOICES}


def size_of(config: Any) -> str:
    """A model's size in short: layers x width, or what it has of these."""
    sizes = [str(size) for size in (config.layers, config.width) if size]
    return " x ".join(sizes) if len(sizes) == 2 else f"width {sizes[0]}" if sizes else "counts"


def sized(model: Mapping[str, Any], family: Family, pairs: int, log: Log) -> dict[str, Any]:
    """The choices of an encoder-decoder from nothing, with a size by the number of pairs where none is asked for."""
    settings = dict(model)
    fields = family.config.__dataclass_fields__
    chosen = {"size", "width", "layers"} & set(settings) or settings.get("family") != family.name
    if chosen or "base" in settings or not {"layers", "heads", "inner"} <= set(fields) or pairs >= MANY:
        return settings
    settings["size"] = "3x256" if pairs < FEW else "4x384"
    dropouts = {name: DROPOUT for name in ("dropout", "embedding_dropout") if name in fields and name not in settings}
    dropout = f" with a dropout of {DROPOUT}" if dropouts else ""
    log(f"size: {settings['size']}{dropout}, for {pairs:,} pairs (--size overrides)")
    return settings | dropouts


def both_ways(model: Mapping[str, Any], family: Family, log: Log) -> dict[str, Any]:
    """The choices of a recurrent network that labels texts from nothing: small, and reading both ways by default."""
    settings = dict(model)
    if not isinstance(family.standard.get("cell"), str) or "base" in settings:
        return settings
    if not ({"size", "width", "layers"} & set(settings)) and settings.get("family") == family.name:
        settings |= {"layers": 1, "width": 256}
        log("size: 1x256 (--size overrides)")
    # Of a long text the last states know its ends; the largest of each number know where something stood out.
    return {"bidirectional": True, "pooling": "max", "dropout": LABELLED_DROPOUT, **settings}


def vocabulary_for(
    path: Path, given: TokenizerSection, family: Family, texts: Iterable[str], like: Tokenizer | None, control: Control
) -> Tokenizer:
    """The folder's own vocabulary, the one asked for, or one learned from the texts, cut into words as `like` does."""
    if (path / "tokenizer_config.json").exists():  # the last of its files to be written
        return load_tokenizer(path)
    if given.folder is not None:
        tokenizer = load_tokenizer(Path(given.folder))
    else:
        kind = given.kind or (family.tokenizer if like is None else "word")
        if given.kind is None and kind == "unigram" and find_spec("sentencepiece") is None:
            kind = "bpe"
            control.note("learning a bpe vocabulary; unigram, the usual one, needs: pip install 'weft[data]'")
        # A model that counts learns nothing for each word, so it may know all of them.
        every = family.counts and given.size is None and kind in ("word", "whitespace", "character")
        usual = family.vocabulary if kind == family.tokenizer and like is None else {}
        size = given.size or (MAX_VOCABULARY if every else usual.get("size", VOCABULARY))
        least = 1 if every else usual.get("min_count")
        least = least if given.min_count is None else given.min_count
        message = "stopped while learning the vocabulary"
        with control.count(f"learning a {kind} vocabulary", "documents", message) as step:
            if like is not None:
                tokenizer = learn_like(counted(texts, step), like, size, least)
            else:
                lowercase = usual.get("lowercase") if given.lowercase is None else given.lowercase
                extra = [sentinel(number) for number in reversed(range(family.sentinels))]
                options: dict[str, Any] = {"lowercase": lowercase, "min_count": least, "extra": extra}
                if family.specials is not None:
                    options |= {"specials": family.specials, "around": family.around}
                tokenizer = learn(counted(texts, step), kind, size, **options)
        fewer = f" (of {size} requested; the text has no more)" if given.size and tokenizer.vocabulary < size else ""
        control.log(f"vocabulary: {tokenizer.kind}, {tokenizer.vocabulary:,} tokens{fewer}")
    path.mkdir(exist_ok=True)
    tokenizer.save(path)
    return tokenizer


def fits_vectors(family: Family) -> bool:
    """Whether the table of a family may be as wide as any vectors, and its tokens may be words."""
    free = not family.config.has("heads") and family.config.has("width")
    return free and family.specials is None and not family.reads and not family.counts


def find_vectors(name: str) -> Path:
    """A folder or a file of word vectors, as its first lines or its config tell."""
    path = Path(name).expanduser()
    if not path.is_dir() and not is_file_of_vectors(path):
        what = "is not a file of word vectors" if path.exists() else "there is no such folder or file of word vectors"
        raise UserError(f"{path}: {what}")
    return path


def from_scratch(
    run: Run, recipe: R, heads: Heads, settings: dict[str, Any], vocabularies: Learn, control: Control, on_bad_row: str
) -> tuple[R, LoadedModel]:
    """A new model with these vocabularies, word vectors in its table; and the recipe with their width."""
    given, vectors, path = dict[str, Any](recipe.model), None, Path()
    if "vectors" in given and run.checkpoints().newest() is None:  # of a resumed run the weights are in the checkpoint
        path = find_vectors(given["vectors"])
        vectors = open_folder(path) if path.is_dir() else open_vectors(path, {}, on_bad_row=on_bad_row)
        words = vectors.tokenizer is not None and vectors.tokenizer.kind in ("word", "whitespace")
        key = "embedding_width" if find_size(given["family"])[0].config.has("embedding_width") else "width"
        width, asked, family = vectors.config.width, given.get(key), vectors.family.name
        refuse(
            (family != "vectors", f"{path}: is a model folder of {family}, not of word vectors"),
            (not words, f"{path}: has no vocabulary of words"),
            (asked not in (None, width), f"{path}: its vectors have width {width}, not {asked}; leave out model.{key}"),
        )
        given[key] = width
    tokenizers = vocabularies(None if vectors is None else vectors.tokenizer)
    target = tokenizers[1] if len(tokenizers) > 1 else None
    options: dict[str, Any] = {"size": given.get("size"), "settings": {**sizes_of(given), **settings}, "heads": heads}
    options |= {"seed": recipe.seed, "where": "[model]", "target_tokenizer": target}
    model = new(str(given["family"]), tokenizers[0] if tokenizers else None, **options).opened
    if vectors is not None:
        fill_table(model.network, tokenizers[0], vectors, path, recipe.seed, control.log)
    return replace(recipe, model=given), model


@torch.no_grad()
def fill_table(network: nn.Module, tokenizer: Tokenizer, vectors: LoadedModel, path: Path, seed: int, log: Log) -> None:
    """Put the vectors of the words that have one into the table of tokens; the others are drawn to vary as much."""
    assert vectors.tokenizer is not None
    places, matrix = vectors.tokenizer.tokens, vectors.network.get_parameter("tokens.weight").detach().float()
    specials = {name for name in vars(tokenizer.roles).values() if name is not None}
    words = [item for item in sorted(tokenizer.tokens.items(), key=lambda item: item[1]) if item[0] not in specials]
    pairs = [(number, places[word]) for word, number in words if word in places]
    missing = [shown(word, 30) for word, _ in words if word not in places]
    refuse((not pairs, f"{path}: has none of the {len(missing):,} words of the data: {listed(missing, 5)}"))
    ours, theirs = (torch.tensor(numbers) for numbers in zip(*pairs, strict=True))
    table = network.get_parameter("tokens.weight")
    spread = float(matrix[theirs].double().std(correction=0))
    filled = torch.randn(table.shape, generator=torch.Generator().manual_seed(seed)) * spread
    filled[ours] = matrix[theirs]
    unknown, there = tokenizer.id_of("unknown"), vectors.tokenizer.id_of("unknown")
    if unknown is not None and there is not None:  # a file without one has been given the mean
        filled[unknown] = matrix[there]
    table.copy_(filled)
    for name, buffer in network.named_buffers():
        if name == "fixed":  # a second table, which is not trained
            buffer.copy_(filled)
    absent = f"; missing {len(missing):,}: {listed(missing, 5)}" if missing else ""
    log(f"vectors: {len(pairs):,} of {len(words):,} words have one{absent}")


def tasks_for(family: Family) -> tuple[str, ...]:
    """The built-in tasks that a family can be fine-tuned for."""
    return tuple(name for name in SUPERVISED if task_class(name).fits(family))


@dataclass(frozen=True)
class Beginning:
    """A model to train, and whether the head of its task is new, or all of it."""

    opened: LoadedModel
    fresh: bool
    scratch: bool = False
    note: str | None = None  # what of the base does not stay


def from_folder(
    folder: Path,
    wanted: Heads,
    head: str,
    same: tuple[str, tuple[str, ...]] | None,
    seed: int,
    mix: bool = False,
    layers: str | None = None,
) -> Beginning:
    """A model folder with the wanted heads; those that have learned the `same` task and labels stay (None: all)."""
    there = open_folder(folder)
    card, labels = there.card, there.card.labels or ()
    heads = {head: there.config.vocabulary if count is None else count for head, count in wanted.items()}
    keeps = same is None or (card.task, labels) == same
    keep = [head for head in heads if there.heads.get(head) == heads[head] and (keeps or head == "words")]
    other = layers is not None and (there.config.mix or layers != there.config.head_layers)
    if other or (mix and not there.config.mix):
        keep = [head for head in keep if head == "words"]  # the others have learned to read other layers
    new_heads = {head: count for head, count in heads.items() if head not in keep}
    opened = open_folder(folder, new_heads, keep, seed, mix, head_layers=layers) if new_heads else there
    opened.network.float()
    note = None
    if same is not None and head in new_heads and head in there.heads and card.task is not None:
        if labels and same[1] and labels != same[1]:
            before, after = (shown(listed(names, 8), 120) for names in (labels, same[1]))
            note = f"labels {before} are replaced by {after}"
        elif card.task != same[0]:
            note = f"the head for {card.task} is replaced by one for {same[0]}"
    return Beginning(opened, head in new_heads, note=note)
