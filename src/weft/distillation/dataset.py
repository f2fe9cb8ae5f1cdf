"""What a student learns from: texts, rows, copies with some words replaced, and the cached outputs of its teachers."""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from weft.checkpoint.card import Card
from weft.checkpoint.folder import LoadedModel
from weft.config import read_record
from weft.data.chance import key_of, scrambled, shuffled, uniform
from weft.data.columns import file_of
from weft.data.dataset import FEW, Dataset, split
from weft.data.masking import inside_words
from weft.data.shards import TEACHERS, CacheFolder, TextFiles, manifest_of
from weft.data.tables import Table
from weft.distillation.recipe import DistillDataSection, DistillRecipe
from weft.errors import UserError, listed, shown
from weft.files import check_readable, reason, whole_file, write_json
from weft.nn.heads import in_full
from weft.progress import Log, log_notes, to_logger
from weft.runs.preparation import checked, normalized, table_of
from weft.tasks.base import Example, Task, TeacherArrays
from weft.tasks.evaluate import Reader
from weft.tasks.fill import filler
from weft.tasks.forward import batches, chunked, framing_for, window_for
from weft.text.records import Record, read_texts
from weft.text.rows import Skipped
from weft.text.sources import folder_digest
from weft.text.windows import TextWindow, pieces
from weft.training.run import Run, tokenizer_hash
from weft.training.signals import Control

READS = "teacher_reads.json"  # in the inside of a run folder
Advance = Callable[[int], None]
Shard = tuple[str, Sequence[Any]]  # the name of its file, and its examples


@dataclass(frozen=True)
class Teacher:
    """A teacher and its folder."""

    model: LoadedModel
    folder: Path
    digest: str  # of all its files but the record of its training

    @classmethod
    def of(cls, model: LoadedModel, folder: Path) -> Teacher:
        return cls(model, folder, folder_digest(folder))


@dataclass(frozen=True, kw_only=True)
class ReadRecord:
    """`teacher_reads.json`."""

    read: int = 0
    shard: str | None = None  # that a teacher is reading: the file that is there when it has been written ...
    count: int = 0  # ... and its number of examples


class TeacherReads:
    """Examples, or places of a text, that a teacher had to read, counted over all processes of a run."""

    def __init__(self, inside: Path | None = None, log: Log = to_logger) -> None:
        self.path, self.log = None if inside is None else inside / READS, log
        record = ReadRecord() if self.path is None or not self.path.is_file() else read_record(ReadRecord, self.path)
        self.total = record.read
        # A process that was killed right after it wrote a shard had no time left to count it.
        if record.shard is not None and Path(record.shard).exists():
            self.total += record.count

    @contextmanager
    def shard(self, path: Path, count: int) -> Iterator[None]:
        """A teacher reads one shard; if it is not written in the end it does not count, since it is read again."""
        self._note(shard=str(path.absolute()), count=count)
        try:
            yield
            self.total += count
        finally:
            self._note()

    def _note(self, **more: Any) -> None:
        if self.path is not None:
            write_json(self.path, {"read": self.total, **more})

    def shards(
        self, key: list[Any], source: str, shards: Sequence[Shard], write: Callable[[Path, Any], None], advance: Advance
    ) -> tuple[list[Path], int]:
        """The files of these shards, written where missing, and how many examples that took; `advance` may raise."""
        waiting = "weft: note: another process runs this teacher; waiting for it"
        cache, paths, read = CacheFolder(TEACHERS, key, lambda: self.log(waiting)), list[Path](), 0

        def make(path: Path, examples: Sequence[Any]) -> None:
            with self.shard(manifest_of(path), len(examples)):
                write(path, examples)
                cache.seal(path, source)

        for name, examples in shards:
            paths.append(cache.path / name)
            write_it = partial(make, paths[-1], examples)
            read += len(examples) if cache.make(manifest_of(paths[-1]), write_it, lambda: advance(0)) else 0
        cache.touch()
        return paths, read


