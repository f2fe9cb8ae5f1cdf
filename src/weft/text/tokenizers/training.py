"""Learn a vocabulary from text. The same text gives the same vocabulary, byte for byte, on any day and in any process.

The `tokenizers` library's BPE and word trainers repeat themselves; its WordPiece and Unigram trainers do not. So
WordPiece is learned here as BPE over words that begin with a mark, and Unigram by the sentencepiece library on a fixed
number of threads.
"""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Library

from weft.errors import UserError, one_of, shown
from weft.spelling import BEGIN, END, FILLING, FIRST_WORD, SPACE, START, STOP, byte_names
from weft.text.tokenizers import sentencepiece
from weft.text.tokenizers.schema import MAX_TOKENS
from weft.text.tokenizers.tokenizer import CHARACTERS, Roles, Tokenizer, spaced, surround

MAX_VOCABULARY = MAX_TOKENS  # the trainers take memory for as many as they are asked for
MAX_COUNT = 1 << 40  # times that a token can be asked to be seen
SPECIALS = {
    "wordpiece": Roles(padding="[PAD]", unknown="[UNK]", start="[CLS]", separator="[SEP]", mask="[MASK]"),
    "bpe": Roles(start="<|endoftext|>", end="<|endoftext|>"),
    "unigram": Roles(padding="<pad>", end="</s>", unknown="<unk>"),
}
T5_ORDER = ("padding", "end", "unknown", "start", "separator", "mask")  # in which a unigram vocabulary has them
WORDS = r"\w+(?:['’]\w+)*|[^\w\s]"  # words, with their inner apostrophes, and single marks
MARK = "\ue000"  # begins each word while WordPiece is learned; BERT's normalizer takes it out of any text
THREADS = 4  # fixed: sentencepiece sums its counts thread by thread, so another number rounds differently
EVERY = 1000  # texts between two reports of progress
NO_TEXT = "there is no text to learn a vocabulary from"
MAX_WORD_LENGTH = 1000  # characters
ENDLESS = re.compile(rf"\S{{{MAX_WORD_LENGTH}}}")
ENDLESS_SPACE = re.compile(rf"(\s{{{MAX_WORD_LENGTH}}})\s+")
# Vocabularies of whole words, most frequent first, with nothing put around a text: what cuts and what joins the words.
WORD_KINDS: dict[str, tuple[pre_tokenizers.PreTokenizer, decoders.Decoder]] = {
    "word": (pre_tokenizers.Split(Regex(WORDS), "removed", True), spaced()),
    # For text that was cut before: mr. and 's stay whole.
    "whitespace": (
        pre_tokenizers.WhitespaceSplit(),
        decoders.Sequence([decoders.WordPiece(prefix=" ", cleanup=False), decoders.Fuse()]),
    ),
    "character": (pre_tokenizers.Split(Regex(CHARACTERS), "isolated"), decoders.Fuse()),  # spaces and line ends too
}
SPECIALS |= dict.fromkeys(WORD_KINDS, Roles(padding="<pad>", unknown="<unk>", start="<s>", end="</s>"))
# Each word with a space before it, in bytes.
SPELLING = pre_tokenizers.Sequence(
    [WORD_KINDS["word"][0], pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)]
)
SPECIALS["word-bytes"] = Roles(padding="<pad>", start="<S>", end="</S>")


@dataclass(frozen=True)
class _Request:
    size: int
    lowercase: bool
    minimum: int  # times that a token must be seen
    roles: Roles
    names: list[str]  # special tokens, the first ids

    def __post_init__(self) -> None:
        if not 1 <= self.minimum <= MAX_COUNT:
            raise UserError(f"min_count must be between 1 and {MAX_COUNT}, not {shown(str(self.minimum))}")

    @property
    def unknown(self) -> str:
        assert self.roles.unknown is not None
        return self.roles.unknown

    @property
    def limits(self) -> dict[str, Any]:
        return {"vocab_size": self.size, "min_frequency": self.minimum, "show_progress": False}

    def need(self, min_size: int, why: str) -> None:
        if self.size < min_size:
            raise UserError(f"a vocabulary of {self.size} is too small: {why} need at least {min_size}")


