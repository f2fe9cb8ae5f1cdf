"""The ids of characters in ELMo, as published, and how a vocabulary of words and bytes names them."""

from __future__ import annotations

# 0 fills batches up, byte b of UTF-8 is b + 1, and what marks sentences and words comes after the bytes.
BYTES = range(1, 257)
START, END = 257, 258  # of a sentence: each is a word of its own
BEGIN, STOP, FILLING = 259, 260, 261  # before a word, after it, and after that
FIRST_WORD = 262  # a vocabulary has its words from this id on, each one token; other words are `BEGIN` and their bytes


def byte_names() -> list[str]:
    """The character that names each byte in a vocabulary of bytes (GPT-2's: the printable ones are themselves)."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    rest = iter(range(256, 512))
    return [chr(byte if byte in printable else next(rest)) for byte in range(256)]


SPACE = byte_names()[ord(" ")]  # names `BEGIN`: a word begins with the space before it


def characters_in(word: bytes, length: int) -> list[int]:
    """The ids of a word between its marks, cut to so many."""
    return [BEGIN, *(byte + 1 for byte in word[: length - 2]), STOP]