@dataclass(frozen=True)
class Distillation:
    """A run folder and its recipe, the teachers, and whom to report to."""

    run: Run
    recipe: DistillRecipe
    teachers: Sequence[Teacher]
    device: torch.device
    control: Control

    @property
    def models(self) -> list[LoadedModel]:
        return [teacher.model for teacher in self.teachers]

    @property
    def teacher(self) -> LoadedModel:
        """The first of them, whose layers, vocabulary and window a student may take."""
        return self.teachers[0].model

    @cached_property
    def reads(self) -> TeacherReads:
        return TeacherReads(self.run.inside, self.control.log)

    @property
    def captures(self) -> bool:
        """Whether passes are played back from CUDA graphs."""
        return self.device.type == "cuda" and not self.recipe.training.compile

    def card(self, card: Card, **more: Any) -> Card:
        """The card of a student, by the names of what it was made from; where that lies stays private."""
        teacher = ", ".join(Path(folder).name for folder in self.recipe.teacher.folders)
        return replace(card, base=Path(self.recipe.student.model).name, teacher=teacher, **more)

    def same(self, hashes: Mapping[str, str], student: LoadedModel) -> dict[str, Any]:
        """What must not change when the run is resumed."""
        data = {**hashes, "teacher": [teacher.digest for teacher in self.teachers]}
        return {"data": data, "tokenizer": tokenizer_hash(student)}


FORMAT = 2
SHARD = 1024  # examples in a file
ENDS = ".ends"  # after the name of an array: where its part for each example ends


@dataclass(frozen=True, eq=False)
class TeacherOutputs(Sequence[TeacherArrays]):
    """The outputs for some examples, read one by one when they are asked for."""

    read: Callable[[int], TeacherArrays]
    numbers: Sequence[int]
    forwards: int = 0  # of all teachers: examples that one of them had to read

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, place: Any) -> Any:
        numbers = self.numbers[place]
        return TeacherOutputs(self.read, numbers) if isinstance(place, slice) else self.read(numbers)

    def select(self, numbers: Sequence[int]) -> TeacherOutputs:
        """The outputs for the examples with these numbers."""
        return TeacherOutputs(self.read, [self.numbers[number] for number in numbers])


class ShardReader:
    """The outputs of one teacher by number of the example; one shard is in memory at a time."""

    def __init__(self, paths: Sequence[Path], sizes: Iterable[int]) -> None:
        self.paths, self.starts = paths, [0, *accumulate(sizes)]
        self._number, self._arrays = -1, dict[str, NDArray[Any]]()

    def __call__(self, place: int) -> TeacherArrays:
        number = bisect_right(self.starts, place) - 1
        if number != self._number:
            self._arrays, self._number = read_shard(self.paths[number]), number
        place -= self.starts[number]
        outputs = {}
        for name, ends in self._arrays.items():
            if name.endswith(ENDS):
                begin = ends[place - 1] if place else 0
                outputs[name.removesuffix(ENDS)] = self._arrays[name.removesuffix(ENDS)][begin : ends[place]]
        return outputs


def teacher_outputs(
    context: Distillation, task: Task, examples: Sequence[Example], parts: Sequence[int]
) -> TeacherOutputs:
    """The outputs of the teachers for all examples, from the cache as far as it has them."""
    teachers, control = context.teachers, context.control
    if task.joint and len(teachers) > 1:
        digest = hashlib.sha256(" ".join(teacher.digest for teacher in teachers).encode()).hexdigest()
        teachers = [replace(teachers[0], digest=digest)]
    ends, shards = list(accumulate(parts)), list[Shard]()
    assert ends[-1] == len(examples)
    for begin, end in zip([0, *ends], ends, strict=False):  # each part anew: it is cached whatever stands beside it
        for place in range(begin, end, SHARD):
            shard = examples[place : min(place + SHARD, end)]
            keys = "".join(json.dumps(task.teacher_key(example)) + "\n" for example in shard)
            shards.append((f"{hashlib.sha256(keys.encode()).hexdigest()[:32]}.safetensors", shard))
    message = "stopped while the teacher reads; its outputs so far are cached"
    forwards, readers = 0, list[ShardReader]()
    for number, teacher in enumerate(teachers, 1):
        name = "teacher" if len(teachers) == 1 else f"teacher {number}"
        with control.count(f"{name} reads", "texts", message) as advance:
            paths, read = _cached(context, task, teacher, shards, advance)
        cached = ", all from the cache" if not read else ", the others from the cache" if read < len(examples) else ""
        control.log(f"{name}: {len(examples):,} texts, {read:,} read anew{cached}")
        forwards += read
        readers.append(ShardReader(paths, [len(shard) for _, shard in shards]))
    read_one = readers[0] if len(readers) == 1 else lambda place: task.average([read(place) for read in readers])
    return TeacherOutputs(read_one, range(len(examples)), forwards)