def learn(
    texts: Iterable[str],
    kind: str,
    size: int,
    *,
    lowercase: bool | None = None,
    min_count: int | None = None,
    specials: Roles | Mapping[str, str] | None = None,
    around: str | None = None,
    extra: Sequence[str] = (),
    progress: Callable[[int], None] | None = None,
) -> Tokenizer:
    """A tokenizer with `size` tokens learned from the texts, or fewer where the text has no more to give.

    min_count: how often a merge, a word or a character must be seen, 2 by default and 1 for characters; not for
    unigram. specials: by role, the first ids, a mapping in its order; extra: the last ids. around: a family of AROUND.
    """
    one_of(kind, KINDS, "vocabulary kind")
    given = SPECIALS[kind] if specials is None else specials
    roles = given if isinstance(given, Roles) else Roles(**given)
    order = (T5_ORDER if kind == "unigram" else vars(roles)) if isinstance(given, Roles) else given
    names = list(dict.fromkeys(name for role in order if (name := vars(roles)[role]) is not None))
    if size > MAX_VOCABULARY:
        raise UserError(f"a vocabulary of {size} tokens is too large: at most {MAX_VOCABULARY} can be learned")
    if kind not in ("bpe", "word-bytes") and roles.unknown is None:
        raise UserError(f"a {kind} vocabulary needs an unknown token (unknown)")
    if len({*names, *extra}) < len(names) + len(extra) or "" in (*names, *extra):
        raise UserError("the special tokens must differ from each other, and none may be empty")
    lowercase = kind == "wordpiece" if lowercase is None else lowercase
    usual = 1 if kind == "character" else 2
    request = _Request(size - len(extra), lowercase, usual if min_count is None else min_count, roles, names)
    counted = _counted(texts, progress)
    if kind == "whitespace":  # special tokens in the text, such as <unk>, would be taken for words
        counted = (" ".join(word for word in text.split() if word not in names) for text in counted)
    if kind in WORD_KINDS:
        normalizer = normalizers.Lowercase() if lowercase else None
        library = _words(counted, request, normalizer, *WORD_KINDS[kind], kind == "character")
    else:
        library = TRAINERS[kind](counted, request)
    library.add_special_tokens(list(extra))
    if around is not None:
        surround(library, roles, around)
    return Tokenizer(library, roles, {"clean_up_tokenization_spaces": False})


def learn_like(texts: Iterable[str], like: Tokenizer, size: int, min_count: int | None = None) -> Tokenizer:
    """The words of the texts, most frequent first, cut as another tokenizer of words cuts them."""
    roles = SPECIALS["word"]
    names = [name for name in vars(roles).values() if name is not None]
    assert like.kind in ("word", "whitespace")
    request = _Request(size, False, 1 if min_count is None else min_count, roles, names)
    model = like.library
    library = _words(_counted(texts, None), request, model.normalizer, model.pre_tokenizer, model.decoder)
    return Tokenizer(library, roles, {"clean_up_tokenization_spaces": False})


def _counted(texts: Iterable[str], progress: Callable[[int], None] | None) -> Iterator[str]:
    assert not isinstance(texts, str), "texts are expected, not one text"
    number = 0
    for number, text in enumerate(texts, start=1):
        if progress is not None and number % EVERY == 0:
            progress(number)
        if not isinstance(text, str):
            raise UserError(f"text {number}: a {type(text).__name__} where a text is expected")
        if not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text):
            raise UserError(f"text {number}: holds half of a surrogate pair, which is no character")
        # Learning takes the square of a word's length, and nothing is learned from a word or a space that never ends.
        yield text if len(text) <= MAX_WORD_LENGTH else ENDLESS.sub(r"\g<0> ", ENDLESS_SPACE.sub(r"\1", text))
    if progress is not None:
        progress(number)


