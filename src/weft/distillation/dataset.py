"""The dataset of a distillation: texts, rows with or without targets, and copies of them with some words replaced.

Words are replaced (Jiao et al., 2020) by a model's guess, drawn from its likeliest, or by a word of the texts
themselves. Which words those are follows from the seed, the number of the text and the number of the copy alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.checkpoint.folder import LoadedModel
from weft.comparison.cost import evenly
from weft.data.chance import key_of, scrambled, shuffled, uniform
from weft.data.columns import file_of
from weft.data.dataset import FEW, Dataset, read_table, split, split_whole
from weft.data.masking import inside_words
from weft.data.shards import TextFiles
from weft.data.tables import Table
from weft.distillation.recipe import DistillDataSection
from weft.errors import UserError, listed, refuse, shown
from weft.nn.heads import in_full
from weft.progress import log_notes
from weft.runs.preparation import checked, normalized, table_of
from weft.tasks.base import Example, Task
from weft.tasks.evaluate import Reader
from weft.tasks.fill import filler
from weft.tasks.forward import batches, framing_for, window_for
from weft.text.records import Record, read_texts
from weft.text.rows import Skipped
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.windows import Framing, TextWindow, pieces
from weft.training.signals import Control

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
    open_to: Sequence[int] = known if by_labels else range(count)
    rows = [examples[number] for number in open_to]
    groups = task.groups(rows) if by_labels or task.whole_groups else [""] * len(rows)
    places = (split_whole if task.whole_groups else split)(groups, data.holdout, data.split)[1]
    held = {open_to[place] for place in places}
    learned = {example.texts for number, example in enumerate(examples) if number not in held}
    # A text that is there twice must not be on both sides.
    held = {number for number in held if examples[number].texts not in learned} or held
    train = [number for number in range(count) if number not in held]
    where_held = [examples[number].where for number in sorted(held)]
    return Dataset(examples, train, sorted(held), hashes, where_held, parts=tuple(parts), labeled_dev=by_labels)


def read_lines(files: TextFiles, data: DistillDataSection, format: str | None, control: Control) -> list[Example]:
    """Unlabeled texts, one on each line of a file or in its column."""
    skipped, examples = Skipped(), list[Example]()
    reading: dict[str, Any] = {name: vars(data)[name] for name in ("delimiter", "on_bad_row", "encoding")}
    column = data.columns.get("text", "text")
    texts = read_texts(files.paths(), column=column, format=format, skipped=skipped, **reading)
    with control.count("reading the texts", "texts", "stopped while reading") as advance:
        for text in texts:
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
        examples = list(read_table(table, begin, skipped, advance))
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
        raise UserError(
            f"{file_of(labeled[0].where)}: no common labels: its rows have "
            f"{listed([shown(label) for label in sorted(labels)], 6)}, the teacher has {listed(task.labels, 6)}"
        )
    return checked(task, examples, table.on_bad_row, control.log)


def part_of(dataset: Dataset[Example], share: float, seed: int) -> Dataset[Example]:
    """The dataset with a share of its examples to learn from; a greater share holds every smaller one."""
    if share >= 1:
        return dataset
    numbers = dataset.train_numbers
    order = shuffled(key_of(seed, "curve"), np.arange(len(numbers)), len(numbers))
    kept = order[: max(1, round(share * len(numbers)))].tolist()
    return replace(dataset, train_numbers=sorted(numbers[place] for place in kept))


MIN_SHARE, MAX_SHARE = 0.15, 0.3  # of the words of a text that are replaced
TOP = 10  # guesses of a model that one is drawn from
CHUNK = 256  # texts that are held at a time
SCORES = 1 << 24  # logits that are held at once
COPIES = 128  # numbers that each text has for its copies
WHOLE = re.compile(r"\w*[^\W_]\w*")  # a word has a letter or a digit

Spans = Sequence[tuple[int, int]]  # words, by characters
Words = Callable[[Sequence["Gaps"]], list[list[str]]]  # other words for those of each text


def augmented(
    task: Task,
    examples: Sequence[Example],
    times: int,
    by: LoadedModel | None,
    seed: int,
    progress: Callable[[int], None] = lambda more: None,
) -> list[Example]:
    """The new examples alone, `times` for each of those given; they have no target.

    `by`: a masked language model; without it the words come from the texts, each as often as it is there.
    """
    if not 0 <= times < COPIES:
        raise UserError(f"a text may come between 0 and {COPIES - 1} times again, not {times}")
    source = Guesses.of(by).words if by is not None else frequent(examples)
    numbers = ((example, number * COPIES + copy) for number, example in enumerate(examples) for copy in range(times))
    key, copied = key_of(seed, "augment"), list[Example]()
    while chunk := list(islice(numbers, CHUNK)):
        gaps = [_gaps(task, example, int(scrambled(key, np.array([number]))[0])) for example, number in chunk]
        words = iter(source([gap for sides in gaps for gap in sides.values()]))
        for (example, _), sides in zip(chunk, gaps, strict=True):
            texts = list(zip(example.texts, task.word_spans(example), strict=True))
            for side, gap in sides.items():
                texts[side] = gap.filled(next(words))
            copied.append(task.with_texts(example, [text for text, _ in texts], [spans for _, spans in texts]))
        progress(len(chunk))
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


@dataclass(frozen=True)
class Guesses:
    """A model's predictions of masked words; whole words only, and never a special token."""

    opened: LoadedModel
    tokenizer: Tokenizer
    mask: int
    framing: Framing
    barred: Tensor  # by token: it is no word

    @staticmethod
    def of(opened: LoadedModel) -> Guesses:
        tokenizer, mask = filler(opened)
        inside = inside_words(tokenizer)
        special = {number for number, token in tokenizer.library.get_added_tokens_decoder().items() if token.special}
        special |= {tokenizer.id_of(role) for role in vars(tokenizer.roles)} - {None}  # type: ignore[arg-type]
        barred = torch.ones(opened.heads["words"], dtype=torch.bool)
        for number in range(min(tokenizer.vocabulary, len(barred))):
            whole = number not in special and not inside[number]
            barred[number] = not (whole and WHOLE.fullmatch(tokenizer.decode([number]).strip()))
        if int((~barred).sum()) <= TOP:
            raise UserError("the vocabulary of the masked language model has no whole words to put in")
        framing = framing_for(opened, window_for(opened, None, None, "windows", 0.25))
        return Guesses(opened, tokenizer, mask, framing, barred)

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
        masked: list[int] = []
        places: list[tuple[int, int]] = []
        word = 0
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
    held_out, size = list[str](), 0
    for document in dev.read(Skipped()) if dev else islice(text.read(Skipped()), count, None):
        held_out.append(document)
        size += len(document)
        if size > MAX_HELD_OUT:
            break
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
