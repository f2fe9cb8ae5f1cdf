"""A tag for every word of a text: entities, chunks, parts of speech; words as given, or as they stand in raw text."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.checkpoint.card import Card
from weft.checkpoint.folder import LoadedModel
from weft.data.columns import NAMES, file_of
from weft.data.examples import Examples, Gathering
from weft.errors import UserError, shown
from weft.objectives.tasks import Tags
from weft.tasks.answers import Answer, Span, Spans
from weft.tasks.forward import Prediction, outcome, through, tokenizer_of
from weft.tasks.reading import Example, check_labels, list_in, number_of, value_in
from weft.text.metrics_text import Entities, WordTags
from weft.text.records import Record
from weft.text.tags import Decoder, Normalizer, Scheme, scheme_of, spans_of, tags_of
from weft.text.tags import Span as Stretch
from weft.text.tokenizer import Encoded, Tokenizer
from weft.text.windows import Framing, Piece, pieces, words_in

Places = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Tagged:
    """A text with its words, by characters, and their tags where they are known."""

    text: str
    words: tuple[tuple[int, int], ...]
    tags: tuple[str, ...] | None = None


def normalized(example: Example, normalizer: Normalizer | None) -> Example:
    """An example whose tags, where they are known, are those of one scheme."""
    if normalizer is None or example.target.tags is None:
        return example
    return replace(example, target=replace(example.target, tags=normalizer.normalized(example.target.tags)))


@dataclass(frozen=True)
class Heard:
    """What a network says of the words of one text."""

    scores: NDArray[np.float32]  # n C
    known: NDArray[np.bool_]  # n: False for a word that was cut off, or of which the vocabulary reads nothing
    pieces: list[Piece]
    n_tokens: int


def words_of(record: Record, column: str) -> list[str]:
    """Words or tags: a list, or a text with spaces between them."""
    value = list_in(record, column)
    found = value.split() if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise UserError(f"{record.where}: column {shown(column)!r} holds no list of words")
    return found


def joined(words: Sequence[str], tags: Sequence[str] | None = None) -> Tagged:
    """Words as a text, one space apart, so that every vocabulary reads them as it reads any text."""
    begins = accumulate((len(word) + 1 for word in words), initial=0)
    places = tuple((begin, begin + len(word)) for begin, word in zip(begins, words, strict=False))
    return Tagged(" ".join(words), places, None if tags is None else tuple(tags))


@dataclass(frozen=True)
class TagTask:
    """Tags of words, with the names of the tags once they are known."""

    labels: tuple[str, ...] = ()

    name = "tag"
    head = "tag"
    overlap = 0.25

    @property
    def objective(self) -> Tags:
        return Tags(len(self.labels))

    @property
    def outputs(self) -> int:
        return len(self.labels)

    @cached_property
    def scheme(self) -> Scheme:
        return scheme_of(self.labels)

    @property
    def names(self) -> tuple[str, ...]:
        return ("accuracy", "macro_f1") if self.scheme == "plain" else ("f1", "precision", "recall", "accuracy")

    @property
    def chosen(self) -> str:
        return "accuracy" if self.scheme == "plain" else "f1"

    @staticmethod
    def asked(example: Example) -> Tagged:
        return example.target

    # ------------------------------------------------------------------------------------------ from people's data

    def needed(self, record: Record, given: Mapping[str, str]) -> tuple[TagTask, tuple[str, ...]]:
        values = record.values
        raw = "spans" in given or any(name in values for name in ("spans", "entities"))
        if not raw and "text" in values and "words" not in given and not set(NAMES["words"]) & set(values):
            raw = any(isinstance(values.get(name), list) for name in ("label", "labels"))  # as Doccano writes them
        return self, ("text", "spans") if raw else ("words", "tags")

    def read(self, record: Record, columns: Mapping[str, str]) -> Example:
        if "spans" in columns:
            found = _from_spans(record, columns)
        else:
            words, tags = words_of(record, columns["words"]), words_of(record, columns["tags"])
            if len(words) != len(tags):
                raise UserError(f"{record.where}: {len(words)} words but {len(tags)} tags")
            if not words:
                raise UserError(f"{record.where}: there are no words")
            found = joined(words, tags)
        return Example((found.text,), found, record.where)

    def learned(self, examples: Sequence[Example], labels: Sequence[str] = ()) -> TagTask:
        found = Counter(tag for example in examples for tag in example.target.tags)
        names = tuple(labels) or tuple(
            sorted(found, key=lambda tag: (tag != "O", tag[2:] if tag[1:2] == "-" else tag, tag))
        )
        check_labels(found, names, file_of(examples[0].where))
        return replace(self, labels=names)

    def formed(self, example: Example) -> None:
        """Refuse tags that are of no form that this model's have."""
        odd = [tag for tag in example.target.tags if self.scheme != "plain" and scheme_of([tag, "O"]) == "plain"]
        if odd:
            raise UserError(f"{example.where}: tag {shown(odd[0])!r} is neither O nor of a form like B-PER or I-PER")

    def normalizer(self, examples: Sequence[Example] = (), labels: Sequence[str] = ()) -> Normalizer | None:
        """What writes tags in the scheme of the labels, else in that of the examples; None where there is none.

        A model whose labels have no B- takes I- for all of an entity, and its rows stay as they are.
        """
        known = tuple(labels) or self.labels
        if known and not any(label.startswith(tuple("BESLU")) for label in known):
            return None
        return Normalizer.of(known or {tag for example in examples for tag in example.target.tags or ()})

    def groups(self, examples: Sequence[Example]) -> list[Any] | None:
        return ["" for _ in examples]

    def check(self, examples: Sequence[Example]) -> None:
        numbers = {label: number for number, label in enumerate(self.labels)}
        for example in examples:
            for tag in example.target.tags:
                number_of(tag, numbers, example.where)

    def table(self, examples: Sequence[Example], tokenizer: Tokenizer, framing: Framing) -> Examples:
        """The examples as a source of batches; each window is an example of its own."""
        numbers = {label: number for number, label in enumerate(self.labels)}
        gathering = Gathering()
        for begin in range(0, len(examples), 1024):
            some = examples[begin : begin + 1024]
            for example, encoded in zip(
                some, tokenizer.encode_batch([e.texts[0] for e in some], specials=False), strict=True
            ):
                tagged: Tagged = example.target
                firsts = first_tokens(encoded, tagged.words)
                assert tagged.tags is not None
                said = {
                    token: number_of(tag, numbers, example.where)
                    for token, tag in zip(firsts, tagged.tags, strict=True)
                    if token is not None
                }
                for piece in pieces(framing, encoded.ids):
                    own = [
                        (piece.lead + token - piece.cut.start, said[token])
                        for token in range(piece.cut.first, piece.cut.last)
                        if token in said
                    ]
                    gathering.add([piece], said=[own])
        return gathering.examples({})

    # -------------------------------------------------------------------------------------- from network to answer

    def outcomes(self, opened: LoadedModel, framing: Framing, texts: Sequence[Tagged]) -> list[Prediction]:
        """Scores of every tag for every word (n C); a word is scored by the window that shows most around it."""
        outcomes = []
        for heard in self.heard(opened, framing, texts):
            scores = np.where(heard.known[:, None], heard.scores, self.unread)
            outcomes.append(outcome(scores, framing, heard.pieces, heard.n_tokens))
        return outcomes

    def heard(self, opened: LoadedModel, framing: Framing, texts: Sequence[Tagged]) -> list[Heard]:
        """What a network says of the words of each text, and which of them it has read."""
        tokenizer, network = tokenizer_of(opened), opened.network
        encoded = tokenizer.encode_batch([text.text for text in texts], specials=False)
        found: list[tuple[list[Piece], list[int | None]]] = []
        for text, tokens in zip(texts, encoded, strict=True):
            found.append((pieces(framing, tokens.ids), first_tokens(tokens, text.words)))
        flat = [piece for some, _ in found for piece in some]
        logits = network.logits
        said = iter(through(opened, framing, flat, lambda h, b: logits("tag", h, b.rows), True))
        heard = []
        for (some, firsts), tokens in zip(found, encoded, strict=True):
            by_token = np.zeros((len(tokens), len(self.labels)), dtype=np.float32)
            for piece in some:
                c, part = piece.cut, next(said).numpy()
                by_token[c.first : c.last] = part[piece.lead + c.first - c.start : piece.lead + c.last - c.start]
            read = some[-1].cut.last
            places = np.array([read if token is None else token for token in firsts], dtype=np.int64)
            known = places < read
            scores_of = np.zeros((len(firsts), len(self.labels)), dtype=np.float32)
            scores_of[known] = by_token[places[known]]
            heard.append(Heard(scores_of, known, some, len(tokens)))
        return heard

    @property
    def unread(self) -> NDArray[np.float32]:
        """Scores of a word that was cut off or has no token: nothing is known, so it is outside of everything."""
        return np.array([label == "O" for label in self.labels], dtype=np.float32)

    def decided(self, found: Prediction) -> list[str]:
        """The tags of all words: the best row of tags that the scheme allows."""
        return [self.labels[number] for number in self.decoder.decode(found.said)]

    @cached_property
    def decoder(self) -> Decoder:
        return Decoder(self.labels)

    def answer(self, found: Prediction, tagged: Tagged) -> Answer:
        tags = self.decided(found)
        chances = _softmax(found.said)
        numbers = {label: number for number, label in enumerate(self.labels)}
        sure = [float(chances[word, numbers[tag]]) for word, tag in enumerate(tags)]
        words = tuple(
            Span(start=start, end=end, text=tagged.text[start:end], label=tag, score=score)
            for (start, end), tag, score in zip(tagged.words, tags, sure, strict=True)
        )
        spans = []
        for stretch in spans_of(tags, self.scheme) if self.scheme != "plain" else []:
            start, end = tagged.words[stretch.first][0], tagged.words[stretch.last - 1][1]
            score = float(np.mean(sure[stretch.first : stretch.last]))
            spans.append(Span(start=start, end=end, text=tagged.text[start:end], label=stretch.label, score=score))
        return Spans(
            spans=tuple(spans),
            words=words,
            n_tokens=found.n_tokens,
            n_windows=found.n_windows,
            truncated=found.truncated,
        )

    def tuned(self, outcomes: Sequence[Prediction], examples: Sequence[Example]) -> TagTask:
        return self

    def carded(self, card: Card) -> Card:
        return replace(card, labels=self.labels)

    def metrics(self) -> Any:
        return WordTags(self.labels) if self.scheme == "plain" else Entities()

    def add(self, metrics: Any, outcomes: Sequence[Prediction], examples: Sequence[Example]) -> None:
        predicted = [self.decided(found) for found in outcomes]
        metrics.add(predicted, [list(example.target.tags) for example in examples])

    def mistake(self, found: Prediction, example: Example) -> tuple[float, dict[str, str]] | None:
        tags, gold = self.decided(found), example.target.tags
        wrong = [n for n, (said, right) in enumerate(zip(tags, gold, strict=True)) if said != right]
        if not wrong:
            return None
        words = [example.target.text[start:end] for start, end in example.target.words]

        def told(which: Sequence[str]) -> str:
            return " ".join(f"{words[n]}/{which[n]}" for n in wrong)

        return float(len(wrong)), {
            "right": told(gold),
            "said": told(tags),
            "where": example.where,
            "text": example.target.text,
        }


