"""Long texts into overlapping windows and back: every token belongs to exactly one of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from weft.errors import UserError
from weft.text.tokenizers.tokenizer import Tokenizer

WORD = re.compile(r"\w+(?:[\u0300-\u036f\u0900-\u0dff\u200c\u200d]+\w*)*|[^\w\s]")  # vowel signs are no part of \w
TRIED = 10_000  # tokens from which it is seen what stands around a text


@dataclass(frozen=True)
class Cut:
    """One window over the tokens of a text: what it reads, and which of that it answers for."""

    start: int
    end: int
    first: int  # its own tokens are those from here ...
    last: int  # ... up to, not including, here


def cut(length: int, size: int, stride: int) -> list[Cut]:
    """Windows of `size` tokens, `stride` apart; in an overlap a token goes to the window that shows more around it."""
    assert 1 <= stride <= size
    if length <= size:
        return [Cut(0, length, 0, length)]
    starts = [0]
    while starts[-1] + size < length:
        starts.append(starts[-1] + stride)
    ends = [min(start + size, length) for start in starts]
    borders = [0, *((start + end) // 2 for start, end in zip(starts[1:], ends[:-1], strict=True)), length]
    return list(map(Cut, starts, ends, borders, borders[1:]))


def frame(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The special tokens that a tokenizer puts before and after a text."""
    if tokenizer not in _frames:
        _frames[tokenizer] = _outer_tokens(tokenizer)
    before, after = _frames[tokenizer]
    return list(before), list(after)


# Looked up once: to ask a tokenizer takes a tenth of what a small model takes for a short text.
_frames: WeakKeyDictionary[Tokenizer, tuple[list[int], list[int]]] = WeakKeyDictionary()
_pair_frames: WeakKeyDictionary[Tokenizer, tuple[list[int], list[int], list[int]] | None] = WeakKeyDictionary()
_segments: WeakKeyDictionary[Tokenizer, dict[bool, frozenset[int]]] = WeakKeyDictionary()


def segment_ids(tokenizer: Tokenizer, pair: bool) -> frozenset[int]:
    """The ids of segments that a tokenizer gives the tokens of a text or a pair."""
    known = _segments.setdefault(tokenizer, {})
    if pair not in known:
        known[pair] = frozenset(tokenizer.encode("a", "a" if pair else None).segments)
    return known[pair]


