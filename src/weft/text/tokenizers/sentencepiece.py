"""SentencePiece models (`spiece.model`, `*.spm`) as tokenizers: a bounds-checked reader, no protobuf library.

The ids equal those of the sentencepiece library, with three known exceptions. The name of a control piece in the text
(`</s>`) becomes that piece, as in transformers, where sentencepiece spells it out. The `tokenizers` library applies the
character map by grapheme, so a few rare sequences (decomposed Hangul, a full-width letter with an accent) differ. And
where two ways to cut a word score the same (`?` `???` or `???` `?`), sentencepiece decides by how its 32-bit sums
happened to round: about one token in 100,000.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Library

from weft.errors import UserError, listed, shown
from weft.files import MEGABYTE, read_bytes
from weft.text.tokenizers.limits import MAX_ADDED_TOKENS, MAX_SCORE, check_pieces, check_tokens

SPACE = "\u2581"  # the visible space that begins a word
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
UNIGRAM, BPE = 1, 2
SPACES = " {2,}"
MAX_REPLACEMENT = 64  # bytes in the place of a character; Unicode's longest have 33
MAX_PIECES = 2_000_000  # the largest published model has 900,000
MAX_FIELDS = 100_000  # of one message inside; a trainer's holds a name for each symbol of the user
MAX_FILE_BYTES = 64 * MEGABYTE  # the largest published one has 18
MAX_MERGE_WORK = 1_000_000_000  # the sum of the squares of the lengths of pieces, which a search for merges takes


@dataclass(frozen=True, kw_only=True)
class SentencePieceModel:
    """What a SentencePiece model file says."""

    names: list[str]
    scores: list[float]
    types: list[int]
    model: int = UNIGRAM
    padding: str | None = None  # the pieces that the trainer used for these
    start: str | None = None
    end: str | None = None
    charsmap: bytes = b""
    dummy_prefix: bool = True
    squeeze_spaces: bool = True
    escape_spaces: bool = True
    spaces_end_words: bool = False
    byte_fallback: bool = False

    @property
    def unknown(self) -> int:
        """The id of the one unknown piece; `read` sees to it that there is one."""
        return self.types.index(UNKNOWN)


def read(path: Path) -> SentencePieceModel:
    """The model in a SentencePiece file."""
    return parse(read_bytes(path, MAX_FILE_BYTES), str(path))


def parse(data: bytes, where: str) -> SentencePieceModel:
    """The model in the bytes of a SentencePiece file; `where` names it in errors."""
    names: list[str] = []
    scores: list[float] = []
    types: list[int] = []
    trainer: dict[int, int | bytes] = {}
    normalizer: dict[int, int | bytes] = {}
    for number, value in _fields(data, where, MAX_PIECES):
        if number == 1:
            piece = dict(_fields(_bytes(value, where), where))
            names.append(_text(piece.get(1, b""), where))
            score = _bytes(piece.get(2, b"\0\0\0\0"), where)
            if len(score) != 4:
                raise _damaged(where, f"a score of {len(score)} bytes")
            scores.append(float(struct.unpack("<f", score)[0]))
            types.append(_number(piece.get(3, NORMAL), where))
        elif number == 2:
            trainer.update(_fields(_bytes(value, where), where))
        elif number == 3:
            normalizer.update(_fields(_bytes(value, where), where))

    _check_pieces(names, scores, types, where)
    if not trainer or not normalizer:  # both come after the pieces, and every writer writes them
        raise UserError(f"{where}: is cut short: it does not say how it was trained or how text is normalized")

    def named(field: int, default: int) -> str | None:
        place = _number(trainer.get(field, default), where)
        return names[place] if 0 <= place < len(names) and types[place] == CONTROL else None

    charsmap = _bytes(normalizer.get(2, b""), where)
    if charsmap:
        check_charsmap(charsmap, where)
    return SentencePieceModel(
        names=names,
        scores=scores,
        types=types,
        model=_number(trainer.get(3, UNIGRAM), where),
        padding=named(43, -1),
        start=named(41, 1),
        end=named(42, 2),
        charsmap=charsmap,
        dummy_prefix=bool(normalizer.get(3, 1)),
        squeeze_spaces=bool(normalizer.get(4, 1)),
        escape_spaces=bool(normalizer.get(5, 1)),
        spaces_end_words=bool(trainer.get(24, 0)),
        byte_fallback=bool(trainer.get(35, 0)),
    )


def without(data: bytes, names: Collection[str], where: str) -> bytes:
    """The bytes of a SentencePiece file less some of its normal pieces; all else stays as it is."""
    kept = []
    for number, value in _fields(data, where, MAX_PIECES):
        if number == 1:
            piece = dict(_fields(_bytes(value, where), where))
            normal = _number(piece.get(3, NORMAL), where) in (NORMAL, UNUSED)
            if normal and _text(piece.get(1, b""), where) in names:
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


def build(pieces: SentencePieceModel, where: str, before: list[normalizers.Normalizer] | None = None) -> Library:
    """A tokenizer with the ids of the model; `before` are normalizers that the family runs before the model's own."""
    if pieces.spaces_end_words:
        raise UserError(f"{where}: puts the space at the end of words (treat_whitespace_as_suffix), not supported")
    if pieces.model == UNIGRAM:
        check_pieces(pieces.names, where)
        vocabulary = list(zip(pieces.names, _unigram_scores(pieces), strict=True))
        library = Library(models.Unigram(vocabulary, unk_id=pieces.unknown, byte_fallback=pieces.byte_fallback))
    elif pieces.model == BPE:
        library = Library(
            models.BPE(
                vocab={name: number for number, name in enumerate(pieces.names)},
                merges=_merges(pieces, where),
                unk_token=pieces.names[pieces.unknown],
                fuse_unk=True,
                byte_fallback=pieces.byte_fallback,
            )
        )
    else:
        raise UserError(f"{where}: model type {pieces.model} is neither unigram (1) nor BPE (2)")

    steps = list(before or [])
    if pieces.charsmap:
        steps.append(normalizers.Precompiled(pieces.charsmap))
    if pieces.squeeze_spaces:
        # In this order: a pattern for all the spaces at an end takes the square of a run of them inside the text.
        steps += [normalizers.Replace(Regex(SPACES), " "), normalizers.Replace(Regex("^ | $"), "")]
    if pieces.dummy_prefix:
        steps.append(normalizers.Prepend(SPACE))
    if pieces.escape_spaces:
        steps.append(normalizers.Replace(" ", SPACE))
    library.normalizer = normalizers.Sequence(steps)

    # Word by word is faster and gives the same ids, unless a piece may reach over a space or a space may be unknown.
    inner = any(SPACE in name[1:] for name, kind in zip(pieces.names, pieces.types, strict=True) if kind != CONTROL)
    if SPACE in pieces.names and not inner:
        library.pre_tokenizer = pre_tokenizers.Split(SPACE, "merged_with_next")
    spaces = decoders.Metaspace(SPACE, "always" if pieces.dummy_prefix else "never", False)
    library.decoder = decoders.Sequence([decoders.ByteFallback(), spaces]) if pieces.byte_fallback else spaces

    # User-defined pieces stay in the model where it can find them: after an added token a new word would begin.
    added = [
        AddedToken(name, normalized=False, special=kind != USER)
        for name, kind in zip(pieces.names, pieces.types, strict=True)
        if kind in (UNKNOWN, CONTROL) or (kind == USER and pieces.model == BPE and len(name) > 1)
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


def check_charsmap(charsmap: bytes, where: str) -> None:
    """Refuse a character map whose trie points outside itself: the library would panic on some later text."""
    # Layout: the trie's size in bytes, the trie as a Darts double array of 32-bit units, then texts that end in NUL.
    size = int.from_bytes(charsmap[:4], "little")
    texts = len(charsmap) - 4 - size
    if len(charsmap) < 4 or size % 1024 or size == 0 or texts <= 0 or charsmap[-1]:
        raise UserError(f"{where}: the precompiled character map is damaged")
    units = np.frombuffer(charsmap, "<u4", size // 4, 4)
    leaf, has_leaf = units >> 31 == 1, (units >> 8) & 1 == 1
    leaf[0] = False  # the root is followed whatever it says
    offset = (units >> 10) << ((units & 512) >> 6)
    target = np.where(leaf, 0, np.arange(len(units), dtype=np.uint32) ^ offset)
    outside = bool((target >= len(units)).any())
    if not outside:
        # Starts of texts; none may begin outside them or inside a character.
        starts = units[target[has_leaf & ~leaf]] & 0x7FFFFFFF
        outside = bool((starts >= texts).any())
        outside = outside or bool((np.frombuffer(charsmap, "u1", texts, 4 + size)[starts] & 0xC0 == 0x80).any())
    if outside:
        raise UserError(f"{where}: the precompiled character map points outside itself")
    ends = np.flatnonzero(np.frombuffer(charsmap, "u1", texts, 4 + size) == 0)
    longest = int(np.diff(ends, prepend=-1).max()) - 1
    if longest > MAX_REPLACEMENT:
        raise UserError(
            f"{where}: the precompiled character map puts {longest} bytes for a character, over {MAX_REPLACEMENT}"
        )
    try:
        charsmap[4 + size :].decode("utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{where}: the precompiled character map holds text that is not UTF-8") from None


def _check_pieces(names: list[str], scores: list[float], types: list[int], where: str) -> None:
    if not names:
        raise UserError(f"{where}: not a SentencePiece model: it has no pieces")
    check_tokens(names, where, MAX_PIECES, "pieces")
    if len(set(names)) < len(names):
        seen: set[str] = set()
        twice = next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise UserError(f"{where}: piece {shown(twice)!r} stands there twice")
    if types.count(UNKNOWN) != 1:
        raise UserError(f"{where}: has {types.count(UNKNOWN)} unknown pieces where a model has exactly one")
    if not all(NORMAL <= kind <= BYTE for kind in types) or not all(abs(score) <= MAX_SCORE for score in scores):
        sound = [NORMAL <= kind <= BYTE and abs(score) <= MAX_SCORE for score, kind in zip(scores, types, strict=True)]
        wrong = [name for name, good in zip(names, sound, strict=True) if not good]
        raise UserError(f"{where}: pieces with an impossible type or score: {listed(shown(name) for name in wrong)}")


def _unigram_scores(pieces: SentencePieceModel) -> list[float]:
    """The scores with which the library's search finds what sentencepiece's would."""
    normal = [score for score, kind in zip(pieces.scores, pieces.types, strict=True) if kind == NORMAL]
    best, worst = max(normal, default=0.0), min(normal, default=0.0)
    scores = []
    for name, score, kind in zip(pieces.names, pieces.scores, pieces.types, strict=True):
        if kind == USER:
            score = len(name.encode()) * best - 0.1  # sentencepiece's bonus: such a piece is always taken whole
        elif kind == UNUSED:
            score = 2 * worst - 20  # worse than any way of spelling it
        # Nine digits tell any two 32-bit numbers apart; of more, the library's JSON gives some back with another end.
        scores.append(float(f"{score:.9g}"))
    return scores


def _merges(pieces: SentencePieceModel, where: str) -> list[tuple[str, str]]:
    """Every way to put a piece together from two, best score first: sentencepiece merges whatever gives a piece."""
    usable = {
        name: (score, number)
        for number, (name, score, kind) in enumerate(zip(pieces.names, pieces.scores, pieces.types, strict=True))
        if kind == NORMAL
    }
    work = sum(len(name) ** 2 for name in usable)
    if work > MAX_MERGE_WORK:
        raise UserError(
            f"{where}: its pieces are too long for BPE: their squares sum up to {work}, over {MAX_MERGE_WORK}"
        )
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


def _bytes(value: int | bytes, where: str) -> bytes:
    if isinstance(value, bytes):
        return value
    raise _damaged(where, "a number where a text is expected")


def _number(value: int | bytes, where: str) -> int:
    """A protobuf int32: negative numbers are written as 64-bit two's complement."""
    if isinstance(value, int):
        return value - (1 << 64) if value >> 63 else value
    raise _damaged(where, "a text where a number is expected")


def _text(value: int | bytes, where: str) -> str:
    try:
        return _bytes(value, where).decode("utf-8")
    except UnicodeDecodeError:
        raise _damaged(where, "a piece that is not UTF-8") from None
