"""Word vectors as GloVe and word2vec publish them: a word and its numbers a line; and the tokenizer to read text with.

n: words; d: numbers of each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Library

from weft.errors import UserError, listed, one_of, shown
from weft.files import memory_here
from weft.text.compressed import Line, find_members, open_sources, read_lines, zip_and_member
from weft.text.learning import LARGEST
from weft.text.limits import LONGEST_TOKEN
from weft.text.records import Skipped
from weft.text.tokenizer import Roles, Tokenizer
from weft.text.vocabularies import spaced

UNKNOWN = "<unk>"
WIDEST = 1 << 16  # numbers of a word; far above any that is published
MOST = 1 << 26  # words
LOOK = 64  # lines from which the width of a file is told
LONGEST_LINE = LONGEST_TOKEN + 32 * WIDEST  # characters
BLOCK = 1 << 22  # characters that are turned into numbers at once

Floats = NDArray[numpy.float32]


@dataclass(frozen=True)
class WordVectors:
    """Words and their vectors, in the order of the file."""

    words: list[str]
    matrix: Floats  # n d
    repeated: int = 0  # lines left out, since their word stood there before


def read_vectors(path: Path, on_bad_row: str = "stop", skipped: Skipped | None = None) -> WordVectors:
    """The vectors of a GloVe or word2vec text file, plain or compressed, with or without word2vec's first line."""
    one_of(on_bad_row, ("stop", "skip"), "on_bad_row")
    found: dict[str, None] = {}  # an ordered set
    blocks: list[Floats] = []
    lines_read = size = bad = 0
    for name, width, told, lines in _opened(path):
        for block in _blocks(lines, name):
            lines_read += len(block)
            words, matrix, faults = _parsed(block, name, width)
            for fault in faults:
                if on_bad_row == "stop":
                    raise fault
                bad += 1
                if skipped is not None:
                    skipped.add(str(fault))
            new = [place for place, word in enumerate(words) if word not in found and found.setdefault(word) is None]
            blocks.append(matrix if len(new) == len(words) else matrix[new])
            size += 2 * blocks[-1].nbytes  # twice: the blocks are put together at the end
            if size > memory_here():
                raise UserError(f"{name}: its vectors do not fit into the {memory_here() / 1e9:.1f} GB of this machine")
        if told is not None and told != lines_read:
            raise UserError(f"{name}: line 1 says that {told} words follow, but there are {lines_read}")
        if not found:
            raise UserError(f"{name}: holds no vector")
    return WordVectors(list(found), numpy.concatenate(blocks), lines_read - bad - len(found))


def looks_like_vectors(path: Path) -> bool:
    """Whether the first lines of a file are mostly words with equally many numbers after each."""
    if not zip_and_member(path)[0].is_file():  # a folder, a pipe, or nothing
        return False
    try:
        return any(True for _ in _opened(path))
    except UserError:
        return False


def _opened(path: Path) -> Iterator[tuple[str, int, int | None, Iterator[Line]]]:
    """The one text that a path stands for: its name, its width, the words that its first line tells of, its lines."""
    file, member = zip_and_member(path)
    inside = find_members(file, "*") if file.suffix.lower() == ".zip" and member is None and file.is_file() else []
    if len(inside) > 1:
        raise UserError(f"{path}: holds {listed(inside)}; name one of them, as {path.name}/{inside[0]}")
    for source in open_sources(path):
        lines = _short(read_lines(source), source.name)
        first = list(islice(lines, LOOK))
        width, told = _width(first, source.name)
        yield source.name, width, told, chain(first[1:] if told is not None else first, lines)


def _short(lines: Iterator[Line], name: str) -> Iterator[Line]:
    """The lines, as long as none is longer than the widest vector."""
    for line in lines:
        if len(line[1]) > LONGEST_LINE:
            raise UserError(f"{name} line {line[0]}: {len(line[1])} characters; at most {LONGEST_LINE} are read")
        yield line


def _width(first: Sequence[Line], name: str) -> tuple[int, int | None]:
    """How many numbers each word has, and how many words there are where the first line says it ("400000 300")."""
    counts = Counter(_numbers_at_the_end(text) for _, text, _ in first if text and not text.isspace())
    header = first[0][1].split() if first else []
    if len(header) == 2 and all(part.isascii() and part.isdecimal() and len(part) < 10 for part in header):
        words, width = int(header[0]), int(header[1])
        counts[1] -= 1
        if width >= 1 and (counts[width] > 0 or not counts.total()):
            if not 1 <= words <= MOST or width > WIDEST:
                raise UserError(f"{name} line 1: {words} words of {width} numbers; at most {MOST} of {WIDEST} are read")
            return width, words
        counts[1] += 1
    # A word of several parts may end in a number, so the most frequent count is the width, not the first.
    width, lines = counts.most_common(1)[0] if counts else (0, 0)
    if width < 1 or 2 * lines <= counts.total():
        raise UserError(f"{name}: not a file of word vectors: its lines are not words with equally many numbers after")
    if width > WIDEST:
        raise UserError(f"{name}: {width} numbers a word; at most {WIDEST} are read")
    return width, None