def _outer_tokens(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    for text in _known(tokenizer):
        encoded = tokenizer.encode(text)
        inside = [place for place, side in enumerate(encoded.sequences) if side is not None]
        if inside:
            return encoded.ids[: inside[0]], encoded.ids[inside[-1] + 1 :]
    return [], []


def _known(tokenizer: Tokenizer) -> Iterator[str]:
    """Texts that a tokenizer may know: one drops what it does not know where nothing stands for the unknown."""
    yield "a"
    for number in range(min(tokenizer.vocabulary, TRIED)):
        yield tokenizer.decode([number])


def pair_frame(tokenizer: Tokenizer) -> tuple[list[int], list[int], list[int]] | None:
    """The special tokens before, between and after the two texts of a pair; None where nothing keeps them apart."""
    if tokenizer not in _pair_frames:
        _pair_frames[tokenizer] = _pair_tokens(tokenizer)
    frames = _pair_frames[tokenizer]
    return None if frames is None else (list(frames[0]), list(frames[1]), list(frames[2]))


def _pair_tokens(tokenizer: Tokenizer) -> tuple[list[int], list[int], list[int]] | None:
    for text in _known(tokenizer):
        encoded = tokenizer.encode(text, text)
        first = [place for place, side in enumerate(encoded.sequences) if side == 0]
        second = [place for place, side in enumerate(encoded.sequences) if side == 1]
        if first and second:
            ids = encoded.ids
            between = ids[first[-1] + 1 : second[0]]
            return (ids[: first[0]], between, ids[second[-1] + 1 :]) if between else None
    return None


@dataclass(frozen=True)
class Framing:
    """How a model reads one text or two: the special tokens around and between them, and how much fits."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    pair: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None  # before, between, after
    segments: (
        int  # ids of segments: 0 none, 2 one for each text of a pair, 3 one for the last token too (XLNet's <cls>)
    )
    length: int  # tokens of a window, special ones included
    stride: int  # tokens of the text from one window to the next
    cutting: bool = False  # what does not fit into one window is truncated
    nothing: tuple[int, ...] = ()  # what is read of an empty text where nothing stands around it

    def marks(self, pair: bool) -> int:
        """The ids of segments that its windows need: a single text mostly has but one."""
        return self.segments if pair or self.segments > 2 else 0


def framing_of(
    tokenizer: Tokenizer, causal: bool, length: int, stride: int, segments: bool, cutting: bool = False
) -> Framing:
    """How this tokenizer frames texts; a decoder reads a token between the texts of a pair."""
    before, after = frame(tokenizer)
    two, end = pair_frame(tokenizer), tokenizer.id_of("end")
    if two is None and end is not None and not before and not after:
        two = [], [end], []  # a vocabulary of words puts nothing around a text, but may know where one ends
    if causal:
        # GPT's vocabulary has no such token; its paper puts a $ between two texts.
        close = [end] if end is not None else tokenizer.ids(["$"], specials=False)[0]
        two = two or ((before, close, after) if close else None)
    pair = None if two is None else (tuple(two[0]), tuple(two[1]), tuple(two[2]))
    marks = segment_ids(tokenizer, True) if segments else frozenset()
    sign = next((number for role in ("end", "unknown") if (number := tokenizer.id_of(role)) is not None), None)
    nothing = () if before or after or sign is None else (sign,)
    return Framing(
        tuple(before), tuple(after), pair, 3 if 2 in marks else 2 * (1 in marks), length, stride, cutting, nothing
    )


@dataclass(frozen=True)
class TextWindow:
    """One window of one example, as the network reads it."""

    tokens: list[int]
    border: int  # where the second segment begins; the number of tokens where there is none
    lead: int  # tokens before the text that is cut
    cut: Cut  # of that text
    summary: int = 0  # place of the token that stands for the whole window: [CLS]


def pieces(framing: Framing, first: Sequence[int], second: Sequence[int] | None = None) -> list[TextWindow]:
    """The windows of a text or a pair; the shorter of a pair stands in every window, or both are cut side by side."""
    if second is not None and framing.pair is None:
        raise UserError("the tokenizer has no separator token for pairs of texts")
    alone = (framing.before, (), framing.after)
    before, between, after = alone if second is None or framing.pair is None else framing.pair
    room = _room(framing, len(before) + len(between) + len(after))
    first, two = first if second is not None else first or framing.nothing, framing.segments and second is not None

    def piece(a: Sequence[int], b: Sequence[int], of_first: bool, c: Cut) -> TextWindow:
        whole = [*before, *a, *between, *b, *after]
        border = len(before) + len(a) + len(between)
        summary = len(whole) - 1 if framing.segments > 2 else 0
        return TextWindow(whole, border if two else len(whole), len(before) if of_first else border, c, summary)

    if second is not None and (len(first) + len(second) <= room or len(first) <= room // 2):
        cuts = _cuts(framing, len(second), max(1, room - len(first)))
        return [piece(first, second[c.start : c.end], False, c) for c in cuts]
    second = second or ()
    if len(second) <= room // 2:
        return [piece(first[c.start : c.end], second, True, c) for c in _cuts(framing, len(first), room - len(second))]
    ones, others = _cuts(framing, len(first), room // 2), _cuts(framing, len(second), room // 2)
    windows, longer = [], len(ones) >= len(others)
    for number in range(max(len(ones), len(others))):
        a, b = ones[min(number, len(ones) - 1)], others[min(number, len(others) - 1)]
        windows.append(piece(first[a.start : a.end], second[b.start : b.end], longer, a if longer else b))
    return windows


@dataclass(frozen=True)
class FlatWindows:
    """The windows of single texts as arrays: what `pieces` gives, for many texts in a fraction of the time.

    W: windows, in the order of the texts; N: tokens of all texts, without what stands around them.
    """

    framing: Framing
    tokens: NDArray[np.int64]  # N
    texts: NDArray[np.int64]  # W: the number of the text
    begins: NDArray[np.int64]  # W: where the text begins in `tokens`
    cuts: NDArray[np.int64]  # W 4: start, end, first and last as those of a `Cut`

    @staticmethod
    def of(framing: Framing, texts: Sequence[Sequence[int]]) -> FlatWindows:
        room = _room(framing, len(framing.before) + len(framing.after))
        texts = [text or framing.nothing for text in texts]
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        tokens = np.fromiter(chain.from_iterable(texts), np.int64, int(lengths.sum()))
        numbers, none = np.arange(len(texts)), np.zeros_like(lengths)
        cuts = np.stack([none, lengths, none, lengths], 1)
        if (lengths > room).any():
            by_text = [_cuts(framing, length, room) for length in lengths.tolist()]
            numbers = np.repeat(numbers, [len(some) for some in by_text])
            cuts = np.array([(c.start, c.end, c.first, c.last) for some in by_text for c in some], np.int64)
        return FlatWindows(framing, tokens, numbers, (np.cumsum(lengths) - lengths)[numbers], cuts)

    def lengths(self) -> NDArray[np.int64]:
        """W: tokens of each window, with those around it."""
        return self.cuts[:, 1] - self.cuts[:, 0] + len(self.framing.before) + len(self.framing.after)

    def framed(self, numbers: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_] | None]:
        """These windows one after the other: their tokens, where each begins and the last ends, and which tokens count:
        those around a text and those that belong to a window; None where all do."""
        before, after, cuts = self.framing.before, self.framing.after, self.cuts[numbers]
        inner, ends = cuts[:, 1] - cuts[:, 0], np.cumsum(self.lengths()[numbers])
        borders = np.concatenate([[0], ends])
        # Of each token of a text its place in all windows, in the text, and among the tokens of all texts.
        run = np.arange(inner.sum())
        firsts = np.cumsum(inner) - inner
        places = run + np.repeat(borders[:-1] + len(before) - firsts, inner)
        tokens = np.empty(borders[-1], np.int64)
        tokens[places] = self.tokens[run + np.repeat(self.begins[numbers] + cuts[:, 0] - firsts, inner)]
        for place, token in enumerate(before):
            tokens[borders[:-1] + place] = token
        for place, token in enumerate(reversed(after), 1):
            tokens[ends - place] = token
        if (cuts[:, :2] == cuts[:, 2:]).all():
            return tokens, borders, None
        within = run + np.repeat(cuts[:, 0] - firsts, inner)
        own = np.ones(len(tokens), dtype=np.bool_)
        own[places] = (within >= np.repeat(cuts[:, 2], inner)) & (within < np.repeat(cuts[:, 3], inner))
        return tokens, borders, own


def _room(framing: Framing, special: int) -> int:
    """Tokens of texts that a window holds beside the special ones."""
    if framing.length - special < 2:
        raise UserError(f"a window of {framing.length} tokens has no room beside the special tokens")
    return framing.length - special


def segments_of(borders: NDArray[np.int64], lengths: NDArray[np.int64], segments: int) -> NDArray[np.int64]:
    """N: the segment of each token of windows, given where their second texts begin and how long they are."""
    ends = lengths - (segments > 2)
    borders = np.minimum(borders, ends)
    sizes = np.stack([borders, ends - borders, lengths - ends], 1)
    return np.repeat(np.tile(np.arange(3), len(lengths)), sizes.ravel())


def _cuts(framing: Framing, length: int, room: int) -> list[Cut]:
    if framing.cutting and length > room:
        return [Cut(0, room, 0, room)]
    return cut(length, room, min(framing.stride, room))


def special_tokens(framing: Framing, texts: int) -> int:
    """How many special tokens stand around and between the texts of an example."""
    if texts == 1 or framing.pair is None:
        return len(framing.before) + len(framing.after)
    return sum(map(len, framing.pair))


def left_out(framing: Framing, windows: Sequence[TextWindow], *lengths: int) -> bool:
    """Whether the windows of an example leave some of its tokens out."""
    return framing.cutting and len(windows[0].tokens) - special_tokens(framing, len(lengths)) < sum(lengths)


def words_in(text: str) -> list[tuple[int, int]]:
    """Where the words of a text stand: runs of letters, marks and digits, and each other sign by itself."""
    return [match.span() for match in WORD.finditer(text)]
