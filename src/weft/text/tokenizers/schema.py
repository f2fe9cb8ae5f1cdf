"""What a tokenizer.json may hold: every component, every field, its type and its range.

The library that runs these files crashes, hangs or fills the memory on values that no published tokenizer has, so that
all is checked before it sees them. A component or field that is not in these tables is refused by its name.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any

from weft.errors import UserError, did_you_mean, listed, shown
from weft.text.tokenizers.limits import (
    MAX_ADDED_TOKENS,
    MAX_GROWTH,
    MAX_MERGES,
    MAX_SCORE,
    MAX_TOKEN_LENGTH,
    MAX_TOKENS,
    check_pieces,
    check_tokens,
    growth_of,
)
from weft.text.tokenizers.patterns import check_pattern
from weft.text.tokenizers.sentencepiece import check_charsmap

Check = Callable[[Any, str], None]


def value_shown(value: Any) -> str:
    """A value as an error shows it."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return shown(repr(value) if isinstance(value, str) else str(value))


def _check(is_right: Callable[[Any], bool], wanted: str) -> Check:
    def check(value: Any, where: str) -> None:
        if not is_right(value):
            raise UserError(f"{where} is {value_shown(value)}, {wanted}")

    return check


an_object = _check(lambda value: isinstance(value, dict), "not an object")
a_list = _check(lambda value: isinstance(value, list), "not a list")
a_text = _check(lambda value: isinstance(value, str), "not a text")
flag = _check(lambda value: type(value) is bool, "neither true nor false")
anything = _check(lambda value: True, "")  # checked elsewhere


def whole(low: int, high: int) -> Check:
    """A whole number in a range."""
    wanted = f"not a whole number from {low} to {high}" if low < high else f"and only {low} is supported"
    return _check(lambda value: type(value) is int and low <= value <= high, wanted)


def number(low: float, high: float) -> Check:
    """A number in a range."""
    wanted = f"not a number from {low:g} to {high:g}"
    return _check(lambda value: type(value) in (int, float) and low <= value <= high, wanted)


def choice(*names: str) -> Check:
    """One of some words."""
    return _check(lambda value: value in names, f"not one of {', '.join(names)}")


def text(max_length: int, min_length: int = 0) -> Check:
    """A text of some characters."""

    def check(value: Any, where: str) -> None:
        a_text(value, where)
        if not min_length <= len(value) <= max_length:
            raise UserError(f"{where} has {len(value)} characters, not {min_length} to {max_length}")

    return check


def none_or(inner: Check) -> Check:
    """What may be null."""
    return lambda value, where: None if value is None else inner(value, where)


def few(value: Any, where: str, max_entries: int, inner: Check = anything) -> None:
    """A list of at most so many values."""
    a_list(value, where)
    if len(value) > max_entries:
        raise UserError(f"{where} has {len(value)} entries; at most {max_entries} are read")
    for place, item in enumerate(value):
        inner(item, f"{where}.{place}")


def check_fields(
    value: Any, fields: Mapping[str, Check], where: str, optional: Collection[str] = (), joint: str = "."
) -> None:
    """Check an object by the table of its fields; what is not in the table is refused."""
    an_object(value, where)
    for key in value:
        if key not in fields:
            raise UserError(f"{where}: unknown field {shown(key)!r}{did_you_mean(key, fields)}")
    missing = [key for key in fields if key not in value and key not in optional]
    if missing:
        raise UserError(f"{where} has no {listed(missing)}")
    for key, item in value.items():
        fields[key](item, f"{where}{joint}{key}")


def fields_of(fields: Mapping[str, Check], optional: Collection[str] = ()) -> Check:
    """An object with these fields and no others."""
    return lambda value, where: check_fields(value, fields, where, optional)


MAX_STEPS = 64  # components of a pipeline
MAX_NESTED = 8  # sequences inside sequences
MAX_WORD_LENGTH = 1000  # max_input_chars_per_word: the library takes its cube
MAX_AFFIX = 64  # characters of a prefix or suffix
MAX_CONTENT = 1000  # characters that replace others
MAX_TEMPLATE = 64  # pieces of a template, and special tokens that it defines
MAX_STRIP = 64  # characters that a decoder takes off
MAX_CHUNK = 10_000  # characters
MAX_NUMBER = (1 << 31) - 1  # the largest id, length or segment


def pattern(value: Any, where: str, empty: bool = True) -> None:
    """{"String": text} or {"Regex": text}."""
    if not isinstance(value, dict) or len(value) != 1 or not {"String", "Regex"} & set(value):
        raise UserError(f"{where} is {value_shown(value)}, not an object with String or Regex")
    kind, inside = next(iter(value.items()))
    text(MAX_TOKEN_LENGTH, 1)(inside, f"{where}.{kind}")
    if kind == "Regex":
        check_pattern(inside, where, empty)


