"""Text into tokens and back. Nothing is ever cut or padded here: windows and rows do that, and say so."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Encoding, Regex, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Library

from weft.budget import by_budget
from weft.errors import UserError, listed, shown
from weft.files import read_json, write_json, write_text
from weft.spelling import BEGIN, SPACE
from weft.text.rows import MAX_LENGTH, PART, TOGETHER, length_of, length_problem, parts_of
from weft.text.tokenizers.schema import LONG, check_growth, check_tokens

# What each family puts around a text and around a pair, with roles in braces; the number is the segment.
AROUND = {
    "bert": ("{start}:0 $A:0 {separator}:0", "{start}:0 $A:0 {separator}:0 $B:1 {separator}:1"),
    "t5": ("$A:0 {end}:0", "$A:0 {end}:0 $B:0 {end}:0"),
    "xlmroberta": ("{start}:0 $A:0 {end}:0", "{start}:0 $A:0 {end}:0 {end}:0 $B:0 {end}:0"),
    "xlm": ("{start}:0 $A:0 {end}:0", "{start}:0 $A:0 {end}:0 $B:0 {end}:0"),
    "xlnet": ("$A:0 {separator}:0 {start}:2", "$A:0 {separator}:0 $B:1 {separator}:1 {start}:2"),
    "deberta": ("{start}:0 $A:0 {separator}:0", "{start}:0 $A:0 {separator}:0 {separator}:0 $B:0 {separator}:0"),
}
AROUND |= {"albert": AROUND["bert"], "debertav2": AROUND["bert"], "mt5": AROUND["t5"], "umt5": AROUND["t5"]}


@dataclass(frozen=True, kw_only=True)
class Roles:
    """The special tokens by what they are for; None where a vocabulary has no such token."""

    padding: str | None = None
    unknown: str | None = None
    start: str | None = None
    separator: str | None = None
    mask: str | None = None
    end: str | None = None


# Of each role the settings that name its token, best first, and its well-known names where none does.
ROLES = {
    "padding": (("pad_token",), ("[PAD]", "<pad>")),
    "unknown": (("unk_token",), ("[UNK]", "<unk>")),
    "start": (("cls_token", "bos_token"), ("[CLS]", "<cls>", "<s>", "<|endoftext|>")),
    "separator": (("sep_token",), ("[SEP]", "<sep>")),
    "mask": (("mask_token",), ("[MASK]", "<mask>")),
    "end": (("eos_token",), ("</s>", "<|endoftext|>")),
}


def find_roles(settings: dict[str, Any], library: Library, where: Path | str) -> Roles:
    """The special tokens that the settings name, else those with well-known names, where the vocabulary has them."""
    roles: dict[str, str | None] = {}
    for role, (keys, well_known) in ROLES.items():
        named = [token_name(settings.get(key), key, where) for key in keys]
        names = [name for name in (*named, *well_known) if name is not None]
        roles[role] = next((name for name in names if library.token_to_id(name) is not None), None)
    if roles["separator"] is None and roles["mask"] == "<mask>" and library.token_to_id("</s>") is not None:
        roles["separator"] = "</s>"  # RoBERTa's
    return Roles(**roles)


def spaced(more: Sequence[decoders.Decoder] = ()) -> decoders.Decoder:
    """Whole words back into text: a space between them, but none before a closing mark or after an opening one."""
    steps: list[decoders.Decoder] = [
        decoders.WordPiece(prefix=" ", cleanup=False),  # a space between words; no word begins with one
        decoders.Fuse(),
        decoders.Replace(Regex(r" (?=[.,!?;:)\]}%…])"), ""),
        decoders.Replace(Regex(r"(?<=[(\[{]) "), ""),
    ]
    return decoders.Sequence([*steps, *more])


def surround(library: Library, roles: Roles, family: str) -> None:
    """Put the family's special tokens around each text, where the vocabulary has them."""
    single, pair = (text.split() for text in AROUND[family])
    used = [role for role in ("start", "separator", "end") if any(part.startswith("{" + role) for part in single)]
    names = {role: vars(roles)[role] for role in used}
    if None not in names.values():
        one, two = ([part.format(**names) for part in parts] for parts in (single, pair))
        special = [numbered(library, name) for name in names.values()]
        library.post_processor = processors.TemplateProcessing(one, two, special)