def _cached(
    context: Distillation, task: Task, teacher: Teacher, shards: Sequence[Shard], advance: Advance
) -> tuple[list[Path], int]:
    """The shards of one teacher, written where they are missing; and how many examples it read for that."""
    windows = framing_for(teacher.model)

    def outputs(examples: Sequence[Example]) -> Iterator[TeacherArrays]:
        for chunk in chunked(examples, lambda example: sum(map(len, example.texts))):
            advance(len(chunk))
            yield from task.teacher_outputs(teacher.model, windows, chunk)

    def write(path: Path, examples: Sequence[Example]) -> None:
        _write(path, outputs(examples))

    key = [FORMAT, SHARD, teacher.digest, task.name, task.teacher_settings]
    return context.reads.shards(key, f"teacher {teacher.folder}", shards, write, advance)


def _write(path: Path, outputs: Iterable[TeacherArrays]) -> None:
    """A shard: the arrays of all its examples one after the other, and where those of each end."""
    rows = list(outputs)
    arrays: dict[str, NDArray[Any]] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        like = next(row[name] for row in rows if name in row)
        empty = np.zeros((0, *like.shape[1:]), dtype=like.dtype)
        parts = [np.asarray(row.get(name, empty), dtype=like.dtype) for row in rows]
        arrays[name] = np.ascontiguousarray(np.concatenate(parts))
        arrays[name + ENDS] = np.cumsum([len(part) for part in parts], dtype=np.int64)
    with whole_file(path) as file:
        file.write(save(arrays))


def read_shard(path: Path, load: Callable[[Path], Any] = load_file) -> Any:
    """A shard as `load` reads it; one that is damaged is named."""
    check_readable(path)
    try:
        return load(path)
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"{path}: damaged ({reason(error)}); remove it and try again") from None


ENOUGH = 40  # rows with targets; fewer tell less about a student than its teacher does


def gather(task: Task, data: DistillDataSection, control: Control) -> Dataset[Example]:
    """All texts and rows of a distillation; some are held out where no others are given."""
    examples, hashes, parts = list[Example](), dict[str, str](), list[int]()

    def add(name: str, files: TextFiles | Table, more: list[Example]) -> None:
        examples.extend(more)
        hashes[name] = files.hash()
        parts.append(len(more))

    if data.text:
        if task.pair:
            columns = listed(task.input_columns(Record({}, ""), {}))
            raise UserError(f"a teacher for {task.name} reads pairs: give --data FILE with the columns {columns}")
        files = TextFiles(data.text)
        add("text", files, read_lines(files, data, data.format, control))
    if (data.source or data.target) and not task.writes:
        raise UserError(f"a teacher for {task.name} reads no source: give --text or --data, not --source")
    if data.target:
        table = Table.parallel(data.source, data.target, data.on_bad_row, data.encoding)
        add("source", table, read_rows(task, table, control))
    elif data.source:
        files = TextFiles(data.source, on_bad_row=data.on_bad_row, encoding=data.encoding)
        add("source", files, read_lines(files, data, None, control))
    if data.files:
        table = table_of(replace(data, source=(), target=()))
        add("data", table, read_rows(task, table, control))
    count = len(examples)
    if count < FEW:
        where = listed([*data.text, *data.source, *data.files], 2)
        raise UserError(f"{where}: {count} texts are too few to learn from; {FEW} are the least")
    if data.dev or data.dev_source or data.dev_target:
        table = table_of(data, dev=True)
        rows = read_rows(task, table, control)
        labeled = [row for row in rows if task.has_target(row)]
        add("dev", table, labeled or rows)
        numbers = range(count), range(count, len(examples))
        return Dataset(examples, *numbers, hashes, parts=tuple(parts), labeled_dev=bool(labeled))
    known = [number for number, example in enumerate(examples) if task.has_target(example)]
    by_labels = len(known) >= ENOUGH
    open_to: Sequence[int] = known if by_labels and not task.reads_tables else range(count)
    rows = [examples[number] for number in open_to]
    grouped = by_labels or task.whole_groups or task.reads_tables
    how = data.holdout, data.split
    taken, places = task.split(rows, *how) if grouped else split([""] * len(rows), *how)
    held = {open_to[place] for place in places}
    between = set(open_to) - held - {open_to[place] for place in taken}  # they overlap with what is held out
    learned = {example.texts for number, example in enumerate(examples) if number not in held}
    # A text that is there twice must not be on both sides.
    held = {number for number in held if examples[number].texts not in learned} or held
    train = [number for number in range(count) if number not in held and number not in between]
    where_held = [examples[number].where for number in sorted(held)]
    return Dataset(examples, train, sorted(held), hashes, where_held, parts=tuple(parts), labeled_dev=by_labels)


