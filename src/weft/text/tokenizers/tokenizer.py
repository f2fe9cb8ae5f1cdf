"""Text into tokens and back. Nothing is ever cut or padded here: windows and rows do that, and say so."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import Encoding, models, pre_tokenizers
from tokenizers import Tokenizer as Library

from weft.budget import by_budget
from weft.errors import UserError, listed, shown
from weft.files import write_json, write_text
from weft.text.long_texts import MAX_LENGTH, PART, TOGETHER, parts_of, too_long
from weft.text.tokenizers.limits import LONG, check_growth
from weft.text.tokenizers.special_tokens import ROLES, Roles


@contextmanager
def guarded(where: Path | str) -> Iterator[None]:
    """Turn what the library raises on files it cannot use (bare Exception, Rust panics) into one line."""
    try:
        yield
    except (UserError, KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError, AssertionError):
        raise
    except BaseException as error:  # a panic in Rust is no Exception
        raise UserError(f"{where}: not a usable tokenizer: {shown(str(error), 200)}") from None


def check(library: Library, where: Path | str) -> None:
    """Refuse a tokenizer that would fail on some text, or whose ids could not index an embedding table."""
    vocabulary = library.get_vocab(with_added_tokens=True)
    named: dict[int, str] = {}
    for token, number in vocabulary.items():
        if named.setdefault(number, token) is not token:
            raise UserError(f"{where}: id {number} is both {shown(named[number])!r} and {shown(token)!r}")
    if not named or max(named) >= len(named):
        missing = itertools.islice((str(i) for i in range(len(named) + 1) if i not in named), 3)
        raise UserError(f"{where}: the ids of its {len(named)} tokens have gaps; the first missing: {listed(missing)}")
    model = library.model
    if isinstance(model, models.WordPiece | models.WordLevel | models.BPE):  # BPE may do without, byte by byte
        unknown = model.unk_token
        if (unknown is not None or not isinstance(model, models.BPE)) and model.token_to_id(unknown or "") is None:
            raise UserError(f"{where}: its unknown token {shown(str(unknown))!r} is not in its vocabulary")
    probe = [*library.encode("a").ids, *library.encode("a", "b").ids]
    if max(probe, default=0) >= len(named):
        raise UserError(f"{where}: adds id {max(probe)} to every text, but has only {len(named)} tokens")


Text = str | Sequence[str]  # a text, or a text already cut into words
CHARACTERS = r"[\s\S]"  # the pattern that cuts a text into its characters
KINDS = {models.WordPiece: "wordpiece", models.BPE: "bpe", models.Unigram: "unigram", models.WordLevel: "word"}

# Classes of transformers that build the same pipeline from what we write; under any other name it reads tokenizer.json.
WORDPIECE_CLASSES = ("Bert", "DistilBert", "Electra", "MobileBert")
BYTE_CLASSES = ("GPT2", "Roberta", "Bart", "Longformer", "LED", "Deberta")
OTHER_CLASSES = ("OpenAIGPT", "T5", "Albert", "XLNet", "XLMRoberta", "DebertaV2", "MPNet", "Camembert")


class Encoded:
    """The tokens of one text or pair; each list is made when asked for."""

    __slots__ = ("_encoding",)

    def __init__(self, encoding: Encoding) -> None:
        self._encoding = encoding

    def __len__(self) -> int:
        return len(self._encoding)

    @property
    def library_encoding(self) -> Encoding:
        """As the library gave it."""
        return self._encoding

    @property
    def ids(self) -> list[int]:
        return self._encoding.ids

    @property
    def tokens(self) -> list[str]:
        return self._encoding.tokens

    @property
    def offsets(self) -> list[tuple[int, int]]:
        """Where each token stands, in characters of the text (of its word, where words were given).

        Byte-level and SentencePiece tokens include the space before them; (0, 0) for special tokens.
        """
        return self._encoding.offsets

    @property
    def segments(self) -> list[int]:
        """The segment ids that the model was trained with: 0, and 1 for the second of a pair (RoBERTa: all 0)."""
        return self._encoding.type_ids

    @property
    def sequences(self) -> list[int | None]:
        """0 for tokens of the text, 1 for those of its pair, None for special tokens."""
        return self._encoding.sequence_ids

    @property
    def specials(self) -> list[int]:
        """1 where the tokenizer put a special token around the text, else 0."""
        return self._encoding.special_tokens_mask

    @property
    def words(self) -> list[int | None]:
        """The number of the word each token belongs to, None for special tokens."""
        return self._encoding.word_ids


class Tokenizer:
    """A vocabulary and the rules that cut text into its tokens."""

    def __init__(self, library: Library, roles: Roles, settings: dict[str, Any], whole: bool = True) -> None:
        self.library = library
        self.roles = roles
        self.settings = settings  # tokenizer_config.json, carried from load to save
        self._whole = whole
        self.vocabulary: int = library.get_vocab_size(with_added_tokens=True)
        self.kind = KINDS[type(library.model)]
        if self.kind == "word" and CHARACTERS in repr(library.pre_tokenizer):
            self.kind = "character"
        if isinstance(library.pre_tokenizer, pre_tokenizers.WhitespaceSplit) and self.kind == "word":
            self.kind = "whitespace"

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
        return None if name is None else self.library.token_to_id(name)

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
        return Tokenizer(self.library, replace(self.roles, padding=name), self.settings, self._whole)

    def with_library(self, library: Library, settings: dict[str, Any]) -> Tokenizer:
        """The same special tokens over another pipeline, that of a smaller vocabulary."""
        return Tokenizer(library, self.roles, settings, self._whole)

    def encode(self, text: Text, pair: Text | None = None, specials: bool = True) -> Encoded:
        """The tokens of one text, or of a text and its pair."""
        words = _in_words([text])
        _check_lengths([text, *([] if pair is None else [pair])], MAX_LENGTH // 2)
        one: Any = text
        try:  # not by encode_batch: its threads would make a later fork of this process warn
            self._check_long([text] if pair is None else [text, pair])
            return Encoded(self.library.encode(one, pair, is_pretokenized=words, add_special_tokens=specials))
        except BaseException as error:
            raise _explained(error, [text], None if pair is None else [pair], words) from None

    def encode_batch(
        self, texts: Sequence[Text], pairs: Sequence[Text] | None = None, specials: bool = True
    ) -> list[Encoded]:
        """The tokens of many texts, on all cores."""
        inputs: Sequence[Any] = texts if pairs is None else list(zip(texts, pairs, strict=True))
        words = _in_words(texts)
        _check_lengths([*texts, *(pairs or ())], MAX_LENGTH // 2)
        try:
            self._check_long([*texts, *(pairs or ())])
            encodings = self.library.encode_batch(inputs, is_pretokenized=words, add_special_tokens=specials)
        except BaseException as error:
            raise _explained(error, texts, pairs, words) from None
        return [Encoded(encoding) for encoding in encodings]

    def ids(self, texts: Sequence[Text], specials: bool = True) -> list[list[int]]:
        """Only the ids of many texts: the fastest way for bulk text."""
        words = _in_words(texts)
        _check_lengths(texts, MAX_LENGTH)
        if not words and not specials and any(isinstance(text, str) and len(text) > TOGETHER for text in texts):
            return [self._long_ids(text) for text in texts]
        ids = list[list[int]]()
        for some in by_budget(texts, _size, TOGETHER):
            inputs: Sequence[Any] = some
            try:
                self._check_long(some)
                encoded = self.library.encode_batch_fast(inputs, is_pretokenized=words, add_special_tokens=specials)
            except BaseException as error:
                raise _explained(error, texts, None, words) from None
            ids += [encoding.ids for encoding in encoded]
        return ids

    def _long_ids(self, text: Text) -> list[int]:
        """The ids of a long text, a part at a time: the library takes some hundred bytes for each character."""
        parts = list(parts_of(text, PART)) if isinstance(text, str) else [text]
        return [number for ids in self.ids(parts, specials=False) for number in ids]

    def _check_long(self, texts: Sequence[Text]) -> None:
        for text in texts:
            if isinstance(text, str) and len(text) >= LONG:
                check_growth(self.library.normalizer, text)

    def decode(self, ids: Sequence[int], specials: bool = False) -> str:
        """The text of these ids; part of a character at either end comes out as U+FFFD."""
        try:
            return self.library.decode(list(ids), skip_special_tokens=not specials)
        except BaseException as error:
            raise _failed(error, "tokens") from None

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json and tokenizer_config.json, which transformers' AutoTokenizer opens with the same ids."""
        write_text(Path(folder) / "tokenizer.json", self.library.to_str(pretty=True))
        write_json(Path(folder) / "tokenizer_config.json", self._config())

    def _config(self) -> dict[str, Any]:
        """The loaded settings, with what transformers needs to build the same tokenizer."""
        config = dict(self.settings)
        for role, name in vars(self.roles).items():
            keys = ("bos_token",) if role == "start" and self.roles.separator is None else ROLES[role][0]
            if name is not None and not any(config.get(key) for key in keys):
                config[keys[0]] = name
        name = str(config.get("tokenizer_class")).removesuffix("Fast").removesuffix("Tokenizer")
        pipeline = json.loads(self.library.to_str())
        normalizer, cutter = (pipeline[part] or {} for part in ("normalizer", "pre_tokenizer"))
        bert = normalizer.get("type") == "BertNormalizer" and normalizer["clean_text"]
        if name in WORDPIECE_CLASSES and self.kind == "wordpiece" and bert and cutter.get("type") == "BertPreTokenizer":
            config["do_lower_case"] = normalizer["lowercase"]
            config["strip_accents"] = normalizer["strip_accents"]
            config["tokenize_chinese_chars"] = normalizer["handle_chinese_chars"]
        elif name in BYTE_CLASSES and not normalizer and cutter.get("type") == "ByteLevel" and cutter["use_regex"]:
            config["add_prefix_space"] = cutter["add_prefix_space"]
        elif name not in OTHER_CLASSES or not (self._whole or name == "OpenAIGPT"):
            config["tokenizer_class"] = "PreTrainedTokenizerFast"
            # Segments only where the model knows them: in transformers GPT-2 would add them up and T5 would fail.
            segments = ["token_type_ids"] if self.roles.separator not in (None, "</s>") else []
            config.setdefault("model_input_names", ["input_ids", *segments, "attention_mask"])
            if bert or normalizer.get("type") == "Lowercase":
                config["do_lower_case"] = normalizer.get("lowercase", True)
        return config