def _numbers_at_the_end(text: str) -> int:
    """How many fields of a line are numbers, counted from its end; the first is the word, whatever it is."""
    fields = text.rstrip(" ").split(" ")
    count = 0
    while count < len(fields) - 1 and _number(fields[-1 - count]) is not None:
        count += 1
    return count


def _number(field: str) -> float | None:
    """A field as a number; None where it is none, or no finite one."""
    try:
        found = float(field)
    except ValueError:
        return None
    return found if abs(found) <= 3.4e38 and "_" not in field and field.strip() == field else None


def _blocks(lines: Iterator[Line], name: str) -> Iterator[list[Line]]:
    """The lines that hold something, some megabytes at a time."""
    block: list[Line] = []
    size = total = 0
    for line in lines:
        if not line[1] or line[1].isspace():
            continue
        block.append(line)
        size += len(line[1])
        total += 1
        if total > MOST:
            raise UserError(f"{name} line {line[0]}: more than {MOST} words")
        if size > BLOCK:
            yield block
            block, size = [], 0
    if block:
        yield block


def _parsed(block: Sequence[Line], name: str, width: int) -> tuple[list[str], Floats, list[UserError]]:
    """The words and numbers of some lines, and what is wrong with the others."""
    sound: list[tuple[str, str]] = []
    for _, text, fault in block:
        text = text.rstrip(" ")  # word2vec ends its lines with a space
        word, _, numbers = text.partition(" ")
        if text.count(" ") != width:  # a word that holds spaces itself, or a mistake
            parts = text.rsplit(" ", width)
            word, numbers = parts[0], " ".join(parts[1:])
        if fault is not None or not 1 <= len(word) <= LONGEST_TOKEN or _ends_in_a_number(word):
            break
        sound.append((word, numbers))
    else:
        try:
            matrix = _floats([numbers for _, numbers in sound], width)
            return [word for word, _ in sound], matrix, []
        except ValueError:
            pass
    return _line_by_line(block, name, width)


def _ends_in_a_number(word: str) -> bool:
    """Whether a word of several parts holds what is rather one number too many."""
    return " " in word and _number(word.rpartition(" ")[2]) is not None


def _floats(lines: list[str], width: int) -> Floats:
    """n d; numpy's reader is the quickest way that takes nothing but a number for a number."""
    matrix: Floats = numpy.loadtxt(lines, numpy.float32, comments=None, delimiter=" ", ndmin=2)
    if matrix.shape != (len(lines), width) or not numpy.isfinite(matrix).all():
        raise ValueError
    return matrix


def _line_by_line(block: Sequence[Line], name: str, width: int) -> tuple[list[str], Floats, list[UserError]]:
    """As `_parsed`, for lines among which at least one is wrong."""
    words, numbers, faults = list[str](), list[list[float | None]](), list[UserError]()
    for number, text, fault in block:
        where = f"{name} line {number}"
        word, *fields = text.rstrip(" ").rsplit(" ", width)
        values = [_number(field) for field in fields]
        if fault is not None:
            faults.append(fault)
        elif len(fields) < width or _ends_in_a_number(word):
            count = _numbers_at_the_end(text)
            faults.append(UserError(f"{where}: {shown(word, 30)!r}: expected {width} numbers, found {count}"))
        elif None in values:
            wrong = fields[values.index(None)]
            faults.append(UserError(f"{where}: {shown(word, 30)!r}: {shown(wrong, 30)!r} is not a number"))
        elif not word:
            faults.append(UserError(f"{where}: has no word before its numbers"))
        elif len(word) > LONGEST_TOKEN:
            faults.append(UserError(f"{where}: a word of {len(word)} characters; at most {LONGEST_TOKEN} are read"))
        else:
            words.append(word)
            numbers.append(values)
    return words, numpy.array(numbers, numpy.float32).reshape(-1, width), faults


# ------------------------------------------------------------------------------------------------------- tokenizer