def read_lines(files: TextFiles, data: DistillDataSection, format: str | None, control: Control) -> list[Example]:
    """Unlabeled texts, one on each line of a file or in its column."""
    skipped, examples = Skipped(), list[Example]()
    reading: dict[str, Any] = {name: vars(data)[name] for name in ("delimiter", "on_bad_row", "encoding")}
    reading |= {"column": data.columns.get("text", "text"), "format": format, "skipped": skipped}
    with control.count("reading the texts", "texts", "stopped while reading") as advance:
        for text in read_texts(files.paths(), **reading):
            examples.append(Example((text.text,), None, text.where))
            advance(1)
    log_notes(skipped.lines(), control.log)
    if not examples:
        raise UserError(f"{listed(files.files, 2)}: there is no text in it: nothing to learn from")
    return examples


def read_rows(task: Task, table: Table, control: Control) -> list[Example]:
    """All rows of a table, with or without targets; labels must be those of the teacher."""
    skipped, names = Skipped(), set[str]()

    def begin(record: Record) -> tuple[Mapping[str, str], Callable[[Record], Example]]:
        reader = Reader.of(task, record, table.columns, skipped.note)
        names.update(reader.inputs, reader.columns)
        return reader.inputs, reader.read

    with control.count(f"reading {table.name}", "rows", "stopped while reading") as advance:
        examples = list(task.read_table(table, begin, skipped, advance))
    log_notes(skipped.lines(), control.log)
    if not examples:
        raise UserError(f"{table.name}: there are no rows")
    examples = normalized(examples, task.normalization(), table.name, control.log)
    lost = [name for name in table.columns if name not in names]
    if lost:
        raise UserError(f"{table.name}: no column {shown(table.columns[lost[0]])!r}, which --column says is {lost[0]}")
    labeled = [example for example in examples if task.has_target(example)]
    labels = {label for example in labeled for label in task.labels_of(example)}
    if labels and not labels & set(task.labels):
        ours, where = listed([shown(label) for label in sorted(labels)], 6), file_of(labeled[0].where)
        raise UserError(f"{where}: no common labels: its rows have {ours}, the teacher has {listed(task.labels, 6)}")
    return checked(task, examples, table.on_bad_row, control.log)


def part_of(dataset: Dataset[Example], share: float, seed: int) -> Dataset[Example]:
    """The dataset with a share of its examples to learn from; a greater share holds every smaller one."""
    if share >= 1:
        return dataset
    numbers = dataset.train_numbers
    order = shuffled(key_of(seed, "curve"), np.arange(len(numbers)), len(numbers))
    kept = order[: max(1, round(share * len(numbers)))].tolist()
    return replace(dataset, train_numbers=sorted(numbers[place] for place in kept))


MIN_SHARE, MAX_SHARE = 0.15, 0.3  # of the words of a text that are replaced (Jiao et al., 2020)
TOP = 10  # guesses of a model that one is drawn from
CHUNK = 256  # texts that are held at a time
SCORES = 1 << 24  # logits that are held at once
COPIES = 128  # numbers that each text has for its copies
WHOLE = re.compile(r"\w*[^\W_]\w*")  # a word has a letter or a digit
Spans = Sequence[tuple[int, int]]  # words, by characters
Words = Callable[[Sequence["Gaps"]], list[list[str]]]  # other words for those of each text