def _size(text: Text) -> int:
    """Characters of a text; what is none is refused later, by name."""
    words = text if isinstance(text, list | tuple) else [text]
    return sum(len(word) for word in words if isinstance(word, str))


def _check_lengths(texts: Sequence[Text], max_length: int) -> None:
    for number, text in enumerate(texts, start=1):
        if isinstance(text, str | list | tuple) and (wrong := too_long(text, max_length)):
            raise UserError(f"text {number} of {len(texts)}: {wrong}")


def _in_words(texts: Sequence[Text]) -> bool:
    assert not isinstance(texts, str), "a list of texts is expected, not one text"
    return len(texts) > 0 and isinstance(texts[0], list | tuple)


def _explained(error: BaseException, texts: Sequence[Text], pairs: Sequence[Text] | None, words: bool) -> BaseException:
    """What is wrong with the text that the library refused, or the error itself where it is not about text."""
    if isinstance(error, TypeError | UnicodeEncodeError):
        for number, text in enumerate((*texts, *(pairs or ())), start=1):
            where = f"text {number if number <= len(texts) else number - len(texts)} of {len(texts)}"
            for part in text if words and isinstance(text, list | tuple) else [text]:
                if not isinstance(part, str):
                    expected = "words are" if words else "a text is"
                    return UserError(f"{where}: a {type(part).__name__} where {expected} expected")
                half = next((c for c in part if "\ud800" <= c <= "\udfff"), None)
                if half is not None:
                    return UserError(f"{where}: holds {half!r}, half of a surrogate pair and no character")
    return _failed(error, "text")


def _failed(error: BaseException, what: str) -> BaseException:
    """What the library raises as one line; a panic in Rust is no Exception."""
    if isinstance(error, UserError):
        return error
    if isinstance(error, Exception) or type(error).__name__ == "PanicException":
        return UserError(f"the tokenizer failed on this {what}: {shown(str(error), 200)}")
    return error
