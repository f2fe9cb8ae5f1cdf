"""Tokenizers of whole words, for word vectors: how text is cut follows from the vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Library

from weft.errors import UserError
from weft.text.tokenizers.special_tokens import Roles, spaced
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.tokenizers.training import MAX_VOCABULARY

UNKNOWN = "<unk>"


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

    What the vocabulary shows of the way its own texts were cut decides how text is cut: small letters (unless given),
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
    texts: Callable[[], Iterable[str]], minimum_count: int, max_words: int | None = None, lowercase: bool = True
) -> Tokenizer:
    """A tokenizer for the words of some texts, the most frequent first and `<unk>` last.

    The texts are cut by the plain rules; where the words that come of it show others (n't alone: the text was cut
    before), once more by those.
    """
    rules = _rules({"don't": 0}, lowercase)
    for _ in range(2):
        library = _cutter(*rules, {UNKNOWN: 0})
        trainer = trainers.WordLevelTrainer(
            vocab_size=max_words or MAX_VOCABULARY, min_frequency=minimum_count, special_tokens=[], show_progress=False
        )
        library.train_from_iterator(texts(), trainer)
        numbers = library.get_vocab()
        words = [word for word in sorted(numbers, key=lambda word: numbers[word]) if word != UNKNOWN]
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
