"""Marian's vocabularies: `source.spm` and `target.spm` cut the text, `vocab.json` numbers the pieces of both.

`target_vocab.json` numbers what is written where the two languages have a vocabulary each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Encoding

from weft.errors import UserError, listed, shown
from weft.files import MEGABYTE, read_bytes, read_json, write_bytes, write_json
from weft.text.tokenizers import sentencepiece
from weft.text.tokenizers.limits import check_tokens
from weft.text.tokenizers.tokenizer import (
    Encoded,
    Roles,
    Text,
    Tokenizer,
    check,
    check_ids,
    guarded,
    settings_in,
    surround,
    token_name,
)

SOURCE, TARGET, NUMBERS = "source.spm", "target.spm", "vocab.json"
TARGET_NUMBERS = "target_vocab.json"
HIDDEN = "\x00"  # before the name of a piece that stands for no text: no text has it there


class MarianTokenizer(Tokenizer):
    """One language of a Marian folder."""

    def __init__(
        self,
        pieces: sentencepiece.SentencePieceModel,
        numbers: Mapping[str, int],
        settings: dict[str, Any],
        files: Mapping[str, bytes],
        where: Path,
    ) -> None:
        roles = Roles(
            padding=token_name(settings.get("pad_token"), "pad_token", where) or "<pad>",
            unknown=token_name(settings.get("unk_token"), "unk_token", where) or "<unk>",
            end=token_name(settings.get("eos_token"), "eos_token", where) or "</s>",
        )
        named = [name for name in (roles.unknown, roles.end, roles.padding) if name is not None]
        lacking = [name for name in named if name not in numbers]
        if lacking:
            raise UserError(f"{where}: has no number for {listed(shown(name) for name in lacking)}")
        self.controls = {
            name
            for name, kind in zip(pieces.names, pieces.types, strict=True)
            if kind == sentencepiece.CONTROL and name not in named
        }
        # The names of these in a text are spelled out, as sentencepiece does it.
        hidden = replace(pieces, names=[HIDDEN + name if name in self.controls else name for name in pieces.names])
        library = sentencepiece.build(hidden, str(where))
        library.add_tokens([AddedToken(name, special=True, normalized=False) for name in named])
        surround(library, roles, "t5")
        super().__init__(library, roles, settings)
        self.files = files
        self.numbers = numbers
        self.vocabulary = len(numbers)
        self.names = {number: name for name, number in numbers.items()}
        self.special = frozenset(named)
        self.unknown, self.unknown_piece = numbers[str(roles.unknown)], pieces.unknown
        size = library.get_vocab_size(with_added_tokens=True)
        tokens = (library.id_to_token(number) or "" for number in range(size))
        self.table = [numbers.get(token, self.unknown) for token in tokens]  # by the model's own ids

    def renumbered(self, encoding: Encoding, code: str) -> list[int]:
        """The ids of vocab.json for those of the SentencePiece model."""
        ids = [self.table[number] for number in encoding.ids]
        if self.unknown_piece in encoding.ids:  # what this model does not know may be a piece of the other's
            for place, (number, piece) in enumerate(zip(encoding.ids, encoding.tokens, strict=True)):
                if number == self.unknown_piece:
                    ids[place] = self.numbers.get(piece, self.unknown)
        return [self.numbers.get(code, self.unknown), *ids] if code else ids

    @property
    def pipeline(self) -> str:
        return f"{super().pipeline}{sorted(self.numbers.items())}"

    def id_of(self, role: str) -> int | None:
        name: str | None = vars(self.roles)[role]
        return None if name is None else self.numbers.get(name)

    def id(self, token: str) -> int | None:
        return self.numbers.get(token)

    @property
    def tokens(self) -> dict[str, int]:
        return dict(self.numbers)

    def token(self, number: int) -> str | None:
        return self.names.get(number)

    def with_padding(self, name: str | None) -> Tokenizer:
        assert name == self.roles.padding, "Marian's vocabularies have a padding token"
        return self

    def encode(self, text: Text, pair: Text | None = None, specials: bool = True) -> Encoded:
        code, rest = _code(text)
        return Encoded(super().encode(rest, pair, specials).encoding, self.renumbered, code)

    def encode_batch(
        self, texts: Sequence[Text], pairs: Sequence[Text] | None = None, specials: bool = True
    ) -> list[Encoded]:
        cut = [_code(text) for text in texts]
        batch = super().encode_batch([rest for _, rest in cut], pairs, specials)
        codes = (code for code, _ in cut)
        return [Encoded(a.encoding, self.renumbered, code) for a, code in zip(batch, codes, strict=True)]

    def ids(self, texts: Sequence[Text], specials: bool = True) -> list[list[int]]:
        return [encoded.ids for encoded in self.encode_batch(texts, specials=specials)]

    def decode(self, ids: Sequence[int], specials: bool = False) -> str:
        text = ""
        run: list[str] = []
        for name in (self.names.get(number) for number in ids):
            if name in self.special:
                if specials:
                    text, run = f"{text}{self._joined(run)}{name} ", []
            elif name is not None and name not in self.controls:
                run.append(name)
        return (text + self._joined(run)).replace(sentencepiece.SPACE, " ").strip()

    def _joined(self, pieces: list[str]) -> str:
        return self.library.decoder.decode(pieces) if pieces else ""

    def save(self, folder: str | Path) -> None:
        """Write the files of both languages as they were, and what transformers needs to open them."""
        for name, data in self.files.items():
            write_bytes(Path(folder) / name, data)
        config = {"source_lang": None, "target_lang": None, **self.settings, "tokenizer_class": "MarianTokenizer"}
        config |= {"separate_vocabs": TARGET_NUMBERS in self.files}
        config |= {"pad_token": self.roles.padding, "unk_token": self.roles.unknown, "eos_token": self.roles.end}
        write_json(Path(folder) / "tokenizer_config.json", config)


def _code(text: Text) -> tuple[str, Text]:
    """A language code such as >>fra<< that a text begins with, and the text behind it."""
    if isinstance(text, str) and text.startswith(">>") and "<<" in text:
        end = text.index("<<") + 2
        return text[:end], text[end:]
    return "", text


def is_marian(folder: Path) -> bool:
    """Whether a folder holds Marian's vocabularies."""
    return all((folder / name).is_file() for name in (SOURCE, TARGET, NUMBERS))


