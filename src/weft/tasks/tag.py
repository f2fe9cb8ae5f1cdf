"""A tag for every word of a text: entities, chunks, parts of speech; words as given, or as they stand in raw text."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.checkpoint.folder import LoadedModel
from weft.data.columns import NAMES, file_of, list_in, text_in, value_in
from weft.data.examples import Examples, ExamplesBuilder
from weft.data.masking import NOTHING
from weft.errors import UserError, shown
from weft.metrics.classification import EntityMetrics, TagMetrics
from weft.objectives.losses import LOGITS, TAUGHT, SoftTargets, Tags
from weft.tasks.answers import Answer, Span, Spans
from weft.tasks.base import Difference, Example, Normalization, Prediction, Task, TeacherArrays, TeacherRows
from weft.tasks.classify import check_labels
from weft.tasks.forward import InputWindows, head_outputs, softmax, tokenizer_of
from weft.tasks.targets import LogitTarget, Term, read_texts, target_of, word_number
from weft.text.records import Record
from weft.text.tags import Scheme, TagDecoder, TagNormalizer, scheme_of, spans_of, tags_of
from weft.text.tags import TagSpan as Stretch
from weft.text.tokenizers.tokenizer import Encoded, Tokenizer
from weft.text.windows import Framing, pieces, words_in

CHUNK = 1024  # texts that are tokenized at a time
MAX_SHOWN = 8  # words that are shown of one text
Places = Sequence[tuple[int, int]]


def words_of(record: Record, column: str) -> list[str]:
    """Words or tags: a list, or a text with spaces between them."""
    value = list_in(record, column)
    words = value.split() if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(item, str) for item in words):
        raise UserError(f"{record.where}: column {shown(column)!r} holds no list of words")
    return words


def joined(words: Sequence[str], tags: Sequence[str] | None = None, where: str = "") -> Example:
    """Words as a text, one space apart, so that every vocabulary reads them as it reads any text."""
    begins = accumulate((len(word) + 1 for word in words), initial=0)
    places = tuple((begin, begin + len(word)) for begin, word in zip(begins, words, strict=False))
    return Example((" ".join(words),), None if tags is None else tuple(tags), where, words=places)


def raw(text: str, where: str = "") -> Example:
    """A text as it stands, cut into words."""
    return Example((text,), None, where, words=tuple(words_in(text)))


def word_texts(example: Example) -> list[str]:
    return [example.texts[0][start:end] for start, end in example.words]


def differing_words(tags: Sequence[str], others: Sequence[str]) -> list[int]:
    return [number for number, (one, two) in enumerate(zip(tags, others, strict=True)) if one != two]


@dataclass(frozen=True)
class TagTask(Task):
    """A tag for every word."""

    labels: tuple[str, ...] = ()
    soft: SoftTargets | None = None  # how a student learns from its teacher

    name = "tag"
    head = "tag"
    settings = ("labels",)
    by_token = windowed = True
    overlap = 0.25
    averages = True

    @cached_property
    def scheme(self) -> Scheme:
        return scheme_of(self.labels)

    @classmethod
    def from_model(cls, model: LoadedModel, name: str) -> TagTask:
        return cls(model.card.labels or tuple(f"LABEL_{number}" for number in range(model.heads["tag"])))

    def input_columns(self, record: Record, given: Mapping[str, str]) -> tuple[str, ...]:
        known = "words" in given or any(name in record.values for name in NAMES["words"])
        return ("words",) if known and "text" not in given else ("text",)

    def columns(self, record: Record, given: Mapping[str, str]) -> tuple[TagTask, tuple[str, ...]]:
        values = record.values
        spans = bool({"spans"} & set(given) or {"spans", "entities"} & set(values))
        if not spans and "text" in values and "words" not in given and not set(NAMES["words"]) & set(values):
            spans = any(isinstance(values.get(name), list) for name in ("label", "labels"))  # as Doccano writes them
        return self, ("text", "spans") if spans else ("words", "tags")

    def read(self, record: Record, columns: Mapping[str, str]) -> Example:
        if "spans" in columns:
            return _with_words(_from_spans(record, columns))
        words, tags = words_of(record, columns["words"]), words_of(record, columns["tags"])
        if len(words) != len(tags):
            raise UserError(f"{record.where}: {len(words)} words but {len(tags)} tags")
        return _with_words(joined(words, tags, record.where))

    def read_input(self, record: Record, columns: Mapping[str, str]) -> Example:
        if "words" in columns:
            return _with_words(joined(words_of(record, columns["words"]), None, record.where))
        return _with_words(raw(text_in(record, columns["text"]), record.where))

    def is_row(self, values: Mapping[str, Any]) -> bool:
        words = next((values[name] for name in NAMES["words"] if name in values), None)
        return isinstance(words, list) and all(isinstance(word, str) for word in words)

    def row_input(self, record: Record, columns: Mapping[str, str]) -> Any:
        return words_of(record, columns["words"]) if "words" in columns else super().row_input(record, columns)

    def texts_of(self, value: Any) -> tuple[str, ...]:
        return (value if isinstance(value, str) else " ".join(value),)

    def check_input(self, where: str, value: Any) -> Example:
        if isinstance(value, list) and value and all(isinstance(word, str) for word in value):
            return joined(value)
        return raw(super().check_input(where, value))

    def word_spans(self, example: Example) -> list[Sequence[tuple[int, int]]]:
        return [self.inputs(example).words]

    def with_texts(self, example: Example, texts: Sequence[str], words: Sequence[Any]) -> Example:
        return replace(example, texts=tuple(texts), target=None, words=tuple(words[0]))

    def inputs(self, example: Example) -> Example:
        return example if example.words else raw(example.texts[0], example.where)

    def to_record(self, example: Example) -> dict[str, Any]:
        return {"words": word_texts(example), "tags": list(example.target)}

    def normalization(self, examples: Sequence[Example] = (), labels: Sequence[str] = ()) -> Normalization:
        """A model whose labels have no B- takes I- for all of an entity, and its rows stay as they are."""
        known = tuple(labels) or self.labels
        if known and not any(label.startswith(tuple("BESLU")) for label in known):
            return Normalization()
        return Normalization(TagNormalizer.of(known or {tag for example in examples for tag in example.target or ()}))

    def fit_labels(self, examples: Sequence[Example], labels: Sequence[str] = ()) -> TagTask:
        counts = Counter(tag for example in examples for tag in example.target)
        usual = sorted(counts, key=lambda tag: (tag != "O", tag[2:] if tag[1:2] == "-" else tag, tag))
        names = tuple(labels or usual)
        check_labels(counts, names, file_of(examples[0].where))
        return replace(self, labels=names)

    def check_targets(self, examples: Sequence[Example]) -> None:
        for example in examples:
            for tag in example.target:
                self.label_number(tag, example.where)

    def check_format(self, example: Example) -> None:
        """Refuse tags of another form than this model's; a rare tag that it has never seen is a mistake only."""
        odd = [tag for tag in example.target if self.scheme != "plain" and scheme_of([tag, "O"]) == "plain"]
        if odd:
            raise UserError(f"{example.where}: tag {shown(odd[0])!r} is neither O nor of a form like B-PER or I-PER")

    def dataset(
        self, examples: Sequence[Example], model: LoadedModel, windows: Framing, teacher_outputs: TeacherRows = None
    ) -> Examples:
        """Each window is an example of its own."""
        builder, logits, known = ExamplesBuilder(), list[NDArray[Any]](), list[NDArray[Any]]()
        for begin in range(0, len(examples), CHUNK):
            chunk = examples[begin : begin + CHUNK]
            encoded = self.encode([self.inputs(example) for example in chunk], tokenizer_of(model), windows)
            for row, example in enumerate(chunk):
                firsts = encoded.places[row]
                tags = [NOTHING] * len(firsts)
                if self.has_target(example):
                    tags = [self.label_number(tag, example.where) for tag in example.target]
                last = {token: word for word, token in enumerate(firsts)}
                # Of two words that share a token the last is learned; soft targets of both are.
                both = teacher_outputs is not None
                learned = [token is not None and (both or last[token] == word) for word, token in enumerate(firsts)]
                first = np.where(learned, np.array([token or 0 for token in firsts], dtype=np.int64), -1)
                for piece in encoded.pieces[row]:
                    own = np.flatnonzero((first >= piece.cut.first) & (first < piece.cut.last))
                    places = (piece.lead + first[own] - piece.cut.start).tolist()
                    builder.add([piece], tags=[zip(places, (tags[word] for word in own), strict=True)])
                    if teacher_outputs is not None:
                        logits.append(teacher_outputs[begin + row]["logits"][own])
                        known.append(teacher_outputs[begin + row]["known"][own])
        if teacher_outputs is None:
            return builder.examples({}, segments=windows.marks(False))
        taught = np.concatenate(known).astype(np.float32)
        by_place = {LOGITS: np.concatenate(logits).astype(np.float32), TAUGHT: taught}
        return builder.examples({}, by_place=by_place, segments=windows.marks(False))

    def objective(self) -> Tags:
        return Tags(len(self.labels), self.soft)

    def encode(self, inputs: Sequence[Example], tokenizer: Tokenizer, windows: Framing) -> InputWindows:
        encoded = tokenizer.encode_batch([example.texts[0] for example in inputs], specials=False)
        return InputWindows(
            windows,
            [pieces(windows, tokens.ids) for tokens in encoded],
            [(len(tokens),) for tokens in encoded],
            [first_tokens(tokens, example.words) for tokens, example in zip(encoded, inputs, strict=True)],
        )

    def decode(self, logits: Sequence[Sequence[NDArray[Any]]], windows: InputWindows) -> list[Prediction]:
        """Logits of every tag for every word (n C); a word that was not read is outside of everything."""
        return [
            Prediction(np.where(words["known"][:, None], words["logits"], self.unread), *windows.read(number))
            for number, words in enumerate(self.word_logits(logits, windows))
        ]

    def word_logits(self, logits: Sequence[Sequence[NDArray[Any]]], windows: InputWindows) -> Iterator[TeacherArrays]:
        """The logits of each word's first token (n C), and whether that was read (n)."""
        for parts, pieces_of, (count,), firsts in zip(logits, *windows[1:], strict=True):
            by_token = np.zeros((count, len(self.labels)), dtype=np.float32)
            for piece, part in zip(pieces_of, parts, strict=True):
                c = piece.cut
                by_token[c.first : c.last] = part[piece.lead + c.first - c.start : piece.lead + c.last - c.start]
            read = pieces_of[-1].cut.last
            places = np.array([read if token is None else token for token in firsts], dtype=np.int64)
            known = places < read
            by_word = np.zeros((len(firsts), len(self.labels)), dtype=np.float32)
            by_word[known] = by_token[places[known]]
            yield {"logits": by_word, "known": known}

    @property
    def unread(self) -> NDArray[np.float32]:
        """Logits of a word that was cut off or has no token."""
        return np.array([label == "O" for label in self.labels], dtype=np.float32)

    def tags(self, prediction: Prediction) -> list[str]:
        """The tags of all words: the best row of tags that the scheme allows."""
        return [self.labels[number] for number in self.decoder.decode(prediction.output)]

    @cached_property
    def decoder(self) -> TagDecoder:
        return TagDecoder(self.labels)

    def answer(self, prediction: Prediction, input: Example, **options: Any) -> Answer:
        tags, probabilities = self.tags(prediction), softmax(prediction.output)
        scores = [float(probabilities[word, self.label_numbers[tag]]) for word, tag in enumerate(tags)]

        def span(first: int, last: int, label: str, score: float) -> Span:
            start, end = input.words[first][0], input.words[last - 1][1]
            return Span(start=start, end=end, text=input.texts[0][start:end], label=label, score=score)

        words = tuple(span(n, n + 1, tag, score) for n, (tag, score) in enumerate(zip(tags, scores, strict=True)))
        stretches = spans_of(tags, self.scheme) if self.scheme != "plain" else []
        spans = tuple(span(*each, float(np.mean(scores[each.first : each.last]))) for each in stretches)
        return Spans(spans=spans, words=words, **prediction.reading)

    def logit_target(self, model: LoadedModel, windows: Framing, input: Example, target: Any) -> LogitTarget:
        """The logit of one word's tag: `target` is a word, "word/TAG", or its number and a tag; default: an entity."""
        encoded, texts = self.encode([input], tokenizer_of(model), windows), input.texts
        read = read_texts(tokenizer_of(model), texts, [input.words])
        tags = self.tags(self.predict(model, windows, [input])[0])
        wanted, tag = target if isinstance(target, tuple) else (target, None)
        if isinstance(wanted, str) and tag is None and wanted not in word_texts(input):
            wanted, _, tag = wanted.rpartition("/") if "/" in wanted else (wanted, "", None)
        default = next((number for number, each in enumerate(tags) if each != "O"), 0)
        word = default if wanted is None else word_number(read[0], wanted)
        token, tag = encoded.places[0][word] if tags else None, tag or (tags[word] if tags else "")
        owner = [n for n, w in enumerate(encoded.pieces[0]) if token is not None and w.cut.first <= token < w.cut.last]
        if not owner or token is None:
            raise UserError(f"the model reads nothing of the word {word} of {shown(texts[0])!r}")
        piece, name = encoded.pieces[0][owner[0]], texts[0][slice(*input.words[word])]
        term = Term(owner[0], piece.lead + token - piece.cut.start, self.label_number(tag, "target"))
        return target_of(f"{tag} of {name!r}", self.head, [term], windows, encoded.pieces[0], read)

    def key(self, prediction: Prediction) -> Hashable:
        tags = self.tags(prediction)
        return tags[0] if len(set(tags)) == 1 else tuple(tags)  # a model that calls every word the same is damaged

    def compare(self, prediction: Prediction, reference: Prediction, example: Example, task: Any) -> Difference:
        words, differing = len(prediction.output), len(differing_words(self.tags(prediction), self.tags(reference)))
        return ({"same": (float(words - differing), float(words))} if words else {},), float(differing)

    def describe(self, prediction: Prediction, other: Prediction, example: Example) -> str:
        tags, words = self.tags(prediction), word_texts(self.inputs(example))
        differing = differing_words(tags, self.tags(other))[:MAX_SHOWN]
        return " ".join(f"{words[number]}/{tags[number]}" for number in differing)

    def describe_target(self, example: Example) -> str:
        pairs = zip(word_texts(example), example.target, strict=True)
        return " ".join([f"{word}/{tag}" for word, tag in pairs if tag != "O"][:MAX_SHOWN])

    def target_parts(self, example: Example) -> Iterable[Hashable]:
        return example.target if self.scheme == "plain" else ()

    def chance_level(self, counts: Counter[Hashable], rows: int) -> float:
        """The share of the most frequent tag."""
        return max(counts.values(), default=0) / max(1, counts.total())

    def mean_prediction(self, predictions: Sequence[Prediction], tasks: Sequence[Task] = ()) -> Prediction:
        mean = np.mean([softmax(each.output) for each in predictions], axis=0)
        return replace(predictions[0], output=np.log(np.maximum(mean, 1e-300)))

    def numbers_of(self, model: LoadedModel, inputs: Sequence[Any]) -> list[NDArray[Any]]:
        """The probability of every tag of every word: an answer has only those that it chose."""
        return [softmax(logits) for logits in self.logits_of(model, inputs)]

    @property
    def metric_names(self) -> tuple[str, ...]:
        return ("accuracy", "macro_f1") if self.scheme == "plain" else ("f1", "precision", "recall", "accuracy")

    def metrics(self) -> Any:
        return TagMetrics(self.labels) if self.scheme == "plain" else EntityMetrics()

    def add(self, metrics: Any, predictions: Sequence[Prediction], examples: Sequence[Example]) -> None:
        metrics.add([self.tags(each) for each in predictions], [list(example.target) for example in examples])

    def mistake(self, prediction: Prediction, example: Example) -> tuple[float, dict[str, str]] | None:
        tags, gold = self.tags(prediction), example.target
        wrong = differing_words(tags, gold)
        if not wrong:
            return None
        words = word_texts(example)
        target, prediction_ = (" ".join(f"{words[n]}/{which[n]}" for n in wrong) for which in (gold, tags))
        row = {"target": target, "prediction": prediction_, "where": example.where, "text": example.texts[0]}
        return float(len(wrong)), row

    def same_outputs(self, other: Task) -> bool:
        return sorted(self.labels) == sorted(other.labels)  # in whatever order

    @property
    def teacher_settings(self) -> dict[str, Any]:
        return {"labels": self.labels}

    def teacher_key(self, example: Example) -> Any:
        return example.texts[0], self.inputs(example).words

    def teacher_outputs(self, model: LoadedModel, windows: Framing, examples: Sequence[Example]) -> list[TeacherArrays]:
        """The logits of every tag for each word, and which words were read."""
        task = TagTask.from_model(model, self.name)
        order = [task.labels.index(label) for label in self.labels]
        encoded = self.encode([self.inputs(example) for example in examples], tokenizer_of(model), windows)
        logits = task.word_logits(head_outputs(model, encoded, self.head, self.by_token), encoded)
        return [{"logits": words["logits"][:, order], "known": words["known"]} for words in logits]

    def average(self, outputs: Sequence[TeacherArrays]) -> TeacherArrays:
        """The mean of the probabilities, over those teachers that have read the word."""
        known = np.stack([each["known"] for each in outputs])  # teachers n
        probabilities = np.stack([softmax(each["logits"]) for each in outputs])  # teachers n C
        mean = (probabilities * known[:, :, None]).sum(0) / np.maximum(known.sum(0), 1)[:, None]
        return {"logits": np.log(np.maximum(mean, 1e-30)).astype(np.float32), "known": known.any(0)}

    def with_teacher_answer(self, example: Example, outputs: TeacherArrays) -> Example:
        logits = np.where(outputs["known"].astype(bool)[:, None], outputs["logits"], self.unread)
        return replace(self.inputs(example), target=tuple(self.tags(Prediction(logits, 0, 0, False))))


