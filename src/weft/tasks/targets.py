"""What an explanation of one input is about: a logit, or a sum of logits, of the windows that the input becomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from weft.errors import UserError, shown
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.windows import Cut, Framing, TextWindow, words_in

Spans = Sequence[tuple[int, int]]


class Term(NamedTuple):
    """One logit, and how much it counts in the sum."""

    window: int
    place: int | None  # the token of the window that it is of; None: of the whole window
    output: int
    weight: float = 1.0


@dataclass(frozen=True)
class ReadText:
    """A text as a model reads it."""

    text: str
    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    offsets: tuple[tuple[int, int], ...]  # of each token, in characters
    words: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class LogitTarget:
    """The logit that is explained, and all that is needed to compute it again."""

    name: str
    head: str
    terms: tuple[Term, ...]
    windows: tuple[TextWindow, ...]
    places: tuple[tuple[tuple[int, int] | None, ...], ...]  # by window and token: text and number there; None: special
    texts: tuple[ReadText, ...]
    segments: int = 0  # ids of segments that the windows need
    follows: bool = False  # the next word, after the last token


def read_texts(
    tokenizer: Tokenizer, texts: Sequence[str], words: Sequence[Spans] | None = None
) -> tuple[ReadText, ...]:
    """Texts with their tokens and words."""
    spans = words or [words_in(text) for text in texts]
    return tuple(
        ReadText(text, tuple(encoded.ids), tuple(encoded.tokens), tuple(encoded.offsets), tuple(own))
        for text, encoded, own in zip(texts, tokenizer.encode_batch(list(texts), specials=False), spans, strict=True)
    )


def places_in(framing: Framing, window: TextWindow, texts: Sequence[ReadText]) -> tuple[tuple[int, int] | None, ...]:
    """Which token of which text each token of a window is; None for special ones."""
    places: list[tuple[int, int] | None] = [None] * len(window.tokens)
    cut = window.cut

    def put(text: int, lead: int, first: int, count: int) -> None:
        for number in range(count):
            places[lead + number] = (text, first + number)

    if len(texts) == 1 or framing.pair is None:
        put(0, window.lead, cut.start, cut.end - cut.start)
        return tuple(places)
    before, between, after = map(len, framing.pair)
    other = len(window.tokens) - before - between - after - (cut.end - cut.start)
    of_first = window.lead == before
    if other != len(texts[of_first].ids):
        raise UserError(
            f"both texts of the pair are longer than half of a window of {framing.length} tokens: shorten one"
        )
    put(1 - of_first, window.lead, cut.start, cut.end - cut.start)
    put(int(of_first), before + cut.end - cut.start + between if of_first else before, 0, other)
    return tuple(places)


def target_of(
    name: str,
    head: str,
    terms: Sequence[Term],
    framing: Framing,
    windows: Sequence[TextWindow],
    texts: Sequence[ReadText],
) -> LogitTarget:
    """The target with those windows alone that its terms are of."""
    used = sorted({term.window for term in terms})
    terms = [term._replace(window=used.index(term.window)) for term in terms]
    kept = tuple(windows[number] for number in used)
    places = tuple(places_in(framing, window, texts) for window in kept)
    return LogitTarget(name, head, tuple(terms), kept, places, tuple(texts), framing.marks(len(texts) > 1))


def whole_window(text: ReadText, before: Sequence[int], after: Sequence[int], context: int) -> TextWindow:
    """A text in one window, which a language model reads at once."""
    tokens, size = [*before, *text.ids, *after], len(text.ids)
    if len(tokens) > context:
        raise UserError(f"a text of {len(tokens)} tokens is longer than the model's context of {context}: shorten it")
    return TextWindow(tokens, len(tokens), len(before), Cut(0, size, 0, size))


def word_number(texts: ReadText, word: str | int) -> int:
    """The number of a word of a text: its first occurrence, or a number from 0."""
    words = [texts.text[start:end] for start, end in texts.words]
    if isinstance(word, int):
        if not 0 <= word < len(words):
            raise UserError(f"target {word}: the text has words 0 to {len(words) - 1}")
        return word
    if word not in words:
        raise UserError(f"target {shown(word)!r} is not a word of the text: {shown(' '.join(words), 120)}")
    return words.index(word)
