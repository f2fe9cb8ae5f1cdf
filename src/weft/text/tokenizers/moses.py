"""XLM's published tokenizer: words by Moses (the package sacremoses), then BPE with </w> at the end of a word.

It gives the same tokens as transformers' XLMTokenizer, and where each stands in the text.
"""

from __future__ import annotations

import json
import unicodedata
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Library
from tokenizers import decoders, models

from weft.errors import UserError, shown
from weft.files import read_text, write_json, write_text
from weft.text.tokenizers import tokenizer
from weft.text.tokenizers.schema import MAX_MERGES
from weft.text.tokenizers.split import Spans, SplitEncoded, SplitTokenizer, Words
from weft.text.tokenizers.tokenizer import Encoded, Roles, Tokenizer

OTHERS = {"zh": "rjieba", "ja": "KyTea", "th": "PyThaiNLP"}  # languages whose words Moses does not split
# Marks that the published code writes in ASCII before it splits words; a space follows a full stop.
MARKS = str.maketrans(
    dict(zip("，、”“∶：？《》）！（；」「’━〈〉【】％～", ',,""::?"")!(;""\'-<>[]%~', strict=True))
    | {"…": "...", **{chr(0xFF10 + digit): str(digit) for digit in range(10)}}
)
BREAKS = dict.fromkeys((*range(9, 14), 0x85), " ")  # the published code reads one line, and joins words across breaks
ROMANIAN = str.maketrans("\u015e\u015f\u0162\u0163\u0218\u0219\u021a\u021bĂăÂâÎî", "SsTtSsTtAaAaIi")
SETTINGS = {"bos_token": "<s>", "sep_token": "</s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
SETTINGS |= {"mask_token": "<special1>"}


class MosesSplitter:
    """The words of a text in one language, in small letters and without accents where the vocabulary has none."""

    def __init__(self, language: str, lowercase: bool, where: Path) -> None:
        if language in OTHERS:
            program = f"splits {language!r} with {OTHERS[language]}, which Weft does not run"
            raise UserError(f"{where}: XLM {program}; choose another language")
        try:
            moses = import_module("sacremoses")
        except ModuleNotFoundError:
            raise UserError(
                f"{where}: XLM's words are split by the package sacremoses: pip install 'weft[xlm]'"
            ) from None
        self.language, self.lowercase, self.where = language, lowercase, where
        self.normalizer, self.moses = moses.MosesPunctNormalizer(lang=language), moses.MosesTokenizer(lang=language)

    def words(self, text: str) -> Words:
        """The words with the places of their characters: of those that Moses rewrites, about where they stood."""
        plain = text.translate(BREAKS)
        for stop in "。．":
            plain = ". ".join(part.lstrip() if number else part for number, part in enumerate(plain.split(stop)))
        plain = self.normalizer.normalize(plain.translate(MARKS))
        plain = "".join(c for c in plain if not unicodedata.category(c).startswith("C"))
        plain = plain.translate(ROMANIAN) if self.language == "ro" else plain
        split = self.moses.tokenize(plain, return_str=False, escape=False)
        letters = [(c, n) for n, original in enumerate(text) for c in self.folded(original.translate(MARKS))]
        letters = [each for each in letters if not each[0].isspace()]
        words, place = Words(), 0
        for word in filter(None, map(self.folded, split)):
            spans = Spans()
            for letter in word:
                while letter.isalnum() and place < len(letters) - 1 and not letters[place][0].isalnum():
                    place += 1  # a mark that Moses has left out
                at = letters[place][1]
                spans.append((at, at + 1))
                # Letters and digits stay as they are and in their order; a mark may be one more than there were.
                place += letter.isalnum() == letters[place][0].isalnum() and place < len(letters) - 1
            words.append((word, spans))
        return words

    def folded(self, text: str) -> str:
        if not self.lowercase:
            return text
        letters = unicodedata.normalize("NFD", text.lower())
        return "".join(c for c in letters if unicodedata.category(c) != "Mn").lower()


class MosesTokenizer(SplitTokenizer):
    """A vocabulary of pieces of the words that Moses splits a text into; a piece that it lacks is unknown."""

    splitter: MosesSplitter

    def __init__(
        self, library: Library, roles: Roles, settings: dict[str, Any], splitter: MosesSplitter, size: int
    ) -> None:
        super().__init__(library, roles, settings, splitter)
        self.vocabulary = size  # the tokens from there on are of merges alone

    @property
    def tokens(self) -> dict[str, int]:
        return {token: number for token, number in super().tokens.items() if number < self.vocabulary}

    @property
    def pipeline(self) -> str:
        return json.dumps([self.library.to_str(), self.splitter.language, self.splitter.lowercase])

    def with_padding(self, name: str | None) -> Tokenizer:
        roles = replace(self.roles, padding=name)
        return MosesTokenizer(self.library, roles, self.settings, self.splitter, self.vocabulary)

    def in_language(self, name: str) -> Tokenizer:
        splitter = MosesSplitter(name, self.splitter.lowercase, self.splitter.where)
        return MosesTokenizer(self.library, self.roles, self.settings, splitter, self.vocabulary)

    def encoded(self, *parts: Any) -> Encoded:
        encoded, unknown = SplitEncoded(*parts), self.id_of("unknown") or 0
        encoded.renumbered = lambda encoding, _: [n if n < self.vocabulary else unknown for n in encoding.ids]
        return encoded

    def save(self, folder: str | Path) -> None:
        """Write vocab.json, merges.txt and tokenizer_config.json, which transformers opens with the same ids."""
        merges = json.loads(self.library.to_str())["model"]["merges"]
        write_json(Path(folder) / "vocab.json", self.tokens)
        write_text(Path(folder) / "merges.txt", "".join(f"{left} {right}\n" for left, right in merges))
        write_json(Path(folder) / "tokenizer_config.json", {**self.settings, "tokenizer_class": "XLMTokenizer"})


def read_moses(file: Path, merges_file: Path) -> tuple[Library, int]:
    """A BPE vocabulary with the tokens that only merges have at its end, and how many it has without them."""
    vocabulary, merges = tokenizer.read_ids(file), list[tuple[str, str]]()
    size, lines = len(vocabulary), read_text(merges_file).replace("\r\n", "\n").split("\n")
    if len(lines) > MAX_MERGES:
        raise UserError(f"{merges_file}: {len(lines)} lines; at most {MAX_MERGES} merges are read")
    for number, line in enumerate(lines, start=1):
        parts = line.split()
        if not parts:
            continue
        if len(parts) not in (2, 3):  # the third is how often it was counted
            raise UserError(f"{merges_file} line {number}: {shown(line)!r} is not two tokens with a space between them")
        for token in (parts[0], parts[1], parts[0] + parts[1]):
            vocabulary.setdefault(token, len(vocabulary))
        merges.append((parts[0], parts[1]))
    library = Library(models.BPE(vocabulary, merges, unk_token="<unk>", end_of_word_suffix="</w>"))
    library.decoder = decoders.BPEDecoder(suffix="</w>")
    return library, size
