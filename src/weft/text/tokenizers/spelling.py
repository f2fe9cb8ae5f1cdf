"""What each token adds to a text, byte by byte, and which tokens go on with the letters that somebody has typed."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache

from tokenizers import models

from weft.spelling import byte_names
from weft.text.tokenizers.tokenizer import Tokenizer

BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # a token for a byte of a character that the vocabulary does not have
BYTE_LETTERS = {name: byte for byte, name in enumerate(byte_names())}


def inside(character: str) -> bool:
    """Whether a character is part of a word: a letter or digit, what stands on one, an apostrophe, half a character."""
    return character in "_'’\ufffd" or unicodedata.category(character)[0] in "LNM"


class Spelling:
    """The bytes of every token of a vocabulary, in an index by what they begin with."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.bytes = _bytes_of(tokenizer)
        # Part of a character comes out as U+FFFD, and a special token as nothing.
        self.texts = [own.decode("utf-8", "replace") for own in self.bytes]
        self.order = sorted((number for number, own in enumerate(self.bytes) if own), key=lambda n: self.bytes[n])
        self.sorted = [self.bytes[number] for number in self.order]
        self.exact: dict[bytes, list[int]] = {}
        for number, own in zip(self.order, self.sorted, strict=True):
            self.exact.setdefault(own, []).append(number)

    @staticmethod
    @lru_cache(maxsize=8)
    def of(tokenizer: Tokenizer) -> Spelling:
        """That of a tokenizer, made once."""
        return Spelling(tokenizer)

    def following(self, rest: bytes) -> list[int]:
        """The tokens that may come next where the text has to go on with these bytes: those that begin with all of
        them, and those that are a beginning of them."""
        first = bisect_left(self.sorted, rest)
        last = bisect_left(self.sorted, True, lo=first, key=lambda own: not own.startswith(rest))
        shorter = (self.exact.get(rest[:size], ()) for size in range(1, len(rest)))
        return [*self.order[first:last], *(number for some in shorter for number in some)]

    def rest(self, typed: bytes, tokens: list[int]) -> bytes:
        """What of the typed bytes these tokens, which go on with them, have not spelled yet."""
        for number in tokens:
            if not typed:
                break
            typed = typed[len(self.bytes[number]) :]
        return typed


def _bytes_of(tokenizer: Tokenizer) -> list[bytes]:
    """What each token adds to a text that ends with a word; nothing for special tokens."""
    numbers, library = range(tokenizer.vocabulary), tokenizer.library
    names = [tokenizer.token(number) or "" for number in numbers]
    added = library.get_added_tokens_decoder()
    special = {number for number, token in added.items() if token.special}
    if "ByteLevel" in repr(library.decoder):
        known = [n not in added and all(letter in BYTE_LETTERS for letter in name) for n, name in enumerate(names)]
        spelled = [
            bytes(BYTE_LETTERS[letter] for letter in name) if plain else name.encode()
            for name, plain in zip(names, known, strict=True)
        ]
        return [b"" if number in special else own for number, own in enumerate(spelled)]
    suffix = library.model.end_of_word_suffix if isinstance(library.model, models.BPE) else None
    if suffix:  # the first GPT's: the space stands at the end of a word
        ends = [name.removesuffix(suffix) + " " * name.endswith(suffix) for name in names]
        return [b"" if number in special else name.encode() for number, name in enumerate(ends)]
    # Some vocabularies write spaces only between words, so a token is decoded after a word.
    anchor = next(([number] for number in numbers if tokenizer.decode([number]).strip().isalnum()), [])
    before = tokenizer.decode(anchor)
    texts = [tokenizer.decode([*anchor, number]).removeprefix(before).encode() for number in numbers]
    halves = [BYTE.fullmatch(name) for name in names]
    return [own if half is None else bytes.fromhex(half[1]) for own, half in zip(texts, halves, strict=True)]


@dataclass(frozen=True)
class HalfWord:
    """A text whose last word is still being typed: the tokens before it, and what those after them begin with."""

    before: list[int]
    typed: bytes  # as the vocabulary spells it: in small letters or with a space before it, where it does so
    letters: str  # as it stands in the text
    taken: int  # tokens that were taken back


def half_word(tokenizer: Tokenizer, text: str) -> HalfWord:
    """A text less its last word, or less the spaces at its end; nothing is taken back where it ends with a mark."""
    encoded = tokenizer.encode(text, specials=False)
    ids, offsets = encoded.ids, encoded.offsets
    word = bool(text) and inside(text[-1])
    start = _last_word(text) if word else len(text.rstrip())
    if word and ids and _unspaced(text[-1]):  # no spaces between words: only the last token is taken back
        start = max(start, offsets[-1][0])
    border = next((place for place, (_, end) in enumerate(offsets) if end > start), len(ids))
    while 0 < border < len(ids) and offsets[border - 1][1] > offsets[border][0]:  # tokens of one character
        border -= 1
    if not word and border < len(ids) and text[slice(*offsets[border])].strip():
        border = len(ids)
    letters, spelling = text[start:], Spelling.of(tokenizer)
    typed = b"".join(spelling.bytes[number] for number in ids[border:])
    if word and border and not typed.startswith(b" ") and spelling.bytes[ids[border - 1]] == b" ":
        border, typed = border - 1, b" " + typed  # the whole word may be a token with the space in it
    if not word:
        if border and letters and not typed and spelling.following(b" "):
            typed = b" "  # the vocabulary has no tokens of spaces alone: the next word brings one
        return HalfWord(ids[:border], typed, letters, len(ids) - border)
    typed, normalizer = typed.rstrip(b" "), tokenizer.library.normalizer
    wanted = text[min(start, offsets[border][0]) if border < len(ids) else start :].strip()
    wanted = wanted if normalizer is None else normalizer.normalize_str(wanted).replace("▁", "").replace(" ", "")
    if not typed.decode("utf-8", "replace").replace(" ", "").endswith(wanted):  # a vocabulary may not know half a word
        apart = tokenizer.kind != "character" and "ByteLevel" not in repr(tokenizer.library.decoder)
        typed = b" " * apart + wanted.encode()
    if b" " in typed.strip() and len(set(tokenizer.encode(f"{wanted}a", specials=False).words)) == 1:
        typed = b" " * typed.startswith(b" ") + typed.replace(b" ", b"")  # "can'" may become one word, "can't"
    return HalfWord(ids[:border], typed, letters, len(ids) - border)


def _last_word(text: str) -> int:
    """Where the word at the end of a text begins; letters of a script without spaces are no part of other words."""
    unspaced, start = _unspaced(text[-1]), len(text)
    while start and inside(text[start - 1]) and _unspaced(text[start - 1]) == unspaced:
        start -= 1
    return start


def _unspaced(character: str) -> bool:
    """Whether a letter is of a script that writes no spaces between words: Chinese, Japanese, Thai and its kin."""
    wide = unicodedata.east_asian_width(character) in "WF" and not "\uac00" <= character <= "\ud7af"
    return wide or any(low <= character <= high for low, high in ("\u0e00\u0eff", "\u1000\u109f", "\u1780\u17ff"))


def after_typed(text: str, typed: bytes) -> str:
    """What stands in a text after what it begins with; spaces may be written otherwise at the beginning of a text."""
    letters = len("".join(typed.decode("utf-8", "replace").split()))
    if not letters:
        return text.removeprefix(typed.decode())
    for place, character in enumerate(text, 1):
        letters -= not character.isspace()
        if not letters:
            return text[place:]
    return ""
