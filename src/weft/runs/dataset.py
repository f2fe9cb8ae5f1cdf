"""The data of a run: rows of tables for a task, or the tokens of a text, read, checked, and split."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from weft.data import rows as sources
from weft.data.dataset import Dataset, RunRows, check_rows, examples_of, is_section, split, split_whole
from weft.data.masking import Masking, SpanCorruption, shift
from weft.data.shards import Corpus, TextFiles, tokenized
from weft.data.tables import Table
from weft.errors import UserError, listed
from weft.nn.rows import Batch
from weft.progress import Log, log_notes
from weft.runs.recipes import Recipe, TableSection, TaskRecipe, overlaid
from weft.tasks.base import Example, Normalization, Task
from weft.tasks.registry import task_class
from weft.text.records import DOCUMENTS, NAMES, document_kinds
from weft.text.rows import Problems, Skipped
from weft.text.tables import USUAL, folded
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.windows import frame as frame_of
from weft.text.windows import pair_frame
from weft.training.signals import Control

SIDES = ("source", "target", "dev_source", "dev_target")  # of files that belong together line for line
DEV = ("dev", "dev_source", "dev_target")
FEW = 12  # tokens; documents that are shorter on average are probably lines of something longer
Values = Mapping[str, Any]


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
    first = next(table.records(Skipped()), None)
    where = table.name
    if first is None:
        raise UserError(f"{where}: there are no rows")
    task, needed = task.columns(first, table.columns)
    if note := task.column_note(needed):
        control.note(f"{where}: {note}")
    with control.count(f"reading {where}", "rows", "stopped while reading") as watched:
        examples = list(examples_of(table, needed, task.read, skipped, watched))
    log_notes(skipped.lines(), control.log)
    return task, examples


def gather(recipe: TaskRecipe, control: Control) -> tuple[Task, Dataset[Example]]:
    """The task and the dataset of a run; some rows are held out where no others are given to evaluate on."""
    data, table, skipped = recipe.data, table_of(recipe.data), Skipped()
    fresh = task_class(recipe.task.name).from_recipe(recipe.task, recipe.data)
    task, examples = read_examples(fresh, table, skipped, control)
    # Names that no other file would be expected to use are remembered with the model.
    columns = {ours: theirs for ours, theirs in skipped.columns.items() if folded(theirs) not in USUAL}
    where = table.name
    check_rows(len(examples), where)
    hashes = {"data": table.hash()}
    normalization = task.normalization(examples, recipe.task.labels)
    dev_normalization = deepcopy(normalization)  # which counts what it changes in one file
    examples = normalized(examples, normalization, where, control.log)
    examples = task.select(examples, lambda note: control.note(f"{where}: {note}"))
    check_rows(len(examples), where)
    dev, dev_table = list[Example](), None
    if data.dev or data.dev_source or data.dev_target:
        dev_table = table_of(data, dev=True)
        _, dev = read_examples(task, dev_table, Skipped(), control)
        dev = normalized(dev, dev_normalization, dev_table.name, control.log)
    task = task.fit_labels(examples, recipe.task.labels)
    if note := task.label_note():
        control.note(f"{where}: {note}")
    examples = checked(task, examples, data.on_bad_row, control.log)
    check_rows(len(examples), where)
    if dev_table is None:
        train, held = _held_out(task, examples, data)
        places = [examples[number].where for number in held]
        return task, Dataset(examples, train, held, hashes, places, columns)
    dev = checked(task, dev, data.on_bad_row, control.log)
    if not dev:
        raise UserError(f"{dev_table.name}: there are no rows")
    if note := task.swap_note(dev, dev_table.name):
        control.note(note)
    count = len(examples)
    hashes["dev"] = dev_table.hash()
    return task, Dataset([*examples, *dev], range(count), range(count, count + len(dev)), hashes, columns=columns)


def _held_out(task: Task, examples: Sequence[Example], data: TableSection) -> tuple[list[int], list[int]]:
    """Numbers of the examples to learn from, and of those held out."""
    groups = task.groups(examples)
    if task.whole_groups:
        return split_whole(groups, data.holdout, data.split)
    train, held = split(groups, data.holdout, data.split)
    learned = {examples[number].texts for number in train}  # a row that is there twice must not be on both sides
    twice = {number for number in held if examples[number].texts in learned}
    if len(twice) == len(held):
        return train, held
    return sorted({*train, *twice}), [number for number in held if number not in twice]


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
    return TextFiles(t.files, t.column, t.delimiter, t.documents, t.on_bad_row, t.encoding)


def documents_of(recipe: Recipe, log: Log) -> str:
    """What the documents of a recipe's text files are, for the recipe in the run folder; logged where it was open."""
    if recipe.text.documents != "auto":
        return recipe.text.documents
    kinds = document_kinds(replace(text_of(recipe), files=(*recipe.text.files, *recipe.text.dev)).paths())
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
    if not corpus.size:
        raise UserError(f"{listed(text.files, 2)}: there is no text to learn from")
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


