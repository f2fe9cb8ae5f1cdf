"""Tokenizers whose words are split by a program outside of the vocabulary: MeCab (Japanese BERT), Moses (XLM)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Protocol

from tokenizers import Encoding
from tokenizers import Tokenizer as Library

from weft.text.rows import MAX_LENGTH
from weft.text.tokenizers.tokenizer import Encoded, Roles, Text, Tokenizer

Spans = list[tuple[int, int]]  # of each character, where it stands in the text
Words = list[tuple[str, Spans]]


class Splitter(Protocol):
    def words(self, text: str) -> Words:
        """The words of a text with the places of their characters in it."""


class SplitEncoded(Encoded):
    """Tokens of a text that was split into words before."""

    __slots__ = ("sides",)

    def __init__(self, encoding: Encoding, sides: Sequence[tuple[Words, list[int]]]) -> None:
        super().__init__(encoding)
        self.sides = sides  # of the text and of its pair: the words, and which of the given words each is a part of

    @property
    def offsets(self) -> list[tuple[int, int]]:
        places = list[tuple[int, int]]()
        encoding = self.encoding
        for span, word, side in zip(encoding.offsets, encoding.word_ids, encoding.sequence_ids, strict=True):
            own = [] if word is None or side is None else self.sides[side][0][word][1]
            start, end = span
            places.append((own[start][0], own[end - 1][1]) if start < end <= len(own) else (0, 0))
        return places

    @property
    def words(self) -> list[int | None]:
        pairs = zip(self.encoding.word_ids, self.encoding.sequence_ids, strict=True)
        return [None if word is None or side is None else self.sides[side][1][word] for word, side in pairs]


class SplitTokenizer(Tokenizer):
    """A vocabulary of pieces of the words that a program splits a text into."""

    def __init__(self, library: Library, roles: Roles, settings: dict[str, Any], splitter: Splitter) -> None:
        super().__init__(library, roles, settings)
        self.splitter = splitter
        special = [token.content for token in library.get_added_tokens_decoder().values()]
        longest_first = sorted(special, key=len, reverse=True)
        self.special = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def words(self, text: str) -> Words:
        """The words of a text; special tokens that stand in it are not split."""
        words, place = Words(), 0
        for match in (*self.special.finditer(text), None):
            begin, end = (len(text), len(text)) if match is None else match.span()
            for word, spans in self.splitter.words(text[place:begin]) if place < begin else ():
                words.append((word, [(start + place, stop + place) for start, stop in spans]))
            if match is not None:
                words.append((match[0], [(n, n + 1) for n in range(begin, end)]))
            place = end
        return words

    def _side(self, text: Text) -> tuple[Words, list[int]]:
        given = [text] if isinstance(text, str) else list(text)
        every = [self.words(word) for word in given]
        words = [word for some in every for word in some]
        owners = [number for number, some in enumerate(every) for _ in some]
        return words, list(range(len(words))) if isinstance(text, str) else owners

    def encode(self, text: Text, pair: Text | None = None, specials: bool = True) -> Encoded:
        return self.encode_batch([text], None if pair is None else [pair], specials)[0]

    def encode_batch(
        self, texts: Sequence[Text], pairs: Sequence[Text] | None = None, specials: bool = True
    ) -> list[Encoded]:
        with self._checked(texts, pairs or (), MAX_LENGTH // 2):
            for text in (*texts, *(pairs or ())):
                "".join(text).encode()  # half a character is named before a splitter sees it
            sides = [
                [self._side(text) for text in both]
                for both in (zip(texts, pairs, strict=True) if pairs else zip(texts))
            ]
            inputs: Any = [tuple([word for word, _ in words] for words, _ in both) for both in sides]
            inputs = inputs if pairs else [only for (only,) in inputs]
            encodings = self.library.encode_batch(inputs, is_pretokenized=True, add_special_tokens=specials)
        return [self.encoded(*each) for each in zip(encodings, sides, strict=True)]

    def encoded(self, encoding: Encoding, sides: Sequence[tuple[Words, list[int]]]) -> Encoded:
        return SplitEncoded(encoding, sides)

    def ids(self, texts: Sequence[Text], specials: bool = True) -> list[list[int]]:
        return [encoded.ids for encoded in self.encode_batch(texts, specials=specials)]