# Cut as the Penn Treebank does, which GloVe's texts were: do n't, it 's.
NOT = r"\w+(?=(?i:n't)\b)|(?i:n't)\b"
ENDINGS = ("'s", "'m", "'d", "'re", "'ve", "'ll")
TITLES = ("mr.", "mrs.", "ms.", "dr.", "st.", "jr.", "sr.")
INITIALS = ("u.s.", "U.S.")
RUNS = ("...", "--", "''", "``")
NUMBERS = r"\d+(?:[.,:]\d+)+"  # 1,000 and 3.5; those without a mark inside are words
NAMES = r"\b(?i:[odl]'\p{L}{3,})"  # o'clock, O'Brien, d'etat
PLAIN = r"\w+(?:'\w+)*|[^\w\s]"  # words, with their inner apostrophes, and single marks
PARTED = r"\w+|[^\w\s]"


def word_tokenizer(words: Sequence[str], lowercase: bool | None = None) -> Tokenizer:
    """A tokenizer whose ids are the places of these words; `<unk>` must be one of them.

    What the vocabulary shows of the way its own texts were cut decides how text is cut: small letters (unless said),
    contractions, abbreviations and runs of marks.
    """
    vocabulary = {word: number for number, word in enumerate(words)}
    assert len(vocabulary) == len(words) and UNKNOWN in vocabulary
    library = _cutter(*_rules(vocabulary, lowercase), vocabulary)
    contractions = "n't" in vocabulary
    joined = r" (?=(?:n't|'(?:s|m|d|re|ve|ll))(?!\w))"
    library.decoder = spaced([decoders.Replace(Regex(joined), "")] if contractions else [])
    library.add_tokens([AddedToken(UNKNOWN, special=True, normalized=False)])
    return Tokenizer(library, Roles(unknown=UNKNOWN), {"clean_up_tokenization_spaces": False})


def learned_words(
    texts: Callable[[], Iterable[str]], minimum_count: int, most: int | None = None, lowercase: bool = True
) -> Tokenizer:
    """A tokenizer for the words of some texts, the most frequent first and `<unk>` last.

    The texts are cut by the plain rules; where the words that come of it show others (n't alone: the text was cut
    before), once more by those.
    """
    rules = _rules({"don't": 0}, lowercase)
    for _ in range(2):
        library = _cutter(*rules, {UNKNOWN: 0})
        trainer = trainers.WordLevelTrainer(
            vocab_size=most or LARGEST, min_frequency=minimum_count, special_tokens=[], show_progress=False
        )
        library.train_from_iterator(texts(), trainer)
        found = library.get_vocab()
        words = [word for word in sorted(found, key=lambda word: found[word]) if word != UNKNOWN]
        if not words:
            raise UserError(f"there is no text to learn from: no word is there {minimum_count} times")
        before, rules = rules, _rules(dict.fromkeys(words, 0), lowercase)
        if rules == before:
            break
    return word_tokenizer([*words, UNKNOWN], lowercase)


def _rules(vocabulary: dict[str, int], lowercase: bool | None) -> tuple[bool, bool, str]:
    """Whether apostrophes are made straight and letters small, and the pattern of a word, as a vocabulary shows it."""
    straight = "n't" in vocabulary or "don't" in vocabulary  # its own apostrophe is the straight one
    small = all(word == word.lower() for word in vocabulary) if lowercase is None else lowercase
    return straight, small, _pattern(vocabulary, "n't" in vocabulary)


def _cutter(straight: bool, small: bool, pattern: str, vocabulary: dict[str, int]) -> Library:
    library = Library(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    steps: list[Any] = [normalizers.Replace("’", "'")] if straight else []
    library.normalizer = normalizers.Sequence([*steps, normalizers.Lowercase()] if small else steps)
    library.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    return library


def _pattern(vocabulary: dict[str, int], contractions: bool) -> str:
    """The pattern of one token; the first choice that fits is taken."""
    choices = [_escaped(run) for run in RUNS if run in vocabulary]
    titles = [title for title in TITLES if title in vocabulary or title.capitalize() in vocabulary]
    if titles:
        choices.append(rf"\b(?i:{'|'.join(_escaped(title) for title in titles)})")
    if any(word in vocabulary for word in INITIALS):
        choices.append(r"\b(?:\p{L}\.){2,}")
    choices.append(NUMBERS)
    if contractions:
        choices += [NAMES] if "o'clock" in vocabulary else []
        endings = "|".join(ending[1:] for ending in ENDINGS if ending in vocabulary)
        choices += [NOT, *([rf"'(?i:{endings})\b"] if endings else []), PARTED]
    else:
        choices.append(PLAIN)
    return "|".join(choices)


def _escaped(mark: str) -> str:
    return mark.replace(".", r"\.")