def _wordpiece(texts: Iterator[str], request: _Request) -> Library:
    """BERT's. Ids: special tokens, the characters alone, the characters inside words, then pieces as merged."""
    names = request.names
    normalizer = normalizers.BertNormalizer(lowercase=request.lowercase)
    cutter = pre_tokenizers.BertPreTokenizer()
    learner = Library(models.BPE())
    learner.normalizer = normalizer
    learner.pre_tokenizer = pre_tokenizers.Sequence([cutter, pre_tokenizers.Metaspace(MARK, "always", False)])
    # Each character costs two tokens here and at most two in BPE (itself, and merged with the mark); the mark is one.
    size = max(request.size, 0) + 1
    trainer = trainers.BpeTrainer(vocab_size=size, min_frequency=request.minimum, show_progress=False)
    learner.train_from_iterator(texts, trainer)
    learned = json.loads(learner.to_str())["model"]
    alphabet = sorted(token for token in learned["vocab"] if len(token) == 1 and token != MARK)
    if not alphabet:
        raise UserError(NO_TEXT)
    why = f"{len(alphabet)} characters, each alone and inside a word, and {len(names)} special tokens"
    request.need(len(names) + 2 * len(alphabet), why)
    merged = [left + right for left, right in learned["merges"]]
    pieces = [piece[1:] if piece.startswith(MARK) else "##" + piece for piece in merged]
    tokens = [*names, *alphabet, *("##" + character for character in alphabet), *pieces]
    vocabulary = {token: number for number, token in enumerate(list(dict.fromkeys(tokens))[: request.size])}
    library = Library(models.WordPiece(vocabulary, unk_token=request.unknown))
    library.normalizer, library.pre_tokenizer = normalizer, cutter
    library.decoder = decoders.WordPiece(prefix="##")
    library.add_special_tokens(names)
    surround(library, request.roles, "bert")
    return library


def _bpe(texts: Iterator[str], request: _Request) -> Library:
    """GPT-2's: merges of bytes, so nothing is unknown. Ids: special tokens, the 256 bytes, then pieces as merged."""
    alphabet, names, mask = pre_tokenizers.ByteLevel.alphabet(), request.names, request.roles.mask
    min_size = len(names) + len(alphabet)
    request.need(min_size, f"{len(alphabet)} bytes and {len(names)} special tokens")
    library = Library(models.BPE())
    if request.lowercase:
        library.normalizer = normalizers.Lowercase()
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    # A token has the space before it in it, and so has the mask that stands for it.
    special = [AddedToken(name, special=True, normalized=False, lstrip=name == mask) for name in names]
    trainer = trainers.BpeTrainer(**request.limits, initial_alphabet=sorted(alphabet), special_tokens=special)
    library.train_from_iterator(texts, trainer)
    if library.get_vocab_size() == min_size < request.size:
        raise UserError(f"{NO_TEXT}: no two bytes stand together {request.minimum} times")
    return library