def augmented(
    task: Task, examples: Sequence[Example], times: int, by: LoadedModel | None, seed: int, control: Control
) -> list[Example]:
    """`times` copies of each example, without targets; words by a masked language model, or those of the texts."""
    if not 0 <= times < COPIES:
        raise UserError(f"a text may come between 0 and {COPIES - 1} times again, not {times}")
    source = frequent(examples) if by is None else Guesses(by).words
    numbers = ((example, number * COPIES + copy) for number, example in enumerate(examples) for copy in range(times))
    key, copied = key_of(seed, "augment"), list[Example]()
    with control.count("replacing words", "texts", "stopped while replacing words") as advance:
        while chunk := list(islice(numbers, CHUNK)):
            gaps = [_gaps(task, example, int(scrambled(key, np.array([number]))[0])) for example, number in chunk]
            words = iter(source([gap for sides in gaps for gap in sides.values()]))
            for (example, _), sides in zip(chunk, gaps, strict=True):
                texts = list(zip(example.texts, task.word_spans(example), strict=True))
                for side, gap in sides.items():
                    texts[side] = gap.filled(next(words))
                copied.append(task.with_texts(example, [text for text, _ in texts], [spans for _, spans in texts]))
            advance(len(chunk))
    return copied


@dataclass(frozen=True)
class Gaps:
    """Words of one text that are replaced."""

    text: str
    words: Spans  # all of the text
    numbers: list[int]  # of those that are replaced
    chances: list[float]  # from 0 to 1, one for each of them

    @property
    def spans(self) -> Spans:
        return [self.words[number] for number in self.numbers]

    def filled(self, words: Sequence[str]) -> tuple[str, Spans]:
        """The text with other words, in capitals where the old ones are, and where all of its words stand now."""
        new = dict(zip(self.numbers, words, strict=True))
        text, places, last = "", list[tuple[int, int]](), 0
        for number, (begin, end) in enumerate(self.words):
            text += self.text[last:begin]
            old = self.text[begin:end]
            word = new.get(number, old)
            if number in new and len(old) > 1 and old.isupper():
                word = word.upper()
            elif number in new and old[:1].isupper():
                word = word[:1].upper() + word[1:]
            places.append((len(text), len(text) + len(word)))
            text, last = text + word, end
        return text + self.text[last:], places


def _gaps(task: Task, example: Example, identity: int) -> dict[int, Gaps]:
    """Which words of which text are replaced: of a pair, of the first, of the second, or of both."""

    def chances(what: str, count: int = 1) -> list[float]:
        with np.errstate(over="ignore"):
            return uniform(key_of("augment", what), np.uint64(identity) + np.arange(count, dtype=np.uint64)).tolist()

    words = task.word_spans(example)
    open_to = [
        [number for number, (a, b) in enumerate(spans) if any(map(str.isalnum, text[a:b]))]
        for text, spans in zip(example.texts, words, strict=True)
    ]
    sides = [side for side, numbers in enumerate(open_to) if numbers]
    if len(sides) == 2:
        sides = ([0], [1], [0, 1])[int(3 * chances("side")[0])]
    gaps = {}
    for side in sides:
        numbers = open_to[side]
        share = MIN_SHARE + (MAX_SHARE - MIN_SHARE) * chances(f"share {side}")[0]
        order = np.argsort(chances(f"words {side}", len(numbers)), kind="stable")
        chosen = sorted(numbers[place] for place in order[: max(1, round(share * len(numbers)))])
        gaps[side] = Gaps(example.texts[side], words[side], chosen, chances(f"new {side}", len(chosen)))
    return gaps


def frequent(examples: Sequence[Example]) -> Words:
    """Words of the texts, each drawn as often as it is there."""
    counts = Counter(word for example in examples for text in example.texts for word in WHOLE.findall(text))
    choices = sorted(counts)
    sums = np.cumsum([counts[word] for word in choices], dtype=np.int64)  # how often a word or one before it is there

    def word(old: str, chance: float) -> str:
        """Another word: where it is the same, the next that is not; the word itself where there is no other."""
        first = int(np.searchsorted(sums, chance * sums[-1], side="right"))
        others = (choices[(first + step) % len(choices)] for step in range(len(choices)))
        return next((other for other in others if other.casefold() != old.casefold()), old)

    return lambda gaps: [
        [word(gap.text[a:b], chance) for (a, b), chance in zip(gap.spans, gap.chances, strict=True)] for gap in gaps
    ]