def check_added_tokens(tokens: Sequence[AddedToken], library: Library, where: str) -> None:
    """Refuse added tokens that the library fails on, or finds in one text and not in the same text tomorrow."""
    forms: dict[str, str] = {}
    for token in tokens:
        name = token.content
        form = library.normalizer.normalize_str(name) if token.normalized and library.normalizer else name
        if not form:
            raise UserError(f"{where}: added token {shown(name)!r} is empty once it is normalized")
        if (token.lstrip or token.rstrip) and form.isspace():
            raise UserError(f"{where}: added token {shown(name)!r} is space, and takes the space around it too")
        if token.normalized and forms.setdefault(form, name) != name:
            raise UserError(f"{where}: added tokens {shown(forms[form])!r} and {shown(name)!r} normalize to the same")


def numbered(library: Library, name: str) -> tuple[str, int]:
    number = library.token_to_id(name)
    assert number is not None, f"{name} was looked up before"
    return name, number


def token_name(value: Any, key: str, where: Path | str) -> str | None:
    """A special token as settings name it: a string, or an object with its content."""
    name = value.get("content") if isinstance(value, dict) else value
    if name is None or isinstance(name, str):
        return name
    raise UserError(f"{where}: {key} in its settings is a {type(name).__name__} where a token is expected")


# Keys of tokenizer_config.json that name code, or files on the machine of whoever saved it.
NOT_KEPT = ["auto_map", "custom_pipelines", "trust_remote_code", "code_revision"]
NOT_KEPT += ["tokenizer_file", "vocab_file", "merges_file", "special_tokens_map_file"]


def settings_in(folder: Path) -> dict[str, Any]:
    """What stands beside a vocabulary: its special tokens and switches, less what names code."""
    settings: dict[str, Any] = {}
    for file in (folder / "tokenizer_config.json", folder / "special_tokens_map.json"):
        if file.is_file():
            settings = read_json(file) | settings
    return {key: value for key, value in settings.items() if key not in NOT_KEPT}


@contextmanager
def guarded(problem: str) -> Iterator[None]:
    """Turn what the library raises on files and texts it cannot use (bare Exception, Rust panics) into one line."""
    try:
        yield
    except (UserError, KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError, AssertionError):
        raise
    except BaseException as error:  # a panic in Rust is no Exception
        raise UserError(f"{problem}: {shown(str(error), 200)}") from None


def check_ids(vocabulary: Mapping[str, int], where: Path | str) -> None:
    """Refuse ids that could not index an embedding table."""
    ids = set(vocabulary.values())
    if ids and set(map(type, ids)) == {int} and len(ids) == len(vocabulary) == max(ids) + 1 and min(ids) == 0:
        return  # most of a vocabulary's loading time would go by in the loop below, which finds what is wrong
    named: dict[int, str] = {}
    for token, number in vocabulary.items():
        if type(number) is not int or number < 0:
            raise UserError(f"{where}: the id of {shown(token)!r} is {shown(str(number))}, not a number from 0")
        if named.setdefault(number, token) is not token:
            raise UserError(f"{where}: id {number} is both {shown(named[number])!r} and {shown(token)!r}")
    if not named or max(named) >= len(named):
        missing = itertools.islice((str(i) for i in range(len(named) + 1) if i not in named), 3)
        raise UserError(f"{where}: the ids of its {len(named)} tokens have gaps; the first missing: {listed(missing)}")


def read_ids(file: Path) -> dict[str, int]:
    """The ids of the tokens in a JSON file."""
    vocabulary: dict[str, int] = read_json(file)
    check_tokens(vocabulary, str(file))
    check_ids(vocabulary, file)
    return vocabulary