def _unigram(texts: Iterator[str], request: _Request) -> Library:
    """T5's, learned by sentencepiece from counted words. Ids: padding, end, unknown, other special tokens, pieces."""
    try:
        import sentencepiece as trainer
    except ImportError:
        raise UserError("learning a unigram vocabulary needs sentencepiece: pip install 'weft[data]'") from None
    words: Counter[str] = Counter()
    for text in texts:
        words.update(text.split())
    if not words:
        raise UserError(NO_TEXT)
    names, tokens = request.names, vars(request.roles)
    first = [role for role in T5_ORDER[:4] if tokens[role] is not None]
    first.sort(key=lambda role: names.index(tokens[role]))
    settings: dict[str, Any] = {}
    for role, short in (("padding", "pad"), ("end", "eos"), ("unknown", "unk"), ("start", "bos")):
        settings[f"{short}_id"] = first.index(role) if role in first else -1
        settings |= {f"{short}_piece": tokens[role]} if role in first else {}
    counted = sorted(words.items(), key=lambda item: (-item[1], item[0]))
    model = io.BytesIO()
    try:
        trainer.SentencePieceTrainer.train(
            sentence_iterator=(f"{word}\t{count}" for word, count in counted),
            input_format="tsv",
            model_writer=model,
            model_type="unigram",
            vocab_size=request.size,
            hard_vocab_limit=False,  # where the text has less to give, fewer
            character_coverage=1.0,
            max_sentence_length=1 << 24,  # longer ones would be left out in silence
            normalization_rule_name="nmt_nfkc_cf" if request.lowercase else "nmt_nfkc",
            control_symbols=[name for name in names if name not in [tokens[role] for role in first]],
            num_threads=THREADS,
            minloglevel=3,
            **settings,
        )
    except (RuntimeError, OSError) as error:
        small = re.search(r"smaller than required_chars. (\d+) vs (\d+)", str(error))
        if small:
            request.need(int(small[2]), "the characters of this text and the special tokens")
        raise UserError(f"sentencepiece cannot learn from this text: {shown(str(error), 200)}") from None
    library = sentencepiece.build(sentencepiece.parse(model.getvalue(), "the learned model"), "the learned model")
    surround(library, request.roles, "t5")
    return library


def _words(
    texts: Iterator[str], request: _Request, normalizer: Any, cutter: Any, decoder: Any, characters: bool = False
) -> Library:
    """The words, or characters, that a pre-tokenizer cuts, most frequent first."""
    names, unit = request.names, "character" if characters else "word"
    request.need(len(names) + 1, f"{len(names)} special tokens and one {unit}")
    library = Library(models.WordLevel({request.unknown: 0}, unk_token=request.unknown))
    if normalizer is not None:
        library.normalizer = normalizer
    library.pre_tokenizer, library.decoder = cutter, decoder
    trainer = trainers.WordLevelTrainer(**request.limits, special_tokens=names)
    library.train_from_iterator(texts, trainer)
    if library.get_vocab_size() == len(names):
        raise UserError(f"{NO_TEXT}: no {unit} is there {request.minimum} times")
    return library


def _word_bytes(texts: Iterator[str], request: _Request) -> Library:
    """Words, most frequent first; any other word is a mark and its bytes. Ids: ELMo's characters, then the words."""
    request.need(FIRST_WORD + 1, f"{FIRST_WORD} characters and one word")
    learner = Library(models.WordLevel({UNKNOWN: 0}, unk_token=UNKNOWN))
    learner.normalizer = normalizer = normalizers.Lowercase() if request.lowercase else None
    learner.pre_tokenizer = SPELLING
    limits = {**request.limits, "vocab_size": request.size - FIRST_WORD + 1}
    learner.train_from_iterator(texts, trainers.WordLevelTrainer(**limits, special_tokens=[UNKNOWN]))
    ids = learner.get_vocab()
    words = [word for word in sorted(ids, key=lambda word: ids[word])[1:] if len(word) > 1]
    if not words:
        raise UserError(f"{NO_TEXT}: no word is there {request.minimum} times")
    return word_bytes(words, request.roles, normalizer).library


def word_bytes(words: Sequence[str] = (), roles: Roles = SPECIALS["word-bytes"], normalizer: Any = None) -> Tokenizer:
    """The vocabulary of a model that reads characters, with these words, each named by its bytes and the one before."""
    names: dict[int, str | None] = {byte + 1: name for byte, name in enumerate(byte_names())}
    names |= {ord(" ") + 1: "<space>", BEGIN: SPACE, STOP: "<stop>", FILLING: "<filling>"}
    names |= {0: roles.padding, START: roles.start, END: roles.end}
    tokens = [names[number] or f"<unused {number}>" for number in range(FIRST_WORD)]
    vocabulary = {token: number for number, token in enumerate((*tokens, *words))}
    # A word of the vocabulary is one token; there are no merges, so that any other one stays in bytes.
    library = Library(models.BPE(vocabulary, [], ignore_merges=True))
    if normalizer is not None:
        library.normalizer = normalizer
    library.pre_tokenizer = SPELLING
    library.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    library.add_special_tokens([name for name in (roles.padding, roles.start, roles.end) if name is not None])
    surround(library, roles, "xlmroberta")
    return Tokenizer(library, roles, {"clean_up_tokenization_spaces": False})