class Guesses:
    """A model's predictions of masked words; whole words only, and never a special token."""

    def __init__(self, opened: LoadedModel) -> None:
        self.opened, (tokenizer, self.mask) = opened, filler(opened)
        self.tokenizer, inside = tokenizer, inside_words(tokenizer)
        special = {number for number, token in tokenizer.library.get_added_tokens_decoder().items() if token.special}
        special |= {tokenizer.id_of(role) for role in vars(tokenizer.roles)} - {None}  # type: ignore[arg-type]
        self.barred = barred = torch.ones(opened.heads["words"], dtype=torch.bool)  # by token: it is no word
        for number in range(min(tokenizer.vocabulary, len(barred))):
            whole = number not in special and not inside[number]
            barred[number] = not (whole and WHOLE.fullmatch(tokenizer.decode([number]).strip()))
        if int((~barred).sum()) <= TOP:
            raise UserError("the vocabulary of the masked language model has no whole words to put in")
        self.framing = framing_for(opened, window_for(opened, None, None, "windows", 0.25))

    def words(self, gaps: Sequence[Gaps]) -> list[list[str]]:
        """For each gap another word; the word itself where the tokenizer does not see it."""
        encoded = self.tokenizer.encode_batch([gap.text for gap in gaps], specials=False)
        windows = list[TextWindow]()
        asked: list[list[tuple[int, int, int]]] = []  # of each window: a place there, whose gap that is, and which
        for number, (gap, tokens) in enumerate(zip(gaps, encoded, strict=True)):
            ids, places = self._masked(tokens.ids, tokens.offsets, gap.spans)
            for piece in pieces(self.framing, ids):
                own = [(word, place) for word, place in places if piece.cut.first <= place < piece.cut.last]
                asked.append([(piece.lead + place - piece.cut.start, number, word) for word, place in own])
                windows.append(piece)
        words = [[gap.text[a:b] for a, b in gap.spans] for gap in gaps]
        barred = self.barred.to(self.opened.device)
        size = max(1, SCORES // len(barred))
        with torch.inference_mode():
            for numbers, batch in batches(windows, self.opened.device, False):
                hidden = self.opened.network(batch.tokens, batch.rows)
                starts = zip(batch.rows.starts.tolist(), numbers, strict=False)
                here = [(start + place, *gap) for start, window in starts for place, *gap in asked[window]]
                for chunk in (here[first : first + size] for first in range(0, len(here), size)):
                    at = torch.tensor([place for place, _, _ in chunk], device=hidden.device)
                    scores = in_full(self.opened.network.words(hidden[at]))
                    best = scores.masked_fill(barred, -torch.inf).topk(TOP + 1)
                    likely = zip(chunk, best.indices.tolist(), best.values.tolist(), strict=True)
                    for (_, number, word), tokens, values in likely:
                        guesses = [self.tokenizer.decode([token]).strip() for token in tokens]
                        chance = gaps[number].chances[word]
                        words[number][word] = _drawn(words[number][word], guesses, np.array(values), chance)
        return words

    def _masked(self, ids: list[int], offsets: Spans, spans: Spans) -> tuple[list[int], list[tuple[int, int]]]:
        """The tokens with one mask in place of each of the words; by word, where its mask stands."""
        masked, places, word = list[int](), list[tuple[int, int]](), 0
        for token, (begin, end) in zip(ids, offsets, strict=True):
            while word < len(spans) and spans[word][1] <= begin:
                word += 1
            if word == len(spans) or end <= spans[word][0] or end <= begin:
                masked.append(token)
            elif not places or places[-1][0] != word:
                places.append((word, len(masked)))
                masked.append(self.mask)
        return masked, places


def _drawn(word: str, guesses: list[str], scores: np.ndarray[tuple[int], np.dtype[np.float64]], chance: float) -> str:
    """One of the likeliest guesses that are another word, each by its probability among them."""
    others = [place for place, guess in enumerate(guesses) if guess.casefold() != word.casefold()][:TOP]
    weights = np.exp(scores[others] - scores[others].max())
    place = int(np.searchsorted(weights.cumsum(), chance * weights.sum(), side="right"))
    return guesses[others[min(place, len(others) - 1)]]