def check(library: Library, where: Path | str, vocabulary: Mapping[str, int] | None = None) -> None:
    """Refuse a tokenizer that would fail on some text, or whose ids could not index an embedding table.

    `vocabulary`: its ids, where they are known; the library takes a while to list them.
    """
    vocabulary = library.get_vocab(with_added_tokens=True) if vocabulary is None else vocabulary
    check_ids(vocabulary, where)
    model = library.model
    if isinstance(model, models.WordPiece | models.WordLevel | models.BPE):  # BPE may do without, byte by byte
        unknown = model.unk_token
        if (unknown is not None or not isinstance(model, models.BPE)) and model.token_to_id(unknown or "") is None:
            raise UserError(f"{where}: its unknown token {shown(str(unknown))!r} is not in its vocabulary")
    probe = [*library.encode("a").ids, *library.encode("a", "b").ids]
    if max(probe, default=0) >= len(vocabulary):
        raise UserError(f"{where}: adds id {max(probe)} to every text, but has only {len(vocabulary)} tokens")


Renumber = Callable[[Encoding, str], list[int]]
Text = str | Sequence[str]  # a text, or a text already cut into words
SHORT = 256  # characters of a text that goes through the library by itself
CHARACTERS = r"[\s\S]"  # the pattern that cuts a text into its characters
KINDS = {models.WordPiece: "wordpiece", models.BPE: "bpe", models.Unigram: "unigram", models.WordLevel: "word"}

# Classes of transformers that build the same pipeline from what we write; under any other name it reads tokenizer.json.
WORDPIECE_CLASSES = ("Bert", "DistilBert", "Electra", "MobileBert")
BYTE_CLASSES = ("GPT2", "Roberta", "Bart", "Longformer", "LED", "Deberta")
OTHER_CLASSES = ("OpenAIGPT", "T5", "Albert", "XLNet", "XLMRoberta", "DebertaV2", "MPNet", "Camembert")


class Encoded:
    """The tokens of one text or pair, and of a code before it; each list is made when asked for."""

    __slots__ = ("code", "encoding", "renumbered")

    def __init__(self, encoding: Encoding, renumbered: Renumber | None = None, code: str = "") -> None:
        self.encoding = encoding  # as the library gave it
        self.renumbered = renumbered  # its ids in another vocabulary
        self.code = code  # the token of a language that stood before the text

    def __len__(self) -> int:
        return len(self.encoding) + bool(self.code)

    @property
    def ids(self) -> list[int]:
        return self.encoding.ids if self.renumbered is None else self.renumbered(self.encoding, self.code)

    @property
    def tokens(self) -> list[str]:
        return [self.code, *self.encoding.tokens] if self.code else self.encoding.tokens

    @property
    def offsets(self) -> list[tuple[int, int]]:
        """Where each token stands, with the space before it, in characters of the text or word; (0, 0): special."""
        if not self.code:
            return self.encoding.offsets
        before = len(self.code)
        places = zip(self.encoding.offsets, self.encoding.special_tokens_mask, strict=True)
        return [(0, before), *((0, 0) if put else (a + before, b + before) for (a, b), put in places)]

    @property
    def segments(self) -> list[int]:
        """The segment ids that the model was trained with: 0, and 1 for the second of a pair (RoBERTa: all 0)."""
        return [0, *self.encoding.type_ids] if self.code else self.encoding.type_ids

    @property
    def sequences(self) -> list[int | None]:
        """0 for tokens of the text, 1 for those of its pair, None for special tokens put around them."""
        return [0, *self.encoding.sequence_ids] if self.code else self.encoding.sequence_ids

    @property
    def words(self) -> list[int | None]:
        """The number of the word each token belongs to, None for special tokens."""
        if not self.code:
            return self.encoding.word_ids
        return [0, *(None if word is None else word + 1 for word in self.encoding.word_ids)]