TRAINERS = {"wordpiece": _wordpiece, "bpe": _bpe, "unigram": _unigram, "word-bytes": _word_bytes}
KINDS = (*TRAINERS, *WORD_KINDS)

UNKNOWN = "<unk>"
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
    """A tokenizer whose ids are the places of these words, `<unk>` among them; they show how their texts were cut."""
    vocabulary = {word: number for number, word in enumerate(words)}
    assert len(vocabulary) == len(words) and UNKNOWN in vocabulary
    library = _cutter(*_rules(vocabulary, lowercase), vocabulary)
    contractions = "n't" in vocabulary
    joined = r" (?=(?:n't|'(?:s|m|d|re|ve|ll))(?!\w))"
    library.decoder = spaced([decoders.Replace(Regex(joined), "")] if contractions else [])
    library.add_special_tokens([UNKNOWN])
    return Tokenizer(library, Roles(unknown=UNKNOWN), {"clean_up_tokenization_spaces": False})


def learned_words(
    texts: Callable[[], Iterable[str]], min_count: int, max_words: int | None = None, lowercase: bool = True
) -> Tokenizer:
    """A tokenizer for the words of some texts, the most frequent first and `<unk>` last."""
    rules = _rules({"don't": 0}, lowercase)  # where the words show others (n't alone: cut before), once more by those
    for _ in range(2):
        library = _cutter(*rules, {UNKNOWN: 0})
        limits = {"vocab_size": max_words or MAX_VOCABULARY, "min_frequency": min_count}
        trainer = trainers.WordLevelTrainer(**limits, special_tokens=[], show_progress=False)
        library.train_from_iterator(texts(), trainer)
        numbers = library.get_vocab()
        words = [word for word in sorted(numbers, key=lambda word: numbers[word]) if word != UNKNOWN]
        if not words:
            raise UserError(f"there is no text to learn from: no word is there {min_count} times")
        before, rules = rules, _rules(dict.fromkeys(words, 0), lowercase)
        if rules == before:
            break
    return word_tokenizer([*words, UNKNOWN], lowercase)


def _rules(vocabulary: dict[str, int], lowercase: bool | None) -> tuple[bool, bool, str]:
    """Whether apostrophes are made straight and letters small, and the pattern of a word, as a vocabulary shows it."""
    straight = "n't" in vocabulary or "don't" in vocabulary  # its own apostrophe is the straight one
    small = all(word == word.lower() for word in vocabulary) if lowercase is None else lowercase
    choices = [run.replace(".", r"\.") for run in RUNS if run in vocabulary]  # the first that fits is taken
    titles = [title for title in TITLES if title in vocabulary or title.capitalize() in vocabulary]
    if titles:
        choices.append(rf"\b(?i:{'|'.join(titles)})".replace(".", r"\."))
    if any(word in vocabulary for word in INITIALS):
        choices.append(r"\b(?:\p{L}\.){2,}")
    choices.append(NUMBERS)
    if "n't" in vocabulary:
        choices += [NAMES] if "o'clock" in vocabulary else []
        endings = "|".join(ending[1:] for ending in ENDINGS if ending in vocabulary)
        choices += [NOT, *([rf"'(?i:{endings})\b"] if endings else []), PARTED]
    else:
        choices.append(PLAIN)
    return straight, small, "|".join(choices)


def _cutter(straight: bool, small: bool, pattern: str, vocabulary: dict[str, int]) -> Library:
    library = Library(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    steps: list[Any] = [normalizers.Replace("’", "'")] if straight else []
    library.normalizer = normalizers.Sequence([*steps, normalizers.Lowercase()] if small else steps)
    library.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    return library