def read_sides(folder: Path) -> tuple[MarianTokenizer, MarianTokenizer]:
    """The tokenizers of what is read and of what is written."""
    settings = settings_in(folder)
    apart = settings.get("separate_vocabs", False)
    if not isinstance(apart, bool):
        raise UserError(
            f"{folder / 'tokenizer_config.json'}: separate_vocabs is {shown(str(apart))}, neither true nor false"
        )
    names = [SOURCE, TARGET, NUMBERS, *([TARGET_NUMBERS] if apart else [])]
    files = {
        name: read_bytes(folder / name, sentencepiece.MAX_FILE_BYTES if name.endswith(".spm") else 64 * MEGABYTE)
        for name in names
    }
    sides = []
    for cutter, numbering in ((SOURCE, NUMBERS), (TARGET, TARGET_NUMBERS if apart else NUMBERS)):
        with guarded(folder / cutter):
            pieces = sentencepiece.parse(files[cutter], str(folder / cutter))
            file = folder / numbering
            numbers: dict[str, int] = read_json(file)
            check_tokens(numbers, str(file))
            for token, number in numbers.items():
                if type(number) is not int or number < 0:
                    raise UserError(f"{file}: the id of {shown(token)!r} is {shown(str(number))}, not a number from 0")
            check_ids(numbers, file)
            side = MarianTokenizer(pieces, numbers, settings, files, file)
            check(side.library, folder / cutter)
        sides.append(side)
    return sides[0], sides[1]