class Tokenizer:
    """A vocabulary and the rules that cut text into its tokens."""

    def __init__(self, library: Library, roles: Roles, settings: dict[str, Any], whole: bool = True) -> None:
        self.library = library
        self.roles = roles
        self.settings = settings  # tokenizer_config.json, carried from load to save
        self.whole = whole
        self.vocabulary: int = library.get_vocab_size(with_added_tokens=True)
        self.kind = KINDS[type(library.model)]
        if self.kind == "word" and CHARACTERS in repr(library.pre_tokenizer):
            self.kind = "character"
        if isinstance(library.pre_tokenizer, pre_tokenizers.WhitespaceSplit) and self.kind == "word":
            self.kind = "whitespace"
        if self.kind == "bpe" and library.model.ignore_merges and library.token_to_id(SPACE) == BEGIN:
            self.kind = "word-bytes"

    @property
    def pipeline(self) -> str:
        """All that decides which ids a text becomes: what caches are named by."""
        return self.library.to_str()

    @property
    def length_limit(self) -> int | None:
        """How many tokens the model was made for, where the folder says; for information, nothing is cut by it."""
        limit = self.settings.get("model_max_length")
        if isinstance(limit, int | float) and not isinstance(limit, bool) and 0 < limit <= 10_000_000:
            return int(limit)
        return None

    def id_of(self, role: str) -> int | None:
        """The id of the special token with this role: `id_of("mask")`."""
        name: str | None = vars(self.roles)[role]
        return None if name is None else self.id(name)

    def id(self, token: str) -> int | None:
        """The id of a token, None where the vocabulary does not have it."""
        return self.library.token_to_id(token)

    @property
    def tokens(self) -> dict[str, int]:
        """Every token with its id."""
        return self.library.get_vocab(with_added_tokens=True)

    def token(self, number: int) -> str | None:
        """The token with this id, as it stands in the vocabulary (`##ing`, `Ġthe`)."""
        return self.library.id_to_token(number)

    def with_padding(self, name: str | None) -> Tokenizer:
        """The same vocabulary with this token to fill batches up with."""
        return Tokenizer(self.library, replace(self.roles, padding=name), self.settings, self.whole)

    def in_language(self, name: str) -> Tokenizer:
        """The same for texts in this language, where words are split by language."""
        return self

    @contextmanager
    def _checked(self, texts: Sequence[Text], pairs: Sequence[Text], max_length: int) -> Iterator[bool]:
        """Refuse texts that are too long or no texts; yields whether they are cut into words."""
        assert not isinstance(texts, str), "a list of texts is expected, not one text"
        words = len(texts) > 0 and isinstance(texts[0], list | tuple)
        _check_lengths([*texts, *pairs], max_length)
        with guarded("the tokenizer failed on this text"):
            try:
                for text in (*texts, *pairs):
                    if isinstance(text, str) and len(text) >= LONG:
                        check_growth(self.library.normalizer, text)
                yield words
            except (TypeError, UnicodeEncodeError):
                for number, text in enumerate((*texts, *pairs)):
                    where = f"text {number % len(texts) + 1} of {len(texts)}"
                    for part in text if words and isinstance(text, list | tuple) else [text]:
                        if not isinstance(part, str):
                            expected = "words are" if words else "a text is"
                            raise UserError(f"{where}: a {type(part).__name__} where {expected} expected") from None
                        if half := next((c for c in part if "\ud800" <= c <= "\udfff"), None):
                            what = "half of a surrogate pair and no character"
                            raise UserError(f"{where}: holds {half!r}, {what}") from None
                raise

    def encode(self, text: Text, pair: Text | None = None, specials: bool = True) -> Encoded:
        """The tokens of one text, or of a text and its pair."""
        one: Any = text
        with self._checked([text], [] if pair is None else [pair], MAX_LENGTH // 2) as words:
            # Not by encode_batch: its threads would make a later fork of this process warn.
            return Encoded(self.library.encode(one, pair, is_pretokenized=words, add_special_tokens=specials))

    def encode_batch(
        self, texts: Sequence[Text], pairs: Sequence[Text] | None = None, specials: bool = True
    ) -> list[Encoded]:
        """The tokens of many texts, on all cores."""
        inputs: Any = texts if pairs is None else list(zip(texts, pairs, strict=True))
        with self._checked(texts, pairs or (), MAX_LENGTH // 2) as words:
            encodings = self.library.encode_batch(inputs, is_pretokenized=words, add_special_tokens=specials)
        return [Encoded(encoding) for encoding in encodings]

    def ids(self, texts: Sequence[Text], specials: bool = True) -> list[list[int]]:
        """Only the ids of many texts: the fastest way for bulk text."""
        if isinstance(texts, list) and len(texts) == 1 and isinstance(texts[0], str) and len(texts[0]) <= SHORT:
            # Mostly a short text that somebody is waiting for; by the threads of a batch it would take longer.
            with suppress(UserError), guarded(""):  # a fault is named below
                return [self.library.encode(texts[0], add_special_tokens=specials).ids]
        long = not specials and any(isinstance(text, str) and len(text) > TOGETHER for text in texts)
        if long and isinstance(texts[0], str):
            _check_lengths(texts, MAX_LENGTH)
            parts = (list(parts_of(text, PART)) if isinstance(text, str) else [text] for text in texts)
            return [[number for ids in self.ids(some, specials=False) for number in ids] for some in parts]
        ids = list[list[int]]()
        with self._checked(texts, (), MAX_LENGTH) as words:
            for some in by_budget(texts, length_of, TOGETHER):
                inputs: Any = some
                encoded = self.library.encode_batch_fast(inputs, is_pretokenized=words, add_special_tokens=specials)
                ids += [encoding.ids for encoding in encoded]
        return ids

    def decode(self, ids: Sequence[int], specials: bool = False) -> str:
        """The text of these ids; part of a character at either end comes out as U+FFFD."""
        with guarded("the tokenizer failed on these tokens"):
            return self.library.decode(list(ids), skip_special_tokens=not specials)

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json and tokenizer_config.json, which transformers' AutoTokenizer opens with the same ids."""
        pipeline = json.loads(self.library.to_str())
        write_text(Path(folder) / "tokenizer.json", self._as_stored(pipeline))
        # The loaded settings, with what transformers needs to build the same tokenizer.
        config = dict(self.settings)
        for role, name in vars(self.roles).items():
            keys = ("bos_token",) if role == "start" and self.roles.separator is None else ROLES[role][0]
            if name is not None and not any(config.get(key) for key in keys):
                config[keys[0]] = name
        if 2 in self.encode("a").segments:  # XLNet's <cls> is the last token, and others look for it at the end
            config.setdefault("padding_side", "left")
        name = str(config.get("tokenizer_class")).removesuffix("Fast").removesuffix("Tokenizer")
        normalizer, cutter = (pipeline[part] or {} for part in ("normalizer", "pre_tokenizer"))
        bert = normalizer.get("type") == "BertNormalizer" and normalizer["clean_text"]
        if name in WORDPIECE_CLASSES and self.kind == "wordpiece" and bert and cutter.get("type") == "BertPreTokenizer":
            config["do_lower_case"] = normalizer["lowercase"]
            config["strip_accents"] = normalizer["strip_accents"]
            config["tokenize_chinese_chars"] = normalizer["handle_chinese_chars"]
        elif name in BYTE_CLASSES and not normalizer and cutter.get("type") == "ByteLevel" and cutter["use_regex"]:
            config["add_prefix_space"] = cutter["add_prefix_space"]
        elif name not in OTHER_CLASSES or not (self.whole or name == "OpenAIGPT"):
            config["tokenizer_class"] = "PreTrainedTokenizerFast"
            # Segments only where the model knows them: in transformers GPT-2 would add them up and T5 would fail.
            segments = ["token_type_ids"] if self.roles.separator not in (None, "</s>") else []
            config.setdefault("model_input_names", ["input_ids", *segments, "attention_mask"])
            if bert or normalizer.get("type") == "Lowercase":
                config["do_lower_case"] = normalizer.get("lowercase", True)
        write_json(Path(folder) / "tokenizer_config.json", config)

    def _as_stored(self, pipeline: dict[str, Any]) -> str:
        """The text of a tokenizer.json: each merge as one text, which the library reads in two thirds of the time.

        It reads them so in all its versions, but for a first line of merges.txt; it writes lists of two, which a token
        with a space in it needs.
        """
        merges = [" ".join(pair) for pair in pipeline["model"].get("merges") or ()]
        if not merges or any(merge.count(" ") != 1 or merge.startswith("#version") for merge in merges):
            return self.library.to_str(pretty=True)
        model = {**pipeline["model"], "merges": merges}
        return json.dumps({**pipeline, "model": model}, indent=2, ensure_ascii=False)


def _check_lengths(texts: Sequence[Text], max_length: int) -> None:
    for number, text in enumerate(texts, start=1):
        if isinstance(text, str) and len(text) <= max_length:
            continue
        if isinstance(text, str | list | tuple) and (wrong := length_problem(text, max_length)):
            raise UserError(f"text {number} of {len(texts)}: {wrong}")
