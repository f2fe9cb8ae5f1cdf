"""Long texts into overlapping windows and back: every token belongs to exactly one of them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from weft.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Cut:
    """One window over the tokens of a text: what it reads, and which of that it answers for."""

    start: int
    end: int
    first: int  # its own tokens are those from here ...
    last: int  # ... up to, not including, here


def cut(length: int, size: int, stride: int) -> list[Cut]:
    """Windows of `size` tokens, `stride` apart, over `length` tokens; in an overlap each token goes to the window that
    shows more of its surroundings."""
    assert 1 <= stride <= size
    starts = [0]
    while starts[-1] + size < length:
        starts.append(starts[-1] + stride)
    ends = [min(start + size, length) for start in starts]
    borders = [0, *((start + end) // 2 for start, end in zip(starts[1:], ends[:-1], strict=True)), length]
    return [
        Cut(start, end, first, last)
        for start, end, first, last in zip(starts, ends, borders[:-1], borders[1:], strict=True)
    ]


def frame(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The special tokens that a tokenizer puts before and after a text."""
    # Seen on a text that it knows: the letter is unknown to some, and dropped where nothing stands for the unknown.
    others = (tokenizer.decode([number]) for number in range(tokenizer.vocabulary))
    for text in chain(["a"], others):
        encoded = tokenizer.encode(text)
        inside = [place for place, special in enumerate(encoded.specials) if not special]
        if inside:
            return encoded.ids[: inside[0]], encoded.ids[inside[-1] + 1 :]
    return [], []


def pair_frame(tokenizer: Tokenizer) -> tuple[list[int], list[int], list[int]] | None:
    """The special tokens before, between and after the two texts of a pair; None where nothing keeps them apart."""
    others = (tokenizer.decode([number]) for number in range(tokenizer.vocabulary))
    for text in chain(["a"], others):
        encoded = tokenizer.encode(text, text)
        first = [place for place, side in enumerate(encoded.sequences) if side == 0]
        second = [place for place, side in enumerate(encoded.sequences) if side == 1]
        if first and second:
            ids = encoded.ids
            between = ids[first[-1] + 1 : second[0]]
            return (ids[: first[0]], between, ids[second[-1] + 1 :]) if between else None
    return None