def first_tokens(encoded: Encoded, words: Places) -> list[int | None]:
    """For each word the first token that shares a character with it; None where the vocabulary reads nothing there."""
    offsets = encoded.offsets
    found: list[int | None] = []
    token = 0
    for start, end in words:
        while token < len(offsets) and offsets[token][1] <= start:
            token += 1
        there = token
        while there < len(offsets) and offsets[there][0] < end and offsets[there][0] == offsets[there][1]:
            there += 1  # a token of no characters
        found.append(there if there < len(offsets) and offsets[there][0] < end else None)
    return found


def _softmax(scores: NDArray[np.float32]) -> NDArray[np.float64]:
    powers = np.exp(scores.astype(np.float64) - scores.max(1, keepdims=True, initial=-1e30))
    return powers / powers.sum(1, keepdims=True)


def _ends_and_label(span: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Of a span as Prodigy, Doccano or Label Studio writes it."""
    labels = span.get("labels")
    label = labels[0] if isinstance(labels, list) and len(labels) == 1 else span.get("label")
    return span.get("start", span.get("start_offset")), span.get("end", span.get("end_offset")), label


def _from_spans(record: Record, columns: Mapping[str, str]) -> Tagged:
    """Words and BIO tags out of a raw text and stretches of its characters."""
    text, given = value_in(record, columns["text"]), list_in(record, columns["spans"])
    if not isinstance(text, str) or not text.strip():
        raise UserError(f"{record.where}: column {shown(columns['text'])!r} holds no text")
    if not isinstance(given, list):
        raise UserError(f"{record.where}: column {shown(columns['spans'])!r} holds no list of spans")
    spans: list[tuple[int, int, str]] = []
    for span in given:
        values = _ends_and_label(span) if isinstance(span, dict) else span
        if (
            not isinstance(values, tuple | list)
            or len(values) != 3
            or not (type(values[0]) is type(values[1]) is int)
            or not isinstance(values[2], str)
        ):
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
    return Tagged(text, tuple(words), tuple(tags_of(stretches, len(words), "bio")))


def raw(text: str) -> Tagged:
    """A text as it stands, cut into words."""
    return Tagged(text, tuple(words_in(text)))


def task_of(opened: LoadedModel) -> TagTask:
    names = opened.card.labels or tuple(f"LABEL_{number}" for number in range(opened.heads["tag"]))
    return TagTask(names)