replaced = partial(pattern, empty=False)  # the library cannot put anything in the place of nothing


def charsmap(value: Any, where: str) -> None:
    """SentencePiece's map of characters, in base64."""
    try:
        data = base64.b64decode(value, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise UserError(f"{where}: the precompiled character map is not base64") from None
    check_charsmap(data, where)


def named_id(value: Any, where: str) -> None:
    """[token, id]."""
    if not isinstance(value, list) or len(value) != 2:
        raise UserError(f"{where} is {value_shown(value)}, not a token with its id")
    text(MAX_TOKEN_LENGTH)(value[0], where)
    whole(0, MAX_NUMBER)(value[1], where)


def template_piece(value: Any, where: str) -> None:
    """One text, or one special token."""
    kind = next(iter(value)) if isinstance(value, dict) and len(value) == 1 else None
    if kind not in ("Sequence", "SpecialToken"):
        raise UserError(f"{where} is neither a Sequence nor a SpecialToken")
    name = choice("A", "B") if kind == "Sequence" else text(MAX_TOKEN_LENGTH, 1)
    check_fields(value[kind], {"id": name, "type_id": whole(0, 255)}, f"{where}.{kind}")


def template(value: Any, where: str) -> None:
    """Special tokens around the texts: A alone, or A and B, each once."""
    few(value, where, MAX_TEMPLATE, template_piece)
    seen = [piece["Sequence"]["id"] for piece in value if "Sequence" in piece]
    texts = ["A", "B"] if where.endswith("pair") else ["A"]
    if sorted(seen) != texts:
        raise UserError(f"{where} holds the texts {listed(seen) or 'none'}, not {' and '.join(texts)} once")


def template_tokens(value: Any, where: str) -> None:
    """The special tokens of a template by name."""
    an_object(value, where)
    few(list(value), where, MAX_TEMPLATE)
    fields: dict[str, Check] = {
        "id": text(MAX_TOKEN_LENGTH, 1),
        "ids": lambda ids, place: few(ids, place, MAX_TEMPLATE, whole(0, MAX_NUMBER)),
        "tokens": lambda names, place: few(names, place, MAX_TEMPLATE, text(MAX_TOKEN_LENGTH)),
    }
    for name, token in value.items():
        here = f"{where}.{shown(name)}"
        check_fields(token, fields, here)
        if len(token["ids"]) != len(token["tokens"]):
            raise UserError(f"{here} has {len(token['ids'])} ids for {len(token['tokens'])} tokens")


AFFIX = text(MAX_AFFIX)
BYTE_LEVEL: dict[str, Check] = {"add_prefix_space": flag, "trim_offsets": flag, "use_regex": flag}
METASPACE: dict[str, Check] = {
    "replacement": text(1, 1),
    "add_prefix_space": flag,
    "prepend_scheme": choice("first", "never", "always"),
    "split": flag,
    "str_rep": text(MAX_AFFIX),
}
BEHAVIOR = choice("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")
REPLACE: dict[str, Check] = {"pattern": replaced, "content": text(MAX_CONTENT)}
ENDS: dict[str, Check] = {"sep": named_id, "cls": named_id}

# Stage -> the field that holds the steps of its Sequence, and its components with their fields.
COMPONENTS: dict[str, tuple[str, dict[str, dict[str, Check]]]] = {
    "normalizer": (
        "normalizers",
        {
            "BertNormalizer": {
                "clean_text": flag,
                "handle_chinese_chars": flag,
                "strip_accents": none_or(flag),
                "lowercase": flag,
            },
            "Strip": {"strip_left": flag, "strip_right": flag},
            "Replace": REPLACE,
            "Prepend": {"prepend": text(MAX_AFFIX, 1)},
            "Precompiled": {"precompiled_charsmap": charsmap},
            **dict.fromkeys(("StripAccents", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Nmt", "ByteLevel"), {}),
        },
    ),
    "pre_tokenizer": (
        "pretokenizers",
        {
            "ByteLevel": BYTE_LEVEL,
            "Metaspace": METASPACE,
            "Split": {"pattern": pattern, "behavior": BEHAVIOR, "invert": flag},
            "Punctuation": {"behavior": BEHAVIOR},
            "Digits": {"individual_digits": flag},
            "CharDelimiterSplit": {"delimiter": text(1, 1)},
            "FixedLength": {"length": whole(1, MAX_CHUNK)},
            **dict.fromkeys(("BertPreTokenizer", "Whitespace", "WhitespaceSplit", "UnicodeScripts"), {}),
        },
    ),
    "post_processor": (
        "processors",
        {
            "BertProcessing": ENDS,
            "RobertaProcessing": {**ENDS, "trim_offsets": flag, "add_prefix_space": flag},
            "ByteLevel": BYTE_LEVEL,
            "TemplateProcessing": {"single": template, "pair": template, "special_tokens": template_tokens},
        },
    ),
    "decoder": (
        "decoders",
        {
            "BPEDecoder": {"suffix": AFFIX},
            "ByteLevel": BYTE_LEVEL,
            "WordPiece": {"prefix": AFFIX, "cleanup": flag},
            "Metaspace": METASPACE,
            "CTC": {"pad_token": AFFIX, "word_delimiter_token": AFFIX, "cleanup": flag},
            "Replace": REPLACE,
            # At the end the library takes characters off that are not there, and panics.
            "Strip": {"content": text(1, 1), "start": whole(0, MAX_STRIP), "stop": whole(0, 0)},
            **dict.fromkeys(("Fuse", "ByteFallback"), {}),
        },
    ),
}
OPTIONAL = ("use_regex", "add_prefix_space", "prepend_scheme", "split", "str_rep", "behavior", "strip_accents")
REQUIRED = {"ByteLevel": ("add_prefix_space",), "RobertaProcessing": ("add_prefix_space",), "Split": ("behavior",)}

MODELS: dict[str, dict[str, Check]] = {
    "BPE": {
        "dropout": none_or(number(0, 1)),
        "unk_token": none_or(text(MAX_TOKEN_LENGTH)),
        "continuing_subword_prefix": none_or(AFFIX),
        "end_of_word_suffix": none_or(AFFIX),
        "fuse_unk": flag,
        "byte_fallback": flag,
        "ignore_merges": flag,
        "vocab": anything,
        "merges": anything,
    },
    "WordPiece": {
        "unk_token": text(MAX_TOKEN_LENGTH),
        "continuing_subword_prefix": AFFIX,
        "max_input_chars_per_word": whole(0, MAX_WORD_LENGTH),
        "vocab": anything,
    },
    "WordLevel": {"unk_token": text(MAX_TOKEN_LENGTH), "vocab": anything},
    "Unigram": {"unk_id": none_or(whole(0, MAX_TOKENS)), "byte_fallback": flag, "vocab": anything},
}
MODEL_OPTIONAL = {
    "BPE": tuple(name for name in MODELS["BPE"] if name not in ("vocab", "merges")),
    "Unigram": ("unk_id", "byte_fallback"),
}
ADDED = {
    "id": whole(0, MAX_NUMBER),
    "content": text(MAX_TOKEN_LENGTH, 1),
    **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), flag),
}
DIRECTION = choice("Left", "Right")
TRUNCATION = {
    "max_length": whole(0, MAX_NUMBER),
    "stride": whole(0, MAX_NUMBER),
    "strategy": choice("LongestFirst", "OnlyFirst", "OnlySecond"),
    "direction": DIRECTION,
}


def padding_strategy(value: Any, where: str) -> None:
    """BatchLongest, or a fixed length."""
    if value != "BatchLongest":
        check_fields(value, {"Fixed": whole(0, MAX_NUMBER)}, where)


PADDING = {
    "strategy": padding_strategy,
    "direction": DIRECTION,
    "pad_to_multiple_of": none_or(whole(0, MAX_NUMBER)),
    "pad_id": whole(0, MAX_NUMBER),
    "pad_type_id": whole(0, MAX_NUMBER),
    "pad_token": text(MAX_TOKEN_LENGTH),
}


def check_pipeline(data: dict[str, Any], file: str) -> None:
    """Refuse a tokenizer.json with anything in it that the tables do not have; the type of its model is filled in."""
    parts: dict[str, Check] = {
        "version": choice("1.0"),
        "truncation": none_or(fields_of(TRUNCATION, TRUNCATION)),
        "padding": none_or(fields_of(PADDING, PADDING)),
        "added_tokens": none_or(lambda value, where: few(value, where, MAX_ADDED_TOKENS, fields_of(ADDED))),
        **dict.fromkeys(COMPONENTS, anything),
        "model": anything,
    }
    check_fields(data, parts, file, parts, joint=": ")
    growth = 1
    for stage in COMPONENTS:
        steps = list(_steps(stage, data.get(stage), f"{file}: {stage}"))
        growth = 1 if stage == "decoder" else growth
        for step, where in steps:
            growth *= growth_of(stage, step)
            if len(steps) > MAX_STEPS or growth > MAX_GROWTH:
                what = f"{len(steps)} steps" if len(steps) > MAX_STEPS else f"one character may become {growth}"
                limit = MAX_STEPS if len(steps) > MAX_STEPS else MAX_GROWTH
                raise UserError(f"{where}: {what}; at most {limit} are run")
        around = [where for step, where in steps if stage == "post_processor" and step["type"] != "ByteLevel"]
        if len(around) > 1:
            raise UserError(f"{around[1]}: puts special tokens around a text a second time")
    check_model(data.get("model"), f"{file}: model")


def _steps(stage: str, value: Any, where: str, depth: int = 0) -> Iterator[tuple[dict[str, Any], str]]:
    """The checked components of a stage in their order, those inside a Sequence one by one."""
    if value is None and depth == 0:
        return
    an_object(value, where)
    inside, components = COMPONENTS[stage]
    kind = value.get("type")
    if kind == "Sequence":
        if depth >= MAX_NESTED:
            raise UserError(f"{where}: more than {MAX_NESTED} sequences inside each other")
        check_fields(value, {"type": anything, inside: anything}, where)
        few(value[inside], f"{where}.{inside}", MAX_STEPS)
        for place, step in enumerate(value[inside]):
            yield from _steps(stage, step, f"{where}.{inside}.{place}", depth + 1)
        return
    if not isinstance(kind, str) or kind not in components:
        near = did_you_mean(kind, components) if isinstance(kind, str) else ""
        raise UserError(f"{where}: type {value_shown(kind)} is not one of {listed(components, 20)}, Sequence{near}")
    optional = tuple(name for name in OPTIONAL if name not in REQUIRED.get(kind, ()))
    check_fields(value, {"type": anything, **components[kind]}, where, optional)
    if kind == "TemplateProcessing":
        tokens = [piece["SpecialToken"] for piece in (*value["single"], *value["pair"]) if "SpecialToken" in piece]
        unknown = [token["id"] for token in tokens if token["id"] not in value["special_tokens"]]
        if unknown:
            raise UserError(f"{where}: its template uses {listed(map(shown, unknown))}, which it does not define")
    yield value, where


def check_model(model: Any, where: str) -> None:
    """The model with its vocabulary; old files do not say of which type it is."""
    an_object(model, where)
    kind = model.setdefault("type", _type_of(model))
    if not isinstance(kind, str) or kind not in MODELS:
        raise UserError(f"{where}: type {value_shown(kind)} is not one of {listed(MODELS)}")
    check_fields(model, {"type": anything, **MODELS[kind]}, where, MODEL_OPTIONAL.get(kind, ()))
    vocabulary = model["vocab"]
    if kind == "Unigram":
        few(vocabulary, f"{where}.vocab", MAX_TOKENS)
        score = number(-MAX_SCORE, MAX_SCORE)
        for place, piece in enumerate(vocabulary):
            if not isinstance(piece, list) or len(piece) != 2 or not isinstance(piece[0], str):
                raise UserError(f"{where}.vocab.{place} is not a piece with its score")
            score(piece[1], f"{where}.vocab.{place}")
        names = [piece for piece, _ in vocabulary]
        check_tokens(names, f"{where}.vocab", what="pieces")
        check_pieces(names, f"{where}.vocab")
        unknown = model.get("unk_id")
        if unknown is None and not model.get("byte_fallback"):
            raise UserError(f"{where} has no unknown token (unk_id), so it cannot encode a character it does not know")
        if unknown is not None and unknown >= len(names):
            raise UserError(f"{where}.unk_id is {unknown}, but there are only {len(names)} pieces")
        return
    an_object(vocabulary, f"{where}.vocab")
    check_tokens(vocabulary, f"{where}.vocab")
    if not all(type(place) is int and 0 <= place <= MAX_NUMBER for place in vocabulary.values()):
        for token, place in vocabulary.items():
            whole(0, MAX_NUMBER)(place, f"{where}.vocab: the id of {shown(token)!r}")
    if kind == "BPE":
        _check_merges(model["merges"], model.get("continuing_subword_prefix") or "", f"{where}.merges")


def _type_of(model: Mapping[str, Any]) -> str:
    if "merges" in model:
        return "BPE"
    if isinstance(model.get("vocab"), list):
        return "Unigram"
    return "WordPiece" if "max_input_chars_per_word" in model else "WordLevel"


def _check_merges(merges: Any, prefix: str, where: str) -> None:
    few(merges, where, MAX_MERGES)
    for place, merge in enumerate(merges):
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(token, str) for token in pair):
            raise UserError(f"{where}.{place} is not two tokens")
        # The library cuts as many bytes off the right one, wherever that ends, and crashes.
        if prefix and not pair[1].startswith(prefix):
            raise UserError(f"{where}.{place}: {shown(pair[1])!r} does not begin with {prefix!r}, as it must")