def first_tokens(encoded: Encoded, words: Places) -> list[int | None]:
    """For each word the first token that shares a character with it; None where the vocabulary reads nothing there."""
    offsets = encoded.offsets
    firsts: list[int | None] = []
    token = 0
    for start, end in words:
        while token < len(offsets) and offsets[token][1] <= start:
            token += 1
        there = token
        while there < len(offsets) and offsets[there][0] < end and offsets[there][0] == offsets[there][1]:
            there += 1  # a token of no characters
        firsts.append(there if there < len(offsets) and offsets[there][0] < end else None)
    return firsts


def _with_words(example: Example) -> Example:
    if not example.words:
        raise UserError(f"{example.where}: there are no words")
    return example


def _from_spans(record: Record, columns: Mapping[str, str]) -> Example:
    """Words and BIO tags out of a raw text and stretches of its characters."""
    text, given = value_in(record, columns["text"]), list_in(record, columns["spans"])
    if not isinstance(text, str) or not text.strip():
        raise UserError(f"{record.where}: column {shown(columns['text'])!r} holds no text")
    if not isinstance(given, list):
        raise UserError(f"{record.where}: column {shown(columns['spans'])!r} holds no list of spans")
    spans: list[tuple[int, int, str]] = []
    for span in given:
        values = span
        if isinstance(span, dict):  # as Prodigy, Doccano or Label Studio writes it
            labels = span.get("labels")
            label = labels[0] if isinstance(labels, list) and len(labels) == 1 else span.get("label")
            values = span.get("start", span.get("start_offset")), span.get("end", span.get("end_offset")), label
        if not isinstance(values, tuple | list) or [type(value) for value in values] != [int, int, str]:
            raise UserError(f"{record.where}: a span is not start, end and label: {shown(str(span))}")
        start, end, label = values
        if not 0 <= start < end <= len(text):
            raise UserError(f"{record.where}: span {start} to {end} lies outside of a text of {len(text)} characters")
        spans.append((start, end, label))
    edges = sorted({edge for start, end, _ in spans for edge in (start, end)})
    words: list[tuple[int, int]] = []
    for start, end in words_in(text):  # a span may begin or end inside a word: the word is cut there
        cuts = [start, *edges[bisect_right(edges, start) : bisect_left(edges, end)], end]
        words += list(zip(cuts[:-1], cuts[1:], strict=True))
    begins = [begin for begin, _ in words]
    stretches = []
    taken = -1
    for start, end, label in sorted(spans):
        inside = range(bisect_left(begins, start), bisect_left(begins, end))
        if not inside:
            raise UserError(f"{record.where}: span {start} to {end} holds no word: {shown(text[start:end])!r}")
        if inside[0] <= taken:
            raise UserError(f"{record.where}: two spans lie over each other at {start}: {shown(text[start:end])!r}")
        taken = inside[-1]
        stretches.append(Stretch(inside[0], inside[-1] + 1, label))
    return Example((text,), tuple(tags_of(stretches, len(words), "bio")), record.where, words=tuple(words))
