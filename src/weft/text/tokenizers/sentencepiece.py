"""SentencePiece models (`spiece.model`, `*.spm`) as tokenizers: a bounds-checked reader, no protobuf library.

The ids equal those of the sentencepiece library, with three known exceptions. The name of a control piece in the text
(`</s>`) becomes that piece, as in transformers, where sentencepiece spells it out. The `tokenizers` library applies the
character map by grapheme, so a few rare sequences (decomposed Hangul, a full-width letter with an accent) differ. And
where two ways to cut a word score the same (`?` `???` or `???` `?`), sentencepiece decides by how its 32-bit sums
happened to round: about one token in 100,000.

Marian has two such models: `source.spm` and `target.spm` cut the text, `vocab.json` numbers the pieces of both, or
`target_vocab.json` those of the target where each language has a vocabulary.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tokenizers import AddedToken, Encoding, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Library

from weft.errors import UserError, listed, shown
from weft.files import MEGABYTE, read_bytes, write_bytes, write_json
from weft.text.tokenizers import tokenizer
from weft.text.tokenizers.schema import MAX_ADDED_TOKENS, MAX_SCORE, check_charsmap, check_pieces, check_tokens
from weft.text.tokenizers.tokenizer import Encoded, Roles, Text, Tokenizer

SPACE = "\u2581"  # the visible space that begins a word
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
UNIGRAM, BPE = 1, 2
SPACES = " {2,}"
MAX_PIECES = 2_000_000  # the largest published model has 900,000
MAX_FIELDS = 100_000  # of one message inside; a trainer's holds a name for each symbol of the user
MAX_FILE_BYTES = 64 * MEGABYTE  # the largest published one has 18
MAX_MERGE_WORK = 1_000_000_000  # the sum of the squares of the lengths of pieces, which a search for merges takes


T = TypeVar("T", int, bytes)


class VocabularyPiece(NamedTuple):
    """One token of a SentencePiece model."""

    name: str
    kind: int = NORMAL
    score: float = 0.0


@dataclass(frozen=True, kw_only=True)
class SentencePieceModel:
    """What a SentencePiece model file says."""

    pieces: list[VocabularyPiece]
    model: int = UNIGRAM
    charsmap: bytes = b""
    dummy_prefix: bool = True
    squeeze_spaces: bool = True
    escape_spaces: bool = True
    spaces_end_words: bool = False
    byte_fallback: bool = False

    @property
    def unknown(self) -> int:
        """The id of the one unknown piece; `parse` sees to it that there is one."""
        return next(number for number, piece in enumerate(self.pieces) if piece.kind == UNKNOWN)


def parse(data: bytes, where: str) -> SentencePieceModel:
    """The model in the bytes of a SentencePiece file; `where` names it in errors."""
    pieces: list[VocabularyPiece] = []
    trainer: dict[int, int | bytes] = {}
    normalizer: dict[int, int | bytes] = {}
    for number, value in _fields(data, where, MAX_PIECES):
        if number == 1:
            pieces.append(_piece(value, where))
        elif number in (2, 3):
            (trainer if number == 2 else normalizer).update(_fields(_typed(value, bytes, where), where))
    if not pieces:
        raise UserError(f"{where}: not a SentencePiece model: it has no pieces")
    names = Counter(piece.name for piece in pieces)
    check_tokens(names, where, MAX_PIECES, "pieces")
    if len(names) < len(pieces):
        raise UserError(f"{where}: piece {shown(names.most_common(1)[0][0])!r} stands there twice")
    unknown = sum(piece.kind == UNKNOWN for piece in pieces)
    if unknown != 1:
        raise UserError(f"{where}: has {unknown} unknown pieces where a model has exactly one")
    wrong = [name for name, kind, score in pieces if not (NORMAL <= kind <= BYTE and abs(score) <= MAX_SCORE)]
    if wrong:
        raise UserError(f"{where}: pieces with an impossible type or score: {listed(map(shown, wrong))}")
    if not trainer or not normalizer:  # both come after the pieces, and every writer writes them
        raise UserError(f"{where}: is cut short: it does not say how it was trained or how text is normalized")
    charsmap = _typed(normalizer.get(2, b""), bytes, where)
    if charsmap:
        check_charsmap(charsmap, where)
    return SentencePieceModel(
        pieces=pieces,
        model=_typed(trainer.get(3, UNIGRAM), int, where),
        charsmap=charsmap,
        dummy_prefix=bool(normalizer.get(3, 1)),
        squeeze_spaces=bool(normalizer.get(4, 1)),
        escape_spaces=bool(normalizer.get(5, 1)),
        spaces_end_words=bool(trainer.get(24, 0)),
        byte_fallback=bool(trainer.get(35, 0)),
    )


def _piece(value: int | bytes, where: str) -> VocabularyPiece:
    piece = dict(_fields(_typed(value, bytes, where), where))
    score = _typed(piece.get(2, b"\0\0\0\0"), bytes, where)
    if len(score) != 4:
        raise _damaged(where, f"a score of {len(score)} bytes")
    try:
        name = _typed(piece.get(1, b""), bytes, where).decode("utf-8")
    except UnicodeDecodeError:
        raise _damaged(where, "a piece that is not UTF-8") from None
    return VocabularyPiece(name, _typed(piece.get(3, NORMAL), int, where), float(struct.unpack("<f", score)[0]))


def without(data: bytes, names: Collection[str], where: str) -> bytes:
    """The bytes of a SentencePiece file less some of its normal pieces; all else stays as it is."""
    kept = []
    for number, value in _fields(data, where, MAX_PIECES):
        if number == 1:
            name, kind, _ = _piece(value, where)
            if kind in (NORMAL, UNUSED) and name in names:
                continue
        if isinstance(value, int):
            kept.append(_varint(number << 3) + _varint(value))
        else:  # of a fixed width there is nothing at this level
            kept.append(_varint(number << 3 | 2) + _varint(len(value)) + value)
    return b"".join(kept)


def _varint(value: int) -> bytes:
    data = bytearray()
    while value >= 128:
        data.append(value & 127 | 128)
        value >>= 7
    return bytes([*data, value])


def build(
    model: SentencePieceModel, where: str, before: list[normalizers.Normalizer] | None = None, apart: bool = False
) -> Library:
    """A tokenizer with the ids of the model; `before` are normalizers that the family runs before the model's own.

    `apart`: each punctuation mark is a word of its own.
    """
    if model.spaces_end_words:
        raise UserError(f"{where}: puts the space at the end of words (treat_whitespace_as_suffix), not supported")
    names = [piece.name for piece in model.pieces]
    if model.model == UNIGRAM:
        check_pieces(names, where)
        vocabulary = list(zip(names, _unigram_scores(model.pieces), strict=True))
        library = Library(models.Unigram(vocabulary, unk_id=model.unknown, byte_fallback=model.byte_fallback))
    elif model.model == BPE:
        numbers, merges = {name: number for number, name in enumerate(names)}, _merges(model.pieces, where)
        options = {"unk_token": names[model.unknown], "fuse_unk": True, "byte_fallback": model.byte_fallback}
        library = Library(models.BPE(numbers, merges, **options))
    else:
        raise UserError(f"{where}: model type {model.model} is neither unigram (1) nor BPE (2)")

    steps = list(before or [])
    if model.charsmap:
        steps.append(normalizers.Precompiled(model.charsmap))
    if model.squeeze_spaces:
        # In this order: a pattern for all the spaces at an end takes the square of a run of them inside the text.
        steps += [normalizers.Replace(Regex(SPACES), " "), normalizers.Replace(Regex("^ | $"), "")]
    if model.dummy_prefix and not apart:
        steps.append(normalizers.Prepend(SPACE))
    if model.escape_spaces and not apart:
        steps.append(normalizers.Replace(" ", SPACE))
    library.normalizer = normalizers.Sequence(steps)

    # Word by word is faster and gives the same ids, unless a piece may reach over a space or a space may be unknown.
    inner = any(SPACE in piece.name[1:] for piece in model.pieces if piece.kind != CONTROL)
    if apart:
        words = pre_tokenizers.Metaspace(SPACE, "always" if model.dummy_prefix else "never")
        library.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Punctuation("isolated"), words])
    elif SPACE in names and not inner:
        library.pre_tokenizer = pre_tokenizers.Split(SPACE, "merged_with_next")
    spaces = decoders.Metaspace(SPACE, "always" if model.dummy_prefix else "never", False)
    library.decoder = decoders.Sequence([decoders.ByteFallback(), spaces]) if model.byte_fallback else spaces

    # User-defined pieces stay in the model where it can find them: after an added token a new word would begin.
    added = [
        AddedToken(name, normalized=False, special=kind != USER)
        for name, kind, _ in model.pieces
        if kind in (UNKNOWN, CONTROL) or (kind == USER and model.model == BPE and len(name) > 1)
    ]
    if len(added) > MAX_ADDED_TOKENS:
        raise UserError(f"{where}: {len(added)} control and user-defined pieces; at most {MAX_ADDED_TOKENS} are read")
    library.add_tokens(added)
    return library


def linear_spaces(steps: list[Any]) -> list[Any]:
    """The steps of a normalizer that Weft wrote before with the slow pattern for spaces, in the order of `build`."""
    old = {"type": "Replace", "pattern": {"Regex": "^ +| +$"}, "content": ""}
    squeeze = {"type": "Replace", "pattern": {"Regex": SPACES}, "content": " "}
    for place, pair in enumerate(zip(steps, steps[1:], strict=False)):
        if pair == (old, squeeze):
            return [*steps[:place], squeeze, old | {"pattern": {"Regex": "^ | $"}}, *steps[place + 2 :]]
    return steps


def _unigram_scores(pieces: list[VocabularyPiece]) -> list[float]:
    """The scores with which the library's search finds what sentencepiece's would."""
    normal = [piece.score for piece in pieces if piece.kind == NORMAL]
    best, worst = max(normal, default=0.0), min(normal, default=0.0)
    scores = []
    for name, kind, score in pieces:
        if kind == USER:
            score = len(name.encode()) * best - 0.1  # sentencepiece's bonus: such a piece is always taken whole
        elif kind == UNUSED:
            score = 2 * worst - 20  # worse than any way of spelling it
        # Nine digits tell any two 32-bit numbers apart; of more, the library's JSON gives some back with another end.
        scores.append(float(f"{score:.9g}"))
    return scores


def _merges(pieces: list[VocabularyPiece], where: str) -> list[tuple[str, str]]:
    """Every way to put a piece together from two, best score first: sentencepiece merges whatever gives a piece."""
    usable = {name: (score, number) for number, (name, kind, score) in enumerate(pieces) if kind == NORMAL}
    work = sum(len(name) ** 2 for name in usable)
    if work > MAX_MERGE_WORK:
        raise UserError(f"{where}: pieces too long for BPE: their squares sum up to {work}, over {MAX_MERGE_WORK}")
    merges = []
    for name, (score, number) in usable.items():
        for cut in range(1, len(name)):
            left, right = name[:cut], name[cut:]
            if left in usable and right in usable:
                merges.append((-score, number, cut, left, right))
    return [(left, right) for *_, left, right in sorted(merges)]


def _fields(data: bytes, where: str, max_fields: int = MAX_FIELDS) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of each field of a protobuf message: varints as int, all else as bytes."""
    place, end, count = 0, len(data), 0

    def varint() -> int:
        nonlocal place
        value = 0
        for shift in range(0, 70, 7):
            if place >= end:
                break
            byte = data[place]
            place += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise _damaged(where, "a number that does not end")

    while place < end:
        count += 1
        if count > max_fields:
            raise UserError(f"{where}: a message of more than {max_fields} fields, which no SentencePiece model has")
        key = varint()
        wire = key & 7
        if wire == 0:
            yield key >> 3, varint()
            continue
        size = varint() if wire == 2 else {1: 8, 5: 4}.get(wire, -1)
        if size < 0 or size > end - place:
            raise _damaged(where, "a field reaches past its end")
        yield key >> 3, data[place : place + size]
        place += size


