"""Japanese BERT's tokenizer: words by MeCab (the package fugashi), then WordPiece or single characters.

It gives the same tokens as transformers' BertJapaneseTokenizer, and where each stands in the text.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Library
from tokenizers import decoders, models

from weft.errors import UserError, one_of, shown
from weft.files import write_json, write_text
from weft.text.tokenizers import tokenizer
from weft.text.tokenizers.split import Spans, SplitTokenizer, Words
from weft.text.tokenizers.tokenizer import Roles, Tokenizer

DICTIONARIES = {"ipadic": "ipadic", "unidic_lite": "unidic-lite", "unidic": "unidic"}  # modules, and their packages
EXTRA = "pip install 'weft[japanese]'"
CLUSTER = 64  # characters that may become one with the first of them: more would take time that grows with their square


def is_japanese(settings: dict[str, Any]) -> bool:
    """Whether the settings of a vocabulary ask for words that a program outside of it splits."""
    named = str(settings.get("tokenizer_class") or "")
    return settings.get("word_tokenizer_type", "basic") != "basic" or "BertJapanese" in named


def normalized(text: str) -> tuple[str, Spans]:
    """A text in Unicode's form NFKC, and where each of its characters comes from."""
    if unicodedata.is_normalized("NFKC", text):
        return text, [(place, place + 1) for place in range(len(text))]
    parts, spans, start = list[str](), Spans(), 0
    while start < len(text):
        end, part = start + 1, unicodedata.normalize("NFKC", text[start])
        while end < min(len(text), start + CLUSTER):  # marks, and letters that become one with those before them
            one, both = (unicodedata.normalize("NFKC", text[first : end + 1]) for first in (end, start))
            if both == part + one and not unicodedata.combining(text[end]):
                break
            end, part = end + 1, both
        parts.append(part)
        spans += [(start, end)] * len(part)
        start = end
    whole = unicodedata.normalize("NFKC", text)
    return whole, spans if "".join(parts) == whole else [(0, len(text))] * len(whole)


class WordSplitter:
    """MeCab with one of its dictionaries, as `tokenizer_config.json` asks for it."""

    def __init__(self, settings: dict[str, Any], where: Path) -> None:
        kind = settings.get("word_tokenizer_type", "basic")
        if kind != "mecab":
            raise UserError(f"{where}: words are split by {shown(str(kind))}, which Weft does not run; only mecab is")
        for switch in ("do_word_tokenize", "do_subword_tokenize"):
            if settings.get(switch, True) is not True:
                raise UserError(f"{where}: {switch} is {shown(str(settings[switch]))}; only true is supported")
        if settings.get("never_split") and settings.get("do_lower_case"):
            raise UserError(f"{where}: never_split is not supported with do_lower_case")
        options = settings.get("mecab_kwargs") or {}
        known = {"mecab_dic", "normalize_text", "mecab_option"}
        if not isinstance(options, dict) or set(options) - known or options.get("mecab_option"):
            raise UserError(f"{where}: mecab_kwargs may hold mecab_dic and normalize_text, and no options of MeCab")
        name = one_of(str(options.get("mecab_dic", "unidic_lite")), DICTIONARIES, f"{where}: mecab_dic")
        self.normalizes = bool(options.get("normalize_text", True))
        self.lowercase = bool(settings.get("do_lower_case", False))
        try:
            fugashi, dictionary = import_module("fugashi"), import_module(name)
        except ModuleNotFoundError as error:
            missing = DICTIONARIES.get(str(error.name), str(error.name))
            raise UserError(f"{where}: Japanese words are split by the package {missing}: {EXTRA}") from None
        folder = Path(dictionary.DICDIR)
        self.split: Callable[[str], Iterable[Any]] = fugashi.GenericTagger(f'-d "{folder}" -r "{folder / "mecabrc"}"')

    def words(self, text: str) -> Words:
        """The words of a text with the places of their characters in it."""
        text, spans = normalized(text) if self.normalizes else (text, [(n, n + 1) for n in range(len(text))])
        words, place = Words(), 0
        for word in self.split(text):
            surface = str(word.surface)
            place = text.index(surface, place)
            own, place = spans[place : place + len(surface)], place + len(surface)
            small = surface.lower() if self.lowercase else surface
            words.append((small, own if len(small) == len(own) else [(own[0][0], own[-1][1])] * len(small)))
        return words


class JapaneseTokenizer(SplitTokenizer):
    """A vocabulary of pieces or characters of the words that MeCab splits a text into."""

    splitter: WordSplitter

    def __init__(self, library: Library, roles: Roles, settings: dict[str, Any], splitter: WordSplitter) -> None:
        super().__init__(library, roles, settings, splitter)
        self.single = settings.get("subword_tokenizer_type") == "character"

    @property
    def pipeline(self) -> str:
        keys = ("word_tokenizer_type", "subword_tokenizer_type", "mecab_kwargs", "do_lower_case")
        return json.dumps([self.library.to_str(), {key: self.settings.get(key) for key in keys}])

    def with_padding(self, name: str | None) -> Tokenizer:
        return JapaneseTokenizer(self.library, replace(self.roles, padding=name), self.settings, self.splitter)

    def words(self, text: str) -> Words:
        words = super().words(text)
        if not self.single:
            return [part for part in words if part[0].strip()]
        letters = Words()
        for word, spans in words:
            if self.special.fullmatch(word):
                letters.append((word, spans))
                continue
            text, parts = normalized(word)  # as characters are always read
            letters += [(c, [(spans[a][0], spans[b - 1][1])]) for c, (a, b) in zip(text, parts, strict=True)]
        return letters

    def save(self, folder: str | Path) -> None:
        """Write vocab.txt and tokenizer_config.json, which transformers opens with the same ids."""
        plain = self.library.get_vocab(with_added_tokens=False)
        write_text(Path(folder) / "vocab.txt", "".join(f"{token}\n" for token in sorted(plain, key=lambda t: plain[t])))
        config = {**self.settings, "tokenizer_class": "BertJapaneseTokenizer"}
        for role, name in vars(self.roles).items():
            keys = tokenizer.ROLES[role][0]
            if name is not None and not any(config.get(key) for key in keys):
                config[keys[0]] = name
        write_json(Path(folder) / "tokenizer_config.json", config)


def read_japanese(file: Path, settings: dict[str, Any], vocabulary: dict[str, int]) -> tuple[Library, WordSplitter]:
    """The vocabulary of a Japanese BERT, and what splits words for it."""
    pieces = settings.get("subword_tokenizer_type", "wordpiece")
    if pieces not in ("wordpiece", "character"):
        raise UserError(
            f"{file}: words are cut by {shown(str(pieces))}, not by wordpiece or character as Weft reads them"
        )
    splitter = WordSplitter(settings, file.parent / "tokenizer_config.json")
    unknown = tokenizer.token_name(settings.get("unk_token"), "unk_token", file) or "[UNK]"
    library = Library(models.WordPiece(vocabulary, unk_token=unknown))
    library.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    return library, splitter