def gather_text(
    recipe: Recipe, tokenizer: Tokenizer, control: Control, begin: int | None = None, filled: bool = False
) -> TextDataset:
    """The dataset of a run; `begin`: the first token of a decoder; `filled`: full rows have as many labels each."""
    aim, given = recipe.objective, recipe.text
    name, length = aim.name or "next", aim.length or 0
    spans = SpanCorruption.of(tokenizer, begin or 0, aim.mask, aim.span, recipe.seed) if name == "spans" else None
    text, sentences = text_of(recipe), name in ("mlm+nsp", "mlm+sop")
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
    if given.documents == "line" and count > 100 and corpus.size / count < FEW:
        lines = f"documents are lines of {corpus.size / count:.0f} tokens on average"
        control.note(f"{lines}; if they are parts of a longer text, give --documents block or --documents file")
    # Less is read than the text has, so the text of a row is longer than the row.
    raw = (lambda size: size) if spans is None else spans.raw
    source = _rows(recipe, corpus, tokenizer, raw(length), recipe.seed)
    short = None if aim.short is None else _rows(recipe, corpus, tokenizer, raw(aim.short), recipe.seed)
    held_out = _rows(recipe, dev, tokenizer, raw(length), None) if dev else None
    # One graph for all batches needs the longest length of rows, or a fixed number of labels.
    longest = length if recipe.training.compile and not source.even else None
    prepare: Callable[[sources.Drawn], Batch]
    if name == "next":
        start, end = tokenizer.id_of("start"), tokenizer.id_of("end")
        prepare = partial(shift, longest=longest, start=None if start == end else start)
    elif spans is not None:
        wanted = int(spans.wanted(np.array([spans.raw(length)]))[1][0])
        if wanted > len(spans.sentinels):
            there = f"the vocabulary has {len(spans.sentinels)} sentinels, so spans are fewer and longer"
            control.note(f"rows of {length} tokens would have {wanted} spans; {there}")
        prepare = partial(spans.apply, longest=longest)
    else:
        masking = Masking.of(tokenizer, aim.mask, aim.whole_words, recipe.seed)
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
    if name == "next":
        frame = next_frame(tokenizer, rows in ("stream", "carried"), lead=seed is None)
    elif name == "mlm":
        left, right = frame_of(tokenizer)
        separator = tokenizer.id_of("separator")
        between = () if separator is None else (separator,)
        frame = sources.Frame((), between if rows == "stream" else (), tuple(left), tuple(right))
        if rows == "apart":
            frame = sources.Frame(tuple(left), tuple(right))
        if length <= frame.row:
            raise UserError(f"rows of {length} tokens have no room for a text")
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
    if rows == "carried":
        return sources.Streams(framed, length, True) if seed is not None else sources.held_out(framed)
    if rows == "documents":
        return sources.DocumentRows(framed, length, extra)
    return sources.PackedRows(framed, length, extra, rows == "apart", seed)