def _damaged(where: str, why: str) -> UserError:
    return UserError(f"{where}: not a SentencePiece model, or damaged ({why})")


def _typed(value: int | bytes, kind: type[T], where: str) -> T:
    if isinstance(value, kind):
        return value
    text, number = ("text", "number") if kind is bytes else ("number", "text")
    raise _damaged(where, f"a {number} where a {text} is expected")


SOURCE, TARGET, NUMBERS = "source.spm", "target.spm", "vocab.json"
TARGET_NUMBERS = "target_vocab.json"
HIDDEN = "\x00"  # before the name of a piece that stands for no text: no text has it there


class MarianTokenizer(Tokenizer):
    """One language of a Marian folder."""

    def __init__(
        self,
        model: SentencePieceModel,
        numbers: Mapping[str, int],
        settings: dict[str, Any],
        files: Mapping[str, bytes],
        where: Path,
    ) -> None:
        usual = {"unk_token": "<unk>", "eos_token": "</s>", "pad_token": "<pad>"}
        named = [tokenizer.token_name(settings.get(key), key, where) or name for key, name in usual.items()]
        roles = Roles(unknown=named[0], end=named[1], padding=named[2])
        lacking = [name for name in named if name not in numbers]
        if lacking:
            raise UserError(f"{where}: has no number for {listed(shown(name) for name in lacking)}")
        self.controls = {name for name, kind, _ in model.pieces if kind == CONTROL and name not in named}
        # The names of these in a text are spelled out, as sentencepiece does it.
        hidden = [p._replace(name=HIDDEN + p.name) if p.name in self.controls else p for p in model.pieces]
        library = build(replace(model, pieces=hidden), str(where))
        library.add_special_tokens(named)
        tokenizer.surround(library, roles, "t5")
        super().__init__(library, roles, settings)
        self.files = files
        self.numbers = numbers
        self.vocabulary = len(numbers)
        self.names = {number: name for name, number in numbers.items()}
        self.special = frozenset(named)
        self.unknown, self.unknown_piece = numbers[str(roles.unknown)], model.unknown
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

    def id(self, token: str) -> int | None:
        return self.numbers.get(token)

    @property
    def tokens(self) -> dict[str, int]:
        return dict(self.numbers)

    def token(self, number: int) -> str | None:
        return self.names.get(number)

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
        return (text + self._joined(run)).replace(SPACE, " ").strip()

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
    settings = tokenizer.settings_in(folder)
    apart = settings.get("separate_vocabs", False)
    if not isinstance(apart, bool):
        file = folder / "tokenizer_config.json"
        raise UserError(f"{file}: separate_vocabs is {shown(str(apart))}, neither true nor false")
    names = [SOURCE, TARGET, NUMBERS, *([TARGET_NUMBERS] if apart else [])]
    files = {name: read_bytes(folder / name, MAX_FILE_BYTES) for name in names}
    sides = []
    for cutter, numbering in ((SOURCE, NUMBERS), (TARGET, TARGET_NUMBERS if apart else NUMBERS)):
        with tokenizer.guarded(f"{folder / cutter}: not a usable tokenizer"):
            pieces = parse(files[cutter], str(folder / cutter))
            file = folder / numbering
            side = MarianTokenizer(pieces, tokenizer.read_ids(file), settings, files, file)
            tokenizer.check(side.library, folder / cutter)
        sides.append(side)
    return sides[0], sides[1]
