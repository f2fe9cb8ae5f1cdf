"""Long texts: how long one may be, and the parts in which one goes through a tokenizer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weft.errors import UserError

MAX_LENGTH = 1 << 23  # characters of one text; where places in it are asked for, half as many
PART = 1 << 16  # characters that go through a tokenizer at a time: it takes some hundred bytes for each
TOGETHER = 1 << 20  # characters of several texts that do


def too_long(text: str | Sequence[str], max_length: int | None = None) -> str | None:
    """What is wrong with a text that is longer than any model reads; None where nothing is."""
    size = len(text) if isinstance(text, str) else sum(len(word) for word in text if isinstance(word, str))
    limit = max_length or MAX_LENGTH
    return None if size <= limit else f"a text of {size:,} characters; at most {limit:,} are read at a time: split it"


def check_length(text: str | Sequence[str], where: str) -> None:
    """Refuse a text that would take all memory when it is cut into tokens."""
    if wrong := too_long(text):
        raise UserError(f"{where}: {wrong}")


def parts_of(text: str, size: int) -> Iterator[str]:
    """A long text in parts that the tokenizer cuts as it would the whole: a part begins at the space before a word."""
    begin = 0
    while len(text) - begin > size:
        end = text.rfind(" ", begin + 1, begin + size)
        while end > 0 and text[end + 1].isspace():
            end = text.rfind(" ", begin + 1, end)
        end = end if end > 0 else begin + size
        yield text[begin:end]
        begin = end
    yield text[begin:]
